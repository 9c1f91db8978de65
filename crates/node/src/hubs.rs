//! Which worker of each machine passes on what the machine's workers contribute.
//!
//! Workers of one machine share its link, so each partition has one hub there: a worker in whose
//! lane the others' contributions are added, and whose client sends the subtotal to the lane that
//! makes the sum. The choice is a function of who takes part and of the partitions placed so far,
//! so that all workers agree without a word.

use std::collections::HashMap;

use sumpter_engine::Place;
use sumpter_membership::ClusterView;
use sumpter_types::{Collective, Rank, TensorSpec};
use sumpter_wire::Tier;

use crate::cluster::{Cluster, Owner, Spot};
use crate::session::WorkerClient;

/// The hubs of a job, dealt out partition by partition.
#[derive(Debug)]
pub(crate) struct Hubs {
    /// The workers of each machine, in the order of their lowest ranks.
    machines: Vec<Vec<Rank>>,
    /// Every machine's first worker is its only hub.
    fixed: bool,
    /// Partitions summed on CPU machines so far.
    turn: usize,
}

/// Where a worker's part in a tensor's rounds goes.
#[derive(Debug)]
pub(crate) struct Route {
    pub tier: Tier,
    pub places: Vec<Place>,
    /// The partitions whose subtotals this worker passes on, if any.
    pub passed_on: Vec<Place>,
}

impl Hubs {
    /// The hubs of a job, if it has machines that share a link and sums elsewhere: `sums_away`
    /// says whether CPU machines sum anything.
    pub(crate) fn new(view: &ClusterView, deterministic: bool, sums_away: bool) -> Option<Hubs> {
        let mut machines: Vec<Vec<Rank>> = Vec::new();
        let mut known = HashMap::new();
        for worker in view.living() {
            let at = *known.entry(worker.machine.as_str()).or_insert(machines.len());
            if at == machines.len() {
                machines.push(Vec::new());
            }
            machines[at].push(worker.rank);
        }
        let shared = machines.iter().any(|machine| machine.len() > 1);
        let apart = machines.len() > 1 || sums_away;
        // A lane adds subtotals by the ranks of hubs. That is always the order of the machines if
        // each has ranks in a row; else it would change with the hub, hence with the placement.
        let in_rows = machines.iter().flatten().is_sorted();
        let fixed = deterministic && !in_rows;
        (shared && apart).then_some(Hubs { machines, fixed, turn: 0 })
    }

    /// The hub of each machine for the next partition, in the order of ranks. The owner of the
    /// root is its machine's hub, which saves a hop, and its counterparts are those of the others;
    /// for the lanes of CPU machines, workers take turns.
    fn next(&mut self, root: Owner) -> Vec<Rank> {
        let turn = match root {
            Owner::Worker(rank) => {
                self.machines.iter().find_map(|m| m.iter().position(|r| *r == rank))
            }
            Owner::Server(_) => {
                self.turn += 1;
                Some(self.turn - 1)
            }
        };
        let turn = turn.filter(|_| !self.fixed).unwrap_or(0);
        let mut hubs: Vec<_> = self.machines.iter().map(|m| m[turn % m.len()]).collect();
        hubs.sort_unstable();
        hubs
    }

    fn machine_of(&self, rank: Rank) -> &[Rank] {
        self.machines.iter().find(|m| m.contains(&rank)).map_or(&[], Vec::as_slice)
    }
}

/// Whether the workers of a machine contribute to a tensor together.
fn is_whole(spec: &TensorSpec) -> bool {
    spec.ranks.is_empty() && matches!(spec.collective, Collective::AllReduce | Collective::Barrier)
}

