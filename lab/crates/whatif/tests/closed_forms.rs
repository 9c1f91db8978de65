//! What the simulation gives where the answer is known on paper: the shares and times of BytePS
//! (OSDI'20, section 4) and the bounds that no schedule can beat.

use sumpter_plan::{Architecture, Cluster, Uniform, predict};
use sumpter_whatif::{Addition, Bottleneck, Case, Layer, Order, Profile, Tensor, simulate};

const MIB: u64 = 1 << 20;

/// One gradient that is ready when a backward pass of no time ends.
fn one_tensor(bytes: u64) -> Profile {
    let tensor = Tensor { layer: 0, bytes, ready_s: 0.0 };
    Profile::new(1.0, 0.0, vec![Layer { forward_s: None }], vec![tensor], None).unwrap()
}

/// As many bytes in gradients of 32 MiB, which are cut finely enough to keep every link busy.
fn many_tensors(count: u64) -> Profile {
    let tensor = Tensor { layer: 0, bytes: 32 * MIB, ready_s: 0.0 };
    let tensors = vec![tensor; count as usize];
    Profile::new(1.0, 0.0, vec![Layer { forward_s: None }], tensors, None).unwrap()
}

fn case(workers: u32, servers: u32, architecture: Architecture) -> Case {
    Case { workers, servers, architecture, bandwidth_gbps: 10.0, ..Case::default() }
}

fn overhead(profile: &Profile, case: &Case) -> f64 {
    simulate(profile, case).unwrap().overhead_s
}

#[test]
fn large_gradients_take_little_more_than_the_optimum() {
    let bytes = 128 * MIB;
    let profile = many_tensors(4);
    for (n, k) in [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8), (8, 12), (16, 5)]
    {
        let best = Uniform::new(n, k).unwrap().predict(bytes, 10.0).unwrap().time_s;
        let took = overhead(&profile, &case(n, k, Architecture::Sumpter));
        let share = best / took;
        println!("n = {n}, k = {k}: {share:.4} of the optimum");
        assert!((0.9..=1.0 + 1e-9).contains(&share), "n = {n}, k = {k}: {share}");
    }
}

#[test]
fn parameter_servers_take_little_more_than_their_links_need() {
    let bytes = 128 * MIB;
    let profile = many_tensors(4);
    for (n, k) in [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4), (8, 4), (8, 16), (16, 5)] {
        let (n_, k_) = (f64::from(n), f64::from(k));
        let best = (bytes as f64 / 1.25e9) * (n_ / k_).max(1.0);
        let share = best / overhead(&profile, &case(n, k, Architecture::Ps));
        println!("n = {n}, k = {k}: {share:.4} of the optimum");
        assert!((0.9..=1.0 + 1e-9).contains(&share), "n = {n}, k = {k}: {share}");
    }
}

#[test]
fn without_helpers_it_is_a_ring_all_reduce_in_the_limit_of_large_gradients() {
    let profile = many_tensors(4);
    for n in [2, 3, 4, 8, 16] {
        let ring = overhead(&profile, &case(n, 0, Architecture::Allreduce));
        let planned = predict(&Cluster::uniform(n, 0, 10.0).unwrap(), 128 * MIB).unwrap();
        assert!((ring / planned.allreduce_time_s - 1.0).abs() < 1e-12, "n = {n}");
        let ratio = overhead(&profile, &case(n, 0, Architecture::Sumpter)) / ring;
        println!("n = {n}: {ratio:.4}");
        assert!((1.0 - 1e-9..1.05).contains(&ratio), "n = {n}: {ratio}");
    }
}

#[test]
fn one_worker_waits_for_nothing() {
    for architecture in [Architecture::Allreduce, Architecture::Sumpter] {
        let outcome = simulate(&one_tensor(MIB), &case(1, 0, architecture)).unwrap();
        assert_eq!((outcome.overhead_s, outcome.scaling_factor), (0.0, 1.0));
        assert_eq!(outcome.bottleneck, Some(Bottleneck::None));
    }
}

#[test]
fn compression_divides_transmission_and_nothing_else() {
    let addition = Addition::new(vec![(1.0, 0.25)]).unwrap();
    let tensor = Tensor { layer: 0, bytes: 1_250_000_000, ready_s: 0.0 };
    let layers = vec![Layer { forward_s: None }];
    let profile = Profile::new(1.0, 0.0, layers, vec![tensor], Some(addition)).unwrap();
    let plain = case(2, 0, Architecture::Allreduce);
    assert!((overhead(&profile, &plain) - 1.25).abs() < 1e-12);
    let compressed = Case { compression: 4.0, ..plain };
    assert!((overhead(&profile, &compressed) - 0.5).abs() < 1e-12);
    let slow = Case { transport_efficiency: 0.5, ..plain };
    assert!((overhead(&profile, &slow) - 2.25).abs() < 1e-12);
}

