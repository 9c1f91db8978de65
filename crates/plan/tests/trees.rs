//! Reduction trees: that the planner's are the best, that dealing keeps their loads, and that what
//! is no tree is refused.

use microlp::{ComparisonOp, OptimizationDirection, Problem};
use proptest::prelude::*;
use sumpter_plan::{
    Branch, Cluster, Exchange, GroupLevel, Hubs, Level, Machine, PlanError, PlannedTrees,
    ReductionTree, Role, Topology, TreeDealer, TreeOptions, TreePlan, hubs_by_role, plan_job_trees,
    plan_trees, plan_trees_with, predict, predict_trees, shares,
};

fn machine(role: Role, bandwidth_gbps: f64) -> Machine {
    Machine { role, bandwidth_gbps, servers: 1 }
}

/// `racks` of `workers` GPU machines and `helpers` CPU machines each.
fn equal_racks(racks: usize, workers: u32, helpers: u32, gbps: [f64; 3]) -> Topology {
    let [worker, helper, trunk] = gbps;
    let mut machines = Vec::new();
    let mut rack_of = Vec::new();
    for rack in 0..racks {
        machines.extend((0..workers).map(|_| machine(Role::Gpu, worker)));
        machines.extend((0..helpers).map(|_| machine(Role::Cpu, helper)));
        rack_of.resize(machines.len(), rack);
    }
    let cluster = Cluster::new(machines).unwrap();
    Topology::new(cluster, rack_of, vec![trunk; racks], None).unwrap()
}

/// What a tree given by its edges puts on every machine and every trunk.
fn costs(topology: &Topology, edges: &[(usize, usize)]) -> Vec<f64> {
    let machines = topology.cluster().machines().len();
    let mut costs = vec![0.0; machines + topology.trunks_gbps().len()];
    for &(from, to) in edges {
        costs[from] += 1.0;
        costs[to] += 1.0;
        let (one, other) = (topology.rack_of()[from], topology.rack_of()[to]);
        if one != other {
            costs[machines + one] += 1.0;
            costs[machines + other] += 1.0;
        }
    }
    costs
}

/// The least time of any mixture of trees, in seconds for a gigabit.
fn best_mixture(topology: &Topology, trees: &[Vec<(usize, usize)>]) -> f64 {
    let links = topology.cluster().machines().iter().map(|machine| machine.bandwidth_gbps);
    let links: Vec<f64> = links.chain(topology.trunks_gbps().iter().copied()).collect();
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let time = problem.add_var(1.0, (0.0, f64::INFINITY));
    let parts: Vec<_> = trees.iter().map(|_| problem.add_var(0.0, (0.0, 1.0))).collect();
    let costs: Vec<_> = trees.iter().map(|tree| costs(topology, tree)).collect();
    for (link, gbps) in links.iter().enumerate() {
        let terms = parts.iter().zip(&costs).map(|(part, costs)| (*part, costs[link]));
        let terms = terms.filter(|(_, cost)| *cost > 0.0).chain([(time, -gbps)]);
        problem.add_constraint(terms, ComparisonOp::Le, 0.0);
    }
    problem.add_constraint(parts.iter().map(|part| (*part, 1.0)), ComparisonOp::Eq, 1.0);
    problem.solve().unwrap().into_solution().unwrap().objective()
}

/// Every tree that joins all GPU machines, and CPU machines or not, by Prüfer's sequences.
fn all_trees(topology: &Topology) -> Vec<Vec<(usize, usize)>> {
    let roles: Vec<Role> = topology.cluster().machines().iter().map(|m| m.role).collect();
    let with = |subset: u32| -> Vec<usize> {
        let joins = |at: &usize| roles[*at] == Role::Gpu || subset >> at & 1 == 1;
        (0..roles.len()).filter(joins).collect()
    };
    let mut members: Vec<_> = (0..1 << roles.len()).map(with).collect();
    members.sort();
    members.dedup();
    members.iter().flat_map(|nodes| spanning_trees(nodes)).collect()
}

