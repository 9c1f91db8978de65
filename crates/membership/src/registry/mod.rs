//! The coordinator's logic as a state machine without sockets, threads or a clock: (now, what a
//! member said or that it is gone) to (which member is told what).
//!
//! Invariants: a job's present workers agree on its size and settings; a run's workers go through
//! the same plans in the same order; all workers of a run are told of its tensors in the order of
//! their ids; a failed job is told of its failure once and forgotten when its last worker is gone.

mod admission;
mod agreement;
mod epochs;
mod io;
mod job;
mod past;
mod pending;
mod quotas;
mod returning;
mod runs;
mod stalls;
mod status;
mod survivors;
mod tally;
mod tensors;
#[cfg(test)]
mod tests;
mod tuning;
mod waiting;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, Rank, Role, Stats};
use tracing::{info, warn};

use crate::event::{FatalKind, MemberEvent};
use crate::tenants::base_name;
use job::{Gone, Job};
use past::Past;
use tally::{Happened, Tally};
use waiting::NOTICE_EVERY;

pub use io::{
    Event, Input, Join, Message, Options, Refusal, RunMember, RunMembers, ServerMemory, Serves,
    StallLimits, TuneReport, TuneRequest,
};

/// A gap between ticks beyond this means that the coordinator itself stood still, and members'
/// silence says nothing about them. Ticks come four times a second.
const STALL: Duration = Duration::from_secs(1);

/// All jobs and members of a coordinator.
pub struct Registry {
    options: Options,
    draw: Box<dyn FnMut() -> u64 + Send>,
    members: BTreeMap<MemberId, Member>,
    jobs: BTreeMap<String, Job>,
    past: Past,
    tally: Tally,
    only_job: Option<String>,
    /// How the last run of the only job ended.
    last_end: Option<MemberEvent>,
    /// The servers have been told that it is over.
    finished: bool,
    last_tick: Duration,
    /// Servers that wait to hear that no run uses them any more.
    draining: BTreeSet<MemberId>,
    outbox: Vec<(MemberId, Event)>,
}

struct Member {
    join: Join,
    joined: Duration,
    heard: Duration,
    /// How long it may be silent.
    silence: Duration,
    stats: Stats,
    /// When what it reports of operations last changed.
    moved: Duration,
    /// It is to be in no plan any more.
    draining: bool,
    /// Runs that a server which has come back sums for, as far as it knows.
    claims: BTreeMap<JobId, Epoch>,
}

