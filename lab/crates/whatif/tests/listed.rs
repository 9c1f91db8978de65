//! Machines that are listed: racks, trunks, links that differ, and what is inside a machine.

use proptest::prelude::*;
use sumpter_plan::{Architecture, LocalChoice, predict_trees};
use sumpter_whatif::{
    Addition, Bottleneck, Case, Layer, Layout, Machines, Profile, Tensor, ring, simulate,
    simulate_on, simulate_placed, stream,
};

const MIB: u64 = 1 << 20;

/// Gradients of 16 MiB that are ready at once, after a backward pass of no time.
fn tensors(count: usize) -> Profile {
    let tensor = Tensor { layer: 0, bytes: 16 * MIB, ready_s: 0.0 };
    let layers = vec![Layer { forward_s: None }];
    Profile::new(1.0, 0.0, layers, vec![tensor; count], None).unwrap()
}

fn machines(toml: &str) -> Machines {
    chosen(toml, LocalChoice::Rule)
}

fn chosen(toml: &str, choice: LocalChoice) -> Machines {
    Machines::new(toml, choice).unwrap_or_else(|error| panic!("{error}"))
}

fn case(machines: &Machines, architecture: Architecture) -> Case {
    Case {
        workers: machines.workers(),
        servers: machines.servers(),
        bandwidth_gbps: machines.bandwidth_gbps(),
        architecture,
        ..Case::default()
    }
}

fn overhead(profile: &Profile, machines: &Machines, architecture: Architecture) -> f64 {
    simulate_on(profile, machines, &case(machines, architecture)).unwrap().overhead_s
}

fn plain(workers: u32, servers: u32, gbps: f64) -> String {
    let entry = |role: &str, count: u32| match count {
        0 => String::new(),
        _ => format!("[[machine]]\nrole = {role:?}\ncount = {count}\nbandwidth_gbps = {gbps:?}\n"),
    };
    entry("gpu", workers) + &entry("cpu", servers)
}

/// Racks of `workers` GPU machines of 10 Gb/s each, and a CPU machine in each.
fn racks(racks: u32, workers: u32, trunk_gbps: f64) -> String {
    format!(
        "[[rack]]\nname = \"rack\"\ncount = {racks}\ntrunk_gbps = {trunk_gbps:?}\n\
         [[machine]]\nrole = \"gpu\"\nrack = \"rack\"\ncount = {workers}\nbandwidth_gbps = 10\n\
         [[machine]]\nrole = \"cpu\"\nrack = \"rack\"\nbandwidth_gbps = 10\n"
    )
}

/// Machines with eight GPUs below four switches of two sockets, and the NIC beside the first two.
fn eight_gpus(count: u32, helpers: u32, nvlink: bool, pcie_gbps: f64) -> String {
    let mut toml = format!(
        "[[machine]]\nrole = \"gpu\"\ncount = {count}\n\
         nics = [{{ name = \"nic\", gbps = 100, device = \"switch-0\" }}]\n\
         devices = [\n{{ name = \"cpu-0\", kind = \"cpu\" }},\n\
         {{ name = \"cpu-1\", kind = \"cpu\", parent = \"cpu-0\", gbps = 300 }},\n"
    );
    for switch in 0..4 {
        let cpu = switch / 2;
        toml += &format!(
            "{{ name = \"switch-{switch}\", kind = \"switch\", parent = \"cpu-{cpu}\", \
             gbps = {pcie_gbps:?} }},\n"
        );
        for gpu in [2 * switch, 2 * switch + 1] {
            toml += &format!(
                "{{ name = \"gpu-{gpu}\", kind = \"gpu\", parent = \"switch-{switch}\", \
                 gbps = {pcie_gbps:?} }},\n"
            );
        }
    }
    toml += "]\n";
    if nvlink {
        let all: Vec<String> = (0..8).map(|gpu| format!("\"gpu-{gpu}\"")).collect();
        toml += &format!("nvlinks = [{{ devices = [{}], gbps = 1000 }}]\n", all.join(", "));
    }
    if helpers > 0 {
        toml += &plain(0, helpers, 100.0);
    }
    toml
}

