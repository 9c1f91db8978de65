//! The report about racks: trees, trunks, and PHub's decision beside them.

use serde::Serialize;

use crate::{
    Branch, Exchange, MachineList, PlannedTrees, RackModel, Reading, Role, Topology, TreePlan,
};

/// The reduction trees of a cluster with racks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreesReport {
    /// The fraction of the model with each shape of trees.
    pub parts: Vec<TreesPart>,
    /// Each shape by itself at its best.
    pub alternatives: Vec<TreesTime>,
    /// What a job does, whose partitions all have trees of one shape.
    pub job: JobTrees,
    /// The racks.
    pub racks: Vec<RackReport>,
    /// What all racks together may send to each other, if that is a limit.
    pub core_gbps: Option<f64>,
    /// What they send, in bytes.
    pub core_bytes: f64,
    /// PHub's decision, where racks have as many GPU machines each.
    pub phub: Option<RackDecision>,
}

/// A shape of reduction trees.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreesPart {
    /// `flat`, `rack hubs, sharded exchange` or `rack hubs, ring`.
    pub shape: &'static str,
    /// Fraction of the model with such trees.
    pub part: f64,
}

/// A shape of reduction trees for the whole model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreesTime {
    /// As in [`TreesPart`].
    pub shape: &'static str,
    /// The time of a round.
    pub time_s: f64,
}

/// The reduction trees of a job ([`plan_job_trees`](crate::plan_job_trees)).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobTrees {
    /// As in [`TreesPart`].
    pub shape: &'static str,
    /// The time of a round.
    pub time_s: f64,
    /// Bytes on each rack's trunk each way, in the order of racks.
    pub trunk_bytes: Vec<f64>,
}

/// A rack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RackReport {
    /// Its name.
    pub name: String,
    /// Its GPU machines.
    pub workers: u32,
    /// Its CPU machines.
    pub servers: u32,
    /// What its trunk carries each way.
    pub trunk_gbps: f64,
    /// What its machines can send over what its trunk carries.
    pub oversubscription: f64,
    /// Bytes on the trunk each way.
    pub trunk_bytes: f64,
    /// How long the trunk takes for them.
    pub time_s: f64,
}

/// PHub's decision for or against a hub in each rack (SoCC'18, section 3.4).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RackDecision {
    /// GPU machines of each rack, its N.
    pub workers: u32,
    /// Racks, its r.
    pub racks: u32,
    /// Bandwidth of the slowest GPU machine.
    pub worker_gbps: f64,
    /// Of a rack's CPU machines together, in the rack with the least; of its GPU machines where
    /// there are none.
    pub hub_gbps: f64,
    /// What a rack can send to others.
    pub core_gbps: f64,
    /// Both readings of the inequality for both ways between racks.
    pub cases: Vec<RackCase>,
}

/// One reading of PHub's inequality.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RackCase {
    /// `as printed`, or `N exchanged`.
    pub reading: &'static str,
    /// `sharded` or `ring`.
    pub exchange: &'static str,
    /// The time without hubs.
    pub flat_s: f64,
    /// The time with hubs.
    pub hubs_s: f64,
    /// Whether hubs pay.
    pub hubs_pay: bool,
}

/// For each machine, the fraction of the model of which it is the root, and that of which it is
/// its rack's hub without being the root.
pub(super) fn parts(topology: &Topology, planned: &PlannedTrees) -> Vec<(f64, f64)> {
    let mut parts = vec![(0.0, 0.0); topology.cluster().machines().len()];
    let total: f64 = planned.trees.branches.iter().flat_map(|branch| &branch.roots).sum();
    for branch in &planned.trees.branches {
        for (part, root) in parts.iter_mut().zip(&branch.roots) {
            part.0 += root / total;
        }
        let Some(racks) = branch.levels.first() else { continue };
        let count = topology.trunks_gbps().len();
        let (mut roots, mut hubs) = (vec![0.0; count], vec![0.0; count]);
        for (node, &rack) in topology.rack_of().iter().enumerate() {
            roots[rack] += branch.roots[node];
            hubs[rack] += racks.hubs[node];
        }
        let whole: f64 = branch.roots.iter().sum();
        for (node, &rack) in topology.rack_of().iter().enumerate() {
            if racks.groups[node].is_some() && hubs[rack] > 0.0 {
                parts[node].1 += (whole - roots[rack]) * racks.hubs[node] / hubs[rack] / total;
            }
        }
    }
    parts
}

