//! `sumpter plan` for racks, interfaces and prices: what is read, what is reported, and a clear
//! word for what contradicts itself.

use serde_json::{Value, json};
use sumpter_plan::{RackModel, Reading, parse_machines, parse_prices, report_json};

fn ask(request: &Value) -> Value {
    let text = report_json(&request.to_string()).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&text).unwrap()
}

fn refusal(request: &Value) -> String {
    report_json(&request.to_string()).unwrap_err().to_string()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * a.abs().max(b.abs())
}

const RACKS: &str = r#"
[[rack]]
name = "row"
count = 2
oversubscription = 4

[[machine]]
name = "trainer"
role = "gpu"
rack = "row"
count = 4
nics = [{ name = "eth0", gbps = 6, numa = 0 }, { name = "eth1", gbps = 4, numa = 1 }]
"#;

#[test]
fn racks_give_trees_trunks_and_the_paper_s_decision() {
    let report = ask(&json!({"machines": RACKS, "bytes": 1_250_000_000}));
    let trees = &report["trees"];
    assert_eq!(trees["parts"].as_array().unwrap().len(), 1);
    assert_eq!(trees["parts"][0]["shape"], "rack hubs, sharded exchange");
    // 1.75 of 10 Gb over links of 10 Gb/s; each trunk has as much as a machine.
    assert!(close(number(&report["time_s"]), 1.75));
    let racks = trees["racks"].as_array().unwrap();
    assert_eq!((&racks[1]["name"], &racks[1]["workers"]), (&json!("row-2"), &json!(4)));
    assert!(close(number(&racks[0]["trunk_gbps"]), 10.0));
    assert!(close(number(&racks[0]["trunk_bytes"]), 1.25e9));
    // A ring from rack to rack crosses each trunk once each way.
    assert!(close(number(&report["allreduce_time_s"]), 1.75));
    assert!(close(number(&report["gain_over_allreduce"]), 1.0));
    assert!(close(number(&trees["alternatives"][0]["time_s"]), 4.0), "flat trees: N times");
    assert_eq!(report["ps_time_s"], Value::Null);
    let phub = &trees["phub"];
    assert_eq!((&phub["workers"], &phub["racks"]), (&json!(4), &json!(2)));
    assert_eq!((number(&phub["hub_gbps"]), number(&phub["core_gbps"])), (40.0, 10.0));
    let cases = phub["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    assert_eq!(
        (&cases[2]["reading"], &cases[2]["hubs_pay"]),
        (&json!("N exchanged"), &json!(true))
    );
    // (N-1)/Bbn = 3/10 of 10 Gb; N/BPBox + (N-1)/(N Bbn).
    assert!(close(number(&cases[2]["flat_s"]), 3.0));
    assert!(close(number(&cases[2]["hubs_s"]), 1.0 + 0.75));
}

#[test]
fn a_job_s_trees_stand_beside_a_mixture() {
    // Two racks of four GPU machines and two CPU machines, 6:1.
    let list = "[[rack]]\nname = 'r'\ncount = 2\noversubscription = 6\n\
                [[machine]]\nrole = 'gpu'\nbandwidth_gbps = 10\ncount = 4\nrack = 'r'\n\
                [[machine]]\nrole = 'cpu'\nbandwidth_gbps = 10\ncount = 2\nrack = 'r'\n";
    let report = ask(&json!({"machines": list, "bytes": 1_250_000_000}));
    let (trees, job) = (&report["trees"], &report["trees"]["job"]);
    assert_eq!(trees["parts"].as_array().unwrap().len(), 2, "flat trees and hubs");
    assert_eq!(job["shape"], "rack hubs, sharded exchange");
    let hubs = number(&trees["alternatives"][1]["time_s"]);
    assert!(close(number(&job["time_s"]), hubs));
    assert!(hubs > 1.005 * number(&report["time_s"]));
    // Each rack's aggregate once each way.
    let over = job["trunk_bytes"].as_array().unwrap();
    assert!(over.len() == 2 && over.iter().all(|bytes| close(number(bytes), 1.25e9)), "{over:?}");
    assert!(number(&trees["racks"][0]["trunk_bytes"]) > 1.3 * 1.25e9);
}

