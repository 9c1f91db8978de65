//! What a lane may use, and what each job may take of it.

/// What one job may take of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of accumulators.
    pub max_bytes: u64,
    /// Workers' connections at once.
    pub max_connections: u32,
    /// Servers that may be hubs of the job; their ranks follow those of the workers.
    pub servers: u32,
    /// Lanes of the job, to any of which the client beside this lane passes a subtotal on that has
    /// a route; 0 if there is no such client.
    pub lanes: u32,
}

/// What a lane may use.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// Bytes of accumulators a job without limits of its own may hold in this lane.
    pub max_job_bytes: u64,
    /// The largest chunk a client may ask for.
    pub max_chunk_bytes: u32,
    /// Whether a client that knows the tensors passes subtotals on: see
    /// [`Lane::next_subtotal`](super::Lane::next_subtotal).
    pub hub: bool,
}
