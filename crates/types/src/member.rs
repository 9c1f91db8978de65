//! The members of a cluster: workers and servers.

use std::fmt;

use serde::Serialize;

use crate::Rank;

/// A member's number with its coordinator: a new one for every session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A training process of one job.
    Worker {
        /// Its number in the job.
        rank: Rank,
        /// The workers of the job.
        world_size: u32,
        /// Its number on its machine.
        local_rank: u32,
        /// The workers on its machine.
        local_size: u32,
    },
    /// A server, for every job of the coordinator.
    Server,
}
