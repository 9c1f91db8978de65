//! One connection to another process, whatever carries its bytes.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};

use crate::endpoint::{ConnId, Endpoint, Now};
use crate::error::LinkError;

/// Bytes a connection may move before others get their turn. Small, so that the same chunk from
/// all workers comes in one after the other while its sum is in cache; large enough for a read to
/// be worth its system call.
pub const TURN_BYTES: usize = 256 << 10;

/// What a call to [`Link::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes received.
    pub bytes: usize,
    /// There may be more right now; call again after others had their turn.
    pub more: bool,
}

/// What an event says about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read might give something, or report the end.
    pub readable: bool,
    /// A write might move something, or report a failure.
    pub writable: bool,
    /// The peer sends no more, or the connection has failed.
    pub ended: bool,
}

/// How a connection goes on after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Whether this side opened it.
    pub dialled: bool,
    /// Whether both ends would place bytes in each other's memory, if they find a way to.
    pub placed: bool,
}

/// What a link has done in the memory of its ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placing {
    /// Bytes that were placed in the peer's memory.
    pub bytes: u64,
    /// Regions of this end's memory that were registered.
    pub registrations: u64,
}

impl std::ops::AddAssign for Placing {
    fn add_assign(&mut self, other: Placing) {
        self.bytes += other.bytes;
        self.registrations += other.registrations;
    }
}

/// One connection to another process. Readiness is edge-triggered: a call that returns 0 promises
/// an event when there is more to do.
///
/// The life of a link: it is made from a socket and registered with an event loop; once
/// [`check_connected`](Self::check_connected) and [`establish`](Self::establish) have succeeded the
/// handshake of `sumpter-wire` runs over [`send`](Self::send) and [`recv`](Self::recv); after
/// [`upgrade`](Self::upgrade) bytes go to and from an endpoint. Dropping it closes it.
pub trait Link: fmt::Debug + Send {
    /// Takes note of what an event says.
    fn ready(&mut self, readiness: Readiness);

    /// The error of a connection that could not be made, if that is what happened.
    ///
    /// # Errors
    /// The reason, such as a refusal.
    fn check_connected(&self) -> io::Result<()>;

    /// Goes on with what comes before the first byte of ours, such as a TLS handshake; true once
    /// that is complete.
    ///
    /// # Errors
    /// [`LinkError::Tls`] with what one end objects to.
    fn establish(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    /// Whether [`establish`](Self::establish) is complete, as far as this side can know.
    fn is_established(&self) -> bool {
        true
    }

    /// What identifies the two ends of this connection, equal on both, for a proof that a machine
    /// in the middle cannot pass on (channel binding, RFC 5056); `None` if the link has no such
    /// thing.
    fn channel_binding(&self) -> Option<[&[u8]; 2]> {
        None
    }

    /// Continues after the handshake, perhaps over other means than the socket.
    ///
    /// # Errors
    /// What the operating system says.
    fn upgrade(&mut self, upgrade: Upgrade) -> io::Result<()> {
        let _ = upgrade;
        Ok(())
    }

    /// Whether the means that [`upgrade`](Self::upgrade) found have been tried, so that nothing
    /// can be lost any more by taking others.
    fn is_settled(&self) -> bool {
        true
    }

    /// The network in which bytes are placed, if they are.
    fn network(&self) -> Option<String> {
        None
    }

    /// Why bytes are not placed though that was wanted; told once.
    fn take_fallback(&mut self) -> Option<String> {
        None
    }

    /// What this link has placed so far.
    fn placing(&self) -> Placing {
        Placing::default()
    }

    /// While the network below owes something, such as the completion of a write, a number that
    /// changes with all that it does: a network that leaves it as it is for long hangs. `None`
    /// while it owes nothing, and for links whose system finds that out itself.
    fn owed(&self) -> Option<u64> {
        None
    }

    /// Takes note that the network below hangs: dropping this must wait for nothing.
    fn abandon(&mut self) {}

    /// Whether all that was sent goes out even if this is dropped.
    fn is_flushed(&self) -> bool {
        true
    }

    /// Lets the peer be about so many bytes ahead of what has been read here, or as far as the
    /// system finds right. A link within a machine has no window.
    ///
    /// # Errors
    /// What the operating system says.
    fn limit_window(&self, bytes: Option<u32>) -> io::Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Says that nothing more will be sent; what was sent still arrives, as long as this is driven
    /// on until it [is flushed](Self::is_flushed).
    ///
    /// # Errors
    /// What the operating system says.
    fn finish_sending(&mut self) -> io::Result<()>;

    /// Whether a write might move something, once what a link has begun itself is done.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    fn can_send(&mut self) -> io::Result<bool>;

    /// Whether a read might give something.
    fn can_receive(&self) -> bool;

    /// Writes as much as goes at once; 0 when that is nothing now.
    ///
    /// # Errors
    /// What the operating system says, or what is wrong with the way there.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads what there is, as far as the spaces go; 0 when there is nothing now.
    ///
    /// # Errors
    /// [`LinkError::Closed`] at the end of the stream, after every byte before it.
    fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError>;

    /// Sends what an endpoint has, until it has no more or the link takes no more. Returns the
    /// bytes sent.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    fn transmit(&mut self, from: &mut dyn Endpoint, conn: ConnId) -> io::Result<usize> {
        let mut total = 0;
        while self.can_send()? {
            let pending = from.pending(conn);
            if pending.is_empty() {
                break;
            }
            let n = self.send(&pending)?;
            drop(pending);
            from.sent(conn, n);
            total += n;
        }
        Ok(total)
    }

    /// Receives into an endpoint until there is no more, or for one turn.
    ///
    /// # Errors
    /// [`LinkError`]; the connection must then be closed.
    fn receive(
        &mut self,
        into: &mut dyn Endpoint,
        conn: ConnId,
        now: Now,
    ) -> Result<Received, LinkError> {
        let mut bytes = 0;
        while self.can_receive() && bytes < TURN_BYTES {
            let n = self.recv(&mut into.space(conn))?;
            if n > 0 {
                into.filled(conn, n, now)?;
            }
            bytes += n;
        }
        Ok(Received { bytes, more: self.can_receive() })
    }
}
