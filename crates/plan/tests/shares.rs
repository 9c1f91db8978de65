//! Shares and predictions: the closed form, the water-filling, and that nothing beats them.

use proptest::prelude::*;
use sumpter_plan::{
    Cluster, Machine, PlanError, Role, Uniform, link_loads, predict, server_weights, shares,
};

const BYTES: u64 = 1 << 30;

fn gpu(bandwidth_gbps: f64) -> Machine {
    Machine { role: Role::Gpu, bandwidth_gbps, servers: 1 }
}

fn cpu(bandwidth_gbps: f64) -> Machine {
    Machine { role: Role::Cpu, bandwidth_gbps, servers: 1 }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

/// Time to move the model, in units of bytes over Gb/s, from the constraints as the crate's page
/// states them and not from the crate.
fn time(machines: &[Machine], shares: &[f64]) -> f64 {
    let n = machines.iter().filter(|machine| machine.role == Role::Gpu).count() as f64;
    let mut worst: f64 = 0.0;
    for (machine, share) in machines.iter().zip(shares) {
        let load = match machine.role {
            Role::Gpu => (1.0 - share) + (n - 1.0) * share,
            Role::Cpu => n * share,
        };
        worst = worst.max(load / machine.bandwidth_gbps);
    }
    worst
}

fn bandwidth() -> impl Strategy<Value = f64> {
    prop_oneof![0.5..400.0, Just(10.0), Just(25.0), Just(100.0)]
}

/// Clusters of all kinds: machines without a server, and interfaces that differ wildly (then the
/// slowest worker sets the time) or little (then the water level does).
fn machines() -> impl Strategy<Value = Vec<Machine>> {
    let range = prop_oneof![Just((0.5, 400.0)), Just((60.0, 100.0)), Just((99.0, 101.0))];
    range.prop_flat_map(|(least, most)| {
        let machine = move |role| {
            (least..most, prop_oneof![1 => Just(0), 6 => 1..4_u32]).prop_map(
                move |(bandwidth_gbps, servers)| Machine { role, bandwidth_gbps, servers },
            )
        };
        let gpus = proptest::collection::vec(machine(Role::Gpu), 1..12);
        let cpus = proptest::collection::vec(machine(Role::Cpu), 0..12);
        (gpus, cpus)
            .prop_map(|(gpus, cpus)| [gpus, cpus].concat())
            .prop_filter("a server", |machines| machines.iter().any(|machine| machine.servers > 0))
            .prop_shuffle()
    })
}

/// The most of the model that fits into a time, from the same constraints; nothing at all if a
/// worker cannot even send its gradient in it. For two workers or more, or one that cannot sum.
fn capacity(machines: &[Machine], time: f64) -> f64 {
    let n = machines.iter().filter(|machine| machine.role == Role::Gpu).count() as f64;
    let mut capacity = 0.0;
    for machine in machines {
        let spare = match machine.role {
            Role::Gpu => time * machine.bandwidth_gbps - 1.0,
            Role::Cpu => time * machine.bandwidth_gbps,
        };
        if spare < 0.0 {
            return 0.0;
        }
        capacity += match (machine.servers, machine.role) {
            (0, _) => 0.0,
            (_, Role::Gpu) if n == 2.0 => f64::INFINITY,
            (_, Role::Gpu) => spare / (n - 2.0),
            (_, Role::Cpu) => spare / n,
        };
    }
    capacity
}

/// An assignment of the model to the machines that run a server, sparse as often as not.
fn feasible(machines: &[Machine], raw: &[f64], sparsity: f64) -> Option<Vec<f64>> {
    let weight = |(machine, &raw): (&Machine, &f64)| {
        if machine.servers == 0 || raw < sparsity { 0.0 } else { raw }
    };
    let weights: Vec<f64> = machines.iter().zip(raw).map(weight).collect();
    let total: f64 = weights.iter().sum();
    (total > 0.0).then(|| weights.iter().map(|weight| weight / total).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn closed_form_shares_sum_to_the_model(n in 1..2000_u32, k in 0..4000_u32) {
        let uniform = Uniform::new(n, k).unwrap();
        let total = f64::from(n) * uniform.gpu_share() + f64::from(k) * uniform.cpu_share();
        prop_assert!((total - 1.0).abs() < 1e-9, "{}", total);
        prop_assert!(uniform.gpu_share() >= 0.0 && uniform.cpu_share() >= 0.0);
    }

    #[test]
    fn both_link_times_equal_the_optimum(n in 2..2000_u32, part in 0.0..=1.0_f64) {
        let k = (f64::from(n) * part) as u32;
        let uniform = Uniform::new(n, k).unwrap();
        let prediction = uniform.predict(BYTES, 25.0).unwrap();
        let seconds = |link: f64| link * BYTES as f64 * 8.0 / 25e9;
        prop_assert!(close(seconds(uniform.gpu_link()), prediction.time_s));
        prop_assert!(k == 0 || close(seconds(uniform.cpu_link()), prediction.time_s));
    }

    #[test]
    fn water_filling_equals_the_closed_form_when_all_are_equal(
        n in 1..70_u32,
        k in 0..140_u32,
        bandwidth in bandwidth(),
    ) {
        let uniform = Uniform::new(n, k).unwrap();
        let cluster = Cluster::uniform(n, k, bandwidth).unwrap();
        for (machine, share) in cluster.machines().iter().zip(shares(&cluster)) {
            let expected = match machine.role {
                Role::Gpu => uniform.gpu_share(),
                Role::Cpu => uniform.cpu_share(),
            };
            prop_assert!((share - expected).abs() < 1e-12, "{} {}", share, expected);
        }
        let filled = predict(&cluster, BYTES).unwrap();
        let closed = uniform.predict(BYTES, bandwidth).unwrap();
        prop_assert!(close(filled.time_s, closed.time_s));
        prop_assert!(close(filled.allreduce_time_s, closed.allreduce_time_s));
        prop_assert!(close(filled.ps_time_s.unwrap_or(-1.0), closed.ps_time_s.unwrap_or(-1.0)));
        let gains = |p: sumpter_plan::Prediction| {
            [p.gain_over_allreduce.unwrap_or(-1.0), p.gain_over_ps.unwrap_or(-1.0)]
        };
        for (filled, closed) in gains(filled).into_iter().zip(gains(closed)) {
            prop_assert!(close(filled, closed), "{} {}", filled, closed);
        }
    }

    #[test]
    fn shares_are_feasible_and_meet_the_predicted_time(machines in machines()) {
        let cluster = Cluster::new(machines.clone()).unwrap();
        let shares = shares(&cluster);
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        for (machine, share) in machines.iter().zip(&shares) {
            prop_assert!(*share >= 0.0 && (machine.servers > 0 || *share == 0.0));
        }
        let expected = time(&machines, &shares) * BYTES as f64 * 8.0 / 1e9;
        let predicted = predict(&cluster, BYTES).unwrap().time_s;
        prop_assert!((predicted - expected).abs() <= 1e-9 * expected.max(1e-6));
    }

    #[test]
    fn no_feasible_assignment_is_faster(
        machines in machines(),
        raws in proptest::collection::vec(proptest::collection::vec(0.0..1.0_f64, 24), 40),
        sparsity in 0.0..0.9_f64,
        mix in 1e-6..1.0_f64,
    ) {
        let cluster = Cluster::new(machines.clone()).unwrap();
        let ours = shares(&cluster);
        let best = time(&machines, &ours);
        for other in raws.iter().filter_map(|raw| feasible(&machines, raw, sparsity)) {
            prop_assert!(best <= time(&machines, &other) + 1e-12);
            // Near by as well: part of the way from ours to the other.
            let between = |(a, b): (&f64, &f64)| a + mix * (b - a);
            let near: Vec<f64> = ours.iter().zip(&other).map(between).collect();
            prop_assert!(best <= time(&machines, &near) + 1e-12);
        }
    }

    #[test]
    fn the_model_does_not_fit_into_any_less_time(machines in machines()) {
        let best = time(&machines, &shares(&Cluster::new(machines.clone()).unwrap()));
        // Zero is as good as it gets: one worker that sums its own gradient.
        if best > 0.0 {
            prop_assert!(capacity(&machines, best * (1.0 + 1e-9)) >= 1.0);
            prop_assert!(capacity(&machines, best * (1.0 - 1e-9)) < 1.0);
        }
    }

    #[test]
    fn machines_below_the_floor_of_the_slowest_stay_balanced(
        slow in 0.5..5.0_f64,
        fast in proptest::collection::vec(50.0..400.0_f64, 3..10),
        helpers in proptest::collection::vec(50.0..400.0_f64, 0..10),
    ) {
        let mut machines = vec![gpu(slow)];
        machines.extend(fast.into_iter().map(gpu));
        machines.extend(helpers.into_iter().map(cpu));
        let cluster = Cluster::new(machines).unwrap();
        let shares = shares(&cluster);
        prop_assert_eq!(shares[0], 0.0);
        let loads = link_loads(&cluster, &shares);
        let busy = cluster.machines().iter().zip(&shares).zip(&loads);
        let busy: Vec<f64> = busy
            .filter(|((_, share), _)| **share > 0.0)
            .map(|((machine, _), load)| load / machine.bandwidth_gbps)
            .collect();
        prop_assert!(busy.iter().all(|time| close(*time, busy[0])), "{:?}", busy);
    }

    #[test]
    fn we_never_lose_to_all_reduce_or_to_the_parameter_server(mut machines in machines()) {
        machines.iter_mut().for_each(|machine| machine.servers = machine.servers.max(1));
        let prediction = predict(&Cluster::new(machines).unwrap(), BYTES).unwrap();
        prop_assert!(prediction.gain_over_allreduce.is_none_or(|gain| gain >= 1.0 - 1e-9));
        prop_assert!(prediction.gain_over_ps.is_none_or(|gain| gain >= 1.0 - 1e-9));
    }

    #[test]
    fn servers_of_a_machine_split_its_share(machines in machines()) {
        let weights = server_weights(&machines).unwrap();
        let cluster = Cluster::new(machines.clone()).unwrap();
        let mut weights = weights.into_iter();
        for (machine, share) in machines.iter().zip(shares(&cluster)) {
            let own: Vec<f64> = weights.by_ref().take(machine.servers as usize).collect();
            prop_assert_eq!(own.len(), machine.servers as usize);
            prop_assert!((own.iter().sum::<f64>() - share).abs() < 1e-12);
            prop_assert!(own.iter().all(|weight| *weight == own[0]));
        }
        prop_assert_eq!(weights.next(), None);
    }
}

#[test]
fn the_gains_of_the_paper() {
    let prediction = Uniform::new(32, 16).unwrap().predict(BYTES, 100.0).unwrap();
    assert_eq!(prediction.gain_over_allreduce, Some(1.46875));
    assert_eq!(format!("{:.4}", prediction.gain_over_ps.unwrap()), "1.5161");
    let prediction = Uniform::new(8, 8).unwrap().predict(BYTES, 100.0).unwrap();
    assert_eq!(prediction.gain_over_allreduce, Some(1.75));
    assert_eq!(prediction.gain_over_ps, Some(1.0));
}

#[test]
fn times_in_seconds() {
    // 1.25e9 bytes are 1e10 bits: one second at 10 Gb/s.
    let prediction = Uniform::new(4, 2).unwrap().predict(1_250_000_000, 10.0).unwrap();
    assert!(close(prediction.time_s, 1.2));
    assert!(close(prediction.allreduce_time_s, 1.5));
    assert!(close(prediction.ps_time_s.unwrap(), 2.0));
}

#[test]
fn without_helpers_it_is_all_reduce() {
    for n in [2, 3, 8, 100] {
        let uniform = Uniform::new(n, 0).unwrap();
        let prediction = uniform.predict(BYTES, 100.0).unwrap();
        assert!(close(uniform.gpu_share(), 1.0 / f64::from(n)));
        assert_eq!(uniform.cpu_share(), 0.0);
        assert_eq!(prediction.gain_over_allreduce, Some(1.0));
        assert_eq!((prediction.ps_time_s, prediction.gain_over_ps), (None, None));
    }
}

#[test]
fn one_gpu_machine_needs_no_network() {
    for k in [0, 1, 5] {
        let uniform = Uniform::new(1, k).unwrap();
        let prediction = uniform.predict(BYTES, 100.0).unwrap();
        assert_eq!((uniform.gpu_share(), uniform.cpu_share()), (1.0, 0.0));
        assert_eq!((prediction.time_s, prediction.allreduce_time_s), (0.0, 0.0));
        assert_eq!((prediction.gain_over_allreduce, prediction.gain_over_ps), (None, None));
    }
    let machine = |role, servers| Machine { role, bandwidth_gbps: 1.0, servers };
    let weights = server_weights(&[machine(Role::Gpu, 3), machine(Role::Cpu, 2)]).unwrap();
    assert_eq!(weights, [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
}

#[test]
fn with_two_gpu_machines_no_number_of_helpers_helps() {
    for k in 1..6 {
        let prediction = Uniform::new(2, k).unwrap().predict(BYTES, 100.0).unwrap();
        assert_eq!(prediction.gain_over_allreduce, Some(1.0), "k = {k}");
    }
}

#[test]
fn with_two_unequal_gpu_machines_the_rest_follows_bandwidth() {
    let cluster = Cluster::new(vec![gpu(10.0), gpu(100.0), cpu(100.0)]).unwrap();
    let shares = shares(&cluster);
    assert!(close(shares[2], 0.5));
    assert!(close(shares[1], 10.0 * shares[0]));
}

#[test]
fn more_helpers_than_workers_leave_the_workers_nothing_to_sum() {
    for (n, k) in [(2, 3), (4, 5), (8, 100)] {
        let uniform = Uniform::new(n, k).unwrap();
        assert_eq!((uniform.gpu_share(), uniform.cpu_share()), (0.0, 1.0 / f64::from(k)));
        let full = Uniform::new(n, n).unwrap().predict(BYTES, 100.0).unwrap();
        assert_eq!(uniform.predict(BYTES, 100.0).unwrap().time_s, full.time_s);
    }
}

#[test]
fn workers_without_servers_leave_the_sum_to_the_helpers() {
    let idle = |bandwidth_gbps| Machine { role: Role::Gpu, bandwidth_gbps, servers: 0 };
    for n in 1..5 {
        let mut machines = vec![idle(10.0); n];
        machines.extend([cpu(30.0), cpu(10.0)]);
        let cluster = Cluster::new(machines).unwrap();
        let shares = shares(&cluster);
        assert!(close(shares[n], 0.75) && close(shares[n + 1], 0.25), "{shares:?}");
    }
}

#[test]
fn impossible_clusters_are_refused_by_name_and_value() {
    let message = |machines: Vec<Machine>| Cluster::new(machines).unwrap_err().to_string();
    assert!(matches!(Cluster::new(vec![cpu(1.0)]), Err(PlanError::NoWorker { machines: 1 })));
    let serverless = Machine { servers: 0, ..gpu(1.0) };
    assert_eq!(
        server_weights(&[serverless]).unwrap_err().to_string(),
        "none of the 1 machines runs a server; expected at least one, to sum"
    );
    for bandwidth in [0.0, -5.0, f64::NAN, f64::INFINITY, 1e9] {
        let text = message(vec![gpu(10.0), gpu(bandwidth)]);
        let expected = format!("machine 2: bandwidth_gbps is {bandwidth}; expected a number of");
        assert!(text.starts_with(&expected), "{text}");
        assert!(Uniform::new(2, 0).unwrap().predict(BYTES, bandwidth).is_err());
    }
    for (n, k) in [(0, 1), (100_001, 0), (1, 100_001)] {
        assert!(matches!(Uniform::new(n, k), Err(PlanError::Field { .. })));
        assert!(matches!(Cluster::uniform(n, k, 1.0), Err(PlanError::Field { .. })));
    }
    for bytes in [0, u64::MAX] {
        let text = Uniform::new(2, 0).unwrap().predict(bytes, 1.0).unwrap_err().to_string();
        assert!(text.starts_with(&format!("bytes is {bytes}; expected")), "{text}");
    }
}
