//! What single choices of the design are worth: each measured beside its alternative, interleaved,
//! on the same memory, with the results of both compared.

mod affinity;
mod aggregation;
mod alignment;
mod connections;
mod source;

pub use affinity::{AffinitySample, affinity};
pub use aggregation::{AggregationSample, aggregation};
pub use alignment::{AlignmentSample, alignment};
pub use connections::{ConnectionsSample, connections};
pub use source::MemorySpec;
