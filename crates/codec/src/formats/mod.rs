//! The formats of blocks. `docs/design/decisions/codecs.md` describes their bytes.

mod custom;
mod dithering;
mod fp8;
mod half;
mod int8;
mod onebit;
mod sparse;

pub(crate) use custom::Custom;
pub use custom::CustomCodec;
pub(crate) use dithering::Dithering;
pub(crate) use fp8::Fp8;
pub(crate) use half::Half;
pub(crate) use int8::{Int8, SharedInt8, shared_scale};
pub(crate) use onebit::Onebit;
pub(crate) use sparse::{Kept, Randomk, Topk};
