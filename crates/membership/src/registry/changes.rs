//! Leads runs from one plan to the next.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId};
use tracing::{info, warn};

use super::Registry;
use super::job::epochs::{Overdue, QUIET};
use super::job::{Job, Run, Stage};
use super::tally::Happened;
use super::words::{list, seconds};
use crate::event::{FatalKind, MemberEvent};
use crate::view::ServerView;

impl Registry {
    /// A server is ready for an epoch of a run.
    pub(super) fn server_ready(&mut self, id: MemberId, job: JobId, epoch: Epoch) {
        let mut jobs = self.jobs.iter_mut();
        let found = jobs.find_map(|(name, entry)| {
            let run = entry.run.as_mut().filter(|run| run.id == job && run.view.epoch == epoch)?;
            run.epochs.ready(id).then(|| name.clone())
        });
        if let Some(name) = found {
            self.complete(&name);
        }
    }

    /// A worker has stopped for an epoch, and says what it has.
    pub(super) fn progress(&mut self, id: MemberId, epoch: Epoch, payload: Vec<u8>) {
        let Some((name, rank)) = self.members.worker(id) else { return };
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        if run.view.epoch != epoch {
            return;
        }
        if run.epochs.progress(rank, payload) {
            self.complete(&name);
        }
    }

    /// A worker cannot reach a server: its run goes on without that server. A worker that speaks
    /// of an older plan may only have met a server that is in a newer one already.
    pub(super) fn suspect(&mut self, id: MemberId, server: MemberId, reason: &str, epoch: Epoch) {
        let Some((name, rank)) = self.members.worker(id) else { return };
        let (by, host) = (self.members.host(id).to_owned(), self.members.host(server).to_owned());
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        if run.view.epoch != epoch || !run.uses(server) {
            return;
        }
        run.epochs.drop_server(server);
        let why = format!("rank {rank} on {by} cannot reach the server on {host}: {reason}");
        warn!(job = %name, "{why}");
        self.replan(&name, &why);
    }

    /// Takes a server out of all runs, because it asks for that or an operator does.
    pub(super) fn drain(&mut self, id: MemberId) {
        let Some(host) = self.members.drain(id) else { return };
        info!(member = %id, %host, "a server is drained");
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        for name in names {
            // A run that starts waits for it all the same.
            if self.jobs[&name].stage() == Stage::Running {
                self.replan(&name, &drained(&host));
            }
        }
    }

    /// Tells drained servers that no run uses them any more.
    pub(super) fn settle_drains(&mut self) {
        if !self.members.drains() {
            return;
        }
        let used: BTreeSet<MemberId> = self
            .jobs
            .values()
            .filter(|job| job.failure.is_none())
            .filter_map(|job| job.run.as_ref())
            .flat_map(Run::informed)
            .collect();
        for id in self.members.drained(&used) {
            self.tell(id, MemberEvent::Drained);
        }
    }

    /// Gives the run a new plan if the servers it should use are others than those it uses.
    pub(super) fn replan(&mut self, name: &str, why: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let (stage, Some(run)) = (job.stage(), &job.run) else { return };
        let present = run.servers();
        let wanted = self.wanted(job, run);
        if wanted == present || matches!(stage, Stage::Failed | Stage::Returning) {
            return;
        }
        if stage == Stage::Starting
            && wanted.len() < self.members.expected_servers(&job.present) as usize
        {
            return self
                .fail_job(name, FatalKind::Start, |_| format!("the run could not start: {why}"));
        }
        if wanted.is_empty() && job.needs_a_server() {
            return self.fail_job(name, FatalKind::PeerLost, |_| {
                format!("{why}; with architecture=ps no other can take its place")
            });
        }
        self.begin_epoch(name, &wanted, why, why);
    }

