//! One job: its workers before the start, its run afterwards.

pub(crate) mod epochs;
pub(crate) mod returning;
pub(crate) mod stalls;
pub(crate) mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_config::{Texts, in_force};
use sumpter_types::{JobId, MemberId, Rank};

use crate::event::{FatalKind, MemberEvent};
use crate::registry::agreement::Agreement;
use crate::view::ClusterView;
use epochs::{EpochChange, Phase};
use stalls::StallWatch;

/// A job, from its first worker's arrival until its last worker is gone.
pub(crate) struct Job {
    pub world_size: u32,
    /// What all present workers agree on.
    pub settings: BTreeMap<String, String>,
    /// When the first worker joined.
    pub since: Duration,
    /// When its workers are next told what is missing.
    pub next_notice: Duration,
    /// The workers that are here.
    pub present: BTreeMap<Rank, MemberId>,
    /// Set when everyone is there.
    pub run: Option<Run>,
    /// Set when the job cannot start or its run cannot go on. Its workers are told once, and
    /// nothing they say afterwards counts.
    pub failure: Option<Failure>,
}

/// Why a job failed.
pub(crate) struct Failure {
    pub kind: FatalKind,
    pub message: String,
}

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
}

impl Run {
    /// A run that begins, or comes back, under this plan.
    pub fn new(view: ClusterView, epochs: EpochChange) -> Self {
        let (agreement, stalls) = (Agreement::default(), StallWatch::default());
        Self { id: view.job, view, epochs, left: BTreeSet::new(), agreement, stalls }
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

impl Job {
    /// A job whose first worker arrives now.
    pub fn new(
        now: Duration,
        notice_every: Duration,
        world_size: u32,
        settings: BTreeMap<String, String>,
    ) -> Self {
        Self {
            world_size,
            settings,
            since: now,
            next_notice: now + notice_every,
            present: BTreeMap::new(),
            run: None,
            failure: None,
        }
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
    pub fn needs_a_server(&self) -> bool {
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

    /// Whether workers that are not here may come back.
    pub fn awaits_others(&self) -> bool {
        self.failure.is_none()
            && self.run.as_ref().is_some_and(|run| run.awaited().next().is_some())
    }

    /// Whether its workers may be at work.
    pub fn is_running(&self) -> bool {
        matches!(self.stage(), Stage::Running)
    }

    /// The run, if declarations and signs of it count.
    pub fn running(&mut self) -> Option<&mut Run> {
        match self.stage() {
            Stage::Running => self.run.as_mut(),
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
    pub fn may_lose(&self, rank: Rank) -> bool {
        let survivors = self.present.keys().filter(|other| **other != rank).count();
        self.least_survivors().is_some_and(|least| survivors >= least)
    }

    /// A worker is gone: the event for the others.
    pub fn remove(&mut self, rank: Rank, host: &str, how: &Gone) -> Option<MemberEvent> {
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
}

/// How a member went.
#[derive(Clone, Debug)]
pub(crate) enum Gone {
    /// It said so.
    Left,
    /// It died, and this is how it was noticed.
    Lost(String),
}
