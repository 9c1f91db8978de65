//! The answers of `sumpter plan`: keys, values, and a clear word for every bad question.

use serde_json::{Value, json};
use sumpter_plan::{PlanRequest, report_json};

fn ask(request: &Value) -> Value {
    let text = report_json(&request.to_string()).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&text).unwrap()
}

fn refusal(request: &Value) -> String {
    report_json(&request.to_string()).unwrap_err().to_string()
}

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} is {}", report[key]))
}

const LIST: &str = r#"
[[machine]]
name = "trainer"
role = "gpu"
bandwidth_gbps = 100
count = 3

[[machine]]
name = "old trainer"
role = "gpu"
bandwidth_gbps = 25.0

[[machine]]
role = "cpu"
bandwidth_gbps = 50
"#;

#[test]
fn equal_machines_have_shares_times_and_gains() {
    let report = ask(&json!({"workers": 32, "servers": 16}));
    assert_eq!(report["workers"], 32);
    assert_eq!(report["servers"], 16);
    assert_eq!(report["bytes"], 1 << 30);
    assert_eq!(number(&report, "bandwidth_gbps"), 100.0);
    assert_eq!(number(&report, "gain_over_allreduce"), 1.46875);
    assert_eq!(format!("{:.4}", number(&report, "gain_over_ps")), "1.5161");
    let total = 32.0 * number(&report, "share_gpu") + 16.0 * number(&report, "share_cpu");
    assert!((total - 1.0).abs() < 1e-12);
    let time_s = number(&report, "time_s");
    for link in ["link_bytes_gpu", "link_bytes_cpu"] {
        let link_s = number(&report, link) * 8.0 / 100e9;
        assert!((link_s / time_s - 1.0).abs() < 1e-9, "{link}");
    }
    let ratio = number(&report, "allreduce_time_s") / time_s;
    assert!((ratio - 1.46875).abs() < 1e-9);
    let ratio = number(&report, "ps_time_s") / time_s;
    assert!((ratio - number(&report, "gain_over_ps")).abs() < 1e-9);
    assert!(report.get("machines").is_none());
    assert_eq!(report["notes"], json!([]));
}

#[test]
fn what_does_not_exist_is_null() {
    let report = ask(&json!({"workers": 4}));
    assert_eq!((&report["ps_time_s"], &report["gain_over_ps"]), (&Value::Null, &Value::Null));
    assert_eq!(number(&report, "share_cpu"), 0.0);
    let report = ask(&json!({"workers": 1, "servers": 2, "machines": null}));
    assert_eq!(number(&report, "time_s"), 0.0);
    assert_eq!(report["gain_over_allreduce"], Value::Null);
    assert_eq!(report["gain_over_ps"], Value::Null);
}

#[test]
fn notes_say_when_helpers_do_not_help() {
    let note = |workers, servers| {
        let report = ask(&json!({"workers": workers, "servers": servers}));
        report["notes"][0].as_str().unwrap_or("").to_owned()
    };
    assert!(note(1, 0).starts_with("One GPU machine"));
    assert!(note(2, 1).starts_with("Two GPU machines"));
    assert!(note(4, 5).starts_with("More CPU than GPU machines"));
    assert_eq!(note(2, 0), "");
    assert_eq!(note(4, 4), "");
}

#[test]
fn a_machine_list_gives_the_share_of_each() {
    let report = ask(&json!({"machines": LIST, "bytes": 1_000_000_000}));
    assert_eq!((&report["workers"], &report["servers"]), (&json!(4), &json!(1)));
    for key in ["bandwidth_gbps", "share_cpu", "share_gpu", "link_bytes_cpu", "link_bytes_gpu"] {
        assert_eq!(report[key], Value::Null, "{key}");
    }
    let machines = report["machines"].as_array().unwrap();
    let names: Vec<&str> = machines.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["trainer-1", "trainer-2", "trainer-3", "old trainer", "machine-3"]);
    let total: f64 = machines.iter().map(|row| number(row, "share")).sum();
    assert!((total - 1.0).abs() < 1e-12);
    let slowest = machines
        .iter()
        .map(|row| number(row, "link_bytes") * 8.0 / (number(row, "bandwidth_gbps") * 1e9));
    let slowest = slowest.fold(0.0, f64::max);
    assert!((slowest / number(&report, "time_s") - 1.0).abs() < 1e-9);
    // The ring and the parameter server wait for the 25 Gb/s interface and for the helper.
    assert!((number(&report, "allreduce_time_s") - 1.5 * 0.32).abs() < 1e-9);
    assert!((number(&report, "ps_time_s") - 4.0 * 0.16).abs() < 1e-9);
    assert_eq!((&machines[4]["role"], number(&machines[3], "share")), (&json!("cpu"), 0.0));
    assert!(report["notes"][0].as_str().unwrap().starts_with("1 GPU machine(s) with slow"));
}

