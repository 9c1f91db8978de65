//! Reduction trees: where the contributions to a partition are added, level by level.
//!
//! The *nodes* of a tree are what can add: machines for the planner, servers (the lanes of one
//! process) for a job. Contributions go from the leaves to the *root*, and the result takes the
//! same way back; so an edge of the tree costs both of its ends one partition each way. Between
//! leaf and root, nodes may be grouped by [`Level`]: the *hub* of a group adds what the group's
//! members contribute and passes the aggregate on. A group costs its uplink one partition, however
//! many members it has.
//!
//! ```text
//! root            server 5                         Level::Root: adds the aggregates of racks
//!                 ▲      ▲
//! rack hubs       0      5 (the root itself)       Level::Rack: adds those of machines
//!              ▲  ▲  ▲   ▲  ▲
//! machines     0  1  2   3  4                      Level::Machine: adds those of its workers
//! ```
//!
//! A [`TreePlan`] says with which weights trees are chosen, a [`TreeDealer`] chooses the tree of
//! each partition. Without levels the tree is flat: every node sends to the root, which is the
//! parameter server, all-reduce and everything between ([`shares`](crate::shares)). One level of
//! machines is the aggregation of workers that share a link. One level of racks is the rack-scale
//! hub of PHub (SoCC'18, section 3.4).
//!
//! Invariants: every node has at most one parent in a tree; a group that holds the root, or the
//! hub of an outer level, has it as its own hub, so no aggregate makes a hop inside its group.

mod deal;
mod model;
mod plan;
mod tree;

pub use deal::TreeDealer;
pub use model::Hubs;
pub use plan::{
    Alternative, Loads, PlannedTrees, TreeOptions, hubs_by_role, plan_job_trees, plan_trees,
    plan_trees_with,
};
pub(crate) use plan::{flat_seconds, plan_trees_and_job};
pub use tree::{Branch, Edge, Exchange, GroupLevel, Level, ReductionTree, TreePlan};
