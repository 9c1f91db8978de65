//! How near the engine comes to the optimum on a network in virtual time, where nothing else
//! disturbs: partitions, their order and the credit decide, and the windows of the connections.
//! With `--nocapture` it prints a table.

mod job;
mod net;
mod replay;

use job::{Outcome, Setup, optimum, run};
use net::Model;
use replay::{Layer, Way, play};
use sumpter_plan::default_credit;

/// 200 Mb/s. Only the latency, tiny beside it, makes the rate matter.
const RATE: f64 = 25e6;

/// Windows as those of the emulated cluster of `sumpter bench emulate`.
const MODEL: Model =
    Model { segment: 16 << 10, window: 64 << 10, unsent: 64 << 10, latency: 50e-6 };

/// The defaults of the settings, where the bandwidth of every link is known.
fn setup(workers: usize, rates: Vec<f64>, tensors: Vec<usize>) -> Setup {
    let (partition_bytes, chunk_bytes) = (256 << 10, 256 << 10);
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let credit_bytes = default_credit(Some(slowest * 8e-9)) as usize;
    Setup { workers, rates, tensors, partition_bytes, chunk_bytes, credit_bytes, model: MODEL }
}

fn uniform(n: usize, k: usize, bytes: usize) -> Outcome {
    let outcome = run(&setup(n, vec![RATE; n + k], vec![bytes]));
    show(&format!("n = {n}, k = {k}, {} MiB", bytes >> 20), &outcome);
    outcome
}

fn show(what: &str, outcome: &Outcome) {
    let least = outcome.idle.iter().copied().fold(1.0, f64::min);
    println!(
        "{what}: {:.3} s, {:.3} of the optimum, the busiest link idle {:.1} %",
        outcome.seconds,
        outcome.fraction(),
        100.0 * least
    );
}

#[test]
fn a_large_tensor_is_near_the_optimum_for_every_number_of_servers() {
    for (n, servers) in [(2, [0, 1, 2, 4]), (4, [0, 1, 2, 4]), (8, [0, 1, 2, 4])] {
        for k in servers {
            let least = if k == 0 { 0.99 } else { 0.97 };
            let fraction = uniform(n, k, 64 << 20).fraction();
            assert!((least..=1.0).contains(&fraction), "n = {n}, k = {k}: {fraction}");
        }
    }
    let fraction = uniform(8, 8, 64 << 20).fraction();
    assert!((0.97..=1.0).contains(&fraction), "n = k = 8: {fraction}");
}

#[test]
fn a_tensor_of_more_partitions_than_balance_asks_for_is_near_it_too() {
    let fraction = uniform(4, 0, 128 << 20).fraction();
    assert!((0.99..=1.0).contains(&fraction), "{fraction}");
}

#[test]
fn a_smaller_tensor_loses_what_filling_and_draining_the_queues_costs() {
    for (n, k) in [(2, 1), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8)] {
        let fraction = uniform(n, k, 16 << 20).fraction();
        assert!((0.93..=1.0).contains(&fraction), "n = {n}, k = {k}: {fraction}");
    }
}

#[test]
fn unequal_links_are_used_in_proportion() {
    let half = RATE / 2.0;
    let cells = [
        ("one worker at half speed", 4, vec![RATE, RATE, RATE, half, RATE, RATE]),
        ("helpers at a quarter", 4, vec![RATE, RATE, RATE, RATE, half / 2.0, half / 2.0]),
    ];
    for (what, n, rates) in cells {
        let outcome = run(&setup(n, rates, vec![64 << 20]));
        show(what, &outcome);
        assert!((0.95..=1.0).contains(&outcome.fraction()), "{what}: {}", outcome.fraction());
    }
}

