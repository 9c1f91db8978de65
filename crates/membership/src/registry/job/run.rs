//! A run: what its plan is, which servers the next one has, and what its workers agree on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank, TensorId, TensorSpec};
use tracing::{info, warn};

use super::context::Context;
use super::epochs::{EpochChange, Overdue, Phase, QUIET};
use super::returning::{Missed, Returning};
use super::stalls::{Line, Stall, StallWatch, Verdict};
use super::waits::Waits;
use crate::event::MemberEvent;
use crate::registry::agreement::calls::Unmatched;
use crate::registry::agreement::{Agreement, Notice};
use crate::registry::members::Members;
use crate::registry::words::{list, seconds};
use crate::rejoin::KnownRun;
use crate::view::{ClusterView, ServerView};

/// The number of a server that is not connected.
const ABSENT: MemberId = MemberId(0);

/// The workers of a run that are connected.
pub(crate) type Present = BTreeMap<Rank, MemberId>;

/// What a run adds to a job.
pub(crate) struct Run {
    pub id: JobId,
    /// The newest plan.
    pub view: ClusterView,
    pub epochs: EpochChange,
    /// Workers that have finished.
    pub left: BTreeSet<Rank>,
    pub agreement: Agreement,
    pub stalls: StallWatch,
    pub waits: Waits,
}

/// What has become due while a run goes on.
pub(crate) enum Due {
    /// A plan with other servers, for this reason.
    Plan(String),
    /// A plan with what is known now, for this reason.
    Renewal(String),
    /// The end of the job, for this reason.
    Failure(String),
}

/// How a run goes on that has outlived its coordinator.
pub(crate) struct Resumption {
    pub returning: Box<Returning>,
    pub why: String,
    /// The newest epoch that a member knows, if an epoch after it must begin.
    pub renewed: Option<Epoch>,
}

impl Run {
    /// A run that begins, or comes back, under this plan.
    pub fn new(view: ClusterView, epochs: EpochChange) -> Self {
        let (agreement, stalls) = (Agreement::default(), StallWatch::default());
        let (left, waits) = (BTreeSet::new(), Waits::default());
        Self { id: view.job, view, epochs, left, agreement, stalls, waits }
    }

    /// Whether the newest plan has the server.
    pub fn uses(&self, server: MemberId) -> bool {
        self.view.servers.iter().any(|s| s.member == server)
    }

    /// The servers of the newest plan.
    pub fn servers(&self) -> BTreeSet<MemberId> {
        self.view.servers.iter().map(|server| server.member).collect()
    }

