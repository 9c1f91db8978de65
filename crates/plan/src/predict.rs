//! What a plan costs: the bytes on every link, the time of one round, and the two architectures
//! it is compared with.
//!
//! The model is that of BytePS (OSDI'20, section 4): full-duplex links, full bisection, streams
//! that overlap, and no cost but that of the links. So these are lower bounds of a real round.

use crate::trees::flat_seconds;
use crate::{Cluster, Machine, PlanError, PlannedTrees, Role, Topology, plan_trees};

/// Most bytes a model may have: one EiB.
pub const MAX_MODEL_BYTES: u64 = 1 << 60;

/// Predicted times of one round of the whole model. All-reduce is the ring (equally the colocated
/// parameter server, but for trunks of racks); the parameter server is the non-colocated one, on
/// the CPU machines only, and has no time where there are none. Gains are their times over ours;
/// there is none with one GPU machine, where our time is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The optimum, with the shares of this crate.
    pub time_s: f64,
    /// Ring all-reduce over the GPU machines, one rack after another.
    pub allreduce_time_s: f64,
    /// Parameter servers on the CPU machines.
    pub ps_time_s: Option<f64>,
    /// `allreduce_time_s / time_s`.
    pub gain_over_allreduce: Option<f64>,
    /// `ps_time_s / time_s`.
    pub gain_over_ps: Option<f64>,
}

/// Times and gains of a cluster, for a model of `bytes`: the slowest link under the optimal
/// [`shares`](crate::shares), the ring `2(n-1)M/(n b_min)`, and the parameter server
/// `max(M/b_min, nM/sum c)`.
///
/// ```
/// use sumpter_plan::{Cluster, predict};
///
/// // One GiB, eight GPU machines and as many CPU machines at 25 Gb/s.
/// let prediction = predict(&Cluster::uniform(8, 8, 25.0)?, 1 << 30)?;
/// assert!((prediction.gain_over_allreduce.unwrap() - 1.75).abs() < 1e-9);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// No bytes, or more than [`MAX_MODEL_BYTES`].
pub fn predict(cluster: &Cluster, bytes: u64) -> Result<Prediction, PlanError> {
    let topology = Topology::flat(cluster.clone());
    predict_trees(&topology, &plan_trees(&topology)?, bytes)
}

/// The same in a cluster with racks, whose trunks are links too, with the trees of
/// [`plan_trees`].
///
/// # Errors
/// As [`predict`].
pub fn predict_trees(
    topology: &Topology,
    planned: &PlannedTrees,
    bytes: u64,
) -> Result<Prediction, PlanError> {
    check_bytes(bytes)?;
    let gigabits = bytes as f64 * 8e-9;
    let cluster = topology.cluster();
    let workers = f64::from(cluster.workers());
    let cpu_total = cluster.summing_total(Role::Cpu);
    let on_servers = || {
        let share = |machine: &Machine| match (machine.role, machine.servers) {
            (Role::Gpu, _) | (Role::Cpu, 0) => 0.0,
            (Role::Cpu, _) => machine.bandwidth_gbps / cpu_total,
        };
        let shares: Vec<f64> = cluster.machines().iter().map(share).collect();
        gigabits * flat_seconds(topology, &shares)
    };
    let time_s = gigabits * planned.seconds_per_gigabit;
    let allreduce_time_s = gigabits * ring_seconds(topology);
    let ps_time_s = (cpu_total > 0.0).then(on_servers);
    let gain = |other: f64| (workers > 1.0).then(|| other / time_s);
    Ok(Prediction {
        time_s,
        allreduce_time_s,
        ps_time_s,
        gain_over_allreduce: gain(allreduce_time_s),
        gain_over_ps: ps_time_s.and_then(gain),
    })
}

/// The time of a ring all-reduce for a gigabit. A ring visits one rack after another, so it crosses
/// each trunk once each way.
fn ring_seconds(topology: &Topology) -> f64 {
    let workers = f64::from(topology.cluster().workers());
    let load = 2.0 * (workers - 1.0) / workers;
    let by_rack = topology.workers_by_rack();
    let joined = by_rack.iter().filter(|workers| **workers > 0).count();
    let several = joined > 1;
    let trunks = by_rack.iter().zip(topology.trunks_gbps());
    let trunks = trunks.filter(|(workers, _)| **workers > 0 && several).map(|(_, trunk)| *trunk);
    let core = topology.core_gbps().filter(|_| several).map(|core| core / joined as f64);
    load / trunks.chain(core).fold(topology.cluster().slowest_worker_gbps(), f64::min)
}

/// Seconds for a fraction of the model over a link.
pub(crate) fn seconds(bytes: u64, fraction: f64, bandwidth_gbps: f64) -> f64 {
    bytes as f64 * fraction * 8.0 / (bandwidth_gbps * 1e9)
}

pub(crate) fn check_bytes(bytes: u64) -> Result<(), PlanError> {
    if (1..=MAX_MODEL_BYTES).contains(&bytes) {
        return Ok(());
    }
    Err(PlanError::field("bytes", bytes, bytes_expected()))
}

/// What a model's size may be, in words.
pub(crate) fn bytes_expected() -> String {
    format!("a whole number of bytes from 1 to {MAX_MODEL_BYTES}")
}