    /// Begins the next epoch of a run, under these servers; the workers are told a reason if they
    /// are to tell it.
    pub(super) fn begin_epoch(
        &mut self,
        name: &str,
        wanted: &BTreeSet<MemberId>,
        why: &str,
        told: &str,
    ) {
        let Some(job) = self.jobs.get(name) else { return };
        let (stage, Some(run)) = (job.stage(), &job.run) else { return };
        let present = run.servers();
        let servers = self.members.server_views(wanted);
        let retired = present.difference(wanted).filter(|id| self.members.contains(**id));
        let retired: Vec<MemberId> = retired.copied().collect();
        let now = self.members.last_tick();
        let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) else { return };
        run.view.epoch = Epoch(run.view.epoch.0 + 1);
        run.view.servers = servers;
        run.epochs.begin(now, wanted, retired);
        let view = run.view.clone();
        let (epoch, count) = (view.epoch, wanted.len());
        info!(job = %name, %epoch, servers = count, "a new plan: {why}");
        if stage == Stage::Running {
            run.epochs.suspend(why);
            self.tally.count(Happened::PlanChanged);
            let reason = told.to_owned();
            self.tell_workers(name, &MemberEvent::Suspend { epoch, reason });
        }
        for server in wanted {
            self.tell(*server, MemberEvent::JobStarted(view.clone()));
        }
        self.complete(name);
    }

    /// Lets the workers go on, if all have stopped and all servers are ready.
    pub(super) fn complete(&mut self, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        let Some(run) = job.run.as_mut().filter(|_| job.failure.is_none()) else { return };
        let Some(completed) = run.epochs.complete(job.present.keys()) else { return };
        let view = run.view.clone();
        let event = match completed.progress {
            None => MemberEvent::Started(view),
            Some(progress) => MemberEvent::Resume { view, progress },
        };
        let ended = MemberEvent::JobEnded { job: run.id };
        self.tell_workers(name, &event);
        for server in completed.retired {
            self.tell(server, ended.clone());
        }
        self.go_over_to_what_changed(name);
    }

    /// What was put off while the run started: servers that are drained.
    fn go_over_to_what_changed(&mut self, name: &str) {
        let Some(run) = self.jobs.get(name).and_then(|job| job.run.as_ref()) else { return };
        let draining = |server: &&ServerView| {
            self.members.get(server.member).is_some_and(|member| member.draining)
        };
        if let Some(server) = run.view.servers.iter().find(draining) {
            let why = drained(&server.host);
            self.replan(name, &why);
        }
    }

    /// Lets a running job go over to servers that have come, and gives up on those who keep a
    /// change from being complete.
    pub(super) fn tick_run(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let Some(run) = &job.run else { return };
        let wanted = self.wanted(job, run);
        let fresh: Vec<_> = wanted.iter().filter(|id| !run.uses(**id)).collect();
        let quiet = |id: &&MemberId| {
            self.members.get(**id).is_some_and(|m| now.saturating_sub(m.joined) >= QUIET)
        };
        if !fresh.is_empty() && fresh.iter().all(quiet) {
            let hosts = list(fresh.iter().map(|id| self.members.host(**id)));
            let why = match fresh.len() {
                1 => format!("a server joined on {hosts}"),
                _ => format!("servers joined on {hosts}"),
            };
            return self.replan(name, &why);
        }
        let limit = self.options.start_timeout;
        let Some(job) = self.jobs.get_mut(name) else { return };
        let Some(run) = &mut job.run else { return };
        let overdue = run.epochs.overdue(now, limit, job.present.keys());
        let limit = seconds(limit);
        match overdue {
            None => {}
            Some(Overdue::Ranks(ranks)) => {
                let ranks = list(ranks);
                self.fail_job(name, FatalKind::PeerLost, |_| {
                    format!("rank {ranks} did not stop for a change of plan within {limit}")
                });
            }
            Some(Overdue::Servers(servers)) => {
                let hosts = list(servers.iter().map(|id| self.members.host(*id)));
                self.replan(
                    name,
                    &format!("the server on {hosts} did not get ready within {limit}"),
                );
            }
        }
    }

    /// The servers the run should use: all that are here to stay. A run that cannot do without
    /// one keeps those that would leave rather than none.
    pub(super) fn wanted(&self, job: &Job, run: &Run) -> BTreeSet<MemberId> {
        let reachable = |id: &MemberId| run.epochs.may_use(*id);
        let wanted: BTreeSet<MemberId> = self.members.lasting_servers().filter(reachable).collect();
        if wanted.is_empty() && job.needs_a_server() {
            return self
                .members
                .servers()
                .map(|(id, _)| id)
                .filter(|id| run.uses(*id) && reachable(id))
                .collect();
        }
        wanted
    }
}

fn drained(host: &str) -> String {
    format!("the server on {host} is drained")
}
