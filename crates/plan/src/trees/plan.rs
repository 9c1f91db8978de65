//! Plans the reduction trees of a cluster: flat ones by water-filling where no trunk is a limit,
//! else by the linear program.
//!
//! **Flat trees are optimal where only machines' links are a limit**, among all trees. In any tree
//! over `n` GPU machines the degrees of nodes satisfy
//! `sum over GPU (deg - 1) + sum over CPU (deg - 2) = n - 2`. For any prices `w` of links a tree
//! costs `sum over GPU w + sum over GPU w (deg - 1) + sum over CPU w deg`. A CPU node has a degree
//! from 2 to `n`, so `deg >= n/(n-2) (deg - 2)`, hence no tree is cheaper than
//! `sum over GPU w + (n-2) min(min over GPU w, min over CPU w n/(n-2))`. That is what the flat tree
//! with the cheapest root costs; by duality, no mixture of trees takes less time than the best one
//! of flat trees, which is Theorem 1 of BytePS (OSDI'20) and its generalization
//! ([`shares`]).
//!
//! **A ring is never needed.** What it puts on each link is what a sharded exchange does whose
//! roots are spread evenly over racks: `2(r-1)/r` on each trunk, and on a hub as much beside the
//! contributions of its rack. So a mixture with rings is one of flat trees and sharded exchanges,
//! which take fewer hops. A ring by itself is planned to compare with.

use crate::trees::model::{Hubs, Model, Parts, SHAPES, Shape, Solution};
use crate::trees::tree::{Branch, Exchange, GroupLevel, Level, TreePlan};
use crate::{PlanError, Topology, link_loads, shares};

/// Fractions of the trees of a shape below this are rounding.
const LEAST_PART: f64 = 1e-9;

/// Shapes with less of the model are left out: the solver's rows hold within 1e-7, so a shape with
/// as little may have no root at all.
const LEAST_SHAPE: f64 = 1e-6;

/// By how much a plan has to be better than flat trees, relatively, to be preferred to them: hubs
/// cost two hops.
const WORTHWHILE: f64 = 1e-6;

/// The reduction trees of a cluster, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedTrees {
    /// Over machines, in the order of the cluster.
    pub trees: TreePlan,
    /// What links carry.
    pub loads: Loads,
    /// The time of a round for a model of one gigabit, in seconds.
    pub seconds_per_gigabit: f64,
    /// Flat trees, sharded exchange and ring, each by itself at its best; without racks, none.
    pub alternatives: Vec<Alternative>,
}

/// What links carry each way, as fractions of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loads {
    /// Of each machine.
    pub machines: Vec<f64>,
    /// Of each rack's trunk.
    pub trunks: Vec<f64>,
}

/// What a job can do with reduction trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Which machines may add the contributions of a rack.
    pub hubs: Hubs,
    /// Whether some partitions may have flat trees where others have rack hubs.
    pub mixed: bool,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self { hubs: Hubs::Any, mixed: true }
    }
}

/// One shape of trees for the whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// What it is.
    pub name: &'static str,
    /// The time of a round for a model of one gigabit, in seconds.
    pub seconds_per_gigabit: f64,
}

/// The reduction trees that take the least time.
///
/// Where no trunk is a limit they are flat, with the shares of [`shares`].
///
/// ```
/// use sumpter_plan::{Cluster, Topology, plan_trees};
///
/// // Two racks of four machines; each trunk carries as much as one machine.
/// let cluster = Cluster::uniform(8, 0, 10.0)?;
/// let racks = vec![0, 0, 0, 0, 1, 1, 1, 1];
/// let narrow = Topology::new(cluster.clone(), racks.clone(), vec![10.0; 2], None)?;
/// let planned = plan_trees(&narrow)?;
/// // The aggregate of each rack crosses its trunk once: no time is lost to it.
/// assert!((planned.loads.trunks[0] - 1.0).abs() < 1e-6);
/// assert!((planned.seconds_per_gigabit - 0.175).abs() < 1e-6);
///
/// let wide = Topology::new(cluster, racks, vec![40.0; 2], None)?;
/// assert!(plan_trees(&wide)?.trees.branches[0].levels.is_empty());
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// What the solver could not handle: bandwidths many orders of magnitude apart.
pub fn plan_trees(topology: &Topology) -> Result<PlannedTrees, PlanError> {
    plan_trees_with(topology, TreeOptions::default())
}

