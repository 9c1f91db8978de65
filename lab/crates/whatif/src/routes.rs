//! Reduction trees as loads on links, and how fast partitions go that share them.
//!
//! A *route* is a reduction tree that partitions have. A byte of a partition crosses each link of
//! its route some number of times on its way to the root and as often on the way back, in the other
//! direction. Hubs pass on what they have added while more comes in, so all hops of a route go at
//! one rate, that of its tightest link; rates are max-min fair with the backlog as weight, as in
//! [`rates`](crate::rates).
//!
//! Every GPU machine sends each partition once and receives each sum once, unless it is the root.
//! So a route has that as a base for all of them, and a short list of what differs from it: the
//! root, hubs and trunks.

use sumpter_plan::{ReductionTree, Role, Topology, TreePlan};

use crate::machines::InsideLimit;
use crate::rates::{Rates, Way};

/// Levels that differ by less than this part are reached at once.
const TIE: f64 = 1e-12;

/// A reduction tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    /// What each machine sends beside the base, on the way to the root, and what it receives; in
    /// the order of machines.
    sends: Vec<(usize, f64)>,
    receives: Vec<(usize, f64)>,
    /// What leaves and enters each rack.
    leaves: Vec<(usize, f64)>,
    enters: Vec<(usize, f64)>,
    /// Who adds, hubs before the root, and how many contributions each adds to another.
    pub adders: Vec<(usize, f64)>,
}

/// The routes of a placement and the links that they share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routes {
    routes: Vec<Route>,
    workers: Vec<bool>,
    /// Bytes per second, each way.
    links: Vec<f64>,
    trunks: Vec<f64>,
    core: Option<f64>,
    inside: Vec<Vec<InsideLimit>>,
}

/// What a route's partitions do in one way: the rate of one byte of them, and its weight.
pub(crate) struct Backlog {
    pub route: usize,
    pub push: f64,
    pub pull: f64,
    /// Bytes of gradients that a byte on the network stands for, on the way to the root and back.
    pub gradients: [f64; 2],
}

/// A link in one direction.
#[derive(Clone, Copy, Debug)]
enum Link {
    Sends(usize),
    Receives(usize),
    Leaves(usize),
    Enters(usize),
    Core,
    Inside(usize, InsideLimit),
}

/// What links carry, but for those inside machines and what every worker sends and receives.
struct Loads {
    sends: Vec<f64>,
    receives: Vec<f64>,
    leaves: Vec<f64>,
    enters: Vec<f64>,
    /// Of all partitions on the way to their roots, and back: what every worker sends and receives.
    ways: [f64; 2],
    /// The bytes of gradients that they stand for.
    gradients: [f64; 2],
}

impl Loads {
    fn new(machines: usize, racks: usize) -> Self {
        Self {
            sends: vec![0.0; machines],
            receives: vec![0.0; machines],
            leaves: vec![0.0; racks],
            enters: vec![0.0; racks],
            ways: [0.0; 2],
            gradients: [0.0; 2],
        }
    }

    fn clear(&mut self) {
        for all in [&mut self.sends, &mut self.receives, &mut self.leaves, &mut self.enters] {
            all.fill(0.0);
        }
        self.ways = [0.0; 2];
        self.gradients = [0.0; 2];
    }

    /// Adds what goes a route on the way to the root (0) or back (1).
    fn add(&mut self, route: &Route, way: usize, rate: f64, gradients: f64) {
        self.ways[way] += rate;
        self.gradients[way] += gradients * rate;
        let (out, back) = (&mut self.sends, &mut self.receives);
        let (leaves, enters) = (&mut self.leaves, &mut self.enters);
        let [out, back, leaves, enters] = match way {
            0 => [out, back, leaves, enters],
            _ => [back, out, enters, leaves],
        };
        let parts = [&route.sends, &route.receives, &route.leaves, &route.enters];
        for (into, parts) in [out, back, leaves, enters].into_iter().zip(parts) {
            for &(at, times) in parts {
                into[at] += times * rate;
            }
        }
    }
}

impl Routes {
    /// The routes of `trees`, and what limits each machine inside.
    pub fn new(
        topology: &Topology,
        plan: &TreePlan,
        trees: &[ReductionTree],
        inside: Vec<Vec<InsideLimit>>,
    ) -> Self {
        let rate = |gbps: f64| gbps * 1e9 / 8.0;
        let machines = topology.cluster().machines();
        let workers: Vec<bool> = machines.iter().map(|one| one.role == Role::Gpu).collect();
        Self {
            routes: trees.iter().map(|tree| Route::new(topology, plan, tree, &workers)).collect(),
            links: machines.iter().map(|machine| rate(machine.bandwidth_gbps)).collect(),
            trunks: topology.trunks_gbps().iter().copied().map(rate).collect(),
            core: topology.core_gbps().map(rate),
            workers,
            inside,
        }
    }

