//! Which worker of each machine passes on what the machine's workers contribute, and which worker
//! or server of each rack what its machines do.
//!
//! Workers of one machine share its link, so each partition has one hub there: a worker in whose
//! lane the others' contributions are added, and whose client sends the subtotal to the lane that
//! makes the sum. Where the uplinks of racks are narrow, one of a rack's hubs adds what the others
//! send, and passes that on. The choice is a function of who takes part and of the partitions
//! placed so far, so that all workers agree without a word.
//!
//! Invariant: the hub of a rack is the hub of its machine, or a server on a machine of its own.

use std::collections::HashMap;

use sumpter_types::Rank;
use sumpter_wire::Tier;

use crate::cluster::lanes::Owner;

/// The hubs of a job or of a group of its ranks, dealt out partition by partition.
#[derive(Debug)]
pub(crate) struct Hubs {
    /// The workers of each machine, in the order of their lowest ranks.
    machines: Vec<Vec<Rank>>,
    /// The machines of each rack, in the order of their lowest ranks; none if racks pass nothing
    /// on.
    racks: Vec<Vec<usize>>,
    /// The racks of servers that may be hubs, by their ranks.
    servers: HashMap<Rank, usize>,
    /// Every machine's first worker is its only hub, and every rack's first machine.
    fixed: bool,
    /// Partitions summed on CPU machines so far.
    turn: usize,
    /// The hubs of racks by the number of the reduction tree.
    trees: Vec<Vec<Rank>>,
}

/// Who passes on what of a partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChosenHubs {
    /// One of each machine, in the order of ranks.
    pub machines: Vec<Rank>,
    /// One of each rack, in the order of racks; none if racks pass nothing on.
    pub racks: Vec<Rank>,
}

/// Who takes part in a partition's sum in a tier, and the worker whose lane makes it, if it is not
/// the root.
pub(crate) type TierGroup = (Vec<Rank>, Option<Rank>);