/// The same, of those trees that the options allow.
///
/// # Errors
/// As [`plan_trees`].
pub fn plan_trees_with(
    topology: &Topology,
    options: TreeOptions,
) -> Result<PlannedTrees, PlanError> {
    let TreeOptions { hubs, mixed } = options;
    Planner::new(topology, hubs, &SHAPES)?.plan(mixed)
}

/// The reduction trees of a job, which can do less than [`plan_trees`] assumes: all partitions have
/// trees of one shape, and rack hubs of a partition are machines of one role ([`hubs_by_role`]).
///
/// ```
/// use sumpter_plan::{Cluster, Machine, Role, Topology, plan_job_trees, plan_trees};
///
/// // Two racks of four GPU machines and two CPU machines, 6:1.
/// let machine = |role| Machine { role, bandwidth_gbps: 1.0, servers: 1 };
/// let rack = [[Role::Gpu; 4].as_slice(), &[Role::Cpu; 2]].concat();
/// let cluster = Cluster::new([rack.clone(), rack].concat().into_iter().map(machine).collect())?;
/// let racks = [[0; 6], [1; 6]].concat();
/// let topology = Topology::new(cluster, racks, vec![1.0; 2], None)?;
/// let (job, best) = (plan_job_trees(&topology)?, plan_trees(&topology)?);
/// // A mixture would take a hundredth less time, and send a third more over trunks.
/// assert!((job.loads.trunks[0] - 1.0).abs() < 1e-6 && best.loads.trunks[0] > 1.3);
/// assert!((1.005..1.015).contains(&(job.seconds_per_gigabit / best.seconds_per_gigabit)));
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// As [`plan_trees`].
pub fn plan_job_trees(topology: &Topology) -> Result<PlannedTrees, PlanError> {
    Planner::new(topology, Hubs::Any, &[Shape::Flat, Shape::Sharded])?.plan_job()
}

/// The trees of [`plan_trees`], and those of [`plan_job_trees`].
pub(crate) fn plan_trees_and_job(
    topology: &Topology,
) -> Result<(PlannedTrees, PlannedTrees), PlanError> {
    let planner = Planner::new(topology, Hubs::Any, &SHAPES)?;
    Ok((planner.plan(true)?, planner.plan_job()?))
}

/// What all plans with the same hubs begin with.
struct Planner<'a> {
    topology: &'a Topology,
    hubs: Hubs,
    /// Flat trees by water-filling, with the alternatives.
    flat: PlannedTrees,
    /// Where these are not the best.
    model: Option<Model>,
}

impl<'a> Planner<'a> {
    fn new(topology: &'a Topology, hubs: Hubs, shapes: &[Shape]) -> Result<Self, PlanError> {
        let shares = shares(topology.cluster());
        let loads = flat_loads(topology, &shares);
        let filled = Loads { trunks: vec![0.0; loads.trunks.len()], ..loads.clone() };
        let (with_trunks, without) = (seconds(topology, &loads), seconds(topology, &filled));
        let suffices = with_trunks <= without * (1.0 + WORTHWHILE);
        let mut flat = PlannedTrees {
            trees: TreePlan::flat(shares),
            loads,
            seconds_per_gigabit: with_trunks,
            alternatives: Vec::new(),
        };
        if topology.cluster().workers() == 1 || topology.trunks_gbps().is_empty() {
            return Ok(Self { topology, hubs, flat, model: None });
        }
        let model = Model::new(topology, hubs);
        for &shape in shapes {
            let seconds_per_gigabit = match shape {
                Shape::Flat if suffices => Some(with_trunks),
                _ => model.fastest(&[shape])?,
            };
            let alternative =
                |seconds_per_gigabit| Alternative { name: shape.name(), seconds_per_gigabit };
            flat.alternatives.extend(seconds_per_gigabit.map(alternative));
        }
        Ok(Self { topology, hubs, flat, model: (!suffices).then_some(model) })
    }

