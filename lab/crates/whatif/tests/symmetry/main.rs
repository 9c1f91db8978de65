//! One worker stands for all: the crate's answers are those of a simulation of every machine.

mod reference;

use proptest::prelude::*;
use reference::Reference;
use sumpter_plan::Architecture;
use sumpter_whatif::{Addition, Case, Layer, Layout, Profile, Tensor, stream};

fn profiles() -> impl Strategy<Value = Profile> {
    let tensor = (1_000..2_000_000_u64, 0.0..1.0_f64);
    let additions = prop_oneof![Just(None), (1e-6..1e-4).prop_map(Some)];
    (proptest::collection::vec(tensor, 1..6), additions).prop_map(|(tensors, addition_s)| {
        let layers = vec![Layer { forward_s: None }; tensors.len()];
        let tensors = tensors.into_iter().enumerate();
        let tensors = tensors
            .map(|(layer, (bytes, part))| Tensor { layer, bytes, ready_s: 0.02 * part })
            .collect();
        let table = |one_s| Addition::new(vec![(1e4, one_s), (1e6, 10.0 * one_s)]).unwrap();
        Profile::new(0.04, 0.02, layers, tensors, addition_s.map(table)).unwrap()
    })
}

fn cases(architecture: Architecture) -> impl Strategy<Value = Case> {
    let servers = if architecture == Architecture::Ps { 1..5_u32 } else { 0..5 };
    let credits = prop_oneof![Just(1_u64), Just(64 << 10), Just(1 << 20), Just(1 << 40)];
    (1..6_u32, servers, 0.5..2.0_f64, credits, prop_oneof![Just(1.0), 1.0..10.0_f64]).prop_map(
        move |(workers, servers, bandwidth_gbps, credit_bytes, compression)| Case {
            workers,
            servers,
            architecture,
            bandwidth_gbps,
            credit_bytes,
            compression,
            partition_bytes: 256 << 10,
            ..Case::default()
        },
    )
}

fn compare(profile: &Profile, case: &Case, groups: Vec<Vec<usize>>) -> Result<(), TestCaseError> {
    let layout = Layout::new(profile, case).unwrap();
    let ours = stream::completions(profile, &layout, case);
    let theirs = Reference::new(profile, &layout, case, groups).run();
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        prop_assert!((ours / theirs - 1.0).abs() < 1e-6, "tensor {index}: {ours} {theirs}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn workers_that_send_in_step_are_one_worker(
        profile in profiles(),
        case in cases(Architecture::Sumpter),
    ) {
        compare(&profile, &case, vec![(0..case.workers as usize).collect()])?;
    }

    #[test]
    fn before_parameter_servers_workers_send_in_step_by_themselves(
        profile in profiles(),
        case in cases(Architecture::Ps),
    ) {
        compare(&profile, &case, (0..case.workers as usize).map(|worker| vec![worker]).collect())?;
    }
}

#[test]
fn workers_with_servers_of_their_own_end_at_nearly_the_same_time_as_those_in_step() {
    for (n, k, mib) in [(2, 1, 16), (3, 0, 16), (4, 0, 16), (4, 1, 8), (4, 2, 16), (6, 3, 16)] {
        let layers = vec![Layer { forward_s: None }; 8];
        let tensors = (0..8).map(|layer| Tensor {
            layer,
            bytes: mib << 17,
            ready_s: 0.001 * (8 - layer) as f64,
        });
        let profile = Profile::new(0.1, 0.01, layers, tensors.collect(), None).unwrap();
        let architecture = Architecture::Sumpter;
        let case =
            Case { workers: n, servers: k, architecture, bandwidth_gbps: 10.0, ..Case::default() };
        let layout = Layout::new(&profile, &case).unwrap();
        let alone = (0..n as usize).map(|worker| vec![worker]).collect();
        let end = |done: Vec<f64>| done.into_iter().fold(0.0, f64::max);
        let ours = end(stream::completions(&profile, &layout, &case));
        let theirs = end(Reference::new(&profile, &layout, &case, alone).run());
        println!("n = {n}, k = {k}: {ours:.5} s in step, {theirs:.5} s each by itself");
        assert!((ours / theirs - 1.0).abs() < 0.1, "n = {n}, k = {k}: {ours} {theirs}");
    }
}
