//! The child in the lane's own process: its contribution is taken from where it lies.

use sumpter_endpoint::Now;
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::Rank;
use sumpter_wire::Tier;

use super::accumulate::{is_ordered, widens};
use super::order::CatchUp;
use super::outcome::{ChunkPlace, Progress};
use super::partition::Partition;
use super::state::State;

/// The child in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub child: usize,
    /// How many other contributions are added before its own, if it contributes.
    pub turn: Option<usize>,
}

impl Partition {
    /// The child in this process has begun the round in `slot`. Returns the chunks of it that are
    /// wanted right now, and whether it was the last.
    pub(super) fn admit_resident(
        &mut self,
        child: usize,
        slot: usize,
        (pool, mut state): (&mut BufferPool, Option<&mut State>),
        now: Now,
    ) -> (Vec<Progress>, Option<(Rank, Now)>) {
        if !self.spec.collective.contributes(self.members[child], self.spec.root) {
            self.resident = Some(Resident { child, turn: None });
            return (Vec::new(), None);
        }
        let turn = match (self.contributors, is_ordered(&self.spec)) {
            (1, _) => 0,
            // Two values have the same sum either way round, so the first waits for the second.
            (_, true) => child.max(1),
            (contributors, false) => contributors - 1,
        };
        self.resident = Some(Resident { child, turn: Some(turn) });
        let steps = (0..self.spec.chunks())
            .map(|chunk| {
                self.settle(ChunkPlace { slot, chunk }, pool, state.as_deref_mut(), CatchUp::All)
            })
            .collect();
        (steps, self.all_in(child, slot, now))
    }

    /// Takes the resident child's contribution to a chunk, from where it lies.
    pub(super) fn contribute_resident(
        &mut self,
        place: ChunkPlace,
        bytes: &[u8],
        pool: &mut BufferPool,
        state: Option<&mut State>,
    ) -> Progress {
        let contributors = self.contributors;
        let (how, slot, _) = self.adding(place);
        let chunk = &mut slot.chunks[place.chunk as usize];
        if contributors == 1 {
            let mut sum = match chunk.sum.take() {
                Some(sum) if sum.len() == bytes.len() => sum,
                other => {
                    other.into_iter().for_each(|b| pool.give(b));
                    pool.take(bytes.len())
                }
            };
            sum.copy_from_slice(bytes);
            chunk.sum = Some(sum);
        } else {
            chunk.sum_up(how, bytes, pool);
        }
        chunk.resident = true;
        self.settle(place, pool, state, CatchUp::All)
    }

    /// Takes the resident child's contribution to a chunk where contributions are encoded.
    pub(super) fn contribute_resident_code(
        &mut self,
        place: ChunkPlace,
        code: AlignedBuf,
        pool: &mut BufferPool,
    ) -> Progress {
        let resident = self.resident.map_or(0, |resident| resident.child);
        let (how, slot, members) = self.adding(place);
        let chunk = &mut slot.chunks[place.chunk as usize];
        let added = how.code.map_or(Ok(()), |of| chunk.add_code(how, of, code, pool));
        chunk.resident = true;
        match added {
            Ok(()) => self.settle(place, pool, None, CatchUp::All),
            Err(error) => Progress::malformed(members[resident], &error),
        }
    }

    /// The resident child, if only its contribution to a chunk is missing, and with it the sum is
    /// what all receivers get.
    pub(super) fn lacks_only_resident(&self, place: ChunkPlace) -> Option<usize> {
        let (spec, contributors) = (&self.spec, self.contributors);
        let chunk = self.slots[place.slot].chunks.get(place.chunk as usize)?;
        let lacks_one = chunk.summed + 1 == contributors && !chunk.resident;
        let is_result = self.tier == Tier::Root && spec.variable.is_none() && spec.coding.is_none();
        let plain = is_result && contributors > 1 && !widens(spec, contributors);
        self.resident.filter(|_| lacks_one && plain).map(|resident| resident.child)
    }

    /// Takes the resident child's contribution, [the last](Self::lacks_only_resident) to a chunk,
    /// from where it lies, and writes the sum there.
    pub(super) fn complete_in_place(
        &mut self,
        place: ChunkPlace,
        bytes: &mut [u8],
        pool: &mut BufferPool,
    ) -> Progress {
        let chunk = &mut self.slots[place.slot].chunks[place.chunk as usize];
        chunk.complete_in_place(&self.spec, bytes);
        chunk.resident = true;
        self.settle(place, pool, None, CatchUp::All)
    }
}
