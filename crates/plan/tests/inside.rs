//! Inside a machine: the model of BytePS' section 4.2, its rule, and graphs of devices.

use proptest::prelude::*;
use sumpter_plan::{
    Devices, Inside, InsideReport, LocalChoice, LocalReduction, PlanError, best_split,
    cpu_link_load, gpu_link_load, inside, local_reduction, parse_machines, reduce_inside,
    ring_gbps,
};

const GIB: u64 = 1 << 30;

/// Two sockets with a switch each, four GPUs on either, the NIC beside the first four.
const PCIE_ONLY: &str = r#"
[[machine]]
role = "gpu"
nics = [{ name = "nic", gbps = 100, device = "switch-a" }]
devices = [
    { name = "cpu-a", kind = "cpu" },
    { name = "cpu-b", kind = "cpu", parent = "cpu-a", gbps = 300 },
    { name = "switch-a", kind = "switch", parent = "cpu-a", gbps = 105 },
    { name = "switch-b", kind = "switch", parent = "cpu-b", gbps = 105 },
    { name = "a", kind = "gpu", parent = "switch-a", gbps = 105, count = 4 },
    { name = "b", kind = "gpu", parent = "switch-b", gbps = 105, count = 4 },
]
"#;

fn devices(toml: &str) -> Devices {
    let list = parse_machines(toml).unwrap_or_else(|error: PlanError| panic!("{error}"));
    list.devices.into_iter().next().unwrap()
}

fn with_nvlink(toml: &str) -> String {
    let all = ["a-1", "a-2", "a-3", "a-4", "b-1", "b-2", "b-3", "b-4"].map(|n| format!("{n:?}"));
    format!("{toml}nvlinks = [{{ devices = [{}], gbps = 1000 }}]\n", all.join(", "))
}

fn load(report: &InsideReport, device: &str) -> f64 {
    let link = report.links.iter().find(|link| link.device == device && link.parent != "NVLink");
    link.unwrap_or_else(|| panic!("{device}")).bytes / GIB as f64
}

#[test]
fn the_paper_s_machine_of_two_switches_has_its_loads() {
    let report = reduce_inside(&devices(PCIE_ONLY), GIB, 0.0);
    assert_eq!(report.reduction, LocalReduction::CpuAssisted);
    assert!((report.direct - 0.2).abs() < 1e-12, "{report:?}");
    for link in ["switch-a", "switch-b", "a-1", "b-4"] {
        assert!((load(&report, link) - 1.6).abs() < 1e-12, "{link}");
    }
    assert_eq!(load(&report, "cpu-b"), 1.0);
    // Copying everything as it is takes 2.5 times as long.
    assert!((report.without_local_step_s / report.time_s - 2.5).abs() < 1e-12);
}

#[test]
fn traffic_of_the_nic_shares_the_link_of_its_switch() {
    let report = reduce_inside(&devices(PCIE_ONLY), GIB, 1.0);
    let (beside, other) = (load(&report, "switch-a"), load(&report, "switch-b"));
    assert!((beside - other - 1.0).abs() < 1e-12);
    // So less is copied as it is: with n = 4 the NIC's link is the busiest even at none.
    assert_eq!(report.direct, 0.0);
    assert_eq!((load(&report, "nic"), beside, load(&report, "a-1")), (1.0, 2.0, 1.75));
    assert!(report.gpu_direct);
}

