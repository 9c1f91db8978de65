//! The racks of a job's machines, and the reduction trees that suit their uplinks.

use std::ops::Range;

use sumpter_plan::{
    BANDWIDTH_GBPS, Cluster, Hubs, Machine, PlanError, Role, Topology, TreeOptions, TreePlan,
    plan_trees_with, server_weights,
};

use crate::cluster::Group;
use crate::cluster::lanes::Owner;

/// What the run time can do: workers pass aggregates on, and the partitions of a tensor have trees
/// of one shape.
const OPTIONS: TreeOptions = TreeOptions { hubs: Hubs::Workers, mixed: false };

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
    pub(super) fn of(groups: &[Group<'_>], machines: &[Machine]) -> Racks {
        let mut names: Vec<Option<&str>> = Vec::new();
        let mut uplinks: Vec<(Option<f64>, f64)> = Vec::new();
        let mut rack_of = Vec::new();
        for (group, machine) in groups.iter().zip(machines) {
            let name = group.rack.map(|rack| rack.name.as_str());
            let known = names.iter().position(|known| name.is_some() && *known == name);
            let at = known.unwrap_or(names.len());
            if at == names.len() {
                names.push(name);
                uplinks.push((None, 0.0));
            }
            let (trunk, of_machines) = &mut uplinks[at];
            let stated = group.rack.and_then(|rack| rack.trunk_gbps);
            *trunk = [*trunk, stated].into_iter().flatten().reduce(f64::min);
            *of_machines += machine.bandwidth_gbps;
            rack_of.push(at);
        }
        let most = *BANDWIDTH_GBPS.end();
        let trunk = |(trunk, of_machines): (Option<f64>, f64)| trunk.unwrap_or(of_machines);
        let trunks_gbps = uplinks.into_iter().map(|uplink| trunk(uplink).min(most)).collect();
        let is_known = names.iter().any(Option::is_some);
        Racks { rack_of, trunks_gbps, is_known }
    }

    /// The reduction trees over these servers, of which each machine has some: one branch, flat or
    /// with racks as its only level.
    pub(super) fn trees(
        &self,
        machines: &[Machine],
        servers: &[(Owner, Range<usize>)],
    ) -> Result<TreePlan, PlanError> {
        let flat = TreePlan::flat(server_weights(machines)?);
        if !self.is_known {
            return Ok(flat);
        }
        let cluster = Cluster::new(machines.to_vec())?;
        let (rack_of, trunks) = (self.rack_of.clone(), self.trunks_gbps.clone());
        let topology = Topology::new(cluster, rack_of, trunks, None)?;
        let planned = plan_trees_with(&topology, OPTIONS)?.trees;
        if planned.branches[0].levels.is_empty() {
            return Ok(flat);
        }
        let counts: Vec<u32> = machines.iter().map(|machine| machine.servers).collect();
        let mut trees = planned.on_servers(&counts, |at| machines[at].role == Role::Gpu);
        let [branch] = &mut trees.branches[..] else { return Ok(flat) };
        // Each machine's hubs are chosen beside those of racks.
        branch.levels.retain(|level| level.level == sumpter_plan::Level::Rack);
        for level in &mut branch.levels {
            // A server beside workers passes nothing on.
            for (group, (owner, _)) in level.groups.iter_mut().zip(servers) {
                *group = group.filter(|_| matches!(owner, Owner::Worker(_)));
            }
        }
        Ok(trees)
    }
}
