//! What a report becomes.

use std::collections::{BTreeMap, BTreeSet};

use sumpter_metrics::{FAMILIES, Process, Sample, encode, of_coordinator, of_process};
use sumpter_types::{
    Bandwidth, BandwidthSource, JobId, JobStatus, Late, MachineCount, MemberStatus, Rack, Rank,
    Stats, StatusReport, run_text,
};

/// The run of the job.
const RUN: JobId = JobId(0xff);

/// Every counter that a member reports, with a number of its own.
const COUNTERS: [&str; 38] = [
    "bytes_sent",
    "bytes_received",
    "bytes_sent_away",
    "bytes_received_away",
    "bytes_local",
    "rounds",
    "tensor_bytes",
    "step",
    "samples",
    "busy_s",
    "elapsed_s",
    "lane_rounds",
    "summed_bytes",
    "duplicate_chunks",
    "corrupt_frames",
    "lane_memory_bytes",
    "lane_waiting_partitions",
    "broken_connections",
    "refused_connections",
    "wait_send_s",
    "wait_results_s",
    "wait_plan_s",
    "wait_coordinator_s",
    "queued_partitions",
    "queued_bytes",
    "credit_used_bytes",
    "operations",
    "pauses",
    "max_job_bytes",
    "drained_bytes",
    "rack_hubs",
    "rack_bytes",
    "event_loops",
    "compressed_tensors",
    "skipped_blocks",
    "placed_connections",
    "placed_bytes",
    "registrations",
];

fn counters() -> BTreeMap<String, f64> {
    let run = ("run_memory_bytes/00000000000000ff".to_owned(), 1000.0);
    COUNTERS.map(str::to_owned).into_iter().zip((1..).map(f64::from)).chain([run]).collect()
}

fn member(number: u64, rank: Option<u32>) -> MemberStatus {
    MemberStatus {
        member: number,
        rank,
        host: format!("host{number}"),
        machine: format!("machine{number}"),
        bandwidth: Some(Bandwidth { gbps: 8.0, source: BandwidthSource::Configured }),
        rack: rank.map(|rank| Rack { name: format!("rack{rank}"), trunk_gbps: None }),
        silent_s: 0.25,
        stats: Stats { counters: counters(), ..Stats::default() },
        ..MemberStatus::default()
    }
}

fn report() -> StatusReport {
    let job = JobStatus {
        name: "red".into(),
        run: run_text(RUN),
        state: "running".into(),
        world_size: 2,
        epoch: 4,
        machines: MachineCount { gpu: 2, cpu: 1 },
        workers: vec![member(1, Some(0)), member(2, Some(1))],
        servers: vec![3],
        late: vec![Late { run: RUN, rank: Rank(1), count: 9, seconds: 1.5 }],
        ..JobStatus::default()
    };
    StatusReport { jobs: vec![job], servers: vec![member(3, None)], ..StatusReport::default() }
}

/// The values of a family by their labels.
fn values(samples: &[Sample], name: &str) -> BTreeMap<String, f64> {
    let one = |sample: &Sample| {
        let labels = sample.labels.iter().map(|(key, value)| format!("{key}={value}"));
        (labels.collect::<Vec<_>>().join(" "), sample.value)
    };
    samples.iter().filter(|sample| sample.family.name() == name).map(one).collect()
}

#[test]
fn a_full_report_has_every_metric_and_no_series_twice() {
    let samples = of_coordinator(&report());
    let told: BTreeSet<String> = samples.iter().map(|sample| sample.family.name()).collect();
    let known: BTreeSet<String> = FAMILIES.iter().map(|family| family.name()).collect();
    assert_eq!(told, known);
    let series: BTreeSet<String> = samples
        .iter()
        .map(|sample| format!("{} {:?}", sample.family.name(), sample.labels))
        .collect();
    assert_eq!(series.len(), samples.len());
    for sample in &samples {
        let keys: Vec<&str> = sample.labels.iter().map(|(key, _)| *key).collect();
        assert!(sample.family.labels.iter().all(|own| keys.contains(own)), "{sample:?}");
    }
}

