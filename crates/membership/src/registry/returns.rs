//! Brings runs back that have outlived their coordinator. If all workers agree on the epoch, the
//! run simply goes on. If the coordinator was lost in the middle of a change, some are behind, and
//! an epoch newer than any that is known begins as an ordinary change.

use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank};
use tracing::{info, warn};

use super::Registry;
use super::io::{Event, Message};
use super::job::epochs::{EpochChange, Phase};
use super::job::returning::{Missed, Returning};
use super::job::waiting::NOTICE_EVERY;
use super::job::{Gone, Job, Run};
use super::members::Claim;
use super::words::{list, seconds};
use crate::event::{FatalKind, MemberEvent};
use crate::rejoin::KnownRun;
use crate::view::ServerView;

/// The number of a server that is not connected.
const ABSENT: MemberId = MemberId(0);

impl Registry {
    /// A worker comes back to its run, which is known from now on if it was not.
    pub(super) fn worker_returns(
        &mut self,
        now: Duration,
        id: MemberId,
        (name, rank, world_size): (&str, Rank, u32),
        mut known: KnownRun,
    ) {
        // What these are is the service's business.
        (known.view.key, known.view.quota) = Default::default();
        let Some(member) = self.members.get(id) else { return };
        let settings = member.join.settings.clone();
        let job = self.jobs.entry(name.to_owned()).or_insert_with(|| {
            info!(job = %name, "a run comes back");
            let run = Run::new(known.view.clone(), EpochChange::returning(now));
            Job { run: Some(run), ..Job::new(now, NOTICE_EVERY, world_size, settings) }
        });
        job.present.insert(rank, id);
        let Some(run) = &mut job.run else { return };
        if known.view.epoch > run.view.epoch {
            run.view = known.view.clone();
        }
        run.left.extend(&known.left);
        let restored = run.agreement.restore(&known.table, world_size);
        let Some(returning) = run.epochs.return_state_mut() else { return };
        returning.back(rank, &known);
        let lost = job.present.iter().find(|(rank, _)| run.view.gone.contains(rank));
        if let Some((rank, id)) = lost.map(|(rank, id)| (*rank, *id)) {
            // It came back before the workers that know of its loss.
            let message = format!("the others have gone on without rank {rank}");
            self.dismiss(id, FatalKind::PeerLost, message.clone(), message);
        }
        match restored {
            Ok(()) => self.complete_return(now, name),
            Err(why) => self.fail_job(name, FatalKind::Protocol, |_| why.clone()),
        }
    }

    /// Puts off what a worker of a returning run says, but for signs of life and its leave.
    pub(super) fn hold_back(&mut self, id: MemberId, message: Message) -> Option<Message> {
        if matches!(message, Message::Heartbeat(_) | Message::Leave) {
            return Some(message);
        }
        let name = self.members.worker(id).map(|(name, _)| name);
        let run = name.and_then(|name| self.jobs.get_mut(&name)?.run.as_mut());
        let Some(returning) = run.and_then(|run| run.epochs.return_state_mut()) else {
            return Some(message);
        };
        if !returning.hold_back(id, message) {
            let what = "too much was said before all had come back".to_owned();
            self.dismiss(id, FatalKind::Protocol, what.clone(), what);
        }
        None
    }

    /// Goes on once everyone is back.
    pub(super) fn complete_return(&mut self, now: Duration, name: &str) {
        let limit = self.options.server_timeout;
        let Some(job) = self.jobs.get_mut(name).filter(|job| job.failure.is_none()) else { return };
        let Some(run) = &mut job.run else { return };
        let awaited = run.awaited().next().is_some();
        let returning = run.epochs.return_state_mut().filter(|_| !awaited);
        let Some(complete) = returning.map(|returning| returning.all_back(now)) else { return };
        let (id, mut missing) = (run.id, run.view.servers.clone());
        missing.retain(|server| !self.members.serves(server, id));
        if missing.is_empty() || now.saturating_sub(complete) >= limit {
            self.go_on(name, &missing);
        }
    }

    fn go_on(&mut self, name: &str, missing: &[ServerView]) {
        let now = self.members.last_tick();
        let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) else { return };
        let Some(returning) = run.epochs.end_return(now) else { return };
        run.agreement.settle(returning.refused(), returning.idle());
        for server in &mut run.view.servers {
            // Its number may be another server's by now.
            if missing.iter().any(|gone| gone.member == server.member) {
                server.member = ABSENT;
            }
        }
        let (id, epoch) = (run.id, run.view.epoch);
        self.catch_up(name, &returning);