/// GPU machines of two GPUs below one switch, and the bandwidth of its link to the CPU.
fn with_devices(rack: &str, pcie_gbps: f64) -> String {
    format!(
        "[[machine]]\nname = 'trainer'\nrole = 'gpu'\ncount = 4\n{rack}\
         nics = [{{ name = 'nic', gbps = 10, device = 'switch' }}]\n\
         devices = [{{ name = 'cpu', kind = 'cpu' }}, \
         {{ name = 'switch', kind = 'switch', parent = 'cpu', gbps = {pcie_gbps:?} }}, \
         {{ name = 'gpu', kind = 'gpu', parent = 'switch', gbps = 100, count = 2 }}]\n"
    )
}

#[test]
fn machines_of_an_entry_that_carry_different_loads_are_shown_apart() {
    // The second rack has more machines, so a hub there has more to do.
    let list = format!(
        "[[rack]]\nname = 'r'\ncount = 2\ntrunk_gbps = 3\n{}\
         [[machine]]\nrole = 'gpu'\nrack = 'r-2'\nbandwidth_gbps = 10\ncount = 3\n",
        with_devices("rack = 'r'\n", 100.0)
    );
    let report = ask(&json!({"machines": list}));
    let inside = report["inside"].as_array().unwrap();
    let kinds: Vec<(&str, u64)> = inside
        .iter()
        .map(|kind| (kind["machine"].as_str().unwrap(), kind["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(kinds, [("r-1/trainer-1", 4), ("r-2/trainer-1", 4)]);
    for kind in inside {
        let links = kind["report"]["links"].as_array().unwrap();
        let nic = links.iter().find(|link| link["device"] == "nic").unwrap();
        let machines = report["machines"].as_array().unwrap();
        let machine = machines.iter().find(|one| one["name"] == kind["machine"]).unwrap();
        assert!(close(number(&nic["bytes"]), number(&machine["link_bytes"])));
    }
}

#[test]
fn links_inside_that_take_longer_than_those_between_machines_are_noted() {
    let notes = |pcie_gbps: f64| {
        let report = ask(&json!({"machines": with_devices("", pcie_gbps)}));
        report["notes"].as_array().unwrap().iter().map(Value::to_string).collect::<String>()
    };
    assert_eq!(notes(100.0), "");
    // 1.5 of the model over the NIC of 10 Gb/s; 2.5 over the link between switch and CPU.
    let told = notes(5.0);
    assert!(told.contains("Links inside trainer-1 take 3.333 times as long"), "{told}");
}

#[test]
fn a_machine_alone_is_said_to_use_no_network() {
    let list = with_devices("", 100.0).replace("count = 4", "count = 1");
    let report = ask(&json!({"machines": list, "bytes": 1_250_000_000}));
    let notes = report["notes"].as_array().unwrap();
    let told = notes.last().unwrap().as_str().unwrap();
    let expected = "Nothing crosses the network: a round takes the 133.333 ms of the links inside \
                    trainer.";
    assert_eq!(told, expected, "4/3 of 1.25 GB over a link of 100 Gb/s");
}

#[test]
fn only_slow_interfaces_are_said_to_be_slow() {
    // Roots are where the trunk is wide: that says nothing of the other rack's interfaces.
    let list = "[[rack]]\nname = 'a'\ntrunk_gbps = 40\n[[rack]]\nname = 'b'\ntrunk_gbps = 2\n\
                [[machine]]\nname = 'm'\nrole = 'gpu'\nrack = 'a'\nbandwidth_gbps = 10\n\
                count = 4\n[[machine]]\nname = 'n'\nrole = 'gpu'\nrack = 'b'\n\
                bandwidth_gbps = 10\ncount = 4\n[[rack]]\nname = 'c'\ntrunk_gbps = 2\n\
                [[machine]]\nname = 'o'\nrole = 'gpu'\nrack = 'c'\nbandwidth_gbps = 10\n\
                count = 4\n";
    let report = ask(&json!({"machines": list}));
    let idle = |row: &&Value| number(&row["share"]) == 0.0;
    assert_eq!(report["machines"].as_array().unwrap().iter().filter(idle).count(), 8);
    assert_eq!(report["notes"], json!([]));
}

#[test]
fn machines_have_racks_interfaces_and_parts() {
    let report = ask(&json!({"machines": RACKS, "bytes": 1_250_000_000}));
    let machines = report["machines"].as_array().unwrap();
    assert_eq!(machines[4]["name"], "row-2/trainer-1");
    assert_eq!(machines[4]["rack"], "row-2");
    let shares: f64 = machines.iter().map(|machine| number(&machine["share"])).sum();
    let hubs: f64 = machines.iter().map(|machine| number(&machine["hub"])).sum();
    assert!(close(shares, 1.0) && close(hubs, 1.0), "one root, and a hub in the other rack");
    for machine in machines {
        let nics = machine["nics"].as_array().unwrap();
        let bytes = |nic: usize| number(&nics[nic]["link_bytes"]);
        assert!(close(bytes(0) + bytes(1), number(&machine["link_bytes"])));
        assert!(close(bytes(0) / bytes(1), 1.5));
        assert_eq!((&nics[1]["name"], &nics[1]["numa"]), (&json!("eth1"), &json!(1)));
    }
}

#[test]
fn a_rack_that_is_no_limit_changes_nothing() {
    let flat = "[[machine]]\nrole = 'gpu'\nbandwidth_gbps = 25\ncount = 8\n\
                [[machine]]\nrole = 'cpu'\nbandwidth_gbps = 25\ncount = 4\n";
    let racks = "[[rack]]\nname = 'r'\ncount = 2\noversubscription = 1\n\
                 [[machine]]\nrole = 'gpu'\nbandwidth_gbps = 25\ncount = 4\nrack = 'r'\n\
                 [[machine]]\nrole = 'cpu'\nbandwidth_gbps = 25\ncount = 2\nrack = 'r'\n";
    let (flat, racks) = (ask(&json!({"machines": flat})), ask(&json!({"machines": racks})));
    for key in ["time_s", "allreduce_time_s", "ps_time_s", "gain_over_allreduce"] {
        assert!(close(number(&flat[key]), number(&racks[key])), "{key}");
    }
    assert_eq!(racks["trees"]["parts"], json!([{"shape": "flat", "part": 1.0}]));
}

#[test]
fn the_plan_agrees_with_the_inequality_where_n_is_exchanged() {
    // Clusters of equal racks with a hub of N times a worker's bandwidth: how often each reading
    // says whether hubs alone beat flat trees alone, as the linear program has it.
    let (mut all, mut pays, mut printed, mut exchanged) = (0, 0, 0, 0);
    for workers in [2_u32, 4, 8, 16, 32] {
        for racks in [2_u32, 4, 8, 16] {
            for ratio in [0.25, 0.5, 0.9, 1.1, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0] {
                let (n, worker) = (f64::from(workers), 10.0);
                let trunk = n * worker / ratio;
                let list = format!(
                    "[[rack]]\nname = 'r'\ncount = {racks}\ntrunk_gbps = {trunk:?}\n\
                     [[machine]]\nrole = 'gpu'\nrack = 'r'\nbandwidth_gbps = 10\n\
                     count = {workers}\n\
                     [[machine]]\nrole = 'cpu'\nrack = 'r'\nbandwidth_gbps = {:?}\n",
                    n * worker
                );
                let report = ask(&json!({"machines": list}));
                let time = |shape: usize| number(&report["trees"]["alternatives"][shape]["time_s"]);
                let hubs = time(1) < time(0);
                let model = RackModel {
                    workers: n,
                    racks: f64::from(racks),
                    worker_gbps: worker,
                    hub_gbps: n * worker,
                    core_gbps: trunk,
                };
                let says = |reading| model.times(reading, false).hubs_pay();
                all += 1;
                pays += u32::from(hubs);
                printed += u32::from(says(Reading::Printed) == hubs);
                exchanged += u32::from(says(Reading::Exchanged) == hubs);
            }
        }
    }
    assert_eq!((all, pays, printed, exchanged), (200, 154, 62, 150));
}

#[test]
fn a_bad_list_of_racks_names_rack_field_and_value() {
    let rack = "[[rack]]\nname = 'a'\ntrunk_gbps = 10\n";
    let machine = "[[machine]]\nname = 'm'\nrole = 'gpu'\nbandwidth_gbps = 10\nrack = 'a'\n";
    let cases = [
        (rack.to_owned(), "machines of rack \"a\" is 0; expected at least one"),
        (
            format!("[[rack]]\nname = 'a'\n{machine}"),
            "rack 1 (\"a\"): trunk_gbps is missing; expected a number of Gb/s",
        ),
        (
            format!("{rack}oversubscription = 2\n{machine}"),
            "rack 1 (\"a\"): trunk_gbps is 10; expected 5 Gb/s, since 10 Gb/s of machines in rack \
             \"a\" are oversubscribed 2 times; leave one of the two out",
        ),
        (
            format!("[[rack]]\nname = 'a'\noversubscription = 0\n{machine}"),
            "rack 1 (\"a\"): oversubscription is 0; expected",
        ),
        (format!("{rack}{rack}{machine}"), "rack 2 (\"a\"): name is \"a\"; expected a name of its"),
        (
            format!("{rack}{}", machine.replace("rack = 'a'", "rack = 'b'")),
            "machine 1 (\"m\"): rack is \"b\"; expected one of the racks: a",
        ),
        (
            format!("{rack}{}", machine.replace("rack = 'a'\n", "")),
            "machine 1 (\"m\"): rack is missing; expected one of the racks: a",
        ),
        (machine.to_owned(), "machine 1 (\"m\"): rack is \"a\"; expected no rack, or [[rack]]"),
        (format!("core_gbps = 5\n{machine}"), "core_gbps is 5; expected no core without racks"),
        (
            format!("{rack}{machine}nics = [{{ name = 'x' }}]\n"),
            "machine 1 (\"m\"): nic 1 (\"x\"): gbps is missing; expected a number of Gb/s",
        ),
        (
            format!("{rack}{machine}nics = [{{ gbps = 4 }}, {{ gbps = 5 }}]\n"),
            "machine 1 (\"m\"): bandwidth_gbps is 10; expected 9, the sum of its nics; leave one",
        ),
        (
            format!(
                "{rack}{machine}nics = [{{ name = 'x', gbps = 5 }}, {{ name = 'x', gbps = 5 }}]"
            ),
            "machine 1 (\"m\"): nic 2 (\"x\"): name is \"x\"; expected a name of its own",
        ),
        (
            format!("{rack}{machine}nics = [{{ gbps = 10, device = 'sw' }}]\n"),
            "machine 1 (\"m\"): devices is missing; expected the devices that nics",
        ),
        (format!("{rack}speed = 1\n{machine}"), "the machine list is not valid TOML: "),
        (
            format!("{rack}{machine}{machine}"),
            "machine 2: name is \"m\"; expected a name of its own",
        ),
        (
            format!(
                "[[rack]]\nname = 'a'\ncount = 2\ntrunk_gbps = 1\n\
                 [[rack]]\nname = 'a-2'\ntrunk_gbps = 1\n{machine}"
            ),
            "rack 2 (\"a-2\"): name is \"a-2\"; expected a name of its own",
        ),
        (
            with_devices("", 1.0).replace("'gpu'\ncount", "'cpu'\ncount"),
            "machine 1 (\"trainer\"): devices is a list; expected none in a machine with role",
        ),
    ];
    for (list, expected) in cases {
        let text = parse_machines(&list).unwrap_err().to_string();
        assert!(text.starts_with(expected), "{list}\n got: {text}\nwant: {expected}");
    }
}

const PRICES: &str = r#"
oversubscription = 2
worker = { price = 4000, gpus = 4, gpu_price = 1000 }
helper = { price = 2000 }
link = [
    { gbps = 10, nic = 100, switch_port = 50, cable = 20 },
    { gbps = 25, nic = 300, switch_port = 150, cable = 40 },
    { gbps = 100, nic = 800, switch_port = 600, cable = 100 },
]
"#;

#[test]
fn prices_follow_the_paper_s_formula_in_both_readings() {
    let prices = parse_prices(PRICES).unwrap();
    let link = &prices.links[1];
    // A = (N + S + C) + F (4 S + 2 C) with F = 1/2.
    let network = (300.0 + 150.0 + 40.0) + 0.5 * (600.0 + 80.0);
    assert_eq!(link.network(2.0), network);
    assert_eq!(prices.worker_price(link, false), 4000.0 + 4000.0 + network);
    assert_eq!(prices.worker_price(link, true), 4000.0 + 300.0 + 4000.0 + network);
    assert_eq!(
        prices.worker_price_with_hubs(link, 0.25, false),
        8000.0 + network + 0.25 * (2000.0 + network)
    );
}

#[test]
fn offers_compare_machines_helpers_and_links_by_price() {
    let request = json!({
        "workers": 8, "bytes": 1_250_000_000, "bandwidth_gbps": 10, "compute_s": 0.1,
        "prices": PRICES,
    });
    let report = ask(&request);
    let offers = report["offers"].as_array().unwrap();
    let changes: Vec<&str> = offers.iter().map(|o| o["change"].as_str().unwrap()).collect();
    assert_eq!(
        changes,
        [
            "as given",
            "1 more GPU machine",
            "1 more CPU machine",
            "2 more CPU machines",
            "4 more CPU machines",
            "8 more CPU machines",
            "links of 25 Gb/s"
        ]
    );
    // Eight workers of 1.75 s a step; a link of 25 Gb/s takes 0.7 s.
    assert!(close(number(&offers[0]["steps_per_s"]), 8.0 / 1.75));
    assert!(close(number(&offers[6]["steps_per_s"]), 8.0 / 0.7));
    let network = |n: f64, s: f64, c: f64| (n + s + c) + 0.5 * (4.0 * s + 2.0 * c);
    let now = 8.0 * (8000.0 + network(100.0, 50.0, 20.0));
    assert!(close(number(&offers[0]["price"]), now));
    assert!(close(number(&offers[0]["price_as_printed"]), now + 800.0));
    let helpers = now + 4.0 * (2000.0 + network(100.0, 50.0, 20.0));
    assert!(close(number(&offers[4]["price"]), helpers));
    assert!(close(number(&offers[4]["steps_per_s"]), 8.0 / (1.75 / 1.375)));
    let gained = 1000.0 * (8.0 / 0.7 - 8.0 / 1.75) / (number(&offers[6]["price"]) - now);
    assert!(close(number(&offers[6]["gained_per_1000"]), gained));
    assert_eq!(offers[0]["gained_per_1000"], Value::Null);
    // Where computing takes longer, nothing but computing helps.
    let mut slow = request.clone();
    slow["compute_s"] = json!(10);
    let offers = ask(&slow)["offers"].clone();
    assert_eq!(number(&offers[6]["gained_per_1000"]), 0.0);
    assert!(number(&offers[1]["gained_per_1000"]) > 0.0);
}

#[test]
fn the_time_of_computing_gives_the_bandwidth_that_hides_communication() {
    // Table 2 of PHub for AlexNet, of which M/T = 88 Gb/s follows: here 1.1 GB in 0.1 s.
    let report = ask(&json!({"workers": 8, "bytes": 1_100_000_000, "compute_s": 0.1}));
    let least = &report["minimum_bandwidth"];
    let table = [
        ("colocated_central_gbps", 1232.0),
        ("colocated_sharded_gbps", 308.0),
        ("noncolocated_central_gbps", 1408.0),
        ("noncolocated_sharded_gbps", 176.0),
    ];
    for (key, gbps) in table {
        assert!(close(number(&least[key]), gbps), "{key}");
    }
    // All-reduce: half of CS each way.
    assert!(close(number(&report["plan_minimum_gbps"]), 154.0));
    assert!(ask(&json!({"workers": 8})).get("minimum_bandwidth").is_none());
}

#[test]
fn bad_prices_name_the_place() {
    let with = |prices: &str| {
        refusal(&json!({"workers": 2, "bandwidth_gbps": 10, "compute_s": 1, "prices": prices}))
    };
    let cases = [
        (PRICES.replace("price = 4000, ", ""), "worker: price is missing; expected a price"),
        (PRICES.replace("price = 2000", "price = -1"), "helper: price is -1; expected a price"),
        (PRICES.replace("nic = 100", "nic = 'x'"), "link 1: nic is \"x\"; expected a price"),
        (PRICES.replace("gbps = 25", "gbps = 10"), "link 2: gbps is 10; expected each speed once"),
        (
            PRICES.replace("oversubscription = 2", "oversubscription = 0.5"),
            "oversubscription is 0.5",
        ),
        (PRICES.replace("gbps = 10,", "gbps = 40,"), "bandwidth_gbps is 10; expected a speed with"),
        (PRICES.replace("cable = 20", "cabel = 20"), "the price list is not valid TOML: "),
    ];
    for (prices, expected) in cases {
        let text = with(&prices);
        assert!(text.starts_with(expected), "{text}\nwant: {expected}");
    }
    let text = refusal(&json!({"workers": 2, "prices": PRICES}));
    assert!(text.starts_with("compute_s is missing"), "{text}");
    let text = refusal(&json!({"workers": 2, "compute_s": 0}));
    assert!(text.starts_with("compute_s is 0; expected a number of seconds"), "{text}");
    for list in [RACKS.to_owned(), with_devices("", 100.0)] {
        let text = refusal(&json!({"machines": list, "compute_s": 1, "prices": PRICES}));
        assert!(text.starts_with("machines beside prices is a list of others"), "{text}");
    }
}