#[test]
fn numbers_stand_under_the_job_and_the_member_they_belong_to() {
    let samples = of_coordinator(&report());
    assert_eq!(values(&samples, "sumpter_job_epoch"), [("job_name=red".to_owned(), 4.0)].into());
    let rounds = values(&samples, "sumpter_rounds_total");
    assert_eq!(rounds.len(), 2, "a server finishes no operations: {rounds:?}");
    assert_eq!(rounds["job_name=red role=worker host=host1 rank=0 member=1"], 6.0);
    let sent = values(&samples, "sumpter_transferred_bytes_total");
    let server = "role=server host=host3 member=3 direction";
    // All bytes are 2, those away 4: what is left within the machine is never below nothing.
    assert_eq!(sent[&format!("{server}=received link=network")], 4.0);
    assert_eq!(sent[&format!("{server}=received link=machine")], 0.0);
    let memory = values(&samples, "sumpter_run_memory_bytes");
    assert_eq!(memory["role=server host=host3 member=3 job_name=red"], 1000.0);
    let waited = values(&samples, "sumpter_rank_waited_for_seconds_total");
    assert_eq!(waited, [("job_name=red rank=1".to_owned(), 1.5)].into());
}

#[test]
fn racks_are_labels_and_only_workers_say_whether_these_sum() {
    let samples = of_coordinator(&report());
    let worker = |number, rank| {
        format!("job_name=red role=worker host=host{number} rank={rank} member={number}")
    };
    let racks = values(&samples, "sumpter_member_rack");
    let rack = |number, rank| (format!("{} rack=rack{rank}", worker(number, rank)), 1.0);
    assert_eq!(racks, [rack(1, 0), rack(2, 1)].into());
    let hubs = values(&samples, "sumpter_rack_hubs");
    assert_eq!(hubs.keys().cloned().collect::<Vec<_>>(), [worker(1, 0), worker(2, 1)]);
}

#[test]
fn only_workers_have_a_drain_rate() {
    let drained = values(&of_coordinator(&report()), "sumpter_drained_bytes_total");
    let worker = |number, rank| {
        format!("job_name=red role=worker host=host{number} rank={rank} member={number}")
    };
    assert_eq!(drained, [(worker(1, 0), 30.0), (worker(2, 1), 30.0)].into());
}

#[test]
fn who_is_gone_has_no_series() {
    let mut report = report();
    report.jobs[0].workers[1].gone = true;
    assert_eq!(values(&of_coordinator(&report), "sumpter_rounds_total").len(), 1);
    report.jobs[0].over = true;
    report.servers[0].gone = true;
    let left = of_coordinator(&report);
    let of_member = |sample: &&Sample| sample.labels.iter().any(|(key, _)| *key != "role");
    let about: BTreeSet<_> = left.iter().filter(of_member).map(|s| s.family.name()).collect();
    assert_eq!(about, ["sumpter_jobs_over_total".to_owned()].into());
}

#[test]
fn the_quota_counts_where_it_is_below_the_servers_own_limit() {
    let mut report = report();
    let limit = |report: &StatusReport| {
        values(&of_coordinator(report), "sumpter_run_memory_limit_bytes").into_values().next()
    };
    assert_eq!(limit(&report), Some(29.0));
    report.jobs[0].quota.max_bytes = Some(17);
    assert_eq!(limit(&report), Some(17.0));
}

#[test]
fn a_process_tells_of_itself_what_its_coordinator_tells_of_it() {
    let process =
        Process { job: Some("red".into()), rank: Some(0), member: Some(1), host: "host1".into() };
    let own = of_process(&process, &Stats { counters: counters(), ..Stats::default() });
    let told = of_coordinator(&report());
    assert!(own.len() > 20 && own.iter().all(|sample| told.contains(sample)));
}

#[test]
fn names_cannot_break_out_of_their_quotes() {
    let host = "a\"} 1\nsumpter_fake 2 \\".to_owned();
    let process = Process { host, ..Process::default() };
    let counters = [("lane_rounds".to_owned(), 5.0)].into();
    let text = encode(of_process(&process, &Stats { counters, ..Stats::default() })).unwrap();
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap();
    let escaped = r#"host="a\"} 1\nsumpter_fake 2 \\""#;
    assert_eq!(line, format!("sumpter_lane_partitions_total{{role=\"server\",{escaped}}} 5.0"));
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1);
}
