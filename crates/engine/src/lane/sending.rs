//! What leaves: a chunk's sum to its receivers, and notices of what is done or refused.

use sumpter_observe::EventKind;
use sumpter_wire::{FrameKind, Header, Tier, encode_norm, encode_order};

use super::Lane;
use super::job::{JobIndex, Key, PartitionIndex};
use super::order::CatchUp;
use super::outbox::{Frame, Payload};
use super::outcome::{ChunkPlace, Listener, Progress};
use crate::head::head;
use sumpter_endpoint::ConnId;

impl Lane {
    /// Sends what a contribution finished to those who wait for it.
    pub(super) fn distribute(
        &mut self,
        job: JobIndex,
        at: PartitionIndex,
        slot: usize,
        progress: &Progress,
    ) {
        if let Some(reason) = &progress.malformed {
            return self.dispute(job, at, slot, reason);
        }
        if let Err(reason) = self.jobs[job].hold(progress, (at, slot)) {
            return self.dispute(job, at, slot, &reason);
        }
        self.count_late(job, progress.late);
        if let Some(chunk) = progress.asked {
            let resident = self.jobs[job].resident.and_then(|id| self.conns[id.0].as_mut());
            if let Some(visits) = resident.and_then(|conn| conn.resident.as_mut()) {
                visits.ask.push_back((at, ChunkPlace { slot, chunk }));
            }
        }
        if let Some(chunk) = progress.subtotal {
            self.jobs[job].subtotals.push_back((at, ChunkPlace { slot, chunk }));
        }
        if let Some(chunk) = progress.finished {
            self.fill(job, at, ChunkPlace { slot, chunk });
            for child in 0..self.jobs[job].partition(at).members().len() {
                let partition = self.jobs[job].partition(at);
                if !partition.holds_back(slot, partition.members()[child])
                    && let Some(to) = self.listener(job, at, slot, child, true)
                {
                    self.send_value(to, at, ChunkPlace { slot, chunk });
                }
            }
        }
        if progress.norm {
            self.tell_norm(job, at, slot);
        }
        if progress.complete {
            self.complete(job, at, slot);
        }
        if let Some(chunk) = progress.changed {
            self.changed(job, at, chunk);
        }
        if progress.complete {
            self.settle_own(job, at);
        }
        if let Some(missed) = &progress.missed {
            self.miss(job, (at, slot), missed);
        }
    }

    /// A chunk of a variable's part is here: sums may have waited for it.
    fn fill(&mut self, job: JobIndex, at: PartitionIndex, place: ChunkPlace) {
        for user in self.jobs[job].fill(at, place, &mut self.pool) {
            self.catch_up(job, user, CatchUp::All);
        }
    }

    /// The state of a variable has changed: rounds of a partition may have waited for that.
    pub(super) fn catch_up(&mut self, job: JobIndex, at: PartitionIndex, what: CatchUp) {
        let (partition, state) = self.jobs[job].with_state(at);
        let Some(state) = state else { return };
        for (slot, progress) in partition.catch_up(&mut self.pool, state, what) {
            self.distribute(job, at, slot, &progress);
        }
    }

    /// The norm of a round's gradient is known: sends it to those who wait for it.
    pub(super) fn tell_norm(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        for child in 0..self.jobs[job].partition(at).members().len() {
            if let Some((id, _)) = self.listener(job, at, slot, child, true) {
                self.send_norm(id, (at, slot), child);
            }
        }
    }

    /// Sends a child the norm, if it waits for it and it is known.
    pub(super) fn send_norm(
        &mut self,
        id: ConnId,
        (at, slot): (PartitionIndex, usize),
        child: usize,
    ) {
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let norm = self.jobs[conn.job].partition(at).norm_for(slot, child);
        let Some(norm) = norm.map(encode_norm) else { return };
        let header = self.header(id, FrameKind::Norm, at, slot);
        self.notify(id, Header { length: norm.len() as u32, ..header }, &norm);
    }