#[test]
fn a_list_of_equal_machines_answers_as_the_counts_do() {
    let list = "[[machine]]\nrole = 'gpu'\nbandwidth_gbps = 25\ncount = 8\n\
                [[machine]]\nrole = 'cpu'\nbandwidth_gbps = 25\ncount = 4";
    let listed = ask(&json!({"machines": list, "workers": 8, "servers": 4}));
    let counted = ask(&json!({"workers": 8, "servers": 4, "bandwidth_gbps": 25}));
    for (key, value) in counted.as_object().unwrap() {
        match value.as_f64() {
            Some(value) => assert!((number(&listed, key) / value - 1.0).abs() < 1e-9, "{key}"),
            None => assert_eq!(&listed[key], value, "{key}"),
        }
    }
    assert_eq!(listed["machines"].as_array().unwrap().len(), 12);
}

#[test]
fn a_bad_request_names_field_value_and_what_is_expected() {
    let count = "expected a whole number from 1 to 100000";
    let bandwidth = "expected a number of Gb/s from 0.000001 to 1000000";
    let bytes = "expected a whole number of bytes from 1 to 1152921504606846976";
    let cases = [
        (json!({}), "workers is missing; expected a number of GPU machines".to_owned()),
        (json!({"workers": 0}), format!("workers is 0; {count}")),
        (json!({"workers": -3}), format!("workers is -3; {count}")),
        (json!({"workers": 2.5}), format!("workers is 2.5; {count}")),
        (json!({"workers": "many"}), format!("workers is \"many\"; {count}")),
        (json!({"workers": [1]}), format!("workers is not a single number or text; {count}")),
        (json!({"workers": 100_001}), format!("workers is 100001; {count}")),
        (json!({"workers": 1e30}), format!("workers is 1000000000000000000000000000000; {count}")),
        (json!({"workers": 2, "servers": -1}), "servers is -1; expected".to_owned()),
        (json!({"workers": 2, "bytes": 0}), format!("bytes is 0; {bytes}")),
        (json!({"workers": 2, "bytes": -1}), format!("bytes is -1; {bytes}")),
        (
            json!({"workers": 2, "bytes": u64::MAX}),
            format!("bytes is 18446744073709552000; {bytes}"),
        ),
        (json!({"workers": 2, "bandwidth_gbps": 0}), format!("bandwidth_gbps is 0; {bandwidth}")),
        (
            json!({"workers": 2, "bandwidth_gbps": -9.5}),
            format!("bandwidth_gbps is -9.5; {bandwidth}"),
        ),
        (
            json!({"workers": 2, "bandwidth_gbps": "nan"}),
            format!("bandwidth_gbps is \"nan\"; {bandwidth}"),
        ),
        (json!({"workers": 2, "machines": 7}), "machines is 7; expected the text of".to_owned()),
        (
            json!({"machines": LIST, "workers": 9}),
            "workers is 9, but the machine list has 4".to_owned(),
        ),
        (
            json!({"machines": LIST, "servers": 0}),
            "servers is 0, but the machine list has 1".to_owned(),
        ),
    ];
    for (request, expected) in cases {
        let text = refusal(&request);
        assert!(text.starts_with(&expected), "{request}\n got: {text}\nwant: {expected}");
    }
    assert!(refusal(&json!({"wrokers": 2})).contains("unknown field `wrokers`"));
    for text in ["", "{", "[]", r#"{"workers": NaN}"#] {
        let error = report_json(text).unwrap_err().to_string();
        assert!(error.starts_with("the plan request is not valid JSON: "), "{error}");
    }
}

