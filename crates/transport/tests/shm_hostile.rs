//! A peer that shares memory but not the protocol: whatever it sends or writes, at worst its own
//! connection ends with an error that says why.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mio::net::UnixStream;
use mio::{Poll, Token};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use sumpter_endpoint::{Link, LinkError};
use sumpter_transport::ShmLink;

/// The layout, as `src/shm/region.rs` has it.
const RING_BYTES: usize = 4096;
const REGION_BYTES: usize = 4096 + 2 * RING_BYTES;
const MESSAGE: &[u8] = b"smp-shm\x01";
const SECOND_RING: usize = 2048;
const TAIL: usize = 0;
const HEAD: usize = 128;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn memory(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("hostile", flags).expect("memory");
    ftruncate(&memory, bytes as u64).expect("a size");
    fcntl_add_seals(&memory, seals).expect("seals");
    memory
}

fn send_descriptors(socket: &UnixStream, text: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::empty()).expect("sent");
}

/// What a link that expects an offer says to this one.
fn answer_to(text: &[u8], descriptors: &[BorrowedFd<'_>]) -> LinkError {
    let poll = Poll::new().expect("a poll");
    let (hostile, socket) = UnixStream::pair().expect("a pair of sockets");
    let mut link = ShmLink::new(socket, poll.registry(), Token(0)).expect("registered");
    link.expect_offer();
    send_descriptors(&hostile, text, descriptors);
    link.recv(&mut [IoSliceMut::new(&mut [0; 8])]).expect_err("the offer is no good")
}

fn assert_refused(text: &[u8], descriptors: &[BorrowedFd<'_>], why: &str) {
    let error = answer_to(text, descriptors);
    assert!(matches!(error, LinkError::Violation(_)), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn only_sealed_memory_of_the_right_size_is_mapped() {
    let (pipe, _other_end) = rustix::pipe::pipe().expect("a pipe");
    assert_refused(MESSAGE, &[pipe.as_fd()], "not of a memory file");
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let memory = memory(REGION_BYTES, SEALS.difference(missing));
        assert_refused(MESSAGE, &[memory.as_fd()], "not sealed");
    }
    for bytes in [0, 1, 4096, REGION_BYTES - 1, REGION_BYTES + 1, REGION_BYTES + 4096] {
        let memory = memory(bytes, SEALS);
        assert_refused(MESSAGE, &[memory.as_fd()], &format!("{bytes} bytes"));
    }
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let memory = memory(REGION_BYTES, SEALS.union(SealFlags::WRITE));
    let error = answer_to(MESSAGE, &[memory.as_fd()]);
    assert!(matches!(error, LinkError::Io(_)), "{error}");
}

#[test]
fn a_message_that_is_no_offer_is_refused() {
    let good = memory(REGION_BYTES, SEALS);
    assert_refused(MESSAGE, &[], "0 descriptors");
    assert_refused(b"smp-shm\x02", &[good.as_fd()], "version");
    assert_refused(b"smp", &[good.as_fd()], "version");
    let error = answer_to(MESSAGE, &[good.as_fd(), good.as_fd(), good.as_fd()]);
    assert!(matches!(error, LinkError::Violation(_)), "{error}");
}

/// Memory of a good link, mapped once more by a peer that writes what it likes.
struct Hostile {
    start: *mut u8,
    _socket: UnixStream,
    _poll: Poll,
}

impl Hostile {
    /// A link that made its memory and has exchanged nothing yet.
    fn new() -> (ShmLink, Hostile) {
        let poll = Poll::new().expect("a poll");
        let (socket, other) = UnixStream::pair().expect("a pair of sockets");
        let mut link = ShmLink::new(socket, poll.registry(), Token(0)).expect("registered");
        link.offer(RING_BYTES).expect("memory");
        let mut text = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let texts = &mut [IoSliceMut::new(&mut text)];
        recvmsg(&other, texts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("the offer");
        assert_eq!(text, MESSAGE);
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let (memory, access) = (rights.expect("memory"), ProtFlags::READ | ProtFlags::WRITE);
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping touches no memory of ours; it stays until the process ends.
        let start = unsafe { mmap(null, REGION_BYTES, access, MapFlags::SHARED, &memory, 0) };
        let start = start.expect("mapped").cast();
        (link, Hostile { start, _socket: other, _poll: poll })
    }

    fn store(&self, at: usize, position: u64) {
        // SAFETY: within the mapping and aligned; the link looks at it in this thread only.
        unsafe { self.start.add(at).cast::<u64>().write_volatile(position) };
    }
}

#[test]
fn a_tail_that_cannot_be_ends_the_connection_of_the_reader() {
    for tail in [RING_BYTES as u64 + 1, u64::MAX, 1 << 63] {
        let (mut link, hostile) = Hostile::new();
        hostile.store(SECOND_RING + TAIL, tail);
        let mut space = [0; 100];
        let error = link.recv(&mut [IoSliceMut::new(&mut space)]).expect_err("insane");
        assert!(matches!(error, LinkError::Violation(_)), "{error}");
    }
}

#[test]
fn a_tail_that_goes_back_ends_the_connection_of_the_reader() {
    let (mut link, hostile) = Hostile::new();
    hostile.store(SECOND_RING + TAIL, 100);
    let mut space = [0; 50];
    assert_eq!(link.recv(&mut [IoSliceMut::new(&mut space)]).expect("sane"), 50);
    hostile.store(SECOND_RING + TAIL, 99);
    let mut space = [0; 100];
    let error = link.recv(&mut [IoSliceMut::new(&mut space)]).expect_err("insane");
    assert!(matches!(error, LinkError::Violation(_)), "{error}");
}

#[test]
fn a_head_that_cannot_be_ends_the_connection_of_the_writer() {
    for head in [RING_BYTES as u64 + 1, u64::MAX] {
        let (mut link, hostile) = Hostile::new();
        let bytes = [1; RING_BYTES];
        assert_eq!(link.send(&[IoSlice::new(&bytes)]).expect("sane"), RING_BYTES);
        hostile.store(HEAD, head);
        let error = link.send(&[IoSlice::new(&bytes)]).expect_err("insane");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }
}

#[test]
fn wake_ups_that_are_not_taken_do_not_stop_the_sender() {
    let (mut link, hostile) = Hostile::new();
    let mut sent = 0u64;
    // The peer says that it sleeps and takes every byte, but no wake-up: the socket fills.
    for _ in 0..2000 {
        hostile.store(2 * HEAD, 1);
        sent += link.send(&[IoSlice::new(&[3; 100])]).expect("sent or not") as u64;
        hostile.store(HEAD, sent);
    }
    assert_eq!(sent, 200_000);
}
