//! Which worker of each machine passes on what the machine's workers contribute.
//!
//! Workers of one machine share its link, so each partition has one hub there: a worker in whose
//! lane the others' contributions are added, and whose client sends the subtotal to the lane that
//! makes the sum. The choice is a function of who takes part and of the partitions placed so far,
//! so that all workers agree without a word.

use std::collections::HashMap;

use sumpter_types::Rank;

use crate::cluster::lanes::Owner;

/// The hubs of a job or of a group of its ranks, dealt out partition by partition.
#[derive(Debug)]
pub(crate) struct Hubs {
    /// The workers of each machine, in the order of their lowest ranks.
    machines: Vec<Vec<Rank>>,
    /// Every machine's first worker is its only hub.
    fixed: bool,
    /// Partitions summed on CPU machines so far.
    turn: usize,
}

impl Hubs {
    /// The hubs for workers on their machines, in the order of ranks, if some share a link and what
    /// they contribute leaves a machine: `sums_away` says whether CPU machines sum anything.
    pub(crate) fn new<'a>(
        workers: impl Iterator<Item = (Rank, &'a str)>,
        deterministic: bool,
        sums_away: bool,
    ) -> Option<Hubs> {
        let mut machines: Vec<Vec<Rank>> = Vec::new();
        let mut known = HashMap::new();
        for (rank, machine) in workers {
            let at = *known.entry(machine).or_insert(machines.len());
            if at == machines.len() {
                machines.push(Vec::new());
            }
            machines[at].push(rank);
        }
        let shared = machines.iter().any(|machine| machine.len() > 1);
        let apart = machines.len() > 1 || sums_away;
        // A lane adds subtotals by the ranks of hubs. That is always the order of the machines if
        // each has ranks in a row; else it would change with the hub, hence with the placement.
        let in_rows = machines.iter().flatten().is_sorted();
        let fixed = deterministic && !in_rows;
        (shared && apart).then_some(Hubs { machines, fixed, turn: 0 })
    }

    /// The hub of each machine for the next partition, which a lane of `owner` sums, in the order
    /// of ranks. The `root` of a broadcast or reduce is its machine's hub. Else `owner` is, which
    /// saves a hop, and its counterparts are those of the other machines; for the lanes of CPU
    /// machines, workers take turns.
    pub(crate) fn next(&mut self, owner: Owner, root: Option<Rank>) -> Vec<Rank> {
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
        self.in_turn(turn, root.as_slice())
    }

    /// The hub of each machine for a partition of a variable, whatever the plan: the workers that
    /// mirror it, of which no two share a machine, and the counterparts of the first.
    pub(crate) fn of_mirrors(&self, mirrors: &[Rank]) -> Vec<Rank> {
        let first = mirrors.first().copied();
        let beside = first.map_or(&[][..], |first| self.machine_of(first));
        let at = beside.iter().position(|rank| Some(*rank) == first);
        self.in_turn(at.unwrap_or(0), mirrors)
    }

    fn in_turn(&self, turn: usize, roots: &[Rank]) -> Vec<Rank> {
        let of = |machine: &Vec<Rank>| {
            let root = roots.iter().copied().find(|root| machine.contains(root));
            root.unwrap_or(machine[turn % machine.len()])
        };
        let mut hubs: Vec<_> = self.machines.iter().map(of).collect();
        hubs.sort_unstable();
        hubs
    }

    /// The workers of a worker's machine that take part; none if it takes no part itself.
    pub(crate) fn machine_of(&self, rank: Rank) -> &[Rank] {
        self.machines.iter().find(|m| m.contains(&rank)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hubs(machines: &[&str], deterministic: bool, sums_away: bool) -> Option<Hubs> {
        let workers = (0..).map(Rank).zip(machines.iter().copied());
        Hubs::new(workers, deterministic, sums_away)
    }

    fn next(hubs: &mut Hubs, owner: Owner) -> Vec<u32> {
        rooted(hubs, owner, None)
    }

    fn rooted(hubs: &mut Hubs, owner: Owner, root: Option<u32>) -> Vec<u32> {
        hubs.next(owner, root.map(Rank)).into_iter().map(|rank| rank.0).collect()
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
}
