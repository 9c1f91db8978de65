//! Benchmarks that need one machine only: a server under the load of many workers, and what
//! choices of the design are worth (ablations).
//!
//! They drive the engine's own state machines over real sockets and threads, check every result,
//! and return raw samples. Medians, tables and files are made by `sumpter bench` in Python.
#![forbid(unsafe_code)]

mod ablate;
mod codecs;
mod cpu;
mod driver;
mod error;
mod pattern;
mod scale;
mod server;

pub use ablate::{
    AffinitySample, AggregationSample, AlignmentSample, ConnectionsSample, DatapathSample,
    MemorySpec, affinity, aggregation, alignment, connections, datapath,
};
pub use codecs::{CodecRound, CodecSample, codec};
pub use driver::Calls;
pub use error::BenchError;
pub use scale::{Change, Crowd, CrowdSpec, Load, placement_s};
pub use server::{Sample, ServerSpec, Variant, server};
