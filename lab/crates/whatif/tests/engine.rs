//! The model against the runtime's own state machines on a network in virtual time: figures that
//! `cargo test --release -p sumpter-engine --test network -- --nocapture` printed.

use sumpter_plan::{Architecture, Cluster, LocalChoice, default_credit, predict};
use sumpter_whatif::{Case, Layer, Machines, Order, Profile, Tensor, simulate, simulate_on};

/// GPU machines, CPU machines, MiB of one tensor, seconds that the engine took at 200 Mb/s.
const ENGINE: [(u32, u32, u64, f64); 19] = [
    (2, 0, 64, 2.687),
    (2, 1, 64, 2.711),
    (2, 2, 64, 2.702),
    (2, 4, 64, 2.701),
    (4, 0, 64, 4.038),
    (4, 1, 64, 3.633),
    (4, 2, 64, 3.264),
    (4, 4, 64, 2.710),
    (8, 0, 64, 4.725),
    (8, 1, 64, 4.404),
    (8, 2, 64, 4.069),
    (8, 4, 64, 3.485),
    (8, 8, 64, 2.726),
    (2, 1, 16, 0.690),
    (4, 1, 16, 0.943),
    (4, 2, 16, 0.840),
    (4, 4, 16, 0.689),
    (8, 2, 16, 1.090),
    (8, 8, 16, 0.707),
];

/// Links of this speed, with the credit that a worker has on them.
fn case_of_links(bandwidth_gbps: f64) -> Case {
    let credit_bytes = default_credit(Some(bandwidth_gbps));
    Case { bandwidth_gbps, credit_bytes, ..Case::default() }
}

#[test]
fn rounds_take_as_long_as_in_the_engine() {
    let mut errors = Vec::new();
    for (workers, servers, mib, engine_s) in ENGINE {
        let tensor = Tensor { layer: 0, bytes: mib << 20, ready_s: 0.0 };
        let layers = vec![Layer { forward_s: None }];
        let profile = Profile::new(1.0, 0.0, layers, vec![tensor], None).unwrap();
        let architecture = Architecture::Sumpter;
        let case = Case { workers, servers, architecture, ..case_of_links(0.2) };
        let model_s = simulate(&profile, &case).unwrap().overhead_s;
        let error = model_s / engine_s - 1.0;
        println!(
            "| {workers} | {servers} | {mib} MiB | {engine_s:.3} | {model_s:.3} | {:+.1} % |",
            100.0 * error
        );
        errors.push(error.abs());
        assert!(error.abs() < 0.06, "n = {workers}, k = {servers}: {model_s} s, not {engine_s} s");
    }
    errors.sort_by(f64::total_cmp);
    println!("median {:.1} %, largest {:.1} %", 100.0 * errors[9], 100.0 * errors[18]);
    assert!(errors[9] < 0.025);
}

/// Racks, GPU machines of each, oversubscription of their trunks, and the seconds that a job's plan
/// took in the engine for 64 MiB at 200 Mb/s: rack hubs, and flat trees at 1:1.
const RACKS: [(u32, u32, f64, f64); 12] = [
    (2, 2, 1.0, 4.043),
    (2, 2, 2.0, 4.040),
    (2, 2, 4.0, 5.389),
    (2, 4, 1.0, 4.720),
    (2, 4, 2.0, 4.715),
    (2, 4, 4.0, 4.716),
    (4, 2, 1.0, 4.723),
    (4, 2, 2.0, 4.719),
    (4, 2, 4.0, 8.097),
    (4, 4, 1.0, 5.075),
    (4, 4, 2.0, 5.054),
    (4, 4, 4.0, 5.062),
];

#[test]
fn rounds_in_racks_take_as_long_as_in_the_engine() {
    let mut errors = Vec::new();
    for (racks, workers, oversubscription, engine_s) in RACKS {
        let toml = format!(
            "[[rack]]\nname = \"rack\"\ncount = {racks}\noversubscription = {oversubscription:?}\n\
             [[machine]]\nrole = \"gpu\"\nrack = \"rack\"\ncount = {workers}\n\
             bandwidth_gbps = 0.2\n"
        );
        let machines = Machines::new(&toml, LocalChoice::Rule).unwrap();
        let tensor = Tensor { layer: 0, bytes: 64 << 20, ready_s: 0.0 };
        let layers = vec![Layer { forward_s: None }];
        let profile = Profile::new(1.0, 0.0, layers, vec![tensor], None).unwrap();
        let (workers, architecture) = (machines.workers(), Architecture::Sumpter);
        let case = Case { workers, architecture, ..case_of_links(0.2) };
        let model_s = simulate_on(&profile, &machines, &case).unwrap().overhead_s;
        let error = model_s / engine_s - 1.0;
        println!(
            "| {racks} | {} | {oversubscription}:1 | {engine_s:.3} | {model_s:.3} | {:+.1} % |",
            workers / racks,
            100.0 * error
        );
        errors.push(error.abs());
        assert!(error.abs() < 0.06, "{racks} racks, {oversubscription}:1: {model_s} {engine_s}");
    }
    errors.sort_by(f64::total_cmp);
    println!("median {:.1} %, largest {:.1} %", 100.0 * errors[6], 100.0 * errors[11]);
    assert!(errors[6] < 0.02);
}

