//! A plan for some ranks, dealt out tensor by tensor.

use std::collections::HashMap;
use std::ops::Range;

use sumpter_endpoint::ConnId;
use sumpter_plan::{
    Architecture, Machine, PARTITION_ALIGN_BYTES, Placement, Plan, PlanError, Role, TreePlan,
    server_weights,
};
use sumpter_types::{Rack, Rank, TensorSpec};

use crate::cluster::hubs::Hubs;
use crate::cluster::lanes::{LaneAddress, Owner, PlacedPartition};
use crate::cluster::racks::Racks;
use crate::cluster::{Policy, Source};
use crate::codecs::block_bytes;

/// Which plan places a tensor, and where it may be cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned<'a> {
    /// The plan for these ranks, or for all if there are none.
    pub ranks: &'a [Rank],
    /// Bytes of the blocks of a tensor that may be compressed, none of which is cut.
    pub block: Option<u64>,
    /// Whether it is. What its machines send is encoded once then, so the hubs of racks have no
    /// part in it.
    pub encoded: bool,
}

impl<'a> Planned<'a> {
    /// For a tensor that is not compressed.
    pub(crate) fn of(ranks: &'a [Rank]) -> Planned<'a> {
        Planned { ranks, block: None, encoded: false }
    }

    /// For a tensor among these ranks, which may be encoded.
    pub(crate) fn tensor(spec: &TensorSpec, ranks: &'a [Rank], encoded: bool) -> Planned<'a> {
        Planned { ranks, block: block_bytes(spec), encoded }
    }
}

/// A plan, dealt out tensor by tensor.
#[derive(Debug)]
pub(super) struct Deal {
    placement: Placement,
    /// The processes with lanes that the plan counts, and the lanes of each.
    servers: Vec<(Owner, Range<usize>)>,
    /// What each of them is called as a hub.
    ranks: Vec<Rank>,
    /// Those of them that are hubs of racks.
    rack_hubs: Vec<usize>,
    /// Who passes on what a machine's workers, or a rack's machines, contribute; none where all
    /// contribute directly.
    pub hubs: Option<Hubs>,
    /// Whether its trees have levels of racks.
    pub has_racks: bool,
    /// Its machines, and the event loops of each.
    pub machines: Vec<(Machine, usize)>,
}

/// The processes of a machine.
pub(super) struct Group<'a> {
    pub role: Role,
    pub bandwidth_gbps: Option<f64>,
    pub rack: Option<&'a Rack>,
    pub servers: Vec<(Owner, Range<usize>)>,
}

impl Group<'_> {
    /// Event loops of its processes; of each worker there are so many.
    fn threads(&self, loops: u32) -> usize {
        let of = |(owner, lanes): &(Owner, Range<usize>)| match owner {
            Owner::Worker(_) => loops as usize,
            Owner::Server(_) => lanes.len(),
        };
        self.servers.iter().map(of).sum()
    }
}

impl Deal {
    /// The plan for the workers that `takes_part` names, and all servers; `flat`: without hubs of
    /// racks, whatever their uplinks carry.
    pub(super) fn new(
        epoch: u64,
        policy: Policy,
        (sources, all, assumed_gbps): (&[Source], &[LaneAddress], f64),
        takes_part: impl Fn(&Rank) -> bool,
        flat: bool,
    ) -> Result<Deal, PlanError> {
        let (mut groups, mut known) = (Vec::new(), HashMap::new());
        for source in sources {
            match &source.owner {
                Owner::Worker(rank) if !takes_part(rank) => {}
                Owner::Worker(_) | Owner::Server(_) => join(&mut groups, &mut known, source),
            }
        }
        let threads: Vec<usize> = groups.iter().map(|group| group.threads(policy.loops)).collect();
        for group in &mut groups {
            let sums = match policy.architecture {
                Architecture::Sumpter => true,
                Architecture::Allreduce => group.role == Role::Gpu,
                Architecture::Ps => group.role == Role::Cpu,
            };
            if !sums {
                group.servers.clear();
            }
        }
        let machines: Vec<_> = groups
            .iter()
            .map(|g| Machine {
                role: g.role,
                bandwidth_gbps: g.bandwidth_gbps.unwrap_or(assumed_gbps),
                servers: g.servers.len() as u32,
            })
            .collect();
        let racks = Racks::of(groups.iter().zip(&machines));
        let servers: Vec<_> = groups.iter().flat_map(|g| g.servers.iter().cloned()).collect();
        let trees = match flat {
            true => TreePlan::flat(server_weights(&machines)?),
            false => racks.trees((&groups, &machines), policy.deterministic)?,
        };
        let rack_hubs = hubs_of_racks(&trees);
        let roles = groups.iter().flat_map(|g| g.servers.iter().map(|_| g.role));
        let is_root = |at: usize| trees.branches.iter().any(|branch| branch.roots[at] > 0.0);
        let sums_away = roles.enumerate().any(|(at, role)| role == Role::Cpu && is_root(at));
        let lanes = servers.iter().map(|(_, range)| range.len() as u32).collect();
        let Policy { partition_bytes, even_bytes, dealing, .. } = policy;
        // A tensor's partitions have trees of one shape.
        let has_racks = !trees.branches[0].levels.is_empty();
        let racks = has_racks.then_some(&racks);
        let workers = sources.iter().filter_map(|source| match source.owner {
            Owner::Worker(rank) if takes_part(&rank) => Some((rank, source.machine.as_str())),
            Owner::Worker(_) | Owner::Server(_) => None,
        });
        let rack_of =
            |machine: &str| racks.zip(known.get(machine)).map(|(racks, at)| racks.rack_of[*at]);
        let of_servers = sources.iter().filter_map(|source| match source.owner {
            Owner::Server(_) => Some((all[source.lanes.start].hub, source.machine.as_str())),
            Owner::Worker(_) => None,
        });
        let hubs = Hubs::new(workers, of_servers, rack_of, policy.deterministic, sums_away);
        let ranks = servers.iter().map(|(_, lanes)| all[lanes.start].hub).collect();
        let plan = Plan { epoch, partition_bytes, lanes, trees, dealing };
        let of_server = servers.iter().map(|(_, lanes)| by_interface(&all[lanes.clone()]));
        let placed = Placement::new(&plan)?.cut_to(even_bytes);
        let placement = of_server
            .enumerate()
            .fold(placed, |placement, (server, lanes)| placement.over_interfaces(server, &lanes));
        let machines = machines.into_iter().zip(threads).collect();
        Ok(Deal { placement, servers, ranks, rack_hubs, hubs, has_racks, machines })
    }

