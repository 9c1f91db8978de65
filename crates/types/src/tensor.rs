//! A tensor as all ranks know it.

use std::fmt;

use crate::collective::Collective;
use crate::dtype::{Dtype, ReduceOp};
use crate::ids::Rank;
use crate::rule::Rule;
use crate::staleness::Staleness;

/// A tensor's identity: what must be equal on every rank that takes part.
///
/// The coordinator puts a declared spec into one normal form before it compares or announces it:
/// what the collective does not use is its default, ranks are ascending, and all ranks are none
/// listed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Its name in the job.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// What is done with it.
    pub collective: Collective,
    /// How contributions are combined, where the collective combines.
    pub op: ReduceOp,
    /// The one rank that differs, where the collective has one.
    pub root: Rank,
    /// Who takes part; empty for all.
    pub ranks: Vec<Rank>,
    /// How its gradients change it, where the collective is an update.
    pub rule: Option<Rule>,
    /// How far the workers that change it may run apart; synchronous but in an update.
    pub staleness: Staleness,
    /// Whether device groups have reduced it on their devices, so that each rank contributes and
    /// receives a shard of it only; in an all-reduce.
    pub sharded: bool,
    /// The codec by which contributions and results travel, with its arguments in canonical order;
    /// empty for none. In an all-reduce that sums floats.
    pub compression: String,
}

impl TensorSpec {
    /// The number of elements; `None` if no memory could hold them.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        let count = self.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n))?;
        let bytes = count.checked_mul(self.dtype.size() as u64)?;
        (bytes <= i64::MAX as u64).then_some(count)
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shape {:?} {} {}", self.shape, self.dtype.name(), self.collective.name())?;
        if self.collective.has_op() {
            write!(f, " {}", self.op.name())?;
        }
        if self.collective.has_root() {
            write!(f, " root {}", self.root)?;
        }
        if let Some(rule) = self.rule {
            write!(f, " by {}", rule.name())?;
        }
        match self.staleness {
            Staleness::SYNCHRONOUS => {}
            Staleness::UNBOUNDED => write!(f, " asynchronously")?,
            Staleness(bound) => write!(f, " with staleness {bound}")?,
        }
        if self.sharded {
            f.write_str(" (reduced in device groups first)")?;
        }
        if !self.compression.is_empty() {
            write!(f, " compressed by {}", self.compression)?;
        }
        if self.ranks.is_empty() {
            return Ok(());
        }
        let ranks: Vec<u32> = self.ranks.iter().map(|rank| rank.0).collect();
        write!(f, " of ranks {ranks:?}")
    }
}
