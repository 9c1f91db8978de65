//! What a frame led to in a partition, for those who send what follows.

use sumpter_codec::CodecError;
use sumpter_endpoint::Now;
use sumpter_types::{CallNumber, Rank};

use super::order::Missed;

/// A connection's number, never used again, unlike its `ConnId`.
pub(super) type Serial = u64;

/// How a child began a round: over which connection its results go, how urgent they are, and in
/// which call of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    pub over: Serial,
    pub priority: i32,
    pub call: Option<CallNumber>,
}

/// A chunk of one of the two live rounds of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPlace {
    pub slot: usize,
    pub chunk: u32,
}

/// What a contribution led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// This chunk is finished: send it.
    pub finished: Option<u32>,
    /// This chunk is a subtotal: pass it on.
    pub subtotal: Option<u32>,
    /// The resident child's contribution to this chunk is wanted.
    pub asked: Option<u32>,
    /// This chunk of a variable has changed, by a round of one worker.
    pub changed: Option<u32>,
    /// Its turn in a replayed order is past.
    pub missed: Option<Missed>,
    /// The round is complete for everyone.
    pub complete: bool,
    /// The norm of the gradient is known: send it to those who wait for it.
    pub norm: bool,
    /// A contribution is no code of its codec's: whose, and why. Nothing else is done then.
    pub malformed: Option<String>,
    /// Bytes that wait for their turn in the order of ranks from now on, and that had it.
    pub held: usize,
    pub released: usize,
    /// Who was last, and for how long the others waited for it; known once all are in.
    pub late: Option<(Rank, Now)>,
}

impl Progress {
    /// What a rank contributed is no code of its codec's.
    pub(super) fn malformed(rank: Rank, error: &CodecError) -> Progress {
        Progress { malformed: Some(format!("rank {rank}: {error}")), ..Progress::default() }
    }
}

/// What beginning a round led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// The child is in; `completes` if everyone now is, and all chunks are finished;
    /// `wants_total` if everyone now is, and none of them contributes.
    In { slot: usize, completes: bool, wants_total: bool },
    /// The round before is not complete; the child is in as soon as it is.
    Early,
    /// Others say that the round is of another call or does something else, for this reason.
    Differs(String),
}

/// What an acknowledgement led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Every receiver has the result now.
    pub by_all: bool,
    /// Every mirror has it now.
    pub by_mirrors: bool,
}

/// Whether a chunk is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expect {
    Fresh,
    Duplicate,
}
