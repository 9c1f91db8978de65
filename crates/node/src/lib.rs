//! The threads of Sumpter: event loops that join engine, transport and coordinator.
//!
//! A [`Worker`] runs one event loop that drives its client and its colocated lane; [`serve`] runs
//! one per lane. Nothing is shared between loops; other threads send them commands.

// What threads share takes these from here: `tests/loom.rs` has others.
use crossbeam_channel as channel;
use mio as waker;
use std::sync;

mod address;
mod cluster;
mod command;
mod completion;
mod counters;
mod dials;
mod epochs;
mod error;
mod event_loop;
mod greeting;
mod hubs;
mod join;
mod lane_side;
mod lanes;
mod metrics;
mod out_of_data;
mod progress;
mod recording;
mod remote;
mod route;
mod run;
mod server;
mod socket;
mod sockets;
mod staged;
mod start;
mod stats;
mod subscriptions;
mod table;
mod tenants;
mod tensor;
mod timeline;
mod trace;
mod waits;
mod worker;
mod worker_side;

pub use completion::Completion;
pub use error::{NodeError, OpError};
pub use join::seat_options;
pub use metrics::tell_of_coordinator;
pub use run::in_force;
pub use server::{drain, run_coordinator, serve, start_coordinator, status, tune};
pub use staged::{Slices, StagedRound};
pub use tensor::{OpRequest, Tensor};
pub use trace::{TraceSummary, trace};
pub use worker::Worker;
