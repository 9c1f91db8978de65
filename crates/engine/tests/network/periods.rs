//! How long an iteration of training takes in virtual time with a job's defaults: the order of
//! readiness, or with overlap the order of need. What-if analysis is held against these figures.

use crate::job::{Setup, optimum};
use crate::net::Model;
use crate::replay::{Layer, Uneven, Way, play};
use crate::{MODEL, setup};

/// 10 Gb/s.
const RATE: f64 = 1.25e9;

/// Workers and servers.
const CLUSTERS: [(usize, usize); 9] =
    [(2, 0), (2, 1), (2, 2), (4, 0), (4, 2), (4, 4), (8, 0), (8, 4), (8, 8)];

/// Prints a line for each cluster and ratio of communication to compute, with the seconds in both
/// orders. Twelve layers of equal time, the later ones larger, as in a convolutional network.
#[test]
#[ignore = "takes a minute; prints a table with --nocapture"]
fn iterations_take_no_less_than_their_bound() {
    let tensors: Vec<usize> = (0..12).map(|i| (128 << 10) << (i / 3 * 2)).collect();
    for (n, k) in CLUSTERS {
        let model = Model { latency: 20e-6, ..MODEL };
        let of = |k| Setup { model, ..setup(n, vec![RATE; n + k], tensors.clone()) };
        for ratio in [0.5, 1.0, 2.0] {
            let compute = optimum(&of(0)) / ratio;
            let part = compute / (3 * tensors.len()) as f64;
            let layers = vec![Layer { forward: part, backward: 2.0 * part }; tensors.len()];
            let bound = compute.max(optimum(&of(k)));
            let uneven = Uneven { jitter: 0.02, skew: 0.0 };
            let period = |overlap| {
                let way = Way { urgent_first: overlap, overlap };
                play(&of(k), &layers, way, 3, uneven)
            };
            let (paced, overlap) = (period(false), period(true));
            println!("    ({n}, {k}, {ratio:.1}, {paced:.6}, {overlap:.6}),");
            // Layers vary by up to 2 %, and so does the sum of a few.
            assert!(paced >= 0.98 * bound && overlap >= 0.98 * bound, "{paced} {overlap} {bound}");
        }
    }
}