    /// A member has said what a round does: what waits for it goes on, once all have.
    pub(super) fn proceed(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        let partition = self.jobs[job].partition(at);
        let decision = partition.decision(slot);
        if !decision.is_deferred() || decision.update().is_none() {
            return;
        }
        if partition.tier().is_aggregate() {
            let round = partition.round(slot).expect("a live round");
            return self.jobs[job].decisions.push_back((at, round));
        }
        self.catch_up(job, at, CatchUp::All);
    }

    /// All mirrors have a round's gradient: the contributions to it are not needed again.
    pub(super) fn tell_mirrored(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        for child in 0..self.jobs[job].partition(at).members().len() {
            let partition = self.jobs[job].partition(at);
            if partition.awaits_mirrors(partition.members()[child])
                && let Some((id, _)) = self.listener(job, at, slot, child, true)
            {
                self.send_done(id, at, slot);
            }
        }
    }

    /// What the codes of a round's sum leave out is kept: those who waited for that get the codes.
    pub(super) fn send_held_back(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        let partition = self.jobs[job].partition(at);
        let (finished, members) = (partition.finished(slot), partition.members().len());
        for child in 0..members {
            let partition = self.jobs[job].partition(at);
            if partition.is_mirror(partition.members()[child]) {
                continue;
            }
            if let Some(to) = self.listener(job, at, slot, child, true) {
                (0..finished).for_each(|chunk| self.send_value(to, at, ChunkPlace { slot, chunk }));
            }
        }
    }

    /// The members disagree about a round: sends the error to all who have begun it.
    pub(super) fn dispute(&mut self, job: JobIndex, at: PartitionIndex, slot: usize, reason: &str) {
        let key = self.jobs[job].key(at);
        self.jobs[job].dispute(key, reason);
        self.jobs[job].give_back_held(at, &mut self.pool);
        for child in 0..self.jobs[job].partition(at).members().len() {
            let listener = |receives| self.listener(job, at, slot, child, receives);
            if let Some((id, _)) = listener(true).or_else(|| listener(false)) {
                let header = self.header(id, FrameKind::Error, at, slot);
                self.conn(id).refused.insert(key);
                self.refuse(id, header, reason);
            }
        }
    }

    /// A round is complete.
    pub(super) fn complete(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        self.stats.rounds += 1;
        self.note(EventKind::SumEnd, (job, at, slot), None);
        if self.is_over(job, at, slot) {
            self.tell_done(job, at, slot);
        }
        if self.jobs[job].partition(at).is_without_receivers() {
            self.jobs[job].partition_mut(at).free(slot, &mut self.pool);
        }
        let dispute = self.jobs[job].partition_mut(at).admit_early(slot, &mut self.pool);
        if let Some(reason) = dispute {
            self.dispute(job, at, 1 - slot, &reason);
        }
    }

    /// Whether those who receive no data may forget a round that is complete: what they contributed
    /// is not needed again. If this lane may vanish, that is so once all others have the result.
    pub(super) fn is_over(&self, job: JobIndex, at: PartitionIndex, slot: usize) -> bool {
        let job = &self.jobs[job];
        !job.keeps || job.partition(at).is_released(slot)
    }

    fn tell_done(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        for child in 0..self.jobs[job].partition(at).members().len() {
            if let Some((id, _)) = self.listener(job, at, slot, child, false) {
                self.send_done(id, at, slot);
            }
        }
    }

    /// Everyone who receives a round's result has it.
    pub(super) fn released(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        self.jobs[job].partition_mut(at).free(slot, &mut self.pool);
        if !self.jobs[job].keeps {
            return;
        }
        self.release_beside(job, at, slot);
        if self.jobs[job].partition(at).is_complete(slot) {
            self.tell_done(job, at, slot);
        }
        for child in 0..self.jobs[job].partition(at).members().len() {
            let Some((id, _)) = self.listener(job, at, slot, child, true) else { continue };
            let header = self.header(id, FrameKind::Released, at, slot);
            let conn = self.conn(id);
            if conn.resident.is_none() {
                let head = conn.head(&header, &[]);
                conn.outbox.push_idle(&head, &[]);
            }
        }
    }