    /// The number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Who adds what goes a route.
    pub fn adders(&self, route: usize) -> &[(usize, f64)] {
        &self.routes[route].adders
    }

    /// Whether a partition of a route crosses any link.
    pub fn travels(&self, route: usize) -> bool {
        let loaded = |limit: &InsideLimit| limit.reduce + limit.result > 0.0;
        let several = self.workers.iter().filter(|worker| **worker).count() > 1;
        several
            || self.inside.iter().flatten().any(loaded)
            || self.routes[route].receives.iter().any(|(_, times)| *times > 0.0)
    }

    /// Whether a machine is a GPU machine.
    pub fn is_gpu(&self, machine: usize) -> bool {
        self.workers[machine]
    }

    /// Whether links inside machines are a limit.
    pub fn has_inside(&self) -> bool {
        self.inside.iter().any(|limits| !limits.is_empty())
    }

    /// The same without limits inside machines.
    #[must_use]
    pub fn without_inside(&self) -> Self {
        Self { inside: vec![Vec::new(); self.links.len()], ..self.clone() }
    }

    /// The rates of each backlog, in bytes on the network per second.
    ///
    /// `network` is what the rates of links between machines are multiplied by.
    pub fn fair(&self, network: f64, backlogs: &[Backlog]) -> Vec<Rates> {
        let mut ways: Vec<[Way; 2]> =
            backlogs.iter().map(|one| [Way::new(one.push), Way::new(one.pull)]).collect();
        let empty = || Loads::new(self.links.len(), self.trunks.len());
        // What is known, and what each unit of the common level adds.
        let (mut fixed, mut rising) = (empty(), empty());
        let mut full: Vec<Link> = Vec::new();
        loop {
            rising.clear();
            for (one, ways) in backlogs.iter().zip(&ways) {
                for (way, state) in ways.iter().enumerate().filter(|(_, state)| state.rises()) {
                    let route = &self.routes[one.route];
                    rising.add(route, way, state.weight, one.gradients[way]);
                }
            }
            let level = self.tightest(network, &fixed, &rising, &mut full);
            if full.is_empty() {
                break;
            }
            for (one, ways) in backlogs.iter().zip(&mut ways) {
                for (way, state) in ways.iter_mut().enumerate().filter(|(_, state)| state.rises()) {
                    if full.iter().any(|link| self.crosses(*link, one.route, way)) {
                        state.fix(level);
                        let route = &self.routes[one.route];
                        fixed.add(route, way, state.rate(), one.gradients[way]);
                    }
                }
            }
        }
        ways.iter().map(|[push, pull]| Rates { push: push.rate(), pull: pull.rate() }).collect()
    }

    /// The least level at which a link is full, and all links that are full then.
    fn tightest(&self, network: f64, fixed: &Loads, rising: &Loads, full: &mut Vec<Link>) -> f64 {
        full.clear();
        let mut least = f64::INFINITY;
        let mut each = |link: Link, rate: f64, fixed: f64, rising: f64| {
            if rising > 0.0 {
                let level = ((rate - fixed) / rising).max(0.0);
                if level < least * (1.0 - TIE) {
                    full.clear();
                }
                if level <= least * (1.0 + TIE) {
                    full.push(link);
                }
                least = least.min(level);
            }
        };
        for (at, rate) in self.links.iter().enumerate() {
            let of = |loads: &Loads| match self.workers[at] {
                true => [loads.sends[at] + loads.ways[0], loads.receives[at] + loads.ways[1]],
                false => [loads.sends[at], loads.receives[at]],
            };
            let (known, adds) = (of(fixed), of(rising));
            each(Link::Sends(at), rate * network, known[0], adds[0]);
            each(Link::Receives(at), rate * network, known[1], adds[1]);
            for limit in &self.inside[at] {
                let load = |[up, down]: [f64; 2], [sends, receives]: [f64; 2]| {
                    // What does not cross the network is not compressed.
                    let own = limit.reduce * up + limit.result * down;
                    own + limit.sends * sends + limit.receives * receives
                };
                let (known, adds) = (load(fixed.gradients, known), load(rising.gradients, adds));
                each(Link::Inside(at, *limit), limit.rate, known, adds);
            }
        }
        for (at, rate) in self.trunks.iter().enumerate() {
            let rate = rate * network;
            each(Link::Leaves(at), rate, fixed.leaves[at], rising.leaves[at]);
            each(Link::Enters(at), rate, fixed.enters[at], rising.enters[at]);
        }
        if let Some(rate) = self.core {
            let all = |loads: &Loads| loads.leaves.iter().sum::<f64>();
            each(Link::Core, rate * network, all(fixed), all(rising));
        }
        least
    }