#[test]
fn machines_of_one_gpu_and_one_rack_are_a_case_to_the_bit() {
    let additions = Addition::new(vec![(1e4, 1e-5), (1e6, 1e-3)]).unwrap();
    let tensors = (0..9).map(|layer| Tensor {
        layer,
        bytes: (layer as u64 * 17 + 1) << 17,
        ready_s: 0.01 * (9 - layer) as f64,
    });
    let layers = vec![Layer { forward_s: Some(0.002) }; 9];
    let profile = Profile::new(0.12, 0.1, layers, tensors.collect(), Some(additions)).unwrap();
    for (n, k) in [(1, 0), (2, 1), (4, 0), (5, 3), (8, 8)] {
        let rack = "[[rack]]\nname = \"only\"\ntrunk_gbps = 0.001\n".to_owned();
        let in_rack = rack + &plain(n, k, 10.0).replace("count", "rack = \"only\"\ncount");
        for list in [machines(&plain(n, k, 10.0)), machines(&in_rack)] {
            assert!(list.is_uniform());
            let architectures = match k {
                0 => vec![Architecture::Allreduce, Architecture::Sumpter],
                _ => vec![Architecture::Ps, Architecture::Sumpter],
            };
            for architecture in architectures {
                for overlap_forward in [false, true] {
                    let case = Case { overlap_forward, ..case(&list, architecture) };
                    let (listed, uniform) =
                        (simulate_on(&profile, &list, &case), simulate(&profile, &case));
                    assert_eq!(listed.unwrap(), uniform.unwrap());
                }
            }
        }
    }
}

#[test]
fn trunks_take_as_long_as_the_planner_says() {
    let profile = tensors(8);
    for (count, workers, trunk) in [(2, 4, 10.0), (2, 4, 20.0), (2, 4, 80.0), (3, 5, 12.0)] {
        let list = machines(&racks(count, workers, trunk));
        let planned = list.plan(Architecture::Sumpter).unwrap();
        let best = predict_trees(list.topology(), &planned, 128 * MIB).unwrap();
        let took = overhead(&profile, &list, Architecture::Sumpter);
        let share = best.time_s / took;
        println!("{count} racks of {workers}, trunk {trunk}: {share:.4} of the optimum");
        assert!((0.9..1.0 + 1e-6).contains(&share), "{count} {workers} {trunk}: {share}");
        // A ring crosses each trunk once each way.
        let alone = machines(&racks(count, workers, trunk).replace("\"cpu\"", "\"gpu\""));
        let ring = overhead(&profile, &alone, Architecture::Allreduce);
        let members = f64::from(count * (workers + 1));
        let least = 2.0 * (members - 1.0) / members * 128.0 * MIB as f64 / 1.25e9;
        assert!((ring / least - (10.0_f64 / trunk).max(1.0)).abs() < 1e-9, "{ring} {least}");
    }
}

#[test]
fn plans_are_those_of_a_job_or_of_parameter_servers() {
    // At 4:1 the planner would mix flat trees and hubs.
    let list = machines(&racks(2, 4, 12.5));
    let mixed = sumpter_plan::plan_trees(list.topology()).unwrap();
    assert_eq!(mixed.trees.branches.iter().filter(|one| one.levels.is_empty()).count(), 1);
    let job = list.plan(Architecture::Sumpter).unwrap();
    assert!(job.trees.branches.iter().all(|one| !one.levels.is_empty()), "{job:?}");
    assert!(job.loads.trunks[0] < 1.0 + 1e-6 && mixed.loads.trunks[0] > 1.1);
    // Workers send and receive once, two servers half of the model of eight workers each.
    let servers = list.plan(Architecture::Ps).unwrap();
    let expected = [[1.0; 8].as_slice(), &[4.0; 2]].concat();
    let near = |(load, expected): (&f64, f64)| (load - expected).abs() < 1e-9;
    assert!(servers.loads.machines.iter().zip(expected).all(near), "{servers:?}");
    assert_eq!(servers.loads.trunks, [4.0, 4.0]);
}

