//! What must hold for every profile and every cluster.

use proptest::prelude::*;
use sumpter_plan::{Architecture, Cluster, link_loads, shares};
use sumpter_whatif::{Addition, Case, Layer, Layout, Profile, Tensor, ring, simulate, stream};

fn profiles() -> impl Strategy<Value = Profile> {
    let tensor = (1_000..6_000_000_u64, 0.0..1.0_f64);
    let additions = prop_oneof![Just(None), (1e-7..1e-4).prop_map(Some)];
    (proptest::collection::vec(tensor, 1..12), additions).prop_map(|(tensors, addition_s)| {
        let layers = vec![Layer { forward_s: Some(0.001) }; tensors.len()];
        let tensors = tensors.into_iter().enumerate();
        let tensors = tensors
            .map(|(layer, (bytes, part))| Tensor { layer, bytes, ready_s: 0.1 * part })
            .collect();
        let table = |one_s| Addition::new(vec![(1e4, one_s), (1e8, 100.0 * one_s)]).unwrap();
        Profile::new(0.2, 0.1, layers, tensors, addition_s.map(table)).unwrap()
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let architecture = prop_oneof![
        Just(Architecture::Allreduce),
        Just(Architecture::Ps),
        Just(Architecture::Sumpter)
    ];
    (architecture, 1..24_u32, 0..24_u32, 1.0..50.0_f64, 1.0..4.0_f64).prop_map(
        |(architecture, workers, servers, bandwidth_gbps, compression)| Case {
            workers,
            servers: match architecture {
                Architecture::Allreduce => 0,
                Architecture::Ps => servers.max(1),
                Architecture::Sumpter => servers,
            },
            architecture,
            bandwidth_gbps,
            compression,
            ..Case::default()
        },
    )
}

/// When the last sum is complete, since the beginning of the backward pass.
fn end(profile: &Profile, case: &Case) -> f64 {
    let done = match case.architecture {
        Architecture::Allreduce => ring::completions(profile, case),
        _ => stream::completions(profile, &Layout::new(profile, case).unwrap(), case),
    };
    done.into_iter().fold(0.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_faster_than_the_compute_or_the_links(profile in profiles(), case in cases()) {
        let outcome = simulate(&profile, &case).unwrap();
        prop_assert!(outcome.iteration_time_s >= profile.iteration_s());
        prop_assert!((0.0..=1.0).contains(&outcome.scaling_factor));

        let wire_bytes = |tensor: &Tensor| tensor.bytes as f64 / case.compression;
        let bytes: f64 = profile.tensors().iter().map(wire_bytes).sum();
        let first_s = profile.tensors()[profile.by_readiness()[0]].ready_s;
        let (n, k) = (case.workers, case.servers);
        let load = match case.architecture {
            Architecture::Allreduce => 2.0 * f64::from(n - 1) / f64::from(n),
            Architecture::Ps => (f64::from(n) / f64::from(k)).max(1.0),
            Architecture::Sumpter if n == 1 => 0.0,
            Architecture::Sumpter => {
                let cluster = Cluster::uniform(n, k, 1.0).unwrap();
                link_loads(&cluster, &shares(&cluster)).into_iter().fold(0.0, f64::max)
            }
        };
        let bound = first_s + load * bytes / case.link_rate();
        let end_s = end(&profile, &case);
        prop_assert!(end_s >= bound * (1.0 - 1e-6), "{end_s} {bound}");
    }

    #[test]
    fn a_faster_network_is_no_slower(profile in profiles(), case in cases()) {
        let faster = Case { bandwidth_gbps: 2.0 * case.bandwidth_gbps, ..case };
        let (before, after) = (end(&profile, &case), end(&profile, &faster));
        // Gradients that meet other company on a faster network may lose a little.
        prop_assert!(after <= before * 1.05, "{before} {after}");
    }

    #[test]
    fn the_same_in_other_units_is_the_same(profile in profiles(), case in cases()) {
        let efficient = Case {
            bandwidth_gbps: case.bandwidth_gbps / 0.5,
            transport_efficiency: 0.5,
            ..case
        };
        let (one, other) = (end(&profile, &case), end(&profile, &efficient));
        prop_assert!((one / other - 1.0).abs() < 1e-9, "{one} {other}");
    }

    #[test]
    fn overlapping_the_forward_pass_never_costs(profile in profiles(), case in cases()) {
        let case = Case { order: Some(case.order()), ..case };
        let overlapped = Case { overlap_forward: true, ..case };
        let (plain, overlapped) = (simulate(&profile, &case), simulate(&profile, &overlapped));
        let (plain, overlapped) = (plain.unwrap(), overlapped.unwrap());
        prop_assert!(overlapped.iteration_time_s <= plain.iteration_time_s * (1.0 + 1e-12));
    }

    #[test]
    fn every_byte_has_one_place(profile in profiles(), case in cases()) {
        prop_assume!(case.architecture != Architecture::Allreduce);
        let layout = Layout::new(&profile, &case).unwrap();
        let mut bytes = vec![0; profile.tensors().len()];
        for unit in &layout.units {
            bytes[unit.tensor] += unit.bytes;
            let first = if case.architecture == Architecture::Ps { case.workers } else { 0 };
            prop_assert!((first..case.workers + case.servers).contains(&(unit.machine as u32)));
        }
        let sizes: Vec<u64> = profile.tensors().iter().map(|tensor| tensor.bytes).collect();
        prop_assert_eq!(bytes, sizes);
    }
}

#[test]
fn thousands_of_machines_and_a_hundred_layers_end() {
    let layers = vec![Layer { forward_s: Some(0.0005) }; 100];
    let tensor = |layer| Tensor {
        layer,
        bytes: 100_000 + 37_000 * layer as u64,
        ready_s: 0.1 - 0.001 * layer as f64,
    };
    let profile = Profile::new(0.15, 0.1, layers, (0..100).map(tensor).collect(), None).unwrap();
    for (servers, architecture) in
        [(0, Architecture::Allreduce), (5000, Architecture::Ps), (1000, Architecture::Sumpter)]
    {
        let bandwidth_gbps = 10.0;
        let case = Case { workers: 5000, servers, architecture, bandwidth_gbps, ..Case::default() };
        let outcome = simulate(&profile, &case).unwrap();
        assert!(outcome.scaling_factor > 0.1, "{outcome:?}");
    }
}
