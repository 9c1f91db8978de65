//! Flat reduction trees in racks whose trunks carry less than their machines can send, beside what
//! the planner says of them, and beside PHub's inequality for or against a hub in each rack
//! (Luo et al., "Parameter Hub", SoCC'18, section 3.4). With `--nocapture` it prints the tables.

use sumpter_plan::{PlannedTrees, RackModel, Reading, plan_trees};

use crate::job::{Setup, run, topology};
use crate::net::Racks;
use crate::{RATE, setup};

const BYTES: usize = 64 << 20;

/// A cluster of equal racks.
#[derive(Clone, Copy)]
struct Cluster {
    racks: usize,
    /// GPU machines in each rack.
    workers: usize,
    /// CPU machines in each rack.
    servers: usize,
    /// What a rack's machines can send over what its trunk carries.
    oversubscription: f64,
}

impl Cluster {
    /// The machines of a role come one rack after the other.
    fn setup(self) -> Setup {
        let Self { racks, workers, servers, .. } = self;
        let role = |each: usize| (0..racks * each).map(move |machine| machine / each.max(1));
        let of: Vec<usize> = role(workers).chain(role(servers)).collect();
        let trunks = vec![self.trunk(); racks];
        let plain = setup(racks * workers, vec![RATE; of.len()], vec![BYTES]);
        Setup { racks: Racks { of, trunks }, ..plain }
    }

    /// Bytes a second.
    fn trunk(self) -> f64 {
        (self.workers + self.servers) as f64 * RATE / self.oversubscription
    }

    fn planned(self) -> PlannedTrees {
        plan_trees(&topology(&self.setup())).expect("a sound cluster")
    }

    /// Both readings of PHub's inequality with a sharded exchange, in seconds.
    fn phub(self, reading: Reading) -> (f64, f64) {
        let hub = if self.servers == 0 { self.workers } else { self.servers } as f64 * RATE;
        let model = RackModel {
            workers: self.workers as f64,
            racks: self.racks as f64,
            worker_gbps: RATE * 8e-9,
            hub_gbps: hub * 8e-9,
            core_gbps: self.trunk() * 8e-9,
        };
        let times = model.times(reading, false);
        (seconds(times.flat_s), seconds(times.hubs_s))
    }

    fn name(self) -> String {
        let Self { racks, workers, servers, oversubscription } = self;
        format!("{racks} of {workers} + {servers}, {oversubscription}:1")
    }
}

/// Of the tensor, when a gigabit takes so long.
fn seconds(for_a_gigabit: f64) -> f64 {
    BYTES as f64 * 8e-9 * for_a_gigabit
}

fn alternative(planned: &PlannedTrees, name: &str) -> f64 {
    let named = planned.alternatives.iter().find(|one| one.name == name);
    seconds(named.expect("a shape that equal racks can have").seconds_per_gigabit)
}

/// Runs flat trees and holds their time and the bytes on trunks against the planner's. Returns for
/// both readings of the inequality, and for the flat time of it, whether they are right.
fn compare(cluster: Cluster) -> ([bool; 2], f64) {
    let (outcome, planned) = (run(&cluster.setup()), cluster.planned());
    let predicted = alternative(&planned, "flat");
    let hubs = alternative(&planned, "rack hubs, sharded exchange");
    let best = seconds(planned.seconds_per_gigabit);
    let readings = [Reading::Printed, Reading::Exchanged].map(|reading| cluster.phub(reading));
    let [printed, exchanged] = readings;
    println!(
        "| {} | {:.3} | {predicted:.3} | {:.2} | {best:.3} | {:.2} | {hubs:.3} | {:.3} | {:.3} | \
         {:.3} |",
        cluster.name(),
        outcome.seconds,
        outcome.crossed[0] as f64 / BYTES as f64,
        planned.loads.trunks[0],
        printed.0,
        printed.1,
        exchanged.1,
    );
    let name = cluster.name();
    let fraction = predicted / outcome.seconds;
    assert!((0.95..=1.0).contains(&fraction), "{name}: {fraction}");
    // A worker crosses the trunk with what has its root elsewhere, and roots of the rack with the
    // sum for each worker elsewhere; as much comes back.
    let (n, r) = ((cluster.racks * cluster.workers) as f64, cluster.racks as f64);
    let own = cluster.workers as f64;
    let expected = (own + (n - 2.0 * own) / r) * BYTES as f64;
    for bytes in &outcome.crossed {
        let ratio = *bytes as f64 / expected;
        assert!((0.99..=1.01).contains(&ratio), "{name}: {ratio}");
    }
    // The plan has hubs where they are faster than flat trees are in fact.
    let flat = planned.trees.branches.iter().all(|branch| branch.levels.is_empty());
    assert_eq!(flat, best >= 0.95 * outcome.seconds, "{name}");
    let pay = hubs < 0.95 * outcome.seconds;
    (readings.map(|(without, with)| (without > 1.0001 * with) == pay), printed.0 / outcome.seconds)
}

