//! What tests of several modules use.

use sumpter_types::{Collective, Dtype, Rank, ReduceOp, Staleness, TensorSpec};

/// A tensor that all ranks reduce.
pub(crate) fn spec(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        collective: Collective::AllReduce,
        op: ReduceOp::Sum,
        root: Rank(0),
        ranks: Vec::new(),
        rule: None,
        staleness: Staleness::default(),
        sharded: false,
        compression: String::new(),
    }
}
