//! One of the two rounds that may be alive in a partition.

use std::ops::Range;

use sumpter_sum::BufferPool;
use sumpter_types::{Rank, Round};
use sumpter_wire::PartitionSpec;

use super::accumulate::Chunk;
use super::decision::Decision;
use super::partition::{Listener, Progress};
use super::state::State;
use sumpter_endpoint::Now;

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub round: Option<Round>,
    pub children: Vec<Child>,
    pub chunks: Vec<Chunk>,
    pub finished: u32,
    pub begun: usize,
    /// Receivers that hold the whole result.
    pub acknowledged: usize,
    /// Children whose whole contribution is here.
    pub all_in: usize,
    /// When the last of them was.
    pub last_in: Option<Now>,
    /// What the round does to a variable.
    pub decision: Decision,
    /// Mirrors that hold the whole gradient; in a hub, whether all do.
    pub mirrored: usize,
    pub settled: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Child {
    pub begun: Option<Listener>,
    pub received: u32,
    pub acknowledged: bool,
}

impl Slot {
    /// Changes the variable, if there is one, by a chunk that is summed, as far as that may be now;
    /// whether the chunk is finished. `own` is whose round it is, if it is one worker's.
    pub(super) fn take_effect(
        &mut self,
        index: u32,
        (spec, contributors, own): (&PartitionSpec, usize, Option<Rank>),
        (state, stretch): (Option<&mut State>, Range<usize>),
        pool: &mut BufferPool,
        progress: &mut Progress,
    ) -> bool {
        let Some(variable) = spec.variable else { return true };
        let due = index == self.finished;
        let chunk = &mut self.chunks[index as usize];
        chunk.divide(spec, spec.chunk_len(index) as usize);
        let finishes = match (self.decision.update().zip(state), own) {
            (None, _) => false,
            (Some((update, state)), None) => {
                due && chunk.apply(spec, &update, (state, stretch), pool)
            }
            (Some((update, state)), Some(rank)) => {
                let round = self.round.expect("a live round");
                if chunk.add_to(spec, &update, (rank, round), (state, index, &stretch)) {
                    progress.changed = Some(index);
                }
                let awaited = variable.staleness.awaited(round);
                chunk.answer(spec, awaited, (state, index, &stretch), pool) && due
            }
        };
        if !finishes {
            progress.norm = self.decision.add_squares(spec, &self.chunks, contributors);
        }
        finishes
    }

    /// Whether everyone takes part, and all chunks are finished.
    pub(super) fn complete(&self, spec: &PartitionSpec, members: usize) -> bool {
        self.begun == members && self.finished == spec.chunks()
    }
}
