//! What a hub lends and gets back: the subtotals of its machine's workers, and the totals.

use std::sync::Arc;

use sumpter_sum::AlignedBuf;
use sumpter_types::{CallNumber, ExactSum, GroupId, JobId, Rank, Round, TensorId, Update};
use sumpter_wire::{FrameKind, PartitionSpec, Tier};

use super::Lane;
use super::job::{Job, JobIndex, Key, PartitionIndex};
use super::outcome::ChunkPlace;
use sumpter_endpoint::Violation;

/// A chunk of a round whose contributions to this aggregate are all in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtotal {
    /// The run.
    pub job: JobId,
    /// The tensor.
    pub tensor: TensorId,
    /// Whose subtotal it is.
    pub tier: Tier,
    /// The partition's number.
    pub partition: u32,
    /// The round.
    pub round: Round,
    /// The chunk.
    pub chunk: u32,
}

/// A round of a partition whose total is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total {
    /// The run.
    pub job: JobId,
    /// The tensor.
    pub tensor: TensorId,
    /// Whose subtotal it is.
    pub tier: Tier,
    /// The partition's number.
    pub partition: u32,
    /// The round.
    pub round: Round,
}

/// A job of which something is to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// The run.
    pub job: JobId,
    /// The partition of its first subtotal, if there is one.
    pub first: Option<PartitionSpec>,
    /// Whether its frames carry checksums.
    pub checksum: bool,
}

impl Lane {
    /// The next subtotal of a job to pass on, with what is known of its partition. Its bytes begin
    /// the buffer, which may be longer; where this machine only receives, they mean nothing.
    /// Subtotals of a partition come in the order of chunks, and must
    /// [come back](Self::return_total) in that order.
    pub fn next_subtotal(&mut self, job: JobId) -> Option<(Subtotal, PartitionSpec, AlignedBuf)> {
        let of_job = self.jobs.find(job)?;
        let (at, place) = self.jobs[of_job].subtotals.pop_front()?;
        let Key { tensor, tier, partition, .. } = self.jobs[of_job].key(at);
        let state = self.jobs[of_job].partition_mut(at);
        let round = state.round(place.slot).expect("a live round");
        let bytes = state.lend(place, &mut self.pool);
        let of = Subtotal { job, tensor, tier, partition, round, chunk: place.chunk };
        Some((of, state.spec, bytes))
    }

    /// Takes the total of a chunk, in the buffer that was lent or another of its length, and
    /// sends it to those of this machine's workers that receive it. Where nothing is received, the
    /// subtotal comes back, when it is not needed any more.
    ///
    /// # Errors
    /// [`Violation`] when the subtotal was not lent: a bug, since both sides are ours.
    pub fn return_total(&mut self, of: Subtotal, total: AlignedBuf) -> Result<(), Violation> {
        let Subtotal { job, tensor, tier, partition, round, chunk } = of;
        // A job that has ended waits for nothing.
        let Some(of_job) = self.jobs.find(job) else {
            self.pool.give(total);
            return Ok(());
        };
        let job = &mut self.jobs[of_job];
        let key = Key::of_aggregate(tensor, tier, partition);
        let at = job.find(key, 0).ok_or_else(|| Violation::state("a total of nothing"))?;
        let place = ChunkPlace { slot: (round.0 & 1) as usize, chunk };
        let state = job.partition_mut(at);
        let progress = state.take_total(place, round, total)?;
        let last = chunk + 1 == state.spec.chunks();
        let received = state.receives_totals();
        if last && received && !job.keeps {
            self.jobs[of_job].totals.push_back((at, round));
        }
        self.distribute(of_job, at, place.slot, &progress);
        Ok(())
    }

    /// The next total of a job that is on this machine: where its workers may die, in all of them,
    /// which keep it until it has been [released](Self::release_total); else in this lane. The lane
    /// that made it may be notified.
    pub fn next_total(&mut self, job: JobId) -> Option<Total> {
        let of_job = self.jobs.find(job)?;
        let (at, round) = self.jobs[of_job].totals.pop_front()?;
        let Key { tensor, tier, partition, .. } = self.jobs[of_job].key(at);
        Some(Total { job, tensor, tier, partition, round })
    }

    /// Everyone has this total, on all machines: tells this machine's workers. Where these are not
    /// waited for, they may still lack it; then it stays for them.
    pub fn release_total(&mut self, of: Total) {
        let Total { job, tensor, tier, partition, round } = of;
        let Some(of_job) = self.jobs.find(job) else { return };
        let key = Key::of_aggregate(tensor, tier, partition);
        let Some(at) = self.jobs[of_job].find(key, 0) else { return };
        let (slot, state) = ((round.0 & 1) as usize, self.jobs[of_job].partition(at));
        let due = state.round(slot) == Some(round) && state.is_released(slot);
        if due && state.shares_totals() {
            self.released(of_job, at, slot);
        }
    }

