//! The types of reduction trees, and the ways through one.

/// How far contributions have been added, from the leaves of a reduction tree to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Devices below one PCIe switch or on one NVLink island.
    DeviceGroup,
    /// Workers that share a network interface: a machine, or one of its NUMA nodes.
    Machine,
    /// Machines below one switch, whose uplink they share.
    Rack,
    /// All contributions: the sum is the result.
    Root,
}

/// How the aggregates of the outermost groups reach the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Each to the root. As roots differ by partition, all groups share the work: a sharded
    /// exchange, and without groups the flat tree.
    #[default]
    Star,
    /// From hub to hub, in the order of groups, ending in the root's: a ring, cut at the root.
    Ring,
}

/// The nodes of each group of a level, and how often each is its group's hub.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLevel {
    /// What the groups are; below [`Level::Root`].
    pub level: Level,
    /// The group of each node, counted from zero; none for nodes that contribute nothing there.
    /// Groups of a level lie within groups of the next outer one.
    pub groups: Vec<Option<usize>>,
    /// How often each node is its group's hub, relative to the others of the group, where the group
    /// holds neither the root nor an outer hub.
    pub hubs: Vec<f64>,
}

/// Trees of one shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Branch {
    /// How aggregates of the outermost level reach the root.
    pub exchange: Exchange,
    /// How often each node is the root, relative to all nodes of all branches.
    pub roots: Vec<f64>,
    /// The levels between leaves and root, inner ones first.
    pub levels: Vec<GroupLevel>,
}

/// Which reduction trees partitions have, and in which proportion.
///
/// ```
/// use sumpter_plan::{Branch, Exchange, GroupLevel, Level, TreeDealer, TreePlan};
///
/// // Two racks of two machines: each partition is added in both racks, then in one of them.
/// let racks = GroupLevel {
///     level: Level::Rack,
///     groups: vec![Some(0), Some(0), Some(1), Some(1)],
///     hubs: vec![1.0; 4],
/// };
/// let branch = Branch { exchange: Exchange::Star, roots: vec![1.0; 4], levels: vec![racks] };
/// let plan = TreePlan { branches: vec![branch] };
/// let tree = TreeDealer::new(&plan, 4096)?.deal(4096);
/// assert_eq!((tree.root, &tree.hubs), (0, &vec![vec![0, 2]]));
/// // Node 3 sends to its rack's hub, which sends to the root.
/// let path: Vec<_> = plan.path(&tree, 3).map(|edge| (edge.to, edge.level)).collect();
/// assert_eq!(path, [(2, Level::Rack), (0, Level::Root)]);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TreePlan {
    /// The shapes in use.
    pub branches: Vec<Branch>,
}

/// The reduction tree of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReductionTree {
    /// Its shape, an index of [`TreePlan::branches`].
    pub branch: usize,
    /// The node that makes the result.
    pub root: usize,
    /// For each level of the branch, the hub of each group.
    pub hubs: Vec<Vec<usize>>,
}

/// A hop towards the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The node that receives and adds.
    pub to: usize,
    /// What it adds there.
    pub level: Level,
}

impl TreePlan {
    /// Flat trees: each node is the root of partitions in proportion to its weight.
    #[must_use]
    pub fn flat(weights: Vec<f64>) -> Self {
        let branch = Branch { roots: weights, ..Branch::default() };
        Self { branches: vec![branch] }
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.branches.first().map_or(0, |branch| branch.roots.len())
    }

    /// Where a node sends what it has: its contribution if it is a leaf, the aggregate if it is a
    /// hub. None for the root.
    #[must_use]
    pub fn parent(&self, tree: &ReductionTree, node: usize) -> Option<Edge> {
        let branch = &self.branches[tree.branch];
        let mut outermost = None;
        for (level, hubs) in branch.levels.iter().zip(&tree.hubs) {
            let Some(group) = level.groups[node] else { continue };
            if hubs[group] != node {
                return Some(Edge { to: hubs[group], level: level.level });
            }
            outermost = Some((group, hubs));
        }
        let to = match (branch.exchange, outermost) {
            (Exchange::Ring, Some((group, hubs))) => hubs[(group + 1) % hubs.len()],
            (Exchange::Star, _) | (Exchange::Ring, None) => tree.root,
        };
        (node != tree.root).then_some(Edge { to, level: Level::Root })
    }

