//! Deals partitions out to servers, one at a time in transmission order, so that not only the
//! total but every stretch of the stream is spread in proportion to the servers' weights.
//!
//! The rule is Tijdeman's chairman assignment ("The chairman assignment problem", Discrete
//! Mathematics 32, 1980) carried over from one chairman a year to partitions of any size. Let
//! `m` servers have positive weights `w_j` that sum to one, let no partition be larger than `P`,
//! and let `S` bytes have been dealt so far, `X_j` of them to server `j`. With
//! `c = 1 - 1/(2m-2)` (zero for `m = 1`), a partition of `s` bytes goes
//!
//! - to an *eligible* server, one that it does not put too far ahead: `X_j + s <= w_j (S+s) + cP`;
//! - among those, to the one with the earliest *deadline* `ceil((X_j + cP) / w_j)`, the last byte
//!   of the stream by which it must be served again lest it fall too far behind;
//! - among equals, to the first.
//!
//! **Bound.** After every partition, `|w_j S - X_j| <= cP` for every server: each prefix is
//! within one largest partition of its exact share, and each window, as a difference of two
//! prefixes, within two.
//!
//! *Too far ahead* is excluded by eligibility, and some server is always eligible: were none,
//! summing `w_j S - X_j + w_j s < s - cP` over the servers gives `s < m (s - cP)`, which needs
//! `s > P`. *Too far behind:* let server `j` be the first, at `S`, so that its deadline is before
//! `S` and it was not served last. Let the partition of `s0` bytes that ended at `S1` be the last
//! one given to a server `i` with a deadline after `S`, and let `A` be the servers served since,
//! all with deadlines up to `S`. Then `j` and `A` were not eligible for that partition (the
//! earliest deadline would have won), so each was ahead by more than `cP - s0`, at least
//! `-P/(2m-2)`, at `S1`. At `S`, a server of `A` is ahead by at most `P - cP = P/(2m-2)`, since
//! its deadline had not passed when it was last served, and `j` by less than `-cP`. So a server of
//! `A` received less than `w (S-S1) + P/(m-1)` since `S1`, and `j` less than
//! `w_j (S-S1) - P + P/(m-1)`; as `A` without `j` has at most `m-2` servers, all of them
//! together received less than `S - S1`, but they received all of it. (If no such partition
//! exists, the same sum from the start of the stream gives less than `S` dealt.)
//!
//! Invariants: the outcome depends on nothing but the weights, `P` and the sizes. Weights are
//! quantized once to integers, the largest to `2^40`; from there on all is integer arithmetic,
//! exact and the same on every machine.
//!
//! **Cost.** Of servers of one weight, the one with the least so far is both the first to be
//! eligible and the one with the earliest deadline. So it is enough to keep the servers of each
//! weight in that order and to compare the first of each: a partition costs one step for every
//! different weight and the logarithm of the number of servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::PlanError;

/// What the largest weight is quantized to. Rounding then costs a server less than a byte for
/// every TiB dealt, or a few with thousands of servers.
const LARGEST_WEIGHT: f64 = (1_u64 << 40) as f64;

/// Most servers that can be dealt to: with this many, lags of 64-bit sizes stay inside 128 bits
/// (17 bits for the servers, 40 for a weight, 64 for a size, 6 to spare).
const MAX_SERVERS: usize = 1 << 17;

/// Deals a stream of partitions out to servers. Equal dealers fed equal sizes agree for ever.
///
/// ```
/// use sumpter_plan::Dealer;
///
/// let mut dealer = Dealer::new(&[2.0, 1.0, 1.0], 4096)?;
/// let servers: Vec<usize> = (0..8).map(|_| dealer.deal(4096)).collect();
/// assert_eq!(servers, [0, 1, 2, 0, 0, 1, 2, 0]);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dealer {
    /// The servers by weight.
    classes: Vec<Class>,
    /// Bytes dealt so far (`S`).
    dealt: i128,
    /// Sum of the quantized weights. Lags are counted in units of `1/whole` byte.
    whole: i128,
    /// `cP`: how far ahead or behind a server may be.
    slack: i128,
}