#[test]
fn a_core_is_a_limit_of_all_racks() {
    let profile = tensors(8);
    let open = racks(3, 4, 10.0);
    let narrow = format!("core_gbps = 10\n{open}");
    let times =
        [&open, &narrow].map(|toml| overhead(&profile, &machines(toml), Architecture::Sumpter));
    // Three racks each send their aggregate once through 10 Gb/s.
    let least = 3.0 * 128.0 * MIB as f64 / 1.25e9;
    assert!(times[1] > 2.0 * times[0] && times[1] >= least * (1.0 - 1e-6), "{times:?} {least}");
}

#[test]
fn racks_of_one_machine_unequal_racks_and_unequal_links_work() {
    let rack = |name: &str| format!("[[rack]]\nname = {name:?}\ntrunk_gbps = 5\n");
    let machine = |rack: &str, role: &str, count: u32, gbps: f64| {
        format!(
            "[[machine]]\nrole = {role:?}\nrack = {rack:?}\ncount = {count}\n\
                 bandwidth_gbps = {gbps:?}\n"
        )
    };
    let all = [rack("a"), rack("b"), rack("c")].concat();
    let cases = [
        [machine("a", "gpu", 1, 10.0), machine("b", "gpu", 1, 10.0), machine("c", "gpu", 1, 10.0)],
        [machine("a", "gpu", 5, 10.0), machine("b", "gpu", 1, 25.0), machine("c", "cpu", 2, 40.0)],
        [machine("a", "gpu", 2, 10.0), machine("b", "gpu", 3, 7.0), machine("c", "gpu", 1, 10.0)],
    ];
    for entries in cases {
        let list = machines(&(all.clone() + &entries.concat()));
        let planned = list.plan(Architecture::Sumpter).unwrap();
        let best = predict_trees(list.topology(), &planned, 128 * MIB).unwrap().time_s;
        let took = overhead(&tensors(8), &list, Architecture::Sumpter);
        assert!(took >= best * (1.0 - 1e-6) && took < 1.35 * best, "{took} {best}");
    }
}

#[test]
fn each_way_of_adding_inside_loads_the_links_that_it_should() {
    let (profile, gib) = (tensors(8), 128.0 * MIB as f64 * 8e-9);
    let took = |nvlink, choice: LocalChoice, helpers: u32| {
        let list = chosen(&eight_gpus(8, helpers, nvlink, 105.0), choice);
        overhead(&profile, &list, Architecture::Sumpter)
    };
    let roots = |names: &[&str]| LocalChoice::Roots(names.iter().map(|&n| n.to_owned()).collect());
    let near = |took: f64, least: f64| {
        println!("{:.4}", took / least);
        assert!((0.999..1.12).contains(&(took / least)), "{took} {least}");
    };
    // As many helpers as GPU machines: each NIC carries the model once each way.
    near(took(true, LocalChoice::Rule, 8), gib / 100.0);
    near(took(true, roots(&["gpu-2"]), 8), gib / 100.0);
    // Copies beside the NIC's traffic: of two of eight GPUs, or of all.
    near(took(true, LocalChoice::ReduceScatter, 8), 1.25 * gib / 105.0);
    near(took(true, roots(&["gpu-0"]), 8), 2.0 * gib / 105.0);
    // Without NVLink the two GPUs below each switch reduce-scatter.
    near(took(false, LocalChoice::Rule, 8), 2.0 * gib / 105.0);
    near(took(false, LocalChoice::Direct, 8), 3.0 * gib / 105.0);
    // A ring over PCIe crosses the NIC's switch twice 7/8.
    near(took(false, LocalChoice::ReduceScatter, 8), (1.0 + 0.25 + 1.75) * gib / 105.0);
}