        let mut heard = returning.epochs();
        heard.extend(self.members.claimed_epochs(id));
        let newest = heard.last().copied().unwrap_or(epoch);
        let hosts = list(missing.iter().map(|server| &server.host));
        let fewer = returning.lost().is_some();
        let why = match (returning.lost(), missing.is_empty()) {
            (Some(lost), _) => lost.to_owned(),
            (None, true) => "the coordinator was lost during a change of servers".to_owned(),
            (None, false) => {
                format!("the server on {hosts} did not come back to the coordinator")
            }
        };
        info!(job = %name, %newest, "the run has come back");
        if returning.suspended() || fewer || heard.len() > 1 {
            self.renew(name, newest, &why);
        } else {
            self.replan(name, &why);
        }
        for (id, message) in returning.into_held_back() {
            self.message(now, id, message);
        }
    }

    /// Tells the workers what they have missed.
    fn catch_up(&mut self, name: &str, returning: &Returning) {
        let Some(job) = self.jobs.get(name) else { return };
        let Some(run) = &job.run else { return };
        let mut told = Vec::new();
        for Missed { rank, tensors, all_out_of_data } in returning.missed() {
            let Some(member) = job.present.get(&rank) else { continue };
            let tensors = run.agreement.table().since(tensors);
            let tensors = tensors.map(|(id, spec)| MemberEvent::Tensor { id, spec });
            let refused = returning.refused().iter().map(|(name, message)| {
                MemberEvent::TensorError { name: name.clone(), message: message.clone() }
            });
            let left = run.left.iter().map(|rank| MemberEvent::WorkerLeft { rank: *rank });
            // A worker that gets it once more repeats what is under way.
            let idle = returning.idle().ranks.iter();
            let idle = idle.map(|rank| MemberEvent::OutOfData { rank: *rank });
            let events = tensors.chain(refused).chain(left).chain(all_out_of_data).chain(idle);
            told.extend(events.map(|event| (*member, Event::Tell(event))));
        }
        self.outbox.extend(told);
    }

    /// Begins an epoch that is newer than any that a member knows.
    fn renew(&mut self, name: &str, newest: Epoch, why: &str) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        let Some(run) = &mut job.run else { return };
        run.view.epoch = newest;
        let Some(job) = self.jobs.get(name) else { return };
        let Some(run) = &job.run else { return };
        let wanted = self.wanted(job, run);
        if wanted.is_empty() && job.needs_a_server() {
            // There it is said what that means.
            return self.replan(name, why);
        }
        self.begin_epoch(name, &wanted, why, why);
    }

    /// Gives up on workers that do not come back.
    pub(super) fn tick_return(&mut self, now: Duration, name: &str) {
        self.complete_return(now, name);
        let Some(job) = self.jobs.get(name) else { return };
        let Some(run) = &job.run else { return };
        let limit = self.members.start_timeout(&job.present).max(self.options.start_timeout);
        let Some(rank) = run.awaited().next() else { return };
        if now.saturating_sub(job.since) < limit {
            return;
        }
        let host = run.view.workers[rank.0 as usize].host.clone();
        let reason = format!("it did not come back to the coordinator within {}", seconds(limit));
        warn!(job = %name, %rank, %host, "{reason}");
        let survives = job.may_lose(rank);
        let run = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()).filter(|_| survives);
        if let Some(run) = run {
            run.view.gone.insert(rank);
            if let Some(returning) = run.epochs.return_state_mut() {
                returning.lose(format!("rank {rank} on {host} was lost: {reason}"));
            }
            return self.complete_return(now, name);
        }
        // From here on it is a run that has lost a worker.
        if let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) {
            run.epochs.end_return(now);
        }
        self.worker_gone(name, rank, &host, &Gone::Lost(reason));
    }

    /// Tells servers that have come back of runs that are over, or of which they are no part.
    pub(super) fn settle_claims(&mut self, now: Duration) {
        let (jobs, limit) = (&self.jobs, self.options.start_timeout);
        let judge = |claim: JobId, server: MemberId, waited: Duration| match jobs
            .values()
            .filter_map(|job| job.run.as_ref())
            .find(|run| run.id == claim)
        {
            Some(run) if run.epochs.phase() == Phase::Returning => Claim::Open,
            Some(run) if run.informed().any(|informed| informed == server) => Claim::Settled,
            None if waited < limit => Claim::Open,
            Some(_) | None => Claim::Void,
        };
        for (server, job) in self.members.settle_claims(now, judge) {
            self.tell(server, MemberEvent::JobEnded { job });
        }
    }
}