#[test]
fn a_bad_machine_list_names_machine_field_and_value() {
    let entry = |fields: &str| format!("[[machine]]\nname = \"a\"\n{fields}");
    let cases = [
        (entry("role = 'gpu'"), "machine 1 (\"a\"): bandwidth_gbps is missing; expected"),
        (entry("bandwidth_gbps = 1"), "machine 1 (\"a\"): role is missing; expected \"gpu\""),
        (entry("role = 'tpu'\nbandwidth_gbps = 1"), "machine 1 (\"a\"): role is \"tpu\"; expected"),
        (entry("role = 3\nbandwidth_gbps = 1"), "machine 1 (\"a\"): role is 3; expected"),
        (
            entry("role = 'gpu'\nbandwidth_gbps = -1"),
            "machine 1 (\"a\"): bandwidth_gbps is -1; expected",
        ),
        (
            entry("role = 'gpu'\nbandwidth_gbps = nan"),
            "machine 1 (\"a\"): bandwidth_gbps is NaN; expected",
        ),
        (
            entry("role = 'gpu'\nbandwidth_gbps = inf"),
            "machine 1 (\"a\"): bandwidth_gbps is inf; expected",
        ),
        (
            entry("role = 'gpu'\nbandwidth_gbps = 1979-05-27"),
            "machine 1 (\"a\"): bandwidth_gbps is not a single number or text; expected",
        ),
        (
            entry("role = 'gpu'\nbandwidth_gbps = 1\ncount = 0"),
            "machine 1 (\"a\"): count is 0; expected a whole number from 1 to 100000",
        ),
        (
            entry("role = 'gpu'\nbandwidth_gbps = 1\ncount = 100001"),
            "machine 1 (\"a\"): count is 100001; expected",
        ),
        (
            entry("role = 'cpu'\nbandwidth_gbps = 1"),
            "none of the 1 machines has role \"gpu\"; expected at least one",
        ),
        ("name = 1".to_owned(), "the machine list is not valid TOML: "),
        (entry("role = 'gp"), "the machine list is not valid TOML: "),
        ("[[machine".to_owned(), "the machine list is not valid TOML: "),
        (entry("speed = 1"), "the machine list is not valid TOML: "),
        (String::new(), "none of the 0 machines has role \"gpu\""),
    ];
    for (list, expected) in cases {
        let text = refusal(&json!({"machines": list}));
        assert!(text.starts_with(expected), "{list}\n got: {text}\nwant: {expected}");
    }
    let full = "[[machine]]\nrole = 'gpu'\nbandwidth_gbps = 1\ncount = 100000\n".repeat(2);
    assert!(refusal(&json!({"machines": full})).starts_with("workers is 200000; expected"));
    let fuller = full.repeat(2);
    let text = refusal(&json!({"machines": fuller}));
    assert_eq!(text, "number of machines is 300000; expected at most 200000");
}

#[test]
fn a_request_may_also_be_deserialized_or_built_by_hand() {
    let request: PlanRequest = serde_json::from_value(json!({"workers": 8, "servers": 8})).unwrap();
    assert_eq!(request.report().unwrap().gain_over_allreduce, Some(1.75));
    let nan = PlanRequest { bandwidth_gbps: f64::NAN, ..request };
    assert!(nan.report().unwrap_err().to_string().starts_with("bandwidth_gbps is NaN; expected"));
}

#[test]
fn an_optimizer_takes_memory_in_workers_or_in_lanes_and_mirrors() {
    let gib = f64::from(1 << 30);
    let report = ask(&json!({"workers": 4, "servers": 4, "rule": "adam"}));
    let of = |key: &str| number(&report["optimizer"], key) / gib;
    assert_eq!(report["optimizer"]["slots"], json!(["exp_avg", "exp_avg_sq"]));
    assert_eq!((of("worker_bytes"), of("mirror_bytes")), (2.0, 0.75));
    // As many CPU machines as GPU machines sum everything.
    assert_eq!((of("lane_bytes_gpu"), of("lane_bytes_cpu")), (0.0, 0.75));
    assert_eq!((of("mirror_link_bytes"), of("asynchronous_mirror_link_bytes")), (0.0, 1.0));
    // Every copy of the value and of the slots: one in lanes, one in mirrors.
    let report = ask(&json!({"workers": 4, "servers": 1, "rule": "sgd_momentum"}));
    let of = |key: &str| number(&report["optimizer"], key) / gib;
    assert!((4.0 * of("lane_bytes_gpu") + of("lane_bytes_cpu") - 2.0).abs() < 1e-9);
    assert_eq!(4.0 * of("mirror_bytes"), 2.0);
    let listed = ask(&json!({"machines": LIST, "rule": "sgd"}));
    assert_eq!(listed["optimizer"]["worker_bytes"], 0.0);
    assert!(listed["optimizer"]["lane_bytes_gpu"].is_null());
    assert!(ask(&json!({"workers": 2})).get("optimizer").is_none());
    let refused = refusal(&json!({"workers": 2, "rule": "newton"}));
    assert!(refused.starts_with("rule is newton; expected one of sgd, sgd_momentum"), "{refused}");
}
