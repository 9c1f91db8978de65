//! Who a connection of a lane belongs to.

use sumpter_types::{Epoch, JobId, Rank};

/// Who a connection belongs to, as its handshake proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The job's run.
    pub job: JobId,
    /// The worker.
    pub rank: Rank,
    /// Workers in the job.
    pub world_size: u32,
    /// The epoch of the worker's plan.
    pub epoch: Epoch,
    /// Whether the job's workers keep the results of this lane, since its process may die without
    /// ending the job; the lane notifies them when everyone has them. Equal for all workers of the
    /// job.
    pub keeps: bool,
    /// Whether its frames carry checksums, both ways; not if it is in this process.
    pub checksum: bool,
}