    /// Whether a route crosses a link on the way to the root (0) or back (1).
    fn crosses(&self, link: Link, route: usize, way: usize) -> bool {
        let (route, back) = (&self.routes[route], way == 1);
        let of = |parts: &[(usize, f64)], at: usize| {
            parts.binary_search_by_key(&at, |(part, _)| *part).map_or(0.0, |found| parts[found].1)
        };
        let base = |at: usize, this: bool| if this && self.workers[at] { 1.0 } else { 0.0 };
        let sends = |at: usize| match back {
            false => of(&route.sends, at) + base(at, true),
            true => of(&route.receives, at),
        };
        let receives = |at: usize| match back {
            false => of(&route.receives, at),
            true => of(&route.sends, at) + base(at, true),
        };
        match link {
            Link::Sends(at) => sends(at) > 0.0,
            Link::Receives(at) => receives(at) > 0.0,
            Link::Leaves(at) => of(if back { &route.enters } else { &route.leaves }, at) > 0.0,
            Link::Enters(at) => of(if back { &route.leaves } else { &route.enters }, at) > 0.0,
            Link::Core => !route.leaves.is_empty(),
            Link::Inside(at, limit) => {
                let own = if back { limit.result } else { limit.reduce };
                own + limit.sends * sends(at) + limit.receives * receives(at) > 0.0
            }
        }
    }
}

