//! What of the bound training reaches in virtual time, for each way to order sums. The bound is one
//! iteration in the time of its compute or of its sums at best, whichever is longer.

use crate::job::{Setup, optimum};
use crate::net::Model;
use crate::replay::{Layer, Uneven, Way, play};
use crate::{MODEL, setup};

/// 10 Gb/s.
const RATE: f64 = 1.25e9;

/// A model on a cluster of `n` workers and `k` servers.
#[derive(Clone)]
struct Case<'a> {
    what: &'a str,
    /// Bytes of each layer's gradient.
    tensors: Vec<usize>,
    /// Seconds of each layer's forward and backward pass, of which only the proportions matter.
    seconds: Vec<(f64, f64)>,
    n: usize,
    k: usize,
    /// How many times as long as compute all sums take without servers, at best.
    ratio: f64,
    uneven: Uneven,
}

/// The seconds of the bound over those of an iteration.
struct Shares {
    off: f64,
    paced: f64,
    credit: f64,
    overlap: f64,
}

impl Case<'_> {
    fn setup(&self, k: usize) -> Setup {
        let model = Model { latency: 20e-6, ..MODEL };
        Setup { model, ..setup(self.n, vec![RATE; self.n + k], self.tensors.clone()) }
    }

    fn shares(&self) -> Shares {
        let compute: f64 = self.seconds.iter().map(|(forward, backward)| forward + backward).sum();
        let slowdown = optimum(&self.setup(0)) / self.ratio / compute;
        let layer = |(forward, backward): &(f64, f64)| Layer {
            forward: forward * slowdown,
            backward: backward * slowdown,
        };
        let layers: Vec<Layer> = self.seconds.iter().map(layer).collect();
        let bounded = self.setup(self.k);
        let bound = (compute * slowdown).max(optimum(&bounded));
        let share = |way: Way, credit_bytes: usize| {
            bound
                / play(&Setup { credit_bytes, ..self.setup(self.k) }, &layers, way, 3, self.uneven)
        };
        let ready_first = Way { urgent_first: false, overlap: false };
        let urgent_first = Way { urgent_first: true, overlap: false };
        let credit = bounded.credit_bytes;
        let shares = Shares {
            off: share(ready_first, usize::MAX),
            paced: share(ready_first, credit),
            credit: share(urgent_first, credit),
            overlap: share(Way { overlap: true, ..urgent_first }, credit),
        };
        let Case { what, n, k, ratio, .. } = self;
        let Shares { off, paced, credit, overlap } = shares;
        println!(
            "{what}, n = {n}, k = {k}, communication {ratio} of compute, of the bound: \
             off {off:.3}, with credit {paced:.3}, with priority too {credit:.3}, with overlap \
             too {overlap:.3}"
        );
        shares
    }
}

#[test]
fn what_is_urgent_first_lets_the_next_forward_pass_begin() {
    // As in a convolutional network: later layers are larger, and take no longer.
    let tensors: Vec<usize> = (0..20).map(|i| (128 << 10) << (i / 4)).collect();
    let seconds = vec![(1.0, 2.0); tensors.len()];
    let uneven = Uneven { jitter: 0.02, skew: 0.0 };
    for k in [0, 2, 4] {
        let (tensors, seconds) = (tensors.clone(), seconds.clone());
        let case = Case { what: "20 layers", tensors, seconds, n: 4, k, ratio: 1.0, uneven };
        let Shares { off, paced, credit, overlap } = case.shares();
        assert!(overlap >= 0.85, "{overlap} of the bound");
        assert!(overlap >= 0.98 * off && paced >= 0.98 * off && credit >= 0.97 * paced);
        assert!(k != 0 || overlap >= 1.15 * off, "{overlap} after {off}");
    }
}

/// A line a tensor, in forward order: microseconds of the forward and the backward pass, in
/// proportion to arithmetic, and bytes of the gradient (`sumpter.profiles.published`). The bytes,
/// then the times.
pub fn published(lines: &str) -> (Vec<usize>, Vec<(f64, f64)>) {
    let rows = lines.lines().map(|line| {
        let mut words = line.split(' ').map(|word| word.parse::<f64>().expect("a number"));
        let mut next = || words.next().expect("three numbers");
        let seconds = (next(), next());
        (next() as usize, seconds)
    });
    rows.unzip()
}

/// Plays a model at full size: three ratios and numbers of servers, then ranks of unequal pace.
/// `least` is the share of the bound below which nothing that overlaps may be.
fn in_full_size(case: &Case, least: f64) {
    let check = |case: Case| {
        let Shares { off, overlap, .. } = case.shares();
        assert!(overlap >= least && overlap >= 0.98 * off, "{overlap} after {off}");
    };
    for ratio in [0.5, 1.0, 2.0] {
        for k in [0, 2, 4] {
            check(Case { ratio, k, ..case.clone() });
        }
    }
    println!("The first rank 10 % faster than the last:");
    let uneven = Uneven { jitter: 0.02, skew: 0.1 };
    for k in [0, 2, 4] {
        check(Case { ratio: 2.0, k, uneven, ..case.clone() });
    }
}

macro_rules! full_size {
    ($($test:ident: $file:literal, $least:literal;)*) => {$(
        #[test]
        #[ignore = "takes minutes; prints a table with --nocapture"]
        fn $test() {
            let lines = include_str!(concat!("profiles/", $file, ".txt"));
            let (tensors, seconds) = published(lines);
            let uneven = Uneven { jitter: 0.02, skew: 0.0 };
            let case = Case { what: $file, tensors, seconds, n: 4, k: 0, ratio: 1.0, uneven };
            in_full_size(&case, $least);
        }
    )*};
}

full_size! {
    resnet50_in_full_size: "resnet50", 0.93;
    vgg16_in_full_size: "vgg16", 0.93;
    alexnet_in_full_size: "alexnet", 0.92;
    bert_large_in_full_size: "bert-large", 0.89;
    // The tied embedding is ready last and needed first.
    gpt2_in_full_size: "gpt2", 0.65;
}
