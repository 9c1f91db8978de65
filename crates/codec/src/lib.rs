//! Codecs: a tensor as fewer bytes, and back.
//!
//! A [`Codec`] encodes blocks of [`BLOCK`] elements, each on its own, whatever partitions and
//! chunks a tensor is cut into: so tuning those never changes a result. What a run of elements
//! takes is known before. Random numbers are a function of seed, tensor, round, rank and element
//! ([`Key`]). [`LowRank`] (PowerSGD) alone works on whole matrices.
//!
//! Encoders may take a residual ([`Previous`], [`Next`]), which holds what earlier rounds left out;
//! the next residual goes to memory of its own, so that a round can be committed or repeated with
//! the same bytes. Decoders accept any bytes: what no encoder writes is an error that names the
//! codec. Everything is written once, compiled for each level of processor features by
//! `sumpter_sum::InstructionSet::run`, and gives the same bits at every level.
//!
//! The formats are in `docs/design/decisions/codecs.md`. Nothing here does input or output, starts
//! a thread, allocates for a block or knows what a round is.
#![forbid(unsafe_code)]

mod block;
mod call;
mod codec;
mod error;
mod formats;
mod lowrank;
mod plain;
mod random;
mod registry;
mod run;
mod selection;
mod shared;
mod spec;
mod traffic;
mod trial;

pub use block::{BLOCK, blocks};
pub use call::{At, Encoded, Next, Previous};
pub use codec::Codec;
pub use error::CodecError;
pub use formats::CustomCodec;
pub use lowrank::LowRank;
pub use plain::{add_residual, store_sums};
pub use random::Key;
pub use registry::{Factory, Registry};
pub use selection::{AUTO, Selection};
pub use shared::{MAX_SHARED_RANKS, SHARED_SUM_BYTES, add_codes, decode_sum};
pub use spec::{Arguments, Count, Draws, Fp8Format, NanPolicy, Norm, Partition, Scheme, Spec};
pub use traffic::Traffic;
pub use trial::{Phase, Trial, median_s};
