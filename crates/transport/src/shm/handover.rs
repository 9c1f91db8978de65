//! How the memory of a connection gets from one process to the other.
//!
//! It has no name: `memfd_create` makes it, a message over the connection's own socket carries
//! its descriptor, and both ends close theirs once it is mapped. So a crash leaves nothing
//! behind. The receiver trusts nothing: memory that could shrink under it, or has another size
//! than its rings, is refused before it is mapped.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::region::{End, Region, region_bytes, ring_bytes};

/// What the message says; the last byte is the version of the layout in the memory.
const MESSAGE: [u8; 8] = *b"smp-shm\x01";

/// Neither end can change the size any more, nor undo that.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes memory for two rings and sends it over `socket`.
pub(super) fn offer(socket: BorrowedFd<'_>, ring_bytes: usize) -> io::Result<Region> {
    let bytes = region_bytes(ring_bytes)?;
    let memory = memfd_create("sumpter-link", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, bytes as u64)?;
    fcntl_add_seals(&memory, SEALS)?;
    let region = Region::map(memory.as_fd(), ring_bytes, End::Offering)?;

    let descriptors = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(fits, "the space is for one descriptor");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(&MESSAGE)], &mut control, flags)? {
        n if n == MESSAGE.len() => Ok(region),
        n => Err(refused(format!("the socket took {n} of {} bytes", MESSAGE.len()))),
    }
}

/// What [`receive`] found.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The message is not there yet.
    NotYet,
    /// The peer closed the connection instead.
    Ended,
    /// The memory, mapped.
    Memory(Region),
}

/// Takes the memory that the other end has offered over `socket`.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Arrival> {
    let mut text = [0; MESSAGE.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Arrival::NotYet),
            Err(e) => return Err(e.into()),
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Arrival::Ended);
    }
    if text[..received.bytes] != MESSAGE {
        return Err(refused("the message is another, perhaps of another version".to_owned()));
    }
    let truncated = received.flags.contains(ReturnFlags::CTRUNC);
    let [memory] = &descriptors[..] else {
        return Err(refused(format!("{} descriptors came, not 1", descriptors.len())));
    };
    if truncated {
        return Err(refused("more descriptors came than 1".to_owned()));
    }
    let ring_bytes = check(memory.as_fd())?;
    Region::map(memory.as_fd(), ring_bytes, End::Accepting).map(Arrival::Memory)
}

/// The size of the rings in memory that is safe to map.
fn check(memory: BorrowedFd<'_>) -> io::Result<usize> {
    // Only memory files know seals, so nothing else passes.
    let seals = fcntl_get_seals(memory)
        .map_err(|e| refused(format!("the descriptor is not of a memory file ({e})")))?;
    if !seals.contains(SEALS) {
        return Err(refused("it is not sealed, so it could shrink while in use".to_owned()));
    }
    let bytes = u64::try_from(fstat(memory)?.st_size).unwrap_or(0);
    ring_bytes(bytes).ok_or_else(|| refused(format!("{bytes} bytes are not those of two rings")))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("shared memory of the peer: {why}"))
}
