//! Shards: which bytes of a tensor each rank of a device group holds once the group has reduced
//! them on its devices.
//!
//! The ranks of a group, whose devices hang below one PCIe switch or form an NVLink island, reduce
//! among themselves before anything leaves the devices (BytePS, OSDI'20, section 4.2). Each holder
//! then contributes only its shard to the network. Each group cuts a tensor by itself, so groups
//! may differ in size; a stretch that no group cuts is summed among its holders, one of each group.

use std::collections::BTreeSet;
use std::ops::Range;

use sumpter_types::Rank;

use crate::hashed::mix;

/// A tensor with no more bytes for each holder of a group is held as a whole by one of them. So
/// many bytes take 5 us at 25 Gb/s, about what the system calls for a frame of them do: smaller
/// shards would save no time on the network, and cost a frame and a copy for each holder.
pub const SMALL_SHARD_BYTES: u64 = 16 << 10;

/// A stretch of a tensor that one rank of each device group holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Bytes of the tensor.
    pub bytes: Range<u64>,
    /// Who holds them, ascending: one of each group.
    pub holders: Vec<Rank>,
}

/// A number to choose the holder of a small tensor by, from its name: known before the tensor has
/// a number, and the same on every rank.
#[must_use]
pub fn shard_turn(name: &str) -> u64 {
    name.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// The bytes of a tensor that each of a group's `holders` holds, in their order. Those of a large
/// tensor have equal numbers of elements, but for the last one, which has the remainder too: what
/// a reduce-scatter of equal parts leaves is reduced to the last one. A small tensor is held by
/// the one whose `turn` it is, and the others hold nothing.
#[must_use]
pub fn shard_cut(elements: u64, item_bytes: u64, holders: u64, turn: u64) -> Vec<Range<u64>> {
    let bytes = elements * item_bytes;
    if bytes <= SMALL_SHARD_BYTES * holders {
        let one = turn.checked_rem(holders);
        return (0..holders).map(|at| 0..if Some(at) == one { bytes } else { 0 }).collect();
    }
    let each = elements / holders * item_bytes;
    let end = |at| if at + 1 == holders { bytes } else { (at + 1) * each };
    (0..holders).map(|at| at * each..end(at)).collect()
}

/// The shards of a tensor with these groups, of each of which the holders are given in ascending
/// order: in the order of the tensor, each as long as its holders are the same, and of all its
/// bytes.
#[must_use]
pub fn shards(elements: u64, item_bytes: u64, groups: &[Vec<Rank>], turn: u64) -> Vec<Shard> {
    let cut = |holders: &Vec<Rank>| {
        let cut = shard_cut(elements, item_bytes, holders.len() as u64, turn);
        holders.iter().copied().zip(cut).collect::<Vec<_>>()
    };
    let cuts: Vec<Vec<(Rank, Range<u64>)>> = groups.iter().map(cut).collect();
    let ends = cuts.iter().flatten().flat_map(|(_, bytes)| [bytes.start, bytes.end]);
    let ends: BTreeSet<u64> = ends.chain([0]).collect();
    let mut all: Vec<Shard> = Vec::new();
    for (start, end) in ends.iter().zip(ends.iter().skip(1)) {
        let has = |(_, bytes): &&(Rank, Range<u64>)| bytes.start <= *start && *end <= bytes.end;
        let holder = |cut: &Vec<(Rank, Range<u64>)>| cut.iter().find(has).map(|(rank, _)| *rank);
        let mut holders: Vec<Rank> = cuts.iter().filter_map(holder).collect();
        holders.sort_unstable();
        match all.last_mut().filter(|before| before.holders == holders) {
            Some(before) => before.bytes.end = *end,
            None => all.push(Shard { bytes: *start..*end, holders }),
        }
    }
    all
}
