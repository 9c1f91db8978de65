//! The coordinator's logic as a state machine without sockets, threads or a clock: (now, what a
//! member said or that it is gone) to (which member is notified of what).
//!
//! The registry admits members, finds the job that an input is about, and drops jobs that are over.
//! What follows within a job is decided by the [`Job`] and its run.
//!
//! Invariants: a job's present workers agree on its size and settings; a run's workers go through
//! the same plans in the same order; all workers of a run are notified of its tensors in the order
//! of their ids; a failed job's workers are notified of its failure once, and it is forgotten when
//! its last worker is gone.

mod admission;
mod agreement;
mod io;
mod job;
mod links;
mod members;
mod outbox;
mod overview;
mod past;
mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_config::Texts;
use sumpter_types::{Epoch, JobId, MemberId, Rank, Role, StatusReport};
use tracing::{debug, info, warn};

use crate::event::{FatalKind, MemberEvent};
use crate::rejoin::KnownRun;
use crate::tenants::base_name;
use admission::Admission;
use job::epochs::Phase;
use job::run::{Present, Run};
use job::{Context, Failure, Gone, Held, Job};
use members::{Claim, Members};
use outbox::Outbox;
use overview::Overview;
use past::Past;
use tally::{Happened, Tally};

pub use io::{
    Event, Input, Join, Message, Options, Refusal, RunMember, RunMembers, ServerMemory, Serves,
    StallLimits, TuneReport, TuneRequest,
};

/// All jobs and members of a coordinator.
pub struct Registry {
    options: Options,
    draw: Box<dyn FnMut() -> u64 + Send>,
    members: Members,
    jobs: BTreeMap<String, Job>,
    past: Past,
    tally: Tally,
    only_job: Option<String>,
    /// How the last run of the only job ended.
    last_end: Option<MemberEvent>,
    /// The servers have been notified that it is over.
    finished: bool,
    outbox: Outbox,
}

