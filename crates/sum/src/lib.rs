//! Summation: the kernels that combine contributions, those that update variables by a sum, and the
//! buffers they lie in.
//!
//! The kernels are written once and compiled for several levels of processor features; one
//! dispatch point chooses among them. All levels give the same results bit for bit, except that
//! the payload of a NaN is not specified. Slices are bytes in the machine's own order and may
//! start at any address.
//!
//! Nothing here does input or output, starts a thread or knows what a round is.

mod buffer;
mod dispatch;
mod element;
mod float_mode;
mod generic;
mod half;
mod kernel;
mod pool;
mod rules;
mod squares;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use buffer::{ALIGNMENT, AlignedBuf};
pub use dispatch::{
    InstructionSet, accumulate, accumulate_last, accumulate_pair, divide, instruction_set, narrow,
    reduce, update, widen,
};
pub use float_mode::set_float_mode;
pub use kernel::Kernel;
pub use pool::BufferPool;
pub use squares::add_squares;
