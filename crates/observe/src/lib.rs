//! What happened when: rings of events, the clocks of many machines, traces for Perfetto.
//!
//! A state machine notes events in a [`Recorder`], which stamps them. For a trace, a
//! process collects the [`Recording`]s of all, [`align`]s their clocks, [`build`]s slices of them
//! and [`write()`]s a file. Nothing here knows sockets or threads. The only clock is
//! [`monotonic_ns`], which drivers hand to a recorder; a state machine never calls it itself.
#![forbid(unsafe_code)]

mod build;
mod clock;
mod error;
mod event;
mod file;
mod label;
mod perfetto;
mod recording;
mod ring;
mod steps;
mod tighten;

pub use build::{Member, Role, Slice, Trace, build};
pub use clock::{Alignment, MAX_DRIFT, Sample, align, monotonic_ns};
pub use error::TraceError;
pub use event::{Event, EventKind, Part, Peer};
pub use file::{VERSION, read, write};
pub use label::Activity;
pub use recording::{Recording, Source};
pub use ring::Recorder;
pub use tighten::{Clockwork, Tightened, tighten};
