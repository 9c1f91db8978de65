//! The dealer's promise: every prefix of the stream within one largest partition of its exact
//! share, every window within two, whatever the weights and sizes.

use proptest::prelude::*;
use sumpter_plan::Dealer;

/// Follows a stream and remembers how far each server ever was ahead and behind.
struct Ledger {
    shares: Vec<f64>,
    given: Vec<f64>,
    dealt: f64,
    behind: Vec<f64>,
    ahead: Vec<f64>,
}

impl Ledger {
    fn new(weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        let zeros = vec![0.0; weights.len()];
        Self {
            shares: weights.iter().map(|weight| weight / total).collect(),
            given: zeros.clone(),
            dealt: 0.0,
            behind: zeros.clone(),
            ahead: zeros,
        }
    }

    fn add(&mut self, server: usize, bytes: u64) {
        self.dealt += bytes as f64;
        self.given[server] += bytes as f64;
        for (index, share) in self.shares.iter().enumerate() {
            let lag = share * self.dealt - self.given[index];
            self.behind[index] = self.behind[index].max(lag);
            self.ahead[index] = self.ahead[index].max(-lag);
        }
    }

    /// Largest deviation of any prefix.
    fn prefix(&self) -> f64 {
        self.behind.iter().chain(&self.ahead).copied().fold(0.0, f64::max)
    }

    /// Largest deviation of any window: the difference of two prefixes.
    fn window(&self) -> f64 {
        let spans = self.behind.iter().zip(&self.ahead).map(|(behind, ahead)| behind + ahead);
        spans.fold(0.0, f64::max)
    }

    fn check(&self, largest: u64) -> Result<(), TestCaseError> {
        let servers = self.shares.iter().filter(|share| **share > 0.0).count() as f64;
        let factor = if servers == 1.0 { 0.0 } else { 1.0 - 1.0 / (2.0 * servers - 2.0) };
        // Quantized weights and floating point here: a millionth of a partition.
        let bound = largest as f64 * (factor + 1e-6);
        prop_assert!(self.prefix() <= bound, "prefix {} over {}", self.prefix(), bound);
        prop_assert!(self.window() <= 2.0 * bound, "window {}", self.window());
        Ok(())
    }
}

