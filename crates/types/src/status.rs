//! A coordinator's status report: jobs, members and their last numbers. Printed as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{CodecChoice, JobId, Late, Stats};

/// The counter in which a member reports the memory of a run's reductions in its lanes; the run's
/// number in hexadecimal follows.
pub const RUN_MEMORY: &str = "run_memory_bytes/";

/// The name of that counter for one run.
#[must_use]
pub fn run_memory_counter(run: JobId) -> String {
    format!("{RUN_MEMORY}{}", run_text(run))
}

/// A run's number as reports have it.
#[must_use]
pub fn run_text(run: JobId) -> String {
    format!("{:016x}", run.0)
}

/// What a job may take of each server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// Its share of a lane's time beside other jobs: twice the weight moves twice the bytes.
    pub weight: u32,
    /// Memory on each server, over all its lanes.
    pub max_bytes: Option<u64>,
    /// Connections to each lane.
    pub max_connections: Option<u32>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { weight: 1, max_bytes: None, max_connections: None }
    }
}

/// The state of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatusReport {
    /// The coordinator's version of the protocol.
    pub protocol_version: u32,
    /// Time since its start.
    pub uptime_s: f64,
    /// The jobs, those that are over last.
    pub jobs: Vec<JobStatus>,
    /// Every server that is connected, in a job or not.
    pub servers: Vec<MemberStatus>,
    /// Events counted since the coordinator's start, by name.
    pub events: BTreeMap<String, u64>,
}

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// The run's number in hexadecimal; empty before the start.
    pub run: String,
    /// "waiting", "starting", "running", "changing", "returning", "failed" or "ended".
    pub state: String,
    /// Since the first worker joined.
    pub seconds: f64,
    /// Its workers.
    pub world_size: u32,
    /// The servers that its start waits for.
    pub expected_servers: u32,
    /// What the start waits for.
    pub missing: Vec<String>,
    /// The plan's version.
    pub epoch: u32,
    /// The n and k of the planning rule.
    pub machines: MachineCount,
    /// Entries of the tensor table.
    pub tensors: u32,
    /// Why the run failed.
    pub failure: String,
    /// Its workers, those that have left included.
    pub workers: Vec<MemberStatus>,
    /// The servers of the current plan.
    pub servers: Vec<u64>,
    /// Why the plan of the run last changed; empty if it never did.
    pub last_change: String,
    /// What it may take of each server.
    pub quota: Quota,
    /// Set while an operation has waited for longer than the job's `stall_warning_s`.
    pub stall: Option<StallStatus>,
    /// All its workers are gone.
    pub over: bool,
    /// Settings that may change while the job runs, as they are now: texts by name.
    pub settings: BTreeMap<String, String>,
    /// What `auto` has chosen for its tensors.
    pub compression: Vec<CodecChoice>,
    /// For which ranks all its members have waited, those that are gone included.
    pub late: Vec<Late>,
}

/// An operation that has stalled.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StallStatus {
    /// In one line.
    pub message: String,
    /// The tensor's name.
    pub tensor: String,
    /// The operation's number among the tensor's.
    pub round: u64,
    /// How long it has waited.
    pub seconds: f64,
    /// The ranks that have not begun the round; if none, the operation waits for a lane.
    pub ranks: Vec<u32>,
}

/// The n and k of the planning rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MachineCount {
    /// Machines with workers (n).
    pub gpu: u32,
    /// Machines with servers only (k).
    pub cpu: u32,
}

/// What a machine's link carries each way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// In Gb/s.
    #[serde(rename = "bandwidth_gbps")]
    pub gbps: f64,
    /// Who says so.
    #[serde(rename = "bandwidth_source")]
    pub source: BandwidthSource,
}

/// The rack of a machine: the machines that share a switch and its uplink.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rack {
    /// Equal for the machines of one rack.
    #[serde(rename = "rack")]
    pub name: String,
    /// What the rack's uplink carries each way, in Gb/s, if it is known.
    pub trunk_gbps: Option<f64>,
}

/// The device group of a rank: the ranks of one machine whose devices reduce among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroup {
    /// Equal for the ranks of one group.
    pub name: String,
    /// Whether the rank holds shards of the group's sums, which it contributes and receives.
    pub holds: bool,
}

/// Where the bandwidth of a link is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BandwidthSource {
    /// The setting `bandwidth_gbps`.
    Configured,
    /// What the system says of the interface.
    Interface,
}

/// The state of a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemberStatus {
    /// Its number with the coordinator.
    pub member: u64,
    /// Of a worker: its number in the job.
    pub rank: Option<u32>,
    /// Of a worker: its number on its machine.
    pub local_rank: Option<u32>,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// Addresses of its lanes.
    pub lanes: Vec<String>,
    /// What its machine's link carries each way, if it is known.
    #[serde(flatten)]
    pub bandwidth: Option<Bandwidth>,
    /// Its machine's rack, if it is known.
    #[serde(flatten)]
    pub rack: Option<Rack>,
    /// Since it joined.
    pub joined_s: f64,
    /// Since its last message.
    pub silent_s: f64,
    /// Its last report.
    pub stats: Stats,
    /// It is being taken out of all runs.
    pub draining: bool,
    /// It has left; these are its last numbers.
    pub gone: bool,
}
