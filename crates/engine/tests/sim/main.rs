//! Simulated clusters: thousands of seeds, each a small job whose connections deliver their
//! bytes in pieces, late, and break.
//!
//! A quarter of the connections places bytes in registered memory (`crates/fabric`): its writes are
//! placed in any order, its network fails, hangs, loses a write or cannot register the memory, and
//! ends die with writes under way of which some are lost.
//!
//! With checksums on, bits are flipped on their way; that may cost the connection, no more.
//!
//! Workers share machines, and machines pass on one subtotal each. Helpers die, come and go, and
//! workers die, partitions and chunks get another size; then a new epoch begins, sometimes before
//! all have been notified of the one before.
//!
//! Some contributions come range by range while their rounds last, as from the memory of a device;
//! of these rounds, each byte of the result is announced once, and is final then.
//!
//! What must hold (docs/design/overview.md): each contribution counts exactly once whatever is
//! cut and sent again, and all workers get the same bytes; with `deterministic`, the bytes that
//! rank order gives: by rank in each machine, then by the rank that passes the subtotal on. If
//! workers die while a round lasts, each element has the contributions of all who lived at some
//! moment of it, and an average divides by their number. Every result is compared with a scalar
//! model.
//!
//! Some tensors are the gradients of variables. Their values and slots must be what the rule makes
//! of all rounds in turn, each once: in every worker that receives a value, and at the end in every
//! mirror, whatever lanes have died.
//!
//! Others change asynchronously. Each delta must be in them once, each worker gets its own and
//! those of others within the bound on staleness, and no value that is lost again later. The order
//! that is reported must explain every value, and give the same bytes in another cluster that
//! follows it.
//! What most rounds of some variables do is decided by each worker, at a moment of its own, when it
//! knows the norm of the gradient: it scales the gradient or skips the round. The norm must have
//! the same bits wherever the plan has put the parts, and a round that is skipped must change
//! nothing.
//!
//! Replay one: `make sim SEED=7`. More of them: `make sim SEEDS=100000`.

mod model;
mod order;
mod report;
mod tensor;
mod world;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use report::Report;
use world::{Size, World};

const DEFAULT_SEEDS: u64 = 10_000;
/// Of clusters of medium size; what is asked for by SUMPTER_SIM_LARGE_SEEDS is large.
const DEFAULT_MEDIUM_SEEDS: u64 = 4;
const PROGRESS_EVERY: u64 = 50_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|v| !v.is_empty()).map(|v| v.parse().expect("a number"))
}

/// Takes one seed after the other until `end`; a failure is the end of all seeds.
fn simulate(next: &AtomicU64, end: u64) -> Report {
    let mut total = Report::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return total;
        }
        if seed > 0 && seed.is_multiple_of(PROGRESS_EVERY) {
            println!("{seed} of {end} seeds, nothing wrong so far");
        }
        match catch_unwind(AssertUnwindSafe(|| simulate_one(seed))) {
            Ok(reports) => reports.iter().for_each(|report| total.add(report)),
            Err(panic) => {
                next.fetch_max(end, Ordering::Relaxed);
                println!("seed {seed} failed; replay it with: make sim SEED={seed}");
                resume_unwind(panic);
            }
        }
    }
}

/// A cluster, and if it has changed variables asynchronously, another one that does so in the same
/// order.
fn simulate_one(seed: u64) -> Vec<Report> {
    let mut world = World::new(seed, &Size::SMALL);
    let mut reports = vec![world.run()];
    if let Some(mut replay) = world.replay(seed) {
        reports.push(replay.run());
        world.check_replay(&replay);
    }
    reports
}

#[test]
fn every_contribution_counts_once_and_all_workers_get_the_same_bytes() {
    let seeds = match number("SUMPTER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SUMPTER_SIM_SEEDS").unwrap_or(DEFAULT_SEEDS),
    };
    let next = AtomicU64::new(seeds.start);
    let mut total = Report::default();
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let threads: Vec<_> =
            (0..cores).map(|_| scope.spawn(|| simulate(&next, seeds.end))).collect();
        for thread in threads {
            total.add(&thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
    });
    println!("simulation: {} seeds, {total}", seeds.end - seeds.start);
    println!("invariants held: exactly once; same bytes on every worker; rank order");
    if seeds.end - seeds.start >= 1000 {
        assert!(total.cuts > 1000 && total.half_open > 100 && total.duplicates > 100, "{total}");
        assert!(total.cut_short > 500 && total.placed > 1000, "{total}");
        assert!(total.failures > 50 && total.hangs > 50 && total.unregistered > 100, "{total}");
        assert!(total.losses > 50, "{total}");
        assert!(total.subtotals > 1000 && total.one_way > 100, "{total}");
        assert!(total.served > 1000 && total.served_one_way > 10, "{total}");
        assert!(total.epochs > 1000 && total.nested > 100 && total.kills > 500, "{total}");
        assert!(total.deaths > 200 && total.resized > 500, "{total}");
        assert!(total.flips > 1000 && total.corrupt > 500, "{total}");
        assert!(total.shards > 1000, "{total}");
        assert!(total.relays > 1000 && total.sums > 500, "{total}");
        assert!(total.ranges > 1000, "{total}");
        assert!(total.updates > 500 && total.fills > 500, "{total}");
        assert!(total.decided > 500 && total.skipped > 100, "{total}");
        assert!(total.encoded > 1000, "{total}");
        assert!(total.alone > 500, "{total}");
        assert!(total.replayed > 500, "{total}");
        assert!(total.refused > 100, "{total}");
    }
}

#[test]
fn a_large_cluster_keeps_the_same_promises() {
    let (size, seeds) = match number("SUMPTER_SIM_LARGE_SEEDS") {
        Some(seeds) => (Size::LARGE, seeds),
        None => (Size::MEDIUM, DEFAULT_MEDIUM_SEEDS),
    };
    let next = AtomicU64::new(0);
    let simulate = || {
        let mut total = Report::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return total;
            }
            total.add(&World::new(seed, &size).run());
        }
    };
    let mut total = Report::default();
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(simulate)).collect();
        for thread in threads {
            total.add(&thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
    });
    println!("large simulation: {seeds} seeds, {total}");
    assert!(total.operations >= *size.workers.start() as u64 * seeds, "{total}");
}