/// GPU machines, CPU machines, communication to compute, and the seconds of an iteration in the
/// engine at 10 Gb/s, by readiness and by need with overlap: figures that `cargo test --release
/// -p sumpter-engine --test network periods -- --ignored --nocapture` printed.
const PERIODS: [(u32, u32, f64, f64, f64); 27] = [
    (2, 0, 0.5, 0.053715, 0.053715),
    (2, 0, 1.0, 0.037307, 0.029079),
    (2, 0, 2.0, 0.032078, 0.027997),
    (2, 1, 0.5, 0.053742, 0.053742),
    (2, 1, 1.0, 0.038311, 0.030340),
    (2, 1, 2.0, 0.033050, 0.029132),
    (2, 2, 0.5, 0.053794, 0.053794),
    (2, 2, 1.0, 0.037431, 0.029313),
    (2, 2, 2.0, 0.032220, 0.028188),
    (4, 0, 0.5, 0.080496, 0.080496),
    (4, 0, 1.0, 0.055947, 0.043578),
    (4, 0, 2.0, 0.048126, 0.041985),
    (4, 2, 0.5, 0.080592, 0.080592),
    (4, 2, 1.0, 0.049370, 0.041407),
    (4, 2, 2.0, 0.041539, 0.035581),
    (4, 4, 0.5, 0.080525, 0.080525),
    (4, 4, 1.0, 0.042771, 0.041512),
    (4, 4, 2.0, 0.034972, 0.029097),
    (8, 0, 0.5, 0.094138, 0.094138),
    (8, 0, 1.0, 0.065480, 0.052492),
    (8, 0, 2.0, 0.056399, 0.048993),
    (8, 4, 0.5, 0.094166, 0.094166),
    (8, 4, 1.0, 0.054127, 0.050435),
    (8, 4, 2.0, 0.045188, 0.038802),
    (8, 8, 0.5, 0.094166, 0.094166),
    (8, 8, 1.0, 0.047248, 0.047248),
    (8, 8, 2.0, 0.036759, 0.030114),
];

/// The same twelve layers.
fn iteration_s(n: u32, k: u32, ratio: f64, overlap_forward: bool, order: Option<Order>) -> f64 {
    let sizes: Vec<u64> = (0..12).map(|i| (128 << 10) << (i / 3 * 2)).collect();
    let alone = Cluster::uniform(n, 0, 10.0).unwrap();
    let compute_s = predict(&alone, sizes.iter().sum()).unwrap().time_s / ratio;
    let (count, part_s) = (sizes.len(), compute_s / (3 * sizes.len()) as f64);
    let ready_s = |layer: usize| 2.0 * part_s * (count - layer) as f64;
    let tensors = sizes.iter().enumerate();
    let tensors = tensors.map(|(layer, &bytes)| Tensor { layer, bytes, ready_s: ready_s(layer) });
    let layers = vec![Layer { forward_s: Some(part_s) }; count];
    let backward_s = 2.0 * part_s * count as f64;
    let profile = Profile::new(compute_s, backward_s, layers, tensors.collect(), None).unwrap();
    let case = Case {
        workers: n,
        servers: k,
        architecture: Architecture::Sumpter,
        bandwidth_gbps: 10.0,
        credit_bytes: default_credit(Some(10.0)),
        overlap_forward,
        order,
        ..Case::default()
    };
    simulate(&profile, &case).unwrap().iteration_time_s
}

#[test]
fn iterations_take_as_long_as_in_the_engine_in_the_order_of_a_job() {
    let (mut paced, mut overlap, mut by_need) = (Vec::new(), Vec::new(), Vec::new());
    for (n, k, ratio, paced_s, overlap_s) in PERIODS {
        let ways = [("paced", paced_s, false), ("overlap", overlap_s, true)];
        for ((order, engine_s, overlaps), errors) in
            ways.into_iter().zip([&mut paced, &mut overlap])
        {
            let model_s = iteration_s(n, k, ratio, overlaps, None);
            let error = model_s / engine_s - 1.0;
            println!(
                "| {n} | {k} | {ratio:.1} | {order} | {:.1} | {:.1} | {:+.1} % |",
                1e3 * engine_s,
                1e3 * model_s,
                100.0 * error
            );
            errors.push(error.abs());
        }
        let by_need_s = iteration_s(n, k, ratio, false, Some(Order::Forward));
        by_need.push((by_need_s / paced_s - 1.0).abs());
    }
    let distribution = |what: &str, errors: &mut Vec<f64>| {
        errors.sort_by(f64::total_cmp);
        let (median, largest) = (errors[errors.len() / 2], errors[errors.len() - 1]);
        println!("{what}: median {:.1} %, largest {:.1} %", 100.0 * median, 100.0 * largest);
        (median, largest)
    };
    let paced = distribution("paced", &mut paced);
    let overlap = distribution("overlap", &mut overlap);
    // Where a forward pass waits for all gradients, their order moves little.
    distribution("paced, as if in the order of need", &mut by_need);
    assert!(paced.0 < 0.01 && paced.1 < 0.04, "{paced:?}");
    assert!(overlap.0 < 0.015 && overlap.1 < 0.06, "{overlap:?}");
}