#[test]
fn the_bottleneck_may_be_inside() {
    let (profile, architecture) = (tensors(32), Architecture::Sumpter);
    let of = |pcie_gbps| {
        let list = machines(&eight_gpus(2, 0, false, pcie_gbps));
        simulate_on(&profile, &list, &case(&list, architecture)).unwrap().bottleneck
    };
    assert_eq!(of(20.0), Some(Bottleneck::Inside));
    assert_eq!(of(2000.0), Some(Bottleneck::Network));
}

#[test]
fn one_machine_has_nothing_but_its_inside() {
    let profile = tensors(8);
    let list = machines(&eight_gpus(1, 0, false, 105.0));
    let report = sumpter_plan::parse_machines(&eight_gpus(1, 0, false, 105.0)).unwrap();
    let inside = sumpter_plan::reduce_inside(&report.devices[0], 128 * MIB, 0.0);
    let took = overhead(&profile, &list, Architecture::Sumpter);
    assert!((1.0 - 1e-9..1.1).contains(&(took / inside.time_s)), "{took} {}", inside.time_s);
    let ring = overhead(&profile, &list, Architecture::Allreduce);
    assert!((ring / (1.75 * 128.0 * MIB as f64 * 8e-9 / 105.0) - 1.0).abs() < 1e-9);
}

#[test]
fn a_machine_without_devices_counts_as_one_gpu_beside_others() {
    let list = machines(&(eight_gpus(2, 0, true, 105.0) + &plain(3, 1, 100.0)));
    assert_eq!((list.workers(), list.servers(), list.gpus(), list.racks()), (5, 1, 19, 0));
    assert_eq!(list.reductions(), [("machine-1-1".to_owned(), "reduce to roots")]);
    // No slower than the same links alone, since roots are away from the NIC.
    let alone = machines(&plain(5, 1, 100.0));
    let times = [&list, &alone].map(|list| overhead(&tensors(8), list, Architecture::Sumpter));
    assert!((times[0] / times[1] - 1.0).abs() < 0.02, "{times:?}");
}

#[test]
fn a_ring_of_gpus_goes_over_nvlink_or_pcie_and_has_latency() {
    let profile = tensors(8);
    let ring = |toml: &str, hop_latency_s| {
        let list = machines(toml);
        let case = Case { hop_latency_s, ..case(&list, Architecture::Allreduce) };
        simulate_on(&profile, &list, &case).unwrap().overhead_s
    };
    let least = |gbps: f64| 2.0 * 31.0 / 32.0 * 128.0 * MIB as f64 * 8e-9 / gbps;
    let nvlink = eight_gpus(4, 0, true, 105.0);
    assert!((ring(&nvlink, 0.0) / least(100.0) - 1.0).abs() < 1e-9);
    let narrow = eight_gpus(4, 0, false, 80.0);
    assert!((ring(&narrow, 0.0) / least(80.0) - 1.0).abs() < 1e-9);
    // Two fusion buffers of 64 MiB, 62 steps each.
    assert!((ring(&nvlink, 1e-3) - least(100.0) - 0.124).abs() < 1e-9);
}

