//! One of the two rounds that may be alive in a partition.

use std::ops::Range;

use sumpter_sum::BufferPool;
use sumpter_types::{CallNumber, Rank, Round};
use sumpter_wire::PartitionSpec;

use super::accumulate::Chunk;
use super::decision::Decision;
use super::order::{CatchUp, OwnRound, Turn};
use super::outcome::{Listener, Progress};
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
    /// The call to which the round belongs, once a child has said it.
    pub call: Option<CallNumber>,
    /// What the round does to a variable.
    pub decision: Decision,
    /// In which order its chunks change a variable asynchronously, if a log is replayed.
    pub order: Vec<Turn>,
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
    /// A child says to which call the round belongs, or nothing about it.
    ///
    /// # Errors
    /// A text if others have said another.
    pub(super) fn agree_on_call(&mut self, call: Option<CallNumber>) -> Result<(), String> {
        let Some(call) = call else { return Ok(()) };
        match *self.call.get_or_insert(call) {
            known if known == call => Ok(()),
            known => Err(format!(
                "this is its call {call}, but call {known} of others; every rank must make the \
                 same calls in the same order"
            )),
        }
    }

    /// Changes the variable, if there is one, by a chunk that is summed, as far as that may be now;
    /// whether the chunk is finished. `own` is whose round it is, if it is one worker's.
    pub(super) fn take_effect(
        &mut self,
        index: u32,
        (spec, contributors, own): (&PartitionSpec, usize, Option<Rank>),
        (state, stretch, what): (Option<&mut State>, Range<usize>, CatchUp),
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
                let awaited = variable.staleness.awaited(round);
                let (from, order) = ((rank, round), &self.order[..]);
                let own = OwnRound { from, update: &update, awaited, order };
                let of = (state, (index, &stretch));
                let settled = chunk.settle_own(spec, &own, of, (pool, what));
                (progress.changed, progress.missed) = (settled.changed, settled.missed);
                settled.is_answered && due
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
