//! Results that this worker has and others may lack.
//!
//! What a lane sends is kept until the lane says that everyone has it, if the lane's process may
//! die without ending the job: whoever then lacks a result gets it from a worker that has it. It is
//! received into a buffer of its own, so that a chunk of a tensor that is summed in place is at
//! every instant either the contribution or the result, as a whole.

use std::collections::BTreeMap;
use std::ops::Range;

use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{Round, TensorId};
use sumpter_wire::{FrameKind, Header, Tier};

use super::link::Input;
use super::op::OpId;
use super::{Client, Event};
use crate::chunk::ChunkId;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;

/// A chunk of a result.
#[derive(Debug)]
pub struct Kept {
    /// The tensor.
    pub tensor: TensorId,
    /// The round.
    pub round: Round,
    /// First byte in the tensor.
    pub origin: usize,
    /// The result; the buffer may be longer.
    pub bytes: AlignedBuf,
    /// Bytes of the result.
    pub len: usize,
    /// How many workers' contributions are in it.
    pub contributors: u32,
}

impl Kept {
    /// The bytes of the tensor that it holds.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.origin..self.origin + self.len
    }

    /// Whether all of `other`, which is of the same round, is in this one.
    pub(crate) fn holds(&self, other: &Kept) -> bool {
        let (own, other) = (self.span(), other.span());
        own.start <= other.start && other.end <= own.end
    }
}

/// What is kept, by partition. One round of each is enough: a chunk of the next one comes when
/// everyone has begun it, hence has all of this one.
#[derive(Debug, Default)]
pub(super) struct Shelf(BTreeMap<(TensorId, Tier, u32), Row>);

/// One round of a partition.
#[derive(Debug)]
struct Row {
    round: Round,
    lane: ConnId,
    chunks: Vec<Kept>,
    /// All of the partition is here, and the lane was told so.
    complete: bool,
}

impl Shelf {
    /// Nothing of a tensor is wanted any more.
    pub(super) fn forget(&mut self, tensor: TensorId, pool: &mut BufferPool) {
        for (_, kept) in self.0.extract_if(.., |(of, ..), _| *of == tensor) {
            kept.give_back(pool);
        }
    }

    /// All of a partition is here, and the lane is told so.
    fn complete(&mut self, of: (TensorId, Tier, u32), round: Round) {
        if let Some(kept) = self.0.get_mut(&of).filter(|kept| kept.round == round) {
            kept.complete = true;
        }
    }

    /// Takes everything out.
    pub(super) fn empty(&mut self) -> Vec<Kept> {
        std::mem::take(&mut self.0).into_values().flat_map(|kept| kept.chunks).collect()
    }
}

impl Row {
    fn give_back(self, pool: &mut BufferPool) {
        self.chunks.into_iter().for_each(|chunk| pool.give(chunk.bytes));
    }
}

impl<M: Memory> Client<M> {
    /// Keeps a chunk that has been received.
    pub(super) fn keep(&mut self, id: OpId, part: usize, chunk: u32, bytes: AlignedBuf) {
        let op = &self.ops[&id];
        let (round, place) = (op.round, &op.places[part]);
        let key = (op.request.tensor, op.tier(part), place.number);
        let (_, len) = op.range(part, chunk, self.settings.chunk_bytes);
        let origin = place.origin + chunk as usize * self.settings.chunk_bytes as usize;
        let (tensor, contributors) = (op.request.tensor, place.contributors);
        let kept = Kept { tensor, round, origin, bytes, len, contributors };
        if let Some(known) = self.shelf.0.get_mut(&key).filter(|known| known.round == round) {
            return known.chunks.push(kept);
        }
        let fresh = Row { round, lane: place.lane, chunks: vec![kept], complete: false };
        if let Some(old) = self.shelf.0.insert(key, fresh) {
            old.give_back(&mut self.pool);
        }
    }

    /// All of a partition has been received.
    pub(super) fn all_kept(&mut self, id: OpId, part: usize) {
        let op = &self.ops[&id];
        let key = (op.request.tensor, op.tier(part), op.places[part].number);
        self.shelf.complete(key, op.round);
    }

    /// The lane of a streamed partition may be told that this machine has all of it.
    pub(super) fn told(&mut self, tensor: TensorId, number: u32, round: Round) {
        self.shelf.complete((tensor, Tier::Root, number), round);
    }

    /// A lane says that everyone has a partition's result.
    pub(super) fn let_go(&mut self, of: ChunkId) {
        let ChunkId { tensor, tier, partition: number, round, .. } = of;
        if tier == Tier::Root && self.tensors.contains_key(&(tensor, Tier::Machine)) {
            self.events.push_back(Event::Everywhere { tensor, number, round });
        }
        let key = (of.tensor, of.tier, of.partition);
        if self.shelf.0.get(&key).is_some_and(|kept| kept.round == of.round)
            && let Some(kept) = self.shelf.0.remove(&key)
        {
            kept.give_back(&mut self.pool);
        }
    }

    /// Says again what was said on a connection that is gone and may not have arrived.
    pub(super) fn repeat_acks(&mut self, lane: ConnId) {
        let epoch = self.settings.epoch;
        let of_lane = self.shelf.0.iter().filter(|(_, kept)| kept.lane == lane && kept.complete);
        for ((tensor, tier, partition), Row { round, .. }) in of_lane {
            let header = Header::new(FrameKind::Ack, epoch, *tensor);
            let header = Header { tier: *tier, partition: *partition, round: *round, ..header };
            self.links[lane.0].push_small(&header, &[]);
        }
    }

    /// Gives back the buffer of a chunk that will not be completed.
    pub(super) fn drop_input(&mut self, lane: ConnId) {
        let input = std::mem::replace(&mut self.links[lane.0].input, Input::Header);
        if let Input::Chunk { kept: Some(bytes), .. } = input {
            self.pool.give(bytes);
        }
    }
}
