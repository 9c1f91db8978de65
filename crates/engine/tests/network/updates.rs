//! What update rounds cost beside plain sums of the same tensors. Processors cost nothing here, so
//! what shows is the protocol: gradients to the mirrors in place of values, and the round trip
//! after which a worker may let go of its gradients.

use crate::job::{Setup, optimum, run};
use crate::net::Model;
use crate::replay::{Layer, Uneven, Way, play};
use crate::training::published;
use crate::{MODEL, RATE, setup};

/// GPU machines.
const N: usize = 8;

/// The least share of the throughput of plain sums.
const LEAST: f64 = 0.95;

/// 10 Gb/s.
const FAST: f64 = 1.25e9;
const LATENCY: f64 = 20e-6;

/// As a convolutional network has them: many small, some of megabytes.
fn tensors() -> Vec<usize> {
    let small = (0..100).map(|i| 1024 << (i % 4));
    small.chain((0..20).map(|i| (256 << 10) << (i % 4))).chain([8 << 20]).collect()
}

#[test]
fn a_round_that_updates_takes_hardly_longer_than_a_sum() {
    for k in 0..=N {
        let of = |updates| run(&Setup { updates, ..setup(N, vec![RATE; N + k], tensors()) });
        let (sums, updates) = (of(false), of(true));
        let goodput = sums.seconds / updates.seconds;
        let bytes = updates.carried as f64 / sums.carried as f64;
        println!(
            "121 tensors, n = {N}, k = {k}: {:.4} s with sums, {:.4} s with updates, goodput \
             {goodput:.4}, bytes on the links {bytes:.4}",
            sums.seconds, updates.seconds
        );
        assert!(goodput >= LEAST, "k = {k}: {goodput} of the goodput of sums");
        assert!(bytes <= 1.01, "k = {k}: {bytes} of the bytes of sums");
    }
}

/// Iterations of training that communicates as long as it computes, with sums and with updates:
/// with the first layer first, and all sums needed at the beginning of an iteration or each by its
/// layer.
///
/// An update's new values are there no later than sums are, but it is done a round trip later,
/// which shows where a layer waits for its own: `overlapped` is the least share of iterations then.
fn train(what: &str, (tensors, seconds): (&[usize], &[(f64, f64)]), k: usize, overlapped: f64) {
    let of = |updates| {
        let model = Model { latency: LATENCY, ..MODEL };
        Setup { model, updates, ..setup(N, vec![FAST; N + k], tensors.to_vec()) }
    };
    let compute: f64 = seconds.iter().map(|(forward, backward)| forward + backward).sum();
    let slowdown = optimum(&of(false)) / compute;
    let layer = |(forward, backward): &(f64, f64)| Layer {
        forward: forward * slowdown,
        backward: backward * slowdown,
    };
    let layers: Vec<Layer> = seconds.iter().map(layer).collect();
    for overlap in [false, true] {
        let way = Way { urgent_first: true, overlap };
        let uneven = Uneven { jitter: 0.02, skew: 0.0 };
        let period = |updates| play(&of(updates), &layers, way, 3, uneven);
        let (sums, updates) = (period(false), period(true));
        let share = sums / updates;
        println!(
            "{what}, n = {N}, k = {k}, {} us each way, overlap {overlap}: {:.3} ms with sums, \
             {:.3} ms with updates, {share:.4} of the iterations",
            1e6 * LATENCY,
            1e3 * sums,
            1e3 * updates
        );
        let least = if overlap { overlapped } else { LEAST };
        assert!(share >= least, "k = {k}, overlap {overlap}: {share} of the iterations");
    }
}

#[test]
fn training_that_updates_takes_hardly_longer_than_with_sums() {
    let tensors: Vec<usize> = (0..20).map(|i| (128 << 10) << (i / 4)).collect();
    let seconds = vec![(1.0, 2.0); tensors.len()];
    for k in [0, 2, 4, 8] {
        train("20 layers", (&tensors, &seconds), k, 0.85);
    }
}

#[test]
#[ignore = "takes minutes; prints a table with --nocapture"]
fn resnet50_that_updates_in_full_size() {
    let (tensors, seconds) = published(include_str!("profiles/resnet50.txt"));
    for k in 0..=N {
        train("resnet50", (&tensors, &seconds), k, LEAST);
    }
}
