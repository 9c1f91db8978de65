//! The contract between a state machine, the memory of tensors, and the links that move bytes.
//!
//! A driver asks an [`Endpoint`] what to send and where to put what it receives; a [`Link`] moves
//! the bytes; [`Memory`] is where a tensor's bytes lie. The engine implements the first, transports
//! the second, and neither knows the other. Nothing here uses a socket, a thread or a clock.
#![forbid(unsafe_code)]

mod endpoint;
mod error;
mod link;
mod memory;

pub use endpoint::{ConnId, Endpoint, Incoming, MAX_SLICES, Now, Outgoing, Violation, push_after};
pub use error::{LinkError, TlsError};
pub use link::{Link, Placing, Readiness, Received, TURN_BYTES, Upgrade};
pub use memory::{Memory, OwnedMemory};
