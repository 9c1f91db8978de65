//! Chooses the tree of each partition, in the order of transmission.
//!
//! Roots are dealt over all branches by one dealer, hubs by one for each group; so the bytes of
//! every root, and of every hub within its group, stay within one partition of exact
//! ([`Dealer`](crate::Dealer)). Where groups are alike, their dealers advance together: the third
//! machine of one rack is the hub beside the third of another, and there are few different trees.

use std::collections::HashSet;

use crate::policy::Dealing;
use crate::trees::tree::{Branch, Exchange, GroupLevel, Level, ReductionTree, TreePlan};
use crate::{Dealer, HashedDealer, PlanError};

/// Deals a stream of partitions out to reduction trees. Equal dealers fed equal sizes agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeDealer {
    nodes: usize,
    roots: AnyDealer,
    branches: Vec<Levels>,
}

/// The levels of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Levels(Vec<Groups>);

/// A level with a dealer for each group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Groups {
    groups: Vec<Option<usize>>,
    hubs: Vec<AnyDealer>,
    /// The nodes that the dealer of a group counts.
    members: Vec<Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AnyDealer {
    Balanced(Dealer),
    Hashed(HashedDealer),
}

impl AnyDealer {
    fn new(weights: &[f64], largest_bytes: u64, dealing: Dealing) -> Result<Self, PlanError> {
        Ok(match dealing {
            Dealing::Balanced => Self::Balanced(Dealer::new(weights, largest_bytes)?),
            Dealing::Hashed => Self::Hashed(HashedDealer::new(weights)?),
        })
    }

    fn deal(&mut self, bytes: u64) -> usize {
        match self {
            Self::Balanced(dealer) => dealer.deal(bytes),
            Self::Hashed(dealer) => dealer.deal(),
        }
    }
}

impl TreeDealer {
    /// A dealer for partitions of at most `largest_bytes`, in exact proportion.
    ///
    /// # Errors
    /// Weights that [`Dealer::new`] refuses, or levels that are no tree.
    pub fn new(plan: &TreePlan, largest_bytes: u64) -> Result<Self, PlanError> {
        Self::with(plan, largest_bytes, Dealing::Balanced)
    }

    pub(crate) fn with(
        plan: &TreePlan,
        largest_bytes: u64,
        dealing: Dealing,
    ) -> Result<Self, PlanError> {
        let nodes = plan.nodes();
        let roots: Vec<f64> = plan.branches.iter().flat_map(|b| &b.roots).copied().collect();
        let roots = AnyDealer::new(&roots, largest_bytes, dealing)?;
        let levels = |(number, branch)| {
            check(number, branch, nodes)?;
            let groups = branch.levels.iter().map(|level| {
                Groups::new(level, largest_bytes, dealing)
                    .map_err(|error| within(number, level.level, &error))
            });
            Ok(Levels(groups.collect::<Result<_, PlanError>>()?))
        };
        let branches: Result<_, _> = plan.branches.iter().enumerate().map(levels).collect();
        Ok(Self { nodes, roots, branches: branches? })
    }

    /// The tree of the next partition of the stream.
    pub fn deal(&mut self, bytes: u64) -> ReductionTree {
        let dealt = self.roots.deal(bytes);
        let (branch, root) = (dealt / self.nodes, dealt % self.nodes);
        let levels = &mut self.branches[branch].0;
        let mut hubs = vec![Vec::new(); levels.len()];
        // What is a hub further out, the root first, is the hub of its group further in.
        let mut outer = vec![root];
        for (level, hubs) in levels.iter_mut().zip(&mut hubs).rev() {
            let mut known = vec![None; level.hubs.len()];
            for &node in &outer {
                if let Some(group) = level.groups[node] {
                    known[group].get_or_insert(node);
                }
            }
            let groups = known.into_iter().zip(level.hubs.iter_mut().zip(&level.members));
            *hubs = groups
                .map(|(known, (dealer, members))| {
                    known.unwrap_or_else(|| members[dealer.deal(bytes)])
                })
                .collect();
            outer.extend(hubs.iter().copied());
        }
        ReductionTree { branch, root, hubs }
    }
}

impl Groups {
    fn new(level: &GroupLevel, largest_bytes: u64, dealing: Dealing) -> Result<Self, PlanError> {
        let count = level.groups.iter().flatten().max().map_or(0, |last| last + 1);
        let mut members = vec![Vec::new(); count];
        for (node, group) in level.groups.iter().enumerate() {
            if let Some(group) = group {
                members[*group].push(node);
            }
        }
        let dealer = |members: &Vec<usize>| {
            let weights: Vec<f64> = members.iter().map(|&node| level.hubs[node]).collect();
            AnyDealer::new(&weights, largest_bytes, dealing)
        };
        let hubs = members.iter().map(dealer).collect::<Result<_, _>>()?;
        Ok(Self { groups: level.groups.clone(), hubs, members })
    }
}

fn within(branch: usize, level: Level, error: &PlanError) -> PlanError {
    let field = format!("hubs of level {level:?} in branch {branch}");
    PlanError::field(field, error, "a weight for some member of every group")
}

/// Whether the levels of a branch are nested, of its number of nodes, and end in what its exchange
/// needs.
fn check(number: usize, branch: &Branch, nodes: usize) -> Result<(), PlanError> {
    let refuse = |what: &str, value: String, expected: &str| {
        Err(PlanError::field(format!("{what} of branch {number}"), value, expected))
    };
    if branch.roots.len() != nodes {
        return refuse("roots", branch.roots.len().to_string(), "one weight for each node");
    }
    let levels: Vec<Level> = branch.levels.iter().map(|level| level.level).collect();
    let ascending = levels.iter().chain([&Level::Root]).is_sorted_by(|inner, outer| inner < outer);
    if !ascending {
        return refuse("levels", format!("{levels:?}"), "inner ones first, each once, below Root");
    }
    for level in &branch.levels {
        if level.groups.len() != nodes || level.hubs.len() != nodes {
            let found = format!("for {} nodes", level.groups.len());
            return refuse("groups", found, "a group and a weight for each node");
        }
    }
    for pair in branch.levels.windows(2) {
        let inner = pair[0].groups.iter().zip(&pair[1].groups);
        let inner = inner.filter_map(|(inner, outer)| inner.map(|inner| (inner, outer)));
        let (all, distinct): (HashSet<_>, HashSet<_>) = inner.map(|at| (at, at.0)).unzip();
        if all.len() != distinct.len() {
            let found = format!("not nested from {:?} to {:?}", pair[0].level, pair[1].level);
            return refuse("groups", found, "each group within one of the next outer level");
        }
    }
    let outermost = branch.levels.last();
    let joined = |node: usize| outermost.is_some_and(|level| level.groups[node].is_some());
    let outside = (0..nodes).find(|&node| branch.roots[node] > 0.0 && !joined(node));
    match (branch.exchange, outside) {
        (Exchange::Ring, Some(node)) => {
            refuse("roots", format!("node {node}"), "members of the groups that the ring joins")
        }
        _ => Ok(()),
    }
}
