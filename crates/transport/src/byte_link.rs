//! What all links between two processes have in common: bytes go to and from an endpoint in turns.

use std::io::{self, IoSlice, IoSliceMut};

use sumpter_engine::{ConnId, Endpoint, Now, Violation};

use crate::tls::TlsError;

/// Bytes a connection may move before others get their turn. Small, so that the same chunk from
/// all workers comes in one after the other while its sum is in cache; large enough for a read to
/// be worth its system call.
pub(crate) const TURN_BYTES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
    /// The operating system reported a failure.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The ends do not agree on how to encrypt, or on each other's certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
}

/// What a call to [`ByteLink::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes received.
    pub bytes: usize,
    /// There may be more right now; call again after others had their turn.
    pub more: bool,
}

/// One connection to another process. Readiness is edge-triggered: whoever returns 0 promises an
/// event when there is more to do.
pub trait ByteLink {
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
