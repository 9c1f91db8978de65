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
//! | [`TlsLink`] | the same, encrypted | the kernel's, and two more each way |
//! | [`in_process`] | a worker and its colocated lane, in one event loop | one |
//! | [`FabricLink`] | two processes, by libfabric (RDMA) | one in, one out |
//! | [`ShmLink`] | two processes of one machine | one in, one out |
//! | [`SimLink`] | two endpoints in a test | two |

// What threads and processes share takes its atomics from here: `tests/loom.rs` has others.
use std::sync;

mod fabric;
mod in_process;
mod memory;
mod shm;
mod sim;
mod tcp;
mod tls;
mod turns;

pub use fabric::FabricLink;
pub use in_process::in_process;
pub use memory::TensorMemory;
pub use shm::{DEFAULT_RING_BYTES, ShmLink, unix_connect, unix_listen};
pub use sim::{Side, SimLink};
pub use tcp::{TcpLink, connect, is_silence, limit_silence, listen};
pub use tls::{TlsConfig, TlsConfigError, TlsLink};
pub use turns::Turns;

/// What an event of the event loop says about a connection.
#[must_use]
pub fn readiness(event: &mio::event::Event) -> sumpter_endpoint::Readiness {
    let ended = event.is_read_closed() || event.is_error();
    sumpter_endpoint::Readiness {
        readable: event.is_readable() || ended,
        writable: event.is_writable() || event.is_error(),
        ended,
    }
}
