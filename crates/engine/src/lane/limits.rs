//! What a lane may use, what each job may take of it, and what a partition takes.
//!
//! Memory counts as the pool's buffers do, whole pages and powers of two: a partition of many small
//! chunks costs what it takes.

use sumpter_codec::Codec;
use sumpter_sum::BufferPool;
use sumpter_wire::{PartitionSpec, Tier};

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

/// Bytes that a partition may take of the pool: accumulators, and of a variable's part all of it.
pub(super) fn partition_bytes(spec: &PartitionSpec, tier: Tier, codec: Option<&Codec>) -> u64 {
    if tier.part().is_some() {
        return pooled(spec.bytes as usize);
    }
    let of_chunk = |index| chunk_bytes(spec, tier, codec, spec.chunk_len(index) as usize);
    let last = spec.chunks().saturating_sub(1);
    // Two rounds may be alive.
    2 * (u64::from(last) * of_chunk(0) + of_chunk(last))
}

/// Bytes that a chunk of `len` may take in one of two rounds.
fn chunk_bytes(spec: &PartitionSpec, tier: Tier, codec: Option<&Codec>, len: usize) -> u64 {
    if let Some(codec) = codec {
        let elements = len / spec.dtype.size();
        let carried = spec.coding.is_some_and(|coding| coding.carrier.is_some());
        // What a carrier gets has no more bytes than the sum.
        let sums = pooled(elements * size_of::<f32>()) * (1 + u64::from(carried));
        return sums + pooled(codec.encoded_len(elements));
    }
    if tier == Tier::Worker {
        // A contribution in one round and its answer in the other; the state is counted with its
        // parts.
        return pooled(len);
    }
    let widening = spec.dtype.accumulator().size() / spec.dtype.size();
    let weights = if spec.variable.is_some() && widening > 1 { pooled(len) } else { 0 };
    pooled(len * widening) + weights
}

fn pooled(len: usize) -> u64 {
    BufferPool::capacity(len) as u64
}
