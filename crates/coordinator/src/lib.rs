//! The coordinator's service and its client, over gRPC.
//!
//! [`Coordinator`] is the service. [`Member`] is what a worker or a server uses to take part, and
//! [`Seat`] what a process of an elastic job does. The logic between them are the state machines of
//! `sumpter-membership` and `sumpter-elastic`; this crate carries their inputs and outputs.
//! `proto/sumpter.proto` is the protocol.
#![forbid(unsafe_code)]

mod codec;
mod coordinator;
mod error;
mod handshake;
mod keys;
mod member;
mod proto;
mod seat_service;
mod service;
mod shares;
#[cfg(test)]
mod testing;
mod tls;
mod traces;
#[cfg(test)]
mod unauthenticated;

#[cfg(fuzzing)]
pub use codec::decode_any;
pub use codec::message_bytes;
pub use coordinator::{Coordinator, CoordinatorOptions};
pub use error::{CoordinatorError, JoinError};
pub use member::{
    JoinOptions, Member, Seat, SeatOptions, TraceOf, Traces, drain, status, traces, tune,
};
pub use proto::{DrainReport, ServerName, TuneReport, TuneRequest};
pub use shares::{Origin, Shares};
pub use tls::Tls;
