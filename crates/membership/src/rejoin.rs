//! What a member reports to a coordinator that has come back without its state, from which the runs
//! that went on meanwhile are known again.

use std::collections::{BTreeMap, BTreeSet};

use sumpter_types::{Epoch, JobId, MemberId, Rank, TensorSpec};

use crate::view::ClusterView;

/// What a member knows that was one before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rejoin {
    /// Its number until now.
    pub member: MemberId,
    /// Of a worker: its run.
    pub run: Option<KnownRun>,
    /// Of a server: the runs it sums for.
    pub served: BTreeMap<JobId, Epoch>,
}

/// What a worker knows of its run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownRun {
    /// The plan it works under.
    pub view: ClusterView,
    /// The newest epoch it has been suspended for, if it is.
    pub suspended: Option<Epoch>,
    /// By number.
    pub table: Vec<TensorSpec>,
    /// Tensors that cannot be used, and why.
    pub refused: BTreeMap<String, String>,
    /// Workers that have left.
    pub left: BTreeSet<Rank>,
    /// Those that are out of data.
    pub idle: Idle,
}

/// Which workers are out of data. Of two that differ, the greater is what came later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// How often all were, and who was the last.
    pub times: u32,
    /// The last of them.
    pub last: Rank,
    /// Who is since then, in order.
    pub ranks: Vec<Rank>,
}

impl Idle {
    /// Grows with what happens.
    #[must_use]
    pub fn age(&self) -> (u32, usize) {
        (self.times, self.ranks.len())
    }
}

impl Rejoin {
    /// The highest number of a member that it names.
    #[must_use]
    pub fn highest_member(&self) -> MemberId {
        let servers = self.run.iter().flat_map(|run| &run.view.servers);
        servers.map(|server| server.member).max().unwrap_or_default().max(self.member)
    }
}