    /// The best trees, of one shape unless `mixed`.
    fn plan(&self, mixed: bool) -> Result<PlannedTrees, PlanError> {
        let Some(model) = &self.model else { return Ok(self.flat.clone()) };
        let solved = |allowed: &[Shape], known: Option<f64>| {
            let solution = model.solve(allowed, known)?;
            let outcome =
                solution.map(|solution| Outcome::new((self.topology, self.hubs), &solution));
            outcome.ok_or(PlanError::NoServer { machines: self.topology.rack_of().len() })
        };
        let (flat, hubs) = (self.fastest(Shape::Flat), self.fastest(Shape::Sharded));
        let suffices = |best: f64| flat.is_some_and(|flat| flat <= best * (1.0 + WORTHWHILE));
        let best = match hubs {
            Some(hubs) if !mixed && !suffices(hubs) => solved(&[Shape::Sharded], Some(hubs))?,
            Some(_) if mixed => solved(&[Shape::Flat, Shape::Sharded], None)?,
            _ => solved(&[Shape::Flat], flat)?,
        };
        let has_hubs = best.trees.branches.iter().any(|branch| !branch.levels.is_empty());
        let best = match has_hubs && suffices(best.seconds) {
            true => solved(&[Shape::Flat], flat)?,
            false => best,
        };
        Ok(PlannedTrees {
            trees: best.trees,
            loads: best.loads,
            seconds_per_gigabit: best.seconds,
            alternatives: self.flat.alternatives.clone(),
        })
    }

    /// Trees of one shape with hubs of one role.
    fn plan_job(&self) -> Result<PlannedTrees, PlanError> {
        let planned = self.plan(false)?;
        let trees = hubs_by_role(self.topology, planned.trees.clone());
        if trees == planned.trees {
            return Ok(planned);
        }
        let alternatives = planned.alternatives;
        Ok(PlannedTrees { alternatives, ..PlannedTrees::of(self.topology, trees) })
    }

    /// The time of a shape by itself.
    fn fastest(&self, shape: Shape) -> Option<f64> {
        let found = self.flat.alternatives.iter().find(|other| other.name == shape.name());
        found.map(|other| other.seconds_per_gigabit)
    }
}

impl PlannedTrees {
    /// These trees over the machines, with what they put on links; no alternatives.
    #[must_use]
    pub fn of(topology: &Topology, trees: TreePlan) -> Self {
        let total: f64 = trees.branches.iter().flat_map(|branch| &branch.roots).sum();
        let mut loads = Loads::none(topology);
        for branch in &trees.branches {
            loads.add(&branch_loads(topology, branch));
        }
        for load in loads.machines.iter_mut().chain(&mut loads.trunks) {
            *load /= total;
        }
        let seconds_per_gigabit = seconds(topology, &loads);
        Self { trees, loads, seconds_per_gigabit, alternatives: Vec::new() }
    }
}

/// What splitting a branch by roles may cost, relatively.
const SPLIT_COST: f64 = 0.01;

/// The same trees, but all rack hubs of a partition on machines of one role, where that puts no
/// more on any link.
///
/// A worker's link sends contributions ahead of results, so that a result which waits for a hub on
/// a worker is late; where the other hubs are CPU machines, whose links send nothing but results,
/// these idle first and are a bottleneck afterwards.
///
/// # Errors
/// None: trees that cannot be split stay as they are.
#[must_use]
pub fn hubs_by_role(topology: &Topology, trees: TreePlan) -> TreePlan {
    let [branch] = &trees.branches[..] else { return trees };
    let Some(split) = split_by_role(topology, branch) else { return trees };
    let mut loads = branch_loads(topology, &split[0]);
    loads.add(&branch_loads(topology, &split[1]));
    let limit = seconds(topology, &branch_loads(topology, branch)) * (1.0 + SPLIT_COST);
    match seconds(topology, &loads) <= limit {
        true => TreePlan { branches: split.into() },
        false => trees,
    }
}

