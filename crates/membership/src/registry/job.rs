//! One job: its workers before the start, its run afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{JobId, MemberId, Rank};

use super::epochs::{Epochs, State};
use super::stalls::Watch;
use super::tensors::TensorTable;
use crate::event::{FatalKind, MemberEvent};
use crate::view::ClusterView;

/// A job, from its first worker's arrival until its last worker is gone.
pub(super) struct Job {
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
pub(super) struct Failure {
    pub kind: FatalKind,
    pub message: String,
}

/// What a run adds to a job.
pub(super) struct Run {
    pub id: JobId,
    /// The newest plan.
    pub view: ClusterView,
    pub epochs: Epochs,
    /// Workers that have finished.
    pub left: BTreeSet<Rank>,
    pub table: TensorTable,
    /// Workers that take part with zeros, in the order in which they said so.
    pub out_of_data: Vec<Rank>,
    /// Disagreements that have been reported.
    pub diagnosed: BTreeSet<String>,
    /// The wait that has been told.
    pub watch: Watch,
}

/// The stages of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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

    /// Where the job stands.
    pub fn stage(&self) -> Stage {
        match &self.run {
            _ if self.failure.is_some() => Stage::Failed,
            None => Stage::Waiting,
            Some(run) if matches!(run.epochs.state, State::Starting) => Stage::Starting,
            Some(run) if matches!(run.epochs.state, State::Returning(_)) => Stage::Returning,
            Some(_) => Stage::Running,
        }
    }

    /// The stage's name in a status report.
    pub fn state(&self) -> &'static str {
        let changing = |run: &Run| matches!(run.epochs.state, State::Changing(_));
        match self.stage() {
            Stage::Waiting => "waiting",
            Stage::Starting => "starting",
            Stage::Running if self.run.as_ref().is_some_and(changing) => "changing",
            Stage::Running => "running",
            Stage::Returning => "returning",
            Stage::Failed => "failed",
        }
    }

    /// Whether the workers' settings leave nobody but servers to sum.
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

    /// A worker is gone: what the others must hear.
    pub fn remove(&mut self, rank: Rank, host: &str, how: &Gone) -> Option<MemberEvent> {
        self.present.remove(&rank);
        let stage = self.stage();
        if matches!(stage, Stage::Waiting | Stage::Failed) {
            return None;
        }
        let reason = match (how, stage) {
            // It may come back once more.
            (Gone::Lost(_), Stage::Returning) => {
                self.run.as_mut()?.expect_again(rank);
                return None;
            }
            (Gone::Left, Stage::Running | Stage::Returning) => {
                let run = self.run.as_mut()?;
                run.left.insert(rank);
                if let State::Changing(progress) = &mut run.epochs.state {
                    progress.remove(&rank);
                }
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
pub(super) enum Gone {
    /// It said so.
    Left,
    /// It died, and this is how it was noticed.
    Lost(String),
}
