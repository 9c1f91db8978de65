//! One operation of a worker: one round of one tensor, with its partitions' progress.

use std::collections::VecDeque;
use std::sync::Arc;

use sumpter_sum::{Dtype, ReduceOp};
use sumpter_wire::{Collective, GroupId, PartitionSpec, Rank, Round, TensorId, Tier};

use crate::endpoint::ConnId;

/// An operation's number in its client, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// A partition's place: which bytes of the memory, the lane that sums them, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane, by its connection.
    pub lane: ConnId,
    /// The partition's number in its tensor, the same on every rank; a tensor's places ascend by
    /// it. Whoever takes part in some of the partitions only has numbers that are not its indices.
    pub number: u32,
    /// First byte in the operation's memory.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whose contributions the lane adds; must have been defined, 0 is everyone.
    pub group: GroupId,
}

/// What to do with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The tensor, registered before.
    pub tensor: TensorId,
    /// Which of its sums.
    pub tier: Tier,
    /// What the round does.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// How contributions combine.
    pub op: ReduceOp,
    /// The root of a broadcast or reduce.
    pub root: Rank,
    /// Floats only: what the result is divided by.
    pub divisor: Option<u32>,
    /// Higher goes first.
    pub priority: i32,
    /// Whether the contribution comes chunk by chunk while the operation runs: nothing of it is
    /// looked at before [`Client::supply`](super::Client::supply), and each chunk of the result
    /// is told by [`Event::Arrived`](super::Event::Arrived).
    pub streamed: bool,
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
    /// It belongs to its connection, no longer to the stream.
    pub begun: bool,
    /// Its beginning was put on the connection that there is now.
    pub told: bool,
    /// The connection has it among what is ready or under way.
    pub ready: bool,
    /// Chunks of the contribution that may be looked at.
    pub supplied: u32,
    /// Chunks the lane in this process asked for before they were supplied, in order.
    pub asked: VecDeque<u32>,
    /// Chunks of the contribution handed to the connection.
    pub sent: u32,
    /// Chunks of the result received.
    pub have: u32,
    /// Bytes of the contribution that count as admitted: not yet handed to the connection.
    pub admitted: usize,
    pub done: bool,
}

impl Part {
    /// A partition of which nothing has happened yet.
    pub(super) fn new(streamed: bool) -> Part {
        Part { supplied: if streamed { 0 } else { u32::MAX }, ..Part::default() }
    }
}

/// The index of the partition with a number.
pub(super) fn find(places: &[Place], number: u32) -> Option<usize> {
    places.binary_search_by_key(&number, |place| place.number).ok()
}

impl<M> Op<M> {
    /// What the lane must know of partition `part`.
    pub(super) fn spec(&self, part: usize, chunk_bytes: u32, deterministic: bool) -> PartitionSpec {
        let request = &self.request;
        PartitionSpec {
            bytes: self.places[part].bytes as u32,
            chunk_bytes,
            group: self.places[part].group,
            root: request.root,
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            deterministic,
        }
    }

    /// Byte range of a chunk in the memory: offset and length.
    pub(super) fn range(&self, part: usize, chunk: u32, chunk_bytes: u32) -> (usize, usize) {
        let place = &self.places[part];
        let start = chunk as usize * chunk_bytes as usize;
        (place.offset + start, place.bytes.saturating_sub(start).min(chunk_bytes as usize))
    }
}
