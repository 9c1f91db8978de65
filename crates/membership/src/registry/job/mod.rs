//! One job: its workers before the start, its run afterwards.
//!
//! A job decides by itself when its run starts, changes its plan, comes back or fails; the members
//! and the jobs that there are belong to the registry.

mod context;
pub(crate) mod epochs;
pub(crate) mod returning;
pub(crate) mod run;
pub(crate) mod stalls;
mod waiting;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_config::{Texts, in_force, readable};
use sumpter_types::{Epoch, JobId, MemberId, Rank, TensorSpec};
use tracing::{info, warn};

use crate::event::{FatalKind, MemberEvent};
use crate::registry::io::{Join, Message};
use crate::registry::members::Members;
use crate::registry::tally::Happened;
use crate::registry::words::{list, seconds};
use crate::rejoin::KnownRun;
use crate::view::{ClusterView, ServerView};
pub(crate) use context::Context;
use epochs::{EpochChange, Phase};
use run::{Due, Present, Resumption, Run, drained};
use stalls::{Stall, longest};
use waiting::{NOTICE_EVERY, missing, missing_sentence};

/// A job, from its first worker's arrival until its last worker is gone.
pub(crate) struct Job {
    pub world_size: u32,
    /// What all present workers agree on.
    pub settings: BTreeMap<String, String>,
    /// When the first worker joined.
    pub since: Duration,
    /// When its workers are next notified of what is missing.
    next_notice: Duration,
    /// The workers that are here.
    pub present: Present,
    /// Set when everyone is there.
    pub run: Option<Run>,
    /// Set when the job cannot start or its run cannot go on. Its workers are notified once, and
    /// nothing they say afterwards counts.
    pub failure: Option<Failure>,
}

/// Why a job failed.
pub(crate) struct Failure {
    pub kind: FatalKind,
    pub message: String,
}

/// The stages of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Members are missing.
    Waiting,
    /// The servers are getting ready.
    Starting,
    Running,
    /// Members come back from a coordinator that was lost.
    Returning,
    Failed,
}

/// What becomes of a worker's message.
pub(crate) enum Held {
    /// It counts now.
    Not(Message),
    /// It is held back until the run has come back.
    Back,
    /// There is no room for it.
    Full,
}

/// How a member went.
#[derive(Clone, Debug)]
pub(crate) enum Gone {
    /// It said so.
    Left,
    /// It died, and this is how it was noticed.
    Lost(String),
}

/// Where a job stands.
impl Job {
    /// A job whose first worker arrives now.
    pub fn new(now: Duration, world_size: u32, settings: BTreeMap<String, String>) -> Self {
        Self {
            world_size,
            settings,
            since: now,
            next_notice: now + NOTICE_EVERY,
            present: BTreeMap::new(),
            run: None,
            failure: None,
        }
    }

    /// A job whose run has outlived its coordinator, and whose first worker comes back now.
    pub fn returning(
        now: Duration,
        world_size: u32,
        settings: BTreeMap<String, String>,
        known: &KnownRun,
    ) -> Self {
        let run = Run::new(known.view.clone(), EpochChange::returning(now));
        Self { run: Some(run), ..Self::new(now, world_size, settings) }
    }

    /// The settings that may change while the job runs, as they are now.
    pub fn changeable(&self) -> Texts {
        let unchanged = Texts::new();
        let changes = self.run.as_ref().map_or(&unchanged, |run| &run.view.changes);
        in_force(&self.settings, changes)
    }

    /// Where the job stands.
    pub fn stage(&self) -> Stage {
        match &self.run {
            _ if self.failure.is_some() => Stage::Failed,
            None => Stage::Waiting,
            Some(run) => match run.epochs.phase() {
                Phase::Starting => Stage::Starting,
                Phase::Returning => Stage::Returning,
                Phase::Steady | Phase::Changing => Stage::Running,
            },
        }
    }

