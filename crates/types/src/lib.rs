//! The words that every crate shares: ids, element types, operators, collectives, tensors.
//!
//! Plain values without behaviour beyond their own meaning. Nothing here depends on another crate.
#![forbid(unsafe_code)]

mod collective;
mod dtype;
mod ids;
mod tensor;

pub use collective::Collective;
pub use dtype::{Dtype, ReduceOp};
pub use ids::{Epoch, GroupId, JobId, Rank, Round, TensorId};
pub use tensor::TensorSpec;