#[test]
fn the_bottleneck_is_what_helps_most_to_remove() {
    let of = |add_s: f64| {
        let tensor = Tensor { layer: 0, bytes: 64 * MIB, ready_s: 0.0 };
        let add = Some(Addition::new(vec![(1.0, add_s)]).unwrap());
        let layers = vec![Layer { forward_s: None }];
        let profile = Profile::new(1.0, 0.0, layers, vec![tensor], add).unwrap();
        [Architecture::Allreduce, Architecture::Sumpter]
            .map(|architecture| simulate(&profile, &case(4, 0, architecture)).unwrap().bottleneck)
    };
    assert_eq!(of(1e-9), [Some(Bottleneck::Network); 2]);
    assert_eq!(of(0.1), [Some(Bottleneck::Addition); 2]);
}

#[test]
fn forward_passes_that_overlap_wait_for_their_own_gradients_only() {
    // Two layers of 0.1 s; both gradients are ready at 0.2 s and take 0.1 s each to exchange.
    let layers = vec![Layer { forward_s: Some(0.1) }; 2];
    let tensor = |layer| Tensor { layer, bytes: 125_000_000, ready_s: 0.2 };
    let profile = Profile::new(0.4, 0.2, layers, vec![tensor(0), tensor(1)], None).unwrap();
    let plain = case(2, 1, Architecture::Sumpter);
    let all = overhead(&profile, &plain);
    assert!((0.2..0.21).contains(&all), "{all}");
    let first = overhead(&profile, &Case { overlap_forward: true, ..plain });
    assert!((0.1..0.11).contains(&first), "{first}");
    // What is fused is complete at once, so an all-reduce overlaps nothing here.
    let ring = case(2, 0, Architecture::Allreduce);
    let fused = Case { fusion_bytes: 1 << 30, fusion_timeout_s: 1.0, ..ring };
    let fused = Case { overlap_forward: true, ..fused };
    assert!((overhead(&profile, &fused) - 0.2).abs() < 1e-12);
}

#[test]
fn a_gradient_that_is_needed_first_overtakes_those_that_wait() {
    // The large gradient is ready first; the small one, of the first layer, a moment later.
    let layers = vec![Layer { forward_s: Some(0.0) }, Layer { forward_s: Some(0.5) }];
    let small = Tensor { layer: 0, bytes: MIB, ready_s: 0.01 };
    let large = Tensor { layer: 1, bytes: 256 * MIB, ready_s: 0.0 };
    let profile = Profile::new(0.51, 0.01, layers, vec![small, large], None).unwrap();
    let readiness = case(4, 2, Architecture::Sumpter);
    let plain = Case { order: Some(Order::Forward), ..readiness };
    let small_done = |case: &Case| {
        let layout = sumpter_whatif::Layout::new(&profile, case).unwrap();
        sumpter_whatif::stream::completions(&profile, &layout, case)[0]
    };
    assert!(small_done(&plain) < 0.02);
    let recallable = small_done(&plain);
    let beyond_recall = small_done(&Case { credit_bytes: 1 << 30, ..plain });
    assert!(beyond_recall > 5.0 * recallable, "{recallable} {beyond_recall}");
    // By itself a job sends what was ready first, unless the next forward pass overlaps.
    assert!(small_done(&readiness) > 5.0 * recallable);
    let overlapped = small_done(&Case { overlap_forward: true, ..readiness });
    assert!((overlapped - recallable).abs() < 1e-12);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let good = case(4, 0, Architecture::Sumpter);
    let wrong = |case: Case| simulate(&one_tensor(MIB), &case).unwrap_err().to_string();
    for (bad, field) in [
        (Case { workers: 0, ..good }, "workers is 0"),
        (Case { bandwidth_gbps: -1.0, ..good }, "bandwidth_gbps is -1"),
        (Case { bandwidth_gbps: f64::NAN, ..good }, "bandwidth_gbps is NaN"),
        (Case { compression: 0.5, ..good }, "compression is 0.5"),
        (Case { transport_efficiency: 1.5, ..good }, "transport_efficiency is 1.5"),
        (Case { transport_efficiency: 0.0, ..good }, "transport_efficiency is 0"),
        (Case { partition_bytes: 100, ..good }, "partition_bytes is 100"),
        (Case { credit_bytes: 0, ..good }, "credit_bytes is 0"),
        (case(4, 1, Architecture::Allreduce), "servers is 1"),
        (case(4, 0, Architecture::Ps), "servers is 0"),
        (Case { overlap_forward: true, ..good }, "layers[0].forward_s is null"),
    ] {
        let message = wrong(bad);
        assert!(message.starts_with(field) && message.contains("expected"), "{message}");
    }
}
