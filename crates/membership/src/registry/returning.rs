//! Runs that have outlived their coordinator. Work goes on without one, so a coordinator that
//! starts anew is told of a run by its members when they come back.
//!
//! The first worker that comes back restores the run from what it knows; until every worker has
//! come back or has left, and every server of the plan has or is late, the run is *returning*: what
//! its workers say is put off. If by then all agree on the epoch, the run simply goes on. If
//! the coordinator was lost in the middle of a change, some are behind, and an epoch newer than any
//! that was heard of begins as an ordinary change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank, Role};
use tracing::{info, warn};

use super::admission::refusal;
use super::epochs::{Epochs, State};
use super::io::{Join, Message, Refusal};
use super::job::{Gone, Job, Run};
use super::stalls::Watch;
use super::tensors::TensorTable;
use super::waiting::NOTICE_EVERY;
use super::words::{list, seconds};
use super::{Event, Registry};
use crate::event::{FatalKind, MemberEvent};
use crate::rejoin::{Idle, KnownRun};
use crate::view::ServerView;

/// What workers may say in all while their run returns: far above the tensors of any model.
const MAX_HELD_BACK: usize = 1 << 18;
/// Nobody's number.
const NOBODY: MemberId = MemberId(0);

/// What a run that returns still has to settle.
#[derive(Debug, Default)]
pub(super) struct Returning {
    /// What each worker had when it came back.
    workers: BTreeMap<Rank, Known>,
    refused: BTreeMap<String, String>,
    idle: Idle,
    /// When the last worker came back.
    complete: Option<Duration>,
    /// The worker that the others go on without, since it did not come back.
    lost: Option<String>,
    /// What workers said meanwhile.
    held_back: Vec<(MemberId, Message)>,
}

/// What a worker had when it came back.
#[derive(Debug)]
struct Known {
    epoch: Epoch,
    suspended: Option<Epoch>,
    tensors: usize,
    all_out: u32,
}

impl Run {
    /// The workers that have yet to come back.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> + '_ {
        let back = match &self.epochs.state {
            State::Returning(returning) => Some(&returning.workers),
            State::Starting | State::Steady | State::Changing(_) => None,
        };
        let awaited = move |rank: &Rank| {
            back.is_some_and(|back| !back.contains_key(rank)) && !self.left.contains(rank)
        };
        self.view.living().map(|worker| worker.rank).filter(awaited)
    }

    /// A worker that had come back is gone again.
    pub fn expect_again(&mut self, rank: Rank) {
        if let Some(returning) = self.returning() {
            returning.workers.remove(&rank);
        }
    }

    fn returning(&mut self) -> Option<&mut Returning> {
        match &mut self.epochs.state {
            State::Returning(returning) => Some(returning),
            State::Starting | State::Steady | State::Changing(_) => None,
        }
    }
}