/// Servers of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    /// The part of the whole that each has; never zero.
    weight: i128,
    /// Bytes of each (`X_j`) and its index, the least first.
    given: BTreeSet<(i128, usize)>,
}

impl Dealer {
    /// A dealer for servers of these weights (relative: they need not sum to one) and partitions
    /// of at most `largest_bytes`. A server of weight zero receives nothing.
    ///
    /// # Errors
    /// A weight that is negative or not finite, no positive weight, or more than 2^17 servers.
    pub fn new(weights: &[f64], largest_bytes: u64) -> Result<Self, PlanError> {
        let quantized = quantize(weights)?;
        let (mut classes, mut servers) = (BTreeMap::<i128, BTreeSet<_>>::new(), 0);
        for (index, weight) in quantized.iter().enumerate().filter(|(_, weight)| **weight > 0) {
            classes.entry(*weight).or_default().insert((0, index));
            servers += 1;
        }
        let classes = classes.into_iter().map(|(weight, given)| Class { weight, given }).collect();
        let whole = quantized.iter().sum();
        let largest = i128::from(largest_bytes) * whole;
        let slack = match servers {
            1 => 0,
            // Rounded up: a little more slack than c P keeps the bound's proof.
            m => largest - largest / (2 * m - 2),
        };
        Ok(Self { classes, dealt: 0, whole, slack })
    }

    /// Deals the next partition of the stream and returns the index of its server.
    ///
    /// The bound holds while no partition exceeds `largest_bytes`. A larger one is still dealt,
    /// to the server furthest behind if it would put every server too far ahead.
    pub fn deal(&mut self, bytes: u64) -> usize {
        let size = i128::from(bytes) * self.whole;
        let before = self.dealt;
        self.dealt += i128::from(bytes);
        let (dealt, whole, slack) = (self.dealt, self.whole, self.slack);
        let rank = |(number, class): (usize, &Class)| {
            let (given, index) = *class.given.first()?;
            let lag = class.weight * dealt - given * whole;
            // Ranks order the eligible by deadline and put the others behind them, by lag.
            let eligible = lag - size >= -slack;
            let order = match eligible {
                true => class.remaining(slack - (class.weight * before - given * whole)),
                false => -lag,
            };
            Some((!eligible, order, index, number))
        };
        // There is a class, and each has a server.
        let chosen = self.classes.iter().enumerate().filter_map(rank).min();
        let (index, number) = chosen.map_or((0, 0), |(_, _, index, number)| (index, number));
        let servers = &mut self.classes[number].given;
        if let Some((given, index)) = servers.pop_first() {
            servers.insert((given + i128::from(bytes), index));
        }
        index
    }
}

impl Class {
    /// Bytes of stream from now to the deadline of a server with so much room, rounded up. Now is
    /// a whole byte, so that these order as the deadlines do.
    fn remaining(&self, room: i128) -> i128 {
        room.div_euclid(self.weight) + i128::from(room.rem_euclid(self.weight) != 0)
    }
}

