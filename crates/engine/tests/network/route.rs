//! Where a worker sends its part of each partition, and what it passes on for its rack: as in a
//! job with one worker on each machine.

use sumpter_endpoint::ConnId;
use sumpter_engine::Place;
use sumpter_plan::{PartitionPlace, ReductionTree, TreePlan};
use sumpter_types::{GroupId, Rank};
use sumpter_wire::{Tier, group_id};

/// Reduction trees of one shape over machines, of which the first ones have a worker each.
#[derive(Clone, Copy)]
pub struct Trees<'a> {
    pub plan: &'a TreePlan,
    pub workers: usize,
}

/// Where a worker's part in a tensor's rounds goes.
pub struct Route {
    pub tier: Tier,
    pub places: Vec<Place>,
    /// The partitions of which this worker passes the rack's aggregate on, from tier to tier.
    pub passed_on: Option<((Tier, Tier), Vec<Place>)>,
}

impl Trees<'_> {
    /// The workers of a worker's rack; itself alone if racks pass nothing on.
    fn rack_of(self, rank: Rank) -> Vec<Rank> {
        let [branch] = &self.plan.branches[..] else { panic!("a mixture of shapes") };
        let Some(racks) = branch.levels.first() else { return vec![rank] };
        let workers = || (0..).map(Rank).zip(&racks.groups[..self.workers]);
        let own = racks.groups[rank.0 as usize].expect("a worker is in a rack");
        workers().filter(|(_, group)| **group == Some(own)).map(|(rank, _)| rank).collect()
    }

    /// Who takes part in the root's sum: a hub of each rack, or all.
    fn at_the_root(self, tree: &ReductionTree) -> Vec<Rank> {
        let hubs = tree.hubs.first().into_iter().flatten().map(|hub| Rank(*hub as u32));
        let mut hubs: Vec<Rank> = hubs.collect();
        hubs.sort_unstable();
        match hubs.is_empty() {
            true => (0..self.workers as u32).map(Rank).collect(),
            false => hubs,
        }
    }

    /// The route of `rank`; `define` numbers a group of ranks.
    pub fn route(
        self,
        rank: Rank,
        (partitions, trees): (&[PartitionPlace], &[ReductionTree]),
        mut define: impl FnMut(&[Rank]) -> GroupId,
    ) -> Route {
        let rack = self.rack_of(rank);
        let tier = if rack.len() > 1 { Tier::Rack } else { Tier::Root };
        let (mut places, mut passed_on) = (Vec::new(), Vec::new());
        for (number, partition) in (0..).zip(partitions) {
            let PartitionPlace { offset, bytes, server, tree, .. } = *partition;
            let mut place = |lane: usize, members: &[Rank]| {
                let span = (offset as usize, bytes as usize);
                let contributors = self.workers as u32;
                Place::new(ConnId(lane), number, span, define(members), contributors)
            };
            let at_the_root = self.at_the_root(&trees[tree]);
            let outer = place(server, &at_the_root);
            if tier == Tier::Root {
                places.push(outer);
                continue;
            }
            let hub = at_the_root.iter().find(|hub| rack.contains(hub)).expect("a hub a rack");
            places.push(place(hub.0 as usize, &rack));
            if *hub == rank {
                passed_on.push(outer);
            }
        }
        let passed_on = (!passed_on.is_empty()).then_some(((Tier::Rack, Tier::Root), passed_on));
        Route { tier, places, passed_on }
    }
}

#[test]
fn a_worker_sends_to_its_racks_hub_and_the_hub_to_the_root() {
    use sumpter_plan::{Branch, Exchange, GroupLevel, Level};

    // Racks of two workers and of one, and a CPU machine.
    let racks = GroupLevel {
        level: Level::Rack,
        groups: vec![Some(0), Some(0), Some(1), None],
        hubs: vec![1.0, 1.0, 1.0, 0.0],
    };
    let roots = vec![0.0, 0.0, 0.0, 1.0];
    let plan = TreePlan {
        branches: vec![Branch { exchange: Exchange::Star, roots, levels: vec![racks] }],
    };
    let trees = Trees { plan: &plan, workers: 3 };
    let tree = ReductionTree { branch: 0, root: 3, hubs: vec![vec![1, 2]] };
    let partition = PartitionPlace { offset: 0, bytes: 64, server: 3, lane: 0, tree: 0 };
    let route = |rank: u32| {
        let define = |ranks: &[Rank]| group_id(ranks);
        let of = trees.route(Rank(rank), (&[partition], std::slice::from_ref(&tree)), define);
        let ends = |places: &[Place]| (places[0].lane.0, places[0].group);
        (of.tier, ends(&of.places), of.passed_on.map(|(tiers, places)| (tiers, ends(&places))))
    };
    let (rack, hubs) = (group_id(&[Rank(0), Rank(1)]), group_id(&[Rank(1), Rank(2)]));
    assert_eq!(route(0), (Tier::Rack, (1, rack), None));
    let passes = ((Tier::Rack, Tier::Root), (3, hubs));
    assert_eq!(route(1), (Tier::Rack, (1, rack), Some(passes)));
    assert_eq!(route(2), (Tier::Root, (3, hubs), None));
}