    /// Whether workers may be the hubs of racks, and how many servers may.
    pub(super) fn rack_hubs(&self) -> (bool, usize) {
        let is_server = |at: &usize| matches!(self.servers[*at].0, Owner::Server(_));
        let (servers, workers): (Vec<usize>, Vec<usize>) =
            self.rack_hubs.iter().partition(|at| is_server(at));
        (!workers.is_empty(), servers.len())
    }

    /// Places the next tensor, of which no block of so many bytes is to be cut.
    pub(super) fn place(&mut self, tensor_bytes: u64, block: Option<u64>) -> Vec<PlacedPartition> {
        let block = block.unwrap_or(PARTITION_ALIGN_BYTES);
        let places = self.placement.place_blocks(tensor_bytes, block);
        let trees = self.placement.trees();
        // Tensors are placed one after the other, so that new trees are at the end.
        if let Some(hubs) = &mut self.hubs {
            for tree in &trees[hubs.trees()..] {
                let of_racks = tree.hubs.first().map_or(&[][..], Vec::as_slice);
                hubs.add_tree(of_racks.iter().map(|node| self.ranks[*node]).collect());
            }
        }
        let spot = |p: sumpter_plan::PartitionPlace| PlacedPartition {
            root: ConnId(self.servers[p.server].1.start + p.lane),
            offset: p.offset as usize,
            bytes: p.bytes as usize,
            tree: p.tree,
            variable: None,
            carrier: None,
        };
        places.into_iter().map(spot).collect()
    }
}

/// The nodes that are hubs of racks in some tree: as such, or as its root.
fn hubs_of_racks(trees: &TreePlan) -> Vec<usize> {
    let is_hub = |at: &usize| {
        trees.branches.iter().any(|branch| {
            let level = branch.levels.first();
            let level = level.filter(|level| level.groups[*at].is_some());
            level.is_some_and(|level| level.hubs[*at] > 0.0 || branch.roots[*at] > 0.0)
        })
    };
    (0..trees.nodes()).filter(is_hub).collect()
}

/// The network interface of each lane of a server, as a number, and what it carries: lanes with
/// one first address share an interface.
fn by_interface(lanes: &[LaneAddress]) -> Vec<(usize, u32)> {
    let ip = |lane: &LaneAddress| lane.view.address().ip();
    let first = |lane| lanes.iter().position(|other| ip(other) == ip(lane)).unwrap_or(0);
    lanes.iter().map(|lane| (first(lane), lane.view.bandwidth)).collect()
}

/// Adds a server to its machine. A server beside workers shares their link, so it takes a part
/// of their machine's share and makes no CPU machine.
fn join<'a>(groups: &mut Vec<Group<'a>>, known: &mut HashMap<&'a str, usize>, source: &'a Source) {
    let Source { role, bandwidth_gbps, .. } = *source;
    let (machine, rack) = (source.machine.as_str(), source.rack.as_ref());
    let server = (source.owner, source.lanes.clone());
    match known.get(machine).map(|at| &mut groups[*at]) {
        Some(group) => {
            group.bandwidth_gbps = group.bandwidth_gbps.or(bandwidth_gbps);
            group.rack = group.rack.or(rack);
            group.servers.push(server);
        }
        None => {
            known.insert(machine, groups.len());
            let servers = vec![server];
            groups.push(Group { role, bandwidth_gbps, rack, servers });
        }
    }
}
