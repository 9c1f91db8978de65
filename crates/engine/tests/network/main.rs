//! How near the engine comes to the optimum on a network in virtual time, where nothing else
//! disturbs: partitions, their order and the credit decide, and the windows of the connections.
//! With `--nocapture` it prints a table.

mod job;
mod net;
mod periods;
mod racks;
mod replay;
mod route;
mod training;
mod updates;

use job::{Outcome, Setup, run};
use net::{Model, Racks};
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
    Setup {
        workers,
        rates,
        racks: Racks::default(),
        trees: None,
        tensors,
        partition_bytes,
        chunk_bytes,
        credit_bytes,
        model: MODEL,
        updates: false,
    }
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
