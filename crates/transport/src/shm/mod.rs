//! A connection between two processes of one machine: bytes through shared memory, one copy in
//! and one copy out; a Unix socket beside it for everything else.
//!
//! The socket carries the handshake, then the memory's descriptor, then a byte for each wake-up,
//! and its end is the peer's end, however the peer died. One descriptor, one token and one event
//! serve all of that. An event descriptor would wake 1.2 µs faster, but a peer could make our
//! write to it block, and with it every other connection of the loop; a write to a socket can be
//! told not to. A peer is woken only when it said that it sleeps, so while both ends are at work
//! no system call is made at all.
//!
//! Driven like [`TcpLink`](crate::TcpLink), with two differences. One end calls
//! [`offer`](ShmLink::offer), the other [`expect_offer`](ShmLink::expect_offer), once the
//! handshake is through. And a Unix connection is made at once or not at all, so no event says
//! that it is: the dialling side drives the link once without one.

mod address;
mod handover;
mod positions;
mod region;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sumpter_endpoint::Violation;

pub use address::{unix_connect, unix_listen};
use handover::Arrival;
use region::Region;

use sumpter_endpoint::{Link, LinkError, Readiness, Upgrade};

/// The default size of each ring: four of the usual chunks,
/// so that a writer is chunks ahead, while both rings still fit a last-level cache.
pub const DEFAULT_RING_BYTES: usize = 1 << 20;

/// Wake-ups that are taken off the socket at once: more than a socket holds, as each takes a
/// buffer of its own there.
const WAKE_UPS: usize = 512;

/// One connection through shared memory.
#[derive(Debug)]
pub struct ShmLink {
    stream: UnixStream,
    stage: Stage,
    readable: bool,
    writable: bool,
    /// The peer is gone: read until the end shows.
    ending: bool,
    /// We said that we send no more.
    finished: bool,
}

#[derive(Debug)]
enum Stage {
    /// Bytes go through the socket: the handshake.
    Greeting,
    /// The peer's offer is on its way.
    Expecting,
    /// Bytes go through the memory.
    Joined(Region),
}

impl ShmLink {
    /// Takes a connected socket and registers it. Until the rings are there, bytes go through
    /// the socket.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(mut stream: UnixStream, registry: &Registry, token: Token) -> io::Result<ShmLink> {
        // Not for writability: each wake-up that the peer takes off the socket would be an event.
        registry.register(&mut stream, token, Interest::READABLE)?;
        let (readable, writable) = (true, true);
        let stage = Stage::Greeting;
        Ok(ShmLink { stream, stage, readable, writable, ending: false, finished: false })
    }

    /// Whether the rings are there.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.stage, Stage::Joined(_))
    }

    /// Whether a write might move something.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Makes rings of `ring_bytes`, a power of two, and sends them to the peer, which must expect
    /// them. From now on bytes go through them; those sent before must have been received.
    ///
    /// # Errors
    /// What the operating system says, or that `ring_bytes` is none.
    pub fn offer(&mut self, ring_bytes: usize) -> io::Result<()> {
        self.join(handover::offer(self.stream.as_fd(), ring_bytes)?);
        Ok(())
    }

    /// Expects the peer's rings. The link takes them when they come; until then nothing moves.
    pub fn expect_offer(&mut self) {
        self.stage = Stage::Expecting;
        self.writable = false;
    }

    /// Takes the peer's rings if they are expected and have come.
    fn take_offer(&mut self) -> io::Result<()> {
        if matches!(self.stage, Stage::Expecting) && self.readable {
            match handover::receive(self.stream.as_fd())? {
                Arrival::Memory(region) => self.join(region),
                Arrival::NotYet => self.readable = false,
                Arrival::Ended => self.ending = true,
            }
        }
        Ok(())
    }

    fn join(&mut self, region: Region) {
        self.stage = Stage::Joined(region);
        (self.readable, self.writable) = (true, true);
    }

    /// Wake-ups say only that there was a reason to wake. Those that are left for the next event
    /// do no harm.
    fn take_wake_ups(&mut self) {
        let mut bytes = [0; WAKE_UPS];
        match recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.ending = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ending = true,
        }
    }
}

