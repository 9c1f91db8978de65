//! Tensors that device groups have reduced: each worker holds a shard of its group's sum, one
//! stretch of the tensor or nothing, and contributes and receives only that. What it contributes to
//! a byte stands for its group's sum.

use std::collections::BTreeSet;
use std::ops::Range;

use fastrand::Rng;
use sumpter_endpoint::OwnedMemory;
use sumpter_types::Rank;

use super::{Machines, Tensor};

/// Some bytes of a tensor, and who holds them: one worker of each group.
pub type Shard = (Range<usize>, Vec<Rank>);

/// Device groups of one to three workers of a machine each.
pub fn groups(rng: &mut Rng, machines: &[Vec<Rank>]) -> Vec<Vec<Rank>> {
    let mut groups = Vec::new();
    for machine in machines {
        let mut left = machine.clone();
        while !left.is_empty() {
            groups.push(left.split_off(left.len() - rng.usize(1..=left.len())));
        }
    }
    groups
}

/// Shards of a tensor of so many elements of a size: each group cuts it anywhere between elements.
pub fn shards(
    rng: &mut Rng,
    (elements, size): (usize, usize),
    groups: &[Vec<Rank>],
    members: &[Rank],
) -> Vec<Shard> {
    let mut held: Vec<Vec<(Rank, Range<usize>)>> = Vec::new();
    for group in groups {
        let mut there: Vec<Rank> =
            group.iter().copied().filter(|rank| members.contains(rank)).collect();
        // Some hold nothing.
        while there.len() > 1 && rng.u32(0..4) == 0 {
            there.remove(rng.usize(0..there.len()));
        }
        let mut ends: Vec<usize> =
            there.iter().skip(1).map(|_| rng.usize(0..=elements) * size).collect();
        ends.push(elements * size);
        ends.sort_unstable();
        let mut start = 0;
        let cut = |(rank, end)| (rank, std::mem::replace(&mut start, end)..end);
        held.push(there.into_iter().zip(ends).map(cut).collect());
    }
    let ends = held.iter().flatten().flat_map(|(_, bytes)| [bytes.start, bytes.end]);
    let ends: BTreeSet<usize> = ends.collect();
    let ends: Vec<usize> = ends.into_iter().collect();
    let shard = |ends: &[usize]| {
        let has =
            |(_, bytes): &&(Rank, Range<usize>)| bytes.start <= ends[0] && ends[1] <= bytes.end;
        let holder = |of: &Vec<_>| of.iter().find(has).map(|(rank, _)| *rank);
        let mut holders: Vec<Rank> = held.iter().filter_map(holder).collect();
        holders.sort_unstable();
        (ends[0]..ends[1], holders)
    };
    let mut all: Vec<Shard> = ends.windows(2).map(shard).collect();
    all.dedup_by(|next, before| {
        let joins = next.1 == before.1;
        before.0.end = if joins { next.0.end } else { before.0.end };
        joins
    });
    all
}

impl Tensor {
    /// The bytes of the tensor that are in a worker's memory.
    pub fn own(&self, rank: Rank) -> Range<usize> {
        if self.shards.is_empty() {
            return 0..self.bytes();
        }
        let mut held = self.shards.iter().filter(|(_, holders)| holders.contains(&rank));
        let Some((first, _)) = held.next() else { return 0..0 };
        first.start..held.next_back().map_or(first.end, |(last, _)| last.end)
    }

    /// The same tensor as the holders of each shard have it; itself, if it has no shards.
    pub fn views(&self) -> Vec<Tensor> {
        if self.shards.is_empty() {
            return vec![self.clone()];
        }
        let mut first = 0;
        let view = |(bytes, holders): &Shard| {
            let within = |part: &&super::Part| bytes.contains(&part.offset);
            let parts: Vec<_> = self.parts.iter().filter(within).cloned().collect();
            let before = first;
            first += parts.len() as u32;
            Tensor { members: holders.clone(), parts, first: before, ..self.clone() }
        };
        self.shards.iter().map(view).collect()
    }

    /// Whether a byte is one of the view's.
    pub fn has(&self, byte: usize) -> bool {
        let held = |(bytes, holders): &Shard| bytes.contains(&byte) && *holders == self.members;
        self.shards.is_empty() || self.shards.iter().any(held)
    }

    /// How many workers' contributions are in a result to which these contribute.
    pub fn contributors(&self, members: &[Rank]) -> u32 {
        (if self.shards.is_empty() { members } else { &self.everyone }).len() as u32
    }

    /// The part of a worker's contribution that it holds.
    pub fn shard_of(&self, memory: OwnedMemory, rank: Rank) -> OwnedMemory {
        let own = self.own(rank);
        let part = |bytes: Vec<u8>| bytes[own.clone()].to_vec();
        OwnedMemory { separate: memory.separate.map(part), bytes: part(memory.bytes) }
    }

    /// What the sums of all shards give in a round.
    pub fn sum_of_shards(&self, round: u32, on: &Machines) -> Vec<u8> {
        let mut out = Vec::new();
        for (bytes, holders) in &self.shards {
            out.extend_from_slice(&self.sum(round, (holders, on))[bytes.clone()]);
        }
        out
    }

    /// The whole result of a round, of which `of` has each worker's part; every holder of a byte
    /// must have the same.
    pub fn joined<'a>(&self, round: u32, of: impl Fn(Rank) -> &'a Vec<u8>) -> Vec<u8> {
        let mut all = vec![0; self.bytes()];
        for (bytes, holders) in &self.shards {
            let start = self.own(holders[0]).start;
            let first = &of(holders[0])[bytes.start - start..bytes.end - start];
            all[bytes.clone()].copy_from_slice(first);
        }
        for rank in &self.members {
            let same = *of(*rank) == all[self.own(*rank)];
            assert!(same, "the shard of rank {rank}, round {round}: {self:?}");
        }
        all
    }
}