    /// The stage's name in a status report.
    pub fn state(&self) -> &'static str {
        let changing = |run: &Run| run.epochs.phase() == Phase::Changing;
        match self.stage() {
            Stage::Waiting => "waiting",
            Stage::Starting => "starting",
            Stage::Running if self.run.as_ref().is_some_and(changing) => "changing",
            Stage::Running => "running",
            Stage::Returning => "returning",
            Stage::Failed => "failed",
        }
    }

    /// Whether the workers' settings leave the reduction to servers alone.
    fn needs_a_server(&self) -> bool {
        self.settings.get("architecture").is_some_and(|word| word == "ps")
    }

    /// The ranks that have not joined, before the start, or have not come back.
    pub fn missing_ranks(&self) -> Vec<u32> {
        match &self.run {
            Some(run) => run.awaited().map(|rank| rank.0).collect(),
            None => {
                (0..self.world_size).filter(|r| !self.present.contains_key(&Rank(*r))).collect()
            }
        }
    }

    /// What a waiting job lacks, one entry each.
    pub fn missing(&self, members: &Members) -> Vec<String> {
        missing(self, members)
    }

    /// Whether workers that are not here may come back.
    fn awaits_others(&self) -> bool {
        self.failure.is_none()
            && self.run.as_ref().is_some_and(|run| run.awaited().next().is_some())
    }

    /// Whether its last worker is gone for good.
    pub fn is_over(&self) -> bool {
        self.present.is_empty() && !self.awaits_others()
    }

    /// Whether its workers may be at work.
    pub fn is_running(&self) -> bool {
        matches!(self.stage(), Stage::Running)
    }

    /// The run, if declarations and signs of it count.
    fn running(&mut self) -> Option<&mut Run> {
        match self.stage() {
            Stage::Running => self.run.as_mut(),
            _ => None,
        }
    }

    /// The same with the workers that are connected.
    pub fn running_with(&mut self) -> Option<(&mut Run, &Present)> {
        match self.stage() {
            Stage::Running => self.run.as_mut().map(|run| (run, &self.present)),
            _ => None,
        }
    }

    /// The fewest workers with which the run goes on when others die; `None` if it ends.
    fn least_survivors(&self) -> Option<usize> {
        let setting = |name| self.settings.get(name).map(String::as_str);
        let least: usize = setting("min_workers")?.parse().ok()?;
        (least > 0 && setting("redo") == Some("true")).then_some(least)
    }

    /// Whether the run goes on without a worker.
    fn may_lose(&self, rank: Rank) -> bool {
        let survivors = self.present.keys().filter(|other| **other != rank).count();
        self.least_survivors().is_some_and(|least| survivors >= least)
    }

    /// The servers that the run should use.
    fn wanted(&self, members: &Members) -> BTreeSet<MemberId> {
        let wanted = |run: &Run| run.wanted(members, self.needs_a_server());
        self.run.as_ref().map(wanted).unwrap_or_default()
    }

    /// The operation that has waited beyond its limit.
    pub fn stall(&self, now: Duration, members: &Members) -> Option<Stall> {
        let run = self.run.as_ref().filter(|_| self.is_running())?;
        let reports = members.reports(now, &self.present);
        longest(&reports, run.agreement.table(), members.stall_limits(&self.present))
    }
}

/// Its life: from the first worker to the last.
impl Job {
    /// Starts the run if all members are here: the view is fixed and the servers are notified.
    pub fn start_if_complete(&mut self, now: Duration, context: &mut Context<'_>) {
        let Context { name, members, .. } = *context;
        // First what costs nothing: each of thousands of members that join leads here.
        if self.present.len() < self.world_size as usize || self.stage() != Stage::Waiting {
            return;
        }
        let servers: BTreeSet<MemberId> = members.lasting_servers().collect();
        if servers.len() < members.expected_servers(&self.present) as usize {
            return;
        }
        let view = self.view(&servers, context);
        if let Err(message) = view.check_device_groups() {
            return self.fail(context, FatalKind::Start, |_| message.clone());
        }
        info!(job = %name, workers = view.workers.len(), servers = servers.len(), "a run starts");
        self.run = Some(Run::new(view.clone(), EpochChange::starting(now, servers.clone())));
        context.outbox.notify_all(servers, &MemberEvent::JobStarted(view));
        self.complete(context);
    }

    /// Who takes part in a run that starts now.
    fn view(&self, servers: &BTreeSet<MemberId>, context: &mut Context<'_>) -> ClusterView {
        let Context { name, members, options, .. } = *context;
        let holds_us =
            |id: &MemberId| members.get(*id).is_some_and(|m| m.join.process == options.process);
        let coordinator_rank =
            self.present.iter().find(|(_, id)| holds_us(id)).map(|(rank, _)| *rank);
        ClusterView {
            job: JobId::drawn((context.draw)()),
            name: name.to_owned(),
            epoch: Epoch(1),
            workers: members.worker_views(&self.present),
            servers: members.server_views(servers),
            speeds: members.speeds(&self.present, servers.iter()),
            coordinator_rank,
            ..ClusterView::default()
        }
    }

