//! In which order the workers change a variable that changes asynchronously, as an order log
//! records and replays it.
//!
//! The *position* of a contribution to an element is the number of contributions that are in the
//! element before it. Positions are counted modulo 2^32.

use crate::frame::{FrameError, FrameKind, MAX_ORDER_ENTRIES, ORDER_ENTRY_BYTES, word};

/// A stretch of a worker's partition in one round: it begins where the one before ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderEntry {
    /// First byte behind it in the partition.
    pub end: u32,
    /// The position at which the contribution is added.
    pub position: u32,
    /// How many contributions are in the value that the worker gets.
    pub answer: u32,
}

/// The bytes of the order of one round of one partition.
#[must_use]
pub fn encode_order(order: &[OrderEntry]) -> Vec<u8> {
    let words = order.iter().flat_map(|entry| [entry.end, entry.position, entry.answer]);
    words.flat_map(u32::to_le_bytes).collect()
}

/// Reads an order, of which the header has the length.
///
/// # Errors
/// [`FrameError::Length`] for a part of an entry, or too many of them; [`FrameError::Spec`] unless
/// the ends ascend.
pub fn decode_order(kind: FrameKind, bytes: &[u8]) -> Result<Vec<OrderEntry>, FrameError> {
    let (entries, rest) = bytes.as_chunks::<ORDER_ENTRY_BYTES>();
    if !rest.is_empty() || entries.len() > MAX_ORDER_ENTRIES {
        let (length, expected) = (bytes.len() as u64, "at most 65536 entries of an order");
        return Err(FrameError::Length { kind, length, expected });
    }
    let entry = |bytes: &[u8; ORDER_ENTRY_BYTES]| OrderEntry {
        end: word(bytes, 0),
        position: word(bytes, 4),
        answer: word(bytes, 8),
    };
    let order: Vec<OrderEntry> = entries.iter().map(entry).collect();
    let mut start = 0;
    for OrderEntry { end, .. } in &order {
        if *end <= start {
            return Err(FrameError::Spec { field: "end", value: u64::from(*end) });
        }
        start = *end;
    }
    Ok(order)
}