    /// The hops from a node to the root.
    pub fn path<'a>(
        &'a self,
        tree: &'a ReductionTree,
        node: usize,
    ) -> impl Iterator<Item = Edge> + 'a {
        let first = self.parent(tree, node);
        std::iter::successors(first, |edge| self.parent(tree, edge.to))
    }

    /// What each node has to send and receive, each way, of a partition to which
    /// `contributors` contribute: one for each edge of the tree that it is an end of.
    #[must_use]
    pub fn degrees(&self, tree: &ReductionTree, contributors: &[usize]) -> Vec<usize> {
        let mut degrees = vec![0; self.nodes()];
        let mut sends = vec![false; self.nodes()];
        for &leaf in contributors {
            let mut node = leaf;
            while let Some(edge) = self.parent(tree, node).filter(|_| !sends[node]) {
                sends[node] = true;
                degrees[node] += 1;
                degrees[edge.to] += 1;
                node = edge.to;
            }
        }
        degrees
    }

    /// The plan for the servers of machines, given one for machines that has no level of its own
    /// for them: `servers` is the number on each machine. A machine's part is spread evenly over
    /// its servers, and where workers of one machine contribute, one of them is its hub: the root
    /// or its rack's hub if that is on the machine, else each as often as the others. `works` says
    /// whether a machine's servers are those of workers.
    ///
    /// ```
    /// use sumpter_plan::{Level, TreeDealer, TreePlan};
    ///
    /// // Two machines with two workers each.
    /// let plan = TreePlan::flat(vec![1.0, 1.0]).on_servers(&[2, 2], |_| true);
    /// let mut dealer = TreeDealer::new(&plan, 4096)?;
    /// let trees: Vec<_> = (0..4).map(|_| dealer.deal(4096)).collect();
    /// let hubs: Vec<_> = trees.iter().map(|tree| (tree.root, tree.hubs[0].clone())).collect();
    /// let expected = [(0, vec![0, 2]), (1, vec![1, 3]), (2, vec![0, 2]), (3, vec![1, 3])];
    /// assert_eq!(hubs, expected);
    /// # Ok::<(), sumpter_plan::PlanError>(())
    /// ```
    #[must_use]
    pub fn on_servers(&self, servers: &[u32], works: impl Fn(usize) -> bool) -> Self {
        let machines: Vec<usize> =
            servers.iter().enumerate().flat_map(|(at, &n)| (0..n).map(move |_| at)).collect();
        let even = |weights: &[f64]| {
            machines.iter().map(|&at| weights[at] / f64::from(servers[at])).collect()
        };
        let mut numbers = vec![None; servers.len()];
        for (number, at) in
            (0..servers.len()).filter(|&at| works(at) && servers[at] > 0).enumerate()
        {
            numbers[at] = Some(number);
        }
        let shared = (0..servers.len()).any(|at| numbers[at].is_some() && servers[at] > 1);
        let own = shared.then(|| GroupLevel {
            level: Level::Machine,
            groups: machines.iter().map(|&at| numbers[at]).collect(),
            hubs: vec![1.0; machines.len()],
        });
        let outer = |level: &GroupLevel| GroupLevel {
            level: level.level,
            groups: machines.iter().map(|&at| level.groups[at]).collect(),
            hubs: even(&level.hubs),
        };
        let branch = |branch: &Branch| Branch {
            exchange: branch.exchange,
            roots: even(&branch.roots),
            levels: own.iter().cloned().chain(branch.levels.iter().map(outer)).collect(),
        };
        Self { branches: self.branches.iter().map(branch).collect() }
    }
}