    /// The connection over which a child began the round, if it is still open and the child
    /// `receives` data or not, as asked; and how urgent it is.
    pub(super) fn listener(
        &self,
        job: JobIndex,
        at: PartitionIndex,
        slot: usize,
        child: usize,
        receives: bool,
    ) -> Option<(ConnId, i32)> {
        let job = &self.jobs[job];
        let partition = job.partition(at);
        let rank = partition.members()[child];
        let id = job.children[rank.0 as usize]?;
        let serial = self.conns[id.0].as_ref()?.serial;
        let wanted = partition.spec.collective.receives(rank, partition.spec.root) == receives;
        let Listener { over, priority, .. } = partition.listener(slot, child)?;
        (wanted && over == serial).then_some((id, priority))
    }

    pub(super) fn send_value(
        &mut self,
        (id, priority): (ConnId, i32),
        at: PartitionIndex,
        place: ChunkPlace,
    ) {
        if let Some(visits) = &mut self.conn(id).resident {
            return visits.deliver.push_back((at, place));
        }
        if place.chunk == 0 {
            let conn = self.conn(id);
            let (job, rank) = (conn.job, conn.rank);
            self.note(EventKind::ReturnBegin, (job, at, place.slot), Some(rank));
        }
        let header = self.header(id, FrameKind::Result, at, place.slot);
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let (partition, state) = self.jobs[conn.job].with_state(at);
        let gradient = partition.is_mirror(conn.rank);
        let len = partition.value_len(place.chunk, gradient);
        let header = Header { chunk: place.chunk, length: len as u32, ..header };
        let payload = Payload::Value { partition: at, at: place, gradient, len };
        let is_checked = conn.inbox.is_checked();
        let checksum = is_checked.then(|| partition.checksum(place, gradient, state.as_deref()));
        self.push(id, priority, Frame { head: head(&header, checksum), payload });
    }

    pub(super) fn send_done(&mut self, id: ConnId, at: PartitionIndex, slot: usize) {
        let header = self.header(id, FrameKind::Done, at, slot);
        let order = match header.tier {
            Tier::Worker => {
                let job = self.conn(id).job;
                encode_order(&self.jobs[job].partition(at).order(slot))
            }
            _ => Vec::new(),
        };
        self.notify(id, Header { length: order.len() as u32, ..header }, &order);
    }

    pub(super) fn header(
        &self,
        id: ConnId,
        kind: FrameKind,
        at: PartitionIndex,
        slot: usize,
    ) -> Header {
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let job = &self.jobs[conn.job];
        let Key { tensor, tier, partition, .. } = job.key(at);
        let round = job.partition(at).round(slot).expect("a live round");
        Header { tier, partition, round, ..Header::new(kind, job.epoch, tensor) }
    }

    pub(super) fn refuse(&mut self, id: ConnId, header: Header, reason: &str) {
        let text = reason.as_bytes();
        let text = &text[..text.len().min(sumpter_wire::MAX_CONTROL_BYTES)];
        let header =
            Header { kind: FrameKind::Error, chunk: 0, length: text.len() as u32, ..header };
        self.notify(id, header, text);
    }

    /// Queues a small frame that overtakes results.
    fn notify(&mut self, id: ConnId, header: Header, payload: &[u8]) {
        let conn = self.conn(id);
        let head = conn.head(&header, payload);
        conn.outbox.push_notice(&head, payload);
        self.touch_late(id);
    }

    fn push(&mut self, id: ConnId, priority: i32, frame: Frame) {
        let conn = self.conns[id.0].as_mut().expect("a child's connection is open");
        conn.outbox.push(priority, frame);
        self.touch(id);
    }
}
