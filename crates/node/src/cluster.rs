//! From who takes part to which lane sums what: the coordinator's view becomes the plan.

use std::net::SocketAddr;
use std::ops::Range;

use sumpter_coordinator::ClusterView;
use sumpter_engine::ConnId;
use sumpter_plan::{
    Architecture, Dealing, Machine, Placement, Plan, PlanError, PlannedServer, Role, server_weights,
};
use sumpter_wire::Rank;

use crate::hubs::Hubs;

/// Who runs a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Worker(Rank),
    Server(u64),
}

/// A lane of the job: its owner, and where it listens.
#[derive(Clone, Debug)]
pub(crate) struct LaneAddress {
    pub owner: Owner,
    pub host: String,
    /// Equal for processes that share a link.
    pub machine: String,
    /// The lane's number with its owner.
    pub index: u32,
    pub address: SocketAddr,
}

/// A partition of a tensor and the lane that makes its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub root: ConnId,
    pub offset: usize,
    pub bytes: usize,
}

/// All lanes of a job in one order, and the placement of tensors on them; the same everywhere.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub lanes: Vec<LaneAddress>,
    /// Who passes on what each machine's workers contribute; none if nobody has to.
    pub hubs: Option<Hubs>,
    placement: Placement,
    /// The lanes of each server of the plan.
    servers: Vec<Range<usize>>,
}

/// What the settings say about the plan; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub partition_bytes: u64,
    pub architecture: Architecture,
    pub dealing: Dealing,
    pub deterministic: bool,
}

struct Group<'a> {
    machine: &'a str,
    role: Role,
    bandwidth_gbps: Option<f64>,
    servers: Vec<Range<usize>>,
}

impl Cluster {
    pub(crate) fn new(view: &ClusterView, policy: Policy) -> Result<Cluster, PlanError> {
        let mut lanes = Vec::new();
        let mut groups: Vec<Group<'_>> = Vec::new();
        for worker in &view.workers {
            let owner = Owner::Worker(worker.rank);
            let at = (&*worker.host, &*worker.machine);
            let range = add_lanes(&mut lanes, owner, at, &worker.lanes);
            join(&mut groups, &worker.machine, Role::Gpu, worker.bandwidth_gbps, range);
        }
        for server in &view.servers {
            let owner = Owner::Server(server.member.0);
            let at = (&*server.host, &*server.machine);
            let range = add_lanes(&mut lanes, owner, at, &server.lanes);
            join(&mut groups, &server.machine, Role::Cpu, server.bandwidth_gbps, range);
        }
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
        // Shares follow bandwidths only when all are known; an unknown one is no number to plan by.
        let known = groups.iter().all(|g| g.bandwidth_gbps.is_some());
        let machines: Vec<_> = groups
            .iter()
            .map(|g| Machine {
                role: g.role,
                bandwidth_gbps: g.bandwidth_gbps.filter(|_| known).unwrap_or(1.0),
                servers: g.servers.len() as u32,
            })
            .collect();
        let weights = server_weights(&machines)?;
        let sums_away = groups.iter().zip(per_group(&groups, &weights)).any(|(group, weights)| {
            group.role == Role::Cpu && weights.iter().any(|weight| *weight > 0.0)
        });
        let hubs = Hubs::new(view, policy.deterministic, sums_away);
        let servers: Vec<_> = groups.iter().flat_map(|g| g.servers.iter().cloned()).collect();
        let planned = weights.iter().zip(&servers);
        let planned = planned.map(|(w, r)| PlannedServer { weight: *w, lanes: r.len() as u32 });
        let epoch = u64::from(view.epoch.0);
        let Policy { partition_bytes, dealing, .. } = policy;
        let plan = Plan { epoch, partition_bytes, servers: planned.collect(), dealing };
        Ok(Cluster { lanes, hubs, placement: Placement::new(&plan)?, servers })
    }

    /// Places the next tensor of the table.
    pub(crate) fn place(&mut self, tensor_bytes: u64) -> Vec<Spot> {
        let spot = |p: sumpter_plan::PartitionPlace| Spot {
            root: ConnId(self.servers[p.server].start + p.lane),
            offset: p.offset as usize,
            bytes: p.bytes as usize,
        };
        self.placement.place(tensor_bytes).into_iter().map(spot).collect()
    }

    /// The first lane of a worker; the only one, as workers are.
    pub(crate) fn lane_of(&self, rank: Rank) -> Option<ConnId> {
        let owned = |lane: &LaneAddress| lane.owner == Owner::Worker(rank);
        self.lanes.iter().position(owned).map(ConnId)
    }
}

