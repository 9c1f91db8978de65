//! The membership of a cluster as a state machine without sockets, threads or a clock.
//!
//! [`Registry`] admits workers and servers, starts the runs of jobs, keeps each run's tensor table,
//! and leads runs from epoch to epoch as servers come and go. The types of its inputs and outputs
//! are here too; how they travel is the business of `sumpter-coordinator`.
#![forbid(unsafe_code)]

mod event;
mod limits;
mod registry;
mod rejoin;
mod tenants;
mod view;

pub use event::{FatalKind, MemberEvent};
pub use limits::{
    MAX_CHOICES, MAX_CODEC_BYTES, MAX_COUNTERS, MAX_LOOPS, MAX_MEASURED, MAX_PENDING, MAX_TENSORS,
    MAX_TEXT_BYTES, MAX_WORLD, check_name, check_tensor_name, cut,
};
pub use registry::{
    Event, Input, Join, Message, Options, Refusal, Registry, RunMember, RunMembers, ServerMemory,
    Serves, StallLimits, TuneReport, TuneRequest,
};
pub use rejoin::{Idle, KnownRun, Rejoin};
pub use tenants::{Tenant, Tenants, base_name};
pub use view::{ClusterView, LaneView, RunSpeeds, ServerView, UNKNOWN_GBPS, WorkerView};