#[test]
fn nvlink_machines_follow_the_rule() {
    let report = reduce_inside(&devices(&with_nvlink(PCIE_ONLY)), GIB, 1.0);
    assert_eq!(report.reduction, LocalReduction::ReduceBroadcast);
    assert_eq!(report.roots, ["b-1", "b-2", "b-3", "b-4"]);
    // Copies take the switch without the NIC, in turn; the other has the NIC's traffic alone.
    let loads = ["a-1", "b-1", "switch-b", "switch-a"].map(|device| load(&report, device));
    assert_eq!(loads, [0.0, 0.25, 1.0, 1.0]);
    // NICs beside all GPUs: each GPU copies its part.
    let both = PCIE_ONLY
        .replace("nics = [", r#"nics = [{ name = "second", gbps = 100, device = "switch-b" }, "#);
    let report = reduce_inside(&devices(&with_nvlink(&both)), GIB, 1.0);
    assert_eq!(report.reduction, LocalReduction::ReduceScatter);
    assert!(report.roots.is_empty());
    let loads = ["a-1", "b-1", "switch-a", "switch-b"].map(|device| load(&report, device));
    assert_eq!(loads, [0.125, 0.125, 1.0, 1.0]);
    let nvlink = report.links.iter().find(|link| link.parent == "NVLink").unwrap();
    assert!((nvlink.bytes / GIB as f64 - 1.75).abs() < 1e-12);
}

/// What a link carries towards its parent when gradients are added and when sums come back, what
/// GPUs exchange over it each way, and its part of the network's traffic.
fn parts(inside: &Inside, device: &str) -> [f64; 4] {
    let link = inside.links.iter().find(|link| link.device == device && link.parent != "NVLink");
    let link = link.unwrap_or_else(|| panic!("{device}"));
    [link.inward, link.outward, link.exchange, link.network]
}

#[test]
fn copies_have_a_direction_and_exchanges_have_both() {
    let of = |toml: &str, choice: LocalChoice| inside("m", &devices(toml), &choice, 1.0).unwrap();
    let pcie = of(PCIE_ONLY, LocalChoice::CpuAssisted);
    assert_eq!(parts(&pcie, "switch-a"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(parts(&pcie, "switch-b"), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(parts(&pcie, "a-1"), [0.25, 0.0, 0.75, 0.0]);
    assert_eq!(parts(&pcie, "cpu-b"), [1.0, 0.0, 0.0, 0.0]);
    // With the NIC at the other socket its aggregate comes down to it.
    let other = of(
        &PCIE_ONLY.replace("device = \"switch-a\"", "device = \"switch-b\""),
        LocalChoice::Direct,
    );
    assert_eq!(parts(&other, "cpu-b"), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(parts(&other, "switch-a"), [4.0, 0.0, 0.0, 0.0]);
    assert_eq!((other.reduction, other.direct), (None, 1.0));
    // A ring over PCIe crosses the switches and sockets between GPUs.
    let ring = of(PCIE_ONLY, LocalChoice::ReduceScatter);
    assert_eq!(parts(&ring, "switch-a"), [0.5, 0.0, 0.875, 1.0]);
    assert_eq!(parts(&ring, "cpu-b"), [0.5, 0.0, 0.875, 0.0]);
    // Over NVLink it does not.
    let nvlink = of(&with_nvlink(PCIE_ONLY), LocalChoice::ReduceScatter);
    assert_eq!(parts(&nvlink, "switch-a"), [0.5, 0.0, 0.0, 1.0]);
    let over = nvlink.links.iter().find(|link| link.parent == "NVLink").unwrap();
    assert_eq!(over.exchange, 0.875);
    let roots = LocalChoice::Roots(vec!["a-1".to_owned(), "b-1".to_owned()]);
    let rooted = of(&with_nvlink(PCIE_ONLY), roots);
    assert_eq!(rooted.roots, ["a-1", "b-1"]);
    assert_eq!(parts(&rooted, "switch-a"), [0.5, 0.0, 0.0, 1.0]);
    assert_eq!(parts(&rooted, "b-2"), [0.0; 4]);
}

#[test]
fn a_ring_s_slowest_hop_is_between_switches_or_at_the_nic() {
    assert_eq!(ring_gbps(&devices(PCIE_ONLY)), 105.0);
    let narrow =
        PCIE_ONLY.replace("parent = \"cpu-b\", gbps = 105", "parent = \"cpu-b\", gbps = 80");
    assert_eq!(ring_gbps(&devices(&narrow)), 80.0);
    // Over NVLink a narrow switch that no NIC is beside does not matter; the NIC's GPU does.
    assert_eq!(ring_gbps(&devices(&with_nvlink(&narrow))), 105.0);
    let slow =
        with_nvlink(&PCIE_ONLY.replace("\"switch-a\", gbps = 105", "\"switch-a\", gbps = 60"));
    assert_eq!(ring_gbps(&devices(&slow)), 60.0);
}

#[test]
fn cascaded_switches_are_one_and_a_gpu_at_the_cpu_is_one_by_itself() {
    // The NIC is at the outer switch, three GPUs below it, two of them behind an inner one.
    let cascaded = r#"
[[machine]]
role = "gpu"
nics = [{ name = "nic", gbps = 100, device = "outer" }]
devices = [
    { name = "cpu", kind = "cpu" },
    { name = "outer", kind = "switch", parent = "cpu", gbps = 105 },
    { name = "inner", kind = "switch", parent = "outer", gbps = 105 },
    { name = "a", kind = "gpu", parent = "inner", gbps = 105, count = 2 },
    { name = "b", kind = "gpu", parent = "outer", gbps = 105 },
"#;
    let nvlink = r#"nvlinks = [{ devices = ["a-1", "a-2", "b"], gbps = 1000 }]"#;
    let report = reduce_inside(&devices(&format!("{cascaded}]\n{nvlink}\n")), GIB, 1.0);
    assert_eq!(report.reduction, LocalReduction::ReduceScatter);
    assert!(report.gpu_direct);
    // Without NVLink all three reduce together, and their ring crosses the inner switch's link.
    let without = devices(&format!("{cascaded}]\n"));
    let of = inside("m", &without, &LocalChoice::CpuAssisted, 0.0).unwrap();
    let third = 1.0 / 3.0;
    for (device, expected) in [
        ("outer", [1.0, 0.0, 0.0, 1.0]),
        ("inner", [2.0 * third, 0.0, 2.0 * third, 0.0]),
        ("a-2", [third, 0.0, 2.0 * third, 0.0]),
        ("b", [third, 0.0, 2.0 * third, 0.0]),
    ] {
        let near = parts(&of, device).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(near, "{device}: {:?}", parts(&of, device));
    }
    // A GPU that is attached to the CPU shares no link with the NIC: it is the root.
    let alone = r#"    { name = "c", kind = "gpu", parent = "cpu", gbps = 105 },"#;
    let nvlink = nvlink.replace("\"b\"]", "\"b\", \"c\"]");
    let mixed = devices(&format!("{cascaded}{alone}\n]\n{nvlink}\n"));
    let report = reduce_inside(&mixed, GIB, 1.0);
    assert_eq!((report.reduction, report.roots.len()), (LocalReduction::ReduceBroadcast, 1));
    assert_eq!(report.roots, ["c"]);
    // So does a NIC that is: no switch has one.
    let apart = format!("{cascaded}{alone}\n]\n{nvlink}\n")
        .replace("device = \"outer\"", "device = \"cpu\"");
    let report = reduce_inside(&devices(&apart), GIB, 1.0);
    assert_eq!(report.reduction, LocalReduction::ReduceScatter);
    assert!(!report.gpu_direct);
}

#[test]
fn the_rule_has_a_row_for_every_machine() {
    use LocalReduction::{CpuAssisted, ReduceBroadcast, ReduceScatter};
    let table = [
        (false, 0, 1, CpuAssisted),
        (false, 1, 0, CpuAssisted),
        (false, 2, 2, CpuAssisted),
        (true, 0, 2, ReduceScatter),
        (true, 2, 0, ReduceScatter),
        (true, 1, 1, ReduceBroadcast),
        (true, 1, 3, ReduceBroadcast),
    ];
    for (nvlink, with_nic, without_nic, expected) in table {
        assert_eq!(local_reduction(nvlink, with_nic, without_nic), expected);
    }
}

/// Loads of a switch whose GPUs split the model into random pieces, each handled in one of the two
/// ways by random GPUs: those of equations (8) and (9), piece by piece.
fn random_split(gpus: u32, pieces: &[(f64, bool)]) -> f64 {
    let total: f64 = pieces.iter().map(|(size, _)| size).sum();
    let (mut cpu, mut gpu) = (0.0, 0.0);
    let n = f64::from(gpus);
    for (size, direct) in pieces.iter().map(|(size, direct)| (size / total, *direct)) {
        cpu += if direct { n * size } else { size };
        gpu += if direct { size } else { size * (2.0 * (n - 1.0) / n + 1.0 / n) };
    }
    f64::max(cpu, gpu)
}

proptest! {
    #[test]
    fn no_split_is_better_than_the_best(
        gpus in 1..64_u32,
        pieces in proptest::collection::vec((0.01..1.0_f64, any::<bool>()), 1..20),
    ) {
        let x = best_split(gpus);
        let best = f64::max(cpu_link_load(gpus, x), gpu_link_load(gpus, x));
        let n = f64::from(gpus);
        prop_assert!((best - 2.0 * n / (n + 1.0)).abs() < 1e-9);
        prop_assert!(random_split(gpus, &pieces) >= best * (1.0 - 1e-12));
    }

    #[test]
    fn no_split_of_a_graph_is_better_than_its_best(
        gbps in proptest::collection::vec(5.0..200.0_f64, 3),
        network in 0.0..2.0_f64,
        rival in 0.0..=1.0_f64,
    ) {
        let mut toml = PCIE_ONLY.to_owned();
        let ends = ["cpu-a\", gbps = 300", "cpu-a\", gbps = 105", "cpu-b\", gbps = 105"];
        for (end, gbps) in ends.iter().zip(&gbps) {
            let changed = format!("{}{gbps:?} }}", &end[..end.len() - 3]);
            toml = toml.replacen(&format!("{end} }}"), &changed, 1);
        }
        let graph = devices(&toml);
        let best = reduce_inside(&graph, GIB, network);
        prop_assert!((0.0..=1.0).contains(&best.direct));
        // The same graph with a rival's split, from the loads at both ends: they are linear.
        let shares = |direct: f64| {
            let at = |device: &str| -> f64 {
                let nic = if device == "switch-a" { network } else { 0.0 };
                match device {
                    "cpu-b" => 1.0,
                    "switch-a" | "switch-b" => cpu_link_load(4, direct) + nic,
                    "nic" => network,
                    _ => gpu_link_load(4, direct),
                }
            };
            let time = |link: &sumpter_plan::LinkLoad| at(&link.device) / link.gbps;
            best.links.iter().map(time).fold(0.0, f64::max)
        };
        let found = best.time_s / (GIB as f64 * 8e-9);
        prop_assert!((shares(best.direct) / found - 1.0).abs() < 1e-9);
        prop_assert!(shares(rival) >= found * (1.0 - 1e-9));
    }
}

#[test]
fn a_bad_graph_names_the_place() {
    let refused = |from: &str, to: &str| {
        let toml = PCIE_ONLY.replacen(from, to, 1);
        assert_ne!(toml, PCIE_ONLY, "{from}");
        parse_machines(&toml).unwrap_err().to_string()
    };
    let at = "machine 1 (\"machine-1\")";
    let cases = [
        (
            "{ name = \"cpu-a\", kind = \"cpu\" }",
            "{ name = \"cpu-a\", kind = \"cpu\", parent = \"cpu-b\", gbps = 1 }",
            format!("{at}: devices is a cycle, cpu-a -> cpu-b -> cpu-a; expected a tree"),
        ),
        (
            "parent = \"cpu-b\", gbps = 105",
            "parent = \"switch-b\", gbps = 105",
            format!("{at}: devices is a cycle, switch-b -> switch-b; expected a tree"),
        ),
        (
            "parent = \"switch-a\", gbps = 105",
            "parent = \"nowhere\", gbps = 105",
            format!("{at}: device \"a-1\": parent is \"nowhere\"; expected the name of a cpu or"),
        ),
        (
            "parent = \"switch-a\", gbps = 105",
            "parent = \"switch-a\"",
            format!("{at}: device \"a-1\": gbps is missing; expected"),
        ),
        (
            "name = \"switch-b\"",
            "name = \"switch-a\"",
            format!("{at}: device \"switch-a\": name is \"switch-a\"; expected a name of its own"),
        ),
        (
            "parent = \"cpu-a\", gbps = 300",
            "gbps = 300",
            format!("{at}: cpus without a parent is 2; expected exactly one"),
        ),
        (
            ", device = \"switch-a\"",
            "",
            format!("{at}: nic \"nic\": device is missing; expected the cpu or switch"),
        ),
        (
            "device = \"switch-a\"",
            "device = \"b-1\"",
            format!(
                "{at}: device \"nic\": parent is \"b-1\"; expected the name of a cpu or switch"
            ),
        ),
        (
            "kind = \"gpu\"",
            "kind = \"tpu\"",
            format!("{at}: device \"a\": kind is \"tpu\"; expected"),
        ),
        ("count = 4", "count = 0", format!("{at}: device \"a\": count is 0; expected")),
        (
            "devices = [\n",
            "nvlinks = [{ devices = [\"a-1\", \"a-9\"], gbps = 1 }]\ndevices = [\n",
            format!("{at}: nvlink 1: devices is \"a-9\"; expected GPUs of this machine, each once"),
        ),
        (
            "devices = [\n",
            "nvlinks = [{ devices = [\"a-1\"], gbps = 1 }]\ndevices = [\n",
            format!("{at}: nvlink 1: devices is 1; expected at least two GPUs"),
        ),
    ];
    for (from, to, expected) in cases {
        let text = refused(from, to);
        assert!(text.starts_with(&expected), "{text}\nwant: {expected}");
    }
    let text = refused("kind = \"gpu\"", "kind = \"gpu\", speed = 1");
    assert!(text.contains("unknown field `speed`"), "{text}");
}
