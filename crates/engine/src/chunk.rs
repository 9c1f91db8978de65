//! A chunk as the client and the lane of one process both name it.

use sumpter_types::{Round, TensorId};
use sumpter_wire::{Header, Tier};

/// A chunk of a round, by what client and lane both call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkId {
    pub tensor: TensorId,
    pub tier: Tier,
    pub partition: u32,
    pub round: Round,
    pub chunk: u32,
}

impl ChunkId {
    pub(crate) fn of(header: &Header) -> ChunkId {
        let Header { tensor, tier, partition, round, chunk, .. } = *header;
        ChunkId { tensor, tier, partition, round, chunk }
    }
}

/// What is to be done with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// The lane wants the contribution.
    Ask,
    /// The client is to take the sum.
    Deliver,
}