fn spanning_trees(nodes: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let n = nodes.len();
    if n < 3 {
        return vec![nodes.windows(2).map(|pair| (pair[0], pair[1])).collect()];
    }
    let tree = |mut code: usize| {
        let sequence: Vec<usize> = (0..n - 2)
            .map(|_| {
                let digit = code % n;
                code /= n;
                digit
            })
            .collect();
        let mut degrees = vec![1; n];
        sequence.iter().for_each(|&at| degrees[at] += 1);
        let mut edges = Vec::new();
        for &at in &sequence {
            let leaf = degrees.iter().position(|degree| *degree == 1).unwrap();
            edges.push((nodes[leaf], nodes[at]));
            degrees[leaf] = 0;
            degrees[at] -= 1;
        }
        let mut rest = (0..n).filter(|&at| degrees[at] == 1);
        edges.push((nodes[rest.next().unwrap()], nodes[rest.next().unwrap()]));
        edges
    };
    (0..n.pow(n as u32 - 2)).map(tree).collect()
}

/// Every flat tree, and every tree of rack hubs with one of them, or a machine that is the hub of
/// none, as the root: the planner's candidates, enumerated.
fn candidates(topology: &Topology, allowed: Hubs) -> Vec<Vec<(usize, usize)>> {
    let machines = topology.cluster().machines();
    let gpus: Vec<usize> = (0..machines.len()).filter(|&m| machines[m].role == Role::Gpu).collect();
    let star = |root: usize, leaves: &[usize]| -> Vec<(usize, usize)> {
        leaves.iter().filter(|&&leaf| leaf != root).map(|&leaf| (leaf, root)).collect()
    };
    let mut trees: Vec<_> = (0..machines.len()).map(|root| star(root, &gpus)).collect();
    let racks = topology.workers_by_rack();
    let members = |rack: usize| {
        (0..machines.len()).filter(move |&m| topology.rack_of()[m] == rack).collect::<Vec<_>>()
    };
    let sources: Vec<usize> = (0..racks.len()).filter(|&rack| racks[rack] > 0).collect();
    let may_be_hub = |m: &usize| {
        let is_worker = machines[*m].role == Role::Gpu;
        racks[topology.rack_of()[*m]] > 0 && (is_worker || allowed == Hubs::Any)
    };
    let mut choices = vec![Vec::new()];
    for &rack in &sources {
        let longer = |hubs: &Vec<usize>| {
            members(rack)
                .into_iter()
                .filter(may_be_hub)
                .map(|hub| [hubs.clone(), vec![hub]].concat())
                .collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(longer).collect();
    }
    for hubs in choices {
        let mut inside = Vec::new();
        for (&rack, &hub) in sources.iter().zip(&hubs) {
            let own: Vec<usize> =
                gpus.iter().copied().filter(|&m| topology.rack_of()[m] == rack).collect();
            inside.extend(star(hub, &own));
        }
        let elsewhere = (0..machines.len()).filter(|m| !may_be_hub(m));
        for root in hubs.iter().copied().chain(elsewhere) {
            trees.push([inside.clone(), star(root, &hubs)].concat());
        }
        if hubs.len() > 1 {
            for first in 0..hubs.len() {
                let hop = |at: usize| {
                    (hubs[(first + at) % hubs.len()], hubs[(first + at + 1) % hubs.len()])
                };
                let chain: Vec<_> = (0..hubs.len() - 1).map(hop).collect();
                trees.push([inside.clone(), chain].concat());
            }
        }
    }
    trees
}

fn bandwidth() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), Just(2.5), Just(10.0), 0.5..20.0]
}

/// Clusters of two to six machines in one to three racks.
fn small(most: usize) -> impl Strategy<Value = Topology> {
    let machine =
        (prop_oneof![3 => Just(Role::Gpu), 1 => Just(Role::Cpu)], bandwidth(), 0..3_usize);
    let machines = proptest::collection::vec(machine, 2..=most);
    (machines, proptest::collection::vec(bandwidth(), 3))
        .prop_filter("two GPU machines", |(machines, _)| {
            machines.iter().filter(|(role, ..)| *role == Role::Gpu).count() > 1
        })
        .prop_map(|(machines, trunks)| {
            let mut used: Vec<usize> = machines.iter().map(|(_, _, rack)| *rack).collect();
            used.sort_unstable();
            used.dedup();
            let number = |rack: &usize| used.iter().position(|one| one == rack).unwrap();
            let rack_of = machines.iter().map(|(_, _, rack)| number(rack)).collect();
            let list = machines.iter().map(|(role, gbps, _)| self::machine(*role, *gbps));
            let cluster = Cluster::new(list.collect()).unwrap();
            Topology::new(cluster, rack_of, trunks[..used.len()].to_vec(), None).unwrap()
        })
}

