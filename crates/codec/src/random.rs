//! Random numbers without a state: each is a function of what it is for.
//!
//! Philox4x32 with 7 rounds, the fewest with which it passes BigCrush (Salmon et al., "Parallel
//! random numbers: as easy as 1, 2, 3", SC 2011).

use sumpter_types::{Rank, Round, TensorId};

use crate::block::BLOCK;

/// Rounds of Philox.
const ROUNDS: usize = 7;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Counters that give the words of a block, of which each gives four.
const COUNTERS: usize = BLOCK / 4;

/// Counters that are computed at a time: a register of 512 bits of 32-bit words.
const LANES: usize = 16;

/// In place of a rank where all ranks draw the same numbers.
const ALL_RANKS: u32 = u32::MAX;

/// In place of a rank for the numbers of a sum.
const SUM: Rank = Rank(u32::MAX - 1);

/// What random numbers are for, besides the codec's seed and the element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The tensor.
    pub tensor: TensorId,
    /// The round.
    pub round: Round,
    /// Whose contribution it is; for what is drawn alike by all ranks it does not matter.
    pub rank: Rank,
}

impl Key {
    /// Of the sum of a round, which no rank contributes.
    #[must_use]
    pub fn of_sum(tensor: TensorId, round: Round) -> Key {
        Key { tensor, round, rank: SUM }
    }
}

/// The random numbers of one contribution, or of one that all ranks make alike.
#[derive(Clone, Copy)]
pub(crate) struct Stream([u32; 2]);

impl Stream {
    /// The numbers of this rank alone.
    pub(crate) fn of_rank(seed: u64, key: Key) -> Stream {
        Stream::new(seed, key, key.rank.0)
    }

    /// The numbers that all ranks have in common.
    pub(crate) fn of_all(seed: u64, key: Key) -> Stream {
        Stream::new(seed, key, ALL_RANKS)
    }

    fn new(seed: u64, key: Key, rank: u32) -> Stream {
        let counter = [key.tensor.0, key.round.0, rank, 0];
        let [a, b, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
        Stream([a, b])
    }

    /// The first `count` words of a block. Word `i` is word `i / 256` of counter `i % 256`, so
    /// that words beside each other come from counters beside each other.
    #[inline(always)]
    pub(crate) fn fill(self, block: u64, count: usize, words: &mut [u32; BLOCK]) {
        let rows = count.div_ceil(COUNTERS);
        for start in (0..COUNTERS.min(count)).step_by(LANES) {
            let mut counters = [[0; LANES]; 4];
            for (lane, low) in counters[0].iter_mut().enumerate() {
                *low = (start + lane) as u32;
            }
            counters[1] = [block as u32; LANES];
            counters[2] = [(block >> 32) as u32; LANES];
            let drawn = philox_lanes(counters, self.0);
            for (row, drawn) in drawn.iter().enumerate().take(rows) {
                words[row * COUNTERS + start..][..LANES].copy_from_slice(drawn);
            }
        }
    }
}

fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(counter.map(|word| [word]), key).map(|[word]| word)
}

#[inline(always)]
fn philox_lanes<const N: usize>(mut c: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    for _ in 0..ROUNDS {
        let mut next = [[0; N]; 4];
        for i in 0..N {
            let one = u64::from(MULTIPLIERS[0]).wrapping_mul(u64::from(c[0][i]));
            let other = u64::from(MULTIPLIERS[1]).wrapping_mul(u64::from(c[2][i]));
            next[0][i] = (other >> 32) as u32 ^ c[1][i] ^ key[0];
            next[1][i] = other as u32;
            next[2][i] = (one >> 32) as u32 ^ c[3][i] ^ key[1];
            next[3][i] = one as u32;
        }
        c = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `kat_vectors` of Random123.
    #[test]
    fn philox_gives_the_known_answers() {
        let ones = u32::MAX;
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]),
            ([ones; 4], [ones; 2], [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a],
            ),
        ] {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn a_word_is_a_function_of_its_counter_and_does_not_depend_on_how_many_are_drawn() {
        let stream = Stream::of_rank(7, Key::default());
        let mut all = [0; BLOCK];
        stream.fill(1 << 33 | 5, BLOCK, &mut all);
        for i in [0, 1, 15, 16, 255, 256, 700, 1023] {
            let counter = [(i % COUNTERS) as u32, 5, 2, 0];
            assert_eq!(all[i], philox(counter, stream.0)[i / COUNTERS]);
        }
        for count in [0, 1, 16, 17, 255, 256, 257, 1000] {
            let mut some = [0; BLOCK];
            stream.fill(1 << 33 | 5, count, &mut some);
            assert_eq!(some[..count], all[..count]);
        }
    }

    #[test]
    fn streams_differ_by_seed_tensor_round_and_rank() {
        let key = |tensor, round, rank| Key {
            tensor: TensorId(tensor),
            round: Round(round),
            rank: Rank(rank),
        };
        let streams = [
            Stream::of_rank(0, key(0, 0, 0)),
            Stream::of_rank(1, key(0, 0, 0)),
            Stream::of_rank(1 << 32, key(0, 0, 0)),
            Stream::of_rank(0, key(1, 0, 0)),
            Stream::of_rank(0, key(0, 1, 0)),
            Stream::of_rank(0, key(0, 0, 1)),
            Stream::of_all(0, key(0, 0, 0)),
        ];
        for (i, one) in streams.iter().enumerate() {
            assert!(streams[..i].iter().all(|other| other.0 != one.0));
        }
        assert_eq!(Stream::of_all(0, key(0, 0, 0)).0, Stream::of_all(0, key(0, 0, 1)).0);
    }
}