/// Weights of all kinds: equal, random, one heavy among many light, zeros.
fn weights() -> impl Strategy<Value = Vec<f64>> {
    let random = proptest::collection::vec(prop_oneof![1 => Just(0.0), 5 => 0.01..1.0], 1..=40);
    let equal = (1..=40_usize).prop_map(|servers| vec![1.0; servers]);
    let steep = proptest::collection::vec((0..6_i32).prop_map(|e| 8_f64.powi(-e)), 1..=40);
    let heavy = (2..=40_usize, 1.0..200.0_f64).prop_map(|(servers, weight)| {
        let mut weights = vec![1.0; servers];
        weights[servers / 2] = weight;
        weights
    });
    prop_oneof![random, equal, steep, heavy]
        .prop_filter("a positive weight", |weights| weights.iter().any(|weight| *weight > 0.0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn equal_partitions_stay_within_one_and_windows_within_two(
        weights in weights(),
        bytes in prop_oneof![Just(1_u64), Just(1 << 20)],
    ) {
        let mut dealer = Dealer::new(&weights, bytes).unwrap();
        let mut ledger = Ledger::new(&weights);
        for _ in 0..1_500 {
            ledger.add(dealer.deal(bytes), bytes);
        }
        ledger.check(bytes)?;
    }

    #[test]
    fn unequal_partitions_stay_within_the_largest_and_windows_within_two(
        weights in weights(),
        sizes in proptest::collection::vec(
            prop_oneof![Just(4096_u64), Just(2048), Just(2560), 1..4096_u64, 0..64_u64],
            1..1_500,
        ),
    ) {
        let mut dealer = Dealer::new(&weights, 4096).unwrap();
        let mut ledger = Ledger::new(&weights);
        for size in sizes {
            ledger.add(dealer.deal(size), size);
        }
        ledger.check(4096)?;
    }

    #[test]
    fn an_adversary_who_sees_the_next_move_cannot_break_the_bound(
        weights in weights(),
        moves in proptest::collection::vec((0..4_usize, 1..=4096_u64), 600),
    ) {
        let mut dealer = Dealer::new(&weights, 4096).unwrap();
        let mut ledger = Ledger::new(&weights);
        let starved = |ledger: &Ledger| {
            let lag = |index: usize| {
                ledger.shares[index] * ledger.dealt - ledger.given[index]
            };
            (0..ledger.shares.len()).max_by(|&a, &b| lag(a).total_cmp(&lag(b))).unwrap()
        };
        for (style, random) in moves {
            // Either any size, or the largest that passes over the server furthest behind.
            let target = starved(&ledger);
            let sizes = [random, 4096, 4096 - random / 8, random / 8 + 1];
            let passes = |&size: &u64| dealer.clone().deal(size) != target;
            let size = match style {
                0 => random,
                1 => sizes.into_iter().filter(passes).max().unwrap_or(1),
                2 => sizes.into_iter().filter(passes).min().unwrap_or(4096),
                _ => 4096,
            };
            ledger.add(dealer.deal(size), size);
        }
        ledger.check(4096)?;
    }

    #[test]
    fn equal_dealers_agree_for_ever_and_a_clone_goes_on_alike(
        weights in weights(),
        sizes in proptest::collection::vec(0..5000_u64, 1..300),
    ) {
        let mut first = Dealer::new(&weights, 4096).unwrap();
        let mut second = Dealer::new(&weights, 4096).unwrap();
        for (index, &size) in sizes.iter().enumerate() {
            if index == sizes.len() / 2 {
                second = first.clone();
            }
            prop_assert_eq!(first.deal(size), second.deal(size));
        }
    }

    #[test]
    fn a_server_of_weight_zero_receives_nothing(
        weights in weights(),
        sizes in proptest::collection::vec(0..10_000_u64, 1..300),
    ) {
        let mut dealer = Dealer::new(&weights, 4096).unwrap();
        for size in sizes {
            prop_assert!(weights[dealer.deal(size)] > 0.0);
        }
    }

    #[test]
    fn only_the_proportions_of_the_weights_count(
        weights in proptest::collection::vec(1..1000_u32, 1..20),
        exponent in -30..30_i32,
    ) {
        let plain: Vec<f64> = weights.iter().map(|&weight| f64::from(weight)).collect();
        let scaled: Vec<f64> = plain.iter().map(|weight| weight * 2_f64.powi(exponent)).collect();
        prop_assert_eq!(Dealer::new(&plain, 64).unwrap(), Dealer::new(&scaled, 64).unwrap());
    }
}

/// Expected values from the rule evaluated in exact fractions.
#[test]
fn the_outcome_is_this_one_on_every_machine() {
    let weights = [4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 2.0];
    let deal = |sizes: &[u64]| -> Vec<usize> {
        let mut dealer = Dealer::new(&weights, 10).unwrap();
        sizes.iter().map(|&size| dealer.deal(size)).collect()
    };
    let equal = [0, 1, 2, 3, 6, 0, 1, 4, 0, 1, 5, 2, 3, 6, 0, 1, 0, 1, 2, 3, 6, 0, 1, 4];
    assert_eq!(deal(&[10; 24]), equal);
    let sizes = [10, 7, 3, 1, 9, 10, 4, 4, 8, 2, 10, 10, 5, 6, 1, 1, 1, 10, 9, 3];
    let unequal = [0, 1, 1, 2, 3, 6, 0, 1, 2, 0, 1, 0, 1, 2, 0, 0, 3, 4, 5, 0];
    assert_eq!(deal(&sizes), unequal);
}

#[test]
fn weights_that_are_no_weights_are_refused_by_place_and_value() {
    let message = |weights: &[f64]| Dealer::new(weights, 1).unwrap_err().to_string();
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let expected = format!("weight of server 1 is {weight}; expected a finite number");
        assert!(message(&[1.0, weight]).starts_with(&expected), "{}", message(&[1.0, weight]));
    }
    for weights in [&[][..], &[0.0, 0.0]] {
        let expected = "largest weight of a server is 0; expected more than zero";
        assert_eq!(message(weights), expected);
    }
    let crowd = vec![1.0; (1 << 17) + 1];
    assert_eq!(message(&crowd), "number of servers is 131073; expected at most 131072");
}