    /// The servers that know of the run.
    pub fn informed(&self) -> impl Iterator<Item = MemberId> + '_ {
        let planned = self.view.servers.iter().map(|server| server.member);
        planned.chain(self.epochs.retired().iter().copied())
    }

    /// The workers that have yet to come back.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> + '_ {
        let back = self.epochs.return_state();
        let awaited = move |rank: &Rank| {
            back.is_some_and(|back| !back.has(*rank)) && !self.left.contains(rank)
        };
        self.view.living().map(|worker| worker.rank).filter(awaited)
    }

    /// The servers the run should use: all that are here to stay. A run that cannot do without
    /// one keeps those that would leave rather than none.
    pub fn wanted(&self, members: &Members, needs_a_server: bool) -> BTreeSet<MemberId> {
        let reachable = |id: &MemberId| self.epochs.may_use(*id);
        let wanted: BTreeSet<MemberId> = members.lasting_servers().filter(reachable).collect();
        if wanted.is_empty() && needs_a_server {
            let all = members.servers().map(|(id, _)| id);
            let knows = |id: &MemberId| self.uses(*id) || self.epochs.retired().contains(id);
            return all.filter(|id| knows(id) && reachable(id)).collect();
        }
        wanted
    }

    /// Begins the next epoch, under these servers; if its workers are at work, they stop.
    pub fn begin_epoch(
        &mut self,
        (members, workers): (&Members, &Present),
        wanted: &BTreeSet<MemberId>,
        why: &str,
    ) {
        let present = self.servers();
        let retired = present.difference(wanted).filter(|id| members.contains(**id));
        let retired: Vec<MemberId> = retired.copied().collect();
        let is_starting = self.epochs.phase() == Phase::Starting;
        self.view.epoch = Epoch(self.view.epoch.0 + 1);
        self.view.servers = members.server_views(wanted);
        let before = self.view.speeds.link;
        self.view.speeds = members.speeds(workers, wanted.iter());
        if self.view.speeds.link == 0 {
            // A worker that has come back has not sent enough yet.
            self.view.speeds.link = before;
        }
        self.epochs.begin(members.last_tick(), wanted, retired);
        let (epoch, count) = (self.view.epoch, wanted.len());
        info!(job = %self.view.name, %epoch, servers = count, "a new plan: {why}");
        if !is_starting {
            self.epochs.suspend(why);
        }
    }

    /// Why another plan is due right after a change: a server drained meanwhile.
    pub fn put_off(&self, members: &Members) -> Option<String> {
        let draining =
            |server: &&ServerView| members.get(server.member).is_some_and(|member| member.draining);
        let server = self.view.servers.iter().find(draining)?;
        Some(drained(&server.host))
    }

    /// What is due now: servers have come, or members keep a change from being complete.
    pub fn due(
        &mut self,
        now: Duration,
        (members, present): (&Members, &Present),
        needs_a_server: bool,
        limit: Duration,
    ) -> Option<Due> {
        let wanted = self.wanted(members, needs_a_server);
        let fresh: Vec<_> = wanted.iter().filter(|id| !self.uses(**id)).collect();
        let quiet = |id: &&MemberId| {
            members.get(**id).is_some_and(|m| now.saturating_sub(m.joined) >= QUIET)
        };
        if !fresh.is_empty() && fresh.iter().all(quiet) {
            let hosts = list(fresh.iter().map(|id| members.host(**id)));
            return Some(Due::Plan(match fresh.len() {
                1 => format!("a server joined on {hosts}"),
                _ => format!("servers joined on {hosts}"),
            }));
        }
        if let Some(why) = self.measured_link(members, present) {
            return Some(Due::Renewal(why));
        }
        let overdue = self.epochs.overdue(now, limit, present.keys())?;
        let limit = seconds(limit);
        Some(match overdue {
            Overdue::Ranks(ranks) => Due::Failure(format!(
                "rank {} did not stop for a change of plan within {limit}",
                list(ranks)
            )),
            Overdue::Servers(servers) => {
                let hosts = list(servers.iter().map(|id| members.host(*id)));
                Due::Plan(format!("the server on {hosts} did not get ready within {limit}"))
            }
        })
    }

    /// What the links carry, in words, if that is known now for the first time, and workers that
    /// wait for it know of no link's speed.
    fn measured_link(&self, members: &Members, present: &Present) -> Option<String> {
        let is_due = self.epochs.phase() == Phase::Steady
            && self.view.speeds.link == 0
            && members.await_link(present)
            && self.view.lowest_known_gbps().is_none();
        let link = members.measured_link(present).filter(|_| is_due)?;
        let gbps = link as f64 * 8e-9;
        Some(format!("the slowest link carries {gbps:.3} Gb/s, as measured"))
    }

    /// A worker comes back with what it knows of the run. The text says how that contradicts what
    /// others know.
    pub fn worker_back(
        &mut self,
        rank: Rank,
        known: &KnownRun,
        world_size: u32,
    ) -> Result<(), String> {
        if known.view.epoch > self.view.epoch {
            self.view = known.view.clone();
        }
        self.left.extend(&known.left);
        let restored = self.agreement.restore(&known.table, world_size);
        if let Some(returning) = self.epochs.return_state_mut() {
            returning.back(rank, known);
        }
        restored
    }

    /// When all workers had come back, if they have and the run still returns.
    pub fn all_back(&mut self, now: Duration) -> Option<Duration> {
        let awaits = self.awaited().next().is_some();
        let returning = self.epochs.return_state_mut().filter(|_| !awaits)?;
        Some(returning.all_back(now))
    }

    /// Ends the return of the run, without the servers that are missing.
    pub fn end_return(&mut self, members: &Members, missing: &[ServerView]) -> Option<Resumption> {
        let returning = self.epochs.end_return(members.last_tick())?;
        self.agreement.settle(returning.refused(), returning.idle());
        for server in &mut self.view.servers {
            // Its number may be another server's by now.
            if missing.iter().any(|gone| gone.member == server.member) {
                server.member = ABSENT;
            }
        }
        let mut heard = returning.epochs();
        heard.extend(members.claimed_epochs(self.id));
        let newest = heard.last().copied().unwrap_or(self.view.epoch);
        let hosts = list(missing.iter().map(|server| &server.host));
        let why = match (returning.lost(), missing.is_empty()) {
            (Some(lost), _) => lost.to_owned(),
            (None, true) => "the coordinator was lost during a change of servers".to_owned(),
            (None, false) => {
                format!("the server on {hosts} did not come back to the coordinator")
            }
        };
        info!(job = %self.view.name, %newest, "the run has come back");
        let is_behind = returning.suspended() || returning.lost().is_some() || heard.len() > 1;
        Some(Resumption { returning, why, renewed: is_behind.then_some(newest) })
    }

    /// What the workers have missed while they had no coordinator, each in order.
    pub fn missed(&self, returning: &Returning, present: &Present) -> Vec<(MemberId, MemberEvent)> {
        let mut events = Vec::new();
        for Missed { rank, tensors, all_out_of_data } in returning.missed() {
            let Some(member) = present.get(&rank) else { continue };
            let tensors = self.agreement.table().since(tensors);
            let tensors = tensors.map(|(first, specs)| MemberEvent::Tensors { first, specs });
            let refused = returning.refused().iter().map(|(name, message)| {
                MemberEvent::TensorError { name: name.clone(), message: message.clone() }
            });
            let left = self.left.iter().map(|rank| MemberEvent::WorkerLeft { rank: *rank });
            // A worker that gets it once more repeats what is under way.
            let idle = returning.idle().ranks.iter();
            let idle = idle.map(|rank| MemberEvent::OutOfData { rank: *rank });
            let all = tensors.chain(refused).chain(left).chain(all_out_of_data).chain(idle);
            events.extend(all.map(|event| (*member, event)));
        }
        events
    }
}

