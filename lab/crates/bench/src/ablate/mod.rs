//! What single choices of the design are worth: each measured beside its alternative, interleaved,
//! on the same memory, with the results of both compared.

mod affinity;
mod aggregation;
mod alignment;
mod connections;
mod datapath;
mod source;
mod transfer;

pub use affinity::{AffinitySample, affinity};
pub use aggregation::{AggregationSample, aggregation};
pub use alignment::{AlignmentSample, alignment};
pub use connections::{ConnectionsSample, connections};
pub use datapath::{DatapathSample, datapath};
pub use source::MemorySpec;