/// Integer weights in proportion: equal weights stay equal and zero stays zero. A division and a
/// multiplication by a power of two round the same on every machine.
pub(crate) fn quantize(weights: &[f64]) -> Result<Vec<i128>, PlanError> {
    if weights.len() > MAX_SERVERS {
        let expected = format!("at most {MAX_SERVERS}");
        return Err(PlanError::field("number of servers", weights.len(), expected));
    }
    for (index, weight) in weights.iter().enumerate() {
        if !(0.0..=f64::MAX).contains(weight) {
            let field = format!("weight of server {index}");
            return Err(PlanError::field(field, weight, "a finite number that is not negative"));
        }
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(PlanError::field("largest weight of a server", largest, "more than zero"));
    }
    let quantized = |weight: &f64| (weight / largest * LARGEST_WEIGHT).round() as i128;
    Ok(weights.iter().map(quantized).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weights() -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![1 => Just(0.0), 4 => 0.0..1.0, 2 => 1e-6..1e-3, 1 => 10.0..100.0];
        proptest::collection::vec(weight, 1..40)
            .prop_filter("a positive weight", |weights| weights.iter().any(|&w| w > 1e-7))
    }

    proptest! {
        #[test]
        fn quantized_weights_keep_the_proportions(weights in weights()) {
            let parts = quantize(&weights).unwrap();
            let (whole, total) = (parts.iter().sum::<i128>() as f64, weights.iter().sum::<f64>());
            for (part, weight) in parts.iter().zip(&weights) {
                let error = *part as f64 / whole - weight / total;
                prop_assert!(error.abs() < 1e-11, "{} {}", part, weight);
                prop_assert!(*weight > 0.0 || *part == 0);
            }
        }

        #[test]
        fn lag_never_exceeds_the_slack_to_the_last_unit(
            weights in weights(),
            sizes in proptest::collection::vec(0..=1_000_u64, 1..500),
        ) {
            let mut dealer = Dealer::new(&weights, 1_000).unwrap();
            for size in sizes {
                dealer.deal(size);
                let lags = lags(&dealer);
                prop_assert_eq!(lags.values().sum::<i128>(), 0);
                for lag in lags.values() {
                    prop_assert!(lag.abs() <= dealer.slack, "{:?}", dealer);
                }
            }
        }

        #[test]
        fn it_deals_as_a_pass_over_all_servers_does(
            weights in weights(),
            sizes in proptest::collection::vec(0..=1_200_u64, 1..300),
        ) {
            let mut dealer = Dealer::new(&weights, 1_000).unwrap();
            for size in sizes {
                let expected = by_one_pass(&dealer, size);
                prop_assert_eq!(dealer.deal(size), expected);
            }
        }
    }

    /// How far behind its exact share each server is, `w_j S - X_j`, in units of `1/whole` byte.
    fn lags(dealer: &Dealer) -> BTreeMap<usize, i128> {
        let of_class = |class: &Class| {
            let (weight, given) = (class.weight, class.given.clone());
            let lag = move |(given, index)| (index, weight * dealer.dealt - given * dealer.whole);
            given.into_iter().map(lag)
        };
        dealer.classes.iter().flat_map(of_class).collect()
    }

    /// The rule as it is written above: who gets the next partition.
    fn by_one_pass(dealer: &Dealer, bytes: u64) -> usize {
        let weight = |index: usize| {
            let has = |class: &&Class| class.given.iter().any(|(_, of)| *of == index);
            dealer.classes.iter().find(has).expect("its class").weight
        };
        let rank = |(index, before): (usize, i128)| {
            let weight = weight(index);
            let room = dealer.slack - before;
            let deadline = (room + weight - 1).div_euclid(weight);
            let lag = before + weight * i128::from(bytes);
            let eligible = lag - i128::from(bytes) * dealer.whole >= -dealer.slack;
            (!eligible, if eligible { deadline } else { -lag }, index)
        };
        lags(dealer).into_iter().map(rank).min().expect("a server").2
    }

    #[test]
    fn slack_is_that_of_tijdeman() {
        let dealer = Dealer::new(&[1.0; 5], 800).unwrap();
        assert_eq!(dealer.slack, 700 * dealer.whole);
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let mut weights = vec![1.0; MAX_SERVERS];
        weights[3] = 0.0;
        weights[4] = 1e-9;
        let mut dealer = Dealer::new(&weights, u64::MAX).unwrap();
        let mut surprised = Dealer::new(&weights, 1).unwrap();
        for _ in 0..5 {
            assert_ne!(dealer.deal(u64::MAX), 3);
            assert_ne!(surprised.deal(u64::MAX), 3);
        }
    }
}