impl Hubs {
    /// The hubs for workers on their machines, in the order of ranks, if some share a link and what
    /// they contribute leaves a machine: `sums_away` says whether CPU machines sum anything.
    /// `rack_of` numbers the rack of a machine, if racks pass aggregates on; then `servers` on
    /// machines of their own may be the hubs of racks.
    pub(crate) fn new<'a>(
        workers: impl Iterator<Item = (Rank, &'a str)>,
        servers: impl Iterator<Item = (Rank, &'a str)>,
        rack_of: impl Fn(&str) -> Option<usize>,
        deterministic: bool,
        sums_away: bool,
    ) -> Option<Hubs> {
        let (mut machines, mut racks) = (Vec::new(), Vec::new());
        let (mut known, mut known_racks) = (HashMap::new(), HashMap::new());
        for (rank, machine) in workers {
            let at = *known.entry(machine).or_insert(machines.len());
            if at == machines.len() {
                machines.push(Vec::new());
                if let Some(rack) = rack_of(machine) {
                    let rack = *known_racks.entry(rack).or_insert(racks.len());
                    racks.resize(racks.len().max(rack + 1), Vec::new());
                    racks[rack].push(at);
                }
            }
            machines[at].push(rank);
        }
        if racks.len() < 2 {
            racks.clear();
        }
        let apart = servers.filter(|(_, machine)| !known.contains_key(machine));
        let in_rack = |(rank, machine)| Some((rank, *known_racks.get(&rack_of(machine)?)?));
        let servers = apart.filter_map(in_rack).collect();
        let shared = machines.iter().any(|machine| machine.len() > 1);
        let shared = shared || racks.iter().any(|rack: &Vec<usize>| rack.len() > 1);
        let apart = machines.len() > 1 || sums_away;
        // A lane adds subtotals by the ranks of hubs. That is always the order of the machines if
        // each has ranks in a row, and so for racks; else it would change with the hub, hence with
        // the placement.
        let in_rows = machines.iter().flatten().is_sorted() && racks.iter().flatten().is_sorted();
        let fixed = deterministic && !in_rows;
        let trees = Vec::new();
        (shared && apart).then_some(Hubs { machines, racks, servers, fixed, turn: 0, trees })
    }

    /// Whether racks pass aggregates on.
    pub(crate) fn has_racks(&self) -> bool {
        !self.racks.is_empty()
    }

    /// How many reduction trees are known.
    pub(crate) fn trees(&self) -> usize {
        self.trees.len()
    }

    /// The next reduction tree: the hubs of racks in it.
    pub(crate) fn add_tree(&mut self, rack_hubs: Vec<Rank>) {
        self.trees.push(rack_hubs);
    }

    /// The hubs for the next partition, which a lane of `owner` sums and which has this reduction
    /// tree. The `root` of a broadcast or reduce is the hub of its machine and rack. Else `owner`
    /// is, which saves a hop, and its counterparts are those of the other machines; for the lanes
    /// of CPU machines, workers take turns. The hubs of racks are those of the tree.
    pub(crate) fn next(&mut self, owner: Owner, root: Option<Rank>, tree: usize) -> ChosenHubs {
        let turn = match owner {
            Owner::Worker(rank) => {
                self.machines.iter().find_map(|m| m.iter().position(|r| *r == rank))
            }
            Owner::Server(_) => {
                self.turn += 1;
                Some(self.turn - 1)
            }
        };
        let turn = turn.filter(|_| !self.fixed).unwrap_or(0);
        let of_tree = self.trees.get(tree).filter(|_| !self.fixed && !self.racks.is_empty());
        let preferred: Vec<Rank> =
            root.into_iter().chain(of_tree.into_iter().flatten().copied()).collect();
        self.in_turn(turn, &preferred)
    }

    /// The hubs for a partition of a variable, whatever the plan: the workers that mirror it, of
    /// which no two [share](Self::share) one, and the counterparts of the first.
    pub(crate) fn of_mirrors(&self, mirrors: &[Rank]) -> ChosenHubs {
        let first = mirrors.first().copied();
        let beside = first.map_or(&[][..], |first| self.machine_of(first));
        let at = beside.iter().position(|rank| Some(*rank) == first);
        self.in_turn(at.unwrap_or(0), mirrors)
    }

    /// The first of `preferred` that is there, else the one whose turn it is.
    fn in_turn(&self, turn: usize, preferred: &[Rank]) -> ChosenHubs {
        let of_rack = |(at, rack): (usize, &Vec<usize>)| {
            let members = || rack.iter().flat_map(|at| &self.machines[*at]);
            // A machine alone in its rack needs no hub.
            let serves = |rank: &Rank| rack.len() > 1 && self.servers.get(rank) == Some(&at);
            let is_here = |rank: &Rank| members().any(|r| r == rank) || serves(rank);
            let preferred = preferred.iter().copied().find(is_here);
            let first = &self.machines[rack[0]];
            preferred.unwrap_or(first[turn % first.len()])
        };
        let racks: Vec<Rank> = self.racks.iter().enumerate().map(of_rack).collect();
        let of_machine = |machine: &Vec<Rank>| {
            // What a rack prefers goes before what a machine does.
            let hubs = racks.iter().chain(preferred);
            let hub = hubs.copied().find(|rank| machine.contains(rank));
            hub.unwrap_or(machine[turn % machine.len()])
        };
        let mut machines: Vec<Rank> = self.machines.iter().map(of_machine).collect();
        machines.sort_unstable();
        ChosenHubs { machines, racks }
    }

    /// Whether two workers cannot both be hubs: of one machine, or of one rack.
    pub(crate) fn share(&self, a: Rank, b: Rank) -> bool {
        let rack = self.rack_of(a);
        self.machine_of(a).contains(&b) || (rack.is_some() && rack == self.rack_of(b))
    }

    /// The tiers in which a worker takes part, the innermost first.
    pub(crate) fn tiers(&self, rank: Rank) -> Vec<Tier> {
        let machine = (self.machine_of(rank).len() > 1).then_some(Tier::Machine);
        let rack = (self.rack_beside(rank).len() > 1).then_some(Tier::Rack);
        machine.into_iter().chain(rack).chain([Tier::Root]).collect()
    }

    /// Who takes part in a partition's sum in a tier beside `rank`.
    pub(crate) fn group(&self, tier: Tier, rank: Rank, chosen: &ChosenHubs) -> TierGroup {
        let hub = |hubs: &[Rank], of: &[Rank]| hubs.iter().copied().find(|hub| of.contains(hub));
        match tier {
            Tier::Machine => {
                let machine = self.machine_of(rank).to_vec();
                let own = hub(&chosen.machines, &machine);
                (machine, own)
            }
            Tier::Rack => {
                let rack: Vec<Rank> = self.rack_beside(rank).into_iter().flatten().collect();
                let own = self.rack_of(rank).map(|at| chosen.racks[at]);
                (chosen.machines.iter().copied().filter(|hub| rack.contains(hub)).collect(), own)
            }
            _ if chosen.racks.is_empty() => (chosen.machines.clone(), None),
            _ => {
                let mut all = chosen.racks.clone();
                all.sort_unstable();
                (all, None)
            }
        }
    }

    /// Whether a hub is a server.
    pub(crate) fn is_server(&self, hub: Rank) -> bool {
        self.servers.contains_key(&hub)
    }

    /// The workers of a worker's machine that take part; none if it takes no part itself.
    pub(crate) fn machine_of(&self, rank: Rank) -> &[Rank] {
        self.machines.iter().find(|m| m.contains(&rank)).map_or(&[], Vec::as_slice)
    }

    /// The same of each machine of its rack; none if racks pass nothing on.
    fn rack_beside(&self, rank: Rank) -> Vec<Vec<Rank>> {
        let rack = self.rack_of(rank).map(|at| &self.racks[at]);
        rack.into_iter().flatten().map(|at| self.machines[*at].clone()).collect()
    }

    /// The rack of a worker that takes part.
    fn rack_of(&self, rank: Rank) -> Option<usize> {
        let has = |at: &usize| self.machines[*at].contains(&rank);
        self.racks.iter().position(|rack| rack.iter().any(has))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hubs(machines: &[&str], deterministic: bool, sums_away: bool) -> Option<Hubs> {
        let workers = (0..).map(Rank).zip(machines.iter().copied());
        Hubs::new(workers, std::iter::empty(), |_| None, deterministic, sums_away)
    }

    fn next(hubs: &mut Hubs, owner: Owner) -> Vec<u32> {
        rooted(hubs, owner, None)
    }

    fn rooted(hubs: &mut Hubs, owner: Owner, root: Option<u32>) -> Vec<u32> {
        hubs.next(owner, root.map(Rank), 0).machines.into_iter().map(|rank| rank.0).collect()
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
    fn the_root_of_a_broadcast_is_the_hub_of_its_machine_whatever_sums() {
        let mut hubs = hubs(&["a", "a", "b", "b", "b", "c"], true, true).unwrap();
        assert_eq!(rooted(&mut hubs, Owner::Worker(Rank(0)), Some(1)), [1, 2, 5]);
        assert_eq!(rooted(&mut hubs, Owner::Worker(Rank(4)), Some(3)), [0, 3, 5]);
        let turns: Vec<_> =
            (0..3).map(|id| rooted(&mut hubs, Owner::Server(id), Some(3))).collect();
        assert_eq!(turns, [[0, 3, 5], [1, 3, 5], [0, 3, 5]]);
        // Also where the first worker of every other machine is the only hub.
        let mut fixed = self::hubs(&["a", "b", "b", "a"], true, false).unwrap();
        assert_eq!(rooted(&mut fixed, Owner::Worker(Rank(2)), Some(3)), [1, 3]);
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

    /// Machines of these names; the rack of one is its first letter.
    fn racked(machines: &[&str], deterministic: bool) -> Option<Hubs> {
        let workers = (0..).map(Rank).zip(machines.iter().copied());
        let rack_of = |machine: &str| Some(usize::from(machine.as_bytes()[0]));
        let servers = [(Rank(90), "a9"), (Rank(91), "c9"), (Rank(92), "a1")].into_iter();
        Hubs::new(workers, servers, rack_of, deterministic, false)
    }

    fn ranks(ranks: &[Rank]) -> Vec<u32> {
        ranks.iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn the_hub_of_a_rack_is_that_of_the_tree_and_of_its_machine() {
        let mut hubs = racked(&["a1", "a1", "a2", "a2", "b1", "b1", "c1"], false).unwrap();
        assert_eq!((hubs.trees(), hubs.machine_of(Rank(2))), (0, &[Rank(2), Rank(3)][..]));
        hubs.add_tree([3, 4, 6].map(Rank).to_vec());
        let chosen = hubs.next(Owner::Worker(Rank(5)), None, 0);
        assert_eq!(ranks(&chosen.machines), [1, 3, 4, 6]);
        assert_eq!(ranks(&chosen.racks), [3, 4, 6]);
        let tiers = [0, 3, 4, 6].map(|rank| hubs.tiers(Rank(rank)));
        assert_eq!(tiers[0], [Tier::Machine, Tier::Rack, Tier::Root]);
        assert_eq!(tiers[1], tiers[0]);
        assert_eq!(tiers[2], [Tier::Machine, Tier::Root], "a rack of one machine");
        assert_eq!(tiers[3], [Tier::Root]);
        let group = |tier, rank| {
            let (members, hub) = hubs.group(tier, Rank(rank), &chosen);
            (ranks(&members), hub.map(|hub| hub.0))
        };
        assert_eq!(group(Tier::Machine, 0), (vec![0, 1], Some(1)));
        assert_eq!(group(Tier::Rack, 1), (vec![1, 3], Some(3)));
        assert_eq!(group(Tier::Root, 3), (vec![3, 4, 6], None));
        // A root goes before the tree, and its rack's other machines have the hub of their turn.
        let rooted = hubs.next(Owner::Worker(Rank(5)), Some(Rank(0)), 0);
        assert_eq!(
            (ranks(&rooted.machines), ranks(&rooted.racks)),
            (vec![0, 3, 4, 6], vec![0, 4, 6])
        );
    }

    #[test]
    fn a_server_is_the_hub_of_its_own_rack_but_never_beside_the_root_or_of_one_machine() {
        let mut hubs = racked(&["a1", "a2", "b1", "b2", "c1"], false).unwrap();
        hubs.add_tree([90, 3, 91].map(Rank).to_vec());
        let chosen = hubs.next(Owner::Server(7), None, 0);
        assert_eq!(ranks(&chosen.racks), [90, 3, 4], "a machine alone in its rack needs none");
        assert_eq!(ranks(&chosen.machines), [0, 1, 2, 3, 4]);
        let (members, hub) = hubs.group(Tier::Rack, Rank(1), &chosen);
        assert_eq!((ranks(&members), hub), (vec![0, 1], Some(Rank(90))));
        let (members, hub) = hubs.group(Tier::Root, Rank(3), &chosen);
        assert_eq!((ranks(&members), hub), (vec![3, 4, 90], None));
        let rooted = hubs.next(Owner::Server(7), Some(Rank(0)), 0);
        assert_eq!(ranks(&rooted.racks), [0, 3, 4]);
        assert_eq!(ranks(&hubs.of_mirrors(&[Rank(1)]).racks), [1, 2, 4]);
        assert!(
            hubs.is_server(Rank(90)) && !hubs.is_server(Rank(92)),
            "one beside workers is none"
        );
    }

    #[test]
    fn mirrors_are_the_hubs_of_their_racks_and_no_two_are_of_one() {
        let hubs = racked(&["a1", "a1", "a2", "b1", "b1"], false).unwrap();
        let chosen = hubs.of_mirrors(&[Rank(2), Rank(4)]);
        assert_eq!((ranks(&chosen.machines), ranks(&chosen.racks)), (vec![0, 2, 4], vec![2, 4]));
        assert!(hubs.share(Rank(0), Rank(1)) && hubs.share(Rank(0), Rank(2)));
        assert!(!hubs.share(Rank(2), Rank(3)));
    }

    #[test]
    fn racks_without_a_neighbour_need_no_hubs() {
        assert!(racked(&["a1", "a2"], false).is_none(), "one rack");
        assert!(racked(&["a1", "b1"], false).is_none(), "one machine each");
        assert!(racked(&["a1", "a2", "b1"], false).is_some());
    }

    #[test]
    fn interleaved_racks_have_fixed_hubs_if_the_order_matters() {
        let mut hubs = racked(&["a1", "b1", "a2", "b2"], true).unwrap();
        hubs.add_tree([2, 3].map(Rank).to_vec());
        let chosen = hubs.next(Owner::Worker(Rank(2)), None, 0);
        assert_eq!(ranks(&chosen.racks), [0, 1]);
        let mut in_rows = racked(&["a1", "a2", "b1", "b2"], true).unwrap();
        in_rows.add_tree([1, 3].map(Rank).to_vec());
        assert_eq!(ranks(&in_rows.next(Owner::Worker(Rank(1)), None, 0).racks), [1, 3]);
    }
}
