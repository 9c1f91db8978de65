//! Deals partitions out by hash, as the paper does (OSDI'20, section 4.2), to compare with.
//!
//! In proportion to the weights on average only: with `p` partitions, a server of share `w` gets
//! `w p` give or take `sqrt(w (1-w) p)`, and the fullest link makes the time.

use crate::PlanError;
use crate::dealer::quantize;

/// Deals a stream of partitions out to servers by a hash of their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedDealer {
    /// Up to where each server's part of the whole reaches.
    ends: Vec<i128>,
    dealt: u64,
}

impl HashedDealer {
    /// A dealer for servers of these weights, relative to each other.
    ///
    /// # Errors
    /// As [`Dealer::new`](crate::Dealer::new).
    pub fn new(weights: &[f64]) -> Result<Self, PlanError> {
        let mut end = 0;
        let mut add = |weight| {
            end += weight;
            end
        };
        let ends = quantize(weights)?.into_iter().map(&mut add).collect();
        Ok(Self { ends, dealt: 0 })
    }

    /// Deals the next partition and returns the index of its server.
    pub fn deal(&mut self) -> usize {
        let whole = self.ends.last().copied().unwrap_or(1);
        let point = (i128::from(mix(self.dealt)) * whole) >> 64;
        self.dealt += 1;
        self.ends.partition_point(|end| *end <= point)
    }
}

/// SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014): every bit depends on every bit.
pub(crate) fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights_on_average_and_spread_as_chance_does() {
        let mut dealer = HashedDealer::new(&[1.0, 0.0, 2.0, 1.0]).unwrap();
        let mut counts = [0_i32; 4];
        for _ in 0..40_000 {
            counts[dealer.deal()] += 1;
        }
        assert_eq!(counts[1], 0);
        for (count, expected) in [(counts[0], 10_000), (counts[2], 20_000), (counts[3], 10_000)] {
            // Five standard deviations of a fair draw.
            assert!((count - expected).abs() < 500, "{counts:?}");
        }
        assert_ne!([counts[0], counts[2]], [10_000, 20_000], "that would be no hash");
    }

    #[test]
    fn equal_dealers_agree() {
        let mut one = HashedDealer::new(&[0.3, 0.7]).unwrap();
        let mut other = HashedDealer::new(&[0.3, 0.7]).unwrap();
        for _ in 0..100 {
            assert_eq!(one.deal(), other.deal());
        }
    }
}