impl Route {
    fn new(topology: &Topology, plan: &TreePlan, tree: &ReductionTree, workers: &[bool]) -> Self {
        let count = workers.len();
        let (mut sends, mut receives) = (vec![0.0; count], vec![0.0; count]);
        let racks = topology.trunks_gbps().len();
        let (mut leaves, mut enters) = (vec![0.0; racks], vec![0.0; racks]);
        // Machines that add, those nearer to leaves first.
        let mut order: Vec<usize> = Vec::new();
        for worker in (0..count).filter(|&at| workers[at]) {
            let mut from = worker;
            while let Some(edge) = plan.parent(tree, from).filter(|_| sends[from] == 0.0) {
                sends[from] += 1.0;
                receives[edge.to] += 1.0;
                if let (Some(one), Some(other)) =
                    (topology.rack_of().get(from), topology.rack_of().get(edge.to))
                    && one != other
                {
                    leaves[*one] += 1.0;
                    enters[*other] += 1.0;
                }
                if !order.contains(&edge.to) {
                    order.push(edge.to);
                }
                from = edge.to;
            }
        }
        order.retain(|&at| at != tree.root);
        order.push(tree.root);
        let inputs = |at: usize| receives[at] + if workers[at] { 1.0 } else { 0.0 };
        let adders = order.iter().map(|&at| (at, inputs(at) - 1.0)).collect();
        for (sends, worker) in sends.iter_mut().zip(workers) {
            *sends -= if *worker { 1.0 } else { 0.0 };
        }
        let some = |all: Vec<f64>| -> Vec<(usize, f64)> {
            all.into_iter().enumerate().filter(|(_, times)| *times != 0.0).collect()
        };
        let (sends, receives) = (some(sends), some(receives));
        Self { sends, receives, leaves: some(leaves), enters: some(enters), adders }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sumpter_plan::{Cluster, Machine, TreeDealer, plan_trees};

    use super::*;

    /// Machines in racks: role, bandwidth and rack of each, and what trunks carry.
    fn topologies() -> impl Strategy<Value = Topology> {
        let machine = (any::<bool>(), 1.0..40.0_f64, 0..3_usize);
        let trunks = proptest::collection::vec(1.0..40.0_f64, 3);
        let core = prop_oneof![Just(None), (1.0..40.0_f64).prop_map(Some)];
        (proptest::collection::vec(machine, 1..7), trunks, core).prop_map(
            |(machines, trunks, core)| {
                // One GPU machine in each rack, so that none is empty.
                let first = (0..3).map(|rack| (true, 10.0, rack));
                let all: Vec<_> = first.chain(machines).collect();
                let rack_of = all.iter().map(|(_, _, rack)| *rack).collect();
                let machines = all.iter().map(|&(gpu, bandwidth_gbps, _)| {
                    let role = if gpu { Role::Gpu } else { Role::Cpu };
                    Machine { role, bandwidth_gbps, servers: 1 }
                });
                let cluster = Cluster::new(machines.collect()).unwrap();
                Topology::new(cluster, rack_of, trunks, core).unwrap()
            },
        )
    }

    /// What a byte of a partition puts on each link, edge by edge: what machines send and receive,
    /// what leaves and enters racks, the core, and inside of each machine as in [`limit`].
    fn dense(topology: &Topology, plan: &TreePlan, tree: &ReductionTree, back: bool) -> Vec<f64> {
        let machines = topology.cluster().machines();
        let (count, racks) = (machines.len(), topology.trunks_gbps().len());
        let mut loads = vec![0.0; 2 * count + 2 * racks + 1];
        let mut seen = vec![false; count];
        for leaf in (0..count).filter(|&at| machines[at].role == Role::Gpu) {
            let mut node = leaf;
            while let Some(edge) = plan.parent(tree, node).filter(|_| !seen[node]) {
                seen[node] = true;
                let (from, to) = if back { (edge.to, node) } else { (node, edge.to) };
                let (one, other) = (topology.rack_of()[from], topology.rack_of()[to]);
                loads[from] += 1.0;
                loads[count + to] += 1.0;
                if one != other {
                    loads[2 * count + one] += 1.0;
                    loads[2 * count + racks + other] += 1.0;
                    loads[2 * count + 2 * racks] += 1.0;
                }
                node = edge.to;
            }
        }
        let inside = (0..count).map(|at| {
            let own = if back { limit().result } else { limit().reduce };
            2.0 * own + limit().sends * loads[at] + limit().receives * loads[count + at]
        });
        let inside: Vec<f64> = inside.collect();
        loads.into_iter().chain(inside).collect()
    }

    fn limit() -> InsideLimit {
        InsideLimit { reduce: 0.5, result: 0.25, sends: 1.0, receives: 0.0, rate: 2e9 }
    }

    proptest! {
        #[test]
        fn rates_are_those_of_every_link_by_itself(
            topology in topologies(),
            queued in proptest::collection::vec((0..9_u32, 0..9_u32), 1..8),
        ) {
            let plan = plan_trees(&topology).unwrap().trees;
            let mut dealer = TreeDealer::new(&plan, 1 << 20).unwrap();
            let trees: Vec<_> = queued.iter().map(|_| dealer.deal(1 << 20)).collect();
            let machines = topology.cluster().machines().len();
            let routes = Routes::new(&topology, &plan, &trees, vec![vec![limit()]; machines]);
            let backlog = |(route, &(push, pull)): (usize, &(u32, u32))| {
                let gradients = [2.0; 2];
                Backlog { route, push: f64::from(push), pull: f64::from(pull), gradients }
            };
            let backlogs: Vec<_> = queued.iter().enumerate().map(backlog).collect();
            let rates = routes.fair(1.0, &backlogs);
            let given: Vec<f64> = rates.iter().flat_map(|one| [one.push, one.pull]).collect();

            let gbps = topology.cluster().machines().iter().map(|one| one.bandwidth_gbps);
            let links: Vec<f64> = gbps.clone().chain(gbps)
                .chain([topology.trunks_gbps(); 2].concat())
                .chain([topology.core_gbps().unwrap_or(f64::INFINITY)])
                .map(|gbps| gbps * 1e9 / 8.0)
                .chain(vec![limit().rate; machines])
                .collect();
            let ways = |(tree, of): (&ReductionTree, &Backlog)| {
                let loads = [false, true].map(|back| dense(&topology, &plan, tree, back));
                let [up, down] = loads;
                [(up, of.push), (down, of.pull)]
            };
            let flows: Vec<_> = trees.iter().zip(&backlogs).flat_map(ways).collect();
            let mut expected: Vec<Option<f64>> =
                flows.iter().map(|(_, weight)| (*weight == 0.0).then_some(0.0)).collect();
            while expected.iter().any(Option::is_none) {
                let level = |link: usize| {
                    let sum = |rising: bool| -> f64 {
                        let these = flows.iter().zip(&expected);
                        let these = these.filter(|(_, rate)| rate.is_none() == rising);
                        these.map(|((loads, w), rate)| loads[link] * rate.unwrap_or(*w)).sum()
                    };
                    (links[link] - sum(false)).max(0.0) / sum(true)
                };
                let levels: Vec<f64> = (0..links.len()).map(level).collect();
                let rises = |link: &usize| {
                    let mut rising = flows.iter().zip(&expected).filter(|(_, r)| r.is_none());
                    rising.any(|((loads, _), _)| loads[*link] > 0.0)
                };
                let full = (0..links.len()).filter(rises)
                    .min_by(|&a, &b| levels[a].total_cmp(&levels[b])).unwrap();
                for ((loads, weight), rate) in flows.iter().zip(&mut expected) {
                    if loads[full] > 0.0 {
                        rate.get_or_insert(weight * levels[full]);
                    }
                }
            }
            for (given, expected) in given.iter().zip(expected.iter().flatten()) {
                prop_assert!((given - expected).abs() <= 1e-6 * expected, "{given} {expected}");
            }
        }
    }
}