impl Link for ShmLink {
    fn ready(&mut self, readiness: Readiness) {
        self.ending |= readiness.ended;
        self.readable = true;
        self.writable = !matches!(self.stage, Stage::Expecting);
        if self.is_joined() {
            self.take_wake_ups();
        }
    }

    fn check_connected(&self) -> io::Result<()> {
        self.stream.take_error()?.map_or(Ok(()), Err)
    }

    /// The side that dialled sends the rings; the other side takes them when they come, and until
    /// then nothing moves.
    fn upgrade(&mut self, upgrade: Upgrade) -> io::Result<()> {
        if upgrade.dialled {
            return self.offer(DEFAULT_RING_BYTES);
        }
        self.expect_offer();
        Ok(())
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        self.finished = true;
        match &self.stage {
            // The socket must stay open both ways for wake-ups.
            Stage::Joined(region) => match region.finish() {
                true => ring(&self.stream),
                false => Ok(()),
            },
            Stage::Greeting | Stage::Expecting => self.stream.shutdown(std::net::Shutdown::Write),
        }
    }

    fn can_send(&mut self) -> io::Result<bool> {
        self.take_offer()?;
        Ok(self.writable)
    }

    fn can_receive(&self) -> bool {
        self.readable
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.take_offer()?;
        if self.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.writable {
            return Ok(0);
        }
        match &mut self.stage {
            Stage::Greeting => {
                let written = unless_blocked(|| self.stream.write_vectored(slices))?;
                // A handshake that a socket cannot hold goes on with the next event.
                self.writable = written.is_some();
                Ok(written.unwrap_or(0))
            }
            Stage::Expecting => Ok(0),
            Stage::Joined(_) if self.ending => {
                self.writable = false;
                Ok(0)
            }
            Stage::Joined(region) => loop {
                let n = region.write(slices, || ring(&self.stream))?;
                if n < slices.iter().map(|s| s.len()).sum() {
                    self.writable = !region.writer_sleeps()?;
                    if n == 0 && self.writable {
                        // Room was made meanwhile. To return 0 is to promise an event.
                        continue;
                    }
                }
                return Ok(n);
            },
        }
    }

    fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
        self.take_offer().map_err(blame)?;
        if !self.readable {
            return Ok(0);
        }
        let wanted: usize = spaces.iter().map(|s| s.len()).sum();
        match &mut self.stage {
            Stage::Greeting => match unless_blocked(|| self.stream.read_vectored(spaces))? {
                Some(0) => Err(LinkError::Closed),
                Some(n) => Ok(n),
                None => {
                    self.readable = false;
                    Ok(0)
                }
            },
            Stage::Expecting => match self.ending {
                true => Err(LinkError::Closed),
                false => Ok(0),
            },
            Stage::Joined(region) => loop {
                // Asked first: bytes written before the end are then seen by the read.
                let ended = self.ending || region.is_finished();
                let n = region.read(spaces, || ring(&self.stream)).map_err(blame)?;
                if n < wanted && !ended {
                    self.readable = !region.reader_sleeps().map_err(blame)?;
                    if n == 0 && self.readable {
                        // Bytes or the end came meanwhile. To return 0 is to promise an event.
                        continue;
                    }
                }
                return match n {
                    0 if ended && wanted > 0 => Err(LinkError::Closed),
                    n => Ok(n),
                };
            },
        }
    }
}

/// Wakes the peer.
fn ring(stream: &UnixStream) -> io::Result<()> {
    loop {
        match send(stream, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            // A full socket wakes the peer as it is; a peer that is gone needs no waking, and an
            // event announces it.
            Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// What a call on a socket says, or nothing if it would have to wait.
fn unless_blocked(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

/// What is wrong with shared memory is the peer's doing.
fn blame(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::InvalidData => Violation::State(error.to_string()).into(),
        _ => error.into(),
    }
}