/// A branch with a sharded exchange as one of CPU machines and one of GPU machines, if either role
/// does the same part of the work in every rack.
fn split_by_role(topology: &Topology, branch: &Branch) -> Option<[Branch; 2]> {
    let [racks] = &branch.levels[..] else { return None };
    let work = hub_work(topology, branch, racks)?;
    let is_cpu = |node: usize| topology.cluster().machines()[node].role == crate::Role::Cpu;
    let whole: f64 = branch.roots.iter().sum();
    let count = racks.groups.iter().flatten().max()? + 1;
    let (mut of_cpus, mut roots) = (vec![0.0; count], vec![0.0; count]);
    for (node, group) in racks.groups.iter().enumerate() {
        let Some(group) = *group else { continue };
        of_cpus[group] += if is_cpu(node) { work[node] / whole } else { 0.0 };
        roots[group] += branch.roots[node] / whole;
    }
    let least = of_cpus.iter().copied().fold(f64::INFINITY, f64::min);
    let most = of_cpus.iter().copied().fold(0.0, f64::max);
    let is_even = branch.exchange == Exchange::Star && most - least < SPLIT_COST;
    if !is_even || least < SPLIT_COST || most > 1.0 - SPLIT_COST {
        return None;
    }
    let of_role = |cpu: bool| {
        let hubs: Vec<f64> = (0..work.len())
            .map(|node| if is_cpu(node) == cpu { work[node] } else { 0.0 })
            .collect();
        let part = |(node, hub): (usize, &f64)| racks.groups[node].map_or(0.0, |g| hub * roots[g]);
        let roots = hubs.iter().enumerate().map(part).collect();
        let levels = vec![GroupLevel { hubs, ..racks.clone() }];
        Branch { exchange: Exchange::Star, roots, levels }
    };
    Some([of_role(true), of_role(false)])
}

/// For how much of the model each machine is its rack's hub, the root included; `None` if a machine
/// outside all racks with workers is a root.
fn hub_work(topology: &Topology, branch: &Branch, racks: &GroupLevel) -> Option<Vec<f64>> {
    let whole: f64 = branch.roots.iter().sum();
    let count = topology.trunks_gbps().len();
    let (mut roots, mut hubs) = (vec![0.0; count], vec![0.0; count]);
    for (node, &rack) in topology.rack_of().iter().enumerate() {
        if racks.groups[node].is_none() && branch.roots[node] > 0.0 {
            return None;
        }
        roots[rack] += branch.roots[node];
        hubs[rack] += racks.hubs[node];
    }
    let work = |(node, &rack): (usize, &usize)| {
        let of_hubs = if hubs[rack] > 0.0 { racks.hubs[node] / hubs[rack] } else { 0.0 };
        branch.roots[node] + (whole - roots[rack]) * of_hubs
    };
    Some(topology.rack_of().iter().enumerate().map(work).collect())
}

impl Shape {
    /// As messages and reports call it.
    fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Sharded => "rack hubs, sharded exchange",
            Self::Ring => "rack hubs, ring",
        }
    }
}

/// A solution of the linear program as trees, with what they really cost.
struct Outcome {
    trees: TreePlan,
    loads: Loads,
    seconds: f64,
}