/// Where the partitions of a tensor go, as `rank` sees it; tells the client who takes part.
pub(crate) fn route(
    cluster: &mut Cluster,
    client: &mut WorkerClient,
    rank: Rank,
    (spec, members): (&TensorSpec, &[Rank]),
    spots: &[(u32, Spot)],
) -> Route {
    let (spots, contributors) = (spots.iter().copied(), members.len() as u32);
    let Some(mut hubs) = cluster.hubs.take_if(|_| is_whole(spec)) else {
        let group = client.define_group(members);
        let place = |(number, Spot { root, offset, bytes })| {
            Place::new(root, number, (offset, bytes), group, contributors)
        };
        let (tier, places) = (Tier::Root, spots.map(place).collect());
        return Route { tier, places, passed_on: Vec::new() };
    };
    let machine = hubs.machine_of(rank).to_vec();
    let tier = if machine.len() > 1 { Tier::Machine } else { Tier::Root };
    let inside = client.define_group(&machine);
    let (mut places, mut passed_on) = (Vec::new(), Vec::new());
    for (number, Spot { root, offset, bytes }) in spots {
        let owners = hubs.next(cluster.lanes[root.0].owner);
        let group = client.define_group(&owners);
        let up = Place::new(root, number, (offset, bytes), group, contributors);
        let Some(hub) = owners.iter().find(|o| tier == Tier::Machine && machine.contains(o)) else {
            places.push(up);
            continue;
        };
        let lane = cluster.lane_of(*hub).expect("every worker has a lane");
        places.push(Place { lane, group: inside, ..up });
        if *hub == rank {
            passed_on.push(up);
        }
    }
    cluster.hubs = Some(hubs);
    Route { tier, places, passed_on }
}

#[cfg(test)]
mod tests {
    use sumpter_membership::WorkerView;

    use super::*;

    fn hubs(machines: &[&str], deterministic: bool, sums_away: bool) -> Option<Hubs> {
        let worker = |(rank, machine): (u32, &&str)| WorkerView {
            rank: Rank(rank),
            host: "h".into(),
            machine: (*machine).into(),
            lanes: Vec::new(),
            bandwidth_gbps: None,
        };
        let workers = (0..).zip(machines).map(worker).collect();
        let view = ClusterView { workers, ..ClusterView::default() };
        Hubs::new(&view, deterministic, sums_away)
    }

    fn next(hubs: &mut Hubs, root: Owner) -> Vec<u32> {
        hubs.next(root).into_iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn machines_of_one_worker_and_a_machine_that_sums_at_home_need_no_hubs() {
        assert!(hubs(&["a", "b", "c"], false, true).is_none());
        assert!(hubs(&["a", "a"], false, false).is_none());
        assert!(hubs(&["a", "a"], false, true).is_some());
        assert!(hubs(&["a", "a", "b"], false, false).is_some());
    }

    #[test]
    fn the_owner_of_a_root_is_a_hub_and_for_servers_workers_take_turns() {
        let mut hubs = hubs(&["a", "a", "b", "b", "b", "c"], true, true).unwrap();
        assert_eq!(next(&mut hubs, Owner::Worker(Rank(1))), [1, 3, 5]);
        assert_eq!(next(&mut hubs, Owner::Worker(Rank(4))), [0, 4, 5]);
        assert_eq!(next(&mut hubs, Owner::Worker(Rank(5))), [0, 2, 5]);
        let turns: Vec<_> = (0..4).map(|id| next(&mut hubs, Owner::Server(id))).collect();
        assert_eq!(turns, [[0, 2, 5], [1, 3, 5], [0, 4, 5], [1, 2, 5]]);
    }

    #[test]
    fn the_order_of_machines_never_depends_on_the_root_if_it_matters() {
        let interleaved = ["a", "b", "b", "a"];
        let mut free = hubs(&interleaved, false, false).unwrap();
        assert_eq!(next(&mut free, Owner::Worker(Rank(3))), [2, 3]);
        let mut fixed = hubs(&interleaved, true, false).unwrap();
        let roots = (0..4).map(|rank| next(&mut fixed, Owner::Worker(Rank(rank))));
        assert!(roots.eq([[0, 1]; 4]));
    }
}
