//! The state of a stretch of a variable that changes asynchronously, as its mirror gets it.

use sumpter_types::Rank;

use crate::frame::{FrameError, FrameKind, word};

/// Bytes of the payload of a `Snapshot` frame before the clocks.
pub const SNAPSHOT_BYTES: usize = 12;

/// Bytes of one clock.
const CLOCK_BYTES: usize = 12;

/// What is in a variable of one worker: a vector clock has one for each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The worker.
    pub rank: Rank,
    /// How many of its rounds.
    pub rounds: u32,
    /// The [position](crate::OrderEntry::position) of the last of them; 0 if there is none.
    pub position: u32,
}

impl Clock {
    /// No round of a worker.
    #[must_use]
    pub fn new(rank: Rank) -> Clock {
        Clock { rank, rounds: 0, position: 0 }
    }
}

/// What the payload of a `Snapshot` frame begins with. The parts of the variable follow, value and
/// slots, each with `len` bytes; or nothing, if the frame is about what is put into a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// First byte in the partition, as elements of the master type.
    pub offset: u32,
    /// Bytes of each part.
    pub len: u32,
    /// Which rounds of which workers are in it, in ascending order of ranks.
    pub clocks: Vec<Clock>,
}

impl Snapshot {
    /// Bytes of the payload of a frame with so many clocks, and so many bytes behind.
    #[must_use]
    pub fn payload_bytes(clocks: usize, parts: usize) -> usize {
        SNAPSHOT_BYTES + clocks * CLOCK_BYTES + parts
    }

    /// The payload's bytes, without those of the parts.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.offset, self.len, self.clocks.len() as u32];
        let of = |Clock { rank, rounds, position }: &Clock| [rank.0, *rounds, *position];
        let clocks = self.clocks.iter().flat_map(of);
        words.into_iter().chain(clocks).flat_map(u32::to_le_bytes).collect()
    }

    /// Reads a payload; what is left of it are the parts.
    ///
    /// # Errors
    /// [`FrameError::Length`] for a payload that ends too early, [`FrameError::GroupOrder`] unless
    /// the ranks ascend, [`FrameError::Spec`] for a stretch without bytes.
    pub fn decode(payload: &[u8]) -> Result<(Snapshot, &[u8]), FrameError> {
        let wrong_length = || FrameError::Length {
            kind: FrameKind::Snapshot,
            length: payload.len() as u64,
            expected: "a snapshot's head and its clocks",
        };
        let (head, rest) = payload.split_at_checked(SNAPSHOT_BYTES).ok_or_else(wrong_length)?;
        let (offset, len, count) = (word(head, 0), word(head, 4), word(head, 8) as usize);
        let bytes = count.checked_mul(CLOCK_BYTES).ok_or_else(wrong_length)?;
        let (clocks, parts) = rest.split_at_checked(bytes).ok_or_else(wrong_length)?;
        let clocks = clocks.chunks_exact(CLOCK_BYTES);
        let clock = |bytes: &[u8]| Clock {
            rank: Rank(word(bytes, 0)),
            rounds: word(bytes, 4),
            position: word(bytes, 8),
        };
        let clocks: Vec<Clock> = clocks.map(clock).collect();
        if !clocks.windows(2).all(|pair| pair[0].rank < pair[1].rank) {
            return Err(FrameError::GroupOrder);
        }
        if len == 0 || offset.checked_add(len).is_none() {
            return Err(FrameError::Spec { field: "len", value: len.into() });
        }
        Ok((Snapshot { offset, len, clocks }, parts))
    }
}
