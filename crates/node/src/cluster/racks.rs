//! The racks of a job's machines, and the reduction trees that suit their uplinks.

use sumpter_membership::UNKNOWN_GBPS;
use sumpter_plan::{
    Cluster, Machine, PlanError, Role, Topology, TreePlan, plan_job_trees, racks_by_name,
    server_weights,
};

use crate::cluster::deal::Group;
use crate::cluster::lanes::Owner;

/// The rack of each machine. One of which it is not known is in a rack of its own, whose uplink
/// carries what the machine's link does.
#[derive(Debug)]
pub(crate) struct Racks {
    pub rack_of: Vec<usize>,
    trunks_gbps: Vec<f64>,
    is_known: bool,
}

impl Racks {
    /// The racks of these groups of processes, each of which is one of the machines.
    pub(super) fn of<'a>(machines: impl Iterator<Item = (&'a Group<'a>, &'a Machine)>) -> Racks {
        let mut is_known = false;
        let (rack_of, trunks_gbps) = racks_by_name(machines.map(|(group, machine)| {
            is_known |= group.rack.is_some();
            let name = group.rack.map(|rack| rack.name.as_str());
            (name, group.rack.and_then(|rack| rack.trunk_gbps), machine.bandwidth_gbps)
        }));
        Racks { rack_of, trunks_gbps, is_known }
    }

    /// The reduction trees over the servers of these machines, all of one shape: flat, or with
    /// racks as the only level. With `deterministic` the order of additions must not change with
    /// the servers that a job has, so the shape is that of the workers' machines alone.
    pub(super) fn trees(
        &self,
        (groups, machines): (&[Group<'_>], &[Machine]),
        deterministic: bool,
    ) -> Result<TreePlan, PlanError> {
        let flat = TreePlan::flat(server_weights(machines)?);
        if !self.is_known {
            return Ok(flat);
        }
        let planned = match deterministic {
            true => of_workers(groups, machines)?,
            false => self.planned(machines)?,
        };
        if planned.branches[0].levels.is_empty() {
            return Ok(flat);
        }
        let counts: Vec<u32> = machines.iter().map(|machine| machine.servers).collect();
        let mut trees = planned.on_servers(&counts, |at| machines[at].role == Role::Gpu);
        let servers = groups.iter().flat_map(|group| {
            let is_server = |(owner, _): &(Owner, _)| matches!(owner, Owner::Server(_));
            group.servers.iter().map(move |server| group.role == Role::Gpu && is_server(server))
        });
        let beside_workers: Vec<bool> = servers.collect();
        for branch in &mut trees.branches {
            // Each machine's hubs are chosen beside those of racks.
            branch.levels.retain(|level| level.level == sumpter_plan::Level::Rack);
        }
        for level in trees.branches.iter_mut().flat_map(|branch| &mut branch.levels) {
            // A server beside workers passes nothing on.
            for (group, beside) in level.groups.iter_mut().zip(&beside_workers) {
                *group = group.filter(|_| !beside);
            }
        }
        Ok(trees)
    }

    /// The reduction trees over the machines.
    fn planned(&self, machines: &[Machine]) -> Result<TreePlan, PlanError> {
        let cluster = Cluster::new(machines.to_vec())?;
        let (rack_of, trunks) = (self.rack_of.clone(), self.trunks_gbps.clone());
        let topology = Topology::new(cluster, rack_of, trunks, None)?;
        Ok(plan_job_trees(&topology)?.trees)
    }
}

/// The reduction trees over all machines that are planned as if there were those of workers only.
fn of_workers(groups: &[Group<'_>], machines: &[Machine]) -> Result<TreePlan, PlanError> {
    let is_worker = |at: &usize| machines[*at].role == Role::Gpu;
    let workers: Vec<usize> = (0..machines.len()).filter(is_worker).collect();
    if workers.iter().any(|at| machines[*at].servers == 0) {
        return Ok(TreePlan::flat(vec![1.0; machines.len()]));
    }
    let known = workers.iter().filter_map(|at| groups[*at].bandwidth_gbps);
    let assumed = known.reduce(f64::min).unwrap_or(UNKNOWN_GBPS);
    let bandwidth = |at: &usize| groups[*at].bandwidth_gbps.unwrap_or(assumed);
    let machine =
        |at: &usize| Machine { role: Role::Gpu, bandwidth_gbps: bandwidth(at), servers: 1 };
    let alone: Vec<Machine> = workers.iter().map(machine).collect();
    let racks = Racks::of(workers.iter().map(|at| &groups[*at]).zip(&alone));
    let mut trees = racks.planned(&alone)?;
    for branch in &mut trees.branches {
        branch.roots = spread(&workers, &branch.roots, machines.len());
        for level in &mut branch.levels {
            level.groups = spread(&workers, &level.groups, machines.len());
            level.hubs = spread(&workers, &level.hubs, machines.len());
        }
    }
    Ok(trees)
}

/// Values of some of `len` places, and none elsewhere.
fn spread<T: Copy + Default>(places: &[usize], values: &[T], len: usize) -> Vec<T> {
    let mut out = vec![T::default(); len];
    places.iter().zip(values).for_each(|(at, value)| out[*at] = *value);
    out
}