    /// Time has passed. Returns the messages that were held back, if the run has come back now.
    pub fn tick(&mut self, now: Duration, context: &mut Context<'_>) -> Vec<(MemberId, Message)> {
        let Context { members, options, .. } = *context;
        let waited = now.saturating_sub(self.since);
        match self.stage() {
            Stage::Waiting if waited >= members.start_timeout(&self.present) => {
                let what = missing_sentence(self, members);
                self.fail(context, FatalKind::Start, |join| what(&join.coordinator));
            }
            Stage::Waiting if now >= self.next_notice => {
                let (missing, seconds) = (self.missing(members), waited.as_secs_f64());
                self.notify(context, &MemberEvent::Waiting { missing, seconds });
                self.next_notice = now + NOTICE_EVERY;
            }
            Stage::Starting => {
                let Some(run) = &self.run else { return Vec::new() };
                let limit = options.start_timeout;
                if now.saturating_sub(run.epochs.since()) >= limit {
                    let hosts = list(run.epochs.preparing().iter().map(|id| members.host(*id)));
                    let limit = seconds(limit);
                    self.fail(context, FatalKind::Start, |_| {
                        format!("the servers on {hosts} did not get ready within {limit}")
                    });
                }
            }
            Stage::Running => {
                self.tick_run(now, context);
                self.watch(now, context);
            }
            Stage::Returning => return self.tick_return(now, context),
            Stage::Waiting | Stage::Failed => {}
        }
        Vec::new()
    }

    /// A worker is gone: notifies the others, or goes on without it.
    pub fn worker_gone(&mut self, rank: Rank, host: &str, how: &Gone, context: &mut Context<'_>) {
        if let Gone::Lost(reason) = how
            && self.survives(rank, host, reason, context)
        {
            return;
        }
        if let Some(event) = self.remove(rank, host, how) {
            self.notify(context, &event);
        }
        if !self.present.is_empty() && !self.awaits_others() {
            // It may have been the last that a change waited for.
            self.complete(context);
        }
    }

    /// Lets the run go on without a worker that died, if it may; whether it does.
    fn survives(
        &mut self,
        rank: Rank,
        host: &str,
        reason: &str,
        context: &mut Context<'_>,
    ) -> bool {
        if self.stage() != Stage::Running || !self.may_lose(rank) {
            return false;
        }
        self.present.remove(&rank);
        let Some(run) = self.running() else { return false };
        run.view.gone.insert(rank);
        run.epochs.worker_gone(rank);
        let why = format!("rank {rank} on {host} was lost: {reason}");
        let wanted = self.wanted(context.members);
        if wanted.is_empty() && self.needs_a_server() {
            // The run ends for want of a server.
            self.replan(context, &why);
            return true;
        }
        self.begin_epoch(context, &wanted, &why, &why);
        let Some(run) = self.running() else { return true };
        let living = run.view.living().count();
        if let Some(event) = run.agreement.lose(rank, living) {
            self.notify(context, &event);
        }
        true
    }

    /// Takes a worker that is gone out of the job: the event for the others.
    fn remove(&mut self, rank: Rank, host: &str, how: &Gone) -> Option<MemberEvent> {
        self.present.remove(&rank);
        let stage = self.stage();
        if matches!(stage, Stage::Waiting | Stage::Failed) {
            return None;
        }
        let reason = match (how, stage) {
            // It may come back once more.
            (Gone::Lost(_), Stage::Returning) => {
                self.run.as_mut()?.epochs.return_state_mut()?.expect_again(rank);
                return None;
            }
            (Gone::Left, Stage::Running | Stage::Returning) => {
                let run = self.run.as_mut()?;
                run.left.insert(rank);
                run.epochs.worker_gone(rank);
                return Some(MemberEvent::WorkerLeft { rank });
            }
            (Gone::Left, _) => "left before the run had started".to_owned(),
            (Gone::Lost(reason), _) => reason.clone(),
        };
        self.failure = Some(Failure {
            kind: FatalKind::PeerLost,
            message: format!("rank {rank} on {host} was lost: {reason}"),
        });
        Some(MemberEvent::WorkerLost { rank, host: host.to_owned(), reason })
    }