impl Registry {
    /// An empty registry; `draw` gives the runs' random numbers.
    #[must_use]
    pub fn new(options: Options, draw: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            options,
            draw,
            members: BTreeMap::new(),
            jobs: BTreeMap::new(),
            past: Past::default(),
            tally: Tally::default(),
            only_job: None,
            last_end: None,
            finished: false,
            last_tick: Duration::ZERO,
            draining: BTreeSet::new(),
            outbox: Vec::new(),
        }
    }

    /// Takes one input; returns what is to be told, in this order.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<(MemberId, Event)> {
        match input {
            Input::Join(member, join) => self.join(now, member, *join),
            Input::Message(member, message) => self.message(now, member, message),
            Input::Violation(member, what) => {
                let message = format!("the coordinator was sent what it does not take: {what}");
                self.dismiss(member, FatalKind::Protocol, message, what);
            }
            Input::Closed(member, reason) => self.remove(member, &Gone::Lost(reason)),
            Input::Tick => self.tick(now),
            Input::Drain(member) => self.drain(member),
            Input::Tune(name, changes) => self.tune(&name, changes),
            Input::Stop => self.stop(),
        }
        self.settle_drains();
        std::mem::take(&mut self.outbox)
    }

    /// Whether a run has begun whose workers have not all gone, and which has not failed.
    #[must_use]
    pub fn running(&self) -> bool {
        self.jobs.values().any(|job| job.run.is_some() && job.failure.is_none())
    }

    /// Whether a run was the last, and the servers have been told so.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Whether there is no worker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn join(&mut self, now: Duration, id: MemberId, join: Join) {
        if self.members.contains_key(&id) {
            return;
        }
        if let Err(refusal) = self.admit(&join) {
            info!(host = %join.host, reason = %refusal.message, "refused a member");
            self.tally.count(Happened::Refused);
            if refusal.kind == FatalKind::Mismatch {
                self.fail_job(&join.job, FatalKind::Mismatch, |_| refusal.message.clone());
            }
            self.outbox.push((id, Event::Refused(refusal)));
            self.outbox.push((id, Event::Close));
            return;
        }
        let peer_timeout = join.peer_timeout.min(self.options.peer_timeout);
        let (role, name) = (join.role.clone(), join.job.clone());
        let silence = match role {
            Role::Worker { .. } => peer_timeout,
            Role::Server => join.server_timeout.min(self.options.server_timeout).min(peer_timeout),
        };
        self.outbox.push((id, Event::Welcome { peer_timeout, silence }));
        info!(member = %id, host = %join.host, ?role, job = %name, "a member joined");
        let settings = join.settings.clone();
        let mut rejoin = join.rejoin.clone();
        let claims = rejoin.as_mut().map(|r| std::mem::take(&mut r.served)).unwrap_or_default();
        let (stats, draining) = (Stats::default(), false);
        let (joined, heard, moved) = (now, now, now);
        let member = Member { join, joined, heard, silence, stats, moved, draining, claims };
        self.members.insert(id, member);
        match role {
            Role::Worker { rank, world_size, .. } => {
                if self.options.serves != Serves::ManyJobs {
                    self.only_job = Some(base_name(&name).to_owned());
                }
                if let Some(run) = rejoin.and_then(|rejoin| rejoin.run) {
                    return self.worker_returns(now, id, (&name, rank, world_size), run);
                }
                if !self.jobs.contains_key(&name) {
                    self.past.forget_job(&name);
                }
                let job = self
                    .jobs
                    .entry(name.clone())
                    .or_insert_with(|| Job::new(now, NOTICE_EVERY, world_size, settings));
                job.present.insert(rank, id);
                self.start_if_complete(now, &name);
            }
            Role::Server => {
                let names: Vec<String> = self.jobs.keys().cloned().collect();
                for name in &names {
                    self.start_if_complete(now, name);
                    self.complete_return(now, name);
                }
            }
        }
    }

    fn message(&mut self, now: Duration, id: MemberId, message: Message) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.heard = now;
        let Some(message) = self.hold_back(id, message) else { return };
        let Some(member) = self.members.get_mut(&id) else { return };
        match message {
            Message::Heartbeat(stats) => {
                if let Some(stats) = stats {
                    if stalls::has_moved(&member.stats, &stats) {
                        member.moved = now;
                    }
                    member.stats = stats;
                    self.compare_pending(id);
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

    /// Ends a member's session because of what it did or did not do.
    fn dismiss(&mut self, id: MemberId, kind: FatalKind, message: String, reason: String) {
        if self.members.contains_key(&id) {
            self.tell(id, MemberEvent::Fatal { kind, message });
            self.outbox.push((id, Event::Close));
            self.remove(id, &Gone::Lost(reason));
        }
    }

    fn remove(&mut self, id: MemberId, how: &Gone) {
        let Some(member) = self.members.remove(&id) else { return };
        self.draining.remove(&id);
        self.past.member_gone(self.last_tick, id, &member);
        let Join { job, role, host, .. } = &member.join;
        match how {
            Gone::Left => info!(member = %id, %host, ?role, "a member left"),
            Gone::Lost(reason) => {
                warn!(member = %id, %host, ?role, %reason, "a member was lost");
                self.tally.count(match role {
                    Role::Worker { .. } => Happened::WorkerLost,
                    Role::Server => Happened::ServerLost,
                });
            }
        }
        match role {
            Role::Worker { rank, .. } => self.worker_gone(job, *rank, host, how),
            Role::Server => self.server_gone(id, host, how),
        }
    }

    fn tick(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        if gap > STALL {
            self.members.values_mut().for_each(|member| member.heard = now);
        }
        let silent: Vec<(MemberId, Duration)> = self
            .members
            .iter()
            .map(|(id, member)| (*id, now.saturating_sub(member.heard), member.silence))
            .filter(|(_, silence, limit)| silence > limit)
            .map(|(id, silence, _)| (id, silence))
            .collect();
        for (id, silence) in silent {
            self.give_up(id, silence);
        }
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.tick_job(now, name));
        self.settle_claims(now);
    }

    /// A stranger could not prove to hold the token.
    pub fn refused(&mut self) {
        self.tally.count(Happened::Refused);
    }

    /// The servers that are here, and their hosts.
    pub fn hosts_of_servers(&self) -> impl Iterator<Item = (MemberId, &str)> {
        self.servers().map(|(id, member)| (id, member.join.host.as_str()))
    }

    fn servers(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        let members = self.members.iter().map(|(id, member)| (*id, member));
        members.filter(|(_, member)| member.join.role == Role::Server)
    }

    fn worker(&self, id: MemberId) -> Option<(String, Rank)> {
        let Join { job, role, .. } = &self.members.get(&id)?.join;
        match role {
            Role::Worker { rank, .. } => Some((job.clone(), *rank)),
            Role::Server => None,
        }
    }

    fn host(&self, id: MemberId) -> &str {
        self.members.get(&id).map_or("?", |member| &member.join.host)
    }

    fn tell(&mut self, id: MemberId, event: MemberEvent) {
        self.outbox.push((id, Event::Tell(event)));
    }

    fn tell_workers(&mut self, name: &str, event: &MemberEvent) {
        let Some(job) = self.jobs.get(name) else { return };
        let told = job.present.values().map(|id| (*id, Event::Tell(event.clone())));
        self.outbox.extend(told);
    }
}
