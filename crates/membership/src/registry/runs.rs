//! The life of a run: from the moment everyone is there until its last worker is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank};
use tracing::{debug, info, warn};

use super::Registry;
use super::io::{Event, Join, Serves};
use super::job::epochs::EpochChange;
use super::job::waiting::{NOTICE_EVERY, missing, missing_sentence};
use super::job::{Failure, Gone, Job, Run, Stage};
use super::tally::Happened;
use super::words::{list, seconds};
use crate::event::{FatalKind, MemberEvent};
use crate::view::ClusterView;

impl Registry {
    /// Starts a job whose members are all here: the view is fixed and the servers are told.
    pub(super) fn start_if_complete(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let servers: BTreeSet<MemberId> = self.members.lasting_servers().collect();
        let complete = job.present.len() == job.world_size as usize
            && servers.len() >= self.members.expected_servers(&job.present) as usize;
        if job.stage() != Stage::Waiting || !complete {
            return;
        }
        let id = JobId((self.draw)());
        let view = self.view(id, name, job, &servers);
        info!(job = %name, workers = view.workers.len(), servers = servers.len(), "a run starts");
        let run = Run::new(view.clone(), EpochChange::starting(now, servers.clone()));
        if let Some(job) = self.jobs.get_mut(name) {
            job.run = Some(run);
        }
        for server in &servers {
            self.tell(*server, MemberEvent::JobStarted(view.clone()));
        }
        self.complete(name);
    }

    /// Tells a waiting job what is missing, or gives it up.
    pub(super) fn tick_job(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let waited = now.saturating_sub(job.since);
        match job.stage() {
            Stage::Waiting if waited >= self.members.start_timeout(&job.present) => {
                let what = missing_sentence(job, &self.members);
                self.fail_job(name, FatalKind::Start, |join| what(&join.coordinator));
            }
            Stage::Waiting if now >= job.next_notice => {
                let missing = missing(job, &self.members);
                let seconds = waited.as_secs_f64();
                self.tell_workers(name, &MemberEvent::Waiting { missing, seconds });
                if let Some(job) = self.jobs.get_mut(name) {
                    job.next_notice = now + NOTICE_EVERY;
                }
            }
            Stage::Starting => {
                let Some(run) = &job.run else { return };
                let limit = self.options.start_timeout;
                if now.saturating_sub(run.epochs.since()) >= limit {
                    let hosts =
                        list(run.epochs.preparing().iter().map(|id| self.members.host(*id)));
                    let limit = seconds(limit);
                    self.fail_job(name, FatalKind::Start, |_| {
                        format!("the servers on {hosts} did not get ready within {limit}")
                    });
                }
            }
            Stage::Running => {
                self.tick_run(now, name);
                self.watch(now, name);
            }
            Stage::Returning => self.tick_return(now, name),
            Stage::Waiting | Stage::Failed => {}
        }
    }

    /// Lets a run go on without a worker that died, if it may; whether it does.
    fn survives(&mut self, name: &str, rank: Rank, host: &str, reason: &str) -> bool {
        let Some(job) = self.jobs.get_mut(name) else { return false };
        if job.stage() != Stage::Running || !job.may_lose(rank) {
            return false;
        }
        job.present.remove(&rank);
        let Some(run) = job.running() else { return false };
        run.view.gone.insert(rank);
        run.epochs.worker_gone(rank);
        let why = format!("rank {rank} on {host} was lost: {reason}");
        let Some(job) = self.jobs.get(name) else { return false };
        let Some(run) = &job.run else { return false };
        let wanted: BTreeSet<MemberId> = self.wanted(job, run);
        if wanted.is_empty() && job.needs_a_server() {
            // The run ends for want of a server.
            self.replan(name, &why);
            return true;
        }
        self.begin_epoch(name, &wanted, &why, &why);
        let Some(run) = self.jobs.get_mut(name).and_then(Job::running) else { return true };
        let living = run.view.living().count();
        if let Some(event) = run.agreement.lose(rank, living) {
            self.tell_workers(name, &event);
        }
        true
    }