impl Outcome {
    fn new((topology, hubs): (&Topology, Hubs), solution: &Solution) -> Self {
        let total: f64 = solution.shapes.iter().filter(|part| **part > LEAST_SHAPE).sum();
        let mut trees = TreePlan::default();
        let mut loads = Loads::none(topology);
        for shape in SHAPES {
            let part = solution.shapes[shape as usize] / total;
            if part > LEAST_SHAPE {
                let branch = branch((topology, hubs), &solution.machines, shape, part);
                loads.add(&branch_loads(topology, &branch));
                trees.branches.push(branch);
            }
        }
        let seconds = seconds(topology, &loads);
        Self { trees, loads, seconds }
    }
}

impl Loads {
    fn none(topology: &Topology) -> Self {
        Self {
            machines: vec![0.0; topology.cluster().machines().len()],
            trunks: vec![0.0; topology.trunks_gbps().len()],
        }
    }

    fn add(&mut self, other: &Self) {
        let machines = self.machines.iter_mut().zip(&other.machines);
        let trunks = self.trunks.iter_mut().zip(&other.trunks);
        machines.chain(trunks).for_each(|(all, one)| *all += one);
    }
}

/// The trees of one shape, of which the fraction `part` of the model has some.
fn branch(
    (topology, hubs): (&Topology, Hubs),
    machines: &[Parts],
    shape: Shape,
    part: f64,
) -> Branch {
    let groups = groups(topology, hubs);
    let rounded = |value: f64| if value < LEAST_PART * part { 0.0 } else { value };
    let of = |each: fn(&Parts) -> f64| -> Vec<f64> {
        machines.iter().map(|parts| rounded(each(parts))).collect()
    };
    let mut roots = match shape {
        Shape::Flat => of(|parts| parts.flat),
        Shape::Sharded => of(|parts| parts.root),
        Shape::Ring => of(|parts| parts.ring),
    };
    let total: f64 = roots.iter().sum();
    roots.iter_mut().for_each(|root| *root *= part / total);
    if shape == Shape::Flat {
        return Branch { roots, ..Branch::default() };
    }
    let hubs = match shape {
        Shape::Sharded => of(|parts| parts.hub),
        Shape::Flat | Shape::Ring => of(|parts| parts.ring),
    };
    let exchange = match shape {
        Shape::Ring => Exchange::Ring,
        Shape::Flat | Shape::Sharded => Exchange::Star,
    };
    let racks = GroupLevel { level: Level::Rack, groups, hubs };
    Branch { exchange, levels: vec![with_hubs(racks, &roots)], roots }
}

/// A rack in which every partition has its root needs no other hub; its roots stand for them.
fn with_hubs(mut racks: GroupLevel, roots: &[f64]) -> GroupLevel {
    let count = racks.groups.iter().flatten().max().map_or(0, |last| last + 1);
    let mut some = vec![false; count];
    for (group, hub) in racks.groups.iter().zip(&racks.hubs) {
        if let Some(group) = group {
            some[*group] |= *hub > 0.0;
        }
    }
    for (node, group) in racks.groups.iter().enumerate() {
        if group.is_some_and(|group| !some[group]) {
            racks.hubs[node] = roots[node];
        }
    }
    racks
}

/// The rack of each machine that may be a hub, among those with GPU machines.
fn groups(topology: &Topology, hubs: Hubs) -> Vec<Option<usize>> {
    let mut next = 0;
    let number = |workers: u32| {
        (workers > 0).then(|| {
            next += 1;
            next - 1
        })
    };
    let numbers: Vec<_> = topology.workers_by_rack().into_iter().map(number).collect();
    let machines = topology.cluster().machines().iter().zip(topology.rack_of());
    let may_be = |role: crate::Role| role == crate::Role::Gpu || hubs == Hubs::Any;
    machines.map(|(machine, &rack)| numbers[rack].filter(|_| may_be(machine.role))).collect()
}

/// The time of flat trees with these shares for a gigabit, trunks included.
pub(crate) fn flat_seconds(topology: &Topology, shares: &[f64]) -> f64 {
    seconds(topology, &flat_loads(topology, shares))
}