/// The weights of each group's servers.
fn per_group<'a>(groups: &[Group<'_>], weights: &'a [f64]) -> Vec<&'a [f64]> {
    let mut rest = weights;
    let take = |group: &Group<'_>| {
        let (own, others) = rest.split_at(group.servers.len());
        rest = others;
        own
    };
    groups.iter().map(take).collect()
}

fn add_lanes(
    lanes: &mut Vec<LaneAddress>,
    owner: Owner,
    (host, machine): (&str, &str),
    addresses: &[SocketAddr],
) -> Range<usize> {
    let start = lanes.len();
    lanes.extend(addresses.iter().zip(0..).map(|(address, index)| LaneAddress {
        owner,
        host: host.to_owned(),
        machine: machine.to_owned(),
        index,
        address: *address,
    }));
    start..lanes.len()
}

/// Adds a server to its machine. A server beside workers shares their link, so it takes a part
/// of their machine's share and makes no CPU machine.
fn join<'a>(
    groups: &mut Vec<Group<'a>>,
    machine: &'a str,
    role: Role,
    bandwidth_gbps: Option<f64>,
    server: Range<usize>,
) {
    match groups.iter_mut().find(|g| g.machine == machine) {
        Some(group) => {
            group.bandwidth_gbps = group.bandwidth_gbps.or(bandwidth_gbps);
            group.servers.push(server);
        }
        None => groups.push(Group { machine, role, bandwidth_gbps, servers: vec![server] }),
    }
}

#[cfg(test)]
mod tests {
    use sumpter_coordinator::{MemberId, ServerView, WorkerView};

    use super::*;

    fn view(machines: &[&str], servers: &[&str]) -> ClusterView {
        let lanes = |n| vec![SocketAddr::from(([127, 0, 0, 1], n))];
        let worker = |(rank, machine): (u32, &&str)| WorkerView {
            rank: Rank(rank),
            host: "h".into(),
            machine: (*machine).into(),
            lanes: lanes(rank as u16),
            bandwidth_gbps: None,
        };
        let server = |(id, machine): (u64, &&str)| ServerView {
            member: MemberId(id),
            host: "s".into(),
            machine: (*machine).into(),
            lanes: [lanes(1), lanes(2)].concat(),
            bandwidth_gbps: None,
        };
        ClusterView {
            workers: (0..).zip(machines).map(worker).collect(),
            servers: (0..).zip(servers).map(server).collect(),
            ..ClusterView::default()
        }
    }

    fn build(view: &ClusterView, architecture: Architecture) -> Result<Cluster, PlanError> {
        let dealing = Dealing::Balanced;
        let deterministic = false;
        let policy = Policy { partition_bytes: 1 << 15, architecture, dealing, deterministic };
        Cluster::new(view, policy)
    }

    fn shares(cluster: &mut Cluster) -> Vec<usize> {
        let mut shares = vec![0; cluster.lanes.len()];
        for spot in cluster.place(72 << 15) {
            shares[spot.root.0] += spot.bytes >> 15;
        }
        shares
    }

    #[test]
    fn shares_follow_the_rule() {
        let view = view(&["a", "b", "c"], &["x"]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        // n = 3, k = 1: D = 10; CPU 4/10, GPU 2/10 of 72 partitions.
        let shares = shares(&mut cluster);
        assert_eq!(shares.iter().sum::<usize>(), 72);
        assert!(shares[..3].iter().all(|s| (14..=15).contains(s)), "{shares:?}");
        assert!(shares[3..].iter().all(|s| (14..=15).contains(s)), "{shares:?}");
    }

    #[test]
    fn workers_of_one_machine_share_its_part_and_a_server_beside_them_too() {
        let view = view(&["a", "a", "b"], &["b"]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        assert_eq!(shares(&mut cluster), [18, 18, 18, 9, 9]);
    }

    #[test]
    fn an_architecture_restricts_who_sums() {
        let view = view(&["a", "b"], &["x", "y"]);
        let sums = |architecture| shares(&mut build(&view, architecture).unwrap());
        assert_eq!(sums(Architecture::Allreduce), [36, 36, 0, 0, 0, 0]);
        assert_eq!(sums(Architecture::Ps), [0, 0, 18, 18, 18, 18]);
        let alone = self::view(&["a", "b"], &[]);
        assert!(matches!(build(&alone, Architecture::Ps), Err(PlanError::NoServer { .. })));
    }
}
