//! From what a coordinator or a member knows to samples.

use std::collections::BTreeMap;

use sumpter_types::{JobId, JobStatus, MemberStatus, Stats, StatusReport, run_memory_counter};

use crate::families::*;
use crate::optimum;

/// A number of one family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What it is.
    pub family: &'static Family,
    /// Labels of the series, in the order of output.
    pub labels: Vec<(&'static str, String)>,
    /// How much.
    pub value: f64,
}

/// A worker or a server that exports its own metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Of a worker, its job.
    pub job: Option<String>,
    /// Of a worker, its number in the job.
    pub rank: Option<u32>,
    /// Its number with the coordinator, once there is one.
    pub member: Option<u64>,
    /// A name a person recognizes.
    pub host: String,
}

type Labels = Vec<(&'static str, String)>;
type Counters = BTreeMap<String, f64>;

#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn add(&mut self, family: &'static Family, labels: &Labels, value: f64) {
        self.0.push(Sample { family, labels: labels.clone(), value });
    }

    /// With labels of the family's own.
    fn add_with<const N: usize>(
        &mut self,
        family: &'static Family,
        labels: &Labels,
        own: [&str; N],
        value: f64,
    ) {
        let own = own.map(str::to_owned);
        let labels = labels.iter().cloned().chain(of(family, own)).collect();
        self.0.push(Sample { family, labels, value });
    }
}

fn of<const N: usize>(family: &Family, values: [String; N]) -> Labels {
    // A job's name is among a member's labels already.
    let own = family.labels.iter().rev().take(N).rev();
    own.copied().zip(values).collect()
}

/// What a coordinator exports: its own numbers, and those of jobs and members that are here.
#[must_use]
pub fn of_coordinator(report: &StatusReport) -> Vec<Sample> {
    let mut samples = Samples::default();
    samples.add(&UPTIME, &Vec::new(), report.uptime_s);
    events(&mut samples, &report.events);
    let jobs: Vec<&JobStatus> = report.jobs.iter().filter(|job| !job.over).collect();
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    jobs.iter().for_each(|job| *states.entry(&job.state).or_default() += 1);
    for (state, count) in states {
        samples.add_with(&JOBS, &Vec::new(), [state], f64::from(count));
    }
    let here = report.servers.iter().filter(|server| !server.gone);
    let servers: BTreeMap<u64, &MemberStatus> = here.map(|s| (s.member, s)).collect();
    for job in &jobs {
        of_job(&mut samples, job, &servers);
        late(&mut samples, job);
        for worker in job.workers.iter().filter(|worker| !worker.gone) {
            of_status(&mut samples, worker, Some(&job.name));
        }
    }
    for server in servers.values() {
        of_status(&mut samples, server, None);
    }
    samples.0
}

fn events(samples: &mut Samples, events: &BTreeMap<String, u64>) {
    let count = |name: &str| events.get(name).copied().unwrap_or(0) as f64;
    let none = Vec::new();
    samples.add_with(&MEMBERS_LOST, &none, ["worker"], count("workers_lost"));
    samples.add_with(&MEMBERS_LOST, &none, ["server"], count("servers_lost"));
    samples.add(&REFUSED, &none, count("refused"));
    samples.add(&PLAN_CHANGES, &none, count("plan_changes"));
    samples.add_with(&JOBS_OVER, &none, ["ended"], count("jobs_ended"));
    samples.add_with(&JOBS_OVER, &none, ["failed"], count("jobs_failed"));
}

fn of_job(samples: &mut Samples, job: &JobStatus, servers: &BTreeMap<u64, &MemberStatus>) {
    let labels = vec![("job_name", job.name.clone())];
    let here = job.workers.iter().filter(|worker| !worker.gone).count();
    samples.add(&JOB_WORKERS, &labels, here as f64);
    samples.add(&JOB_WORKERS_WANTED, &labels, f64::from(job.world_size));
    samples.add(&JOB_SERVERS, &labels, job.servers.len() as f64);
    let machines = job.machines;
    samples.add_with(&JOB_MACHINES, &labels, ["gpu"], f64::from(machines.gpu));
    samples.add_with(&JOB_MACHINES, &labels, ["cpu"], f64::from(machines.cpu));
    samples.add(&JOB_EPOCH, &labels, f64::from(job.epoch));
    samples.add(&JOB_TENSORS, &labels, f64::from(job.tensors));
    samples.add(&JOB_STALL, &labels, job.stall.as_ref().map_or(0.0, |stall| stall.seconds));
    if let Some(optimum) = optimum::goodput(job, servers) {
        samples.add(&JOB_OPTIMUM, &labels, optimum);
    }
    let quota = job.quota.max_bytes;
    for server in job.servers.iter().filter_map(|id| servers.get(id)) {
        let counters = &server.stats.counters;
        let labels = [&of_member(server, None)[..], &labels[..]].concat();
        let run = u64::from_str_radix(&job.run, 16).map(|run| run_memory_counter(JobId(run)));
        if let Some(bytes) = run.ok().and_then(|name| counters.get(&name)) {
            samples.add(&RUN_MEMORY, &labels, *bytes);
        }
        let own = counters.get("max_job_bytes").copied();
        let limits = [own, quota.map(|bytes| bytes as f64)];
        if let Some(limit) = limits.into_iter().flatten().reduce(f64::min) {
            samples.add(&RUN_MEMORY_LIMIT, &labels, limit);
        }
    }
}

