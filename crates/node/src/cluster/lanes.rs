//! The lanes of a job: whose they are, where they listen, and which partition is whose.

use sumpter_endpoint::ConnId;
use sumpter_engine::VariablePlace;
use sumpter_membership::LaneView;
use sumpter_types::Rank;

/// Who runs a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Worker(Rank),
    Server(u64),
}

/// A lane of the job: its owner, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct LaneAddress {
    pub owner: Owner,
    pub host: String,
    /// Equal for processes that share a link.
    pub machine: String,
    /// The lane's number with its owner.
    pub index: u32,
    pub view: LaneView,
}

/// A partition of a tensor and the lane that reduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedPartition {
    pub root: ConnId,
    pub offset: usize,
    pub bytes: usize,
    /// The number of its reduction tree in the plan.
    pub tree: usize,
    /// What it is of a variable.
    pub variable: Option<VariablePlace>,
}
