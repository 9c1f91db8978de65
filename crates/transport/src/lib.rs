//! What moves bytes between two endpoints, and the memory they come from.
//!
//! The contract, checked on every transport by `tests/conformance.rs`: bytes arrive in order,
//! each once, in pieces of any size; an endpoint that has nothing to send or no peer that reads
//! costs nothing; the end of a connection is reported once, after every byte before it. A
//! transport does not know what the bytes mean.
//!
//! | transport | joins | copies |
//! |---|---|---|
//! | [`TcpLink`] | two processes | the kernel's two |
//! | [`in_process`] | a worker and its colocated lane, in one event loop | one |
//! | [`SimLink`] | two endpoints in a test | two |
//!
//! Shared memory between the processes of one machine will be a fourth: a ring of bytes each
//! way, driven like [`SimLink`], with an event descriptor in place of readiness.

mod in_process;
mod memory;
mod sim;
mod tcp;

pub use in_process::in_process;
pub use memory::TensorMemory;
pub use sim::{Side, SimLink};
pub use tcp::{LinkError, Received, TcpLink, connect, listen};
