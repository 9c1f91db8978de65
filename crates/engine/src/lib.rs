//! The lane and the client: all of the protocol's logic, without sockets, threads or a clock.
//!
//! Both are [`Endpoint`]s: a driver moves bytes between two of them and tells the time. TCP, the
//! in-process link and the seeded simulator drive the same code.
#![forbid(unsafe_code)]

mod client;
mod endpoint;
mod hub;
mod inbox;
mod lane;
mod memory;
mod resident;

pub use client::{Client, ClientSettings, Event, OpId, Place, Request};
pub use endpoint::{ConnId, Endpoint, Incoming, MAX_SLICES, Now, Outgoing, Violation};
pub use hub::{Held, Hub, Subtotals};
pub use lane::{JobLimits, Lane, LaneLimits, LaneStats, Peer, Subtotal};
pub use memory::{Memory, OwnedMemory};
pub use resident::exchange;
