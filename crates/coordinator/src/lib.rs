//! Rendezvous, membership and the tensor table of many jobs, over gRPC.
//!
//! [`Coordinator`] is the service. [`Member`] is what a worker or a server uses to take part. The
//! logic between them is a state machine without sockets or a clock (`registry`); everything else
//! here carries its words. `proto/sumpter.proto` is the protocol.
#![forbid(unsafe_code)]

mod codec;
mod coordinator;
mod error;
mod handshake;
mod limits;
mod member;
mod proto;
mod registry;
mod rejoin;
mod seating;
mod seats;
mod service;
mod shares;
#[cfg(test)]
mod strangers;
mod tenants;
mod tls;
mod traces;
mod types;

#[cfg(fuzzing)]
pub use codec::decode_any;
pub use coordinator::{Coordinator, CoordinatorOptions, Serves};
pub use error::{CoordinatorError, JoinError};
pub use member::{Member, Seat, SeatOptions, TraceOf, Traces, drain, status, traces, tune};
pub use proto::{
    DrainReport, JobStatus, LateRank, MachineCount, MemberStats, MemberStatus, PendingOperation,
    ServerName, StatusReport, TuneReport, TuneRequest,
};
pub use seats::Seating;
pub use shares::{Origin, Shares};
pub use tenants::{Quota, Tenant, Tenants, run_memory_counter};
pub use tls::Tls;
pub use types::{
    ClusterView, FatalKind, JoinOptions, Late, MemberEvent, MemberId, PendingOp, Role,
    ServerMemory, ServerView, StallLimits, Stats, Suspicion, WorkerView,
};