impl Registry {
    /// Whether a worker may come back to its run.
    pub(super) fn admit_return(
        &self,
        join: &Join,
        rank: Rank,
        world_size: u32,
        known: &KnownRun,
    ) -> Result<(), Refusal> {
        let (name, host) = (&join.job, &join.host);
        if known.view.name != *name || known.view.workers.len() != world_size as usize {
            let message = format!("rank {rank} on {host} comes back to another job's run");
            return Err(refusal(FatalKind::Protocol, message));
        }
        let lost = |why: &str| {
            let message = format!("rank {rank} on {host} cannot come back to job '{name}': {why}");
            refusal(FatalKind::PeerLost, message)
        };
        let Some(job) = self.jobs.get(name) else {
            let number = run_number(known.view.job);
            return match self.past.jobs().any(|job| job.run == number) {
                true => Err(lost("its run is over")),
                false => Ok(()),
            };
        };
        let run = job.run.as_ref().filter(|run| run.id == known.view.job);
        let Some(run) = run.filter(|_| job.failure.is_none()) else {
            return Err(lost("another run of that name is here, or this one has failed"));
        };
        let State::Returning(returning) = &run.epochs.state else {
            return Err(lost("its run goes on without it"));
        };
        if run.view.gone.contains(&rank) {
            return Err(lost("the others have gone on without it"));
        }
        if returning.workers.contains_key(&rank) {
            // The end of its former session may not have been noticed yet.
            return Err(Refusal { retry: true, ..lost("it is here already") });
        }
        run.table.agrees_with(&known.table).map_err(|why| lost(&why))
    }

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
        let Some(member) = self.members.get(&id) else { return };
        let settings = member.join.settings.clone();
        let job = self.jobs.entry(name.to_owned()).or_insert_with(|| {
            info!(job = %name, "a run comes back");
            let mut epochs = Epochs::new(now, BTreeSet::new());
            epochs.state = State::Returning(Box::default());
            let run = Run {
                id: known.view.job,
                view: known.view.clone(),
                epochs,
                left: BTreeSet::new(),
                table: TensorTable::default(),
                out_of_data: Vec::new(),
                diagnosed: BTreeSet::new(),
                watch: Watch::default(),
            };
            Job { run: Some(run), ..Job::new(now, NOTICE_EVERY, world_size, settings) }
        });
        job.present.insert(rank, id);
        let Some(run) = &mut job.run else { return };
        if known.view.epoch > run.view.epoch {
            run.view = known.view.clone();
        }
        run.left.extend(known.left);
        let restored = run.table.restore(&known.table, world_size);
        let Some(returning) = run.returning() else { return };
        if known.idle.age() > returning.idle.age() {
            returning.idle = known.idle.clone();
        }
        returning.refused.extend(known.refused);
        let known = Known {
            epoch: known.view.epoch,
            suspended: known.suspended,
            tensors: known.table.len(),
            all_out: known.idle.times,
        };
        returning.workers.insert(rank, known);
        let outlived = job.present.iter().find(|(rank, _)| run.view.gone.contains(rank));
        if let Some((rank, id)) = outlived.map(|(rank, id)| (*rank, *id)) {
            // It came back before those who know.
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
        let name = self.worker(id).map(|(name, _)| name);
        let run = name.and_then(|name| self.jobs.get_mut(&name)?.run.as_mut());
        let Some(returning) = run.and_then(Run::returning) else { return Some(message) };
        if returning.held_back.len() < MAX_HELD_BACK {
            returning.held_back.push((id, message));
        } else {
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
        let Some(returning) = run.returning().filter(|_| !awaited) else { return };
        let complete = *returning.complete.get_or_insert(now);
        let (id, mut missing) = (run.id, run.view.servers.clone());
        missing.retain(|server| !self.serves(server, id));
        if missing.is_empty() || now.saturating_sub(complete) >= limit {
            self.go_on(name, &missing);
        }
    }

    /// Whether the server of a plan is here and knows the run.
    fn serves(&self, server: &ServerView, run: JobId) -> bool {
        self.members.get(&server.member).is_some_and(|member| {
            member.join.role == Role::Server
                && member.join.lanes == server.lanes
                && member.claims.contains_key(&run)
        })
    }

    fn go_on(&mut self, name: &str, missing: &[ServerView]) {
        let now = self.last_tick;
        let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) else { return };
        let State::Returning(returning) = std::mem::replace(&mut run.epochs.state, State::Steady)
        else {
            return;
        };
        run.epochs.since = now;
        run.out_of_data.clone_from(&returning.idle.ranks);
        for server in &mut run.view.servers {
            // Its number may be another server's by now.
            if missing.iter().any(|gone| gone.member == server.member) {
                server.member = NOBODY;
            }
        }
        returning.refused.iter().for_each(|(tensor, why)| run.table.refuse(tensor, why));
        let (id, epoch) = (run.id, run.view.epoch);
        self.catch_up(name, &returning);

        let told =
            returning.workers.values().flat_map(|known| [Some(known.epoch), known.suspended]);
        let claimed = self.members.values().filter_map(|member| member.claims.get(&id).copied());
        let heard: BTreeSet<Epoch> = told.flatten().chain(claimed).collect();
        let suspended = returning.workers.values().any(|known| known.suspended.is_some());
        let newest = heard.last().copied().unwrap_or(epoch);
        let hosts = list(missing.iter().map(|server| &server.host));
        let fewer = returning.lost.is_some();
        let why = match (&returning.lost, missing.is_empty()) {
            (Some(lost), _) => lost.clone(),
            (None, true) => "the coordinator was lost during a change of servers".to_owned(),
            (None, false) => {
                format!("the server on {hosts} did not come back to the coordinator")
            }
        };
        info!(job = %name, %newest, "the run has come back");
        if suspended || fewer || heard.len() > 1 {
            self.renew(name, newest, &why);
        } else {
            self.replan(name, &why);
        }
        for (id, message) in returning.held_back {
            self.message(now, id, message);
        }
    }