impl TreesReport {
    pub(super) fn new(
        list: &MachineList,
        topology: &Topology,
        (planned, job): (&PlannedTrees, &PlannedTrees),
        bytes: u64,
    ) -> Self {
        let gigabits = bytes as f64 * 8e-9;
        let workers = topology.workers_by_rack();
        let mut inside = vec![(0.0, 0); list.racks.len()];
        for (machine, &rack) in topology.cluster().machines().iter().zip(topology.rack_of()) {
            inside[rack].0 += machine.bandwidth_gbps;
            inside[rack].1 += u32::from(machine.role == Role::Cpu);
        }
        let rack = |(at, rack): (usize, &crate::NamedRack)| {
            let (total, servers) = inside[at];
            let load = planned.loads.trunks[at];
            RackReport {
                name: rack.name.clone(),
                workers: workers[at],
                servers,
                trunk_gbps: rack.trunk_gbps,
                oversubscription: total / rack.trunk_gbps,
                trunk_bytes: load * bytes as f64,
                time_s: load * gigabits / rack.trunk_gbps,
            }
        };
        let time = |alternative: &crate::Alternative| TreesTime {
            shape: alternative.name,
            time_s: alternative.seconds_per_gigabit * gigabits,
        };
        Self {
            parts: shapes(&planned.trees),
            alternatives: planned.alternatives.iter().map(time).collect(),
            job: JobTrees {
                shape: shape(&job.trees.branches[0]),
                time_s: job.seconds_per_gigabit * gigabits,
                trunk_bytes: job.loads.trunks.iter().map(|load| load * bytes as f64).collect(),
            },
            racks: list.racks.iter().enumerate().map(rack).collect(),
            core_gbps: list.core_gbps,
            core_bytes: planned.loads.trunks.iter().sum::<f64>() * bytes as f64,
            phub: decision(topology, gigabits),
        }
    }
}

fn shapes(trees: &TreePlan) -> Vec<TreesPart> {
    let total: f64 = trees.branches.iter().flat_map(|branch| &branch.roots).sum();
    let part = |branch: &Branch| TreesPart {
        shape: shape(branch),
        part: branch.roots.iter().sum::<f64>() / total,
    };
    trees.branches.iter().map(part).collect()
}

fn shape(branch: &Branch) -> &'static str {
    match (branch.levels.is_empty(), branch.exchange) {
        (true, _) => "flat",
        (false, Exchange::Star) => "rack hubs, sharded exchange",
        (false, Exchange::Ring) => "rack hubs, ring",
    }
}

/// PHub's decision where racks with GPU machines have as many each, two or more.
fn decision(topology: &Topology, gigabits: f64) -> Option<RackDecision> {
    let by_rack = topology.workers_by_rack();
    let sources: Vec<usize> = (0..by_rack.len()).filter(|&rack| by_rack[rack] > 0).collect();
    let workers = by_rack[*sources.first()?];
    let alike = sources.iter().all(|&rack| by_rack[rack] == workers);
    if !alike || sources.len() < 2 || workers < 2 {
        return None;
    }
    let mut totals = vec![(0.0, 0.0); by_rack.len()];
    for (machine, &rack) in topology.cluster().machines().iter().zip(topology.rack_of()) {
        match machine.role {
            Role::Gpu => totals[rack].0 += machine.bandwidth_gbps,
            Role::Cpu => totals[rack].1 += machine.bandwidth_gbps,
        }
    }
    let hub = |&rack: &usize| match totals[rack] {
        (workers, 0.0) => workers,
        (_, helpers) => helpers,
    };
    let trunk = sources.iter().map(|&rack| topology.trunks_gbps()[rack]);
    let racks = sources.len() as f64;
    let core = topology.core_gbps().map(|core| core / racks);
    let model = RackModel {
        workers: f64::from(workers),
        racks,
        worker_gbps: topology.cluster().slowest_worker_gbps(),
        hub_gbps: sources.iter().map(hub).fold(f64::INFINITY, f64::min),
        core_gbps: trunk.chain(core).fold(f64::INFINITY, f64::min),
    };
    let case = |(reading, ring)| {
        let times = model.times(reading, ring);
        RackCase {
            reading: match reading {
                Reading::Printed => "as printed",
                Reading::Exchanged => "N exchanged",
            },
            exchange: if ring { "ring" } else { "sharded" },
            flat_s: times.flat_s * gigabits,
            hubs_s: times.hubs_s * gigabits,
            hubs_pay: times.hubs_pay(),
        }
    };
    let readings = [Reading::Printed, Reading::Exchanged];
    let cases = readings.iter().flat_map(|reading| [(*reading, false), (*reading, true)]);
    Some(RackDecision {
        workers,
        racks: sources.len() as u32,
        worker_gbps: model.worker_gbps,
        hub_gbps: model.hub_gbps,
        core_gbps: model.core_gbps,
        cases: cases.map(case).collect(),
    })
}
