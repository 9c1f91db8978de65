//! The epochs of a run: whenever its servers or sizes change, or a worker dies that it can do
//! without, it goes on under a new plan.
//!
//! A change suspends the workers and tells the servers of the new plan of it. Once every worker
//! that is here has said what it has, and every server of the plan is ready, the workers get the
//! plan and what all have said. Whatever comes in between makes a newer epoch, and what was
//! answered for an older one counts for nothing. A start is the same without workers to suspend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank, Role};
use tracing::{info, warn};

use super::Registry;
use super::io::{Event, Join};
use super::job::{Job, Run, Stage};
use super::returning::Returning;
use super::tally::Happened;
use super::words::{list, seconds};
use crate::event::{FatalKind, MemberEvent};
use crate::view::ServerView;

/// How long a server must have been here before a running job goes over to it, so that servers
/// that come together cost one change.
pub(super) const QUIET: Duration = Duration::from_millis(200);

/// Where a run stands with its servers. The newest plan is the run's view.
pub(super) struct Epochs {
    pub state: State,
    /// When the newest epoch began.
    pub since: Duration,
    /// Servers of the newest plan that have not said that they are ready.
    pub preparing: BTreeSet<MemberId>,
    /// Servers of earlier plans, which keep what they have until the workers have gone on.
    pub retired: BTreeSet<MemberId>,
    /// Servers that some worker cannot use; they are in no later plan.
    pub dropped: BTreeSet<MemberId>,
    /// Why the plan last changed.
    pub last_change: String,
}

/// What a run's workers do.
#[derive(Debug)]
pub(super) enum State {
    /// They wait for their first plan.
    Starting,
    /// They work under the newest plan.
    Steady,
    /// They stop, and this is what those who have stopped said.
    Changing(BTreeMap<Rank, Vec<u8>>),
    /// They work on, and come back one by one from a coordinator that was lost.
    Returning(Box<Returning>),
}

impl Epochs {
    /// Before the start.
    pub fn new(now: Duration, servers: BTreeSet<MemberId>) -> Self {
        Self {
            state: State::Starting,
            since: now,
            preparing: servers,
            retired: BTreeSet::new(),
            dropped: BTreeSet::new(),
            last_change: String::new(),
        }
    }
}

impl Run {
    /// Whether the newest plan has the server.
    pub fn uses(&self, server: MemberId) -> bool {
        self.view.servers.iter().any(|s| s.member == server)
    }

    /// The servers that know of the run.
    pub fn informed(&self) -> impl Iterator<Item = MemberId> + '_ {
        let planned = self.view.servers.iter().map(|server| server.member);
        planned.chain(self.epochs.retired.iter().copied())
    }
}

impl Registry {
    /// A server is ready for an epoch of a run.
    pub(super) fn server_ready(&mut self, id: MemberId, job: JobId, epoch: Epoch) {
        let mut jobs = self.jobs.iter_mut();
        let found = jobs.find_map(|(name, entry)| {
            let run = entry.run.as_mut().filter(|run| run.id == job && run.view.epoch == epoch)?;
            run.epochs.preparing.remove(&id).then(|| name.clone())
        });
        if let Some(name) = found {
            self.complete(&name);
        }
    }

    /// A worker has stopped for an epoch, and says what it has.
    pub(super) fn progress(&mut self, id: MemberId, epoch: Epoch, payload: Vec<u8>) {
        let Some((name, rank)) = self.worker(id) else { return };
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        if run.view.epoch != epoch {
            return;
        }
        if let State::Changing(progress) = &mut run.epochs.state {
            progress.entry(rank).or_insert(payload);
            self.complete(&name);
        }
    }

    /// A worker cannot reach a server: its run goes on without that server. A worker that speaks
    /// of an older plan may only have met a server that is in a newer one already.
    pub(super) fn suspect(&mut self, id: MemberId, server: MemberId, reason: &str, epoch: Epoch) {
        let Some((name, rank)) = self.worker(id) else { return };
        let (by, host) = (self.host(id).to_owned(), self.host(server).to_owned());
        let Some(run) = self.jobs.get_mut(&name).and_then(Job::running) else { return };
        if run.view.epoch != epoch || !run.uses(server) {
            return;
        }
        run.epochs.dropped.insert(server);
        let why = format!("rank {rank} on {by} cannot reach the server on {host}: {reason}");
        warn!(job = %name, "{why}");
        self.replan(&name, &why);
    }

    /// Takes a server out of all runs, because it asks for that or a person does.
    pub(super) fn drain(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.join.role != Role::Server || std::mem::replace(&mut member.draining, true) {
            return;
        }
        let host = member.join.host.clone();
        info!(member = %id, %host, "a server is drained");
        self.draining.insert(id);
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
        if self.draining.is_empty() {
            return;
        }
        let used: BTreeSet<MemberId> = self
            .jobs
            .values()
            .filter(|job| job.failure.is_none())
            .filter_map(|job| job.run.as_ref())
            .flat_map(Run::informed)
            .collect();
        let claimed = |id: &MemberId| self.members.get(id).is_some_and(|m| !m.claims.is_empty());
        let free = self.draining.difference(&used).filter(|id| !claimed(id));
        let free: Vec<MemberId> = free.copied().collect();
        for id in free {
            self.draining.remove(&id);
            self.tell(id, MemberEvent::Drained);
        }
    }