    /// Tells the worker's job, and drops it with its last worker.
    pub(super) fn worker_gone(&mut self, name: &str, rank: Rank, host: &str, how: &Gone) {
        if let Gone::Lost(reason) = how
            && self.survives(name, rank, host, reason)
        {
            return;
        }
        let Some(job) = self.jobs.get_mut(name) else { return };
        if let Some(event) = job.remove(rank, host, how) {
            self.tell_workers(name, &event);
        }
        match self.jobs.get(name) {
            Some(job) if job.awaits_others() => {}
            Some(job) if job.present.is_empty() => self.forget(name),
            // It may have been the last that a change waited for.
            _ => self.complete(name),
        }
    }

    /// The runs that used a server go on without it.
    pub(super) fn server_gone(&mut self, id: MemberId, host: &str, how: &Gone) {
        let why = match how {
            Gone::Left => format!("the server on {host} left the cluster"),
            Gone::Lost(reason) => format!("the server on {host} was lost: {reason}"),
        };
        for job in self.jobs.values_mut() {
            if let Some(run) = &mut job.run {
                run.epochs.server_gone(id);
            }
        }
        let uses = |job: &Job| job.run.as_ref().is_some_and(|run| run.uses(id));
        let hit = self.jobs.iter().filter(|(_, job)| uses(job));
        let names: Vec<String> = hit.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.replan(name, &why));
    }

    /// Drops a job whose last worker is gone.
    fn forget(&mut self, name: &str) {
        let Some(job) = self.jobs.remove(name) else { return };
        self.past.job_over(self.job_status(self.members.last_tick(), name, &job));
        debug!(job = %name, "a job is over");
        match (&job.failure, &job.run) {
            (Some(_), _) => self.tally.count(Happened::JobFailed),
            (None, Some(_)) => self.tally.count(Happened::JobEnded),
            (None, None) => {}
        }
        let servers: Vec<MemberId> = self.members.servers().map(|(id, _)| id).collect();
        if let Some(run) = &job.run {
            for server in run.informed().filter(|id| servers.contains(id)) {
                self.tell(server, MemberEvent::JobEnded { job: run.id });
            }
        }
        self.last_end = match job.failure {
            Some(Failure { kind, message }) => Some(MemberEvent::Fatal { kind, message }),
            None => job.run.map(|_| MemberEvent::Finished),
        };
        if self.options.serves == Serves::OneRun && self.last_end.is_some() {
            self.finish();
        }
    }

    /// The coordinator is about to end: the servers of a single job hear how that ended.
    pub(super) fn stop(&mut self) {
        if self.options.serves == Serves::OneJob && self.jobs.is_empty() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        let last = self.last_end.take().unwrap_or(MemberEvent::Finished);
        let servers: Vec<MemberId> = self.members.servers().map(|(id, _)| id).collect();
        servers.into_iter().for_each(|server| self.tell(server, last.clone()));
    }

    /// Marks a job as failed and tells its workers, each in its own words.
    pub(super) fn fail_job(
        &mut self,
        name: &str,
        kind: FatalKind,
        message: impl Fn(&Join) -> String,
    ) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        if job.failure.is_some() {
            return;
        }
        for id in job.present.values() {
            let Some(member) = self.members.get(*id) else { continue };
            let message = message(&member.join);
            if job.failure.is_none() {
                warn!(job = %name, "{message}");
                job.failure = Some(Failure { kind, message: message.clone() });
            }
            self.outbox.push((*id, Event::Tell(MemberEvent::Fatal { kind, message })));
        }
    }

    /// Who takes part in a run that starts now.
    fn view(&self, id: JobId, name: &str, job: &Job, servers: &BTreeSet<MemberId>) -> ClusterView {
        let holds_us = |id: &MemberId| {
            self.members.get(*id).is_some_and(|member| member.join.process == self.options.process)
        };
        let coordinator_rank =
            job.present.iter().find(|(_, id)| holds_us(id)).map(|(rank, _)| *rank);
        ClusterView {
            job: id,
            name: name.to_owned(),
            epoch: Epoch(1),
            workers: self.members.worker_views(&job.present),
            servers: self.members.server_views(servers),
            coordinator_rank,
            ..ClusterView::default()
        }
    }
}
