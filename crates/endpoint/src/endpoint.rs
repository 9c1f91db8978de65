//! The contract between a state machine and whatever moves its bytes.
//!
//! A driver (TCP, in-process, simulator) asks an [`Endpoint`] what to send and where to put what
//! it receives, moves bytes, and says how many it moved. The endpoint never sees a socket, a
//! thread or a clock; payload bytes go straight between the driver and the memory they belong
//! to, so the contract costs no copy. Drivers may move bytes in pieces of any size.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use arrayvec::ArrayVec;
use sumpter_types::TensorId;
use sumpter_wire::FrameError;

/// Time since some fixed moment, given by the driver.
pub type Now = Duration;

/// At most so many slices are offered for one write: enough for eight frames with payload, and
/// small enough to live on the stack.
pub const MAX_SLICES: usize = 16;

/// What to send next, in order.
pub type Outgoing<'a> = ArrayVec<IoSlice<'a>, MAX_SLICES>;

/// Where to put what is received next, in order.
pub type Incoming<'a> = ArrayVec<IoSliceMut<'a>, 2>;

/// One of an endpoint's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub usize);

/// The peer broke the protocol: its connection must be closed, and nothing else is harmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that makes no sense in this state.
    #[error("{0}")]
    State(String),
}

impl Violation {
    /// Whether bytes were damaged on their way, as their checksum says.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Violation::Frame(FrameError::CorruptHeader | FrameError::Corrupt(_)))
    }

    /// The tensor that a damaged payload was of.
    #[must_use]
    pub fn corrupted_tensor(&self) -> Option<TensorId> {
        match self {
            Violation::Frame(FrameError::Corrupt(header)) => Some(header.tensor),
            _ => None,
        }
    }

    /// A frame that makes no sense in this state, in words.
    pub fn state(text: impl Into<String>) -> Violation {
        Violation::State(text.into())
    }
}

/// A state machine with connections.
pub trait Endpoint {
    /// Bytes to send next on `conn`; empty when there are none.
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_>;

    /// Says that the first `n` bytes of what was pending have been sent.
    fn sent(&mut self, conn: ConnId, n: usize);

    /// Memory for the bytes received next on `conn`; never empty.
    fn space(&mut self, conn: ConnId) -> Incoming<'_>;

    /// Says that the first `n` bytes of the space have been filled.
    ///
    /// # Errors
    /// [`Violation`] when the peer broke the protocol; the driver closes the connection.
    fn filled(&mut self, conn: ConnId, n: usize, now: Now) -> Result<(), Violation>;

    /// Says that all that had arrived on any connection has been taken in, for now. What an
    /// endpoint had to say that could wait for more of the kind makes its connections
    /// [dirty](Self::next_dirty) then, so that it leaves with one write. A driver that sends only
    /// what is dirty must call this before it waits.
    fn end_turn(&mut self) {}

    /// A connection that may have something new to send, each once until it is asked about.
    fn next_dirty(&mut self) -> Option<ConnId>;
}

/// Slices with the first `skip` bytes left out; `skip` must be less than the first slice plus
/// the second, which holds because a frame is a header and at most one payload.
pub fn push_after<'a>(out: &mut Outgoing<'a>, bytes: &'a [u8], skip: &mut usize) {
    let skipped = (*skip).min(bytes.len());
    *skip -= skipped;
    if skipped < bytes.len() {
        out.push(IoSlice::new(&bytes[skipped..]));
    }
}
