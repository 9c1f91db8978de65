//! One operation of a worker: one round of one tensor, with its partitions' progress.

use std::sync::Arc;

use sumpter_sum::{Dtype, ReduceOp};
use sumpter_wire::{Collective, GroupId, PartitionSpec, Rank, Round, TensorId};

use crate::endpoint::ConnId;

/// An operation's number in its client, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// A partition's place: which bytes of the tensor, and the lane that sums them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane, by its connection.
    pub lane: ConnId,
    /// First byte in the tensor.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
}

/// What to do with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The tensor, registered before.
    pub tensor: TensorId,
    /// What the round does.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// How contributions combine.
    pub op: ReduceOp,
    /// The root of a broadcast or reduce.
    pub root: Rank,
    /// The members; must have been defined, 0 is everyone.
    pub group: GroupId,
    /// Floats only: what the result is divided by.
    pub divisor: Option<u32>,
    /// Higher goes first.
    pub priority: i32,
}

#[derive(Debug)]
pub(super) struct Op<M> {
    pub request: Request,
    pub round: Round,
    pub memory: M,
    pub places: Arc<[Place]>,
    pub parts: Vec<Part>,
    /// Partitions not done.
    pub left: usize,
    /// Frames in output queues that refer to the memory.
    pub queued: usize,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Behind an earlier round of the same tensor.
    Waiting,
    Active,
    /// Done or failed; kept only while frames refer to the memory.
    Finished,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// Its connection knows of it.
    pub begun: bool,
    /// Chunks of the contribution handed to the connection.
    pub sent: u32,
    /// Chunks of the result received.
    pub have: u32,
    /// Bytes of the contribution that count as admitted: not yet handed to the connection.
    pub admitted: usize,
    pub done: bool,
}

impl<M> Op<M> {
    /// What the lane must know of partition `part`.
    pub(super) fn spec(&self, part: usize, chunk_bytes: u32, deterministic: bool) -> PartitionSpec {
        let request = &self.request;
        PartitionSpec {
            bytes: self.places[part].bytes as u32,
            chunk_bytes,
            group: request.group,
            root: request.root,
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            deterministic,
        }
    }

    /// Byte range of a chunk in the tensor: offset and length.
    pub(super) fn range(&self, part: usize, chunk: u32, chunk_bytes: u32) -> (usize, usize) {
        let place = &self.places[part];
        let start = chunk as usize * chunk_bytes as usize;
        (place.offset + start, place.bytes.saturating_sub(start).min(chunk_bytes as usize))
    }
}