#[test]
fn a_server_s_optimizer_takes_its_time_once_for_each_sum() {
    let profile = tensors(8);
    let list = machines(&plain(4, 1, 10.0));
    let with = |update_bytes_per_s| {
        let case = Case { update_bytes_per_s, ..case(&list, Architecture::Ps) };
        simulate_on(&profile, &list, &case).unwrap()
    };
    let bytes = 128.0 * MIB as f64;
    let plain = with(None).overhead_s;
    // Faster than contributions come in, nearly hidden; slower, the limit.
    assert!(with(Some(1e9)).overhead_s < plain * 1.02);
    let slow = with(Some(1e8));
    assert!((1.0..1.1).contains(&(slow.overhead_s / (bytes / 1e8))), "{slow:?}");
    assert_eq!(slow.bottleneck, Some(Bottleneck::Addition));
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let eight = eight_gpus(2, 0, false, 105.0);
    let with_nvlink = eight_gpus(2, 0, true, 105.0);
    let roots = |name: &str| LocalChoice::Roots(vec![name.to_owned()]);
    let (from, to) = ("\"cpu-0\", gbps = 105.0", "\"switch-1\", gbps = 1");
    let cycle = eight.replace(from, to);
    let cycle = cycle.replacen(
        "\"switch-1\", kind = \"switch\", parent = \"switch-1\"",
        "\"switch-1\", kind = \"switch\", parent = \"switch-0\"",
        1,
    );
    let no_devices = "[[machine]]\nrole = \"gpu\"\nbandwidth_gbps = 1\n\
                      nvlinks = [{ devices = [\"a\", \"b\"], gbps = 1 }]\n";
    for (toml, choice, words) in [
        (eight.as_str(), roots("gpu-0"), "machine \"machine-1-1\": roots is gpu-0; expected no"),
        (&with_nvlink, roots("gpu-9"), "roots is \"gpu-9\"; expected gpu-0, gpu-1"),
        (&with_nvlink, LocalChoice::Roots(Vec::new()), "roots is empty; expected one or more"),
        (&plain(2, 0, 1.0), LocalChoice::Direct, "local reduction is direct; expected rule, or"),
        (&plain(0, 2, 1.0), LocalChoice::Rule, "none of the 2 machines has role \"gpu\""),
        (&cycle, LocalChoice::Rule, "devices is a cycle, "),
        (no_devices, LocalChoice::Rule, "devices is missing; expected the devices that"),
    ] {
        let error = Machines::new(toml, choice).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let list = machines(&eight);
    let other = Case { workers: 3, ..case(&list, Architecture::Sumpter) };
    let error = simulate_on(&tensors(1), &list, &other).unwrap_err().to_string();
    assert_eq!(error, "workers is 3; expected 2, as many as are listed");
}

fn profiles() -> impl Strategy<Value = Profile> {
    let tensor = (1_000..4_000_000_u64, 0.0..1.0_f64);
    let additions = prop_oneof![Just(None), (1e-6..1e-5).prop_map(Some)];
    (proptest::collection::vec(tensor, 1..8), additions).prop_map(|(tensors, addition_s)| {
        let layers = vec![Layer { forward_s: Some(0.001) }; tensors.len()];
        let tensors = tensors.into_iter().enumerate();
        let tensors = tensors
            .map(|(layer, (bytes, part))| Tensor { layer, bytes, ready_s: 0.02 * part })
            .collect();
        let table = |one_s| Addition::new(vec![(1e4, one_s), (1e6, 10.0 * one_s)]).unwrap();
        Profile::new(0.04, 0.02, layers, tensors, addition_s.map(table)).unwrap()
    })
}

fn end(profile: &Profile, machines: &Machines, case: &Case) -> f64 {
    let layout = Layout::on(profile, machines, case).unwrap();
    let done = match case.architecture {
        Architecture::Allreduce => ring::completions_on(profile, &layout, case),
        _ => stream::completions(profile, &layout, case),
    };
    done.into_iter().fold(0.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn limits_that_are_never_reached_change_nothing(
        profile in profiles(),
        (n, k) in (2..7_u32, 0..4_u32),
        ps in any::<bool>(),
    ) {
        let architecture = if ps && k > 0 { Architecture::Ps } else { Architecture::Sumpter };
        let uniform = machines(&plain(n, k, 10.0));
        let case = case(&uniform, architecture);
        let expected = end(&profile, &uniform, &case);
        // Two racks whose trunks carry all that there is.
        let wide = "[[rack]]\nname = \"rack-1\"\ntrunk_gbps = 10000\n\
                    [[rack]]\nname = \"rack-2\"\ntrunk_gbps = 10000\n".to_owned();
        let first = plain(1, 0, 10.0).replace("count", "rack = \"rack-1\"\ncount");
        let others = plain(n - 1, k, 10.0).replace("count", "rack = \"rack-2\"\ncount");
        let wide = machines(&(wide + &first + &others));
        prop_assert!(!wide.is_uniform());
        let in_racks = end(&profile, &wide, &case);
        prop_assert!((in_racks / expected - 1.0).abs() < 1e-6, "{in_racks} {expected}");
        // One GPU a machine, whose links inside carry all that there is.
        let devices = "bandwidth_gbps = 10.0\n\
            nics = [{ name = \"nic\", gbps = 10, device = \"cpu\" }]\n\
            devices = [{ name = \"cpu\", kind = \"cpu\" }, \
            { name = \"gpu\", kind = \"gpu\", parent = \"cpu\", gbps = 10000 }]\n";
        let inside = plain(n, k, 10.0).replacen("bandwidth_gbps = 10.0\n", devices, 1);
        let inside = machines(&inside);
        prop_assert!(!inside.is_uniform());
        let one_gpu = end(&profile, &inside, &case);
        prop_assert!((one_gpu / expected - 1.0).abs() < 1e-6, "{one_gpu} {expected}");
    }

    #[test]
    fn more_bandwidth_anywhere_is_never_slower(
        profile in profiles(),
        (count, workers) in (1..4_u32, 1..4_u32),
        trunk_gbps in 2.0..60.0_f64,
        faster in 1.0..4.0_f64,
        compression in prop_oneof![Just(1.0), 1.0..4.0_f64],
    ) {
        let at = |trunk: f64, network: f64| {
            let list = machines(&racks(count, workers, trunk));
            let case = Case { compression, ..case(&list, Architecture::Sumpter) };
            end(&profile, &list, &Case { bandwidth_gbps: network * case.bandwidth_gbps, ..case })
        };
        let before = at(trunk_gbps, 1.0);
        // Partitions that meet others on a faster network, or are placed by another plan, may lose
        // a little.
        prop_assert!(at(trunk_gbps, faster) <= before * 1.05);
        prop_assert!(at(faster * trunk_gbps, 1.0) <= before * 1.1);
        let inside = |pcie: f64| {
            let list = machines(&eight_gpus(count, workers, false, pcie));
            end(&profile, &list, &case(&list, Architecture::Sumpter))
        };
        prop_assert!(inside(faster * trunk_gbps) <= inside(trunk_gbps) * 1.05);
        let ring = |pcie: f64| {
            let list = machines(&eight_gpus(count, 0, false, pcie));
            end(&profile, &list, &case(&list, Architecture::Allreduce))
        };
        prop_assert!(ring(faster * trunk_gbps) <= ring(trunk_gbps));
    }

    #[test]
    fn no_link_carries_more_than_it_can(
        profile in profiles(),
        (count, workers) in (2..4_u32, 1..5_u32),
        trunk_gbps in 2.0..60.0_f64,
    ) {
        let list = machines(&racks(count, workers, trunk_gbps));
        let case = case(&list, Architecture::Sumpter);
        let planned = list.plan(Architecture::Sumpter).unwrap();
        let bytes: u64 = profile.tensors().iter().map(|tensor| tensor.bytes).sum();
        let first_s = profile.tensors()[profile.by_readiness()[0]].ready_s;
        // A placement in whole partitions puts up to a few more or less on a link.
        let slack = 8.0 * 32_768.0 * f64::from(count * workers + count) * 8e-9;
        let best = planned.seconds_per_gigabit * (bytes as f64 * 8e-9 - slack).max(0.0);
        prop_assert!(end(&profile, &list, &case) >= first_s + best * (1.0 - 1e-6));
    }
}

#[test]
fn a_thousand_machines_in_racks_end() {
    let toml = include_str!("../../../../examples/clusters/large.toml");
    let list = machines(toml);
    assert_eq!((list.workers(), list.servers(), list.racks()), (960, 64, 32));
    let profile = tensors(1);
    let case = case(&list, Architecture::Sumpter);
    let layout = Layout::on(&profile, &list, &case).unwrap();
    let outcome = simulate_placed(&profile, &layout, &case, false).unwrap();
    assert!(outcome.overhead_s > 0.005, "{outcome:?}");
}
