//! The members of a cluster: who they are, what they last reported, and for how long they have been
//! silent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, JobId, MemberId, MemberStatus, Rank, Role, Speeds, Stats};

use super::agreement::calls::Calls;
use super::io::{Join, StallLimits};
use super::job::stalls::{Report, has_moved};
use super::links::{awaits_link, slowest};
use crate::view::{RunSpeeds, ServerView, WorkerView};

/// A gap between ticks beyond this means that the coordinator itself stood still, and members'
/// silence says nothing about them. Ticks come four times a second.
const STALL: Duration = Duration::from_secs(1);

/// A member, from its admission to the end of its session.
pub(super) struct Member {
    pub join: Join,
    pub joined: Duration,
    heard: Duration,
    /// How long it may be silent.
    silence: Duration,
    pub stats: Stats,
    /// When what it reports of operations last changed.
    moved: Duration,
    /// It is to be in no plan any more.
    pub draining: bool,
    /// Runs that a server which has come back still serves, as far as it knows.
    pub claims: BTreeMap<JobId, Epoch>,
}

impl Member {
    pub fn status(&self, now: Duration, id: MemberId) -> MemberStatus {
        let join = &self.join;
        let (rank, local_rank) = match join.role {
            Role::Worker { rank, local_rank, .. } => (Some(rank.0), Some(local_rank)),
            Role::Server => (None, None),
        };
        MemberStatus {
            member: id.0,
            rank,
            local_rank,
            host: join.host.clone(),
            machine: join.machine.clone(),
            lanes: join.lanes.iter().map(ToString::to_string).collect(),
            bandwidth: join.bandwidth,
            rack: join.rack.clone(),
            joined_s: now.saturating_sub(self.joined).as_secs_f64(),
            silent_s: now.saturating_sub(self.heard).as_secs_f64(),
            stats: self.stats.for_report(),
            draining: self.draining,
            gone: false,
        }
    }
}

/// What a server's claim to serve a run is worth.
pub(super) enum Claim {
    /// Its run has not come back completely, or may still come.
    Open,
    /// The run has a plan with the server.
    Settled,
    /// There is no such run, or the server is no part of it.
    Void,
}

/// All members.
#[derive(Default)]
pub(super) struct Members {
    all: BTreeMap<MemberId, Member>,
    /// Servers to notify once no run uses them.
    draining: BTreeSet<MemberId>,
    last_tick: Duration,
}