    /// Tells the workers what they have missed.
    fn catch_up(&mut self, name: &str, returning: &Returning) {
        let Some(job) = self.jobs.get(name) else { return };
        let Some(run) = &job.run else { return };
        let mut told = Vec::new();
        for (rank, known) in &returning.workers {
            let Some(member) = job.present.get(rank) else { continue };
            let tensors = run.table.since(known.tensors);
            let tensors = tensors.map(|(id, spec)| MemberEvent::Tensor { id, spec });
            let refused = returning.refused.iter().map(|(name, message)| {
                MemberEvent::TensorError { name: name.clone(), message: message.clone() }
            });
            let left = run.left.iter().map(|rank| MemberEvent::WorkerLeft { rank: *rank });
            let last = returning.idle.last;
            let all_out = (known.all_out < returning.idle.times)
                .then_some(MemberEvent::AllOutOfData { last });
            // Whoever hears of it once more tells those once more what is under way.
            let idle =
                returning.idle.ranks.iter().map(|rank| MemberEvent::OutOfData { rank: *rank });
            let events = tensors.chain(refused).chain(left).chain(all_out).chain(idle);
            told.extend(events.map(|event| (*member, Event::Tell(event))));
        }
        self.outbox.extend(told);
    }

    /// Begins an epoch that is newer than any that somebody has heard of.
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
        let limit = self.start_timeout(job).max(self.options.start_timeout);
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
            if let Some(returning) = run.returning() {
                returning.lost = Some(format!("rank {rank} on {host} was lost: {reason}"));
            }
            return self.complete_return(now, name);
        }
        // From here on it is a run that has lost a worker.
        if let Some(run) = self.jobs.get_mut(name).and_then(|job| job.run.as_mut()) {
            run.epochs.state = State::Steady;
        }
        self.worker_gone(name, rank, &host, &Gone::Lost(reason));
    }

    /// Tells servers that have come back of runs that are over, or of which they are no part.
    pub(super) fn settle_claims(&mut self, now: Duration) {
        let mut ended = Vec::new();
        for (id, member) in &mut self.members {
            let waited = now.saturating_sub(member.joined);
            let (jobs, limit) = (&self.jobs, self.options.start_timeout);
            member.claims.retain(|claim, _| {
                let run = jobs.values().filter_map(|job| job.run.as_ref()).find(|r| r.id == *claim);
                let (open, over) = match run {
                    Some(run) if matches!(run.epochs.state, State::Returning(_)) => (true, false),
                    Some(run) => (false, !run.informed().any(|server| server == *id)),
                    None => (waited < limit, waited >= limit),
                };
                if over {
                    ended.push((*id, MemberEvent::JobEnded { job: *claim }));
                }
                open
            });
        }
        for (server, event) in ended {
            self.tell(server, event);
        }
    }
}

fn run_number(run: JobId) -> String {
    format!("{:016x}", run.0)
}
