//! Results that this worker has and others may lack.
//!
//! What a lane sends is retained until the lane reports that everyone has it, if the lane's process
//! may die without ending the job: a worker that then lacks a result gets it from one that has it.
//! It is received into a buffer of its own, so that a chunk of a tensor that is reduced in place is
//! at every instant either the contribution or the result, as a whole.

use std::collections::BTreeMap;
use std::ops::Range;

use sumpter_endpoint::ConnId;
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{Round, TensorId};
use sumpter_wire::Tier;

/// Bytes of free buffers for retained results: what is under way at a time is about the credit of
/// all workers, so this only bounds what a burst leaves behind.
const SPARE_BYTES: usize = 256 << 20;

/// A chunk of a result.
#[derive(Debug)]
pub struct RetainedChunk {
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

impl RetainedChunk {
    /// The bytes of the tensor that it holds.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.origin..self.origin + self.len
    }

    /// Whether all of `other`, which is of the same round, is in this one.
    pub(crate) fn covers(&self, other: &RetainedChunk) -> bool {
        let (own, other) = (self.span(), other.span());
        own.start <= other.start && other.end <= own.end
    }
}

/// A partition of a tensor, as frames name it.
pub(super) type PartitionKey = (TensorId, Tier, u32);

/// What is retained in this epoch, by partition. One round of each is enough: a chunk of the next
/// one comes when everyone has begun it, hence has all of this one.
#[derive(Debug)]
pub(super) struct RetainedResults {
    partitions: BTreeMap<PartitionKey, RetainedRound>,
    pool: BufferPool,
}

/// One round of a partition.
#[derive(Debug)]
struct RetainedRound {
    round: Round,
    lane: ConnId,
    chunks: Vec<RetainedChunk>,
    /// All of the partition is here, which was acknowledged to the lane.
    acknowledged: bool,
}

impl RetainedResults {
    pub(super) fn new() -> RetainedResults {
        RetainedResults { partitions: BTreeMap::new(), pool: BufferPool::new(SPARE_BYTES) }
    }

    /// A buffer to receive a chunk of `len` bytes into.
    pub(super) fn buffer(&mut self, len: usize) -> AlignedBuf {
        self.pool.take(len)
    }

    /// Where buffers come from.
    pub(super) fn pool(&mut self) -> &mut BufferPool {
        &mut self.pool
    }

    /// Takes back the buffer of a chunk that will not be completed.
    pub(super) fn recycle(&mut self, buffer: AlignedBuf) {
        self.pool.give(buffer);
    }

    /// Retains a chunk that `lane` has sent.
    pub(super) fn insert(&mut self, key: PartitionKey, lane: ConnId, chunk: RetainedChunk) {
        let round = chunk.round;
        if let Some(known) = self.partitions.get_mut(&key).filter(|known| known.round == round) {
            return known.chunks.push(chunk);
        }
        let fresh = RetainedRound { round, lane, chunks: vec![chunk], acknowledged: false };
        if let Some(old) = self.partitions.insert(key, fresh) {
            old.recycle(&mut self.pool);
        }
    }

    /// Nothing of a partition is retained, but the lane must hear that all of it is here.
    pub(super) fn remember(&mut self, key: PartitionKey, lane: ConnId, round: Round) {
        let fresh = RetainedRound { round, lane, chunks: Vec::new(), acknowledged: false };
        if let Some(old) = self.partitions.insert(key, fresh) {
            old.recycle(&mut self.pool);
        }
    }

    /// All of a partition is here, which is acknowledged to the lane.
    pub(super) fn acknowledge(&mut self, key: PartitionKey, round: Round) {
        if let Some(known) = self.partitions.get_mut(&key).filter(|known| known.round == round) {
            known.acknowledged = true;
        }
    }

    /// What was acknowledged to a lane that has not released it yet: on a connection that is gone,
    /// the acknowledgement may have been lost.
    pub(super) fn acknowledged_to(
        &self,
        lane: ConnId,
    ) -> impl Iterator<Item = (PartitionKey, Round)> {
        let of_lane = self.partitions.iter();
        let of_lane = of_lane.filter(move |(_, known)| known.lane == lane && known.acknowledged);
        of_lane.map(|(key, known)| (*key, known.round))
    }

    /// Everyone has a partition's result.
    pub(super) fn release(&mut self, key: PartitionKey, round: Round) {
        if self.partitions.get(&key).is_some_and(|known| known.round == round)
            && let Some(known) = self.partitions.remove(&key)
        {
            known.recycle(&mut self.pool);
        }
    }

    /// Drops what is retained of a tensor that has failed.
    pub(super) fn forget(&mut self, tensor: TensorId) {
        for (_, known) in self.partitions.extract_if(.., |(of, ..), _| *of == tensor) {
            known.recycle(&mut self.pool);
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.partitions.clear();
    }

    /// Takes everything out.
    pub(super) fn take_all(&mut self) -> Vec<RetainedChunk> {
        let all = std::mem::take(&mut self.partitions);
        all.into_values().flat_map(|known| known.chunks).collect()
    }
}

impl RetainedRound {
    fn recycle(self, pool: &mut BufferPool) {
        self.chunks.into_iter().for_each(|chunk| pool.give(chunk.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PartitionKey = (TensorId(5), Tier::Root, 0);
    const LANE: ConnId = ConnId(2);

    fn insert(results: &mut RetainedResults, round: u32, origin: usize) {
        let (len, round) = (64, Round(round));
        let bytes = results.buffer(len);
        let chunk = RetainedChunk { tensor: KEY.0, round, origin, bytes, len, contributors: 2 };
        results.insert(KEY, LANE, chunk);
    }

    #[test]
    fn a_round_is_retained_until_the_lane_releases_it() {
        let mut results = RetainedResults::new();
        insert(&mut results, 7, 0);
        insert(&mut results, 7, 64);
        results.release(KEY, Round(6));
        let spans: Vec<_> = results.take_all().iter().map(RetainedChunk::span).collect();
        assert_eq!(spans, [0..64, 64..128]);
        insert(&mut results, 8, 0);
        results.release(KEY, Round(8));
        assert!(results.take_all().is_empty());
    }

    #[test]
    fn the_next_round_replaces_the_one_before() {
        let mut results = RetainedResults::new();
        insert(&mut results, 7, 0);
        insert(&mut results, 8, 0);
        let rounds: Vec<_> = results.take_all().iter().map(|chunk| chunk.round).collect();
        assert_eq!(rounds, [Round(8)]);
    }

    #[test]
    fn only_what_was_acknowledged_is_acknowledged_again() {
        let mut results = RetainedResults::new();
        insert(&mut results, 7, 0);
        assert_eq!(results.acknowledged_to(LANE).count(), 0);
        results.acknowledge(KEY, Round(6));
        assert_eq!(results.acknowledged_to(LANE).count(), 0);
        results.acknowledge(KEY, Round(7));
        assert_eq!(results.acknowledged_to(LANE).collect::<Vec<_>>(), [(KEY, Round(7))]);
        assert_eq!(results.acknowledged_to(ConnId(0)).count(), 0);
    }

    #[test]
    fn a_failed_tensor_leaves_nothing() {
        let mut results = RetainedResults::new();
        insert(&mut results, 7, 0);
        results.forget(TensorId(6));
        results.forget(KEY.0);
        assert!(results.take_all().is_empty());
    }
}
