//! Routes the messages of members, and the events that follow from them.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_types::{MemberId, TensorId, TensorSpec};
use tracing::{info, warn};

use super::Registry;
use super::agreement::Notice;
use super::agreement::calls::Unmatched;
use super::io::{Event, Message};
use super::job::stalls::{Line, Verdict};
use super::job::{Gone, Job};
use crate::event::{FatalKind, MemberEvent};

impl Registry {
    /// A member's message.
    pub(super) fn message(&mut self, now: Duration, id: MemberId, message: Message) {
        if !self.members.heard(now, id) {
            return;
        }
        let Some(message) = self.hold_back(id, message) else { return };
        match message {
            Message::Heartbeat(stats) => {
                if let Some(stats) = stats {
                    self.members.report(now, id, stats);
                    self.compare_calls(id);
                }
                self.outbox.push((id, Event::HeartbeatSeen));
            }
            Message::Declare(spec) => self.declare(id, spec),
            Message::Refuse { name, message } => self.refuse(id, &name, &message),
            Message::OutOfData => self.out_of_data(id),
            Message::Began { tensor, round } => self.began(id, tensor, round),
            Message::JobReady(job, epoch) => self.server_ready(id, job, epoch),
            Message::Progress(epoch, payload) => self.progress(id, epoch, payload),
            Message::Suspect { server, reason, epoch } => {
                self.suspect(id, server, &reason, epoch);
            }
            Message::Drain => self.drain(id),
            Message::Leave => {
                self.outbox.push((id, Event::LeaveSeen));
                self.outbox.push((id, Event::Close));
                self.remove(id, &Gone::Left);
            }
        }
    }

    fn declare(&mut self, id: MemberId, spec: TensorSpec) {
        let Some((name, rank)) = self.members.worker(id) else {
            let what = "a declaration of a tensor by a server".to_owned();
            return self.dismiss(id, FatalKind::Protocol, what.clone(), what);
        };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        let world_size = job.world_size;
        let Some(run) = job.running() else {
            if job.failure.is_none() {
                let message = format!("tensor '{}' was declared before the start", spec.name);
                self.tell(id, MemberEvent::TensorError { name: spec.name, message });
            }
            return;
        };
        match run.agreement.declare(rank, spec, world_size) {
            None => {}
            Some(Notice::Sender(event)) => self.tell(id, event),
            Some(Notice::All(event)) => self.notify(&name, &event),
        }
    }

    fn refuse(&mut self, id: MemberId, tensor: &str, message: &str) {
        let Some((name, _)) = self.members.worker(id) else { return };
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        let event = run.agreement.refuse(tensor, message);
        self.notify(&name, &event);
    }

    fn out_of_data(&mut self, id: MemberId) {
        let Some((name, rank)) = self.members.worker(id) else { return };
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        let living = run.view.living().count();
        if let Some(event) = run.agreement.out_of_data(rank, living) {
            self.notify(&name, &event);
        }
    }

    /// Passes on that a round has begun.
    fn began(&mut self, id: MemberId, tensor: TensorId, round: u64) {
        let Some((name, _)) = self.members.worker(id) else { return };
        let Some(job) = self.jobs.get(&name).filter(|job| job.is_running()) else { return };
        let Some(run) = &job.run else { return };
        let (ranks, event) = run.agreement.began(tensor, round);
        let members = ranks.iter().filter_map(|rank| job.present.get(rank));
        let told = members.filter(|member| **member != id);
        self.outbox.extend(told.map(|member| (*member, Event::Tell(event.clone()))));
    }

    /// Looks for calls that ranks cannot match, now that a worker has reported.
    fn compare_calls(&mut self, id: MemberId) {
        let Some((name, rank)) = self.members.worker(id) else { return };
        let Some(job) = self.jobs.get_mut(&name).filter(|job| job.is_running()) else { return };
        let Some(run) = &mut job.run else { return };
        let unmatched = run.agreement.compare(rank, &self.members.calls(&job.present));
        let new = unmatched.iter().filter(|found| found.is_new);
        let messages: BTreeSet<&String> = new.map(|found| &found.message).collect();
        messages.into_iter().for_each(|message| warn!(job = %name, "{message}"));
        for Unmatched { tensor, message, .. } in unmatched {
            self.tell_workers(&name, &MemberEvent::TensorError { name: tensor, message });
        }
    }

    /// Announces a stall, where that is due, or ends the job.
    pub(super) fn watch(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let stall = self.stall(now, job);
        let limits = self.members.stall_limits(&job.present);
        let Some(run) = self.jobs.get_mut(name).and_then(Job::running) else { return };
        let lines = match run.stalls.judge(now, limits, stall) {
            Verdict::Over(message) => {
                return self.fail_job(name, FatalKind::PeerLost, |_| message.clone());
            }
            Verdict::Lines(lines) => lines,
        };
        for Line { message, over } in lines {
            match over {
                true => info!(target: "notice", job = %name, "{message}"),
                false => warn!(job = %name, "{message}"),
            }
            self.tell_lowest(name, MemberEvent::Stalled { message, over });
        }
    }

    /// Notifies the lowest rank that is connected, unless its process logs for the coordinator.
    fn tell_lowest(&mut self, name: &str, event: MemberEvent) {
        let Some(job) = self.jobs.get(name) else { return };
        let Some((rank, id)) = job.present.first_key_value() else { return };
        let holder = job.run.as_ref().and_then(|run| run.view.coordinator_rank);
        if holder != Some(*rank) {
            self.outbox.push((*id, Event::Tell(event)));
        }
    }

    /// Notifies the workers of a job; errors are logged too.
    fn notify(&mut self, name: &str, event: &MemberEvent) {
        if let MemberEvent::TensorError { message, .. } = event {
            warn!(job = %name, "{message}");
        }
        self.tell_workers(name, event);
    }
}