    /// Marks the job as failed and notifies its workers, each in its own words.
    pub fn fail(
        &mut self,
        context: &mut Context<'_>,
        kind: FatalKind,
        message: impl Fn(&Join) -> String,
    ) {
        if self.failure.is_some() {
            return;
        }
        for id in self.present.values() {
            let Some(member) = context.members.get(*id) else { continue };
            let message = message(&member.join);
            if self.failure.is_none() {
                warn!(job = %context.name, "{message}");
                self.failure = Some(Failure { kind, message: message.clone() });
            }
            context.outbox.notify(*id, MemberEvent::Fatal { kind, message });
        }
    }

    /// A worker declares tensors.
    pub fn declare(
        &mut self,
        (id, rank): (MemberId, Rank),
        specs: Vec<TensorSpec>,
        context: &mut Context<'_>,
    ) {
        let (world_size, has_failed) = (self.world_size, self.failure.is_some());
        match self.running_with() {
            Some((run, workers)) => run.declare((id, rank), specs, world_size, workers, context),
            None if has_failed => {}
            None => {
                for TensorSpec { name, .. } in specs {
                    let message = format!("tensor '{name}' was declared before the start");
                    context.outbox.notify(id, MemberEvent::TensorError { name, message });
                }
            }
        }
    }

    /// Notifies the workers.
    fn notify(&self, context: &mut Context<'_>, event: &MemberEvent) {
        context.outbox.notify_all(self.present.values().copied(), event);
    }

    /// Announces a stall, where that is due, or ends the job.
    fn watch(&mut self, now: Duration, context: &mut Context<'_>) {
        let stall = self.stall(now, context.members);
        let Some((run, workers)) = self.running_with() else { return };
        if let Err(message) = run.watch(now, stall, workers, context) {
            self.fail(context, FatalKind::PeerLost, |_| message.clone());
        }
    }
}

/// From one plan to the next.
impl Job {
    /// Whether the run waits for this server in this epoch; the server is ready.
    pub fn server_ready(&mut self, server: MemberId, of: JobId, epoch: Epoch) -> bool {
        let run = self.run.as_mut().filter(|run| run.id == of && run.view.epoch == epoch);
        run.is_some_and(|run| run.epochs.ready(server))
    }

    /// A worker has stopped for an epoch, and says what it has.
    pub fn progress(
        &mut self,
        rank: Rank,
        epoch: Epoch,
        payload: Vec<u8>,
        context: &mut Context<'_>,
    ) {
        let Some(run) = self.running().filter(|run| run.view.epoch == epoch) else { return };
        if run.epochs.progress(rank, payload) {
            self.complete(context);
        }
    }

    /// A member of the run cannot reach a server, or is one that cannot reach a worker: the run
    /// goes on without that server. A member that speaks of an older plan may only have met a
    /// server that is in a newer one already.
    pub fn suspect(
        &mut self,
        by: MemberId,
        server: MemberId,
        reason: &str,
        plan: (JobId, Epoch),
        context: &mut Context<'_>,
    ) {
        let (on, host) = (context.members.host(by), context.members.host(server));
        let rank = self.present.iter().find(|(_, id)| **id == by).map(|(rank, _)| *rank);
        let Some(run) = self.running() else { return };
        let takes_part = rank.is_some() || run.uses(by);
        if (run.view.job, run.view.epoch) != plan || !takes_part || !run.uses(server) {
            return;
        }
        run.epochs.drop_server(server);
        let why = match rank {
            Some(rank) => {
                format!("rank {rank} on {on} cannot reach the server on {host}: {reason}")
            }
            None if by == server => format!("the server on {on} cannot reach {reason}"),
            None => format!("the server on {on} cannot reach the server on {host}: {reason}"),
        };
        warn!(job = %context.name, "{why}");
        self.replan(context, &why);
    }

    /// A server is gone: a run that used it goes on without it.
    pub fn server_gone(&mut self, server: MemberId, why: &str, context: &mut Context<'_>) {
        if self.run.as_ref().is_some_and(|run| run.uses(server)) {
            self.replan(context, why);
        }
    }

