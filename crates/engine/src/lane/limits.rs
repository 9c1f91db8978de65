//! What a lane may use, and what each job may take of it.

/// What one job may take of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of accumulators.
    pub max_bytes: u64,
    /// Connections at once.
    pub max_connections: u32,
}

/// What a lane may use.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// Bytes of accumulators a job without limits of its own may hold in this lane.
    pub max_job_bytes: u64,
    /// The largest chunk a client may ask for.
    pub max_chunk_bytes: u32,
    /// Whether a client passes subtotals on: see
    /// [`Lane::next_subtotal`](super::Lane::next_subtotal).
    pub hub: bool,
}
