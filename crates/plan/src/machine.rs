//! The shape of a cluster: its machines, what each is for, and how fast its network interface is.
//!
//! Invariant of [`Cluster`]: at least one GPU machine, every bandwidth finite and within
//! [`BANDWIDTH_GBPS`], at most [`MAX_MACHINES`] machines of a role, at least one server.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// Most machines of one role that are planned for. Beyond any cluster; it turns a slip of the
/// keyboard into a message instead of a long wait.
pub const MAX_MACHINES: u32 = 100_000;

/// Bandwidths that are believed, in Gb/s each way: from one kb/s to one Pb/s.
pub const BANDWIDTH_GBPS: RangeInclusive<f64> = 1e-6..=1e6;

/// What a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs workers (and, colocated with them, servers).
    Gpu,
    /// Runs servers only.
    Cpu,
}

impl Role {
    /// The word used in files, reports and messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

/// One machine, as far as planning is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Whether it runs workers.
    pub role: Role,
    /// Bandwidth of its interface, each way. Only the ratios matter to the shares.
    pub bandwidth_gbps: f64,
    /// Servers running on it. A machine without one gets no share.
    pub servers: u32,
}

/// The machines of a job, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    machines: Vec<Machine>,
    workers: u32,
}

impl Cluster {
    /// Checks the machines and counts those that run workers.
    ///
    /// # Errors
    /// A bandwidth out of range, no GPU machine, no server, or too many machines.
    pub fn new(machines: Vec<Machine>) -> Result<Self, PlanError> {
        for (index, machine) in machines.iter().enumerate() {
            check_bandwidth(&format!("machine {}: bandwidth_gbps", index + 1), machine)?;
        }
        let workers = count(&machines, Role::Gpu);
        if workers == 0 {
            return Err(PlanError::NoWorker { machines: machines.len() });
        }
        check_count("workers", workers, 1)?;
        check_count("servers", count(&machines, Role::Cpu), 0)?;
        if machines.iter().all(|machine| machine.servers == 0) {
            return Err(PlanError::NoServer { machines: machines.len() });
        }
        // Both counts are at most MAX_MACHINES here.
        Ok(Self { machines, workers: workers as u32 })
    }

    /// `workers` GPU machines, then `servers` CPU machines, all with one server and the same
    /// bandwidth.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn uniform(workers: u32, servers: u32, bandwidth_gbps: f64) -> Result<Self, PlanError> {
        check_count("workers", u64::from(workers), 1)?;
        check_count("servers", u64::from(servers), 0)?;
        let machine = |role| Machine { role, bandwidth_gbps, servers: 1 };
        check_bandwidth("bandwidth_gbps", &machine(Role::Gpu))?;
        let gpu = (0..workers).map(|_| machine(Role::Gpu));
        Self::new(gpu.chain((0..servers).map(|_| machine(Role::Cpu))).collect())
    }

    /// The machines, in the order given.
    #[must_use]
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// `n`: the number of GPU machines.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// `k`: the number of CPU machines.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.machines.len() as u32 - self.workers
    }

    /// The bandwidth that every machine has, or `None` where they differ.
    #[must_use]
    pub fn common_bandwidth_gbps(&self) -> Option<f64> {
        let first = self.machines[0].bandwidth_gbps;
        self.machines.iter().all(|machine| machine.bandwidth_gbps == first).then_some(first)
    }

    /// Bandwidths of the machines of a role that run a server, in order.
    pub(crate) fn summing(&self, role: Role) -> impl Iterator<Item = f64> {
        let sums = move |machine: &&Machine| machine.role == role && machine.servers > 0;
        self.machines.iter().filter(sums).map(|machine| machine.bandwidth_gbps)
    }

    /// Their total; positive zero where there are none, which an empty `sum` is not.
    pub(crate) fn summing_total(&self, role: Role) -> f64 {
        self.summing(role).fold(0.0, |total, bandwidth| total + bandwidth)
    }

    /// The slowest interface among the machines that run workers.
    pub(crate) fn slowest_worker_gbps(&self) -> f64 {
        let workers = self.machines.iter().filter(|machine| machine.role == Role::Gpu);
        workers.map(|machine| machine.bandwidth_gbps).fold(f64::INFINITY, f64::min)
    }
}

/// Checks a number of machines of one role.
pub(crate) fn check_count(field: &str, count: u64, least: u32) -> Result<(), PlanError> {
    if (u64::from(least)..=u64::from(MAX_MACHINES)).contains(&count) {
        return Ok(());
    }
    Err(PlanError::field(field, count, count_expected(least)))
}

/// What a number of machines may be, in words.
pub(crate) fn count_expected(least: u32) -> String {
    format!("a whole number from {least} to {MAX_MACHINES}")
}

/// What a bandwidth may be, in words.
pub(crate) fn bandwidth_expected() -> String {
    let (least, most) = (BANDWIDTH_GBPS.start(), BANDWIDTH_GBPS.end());
    format!("a number of Gb/s from {least} to {most}")
}

fn check_bandwidth(field: &str, machine: &Machine) -> Result<(), PlanError> {
    if BANDWIDTH_GBPS.contains(&machine.bandwidth_gbps) {
        return Ok(());
    }
    Err(PlanError::field(field, machine.bandwidth_gbps, bandwidth_expected()))
}

fn count(machines: &[Machine], role: Role) -> u64 {
    machines.iter().filter(|machine| machine.role == role).count() as u64
}