fn head() {
    println!(
        "racks of GPU + CPU machines, oversubscription | flat, s | planned, s | over a trunk | \
         best plan, s | over a trunk | hubs alone, s | inequality: flat, s | hubs as printed, s | \
         N exchanged, s"
    );
}

#[test]
fn trunks_without_a_limit_change_nothing() {
    for (workers, servers) in [(4, 0), (4, 2), (2, 1)] {
        let cluster = Cluster { racks: 2, workers, servers, oversubscription: 0.0 };
        assert!(cluster.trunk().is_infinite());
        let racked = cluster.setup();
        let of = run(&racked);
        let without = run(&Setup { racks: Racks::default(), ..racked });
        assert_eq!(of.seconds.to_bits(), without.seconds.to_bits(), "{workers} + {servers}");
        assert_eq!((of.carried, of.idle), (without.carried, without.idle));
        assert!(without.crossed.is_empty() && of.crossed.iter().all(|bytes| *bytes > 0));
    }
}

#[test]
fn flat_trees_take_the_time_of_the_linear_program_and_not_of_the_inequality() {
    head();
    let (mut all, mut printed, mut exchanged, mut least) = (0, 0, 0, f64::INFINITY);
    for (racks, workers) in [(2, 2), (2, 4), (4, 2), (4, 4)] {
        for oversubscription in [1.0, 2.0, 4.0] {
            let cluster = Cluster { racks, workers, servers: 0, oversubscription };
            let (right, flat) = compare(cluster);
            all += 1;
            printed += u32::from(right[0]);
            exchanged += u32::from(right[1]);
            least = least.min(flat);
        }
    }
    println!(
        "the inequality is right about hubs in {printed} of {all} clusters as printed, in \
         {exchanged} with N exchanged; its flat time is {least:.2} of the real one at least"
    );
    assert_eq!((all, printed, exchanged), (12, 4, 8));
    assert!(least < 0.5, "{least}");
}

#[test]
fn flat_trees_with_cpu_machines_take_the_time_of_the_linear_program() {
    head();
    for (racks, workers, servers) in [(2, 4, 2), (4, 2, 2)] {
        for oversubscription in [1.0, 2.0, 4.0] {
            compare(Cluster { racks, workers, servers, oversubscription });
        }
    }
}

/// The oversubscription from which on the plan has hubs, to a thousandth.
fn planned_switch(of: impl Fn(f64) -> Cluster) -> f64 {
    let (mut flat, mut hubs) = (1.0, 16.0);
    while hubs - flat > 1e-3 {
        let middle = f64::midpoint(flat, hubs);
        let branches = of(middle).planned().trees.branches;
        match branches.iter().all(|branch| branch.levels.is_empty()) {
            true => flat = middle,
            false => hubs = middle,
        }
    }
    hubs
}

#[test]
fn flat_trees_slow_down_where_the_plan_turns_to_hubs() {
    for (racks, workers) in [(2, 2), (2, 4), (4, 4)] {
        let of = |oversubscription| Cluster { racks, workers, servers: 0, oversubscription };
        let seconds = |oversubscription| run(&of(oversubscription).setup()).seconds;
        let planned = planned_switch(of);
        // Beyond, trunks are full, and the time is in proportion to what they do not carry.
        let (wide, narrow) = (seconds(1.0), seconds(4.0));
        let measured = 4.0 * wide / narrow;
        println!(
            "{}: hubs planned from {planned:.3}:1 on, flat trees slow down from {measured:.3}:1 on",
            of(1.0).name()
        );
        assert!((measured / planned - 1.0).abs() < 0.02, "{measured} {planned}");
        let (before, after) = (seconds(0.9 * planned), seconds(1.1 * planned));
        assert!((before / wide - 1.0).abs() < 0.02, "{before} {wide}");
        assert!((after / wide - 1.1).abs() < 0.02, "{after} {wide}");
    }
}
