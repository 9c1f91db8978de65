//! The lane and the client: all of the protocol's logic, without sockets, threads or a clock.
//!
//! Both are [`Endpoint`](sumpter_endpoint::Endpoint)s: a driver moves bytes between two of them and
//! passes the time in. TCP, the in-process link and the seeded simulator drive the same code.
#![forbid(unsafe_code)]

mod chunk;
mod client;
mod clocks;
mod coding;
mod head;
mod hub;
mod inbox;
mod lane;
mod mirrors;
mod queue;
mod recovery;
mod resident;
mod spans;

pub use client::{
    Backlog, Carrier, Client, ClientSettings, CodecMemory, CodecMemoryError, Event, Layout,
    MirroredElements, OpId, OrderSpan, Outstanding, Place, REPAIRED, Request, RetainedChunk,
    Standing, Supply, VariablePlace,
};
pub use coding::Coding;
pub use hub::{Hub, OpMemory, Subtotals};
pub use lane::{
    JobLimits, Lane, LaneLimits, LaneStats, Passing, Peer, Subtotal, Total, Undelivered,
};
pub use mirrors::{MirroredSpan, Share, StateLost, mirrored_elements, mirrored_spans};
pub use recovery::{
    Progress, Recovery, Relay, Repair, RepairSpec, ResultKey, Unrecoverable, first_passed_on,
    has_failed, repairs, retained_rounds,
};
pub use resident::exchange;
pub use spans::Spans;
