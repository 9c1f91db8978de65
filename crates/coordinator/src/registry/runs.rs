//! The life of a run: from the moment everyone is there until its last worker is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_wire::{Epoch, JobId, Rank};
use tracing::{debug, info, warn};

use super::io::{Event, Join};
use super::job::{Failure, Gone, Job, Run, Stage};
use super::tensors::TensorTable;
use super::{Member, Registry};
use crate::coordinator::Serves;
use crate::types::{ClusterView, FatalKind, MemberEvent, MemberId, ServerView, WorkerView};

impl Registry {
    /// Starts a job whose members are all here: the view is fixed and the servers are told.
    pub(super) fn start_if_complete(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let servers: Vec<MemberId> = self.servers().map(|(id, _)| id).collect();
        let complete = job.present.len() == job.world_size as usize
            && servers.len() >= self.expected_servers(job) as usize;
        if job.stage() != Stage::Waiting || !complete {
            return;
        }
        let id = JobId((self.draw)());
        let view = self.view(id, name, job);
        info!(job = %name, workers = view.workers.len(), servers = servers.len(), "a run starts");
        let run = Run {
            id,
            view: view.clone(),
            since: now,
            preparing: servers.iter().copied().collect(),
            left: BTreeSet::new(),
            table: TensorTable::default(),
            out_of_data: Vec::new(),
            diagnosed: BTreeSet::new(),
        };
        if let Some(job) = self.jobs.get_mut(name) {
            job.run = Some(run);
        }
        for server in &servers {
            self.tell(*server, MemberEvent::JobStarted(view.clone()));
        }
        if servers.is_empty() {
            self.tell_workers(name, &MemberEvent::Started(view));
        }
    }

    /// A server can take the connections of a run; after the last one, the workers start.
    pub(super) fn server_ready(&mut self, id: MemberId, job_id: JobId) {
        let mut jobs = self.jobs.iter_mut();
        let found = jobs.find_map(|(name, job)| {
            let starting = job.stage() == Stage::Starting;
            let run = job.run.as_mut().filter(|run| starting && run.id == job_id)?;
            run.preparing.remove(&id);
            run.preparing.is_empty().then(|| (name.clone(), run.view.clone()))
        });
        if let Some((name, view)) = found {
            self.tell_workers(&name, &MemberEvent::Started(view));
        }
    }

    /// Tells the worker's job, and drops it with its last worker.
    pub(super) fn worker_gone(&mut self, name: &str, rank: Rank, host: &str, how: &Gone) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        if let Some(event) = job.remove(rank, host, how) {
            self.tell_workers(name, &event);
        }
        if self.jobs.get(name).is_some_and(|job| job.present.is_empty()) {
            self.forget(name);
        }
    }

    /// Tells the runs a server took part in.
    pub(super) fn server_gone(&mut self, id: MemberId, host: &str, how: &Gone) {
        let reason = match how {
            Gone::Left => "left the cluster".to_owned(),
            Gone::Lost(reason) => reason.clone(),
        };
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        for name in names {
            let job = &self.jobs[&name];
            let takes_part = |run: &Run| run.view.servers.iter().any(|s| s.member == id);
            if !job.run.as_ref().is_some_and(takes_part) {
                continue;
            }
            let (host, reason) = (host.to_owned(), reason.clone());
            match job.stage() {
                Stage::Starting => self.fail_job(&name, FatalKind::Start, |_| {
                    format!("the server on {host} was lost while the run started: {reason}")
                }),
                Stage::Running => {
                    self.tell_workers(&name, &MemberEvent::ServerLost { member: id, host, reason })
                }
                Stage::Waiting | Stage::Failed => {}
            }
        }
    }

    /// Drops a job whose last worker is gone.
    fn forget(&mut self, name: &str) {
        let Some(job) = self.jobs.remove(name) else { return };
        self.past.job_over(self.job_status(self.last_tick, name, &job));
        debug!(job = %name, "a job is over");
        let servers: Vec<MemberId> = self.servers().map(|(id, _)| id).collect();
        if let Some(run) = &job.run {
            for server in run.view.servers.iter().filter(|s| servers.contains(&s.member)) {
                self.tell(server.member, MemberEvent::JobEnded { job: run.id });
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
        let servers: Vec<MemberId> = self.servers().map(|(id, _)| id).collect();
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
            let Some(member) = self.members.get(id) else { continue };
            let message = message(&member.join);
            if job.failure.is_none() {
                warn!(job = %name, "{message}");
                job.failure = Some(Failure { kind, message: message.clone() });
            }
            self.outbox.push((*id, Event::Tell(MemberEvent::Fatal { kind, message })));
        }
    }

    /// Who takes part in a run that starts now.
    fn view(&self, id: JobId, name: &str, job: &Job) -> ClusterView {
        let workers = job.present.iter().filter_map(|(rank, id)| {
            let Join { host, machine, lanes, bandwidth_gbps, .. } = &self.members.get(id)?.join;
            let (host, machine, lanes) = (host.clone(), machine.clone(), lanes.clone());
            Some(WorkerView { rank: *rank, host, machine, lanes, bandwidth_gbps: *bandwidth_gbps })
        });
        let mut servers: Vec<ServerView> = self
            .servers()
            .map(|(member, Member { join, .. })| ServerView {
                member,
                host: join.host.clone(),
                machine: join.machine.clone(),
                lanes: join.lanes.clone(),
                bandwidth_gbps: join.bandwidth_gbps,
            })
            .collect();
        // By host, so that runs of one cluster place alike whichever server happened to be first.
        servers.sort_by(|a, b| (&a.host, &a.lanes, a.member).cmp(&(&b.host, &b.lanes, b.member)));
        let holds_us = |id: &MemberId| {
            self.members.get(id).is_some_and(|member| member.join.process == self.options.process)
        };
        let coordinator_rank =
            job.present.iter().find(|(_, id)| holds_us(id)).map(|(rank, _)| *rank);
        ClusterView {
            job: id,
            name: name.to_owned(),
            epoch: Epoch(1),
            workers: workers.collect(),
            servers,
            coordinator_rank,
            ..ClusterView::default()
        }
    }
}