    /// What everyone has may be the total of subtotals that were passed on to this very lane.
    pub(super) fn release_beside(&mut self, of_job: JobIndex, at: PartitionIndex, slot: usize) {
        let job = &self.jobs[of_job];
        let Key { tensor, tier, partition, .. } = job.key(at);
        let Some(round) = job.partition(at).round(slot) else { return };
        let of = |tier: &Tier| Key::of_aggregate(tensor, *tier, partition);
        let here = |tier: &Tier| job.find(of(tier), 0).is_some();
        // A subtotal goes to the next tier that there is, hence comes from the one before.
        let within = Tier::AGGREGATES.into_iter().take_while(|inner| *inner != tier);
        let within = within.filter(|_| tier == Tier::Root || tier.is_aggregate());
        if let Some(tier) = within.filter(here).last() {
            self.release_total(Total { job: job.id, tensor, tier, partition, round });
        }
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

    /// What the round of a subtotal that was passed on does, of a variable; to be decided unless
    /// all of this machine's workers have said it.
    #[must_use]
    pub fn update_of(&self, of: &Subtotal) -> Option<Update> {
        let job = &self.jobs[self.jobs.find(of.job)?];
        let (tensor, tier, partition) = (of.tensor, of.tier, of.partition);
        let at = job.find(Key::of_aggregate(tensor, tier, partition), 0)?;
        job.partition(at).update((of.round.0 & 1) as usize)
    }

    /// The call in which the round of a subtotal was begun, if its workers count them.
    #[must_use]
    pub fn call_of(&self, of: &Subtotal) -> Option<CallNumber> {
        let job = &self.jobs[self.jobs.find(of.job)?];
        let at = job.find(Key::of_aggregate(of.tensor, of.tier, of.partition), 0)?;
        job.partition(at).call((of.round.0 & 1) as usize)
    }

    /// All mirrors of a variable have the gradient of this total: this machine's contributions to
    /// it are not needed again.
    pub fn settle_total(&mut self, of: Total) {
        let Total { job, tensor, tier, partition, round } = of;
        let Some(of_job) = self.jobs.find(job) else { return };
        let key = Key::of_aggregate(tensor, tier, partition);
        let Some(at) = self.jobs[of_job].find(key, 0) else { return };
        let slot = (round.0 & 1) as usize;
        if self.jobs[of_job].partition_mut(at).settle_total(slot, round) {
            self.tell_mirrored(of_job, at, slot);
        }
    }

    /// The norm of the gradient of this total is known: tells this machine's workers that wait for
    /// it.
    pub fn pass_norm(&mut self, of: Total, squares: &ExactSum) {
        let Total { job, tensor, tier, partition, round } = of;
        let Some(of_job) = self.jobs.find(job) else { return };
        let key = Key::of_aggregate(tensor, tier, partition);
        let Some(at) = self.jobs[of_job].find(key, 0) else { return };
        let slot = (round.0 & 1) as usize;
        if self.jobs[of_job].partition_mut(at).take_norm(slot, round, squares) {
            self.tell_norm(of_job, at, slot);
        }
    }

    /// The next round about which all of this machine's workers have decided, after it began, and
    /// what it does.
    pub fn next_decision(&mut self, job: JobId) -> Option<(Total, Update)> {
        let of_job = self.jobs.find(job)?;
        while let Some((at, round)) = self.jobs[of_job].decisions.pop_front() {
            let Key { tensor, tier, partition, .. } = self.jobs[of_job].key(at);
            let slot = (round.0 & 1) as usize;
            let state = self.jobs[of_job].partition(at);
            let update = state.update(slot).filter(|_| state.round(slot) == Some(round));
            if let Some(update) = update {
                return Some((Total { job, tensor, tier, partition, round }, update));
            }
        }
        None
    }

    /// The jobs of which something is to be passed on.
    #[must_use]
    pub fn passing(&self) -> Vec<Passing> {
        let passing = |job: &Job| {
            let first = job.subtotals.front().map(|(at, _)| job.partition(*at).spec);
            let any = first.is_some() || !job.totals.is_empty() || !job.decisions.is_empty();
            any.then_some(Passing { job: job.id, first, checksum: job.checksum })
        };
        self.jobs.iter().filter_map(passing).collect()
    }

    /// The members of a job's group.
    #[must_use]
    pub fn group(&self, job: JobId, group: GroupId) -> Option<Arc<[Rank]>> {
        self.jobs[self.jobs.find(job)?].group(group).cloned()
    }

    /// How urgent the round of a subtotal is for the most impatient of its members.
    #[must_use]
    pub fn priority_of(&self, of: &Subtotal) -> Option<i32> {
        let job = &self.jobs[self.jobs.find(of.job)?];
        let at = job.find(Key::of_aggregate(of.tensor, of.tier, of.partition), 0)?;
        let (partition, slot) = (job.partition(at), (of.round.0 & 1) as usize);
        let children = 0..partition.members().len();
        children.filter_map(|child| Some(partition.listener(slot, child)?.priority)).max()
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