    /// Gives the run a new plan if the servers it should use are others than those it uses.
    pub(super) fn replan(&mut self, name: &str, why: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let (stage, Some(run)) = (job.stage(), &job.run) else { return };
        let present: BTreeSet<MemberId> = run.view.servers.iter().map(|s| s.member).collect();
        let wanted = self.wanted(job, run);
        if wanted == present || matches!(stage, Stage::Failed | Stage::Returning) {
            return;
        }
        if stage == Stage::Starting && wanted.len() < self.expected_servers(job) as usize {
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
        let present: BTreeSet<MemberId> = run.view.servers.iter().map(|s| s.member).collect();
        let servers = self.server_views(wanted);
        let retired = present.difference(wanted).filter(|id| self.members.contains_key(id));
        let retired: Vec<MemberId> = retired.copied().collect();
        let since = self.last_tick;
        let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) else { return };
        run.view.epoch = Epoch(run.view.epoch.0 + 1);
        run.view.servers = servers;
        run.epochs.retired.extend(retired);
        run.epochs.preparing.clone_from(wanted);
        run.epochs.since = since;
        let view = run.view.clone();
        let (epoch, count) = (view.epoch, wanted.len());
        info!(job = %name, %epoch, servers = count, "a new plan: {why}");
        if stage == Stage::Running {
            run.epochs.state = State::Changing(BTreeMap::new());
            run.epochs.last_change = why.to_owned();
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
        if !run.epochs.preparing.is_empty() {
            return;
        }
        let view = run.view.clone();
        let event = match &mut run.epochs.state {
            State::Steady | State::Returning(_) => return,
            State::Starting => MemberEvent::Started(view),
            State::Changing(progress) => {
                if job.present.keys().any(|rank| !progress.contains_key(rank)) {
                    return;
                }
                let progress = std::mem::take(progress).into_iter().collect();
                MemberEvent::Resume { view, progress }
            }
        };
        run.epochs.state = State::Steady;
        let retired = std::mem::take(&mut run.epochs.retired);
        let ended = MemberEvent::JobEnded { job: run.id };
        self.tell_workers(name, &event);
        for server in retired {
            self.tell(server, ended.clone());
        }
        self.go_over_to_what_changed(name);
    }

    /// What was put off while the run started: servers that are drained.
    fn go_over_to_what_changed(&mut self, name: &str) {
        let Some(run) = self.jobs.get(name).and_then(|job| job.run.as_ref()) else { return };
        let draining = |server: &&ServerView| {
            self.members.get(&server.member).is_some_and(|member| member.draining)
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
            self.members.get(id).is_some_and(|m| now.saturating_sub(m.joined) >= QUIET)
        };
        if !fresh.is_empty() && fresh.iter().all(quiet) {
            let hosts = list(fresh.iter().map(|id| self.host(**id)));
            let why = match fresh.len() {
                1 => format!("a server joined on {hosts}"),
                _ => format!("servers joined on {hosts}"),
            };
            return self.replan(name, &why);
        }
        let limit = self.options.start_timeout;
        if let State::Changing(progress) = &run.epochs.state
            && now.saturating_sub(run.epochs.since) >= limit
        {
            let late = run.epochs.preparing.clone();
            let hosts = list(late.iter().map(|id| self.host(*id)));
            let silent = job.present.keys().filter(|rank| !progress.contains_key(rank));
            let (ranks, limit) = (list(silent), seconds(limit));
            if late.is_empty() {
                return self.fail_job(name, FatalKind::PeerLost, |_| {
                    format!("rank {ranks} did not stop for a change of plan within {limit}")
                });
            }
            if let Some(run) = self.jobs.get_mut(name).and_then(Job::running) {
                run.epochs.dropped.extend(late);
            }
            self.replan(name, &format!("the server on {hosts} did not get ready within {limit}"));
        }
    }

    /// The servers the run should use: all that are here to stay. A run that cannot do without
    /// one keeps those that would leave rather than none.
    pub(super) fn wanted(&self, job: &Job, run: &Run) -> BTreeSet<MemberId> {
        let reachable = |id: &MemberId| !run.epochs.dropped.contains(id);
        let wanted: BTreeSet<MemberId> = self.lasting_servers().filter(reachable).collect();
        if wanted.is_empty() && job.needs_a_server() {
            return self
                .servers()
                .map(|(id, _)| id)
                .filter(|id| run.uses(*id) && reachable(id))
                .collect();
        }
        wanted
    }

    /// The servers that are here and do not drain.
    pub(super) fn lasting_servers(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.servers().filter(|(_, member)| !member.draining).map(|(id, _)| id)
    }

    /// The servers as others see them, in an order that is the same for all.
    pub(super) fn server_views(&self, servers: &BTreeSet<MemberId>) -> Vec<ServerView> {
        let view = |id: &MemberId| {
            let Join { host, machine, lanes, bandwidth_gbps, .. } = &self.members.get(id)?.join;
            let (host, machine, lanes) = (host.clone(), machine.clone(), lanes.clone());
            Some(ServerView { member: *id, host, machine, lanes, bandwidth_gbps: *bandwidth_gbps })
        };
        let mut views: Vec<ServerView> = servers.iter().filter_map(view).collect();
        // By host, so that runs of one cluster place alike whichever server happened to be first.
        views.sort_by(|a, b| (&a.host, &a.lanes, a.member).cmp(&(&b.host, &b.lanes, b.member)));
        views
    }

    /// Ends a silent member's session. A server may come back: nothing of it was needed.
    pub(super) fn give_up(&mut self, id: MemberId, silence: Duration) {
        let reason = format!("no heartbeat for {:.1} s", silence.as_secs_f64());
        let message = format!("the coordinator gave this process up: {reason}");
        let Some(member) = self.members.get(&id) else { return };
        if member.join.role == Role::Server {
            self.tell(id, MemberEvent::GivenUp { message });
            self.outbox.push((id, Event::Close));
            self.remove(id, &super::job::Gone::Lost(reason));
        } else {
            self.dismiss(id, FatalKind::PeerLost, message, reason);
        }
    }
}

fn drained(host: &str) -> String {
    format!("the server on {host} is drained")
}
