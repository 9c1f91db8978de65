//! Streamed operations: contributions that become available while the operation runs.
//!
//! The owner writes a chunk of the contribution into the memory, then supplies it; the client
//! sends it in its turn, and says when that chunk of the result is there.

use sumpter_wire::{FrameKind, Header};

use super::link::Frame;
use super::op::{OpId, Request, Stage, find};
use super::{Client, Round, TensorId, Tier};
use crate::chunk::ChunkId;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;

impl<M: Memory> Client<M> {
    /// The first `chunks` chunks of a partition of a streamed operation are in the memory now.
    /// Supplying to an operation that has ended does nothing.
    pub fn supply(&mut self, op: OpId, number: u32, chunks: u32) {
        let id = op;
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.stage != Stage::Finished) else {
            return;
        };
        let Some(index) = find(&op.places, number) else { return };
        let (lane, part) = (op.places[index].lane, &mut op.parts[index]);
        part.supplied = part.supplied.max(chunks);
        let link = &mut self.links[lane.0];
        if link.resident {
            while let Some(chunk) = part.asked.front().copied().filter(|c| *c < part.supplied) {
                part.asked.pop_front();
                link.offers.push_back((id, index, chunk));
            }
        } else if part.told && !part.ready {
            part.ready = true;
            let priority = op.request.priority;
            link.ready.push(priority, (id, index), ());
            self.touch(lane);
        }
    }

    /// Whoever is to have the result of a streamed partition from here has it, or does not need it:
    /// tells the lane that made it.
    pub fn acknowledge(&mut self, tensor: TensorId, number: u32, round: Round) {
        let Some(streamed) = self.tensors.get(&(tensor, Tier::Root)) else { return };
        let places = streamed.layout.of(round);
        let Some(lane) = find(places, number).map(|part| places[part].lane) else { return };
        self.told(tensor, number, round);
        let link = &mut self.links[lane.0];
        // If the lane is one that may die, it is told when the connection is there again.
        if link.up {
            let header = Header::new(FrameKind::Ack, self.settings.epoch, tensor);
            link.push_small(&Header { partition: number, round, ..header }, &[]);
        }
    }

    /// The memory of an operation that has not been released. Of a streamed operation, chunks
    /// that were not supplied may be written, and chunks that have arrived be read.
    pub fn memory_mut(&mut self, op: OpId) -> Option<&mut M> {
        self.ops.get_mut(&op).map(|op| &mut op.memory)
    }

    /// The round of an operation that has not been released.
    #[must_use]
    pub fn round(&self, op: OpId) -> Option<Round> {
        self.ops.get(&op).map(|op| op.round)
    }

    /// The round of the next operation on a tensor.
    #[must_use]
    pub fn next_round(&self, tensor: TensorId, tier: Tier) -> Option<Round> {
        self.tensors.get(&(tensor, tier)).map(|tensor| tensor.next_round)
    }

    /// What the operation under way on a tensor is to do.
    #[must_use]
    pub fn active(&self, tensor: TensorId, tier: Tier) -> Option<&Request> {
        let active = self.tensors.get(&(tensor, tier))?.active?;
        self.ops.get(&active).map(|op| &op.request)
    }

    /// Whether a frame that waits to be sent refers to a chunk, though its result may be here:
    /// after a cut, a contribution is sent again that the lane turns out to have.
    #[must_use]
    pub fn is_queued(&self, op: OpId, number: u32, chunk: u32) -> bool {
        let Some(state) = self.ops.get(&op) else { return false };
        let Some(index) = find(&state.places, number) else { return false };
        let (offset, _) = state.range(index, chunk, self.settings.chunk_bytes);
        let refers = |frame: &Frame| {
            frame.chunk.is_some_and(|c| (c.op, c.part, c.offset) == (op, index, offset))
        };
        self.links[state.places[index].lane.0].output.iter().any(refers)
    }

    /// A chunk that the lane in this process asked for before it was there.
    pub(crate) fn next_offer(&mut self, lane: ConnId) -> Option<ChunkId> {
        while let Some((id, part, chunk)) = self.links[lane.0].offers.pop_front() {
            if let Some(op) = self.ops.get(&id).filter(|op| op.stage == Stage::Active) {
                let (tensor, tier) = (op.request.tensor, op.tier(part));
                let (partition, round) = (op.places[part].number, op.round);
                return Some(ChunkId { tensor, tier, partition, round, chunk });
            }
        }
        None
    }
}