#[test]
fn many_tensors_are_near_the_optimum_together() {
    // As a convolutional network has them: many small, some of megabytes.
    let mut tensors: Vec<usize> = (0..100).map(|i| 1024 << (i % 4)).collect();
    tensors.extend((0..40).map(|i| (256 << 10) << (i % 4)));
    tensors.push(8 << 20);
    let outcome = run(&setup(4, vec![RATE; 6], tensors));
    show("141 tensors of 1 KiB to 8 MiB, n = 4, k = 2", &outcome);
    assert!((0.93..=1.0).contains(&outcome.fraction()), "{}", outcome.fraction());
}

/// The seconds of an iteration over those of its bound, for each way to order sums, with and
/// without a credit; sums without servers take as long as compute.
struct Shares {
    off: f64,
    paced: f64,
    credit: f64,
    overlap: f64,
}

fn shares(what: &str, k: usize, tensors: &[usize], seconds: &[(f64, f64)]) -> Shares {
    let (n, rate) = (4, 1.25e9);
    let model = Model { latency: 20e-6, ..MODEL };
    let bounded = |k| Setup { model, ..setup(n, vec![rate; n + k], tensors.to_vec()) };
    let compute: f64 = seconds.iter().map(|(forward, backward)| forward + backward).sum();
    let slowdown = optimum(&bounded(0)) / compute;
    let layer = |(forward, backward): &(f64, f64)| Layer {
        forward: forward * slowdown,
        backward: backward * slowdown,
    };
    let layers: Vec<Layer> = seconds.iter().map(layer).collect();
    let bound = (compute * slowdown).max(optimum(&bounded(k)));
    let share = |way: Way, credit_bytes: usize| {
        bound / play(&Setup { credit_bytes, ..bounded(k) }, &layers, way, 3, 0.02)
    };
    let (ready_first, urgent_first) =
        (Way { urgent_first: false, overlap: false }, Way { urgent_first: true, overlap: false });
    let credit = bounded(k).credit_bytes;
    let shares = Shares {
        off: share(ready_first, usize::MAX),
        paced: share(ready_first, credit),
        credit: share(urgent_first, credit),
        overlap: share(Way { overlap: true, ..urgent_first }, credit),
    };
    let Shares { off, paced, credit, overlap } = shares;
    println!(
        "{what}, n = {n}, k = {k}, of the bound: off {off:.3}, with credit {paced:.3}, with \
         priority too {credit:.3}, with overlap too {overlap:.3}"
    );
    shares
}

#[test]
fn what_is_urgent_first_lets_the_next_forward_pass_begin() {
    // As in a convolutional network: later layers are larger, and take no longer.
    let tensors: Vec<usize> = (0..20).map(|i| (128 << 10) << (i / 4)).collect();
    let seconds = vec![(1.0, 2.0); tensors.len()];
    for k in [0, 2, 4] {
        let Shares { off, paced, credit, overlap } = shares("20 layers", k, &tensors, &seconds);
        assert!(overlap >= 0.85, "{overlap} of the bound");
        assert!(overlap >= 0.98 * off && paced >= 0.98 * off && credit >= 0.97 * paced);
        assert!(k != 0 || overlap >= 1.15 * off, "{overlap} after {off}");
    }
}

/// Layers of ResNet-50: microseconds of the forward and the backward pass in proportion to
/// arithmetic, and bytes of gradients (`sumpter.profiles`).
const RESNET50: &str = include_str!("resnet50.txt");

#[test]
#[ignore = "takes some minutes; prints a table with --nocapture"]
fn resnet50_in_full_size() {
    let rows = RESNET50.lines().map(|line| {
        let mut words = line.split(' ').map(|word| word.parse::<f64>().expect("a number"));
        let mut next = || words.next().expect("three numbers");
        ((next(), next()), next() as usize)
    });
    let (seconds, tensors): (Vec<_>, Vec<_>) = rows.unzip();
    for k in [0, 2, 4] {
        let Shares { off, overlap, .. } = shares("ResNet-50", k, &tensors, &seconds);
        assert!(overlap >= 0.95 && overlap >= 0.98 * off, "{overlap} after {off}");
    }
}