impl Members {
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.all.get(&id)
    }

    pub fn contains(&self, id: MemberId) -> bool {
        self.all.contains_key(&id)
    }

    pub fn insert(&mut self, now: Duration, id: MemberId, join: Join, silence: Duration) {
        let mut rejoin = join.rejoin.clone();
        let claims = rejoin.as_mut().map(|r| std::mem::take(&mut r.served)).unwrap_or_default();
        let (stats, draining) = (Stats::default(), false);
        let (joined, heard, moved) = (now, now, now);
        let member = Member { join, joined, heard, silence, stats, moved, draining, claims };
        self.all.insert(id, member);
    }

    pub fn remove(&mut self, id: MemberId) -> Option<Member> {
        self.draining.remove(&id);
        self.all.remove(&id)
    }

    /// A message arrived; whether it is a member's.
    pub fn heard(&mut self, now: Duration, id: MemberId) -> bool {
        self.all.get_mut(&id).map(|member| member.heard = now).is_some()
    }

    /// A member's newest report.
    pub fn report(&mut self, now: Duration, id: MemberId, stats: Stats) {
        let Some(member) = self.all.get_mut(&id) else { return };
        if has_moved(&member.stats, &stats) {
            member.moved = now;
        }
        member.stats = stats;
    }

    /// The members that have been silent for too long, and for how long.
    pub fn tick(&mut self, now: Duration) -> Vec<(MemberId, Duration)> {
        let gap = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        if gap > STALL {
            self.all.values_mut().for_each(|member| member.heard = now);
        }
        let silences = self.all.iter().map(|(id, m)| (*id, now.saturating_sub(m.heard), m.silence));
        silences.filter(|(_, silence, limit)| silence > limit).map(|(id, s, _)| (id, s)).collect()
    }

    /// The time of the last tick.
    pub fn last_tick(&self) -> Duration {
        self.last_tick
    }

    /// The job and rank of a worker.
    pub fn worker(&self, id: MemberId) -> Option<(String, Rank)> {
        let Join { job, role, .. } = &self.get(id)?.join;
        match role {
            Role::Worker { rank, .. } => Some((job.clone(), *rank)),
            Role::Server => None,
        }
    }

    pub fn host(&self, id: MemberId) -> &str {
        self.get(id).map_or("?", |member| &member.join.host)
    }

    pub fn servers(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        let members = self.all.iter().map(|(id, member)| (*id, member));
        members.filter(|(_, member)| member.join.role == Role::Server)
    }

    /// The servers that do not drain.
    pub fn lasting_servers(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.servers().filter(|(_, member)| !member.draining).map(|(id, _)| id)
    }

    /// Begins to drain a server; its host, unless it drains already or is none.
    pub fn drain(&mut self, id: MemberId) -> Option<String> {
        let member = self.all.get_mut(&id).filter(|member| member.join.role == Role::Server)?;
        if std::mem::replace(&mut member.draining, true) {
            return None;
        }
        self.draining.insert(id);
        Some(member.join.host.clone())
    }

    /// Whether a server is waiting for the end of its drain.
    pub fn drains(&self) -> bool {
        !self.draining.is_empty()
    }

    /// The draining servers that no run uses any more, each once.
    pub fn drained(&mut self, used: &BTreeSet<MemberId>) -> Vec<MemberId> {
        let claimed = |id: &MemberId| self.get(*id).is_some_and(|m| !m.claims.is_empty());
        let free = self.draining.difference(used).filter(|id| !claimed(id));
        let free: Vec<MemberId> = free.copied().collect();
        self.draining.retain(|id| !free.contains(id));
        free
    }

    /// The workers of a start as others see them.
    pub fn worker_views(&self, present: &BTreeMap<Rank, MemberId>) -> Vec<WorkerView> {
        let view = |(rank, id): (&Rank, &MemberId)| {
            let Join { host, machine, lanes, bandwidth, rack, device_group, .. } =
                &self.get(*id)?.join;
            Some(WorkerView {
                rank: *rank,
                host: host.clone(),
                machine: machine.clone(),
                lanes: lanes.clone(),
                bandwidth_gbps: bandwidth.map(|known| known.gbps),
                rack: rack.clone(),
                device_group: device_group.clone(),
            })
        };
        present.iter().filter_map(view).collect()
    }

    /// The servers as others see them, in an order that is the same for all.
    pub fn server_views(&self, servers: &BTreeSet<MemberId>) -> Vec<ServerView> {
        let view = |id: &MemberId| {
            let Join { host, machine, lanes, bandwidth, rack, .. } = &self.get(*id)?.join;
            let bandwidth_gbps = bandwidth.map(|known| known.gbps);
            let (host, machine, lanes) = (host.clone(), machine.clone(), lanes.clone());
            let rack = rack.clone();
            Some(ServerView { member: *id, host, machine, lanes, bandwidth_gbps, rack })
        };
        let mut views: Vec<ServerView> = servers.iter().filter_map(view).collect();
        // By host, so that runs of one cluster place alike in whichever order servers joined.
        views.sort_by(|a, b| (&a.host, &a.lanes, a.member).cmp(&(&b.host, &b.lanes, b.member)));
        views
    }

    /// The least of what these workers and servers have measured until now.
    pub fn speeds<'a>(
        &self,
        workers: &BTreeMap<Rank, MemberId>,
        servers: impl Iterator<Item = &'a MemberId>,
    ) -> Box<RunSpeeds> {
        let of = |all: Speeds, id: &MemberId| match self.get(*id) {
            Some(member) => all.least(&member.join.speeds),
            None => all,
        };
        Box::new(RunSpeeds {
            workers: workers.values().fold(Speeds::default(), of),
            servers: servers.fold(Speeds::default(), of),
            link: self.measured_link(workers).unwrap_or_default(),
        })
    }

    /// Bytes a second that these workers' slowest machine sends, once that was measured.
    pub fn measured_link(&self, workers: &BTreeMap<Rank, MemberId>) -> Option<u64> {
        let members = workers.values().filter_map(|id| self.get(*id));
        slowest(members.map(|member| (member.join.machine.as_str(), &member.stats)))
    }

    /// Whether one of these workers has a use for that.
    pub fn await_link(&self, workers: &BTreeMap<Rank, MemberId>) -> bool {
        workers.values().filter_map(|id| self.get(*id)).any(|member| awaits_link(&member.stats))
    }

    /// The longest wait that these workers ask for.
    pub fn start_timeout(&self, present: &BTreeMap<Rank, MemberId>) -> Duration {
        let members = present.values().filter_map(|id| self.get(*id));
        members.map(|member| member.join.start_timeout).max().unwrap_or_default()
    }

    /// The most servers that these workers ask for.
    pub fn expected_servers(&self, present: &BTreeMap<Rank, MemberId>) -> u32 {
        let members = present.values().filter_map(|id| self.get(*id));
        members.map(|member| member.join.expected_servers).max().unwrap_or_default()
    }

    /// The limits of the lowest rank.
    pub fn stall_limits(&self, present: &BTreeMap<Rank, MemberId>) -> StallLimits {
        let lowest = present.values().next().and_then(|id| self.get(*id));
        lowest.map_or_else(StallLimits::default, |member| member.join.stalls)
    }

    /// What a worker last reported of its operations.
    pub fn calls(&self, rank: Rank, id: MemberId) -> Option<Calls<'_>> {
        let Stats { pending, refused, .. } = &self.get(id)?.stats;
        Some(Calls { rank, pending, refused })
    }

    /// What these workers last reported, and when.
    pub fn reports(&self, now: Duration, present: &BTreeMap<Rank, MemberId>) -> Vec<Report<'_>> {
        let report = |(rank, id): (&Rank, &MemberId)| {
            let member = self.get(*id)?;
            let silence = now.saturating_sub(member.heard);
            Some(Report {
                rank: *rank,
                host: &member.join.host,
                pending: &member.stats.pending,
                begun: &member.stats.begun,
                still: now.saturating_sub(member.moved),
                // Heartbeats come at a quarter of the limit.
                silent: (silence > member.silence / 2).then_some(silence),
            })
        };
        present.iter().filter_map(report).collect()
    }

    /// Whether the server of a plan is connected and knows the run.
    pub fn serves(&self, server: &ServerView, run: JobId) -> bool {
        self.get(server.member).is_some_and(|member| {
            member.join.role == Role::Server
                && member.join.lanes == server.lanes
                && member.claims.contains_key(&run)
        })
    }

    /// The epochs in which servers claim to serve a run.
    pub fn claimed_epochs(&self, run: JobId) -> impl Iterator<Item = Epoch> + '_ {
        self.all.values().filter_map(move |member| member.claims.get(&run).copied())
    }

    /// Drops the claims that are not open; the runs that are over for a server which claimed them.
    /// `judge` gets the run, the server, and for how long the server has been here.
    pub fn settle_claims(
        &mut self,
        now: Duration,
        judge: impl Fn(JobId, MemberId, Duration) -> Claim,
    ) -> Vec<(MemberId, JobId)> {
        let mut ended = Vec::new();
        for (id, member) in &mut self.all {
            let waited = now.saturating_sub(member.joined);
            member.claims.retain(|run, _| match judge(*run, *id, waited) {
                Claim::Open => true,
                Claim::Settled => false,
                Claim::Void => {
                    ended.push((*id, *run));
                    false
                }
            });
        }
        ended
    }
}
