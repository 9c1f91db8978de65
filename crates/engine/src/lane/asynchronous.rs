//! Variables that change asynchronously: what their mirrors get, and when a worker's round is done.
//!
//! Each worker has a partition of its own, and all use one state. A chunk that has changed is sent
//! to the mirrors when their connections have nothing else to send, one version at a time: so that
//! under load several changes share one snapshot. Where the mirror has the value as what it got in
//! its own round, the snapshot has no bytes of it. A round is done when the mirrors have what its
//! worker got.

use std::ops::Range;

use sumpter_types::{Rank, Round, Staleness};
use sumpter_wire::{FrameKind, Header, MAX_MIRRORS, Snapshot, Tier, VariableSpec};

use super::Lane;
use super::job::{Job, JobIndex, Key, PartitionIndex};
use super::order::{CatchUp, Missed};
use super::outbox::{Frame, Payload};
use super::outcome::Serial;
use super::state::Due;
use sumpter_endpoint::{ConnId, Violation};

/// Stretches of one partition whose clocks may differ: changes of epoch leave a few, for as long as
/// interrupted rounds are done again.
const MAX_STRETCHES: usize = 1 << 16;

impl Lane {
    /// A chunk of a variable has changed, through the partition `at`: its mirrors get it, and other
    /// workers may have waited for it.
    pub(super) fn changed(&mut self, job: JobIndex, at: PartitionIndex, unit: u32) {
        self.changes.push_back((job, at, unit));
        if self.changes.len() > 1 {
            // What is under way comes to it.
            return;
        }
        while let Some((job, at, unit)) = self.changes.front().copied() {
            self.follow_change(job, at, unit);
            self.changes.pop_front();
        }
    }

    fn follow_change(&mut self, job: JobIndex, at: PartitionIndex, unit: u32) {
        let partition = self.jobs[job].partition(at);
        let (Some(variable), Some(state)) = (partition.spec.variable, partition.state) else {
            return;
        };
        for mirror in 0..MAX_MIRRORS {
            self.send_snapshot(job, (state, unit, mirror), &variable);
        }
        let mut users = self.jobs[job].users(state);
        users.retain(|user| *user != at);
        let follows = |user: &PartitionIndex| self.jobs[job].partition(*user).follows_order();
        let followers: Vec<_> = users.iter().copied().filter(follows).collect();
        if variable.staleness != Staleness::UNBOUNDED || !followers.is_empty() {
            // Before anything else is added.
            users.into_iter().for_each(|user| self.catch_up(job, user, CatchUp::Answers));
        }
        let changes = self.changes.len();
        for user in followers {
            self.catch_up(job, user, CatchUp::All);
            if self.changes.len() > changes {
                // Another one: what it makes due comes first.
                break;
            }
        }
    }

    /// The turn of a worker's round in a replayed order is past: tells all who change the variable.
    pub(super) fn miss(
        &mut self,
        of_job: JobIndex,
        (at, slot): (PartitionIndex, usize),
        missed: &Missed,
    ) {
        let job = &self.jobs[of_job];
        let partition = job.partition(at);
        let (Some(state), Some(round)) = (partition.state, partition.round(slot)) else { return };
        let reason = missed.reason(partition.members()[0], round);
        for user in job.users(state) {
            let key = self.jobs[of_job].key(user);
            if !self.jobs[of_job].dispute(key, &reason) {
                continue;
            }
            for (slot, child) in self.jobs[of_job].partition(user).waiting() {
                if let Some((id, _)) = self.listener(of_job, user, slot, child, true) {
                    let header = self.header(id, FrameKind::Error, user, slot);
                    self.conn(id).refused.insert(key);
                    self.refuse(id, header, &reason);
                }
            }
        }
    }

