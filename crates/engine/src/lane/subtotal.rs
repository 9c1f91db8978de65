//! What a hub lends and gets back: the subtotals of its machine's workers, and the totals.

use sumpter_sum::AlignedBuf;
use sumpter_wire::{FrameKind, JobId, PartitionSpec, Round, TensorId, Tier};

use super::Lane;
use super::job::Key;
use super::partition::ChunkPlace;
use crate::endpoint::Violation;

/// A chunk of a round whose contributions on this machine are all in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtotal {
    /// The run.
    pub job: JobId,
    /// The tensor.
    pub tensor: TensorId,
    /// The partition's number.
    pub partition: u32,
    /// The round.
    pub round: Round,
    /// The chunk.
    pub chunk: u32,
}

impl Lane {
    /// The next subtotal to pass on, with what is known of its partition. Its bytes begin the
    /// buffer, which may be longer. Subtotals of a partition come in the order of chunks, and
    /// must [come back](Self::return_total) in that order.
    pub fn next_subtotal(&mut self) -> Option<(Subtotal, PartitionSpec, AlignedBuf)> {
        let (of_job, at, place) = self.subtotals.pop_front()?;
        let Key { tensor, partition, .. } = self.jobs[of_job].key(at);
        let job = self.jobs[of_job].id;
        let state = self.jobs[of_job].partition_mut(at);
        let round = state.round(place.slot).expect("a live round");
        let bytes = state.lend(place).expect("a subtotal is lent once");
        let of = Subtotal { job, tensor, partition, round, chunk: place.chunk };
        Some((of, state.spec, bytes))
    }

    /// Takes the total of a chunk, in the buffer that was lent or another of its length, and
    /// sends it to this machine's workers.
    ///
    /// # Errors
    /// [`Violation`] when the subtotal was not lent: a bug, since both sides are ours.
    pub fn return_total(&mut self, of: Subtotal, total: AlignedBuf) -> Result<(), Violation> {
        let Subtotal { job, tensor, partition, round, chunk } = of;
        // A job that has ended waits for nothing.
        let Some(of_job) = self.jobs.find(job) else {
            self.pool.give(total);
            return Ok(());
        };
        let job = &mut self.jobs[of_job];
        let key = Key { tensor, tier: Tier::Machine, partition };
        let at = job.find(key, 0).ok_or_else(|| Violation::state("a total of nothing"))?;
        let place = ChunkPlace { slot: (round.0 & 1) as usize, chunk };
        let progress = job.partition_mut(at).take_total(place, round, total)?;
        self.distribute(of_job, at, place.slot, &progress);
        Ok(())
    }

    /// The subtotals of a tensor cannot be passed on: tells this machine's workers why.
    pub fn refuse_subtotals(&mut self, job: JobId, tensor: TensorId, reason: &str) {
        let Some(of_job) = self.jobs.find(job) else { return };
        for at in self.jobs[of_job].refuse(tensor, reason) {
            for (slot, child) in self.jobs[of_job].partition(at).waiting() {
                if let Some((id, _)) = self.listener(of_job, at, slot, child, true) {
                    let header = self.header(id, FrameKind::Error, at, slot);
                    self.refuse(id, header, reason);
                }
            }
        }
    }

    /// A buffer of `len` bytes from this lane's pool.
    #[must_use]
    pub fn spare(&mut self, len: usize) -> AlignedBuf {
        self.pool.take(len)
    }

    /// Takes back a buffer that was lent.
    pub fn recycle(&mut self, bytes: AlignedBuf) {
        self.pool.give(bytes);
    }
}
