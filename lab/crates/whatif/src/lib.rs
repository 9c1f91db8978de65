//! What one training iteration would take with other machines, links or helpers.
//!
//! Pure functions: a recorded [`Profile`] and a [`Case`] in, an [`Outcome`] out. The simulation
//! goes from event to event in exact time; there is no I/O, no clock and no randomness, and the
//! same question has the same answer everywhere.
//!
//! # What is modelled
//!
//! All workers compute alike. Gradients become ready during the backward pass when the profile
//! says so, and what is not summed when it ends is overhead. How they are summed depends on the
//! architecture:
//!
//! - `allreduce`: ring all-reduces of fusion buffers, one after another, by the rules of
//!   "Is Network the Bottleneck of Distributed Training?" (NetAI'20); see [`ring`](mod@ring).
//! - `sumpter`, `ps`: partitions, placed by the runtime's own planner, sent in the runtime's order
//!   within the credit over full-duplex links that are shared fairly; see [`stream`](mod@stream).
//!
//! Machines that are listed ([`Machines`]) may differ in bandwidth, be in racks with trunks, and
//! have GPUs, PCIe switches and NVLink inside ([`simulate_on`]).
//!
//! A profile may have a [`Codec`] ([`Profile::coded`]): gradients travel as so many bytes, and
//! encoding and decoding take the cores' time.
//!
//! Not modelled: latency of partitions, loss, processor time other than additions and codecs,
//! workers that compute at different speeds.
//!
//! ```
//! use sumpter_plan::Architecture;
//! use sumpter_whatif::{Case, Layer, Profile, Tensor, simulate};
//!
//! // One gradient of 100 MB, ready at the end of a backward pass of 0.1 s.
//! let tensor = Tensor { layer: 0, bytes: 100_000_000, ready_s: 0.1 };
//! let layers = vec![Layer { forward_s: Some(0.05) }];
//! let profile = Profile::new(0.15, 0.1, layers, vec![tensor], None)?;
//!
//! let case = Case { workers: 4, bandwidth_gbps: 10.0, ..Case::default() };
//! let allreduce = simulate(&profile, &case)?;
//! assert!((allreduce.overhead_s - 2.0 * 0.75 * 0.08).abs() < 1e-12);
//!
//! let helped = Case { servers: 4, architecture: Architecture::Sumpter, ..case };
//! assert!(simulate(&profile, &helped)?.overhead_s < 0.7 * allreduce.overhead_s);
//! # Ok::<(), sumpter_whatif::WhatifError>(())
//! ```

#![forbid(unsafe_code)]

mod addition;
mod case;
mod coding;
mod error;
mod iteration;
mod layout;
mod machines;
mod profile;
mod queues;
mod rates;
mod request;
pub mod ring;
mod routes;
pub mod stream;

pub use addition::Addition;
pub use case::{Case, Order};
pub use coding::Codec;
pub use error::WhatifError;
pub use iteration::{Bottleneck, Outcome, simulate, simulate_on, simulate_placed};
pub use layout::{Layout, Unit};
pub use machines::Machines;
pub use profile::{Layer, Profile, Tensor};
pub use request::{answer_json, machines_json};