    /// Puts a chunk among what its mirror is sent, if it has changed and the mirror is connected.
    fn send_snapshot(&mut self, of_job: JobIndex, due: Due, variable: &VariableSpec) {
        let (state, unit, mirror) = due;
        let Some(rank) = variable.mirrors[mirror] else { return };
        let job = &mut self.jobs[of_job];
        let Some(id) = job.children.get(rank.0 as usize).copied().flatten() else { return };
        if job.state_mut(state).queue(unit, mirror) {
            self.conn(id).snapshots.push_back(due);
            self.touch_late(id);
        }
    }

    /// The connection has nothing else to send: makes the next snapshot.
    pub(super) fn next_snapshot(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.conns[id.0].as_mut() else { return false };
        let Some((state, unit, mirror)) = conn.snapshots.pop_front() else { return false };
        let job = &mut self.jobs[conn.job];
        let Some(at) = job.users(state).first().copied() else { return true };
        let (stretch, variable) =
            (job.partition(at).stretch(unit), job.partition(at).spec.variable);
        let slots = variable.map_or(0, |variable| variable.rule.slots().len());
        let Key { tensor, partition, .. } = job.key(at);
        let epoch = job.epoch;
        let is_held = slots == 0 && conn.resident.is_none() && {
            job.has_answered(conn.rank, conn.serial, (state, unit, &stretch))
        };
        let state = job.state_mut(state);
        let (snapshots, version) = state.send((unit, &stretch), mirror);
        let last = snapshots.len();
        for (snapshot, count) in snapshots.into_iter().zip(1..) {
            let (start, len) = (snapshot.offset as usize, snapshot.len as usize);
            let (head, stretch) = (snapshot.encode(), start..start + len);
            let parts = || state.parts(slots, &stretch).filter(|_| !is_held);
            let len = head.len() + parts().map(<[u8]>::len).sum::<usize>();
            let mut bytes = self.pool.take(len);
            let mut start = 0;
            for part in std::iter::once(&head[..]).chain(parts()) {
                bytes[start..start + part.len()].copy_from_slice(part);
                start += part.len();
            }
            let header = Header {
                tier: Tier::Worker,
                partition,
                round: Round(if count == last { version } else { 0 }),
                chunk: unit,
                length: len as u32,
                ..Header::new(FrameKind::Snapshot, epoch, tensor)
            };
            let head = conn.head(&header, &bytes[..len]);
            conn.outbox.push(i32::MIN, Frame { head, payload: Payload::Owned { bytes, len } });
        }
        true
    }

    /// A mirror has a snapshot.
    pub(super) fn mirrored(&mut self, id: ConnId, header: &Header) -> Result<(), Violation> {
        let conn = self.conn(id);
        let (of_job, rank) = (conn.job, conn.rank);
        let job = &mut self.jobs[of_job];
        let (state, variable) = job.asynchronous(header)?;
        let place = variable.mirrors.iter().position(|mirror| *mirror == Some(rank));
        let mirror = place.ok_or_else(|| {
            Violation::state(format!("rank {rank} does not mirror what it acknowledged"))
        })?;
        if !job.state_mut(state).mirrored(header.chunk, mirror, header.round.0) {
            return Ok(());
        }
        for user in job.users(state) {
            self.settle_own(of_job, user);
        }
        self.send_snapshot(of_job, (state, header.chunk, mirror), &variable);
        Ok(())
    }

    /// Tells a worker that its round is done, if its mirrors have what it got.
    pub(super) fn settle_own(&mut self, of_job: JobIndex, at: PartitionIndex) {
        for slot in 0..2 {
            let (partition, state) = self.jobs[of_job].with_state(at);
            if state.is_some_and(|state| partition.settle_own(slot, state)) {
                self.tell_mirrored(of_job, at, slot);
            }
        }
    }

    /// A worker's connection is there, perhaps anew: what it mirrors is sent on it.
    pub(super) fn send_snapshots_again(&mut self, id: ConnId) {
        let conn = self.conn(id);
        let (of_job, rank) = (conn.job, conn.rank);
        let due = self.jobs[of_job].snapshots_of(rank);
        if !due.is_empty() {
            self.conn(id).snapshots = due.into();
            self.touch(id);
        }
    }