/// What flat trees with these shares put on links.
fn flat_loads(topology: &Topology, shares: &[f64]) -> Loads {
    let n = f64::from(topology.cluster().workers());
    let mut roots = vec![0.0; topology.trunks_gbps().len()];
    for (share, &rack) in shares.iter().zip(topology.rack_of()) {
        roots[rack] += share;
    }
    let whole: f64 = shares.iter().sum();
    let trunk = |(own, root): (u32, f64)| {
        let own = f64::from(own);
        whole * own + (n - 2.0 * own) * root
    };
    let trunks = topology.workers_by_rack().into_iter().zip(roots).map(trunk).collect();
    // Of all shares together a machine sends once what it is not the root of.
    let machines = link_loads(topology.cluster(), shares);
    let missing = 1.0 - whole;
    let machines = machines.into_iter().zip(topology.cluster().machines());
    let of_part = |(load, machine): (f64, &crate::Machine)| match machine.role {
        crate::Role::Gpu => load - missing,
        crate::Role::Cpu => load,
    };
    Loads { machines: machines.map(of_part).collect(), trunks }
}

/// What the trees of a branch put on links, by counting edges: a hub has one for each other GPU
/// machine of its rack and one up, or in a ring two less those at its ends; a root has one for each
/// other rack.
fn branch_loads(topology: &Topology, branch: &Branch) -> Loads {
    let Some(racks) = branch.levels.first() else { return flat_loads(topology, &branch.roots) };
    let by_rack = topology.workers_by_rack();
    let sources = by_rack.iter().filter(|workers| **workers > 0).count() as f64;
    let whole: f64 = branch.roots.iter().sum();
    let mut roots = vec![0.0; by_rack.len()];
    // Of those that are the hub of their rack as well.
    let mut root_hubs = vec![0.0; by_rack.len()];
    let mut hubs = vec![0.0; by_rack.len()];
    for (node, &rack) in topology.rack_of().iter().enumerate() {
        roots[rack] += branch.roots[node];
        if racks.groups[node].is_some() {
            root_hubs[rack] += branch.roots[node];
            hubs[rack] += racks.hubs[node];
        }
    }
    let ring = branch.exchange == Exchange::Ring;
    let mean = 2.0 * (sources - 1.0) / sources;
    let machine = |(node, machine): (usize, &crate::Machine)| {
        let rack = topology.rack_of()[node];
        let gpu = machine.role == crate::Role::Gpu;
        let root = branch.roots[node];
        if racks.groups[node].is_none() {
            return root * sources;
        }
        let others = f64::from(by_rack[rack]) - f64::from(u8::from(gpu));
        // Roots elsewhere leave this much of the rack's work to other hubs.
        let hub = (whole - root_hubs[rack]) * racks.hubs[node] / hubs[rack];
        let leaf = if gpu { whole - root - hub } else { 0.0 };
        match ring {
            true => leaf + (hub + root) * (others + mean),
            false => leaf + hub * (others + 1.0) + root * (others + sources - 1.0),
        }
    };
    let trunk = |(&workers, root): (&u32, f64)| match (workers, ring) {
        (0, _) => root * sources,
        (_, true) => whole * mean,
        (_, false) => whole + (sources - 2.0) * root,
    };
    Loads {
        machines: topology.cluster().machines().iter().enumerate().map(machine).collect(),
        trunks: by_rack.iter().zip(roots).map(trunk).collect(),
    }
}

/// The time of the slowest link for a gigabit.
fn seconds(topology: &Topology, loads: &Loads) -> f64 {
    let machines = topology.cluster().machines().iter().map(|machine| machine.bandwidth_gbps);
    let machines = loads.machines.iter().zip(machines).map(|(load, gbps)| load / gbps);
    let trunks = loads.trunks.iter().zip(topology.trunks_gbps()).map(|(load, gbps)| load / gbps);
    let core = topology.core_gbps().map(|gbps| loads.trunks.iter().sum::<f64>() / gbps);
    machines.chain(trunks).chain(core).fold(0.0, f64::max)
}