/// What its workers must agree on.
impl Run {
    /// A worker declares tensors.
    pub fn declare(
        &mut self,
        (id, rank): (MemberId, Rank),
        specs: Vec<TensorSpec>,
        world_size: u32,
        workers: &Present,
        context: &mut Context<'_>,
    ) {
        for notice in self.agreement.declare(rank, specs, world_size) {
            match notice {
                Notice::Sender(event) => context.outbox.notify(id, event),
                Notice::All(event) => announce(workers, &event, context),
            }
        }
    }

    /// A worker cannot take part in the rounds of a tensor.
    pub fn refuse(
        &mut self,
        tensor: &str,
        message: &str,
        workers: &Present,
        context: &mut Context<'_>,
    ) {
        announce(workers, &self.agreement.refuse(tensor, message), context);
    }

    /// A worker takes part with zeros from now on.
    pub fn out_of_data(&mut self, rank: Rank, workers: &Present, context: &mut Context<'_>) {
        let living = self.view.living().count();
        if let Some(event) = self.agreement.out_of_data(rank, living) {
            announce(workers, &event, context);
        }
    }

    /// Passes on that a round has begun.
    pub fn began(
        &self,
        by: MemberId,
        (tensor, round): (TensorId, u64),
        workers: &Present,
        context: &mut Context<'_>,
    ) {
        let (ranks, event) = self.agreement.began(tensor, round);
        let members = ranks.iter().filter_map(|rank| workers.get(rank).copied());
        context.outbox.notify_all(members.filter(|member| *member != by), &event);
    }

    /// Looks for calls that ranks cannot match, now that a worker has reported.
    pub fn compare_calls(&mut self, rank: Rank, workers: &Present, context: &mut Context<'_>) {
        let calls = |(rank, id): (&Rank, &MemberId)| context.members.calls(*rank, *id);
        let Some(own) = workers.get_key_value(&rank).and_then(calls) else { return };
        let all = || workers.iter().filter_map(calls).collect();
        let unmatched = self.agreement.compare(&own, all);
        let new = unmatched.iter().filter(|found| found.is_new);
        let messages: BTreeSet<&String> = new.map(|found| &found.message).collect();
        messages.into_iter().for_each(|message| warn!(job = %context.name, "{message}"));
        for Unmatched { tensor, message, .. } in unmatched {
            let event = MemberEvent::TensorError { name: tensor, message };
            context.outbox.notify_all(workers.values().copied(), &event);
        }
    }

    /// Announces a stall, where that is due; a text if the job must end.
    pub fn watch(
        &mut self,
        now: Duration,
        stall: Option<Stall>,
        workers: &Present,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let limits = context.members.stall_limits(workers);
        let lines = match self.stalls.judge(now, limits, stall) {
            Verdict::Over(message) => return Err(message),
            Verdict::Lines(lines) => lines,
        };
        for Line { message, over } in lines {
            match over {
                true => info!(target: "notice", job = %context.name, "{message}"),
                false => warn!(job = %context.name, "{message}"),
            }
            // The lowest rank that is connected, unless its process logs for the coordinator.
            if let Some((rank, id)) = workers.first_key_value()
                && self.view.coordinator_rank != Some(*rank)
            {
                context.outbox.notify(*id, MemberEvent::Stalled { message, over });
            }
        }
        Ok(())
    }
}

/// Notifies workers, and logs errors.
fn announce(workers: &Present, event: &MemberEvent, context: &mut Context<'_>) {
    if let MemberEvent::TensorError { message, .. } = event {
        warn!(job = %context.name, "{message}");
    }
    context.outbox.notify_all(workers.values().copied(), event);
}

/// Why a plan changes when a server on this host is drained.
pub(crate) fn drained(host: &str) -> String {
    format!("the server on {host} is drained")
}