    /// A server on this host is to be in no plan any more.
    pub fn server_drains(&mut self, host: &str, context: &mut Context<'_>) {
        // A run that starts waits for it all the same.
        if self.stage() == Stage::Running {
            self.replan(context, &drained(host));
        }
    }

    /// Lets a running job go on with other settings.
    pub fn tune(&mut self, changes: Texts, context: &mut Context<'_>) {
        let before = self.changeable();
        let Some(run) = self.running().filter(|run| run.view.changes != changes) else { return };
        run.view.changes = changes;
        let now = self.changeable();
        let new = now.iter().filter(|(name, value)| before.get(*name) != Some(value));
        let words = new.map(|(name, value)| format!("{name}={}", readable(value)));
        let why = format!("settings change to {}", list(words));
        let wanted = self.wanted(context.members);
        self.begin_epoch(context, &wanted, &why, "");
    }

    /// Gives the run a new plan if the servers it should use are others than those it uses.
    fn replan(&mut self, context: &mut Context<'_>, why: &str) {
        let (stage, Some(run)) = (self.stage(), &self.run) else { return };
        let (present, wanted) = (run.servers(), self.wanted(context.members));
        if wanted == present || matches!(stage, Stage::Failed | Stage::Returning) {
            return;
        }
        if stage == Stage::Starting
            && wanted.len() < context.members.expected_servers(&self.present) as usize
        {
            return self
                .fail(context, FatalKind::Start, |_| format!("the run could not start: {why}"));
        }
        if wanted.is_empty() && self.needs_a_server() {
            return self.fail(context, FatalKind::PeerLost, |_| {
                format!("{why}; with architecture=ps no other can take its place")
            });
        }
        self.begin_epoch(context, &wanted, why, why);
    }

    /// Begins the next epoch of the run, under these servers; the workers get a reason if they are
    /// to log it.
    fn begin_epoch(
        &mut self,
        context: &mut Context<'_>,
        wanted: &BTreeSet<MemberId>,
        why: &str,
        logged: &str,
    ) {
        let is_running = self.is_running();
        let Some(run) = &mut self.run else { return };
        run.begin_epoch((context.members, &self.present), wanted, why);
        let view = run.view.clone();
        if is_running {
            context.tally.count(Happened::PlanChanged);
            let (epoch, reason) = (view.epoch, logged.to_owned());
            self.notify(context, &MemberEvent::Suspend { epoch, reason });
        }
        context.outbox.notify_all(wanted.iter().copied(), &MemberEvent::JobStarted(view));
        self.complete(context);
    }

    /// Lets the workers go on, if all have stopped and all servers are ready.
    pub fn complete(&mut self, context: &mut Context<'_>) {
        let Some(run) = self.run.as_mut().filter(|_| self.failure.is_none()) else { return };
        let Some(completed) = run.epochs.complete(self.present.keys()) else { return };
        let view = run.view.clone();
        let event = match completed.progress {
            None => MemberEvent::Started(view),
            Some(progress) => MemberEvent::Resume { view, progress },
        };
        let (ended, next) = (MemberEvent::JobEnded { job: run.id }, run.put_off(context.members));
        self.notify(context, &event);
        context.outbox.notify_all(completed.retired, &ended);
        if let Some(why) = next {
            self.replan(context, &why);
        }
    }

    /// Lets the run go over to servers that have come, and gives up on those who keep a change from
    /// being complete.
    fn tick_run(&mut self, now: Duration, context: &mut Context<'_>) {
        let (of, limit) = ((context.members, &self.present), context.options.start_timeout);
        let needs_a_server = self.needs_a_server();
        let Some(run) = &mut self.run else { return };
        match run.due(now, of, needs_a_server, limit) {
            None => {}
            Some(Due::Plan(why)) => self.replan(context, &why),
            Some(Due::Renewal(why)) => self.renew(context, &why),
            Some(Due::Failure(why)) => self.fail(context, FatalKind::PeerLost, |_| why.clone()),
        }
    }
}

