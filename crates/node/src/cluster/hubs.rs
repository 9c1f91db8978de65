//! Which worker of each machine passes on what the machine's workers contribute.
//!
//! Workers of one machine share its link, so each partition has one hub there: a worker in whose
//! lane the others' contributions are added, and whose client sends the subtotal to the lane that
//! makes the sum. The choice is a function of who takes part and of the partitions placed so far,
//! so that all workers agree without a word.

use std::collections::HashMap;

use sumpter_membership::ClusterView;
use sumpter_types::Rank;

use crate::cluster::lanes::Owner;

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
    pub(crate) fn next(&mut self, root: Owner) -> Vec<Rank> {
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

    /// The workers of a worker's machine.
    pub(crate) fn machine_of(&self, rank: Rank) -> &[Rank] {
        self.machines.iter().find(|m| m.contains(&rank)).map_or(&[], Vec::as_slice)
    }
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
