//! Flat reduction trees and rack hubs in racks whose trunks carry less than their machines can
//! send, beside what the planner says of them, and beside PHub's inequality for or against a hub in
//! each rack (Luo et al., "Parameter Hub", SoCC'18, section 3.4). With `--nocapture` it prints the
//! tables.

use sumpter_plan::{
    Hubs, PlannedTrees, RackModel, Reading, TreeOptions, TreePlan, plan_trees, plan_trees_with,
};

use crate::job::{Outcome, Setup, run, topology};
use crate::net::Racks;
use crate::{RATE, setup};

const BYTES: usize = 64 << 20;

/// What a job can do: workers pass aggregates on, and a tensor's partitions have trees of one
/// shape.
const JOB: TreeOptions = TreeOptions { hubs: Hubs::Workers, mixed: false };

/// The names of shapes in [`PlannedTrees::alternatives`].
const FLAT: &str = "flat";
const RACK_HUBS: &str = "rack hubs, sharded exchange";

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

    /// The same, of what a job can do.
    fn planned_for_a_job(self) -> PlannedTrees {
        plan_trees_with(&topology(&self.setup()), JOB).expect("a sound cluster")
    }

    /// Rack hubs, whether they pay or not: those that are planned behind trunks that carry next to
    /// nothing. Without CPU machines, alike racks of alike machines have no better ones.
    fn rack_hubs(self) -> TreePlan {
        let narrow = Cluster { oversubscription: 64.0, ..self };
        let trees = narrow.planned_for_a_job().trees;
        assert!(has_hubs(&trees), "{}", self.name());
        trees
    }

    /// Runs these trees, or flat ones.
    fn run(self, trees: Option<TreePlan>) -> Outcome {
        let outcome = run(&Setup { trees, ..self.setup() });
        let bytes = |way: usize| outcome.crossed.iter().skip(way).step_by(2);
        let name = self.name();
        assert!(bytes(0).chain(bytes(1)).all(|bytes| *bytes > 0), "{name}: no trunk is idle");
        outcome
    }

    /// Tensors that cross a trunk each way with flat trees: a worker crosses it with what has its
    /// root elsewhere, and roots of the rack with the sum for each worker elsewhere; as much comes
    /// back.
    fn flat_crossings(self) -> f64 {
        let (n, r) = ((self.racks * self.workers) as f64, self.racks as f64);
        let own = self.workers as f64;
        own + (n - 2.0 * own) / r
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

fn has_hubs(trees: &TreePlan) -> bool {
    trees.branches.iter().any(|branch| !branch.levels.is_empty())
}

/// Tensors that the busiest direction of a trunk has carried.
fn crossed(outcome: &Outcome) -> f64 {
    outcome.crossed.iter().copied().max().unwrap_or(0) as f64 / BYTES as f64
}

fn alternative(planned: &PlannedTrees, name: &str) -> f64 {
    let named = planned.alternatives.iter().find(|one| one.name == name);
    seconds(named.expect("a shape that equal racks can have").seconds_per_gigabit)
}

/// Runs flat trees and what a job's plan makes of the racks, and holds times and the bytes on
/// trunks against the planner's. Returns for both readings of the inequality whether they are
/// right, and what the inequality's flat time is of the real one.
fn compare(cluster: Cluster) -> ([bool; 2], f64) {
    let (name, flat) = (cluster.name(), cluster.run(None));
    let (planned, of_job) = (cluster.planned(), cluster.planned_for_a_job());
    let predicted = alternative(&planned, FLAT);
    let hubs = has_hubs(&of_job.trees).then(|| cluster.run(Some(of_job.trees.clone())));
    let job = hubs.as_ref().unwrap_or(&flat);
    let best = seconds(planned.seconds_per_gigabit);
    let best_of_job = seconds(of_job.seconds_per_gigabit);
    let readings = [Reading::Printed, Reading::Exchanged].map(|reading| cluster.phub(reading));
    let [printed, exchanged] = readings;
    println!(
        "| {name} | {:.3} | {predicted:.3} | {:.2} | {best:.3} | {:.2} | {} | {best_of_job:.3} | \
         {:.3} | {:.3} | {:.2} | {:.3} | {:.3} | {:.3} |",
        flat.seconds,
        crossed(&flat),
        planned.loads.trunks[0],
        if hubs.is_some() { "rack hubs" } else { "flat" },
        job.seconds,
        best_of_job / job.seconds,
        crossed(job),
        printed.0,
        printed.1,
        exchanged.1,
    );
    let fraction = predicted / flat.seconds;
    assert!((0.95..=1.0).contains(&fraction), "{name}: {fraction}");
    let fraction = best_of_job / job.seconds;
    assert!((0.95..=1.0).contains(&fraction), "{name}: {fraction} of the plan");
    let bytes = |tensors: f64| tensors * BYTES as f64;
    for (outcome, tensors) in [(&flat, cluster.flat_crossings()), (job, of_job.loads.trunks[0])] {
        for crossed in &outcome.crossed {
            let ratio = *crossed as f64 / bytes(tensors);
            assert!((0.99..=1.01).contains(&ratio), "{name}: {ratio}");
        }
    }
    // Racks without CPU machines need no mixture: a job's plan is the best there is.
    if cluster.servers == 0 {
        assert!((best_of_job / best - 1.0).abs() < 1e-6, "{name}: {best_of_job} {best}");
    }
    // Hubs are chosen where they are faster than flat trees are in fact.
    let pay = best_of_job < 0.95 * flat.seconds;
    assert_eq!(hubs.is_some(), pay, "{name}");
    if let Some(hubs) = hubs {
        assert!(hubs.seconds < flat.seconds, "{name}: {} {}", hubs.seconds, flat.seconds);
        let ratio = crossed(&hubs) * cluster.workers as f64 / crossed(&flat);
        let even = cluster.servers == 0;
        assert!(!even || (0.99..=1.01).contains(&ratio), "{name}: {ratio} of 1/N");
    }
    (readings.map(|(without, with)| (without > 1.0001 * with) == pay), printed.0 / flat.seconds)
}

fn head() {
    println!(
        "racks of GPU + CPU machines, oversubscription | flat, s | planned, s | over a trunk | \
         best plan, s | over a trunk | a job's trees | planned, s | in virtual time, s | of the \
         plan | over a trunk | inequality: flat, s | hubs as printed, s | N exchanged, s"
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
        match has_hubs(&of(middle).planned().trees) {
            true => hubs = middle,
            false => flat = middle,
        }
    }
    hubs
}

#[test]
fn flat_trees_slow_down_where_the_plan_turns_to_hubs() {
    for (racks, workers) in [(2, 2), (2, 4), (4, 4)] {
        let of = |oversubscription| Cluster { racks, workers, servers: 0, oversubscription };
        let seconds = |oversubscription| of(oversubscription).run(None).seconds;
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

#[test]
fn rack_hubs_are_faster_in_virtual_time_from_where_they_are_planned_on() {
    for (racks, workers) in [(2, 2), (2, 4), (4, 4)] {
        let of = |oversubscription| Cluster { racks, workers, servers: 0, oversubscription };
        let planned = planned_switch(of);
        let flat = |oversubscription| of(oversubscription).run(None).seconds;
        let hubs = |oversubscription| {
            let cluster = of(oversubscription);
            cluster.run(Some(cluster.rack_hubs())).seconds
        };
        // The time of flat trees behind full trunks is in proportion to what these do not carry.
        let measured = 4.0 * hubs(planned) / flat(4.0);
        let [equal, before, after] =
            [1.0, 0.9 * planned, 1.1 * planned].map(|at| hubs(at) / flat(at));
        println!(
            "{}: hubs planned from {planned:.3}:1 on, faster from {measured:.3}:1 on; of the time \
             of flat trees they take {equal:.4} at 1:1, {before:.4} a tenth below and {after:.4} a \
             tenth above",
            of(1.0).name()
        );
        assert!((measured / planned - 1.0).abs() < 0.1, "{measured} {planned}");
        // Below, the plan says that both take equally long, and chooses flat trees.
        for below in [equal, before] {
            assert!((0.99..1.01).contains(&below), "{below}");
        }
        assert!((after * 1.1 - 1.0).abs() < 0.01, "{after}");
    }
}

#[test]
fn the_rack_level_takes_no_longer_where_trunks_are_no_limit() {
    let run = |cluster: Cluster, trees: Option<TreePlan>, bytes: usize| {
        run(&Setup { trees, tensors: vec![bytes], ..cluster.setup() }).seconds
    };
    println!("r | N | flat 16 MiB, s | rack hubs | of flat | 1 MiB, ms | rack hubs | of flat");
    for (racks, workers) in [(2, 4), (4, 4), (8, 4), (2, 8), (4, 8), (8, 8)] {
        // Each trunk carries four times what the rack's machines can send.
        let cluster = Cluster { racks, workers, servers: 0, oversubscription: 0.25 };
        let [large, small] = [16 << 20, 1 << 20]
            .map(|bytes| [None, Some(cluster.rack_hubs())].map(|trees| run(cluster, trees, bytes)));
        let overheads = [large, small].map(|[flat, hubs]| hubs / flat);
        println!(
            "| {racks} | {workers} | {:.3} | {:.3} | {:.3} | {:.1} | {:.1} | {:.3} |",
            large[0],
            large[1],
            overheads[0],
            small[0] * 1e3,
            small[1] * 1e3,
            overheads[1],
        );
        let planned = cluster.planned();
        let of_plan = alternative(&planned, RACK_HUBS) / alternative(&planned, FLAT);
        assert!((of_plan - 1.0).abs() < 1e-6, "{}: {of_plan}", cluster.name());
        // What fills queues and drains them is less with hubs, whose trees have fewer edges at a
        // node; two more hops would show in one chunk.
        assert!((0.93..=1.0).contains(&overheads[0]), "{}: {overheads:?}", cluster.name());
        assert!((0.45..=1.0).contains(&overheads[1]), "{}: {overheads:?}", cluster.name());
    }
}