impl Registry {
    /// An empty registry; `draw` gives the runs' random numbers.
    #[must_use]
    pub fn new(options: Options, draw: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            options,
            draw,
            members: Members::default(),
            jobs: BTreeMap::new(),
            past: Past::default(),
            tally: Tally::default(),
            only_job: None,
            last_end: None,
            finished: false,
            outbox: Outbox::default(),
        }
    }

    /// Takes one input; returns what sessions are to do, in this order.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<(MemberId, Event)> {
        match input {
            Input::Join(member, join) => self.join(now, member, *join),
            Input::Message(member, message) => self.message(now, member, message),
            Input::Alive(member) => _ = self.members.heard(now, member),
            Input::Violation(member, what) => {
                let message = format!("the coordinator was sent what it does not take: {what}");
                self.dismiss(member, FatalKind::Protocol, message, what);
            }
            Input::Closed(member, reason) => self.remove(member, &Gone::Lost(reason)),
            Input::Tick => self.tick(now),
            Input::Drain(member) => {
                if self.drain(member) {
                    self.outbox.notify(member, MemberEvent::Draining);
                }
            }
            Input::Tune(name, changes) => {
                self.with_job(&name, |job, context| job.tune(changes, context));
            }
            Input::Stop => self.stop(),
        }
        self.settle_drains();
        self.outbox.take()
    }

    /// Whether a run has begun whose workers have not all gone, and which has not failed.
    #[must_use]
    pub fn running(&self) -> bool {
        self.jobs.values().any(|job| job.run.is_some() && job.failure.is_none())
    }

    /// Whether a run was the last, and the servers have been notified of its end.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// How many members there are, once all workers of all jobs but this one have joined.
    #[must_use]
    pub fn expected_beside(&self, job: &str) -> usize {
        let others = self.jobs.iter().filter(|(name, _)| *name != job);
        let workers: usize = others.map(|(_, job)| job.world_size as usize).sum();
        workers + self.members.servers().count()
    }

    /// Whether there is no worker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// A session could not prove to hold the token.
    pub fn refused(&mut self) {
        self.tally.count(Happened::Refused);
    }

    /// The servers that are here, and their hosts.
    pub fn hosts_of_servers(&self) -> impl Iterator<Item = (MemberId, &str)> {
        self.members.servers().map(|(id, member)| (id, member.join.host.as_str()))
    }

    /// The state of one job, or of all.
    #[must_use]
    pub fn status(&self, now: Duration, only: Option<&str>) -> StatusReport {
        self.overview().status(now, only)
    }

    /// The members of the run of a job, or of the only one.
    ///
    /// # Errors
    /// A text if there is no such run, or none is named where there are several.
    pub fn run_members(&self, only: Option<&str>) -> Result<RunMembers, String> {
        self.overview().run_members(only)
    }

    /// Whether there is a job of this name, of whatever generation.
    #[must_use]
    pub fn has_job(&self, name: &str) -> bool {
        self.overview().has_job(name)
    }

    /// The job a request is about, and its changes since the start once the request is granted.
    ///
    /// # Errors
    /// Why it cannot be granted, in words.
    pub fn changed(&self, request: &TuneRequest) -> Result<(String, Texts), String> {
        self.overview().changed(request)
    }

    /// What a job has just been asked to change to.
    #[must_use]
    pub fn tune_report(&self, name: &str) -> TuneReport {
        self.overview().tune_report(name)
    }

    fn overview(&self) -> Overview<'_> {
        let Self { options, members, jobs, past, tally, .. } = self;
        Overview { options, members, jobs, past, tally }
    }

    /// Has a job act on what it sees of the cluster; nothing if there is no such job.
    fn with_job<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut Job, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Self { options, draw, members, jobs, tally, outbox, .. } = self;
        let job = jobs.get_mut(name)?;
        Some(act(job, &mut Context { name, members, options, draw: &mut **draw, tally, outbox }))
    }

    /// The same for the run of a worker, if it is at work; with the worker's rank.
    fn with_run(
        &mut self,
        id: MemberId,
        act: impl FnOnce(&mut Run, Rank, &Present, &mut Context<'_>),
    ) {
        let Some((name, rank)) = self.members.worker(id) else { return };
        self.with_job(&name, |job, context| {
            if let Some((run, workers)) = job.running_with() {
                act(run, rank, workers, context);
            }
        });
    }

    fn join(&mut self, now: Duration, id: MemberId, join: Join) {
        if self.members.contains(id) {
            return;
        }
        let admission = Admission {
            members: &self.members,
            jobs: &self.jobs,
            past: &self.past,
            tenants: &self.options.tenants,
            only_job: self.only_job.as_deref(),
            finished: self.finished,
        };
        if let Err(refusal) = admission.admit(&join) {
            info!(host = %join.host, reason = %refusal.message, "refused a member");
            self.tally.count(Happened::Refused);
            if refusal.kind == FatalKind::Mismatch {
                let why = |_: &Join| refusal.message.clone();
                self.with_job(&join.job, |job, c| job.fail(c, FatalKind::Mismatch, why));
            }
            self.outbox.push(id, Event::Refused(refusal));
            self.outbox.push(id, Event::Close);
            return;
        }
        let peer_timeout = join.peer_timeout.min(self.options.peer_timeout);
        let (role, name) = (join.role.clone(), join.job.clone());
        let silence = match role {
            Role::Worker { .. } => peer_timeout,
            Role::Server => join.server_timeout.min(self.options.server_timeout).min(peer_timeout),
        };
        self.outbox.push(id, Event::Welcome { peer_timeout, silence });
        info!(member = %id, host = %join.host, ?role, job = %name, "a member joined");
        let settings = join.settings.clone();
        if let Some(rejoin) = &join.rejoin {
            let runs = self.jobs.values_mut().filter_map(|job| job.run.as_mut());
            runs.for_each(|run| run.waits.member_back(rejoin.member));
        }
        let known = join.rejoin.as_ref().and_then(|rejoin| rejoin.run.clone());
        self.members.insert(now, id, join, silence);
        match role {
            Role::Worker { rank, world_size, .. } => {
                if self.options.serves != Serves::ManyJobs {
                    self.only_job = Some(base_name(&name).to_owned());
                }
                if let Some(run) = known {
                    return self.worker_returns(now, id, (&name, rank, world_size), run);
                }
                if !self.jobs.contains_key(&name) {
                    self.past.forget_job(&name);
                }
                let job = self.jobs.entry(name.clone());
                let job = job.or_insert_with(|| Job::new(now, world_size, settings));
                job.present.insert(rank, id);
                self.with_job(&name, |job, context| job.start_if_complete(now, context));
            }
            Role::Server => {
                for name in self.names() {
                    self.with_job(&name, |job, context| job.start_if_complete(now, context));
                    self.complete_return(now, &name);
                }
            }
        }
    }

    fn names(&self) -> Vec<String> {
        self.jobs.keys().cloned().collect()
    }

    /// A worker comes back to its run, which is known from now on if it was not.
    fn worker_returns(
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
            Job::returning(now, world_size, settings, &known)
        });
        let (lost, restored) = job.worker_back(rank, id, &known);
        if let Some((rank, id)) = lost {
            // It came back before the workers that know of its loss.
            let message = format!("the others have gone on without rank {rank}");
            self.dismiss(id, FatalKind::PeerLost, message.clone(), message);
        }
        match restored {
            Ok(()) => self.complete_return(now, name),
            Err(why) => {
                self.with_job(name, |job, c| job.fail(c, FatalKind::Protocol, |_| why.clone()));
            }
        }
    }

    fn complete_return(&mut self, now: Duration, name: &str) {
        let held = self.with_job(name, |job, context| job.complete_return(now, context));
        self.process_held_back(held);
    }

    /// The messages of a run that has come back count now.
    fn process_held_back(&mut self, held: impl IntoIterator<Item = Vec<(MemberId, Message)>>) {
        let now = self.members.last_tick();
        for (id, message) in held.into_iter().flatten() {
            self.message(now, id, message);
        }
    }

    /// A member's message.
    fn message(&mut self, now: Duration, id: MemberId, message: Message) {
        if !self.members.heard(now, id) {
            return;
        }
        let Some(message) = self.hold_back(id, message) else { return };
        match message {
            Message::Heartbeat(stats) => {
                if let Some(stats) = stats {
                    self.members.report(now, id, stats);
                    self.with_run(id, |run, rank, workers, context| {
                        run.compare_calls(rank, workers, context);
                    });
                }
                self.outbox.push(id, Event::HeartbeatSeen);
            }
            Message::Declare(specs) => match self.members.worker(id) {
                Some((name, rank)) => {
                    self.with_job(&name, |job, c| job.declare((id, rank), specs, c));
                    self.outbox.push(id, Event::Declared);
                }
                None => {
                    let what = "a declaration of a tensor by a server".to_owned();
                    self.dismiss(id, FatalKind::Protocol, what.clone(), what);
                }
            },
            Message::Refuse { name, message } => {
                self.with_run(id, |run, _, workers, c| run.refuse(&name, &message, workers, c));
            }
            Message::OutOfData => {
                self.with_run(id, |run, rank, workers, c| run.out_of_data(rank, workers, c));
            }
            Message::Began { tensor, round } => {
                self.with_run(id, |run, _, workers, c| run.began(id, (tensor, round), workers, c));
            }
            Message::JobReady(job, epoch) => self.server_ready(id, job, epoch),
            Message::Progress(epoch, payload) => {
                if let Some((name, rank)) = self.members.worker(id) {
                    self.with_job(&name, |job, c| job.progress(rank, epoch, payload, c));
                }
            }
            Message::Suspect { server, reason, plan } => {
                for name in self.names() {
                    self.with_job(&name, |job, context| {
                        job.suspect(id, server, &reason, plan, context);
                    });
                }
            }
            Message::Drain => {
                self.drain(id);
            }
            Message::Leave => {
                self.outbox.push(id, Event::LeaveSeen);
                self.outbox.push(id, Event::Close);
                self.remove(id, &Gone::Left);
            }
        }
    }

    /// Puts off what a worker of a returning run says.
    fn hold_back(&mut self, id: MemberId, message: Message) -> Option<Message> {
        let name = self.members.worker(id).map(|(name, _)| name);
        let Some(job) = name.and_then(|name| self.jobs.get_mut(&name)) else {
            return Some(message);
        };
        match job.hold_back(id, message) {
            Held::Not(message) => return Some(message),
            Held::Back => {}
            Held::Full => {
                let what = "too much was said before all had come back".to_owned();
                self.dismiss(id, FatalKind::Protocol, what.clone(), what);
            }
        }
        None
    }

    /// A server is ready for an epoch of a run.
    fn server_ready(&mut self, id: MemberId, run: JobId, epoch: Epoch) {
        let mut jobs = self.jobs.iter_mut();
        let found =
            jobs.find_map(|(name, job)| job.server_ready(id, run, epoch).then(|| name.clone()));
        if let Some(name) = found {
            self.with_job(&name, Job::complete);
        }
    }

    /// Takes a server out of all runs, because it asks for that or an operator does; whether it is
    /// one that was not drained before.
    fn drain(&mut self, id: MemberId) -> bool {
        let Some(host) = self.members.drain(id) else { return false };
        info!(member = %id, %host, "a server is drained");
        for name in self.names() {
            self.with_job(&name, |job, context| job.server_drains(&host, context));
        }
        true
    }

    /// Notifies drained servers that no run uses them any more.
    fn settle_drains(&mut self) {
        if !self.members.drains() {
            return;
        }
        let healthy = self.jobs.values().filter(|job| job.failure.is_none());
        let runs = healthy.filter_map(|job| job.run.as_ref());
        let used: BTreeSet<MemberId> = runs.flat_map(Run::informed).collect();
        self.outbox.notify_all(self.members.drained(&used), &MemberEvent::Drained);
    }

    /// Ends a member's session because of what it did or did not do.
    fn dismiss(&mut self, id: MemberId, kind: FatalKind, message: String, reason: String) {
        if self.members.contains(id) {
            self.outbox.notify(id, MemberEvent::Fatal { kind, message });
            self.outbox.push(id, Event::Close);
            self.remove(id, &Gone::Lost(reason));
        }
    }

    fn remove(&mut self, id: MemberId, how: &Gone) {
        let Some(member) = self.members.remove(id) else { return };
        let Join { job, role, host, .. } = &member.join;
        let worker = matches!(role, Role::Worker { .. });
        let who = match role {
            Role::Worker { rank, .. } => format!("rank {rank}"),
            Role::Server => "the server".to_owned(),
        };
        let status = member.status(self.members.last_tick(), id);
        for run in self.jobs.values_mut().filter_map(|job| job.run.as_mut()) {
            run.waits.member_gone(run.id, id, &status.stats.late);
        }
        self.past.member_gone(worker.then_some(job), status);
        match how {
            Gone::Left => info!(member = %id, "{who} on {host} has left"),
            Gone::Lost(reason) => {
                warn!(member = %id, "{who} on {host} was lost: {reason}");
                self.tally.count(match role {
                    Role::Worker { .. } => Happened::WorkerLost,
                    Role::Server => Happened::ServerLost,
                });
            }
        }
        match role {
            Role::Worker { rank, .. } => {
                self.with_job(job, |job, context| job.worker_gone(*rank, host, how, context));
                self.forget_if_over(job);
            }
            Role::Server => self.server_gone(id, host, how),
        }
    }

    /// The runs that used a server go on without it.
    fn server_gone(&mut self, id: MemberId, host: &str, how: &Gone) {
        let why = match how {
            Gone::Left => format!("the server on {host} left the cluster"),
            Gone::Lost(reason) => format!("the server on {host} was lost: {reason}"),
        };
        let runs = self.jobs.values_mut().filter_map(|job| job.run.as_mut());
        runs.for_each(|run| run.epochs.server_gone(id));
        for name in self.names() {
            self.with_job(&name, |job, context| job.server_gone(id, &why, context));
        }
    }

    fn tick(&mut self, now: Duration) {
        for (id, silence) in self.members.tick(now) {
            self.give_up(id, silence);
        }
        for name in self.names() {
            let held = self.with_job(&name, |job, context| job.tick(now, context));
            self.process_held_back(held);
            self.forget_if_over(&name);
        }
        self.settle_claims(now);
    }

    /// Ends a silent member's session. A server may come back: nothing of it was needed.
    fn give_up(&mut self, id: MemberId, silence: Duration) {
        let reason = format!("no heartbeat for {:.1} s", silence.as_secs_f64());
        let message = format!("the coordinator gave this process up: {reason}");
        let Some(member) = self.members.get(id) else { return };
        if member.join.role == Role::Server {
            self.outbox.notify(id, MemberEvent::GivenUp { message });
            self.outbox.push(id, Event::Close);
            self.remove(id, &Gone::Lost(reason));
        } else {
            self.dismiss(id, FatalKind::PeerLost, message, reason);
        }
    }

    /// Notifies servers that have come back of runs that are over, or of which they are no part.
    fn settle_claims(&mut self, now: Duration) {
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
            self.outbox.notify(server, MemberEvent::JobEnded { job });
        }
    }

    /// Drops a job whose last worker is gone.
    fn forget_if_over(&mut self, name: &str) {
        if !self.jobs.get(name).is_some_and(Job::is_over) {
            return;
        }
        let Some(job) = self.jobs.remove(name) else { return };
        let status = self.overview().job_status(self.members.last_tick(), name, &job);
        self.past.job_over(status);
        debug!(job = %name, "a job is over");
        match (&job.failure, &job.run) {
            (Some(_), _) => self.tally.count(Happened::JobFailed),
            (None, Some(_)) => self.tally.count(Happened::JobEnded),
            (None, None) => {}
        }
        if let Some(run) = &job.run {
            let servers: Vec<MemberId> = self.members.servers().map(|(id, _)| id).collect();
            let informed = run.informed().filter(|id| servers.contains(id));
            self.outbox.notify_all(informed, &MemberEvent::JobEnded { job: run.id });
        }
        self.last_end = match job.failure {
            Some(Failure { kind, message }) => Some(MemberEvent::Fatal { kind, message }),
            None => job.run.map(|_| MemberEvent::Finished),
        };
        if self.options.serves == Serves::OneRun && self.last_end.is_some() {
            self.finish();
        }
    }

    /// The coordinator is about to end: the servers of a single job are notified how that ended.
    fn stop(&mut self) {
        if self.options.serves == Serves::OneJob && self.jobs.is_empty() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        let last = self.last_end.take().unwrap_or(MemberEvent::Finished);
        let servers: Vec<MemberId> = self.members.servers().map(|(id, _)| id).collect();
        self.outbox.notify_all(servers, &last);
    }
}