fn late(samples: &mut Samples, job: &JobStatus) {
    for late in &job.late {
        let labels = vec![("job_name", job.name.clone()), ("rank", late.rank.0.to_string())];
        samples.add(&RANK_LAST, &labels, late.count as f64);
        samples.add(&RANK_WAITED, &labels, late.seconds);
    }
}

fn of_status(samples: &mut Samples, member: &MemberStatus, job: Option<&str>) {
    let labels = of_member(member, job);
    samples.add(&SILENCE, &labels, member.silent_s);
    if let Some(rack) = &member.rack {
        samples.add_with(&RACK, &labels, [&rack.name], 1.0);
    }
    of_counters(samples, &member.stats.counters, &labels, job.is_some());
}

fn of_member(member: &MemberStatus, job: Option<&str>) -> Labels {
    let process = Process {
        job: job.map(str::to_owned),
        rank: member.rank,
        member: Some(member.member),
        host: member.host.clone(),
    };
    labels(&process)
}

fn labels(process: &Process) -> Labels {
    let role = if process.job.is_some() { "worker" } else { "server" };
    let Process { job, rank, member, host } = process;
    let numbers =
        [rank.map(|r| ("rank", r.to_string())), member.map(|m| ("member", m.to_string()))];
    let job = job.iter().map(|job| ("job_name", job.clone()));
    let name = [("role", role.to_owned()), ("host", host.clone())];
    job.chain(name).chain(numbers.into_iter().flatten()).collect()
}

/// Metrics of a worker or a server.
#[must_use]
pub fn of_process(process: &Process, stats: &Stats) -> Vec<Sample> {
    let mut samples = Samples::default();
    of_counters(&mut samples, &stats.counters, &labels(process), process.job.is_some());
    samples.0
}

/// Counters that are samples as they are.
static PLAIN: &[(&str, &Family)] = &[
    ("elapsed_s", &MEMBER_UPTIME),
    ("bytes_local", &COLOCATED),
    ("rounds", &ROUNDS),
    ("tensor_bytes", &TENSOR_BYTES),
    ("step", &STEP),
    ("samples", &SAMPLES),
    ("busy_s", &BUSY),
    ("drained_bytes", &DRAINED),
    ("pauses", &PAUSES),
    ("skipped_blocks", &SKIPPED_BLOCKS),
    ("rack_hubs", &RACK_HUBS),
    ("compressed_tensors", &COMPRESSED),
    ("event_loops", &EVENT_LOOPS),
    ("placed_connections", &PLACED),
    ("placed_bytes", &PLACED_BYTES),
    ("registrations", &REGISTRATIONS),
    ("operations", &OPERATIONS),
    ("queued_partitions", &QUEUED_PARTITIONS),
    ("queued_bytes", &QUEUED),
    ("credit_used_bytes", &CREDIT),
    ("lane_rounds", &LANE_ROUNDS),
    ("summed_bytes", &SUMMED),
    ("rack_bytes", &RACK_BYTES),
    ("lane_waiting_partitions", &LANE_WAITING),
    ("lane_memory_bytes", &LANE_MEMORY),
];

/// Counters that differ in a label.
static LABELLED: &[(&str, &Family, &str)] = &[
    ("wait_send_s", &WAITING, "send"),
    ("wait_results_s", &WAITING, "results"),
    ("wait_plan_s", &WAITING, "plan"),
    ("wait_coordinator_s", &WAITING, "coordinator"),
    ("corrupt_frames", &FAULTS, "corrupt_frame"),
    ("duplicate_chunks", &FAULTS, "duplicate_chunk"),
    ("broken_connections", &FAULTS, "broken_connection"),
    ("refused_connections", &FAULTS, "refused_connection"),
];

fn of_counters(samples: &mut Samples, counters: &Counters, labels: &Labels, worker: bool) {
    let counts = |family: &Family| worker || family.of != Counts::Worker;
    for (name, family) in PLAIN.iter().filter(|(_, family)| counts(family)) {
        if let Some(value) = counters.get(*name) {
            samples.add(family, labels, *value);
        }
    }
    for (name, family, label) in LABELLED.iter().filter(|(_, family, _)| counts(family)) {
        if let Some(value) = counters.get(*name) {
            samples.add_with(family, labels, [label], *value);
        }
    }
    for direction in ["sent", "received"] {
        let all = counters.get(&format!("bytes_{direction}"));
        let away = counters.get(&format!("bytes_{direction}_away"));
        if let (Some(all), Some(away)) = (all, away) {
            samples.add_with(&TRANSFERRED, labels, [direction, "network"], *away);
            samples.add_with(&TRANSFERRED, labels, [direction, "machine"], (all - away).max(0.0));
        }
    }
}