    /// What is about to be put into the lane of a variable has these clocks.
    pub(super) fn take_clocks(
        &mut self,
        id: ConnId,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let (Snapshot { offset, len, clocks }, parts) = Snapshot::decode(payload)?;
        let conn = self.conn(id);
        let (of_job, rank) = (conn.job, conn.rank);
        let key = Key::of(header, rank);
        if conn.refused.contains(&key) {
            return Ok(());
        }
        let job = &mut self.jobs[of_job];
        let at = job.find(key, 0).filter(|_| header.tier == Tier::Value && parts.is_empty());
        let at = at.ok_or_else(|| Violation::state("clocks of what is not put here"))?;
        let partition = job.partition(at);
        let stretch = offset as usize..offset as usize + len as usize;
        let whole = stretch.end <= partition.spec.bytes as usize
            && [offset, len].iter().all(|n| n.is_multiple_of(partition.spec.dtype.size() as u32));
        let known = clocks.iter().all(|clock| clock.rank.0 < job.world_size);
        if !whole || !known {
            return Err(Violation::state("clocks of bytes or of workers that there are not"));
        }
        let Some(at) = partition.state else { return Ok(()) };
        let state = job.state_mut(at);
        if state.clocks.len() >= MAX_STRETCHES {
            return Err(Violation::state("clocks of too many stretches"));
        }
        // What is put here again was not lost here.
        state.clocks.complete(stretch, &clocks);
        // From a client in this process the value may have come before its clocks.
        for user in job.users(at) {
            self.catch_up(of_job, user, CatchUp::All);
        }
        Ok(())
    }
}

impl Job {
    /// The state of a variable that a frame is about and that changes asynchronously, and what is
    /// known of it.
    fn asynchronous(&self, header: &Header) -> Result<(usize, VariableSpec), Violation> {
        let unknown = || Violation::state("a snapshot of an unknown variable");
        let state = self.state_of(header.tensor, header.partition).ok_or_else(unknown)?;
        let users = self.users(state);
        let of_worker = users.iter().map(|at| self.partition(*at));
        let mut of_worker = of_worker.filter(|partition| partition.tier() == Tier::Worker);
        let partition = of_worker.find(|partition| header.chunk < partition.spec.chunks());
        let variable = partition.and_then(|partition| partition.spec.variable);
        Ok((state, variable.ok_or_else(unknown)?))
    }

    /// Whether a stretch of a state, chunk `unit`, has the value that a worker gets over a
    /// connection in its own round.
    fn has_answered(
        &self,
        rank: Rank,
        over: Serial,
        (state, unit, stretch): (usize, u32, &Range<usize>),
    ) -> bool {
        let users = self.state(state).users.iter().map(|at| self.partition(*at));
        let mut own = users.filter(|own| own.members()[..] == [rank]);
        let value = self.state(state).value(stretch.clone());
        value.is_some_and(|value| {
            own.any(|own| own.stretch(unit) == *stretch && own.has_answered(unit, over, value))
        })
    }

    /// The chunks that are to be sent to a mirror whose connection is new.
    fn snapshots_of(&mut self, rank: Rank) -> Vec<Due> {
        let mut due = Vec::new();
        for state in 0..self.states() {
            let user = self.users(state).first().copied();
            let user = user.map(|at| self.partition(at)).filter(|p| p.tier() == Tier::Worker);
            let Some(variable) = user.and_then(|partition| partition.spec.variable) else {
                continue;
            };
            for mirror in 0..MAX_MIRRORS {
                if variable.mirrors[mirror] == Some(rank) {
                    let units = self.state_mut(state).send_again(mirror);
                    due.extend(units.into_iter().map(|unit| (state, unit, mirror)));
                }
            }
        }
        due
    }
}
