//! The threads of Sumpter: event loops that join engine, transport and coordinator.
//!
//! A [`Worker`] runs one event loop that drives its client and its colocated lane; [`serve`] runs
//! one per lane. Nothing is shared between loops; other threads send them commands.

// What threads share takes these from here: `tests/loom.rs` has others.
use crossbeam_channel as channel;
use mio as waker;
use std::sync;

mod cluster;
mod codec_rates;
mod codecs;
mod command;
mod completion;
mod counters;
mod error;
mod event_loop;
mod fabric;
mod join;
mod metrics;
mod recording;
mod remote;
mod run;
mod server;
mod speeds;
mod stats;
mod tenants;
mod trace;
mod worker;

pub use codec_rates::{addition_rate, candidate, codec_rates};
pub use codecs::{CodecState, codecs, register_codec};
pub use command::MirroredParts;
pub use completion::Completion;
pub use error::{NodeError, OpError};
pub use join::seat_options;
pub use metrics::tell_of_coordinator;
pub use run::in_force;
pub use server::{drain, run_coordinator, serve, start_coordinator, status, tune};
pub use sumpter_engine::{CodecMemory, OrderSpan};
pub use trace::{TraceSummary, trace};
pub use worker::Worker;
pub use worker::deferred::DeferredRound;
pub use worker::staged::{Gate, Slices};
pub use worker::staged_round::StagedRound;
pub use worker::tensor::{OpRequest, Tensor};
