//! What the ranks of a run must agree on while it runs: tensors and the order of their calls.

use sumpter_types::{MemberId, PendingOp, Rank, TensorId, TensorSpec};
use tracing::warn;

use super::Registry;
use super::io::Event;
use super::job::Job;
use super::pending::disagreements;
use super::tensors::Declared;
use crate::event::{FatalKind, MemberEvent};

impl Registry {
    /// Puts a tensor into the run's table, or tells who must hear why not.
    pub(super) fn declare(&mut self, id: MemberId, spec: TensorSpec) {
        let Some((name, rank)) = self.worker(id) else {
            let what = "a declaration of a tensor by a server".to_owned();
            return self.dismiss(id, FatalKind::Protocol, what.clone(), what);
        };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        let world_size = job.world_size;
        let tensor = spec.name.clone();
        let error = |message| MemberEvent::TensorError { name: tensor, message };
        let Some(run) = job.running() else {
            if job.failure.is_none() {
                let message = format!("tensor '{}' was declared before the start", spec.name);
                self.outbox.push((id, Event::Tell(error(message))));
            }
            return;
        };
        match run.table.declare(rank, spec, world_size) {
            Declared::New(id, spec) => self.tell_workers(&name, &MemberEvent::Tensor { id, spec }),
            Declared::Known => {}
            Declared::Conflict(message) => {
                warn!(job = %name, "{message}");
                self.tell_workers(&name, &error(message));
            }
            Declared::Refused(message) => self.outbox.push((id, Event::Tell(error(message)))),
        }
    }

    /// A worker cannot take part in the rounds of a tensor: nobody can finish them.
    pub(super) fn refuse(&mut self, id: MemberId, tensor: &str, message: &str) {
        let Some((name, _)) = self.worker(id) else { return };
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        warn!(job = %name, "{message}");
        run.table.refuse(tensor, message);
        let (tensor, message) = (tensor.to_owned(), message.to_owned());
        self.tell_workers(&name, &MemberEvent::TensorError { name: tensor, message });
    }

    /// A worker takes part with zeros from now on; after the last one, all as before.
    pub(super) fn out_of_data(&mut self, id: MemberId) {
        let Some((name, rank)) = self.worker(id) else { return };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        let Some(run) = job.running().filter(|run| !run.out_of_data.contains(&rank)) else {
            return;
        };
        run.out_of_data.push(rank);
        let event = run.all_out_of_data().unwrap_or(MemberEvent::OutOfData { rank });
        self.tell_workers(&name, &event);
    }

    /// Passes on that a round has begun.
    pub(super) fn began(&mut self, id: MemberId, tensor: TensorId, round: u64) {
        let Some((name, _)) = self.worker(id) else { return };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        let Some(run) = job.running() else { return };
        let idle: Vec<Rank> = run.out_of_data.clone();
        for rank in idle {
            if let Some(member) = job.present.get(&rank).filter(|member| **member != id) {
                let event = MemberEvent::Began { tensor, round };
                self.outbox.push((*member, Event::Tell(event)));
            }
        }
    }

    /// Looks whether a worker waits for what another can never join, now that it has reported.
    pub(super) fn compare_pending(&mut self, id: MemberId) {
        let Some((name, rank)) = self.worker(id) else { return };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        let (members, present) = (&self.members, &job.present);
        let pending = |id: &MemberId| -> &[PendingOp] {
            members.get(id).map_or(&[], |member| &member.stats.pending)
        };
        let others = present.iter().map(|(rank, id)| (*rank, pending(id)));
        let found = disagreements(rank, pending(&id), others);
        let Some(run) = job.running() else { return };
        let mut errors = Vec::new();
        for disagreement in found {
            if !run.diagnosed.insert(disagreement.place) {
                continue;
            }
            warn!(job = %name, "{}", disagreement.message);
            for tensor in disagreement.names {
                run.table.refuse(&tensor, &disagreement.message);
                let message = disagreement.message.clone();
                errors.push(MemberEvent::TensorError { name: tensor, message });
            }
        }
        errors.iter().for_each(|error| self.tell_workers(&name, error));
    }
}