/// Back from a coordinator that was lost. If all workers agree on the epoch, the run simply goes
/// on. If the coordinator was lost in the middle of a change, some are behind, and an epoch newer
/// than any that is known begins as an ordinary change.
impl Job {
    /// A worker comes back to its run. Returns a worker that the others have gone on without,
    /// though it is here, and how what this one knows contradicts the others.
    pub fn worker_back(
        &mut self,
        rank: Rank,
        id: MemberId,
        known: &KnownRun,
    ) -> (Option<(Rank, MemberId)>, Result<(), String>) {
        self.present.insert(rank, id);
        let Some(run) = &mut self.run else { return (None, Ok(())) };
        let restored = run.worker_back(rank, known, self.world_size);
        let lost = self.present.iter().find(|(rank, _)| run.view.gone.contains(rank));
        (lost.map(|(rank, id)| (*rank, *id)), restored)
    }

    /// Puts off what a worker of a returning run says, but for signs of life and its leave.
    pub fn hold_back(&mut self, id: MemberId, message: Message) -> Held {
        let returning = self.run.as_mut().and_then(|run| run.epochs.return_state_mut());
        match returning {
            Some(returning) if !matches!(message, Message::Heartbeat(_) | Message::Leave) => {
                if returning.hold_back(id, message) {
                    Held::Back
                } else {
                    Held::Full
                }
            }
            _ => Held::Not(message),
        }
    }

    /// Goes on once everyone is back. Returns the messages that were held back.
    pub fn complete_return(
        &mut self,
        now: Duration,
        context: &mut Context<'_>,
    ) -> Vec<(MemberId, Message)> {
        let limit = context.options.server_timeout;
        if self.failure.is_some() {
            return Vec::new();
        }
        let Some(run) = &mut self.run else { return Vec::new() };
        let Some(complete) = run.all_back(now) else { return Vec::new() };
        let (id, mut missing) = (run.id, run.view.servers.clone());
        missing.retain(|server| !context.members.serves(server, id));
        if missing.is_empty() || now.saturating_sub(complete) >= limit {
            return self.go_on(context, &missing);
        }
        Vec::new()
    }

    fn go_on(
        &mut self,
        context: &mut Context<'_>,
        missing: &[ServerView],
    ) -> Vec<(MemberId, Message)> {
        let Some(run) = &mut self.run else { return Vec::new() };
        let Some(resumption) = run.end_return(context.members, missing) else { return Vec::new() };
        let Resumption { returning, why, renewed } = resumption;
        for (id, event) in run.missed(&returning, &self.present) {
            context.outbox.notify(id, event);
        }
        match renewed {
            Some(newest) => {
                // The next epoch is newer than any that a member knows.
                if let Some(run) = &mut self.run {
                    run.view.epoch = newest;
                }
                self.renew(context, &why);
            }
            None => self.replan(context, &why),
        }
        // Of those that have not come back, one may have been the last with data.
        if let Some(run) = &mut self.run {
            let living = run.view.living().count();
            if let Some(event) = run.agreement.lose_all(&run.view.gone, living) {
                self.notify(context, &event);
            }
        }
        returning.into_held_back()
    }

    /// Begins the next epoch, whether or not the servers are others.
    fn renew(&mut self, context: &mut Context<'_>, why: &str) {
        let wanted = self.wanted(context.members);
        if wanted.is_empty() && self.needs_a_server() {
            // The error says what that means.
            return self.replan(context, why);
        }
        self.begin_epoch(context, &wanted, why, why);
    }

    /// Gives up on workers that do not come back.
    fn tick_return(
        &mut self,
        now: Duration,
        context: &mut Context<'_>,
    ) -> Vec<(MemberId, Message)> {
        let held = self.complete_return(now, context);
        let limit = context.members.start_timeout(&self.present);
        let limit = limit.max(context.options.start_timeout);
        let Some(run) = &self.run else { return held };
        let Some(rank) = run.awaited().next() else { return held };
        if now.saturating_sub(self.since) < limit {
            return held;
        }
        let host = run.view.workers[rank.0 as usize].host.clone();
        let reason = format!("it did not come back to the coordinator within {}", seconds(limit));
        warn!(job = %context.name, %rank, %host, "{reason}");
        let survives = self.may_lose(rank);
        let Some(run) = &mut self.run else { return held };
        if survives {
            run.view.gone.insert(rank);
            if let Some(returning) = run.epochs.return_state_mut() {
                returning.lose(format!("rank {rank} on {host} was lost: {reason}"));
            }
            return self.complete_return(now, context);
        }
        // From here on it is a run that has lost a worker.
        run.epochs.end_return(now);
        self.worker_gone(rank, &host, &Gone::Lost(reason), context);
        held
    }
}