fn wide(topology: &Topology) -> Topology {
    let trunks = vec![1e6; topology.trunks_gbps().len()];
    let cluster = topology.cluster().clone();
    Topology::new(cluster, topology.rack_of().to_vec(), trunks, None).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-6 * a.abs().max(b.abs())
}

/// The loads of a plan, measured: many partitions are dealt and the edges of their trees counted.
fn measured(topology: &Topology, planned: &PlannedTrees, partitions: u32) -> Vec<f64> {
    let machines = topology.cluster().machines();
    let gpus: Vec<usize> = (0..machines.len()).filter(|&m| machines[m].role == Role::Gpu).collect();
    let mut dealer = TreeDealer::new(&planned.trees, 1).unwrap();
    let mut all = vec![0.0; machines.len() + topology.trunks_gbps().len()];
    for _ in 0..partitions {
        let tree = dealer.deal(1);
        let mut edges = Vec::new();
        for &gpu in &gpus {
            let mut from = gpu;
            for edge in planned.trees.path(&tree, gpu) {
                edges.push((from, edge.to));
                from = edge.to;
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let counted = costs(topology, &edges);
        let degrees = planned.trees.degrees(&tree, &gpus);
        assert!(degrees.iter().zip(&counted).all(|(degree, cost)| *degree as f64 == *cost));
        all.iter_mut().zip(counted).for_each(|(all, cost)| *all += cost / f64::from(partitions));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn flat_trees_with_the_shares_of_the_theorem_are_the_best_of_all_trees(topology in small(5)) {
        let topology = wide(&topology);
        let planned = plan_trees(&topology).unwrap();
        prop_assert_eq!(&planned.trees, &TreePlan::flat(shares(topology.cluster())));
        let filled = predict(topology.cluster(), 125_000_000).unwrap();
        prop_assert!(close(planned.seconds_per_gigabit, filled.time_s));
        let best = best_mixture(&topology, &all_trees(&topology));
        prop_assert!(close(planned.seconds_per_gigabit, best), "{:?} {}", planned, best);
    }

    #[test]
    fn no_mixture_of_the_candidates_is_faster_than_the_plan(topology in small(6)) {
        for hubs in [Hubs::Any, Hubs::Workers] {
            let planned = plan_trees_with(&topology, TreeOptions { hubs, mixed: true }).unwrap();
            let best = best_mixture(&topology, &candidates(&topology, hubs));
            prop_assert!(close(planned.seconds_per_gigabit, best), "{:?} {}", planned, best);
            for alternative in &planned.alternatives {
                prop_assert!(alternative.seconds_per_gigabit >= best * (1.0 - 1e-6));
            }
        }
    }

    #[test]
    fn without_mixtures_the_plan_is_the_better_of_two_shapes(topology in small(6)) {
        let hubs = Hubs::Workers;
        let planned = plan_trees_with(&topology, TreeOptions { hubs, mixed: false }).unwrap();
        prop_assert_eq!(planned.trees.branches.len(), 1);
        let shapes = planned.alternatives.iter().filter(|other| !other.name.contains("ring"));
        let best = shapes.map(|other| other.seconds_per_gigabit).reduce(f64::min);
        prop_assert!(best.is_none_or(|best| close(planned.seconds_per_gigabit, best)));
        let time = |shape: &str| {
            let found = planned.alternatives.iter().find(|other| other.name.contains(shape));
            found.map(|other| other.seconds_per_gigabit)
        };
        if let (Some(ring), Some(sharded)) = (time("ring"), time("sharded")) {
            prop_assert!(ring >= sharded * (1.0 - 1e-6), "{} {}", ring, sharded);
        }
    }

    #[test]
    fn no_ring_from_rack_to_rack_is_faster_than_the_plan(topology in small(6)) {
        let planned = plan_trees(&topology).unwrap();
        let gain = predict_trees(&topology, &planned, 1 << 30).unwrap().gain_over_allreduce;
        prop_assert!(gain.unwrap() >= 1.0 - 1e-6, "{:?} {:?}", gain, planned);
    }

    #[test]
    fn a_job_has_trees_of_one_shape_that_put_the_planned_loads_on_links(topology in small(6)) {
        let planned = plan_job_trees(&topology).unwrap();
        let one_shape = TreeOptions { hubs: Hubs::Any, mixed: false };
        let best = plan_trees_with(&topology, one_shape).unwrap().seconds_per_gigabit;
        prop_assert!((0.999_999..1.010_001).contains(&(planned.seconds_per_gigabit / best)));
        let levels: Vec<usize> =
            planned.trees.branches.iter().map(|branch| branch.levels.len()).collect();
        prop_assert!(levels.iter().all(|count| *count == levels[0]), "{:?}", planned);
        let expected = planned.loads.machines.iter().chain(&planned.loads.trunks);
        for (found, expected) in measured(&topology, &planned, 2_000).iter().zip(expected) {
            prop_assert!((found - expected).abs() < 0.02, "{} {} {:?}", found, expected, planned);
        }
    }

    #[test]
    fn dealt_partitions_put_the_planned_loads_on_links(
        topology in small(6),
        workers in any::<bool>(),
        mixed in any::<bool>(),
    ) {
        let hubs = if workers { Hubs::Workers } else { Hubs::Any };
        let planned = plan_trees_with(&topology, TreeOptions { hubs, mixed }).unwrap();
        let expected = planned.loads.machines.iter().chain(&planned.loads.trunks);
        for (found, expected) in measured(&topology, &planned, 2_000).iter().zip(expected) {
            prop_assert!((found - expected).abs() < 0.02, "{} {} {:?}", found, expected, planned);
        }
    }
}

#[test]
fn a_rack_hub_sends_one_nth_of_flat_trees_over_the_trunk() {
    // Two racks of four, 4:1: T = 2(n-1)/n M/B = 1.75 over machines' links either way.
    let narrow = equal_racks(2, 4, 0, [1.0, 1.0, 1.0]);
    let planned = plan_trees(&narrow).unwrap();
    let flat = plan_trees(&wide(&narrow)).unwrap();
    assert!(close(flat.seconds_per_gigabit, 1.75));
    assert!(close(planned.seconds_per_gigabit, 1.75));
    assert!(close(flat.loads.trunks[0], 4.0 * planned.loads.trunks[0]));
    let branch = &planned.trees.branches[0];
    assert_eq!(planned.trees.branches.len(), 1);
    assert_eq!(branch.exchange, Exchange::Star);
    assert_eq!(branch.levels[0].groups, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    // The flat exchange takes four times 1 over a trunk of 1; ring and sharded exchange are equal.
    let times: Vec<f64> =
        planned.alternatives.iter().map(|other| other.seconds_per_gigabit).collect();
    assert!(close(times[0], 4.0) && close(times[1], 1.75) && close(times[2], 1.75), "{times:?}");
}

#[test]
fn trees_follow_the_oversubscription() {
    let time = |trunk: f64| plan_trees(&equal_racks(4, 8, 1, [10.0, 10.0, trunk])).unwrap();
    let levels = |planned: &PlannedTrees| -> Vec<usize> {
        planned.trees.branches.iter().map(|branch| branch.levels.len()).collect()
    };
    assert_eq!(levels(&time(90.0)), [0], "1:1 is flat");
    // Very narrow trunks carry each rack's aggregate and the results: 2(r-1)/r.
    let narrow = time(0.1);
    assert_eq!(levels(&narrow), [1]);
    assert!(close(narrow.seconds_per_gigabit, 2.0 * 3.0 / 4.0 / 0.1));
    let mut before = 0.0;
    for trunk in [90.0, 60.0, 30.0, 10.0, 5.0, 1.0, 0.1] {
        let now = time(trunk).seconds_per_gigabit;
        assert!(now >= before * (1.0 - 1e-6), "a narrower trunk is no faster");
        before = now;
    }
}

#[test]
fn racks_of_one_machine_unequal_racks_and_racks_of_helpers_work() {
    let machines = [Role::Gpu, Role::Gpu, Role::Gpu, Role::Gpu, Role::Cpu, Role::Cpu];
    let cluster = Cluster::new(machines.map(|role| machine(role, 10.0)).to_vec()).unwrap();
    let topology =
        Topology::new(cluster, vec![0, 0, 0, 1, 2, 2], vec![2.0, 5.0, 30.0], None).unwrap();
    let planned = plan_trees(&topology).unwrap();
    assert!(close(
        planned.seconds_per_gigabit,
        best_mixture(&topology, &candidates(&topology, Hubs::Any))
    ));
    // One rack only: its trunk carries nothing.
    let one = equal_racks(1, 4, 2, [10.0, 10.0, 1e-6]);
    let planned = plan_trees(&one).unwrap();
    assert_eq!(planned.loads.trunks, [0.0]);
    assert_eq!(planned.trees, TreePlan::flat(shares(one.cluster())));
    let alone = equal_racks(1, 1, 0, [10.0, 10.0, 1.0]);
    assert_eq!(plan_trees(&alone).unwrap().seconds_per_gigabit, 0.0);
}

#[test]
fn the_core_is_a_limit_of_all_racks_together() {
    let free = equal_racks(4, 4, 0, [1.0, 1.0, 4.0]);
    let cluster = free.cluster().clone();
    let racks = free.rack_of().to_vec();
    let topology = Topology::new(cluster, racks, vec![4.0; 4], Some(1.0)).unwrap();
    // Hubs send 2(r-1) of the model between racks, flat trees four times as much.
    let planned = plan_trees(&topology).unwrap();
    assert!(close(planned.seconds_per_gigabit, 6.0), "{planned:?}");
    assert!(close(planned.alternatives[0].seconds_per_gigabit, 24.0));
}

#[test]
fn shapes_of_which_the_solver_leaves_a_trace_are_left_out() {
    // The solver gives a ten-millionth to flat trees and no machine as their root.
    let trunks = vec![5.006539167517444, 19.01660885978567, 14.797917702452866, 14.284973831459567];
    let gpus = [(0, 10.0), (1, 10.0), (2, 10.0), (3, 10.0), (0, 25.65341379500613), (0, 10.0)];
    let cpus = [
        (0, 25.0),
        (0, 1.0),
        (3, 26.12135914312462),
        (1, 10.65630611956753),
        (1, 5.903195131329334),
    ];
    let of = |role, list: &[(usize, f64)]| -> Vec<Machine> {
        list.iter().map(|(_, gbps)| machine(role, *gbps)).collect()
    };
    let cluster = Cluster::new([of(Role::Gpu, &gpus), of(Role::Cpu, &cpus)].concat()).unwrap();
    let racks = gpus.iter().chain(&cpus).map(|(rack, _)| *rack).collect();
    let topology = Topology::new(cluster, racks, trunks, None).unwrap();
    let planned = plan_trees(&topology).unwrap();
    assert!(TreeDealer::new(&planned.trees, 1).is_ok(), "{planned:?}");
    let best = best_mixture(&topology, &candidates(&topology, Hubs::Any));
    assert!(close(planned.seconds_per_gigabit, best), "{best} {planned:?}");
}

#[test]
fn bandwidths_far_apart_are_planned_or_refused() {
    let narrow = equal_racks(2, 3, 1, [1e5, 1e-3, 1e-4]);
    let planned = plan_trees(&narrow).unwrap();
    assert!(close(planned.seconds_per_gigabit, 1e4), "{planned:?}");
}

#[test]
fn a_thousand_machines_of_thirty_two_racks_have_a_plan() {
    let topology = equal_racks(32, 30, 2, [25.0, 25.0, 100.0]);
    let planned = plan_trees(&topology).unwrap();
    assert!(planned.trees.branches.iter().any(|branch| !branch.levels.is_empty()));
    let slowest = planned.loads.trunks[0] / 100.0;
    assert!(slowest <= planned.seconds_per_gigabit * (1.0 + 1e-9));
}

fn rack_level(groups: &[Option<usize>], hubs: &[f64]) -> GroupLevel {
    GroupLevel { level: Level::Rack, groups: groups.to_vec(), hubs: hubs.to_vec() }
}

#[test]
fn a_ring_passes_aggregates_from_rack_to_rack_and_ends_at_the_root() {
    let racks = rack_level(&[Some(0), Some(0), Some(1), Some(2)], &[1.0; 4]);
    let branch = Branch { exchange: Exchange::Ring, roots: vec![1.0; 4], levels: vec![racks] };
    let plan = TreePlan { branches: vec![branch] };
    let tree = ReductionTree { branch: 0, root: 2, hubs: vec![vec![1, 2, 3]] };
    let path = |node| plan.path(&tree, node).map(|edge| edge.to).collect::<Vec<_>>();
    assert_eq!(path(3), [1, 2]);
    assert_eq!(path(0), [1, 2]);
    assert!(path(2).is_empty());
    assert_eq!(plan.degrees(&tree, &[0, 1, 2, 3]), [1, 3, 1, 1]);
}

#[test]
fn workers_of_a_machine_meet_in_one_whose_rack_hub_or_root_is_there() {
    // Three machines of two, one and two servers, in two racks; the last has no workers.
    let racks = rack_level(&[Some(0), Some(0), Some(1)], &[0.0, 1.0, 1.0]);
    let branch =
        Branch { exchange: Exchange::Star, roots: vec![0.0, 0.0, 1.0], levels: vec![racks] };
    let plan = TreePlan { branches: vec![branch] }.on_servers(&[2, 1, 2], |machine| machine < 2);
    let mut dealer = TreeDealer::new(&plan, 1).unwrap();
    let trees: Vec<ReductionTree> = (0..4).map(|_| dealer.deal(1)).collect();
    let roots: Vec<usize> = trees.iter().map(|tree| tree.root).collect();
    assert_eq!(roots, [3, 4, 3, 4]);
    for tree in &trees {
        // Machine 0 has either of its workers, machine 1, a hub of its rack, its only one.
        assert_eq!(tree.hubs[0][1], 2);
        assert_eq!(tree.hubs[1], [2, tree.root]);
        let hub = tree.hubs[0][0];
        let other = 1 - hub;
        let hops: Vec<_> = plan.path(tree, other).map(|edge| (edge.to, edge.level)).collect();
        assert_eq!(hops, [(hub, Level::Machine), (2, Level::Rack), (tree.root, Level::Root)]);
    }
    assert_eq!(trees.iter().map(|tree| tree.hubs[0][0]).sum::<usize>(), 2, "in turn");
}

#[test]
fn what_is_no_tree_is_refused() {
    let refused = |branch: Branch| {
        let plan = TreePlan { branches: vec![branch] };
        TreeDealer::new(&plan, 1).unwrap_err().to_string()
    };
    let roots = vec![1.0; 3];
    let branch = |exchange, levels| Branch { exchange, roots: roots.clone(), levels };
    let level = |level, groups: [Option<usize>; 3], hubs: [f64; 3]| GroupLevel {
        level,
        groups: groups.to_vec(),
        hubs: hubs.to_vec(),
    };
    let halves = [Some(0), Some(0), Some(1)];
    let cases = [
        (
            branch(Exchange::Star, vec![level(Level::Rack, halves, [0.0, 0.0, 1.0])]),
            "hubs of level",
        ),
        (branch(Exchange::Star, vec![level(Level::Root, halves, [1.0; 3])]), "levels of branch 0"),
        (
            branch(
                Exchange::Star,
                vec![level(Level::Rack, halves, [1.0; 3]), level(Level::Machine, halves, [1.0; 3])],
            ),
            "levels of branch 0",
        ),
        (
            branch(
                Exchange::Star,
                vec![
                    level(Level::Machine, [Some(0), Some(1), Some(1)], [1.0; 3]),
                    level(Level::Rack, halves, [1.0; 3]),
                ],
            ),
            "groups of branch 0 is not nested",
        ),
        (
            branch(Exchange::Ring, vec![level(Level::Rack, [Some(0), Some(0), None], [1.0; 3])]),
            "roots of branch 0 is node 2",
        ),
        (branch(Exchange::Star, vec![rack_level(&[Some(0)], &[1.0])]), "groups of branch 0"),
    ];
    for (branch, expected) in cases {
        let text = refused(branch);
        assert!(text.starts_with(expected), "{text}\nwant: {expected}");
    }
}

#[test]
fn a_topology_names_what_is_wrong() {
    let cluster = Cluster::uniform(2, 0, 10.0).unwrap();
    let refused = |rack_of: &[usize], trunks: &[f64], core| {
        let made = Topology::new(cluster.clone(), rack_of.to_vec(), trunks.to_vec(), core);
        made.map_err(|error: PlanError| error.to_string()).unwrap_err()
    };
    assert!(refused(&[0], &[1.0], None).starts_with("number of racks of machines is 1"));
    assert!(refused(&[0, 1], &[1.0], None).starts_with("rack of machine 2 is 1"));
    assert!(refused(&[0, 0], &[1.0, 1.0], None).starts_with("rack 2: machines is 0"));
    assert!(refused(&[0, 0], &[0.0], None).starts_with("rack 1: trunk_gbps is 0"));
    assert!(refused(&[0, 0], &[1.0], Some(-1.0)).starts_with("core_gbps is -1"));
}

#[test]
fn hubs_of_one_role_at_a_time_put_the_same_on_every_link() {
    let machine = |role| Machine { role, bandwidth_gbps: 1.0, servers: 1 };
    let cluster = |cpus: [usize; 2]| {
        let rack = |cpus| {
            let roles = std::iter::repeat_n(Role::Gpu, 4);
            roles.chain(std::iter::repeat_n(Role::Cpu, cpus)).map(machine).collect::<Vec<_>>()
        };
        let racks = cpus.map(rack);
        let rack_of = racks.iter().zip(0..).flat_map(|(rack, at)| vec![at; rack.len()]).collect();
        let machines = Cluster::new(racks.concat()).unwrap();
        Topology::new(machines, rack_of, vec![1.0; 2], None).unwrap()
    };
    let options = TreeOptions { hubs: Hubs::Any, mixed: false };
    let topology = cluster([2, 2]);
    let planned = plan_trees_with(&topology, options).unwrap();
    let split = hubs_by_role(&topology, planned.trees.clone());
    assert_eq!(split.branches.len(), 2);
    let mut dealer = TreeDealer::new(&split, 1).unwrap();
    let workers: Vec<usize> = (0..4).chain(6..10).collect();
    let (mut degrees, rounds) = (vec![0; 12], 13_000);
    for _ in 0..rounds {
        let tree = dealer.deal(1);
        let is_cpu = |node: &usize| !workers.contains(node);
        assert!(tree.hubs[0].iter().all(|hub| is_cpu(hub) == is_cpu(&tree.root)), "{tree:?}");
        for (sum, degree) in degrees.iter_mut().zip(split.degrees(&tree, &workers)) {
            *sum += degree;
        }
    }
    for (degree, load) in degrees.iter().zip(&planned.loads.machines) {
        assert!((*degree as f64 / f64::from(rounds) - load).abs() < 1e-3, "{degrees:?}");
    }
    // Which is what a job has, and what it is planned to take.
    let job = plan_job_trees(&topology).unwrap();
    assert_eq!(job.trees, split);
    assert!(job.loads.machines.iter().zip(&planned.loads.machines).all(|(a, b)| close(*a, *b)));
    assert!(close(job.seconds_per_gigabit, planned.seconds_per_gigabit));
    // Where only one rack has CPU machines, a partition needs hubs of both roles.
    let topology = cluster([2, 0]);
    let planned = plan_trees_with(&topology, options).unwrap().trees;
    assert_eq!(hubs_by_role(&topology, planned.clone()), planned);
}
