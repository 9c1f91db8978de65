//! Planning for Sumpter: who sums how much, which partition goes where, and what it costs.
//!
//! Pure functions of the cluster's shape. No I/O, no clock, no threads, no environment: the same
//! question has the same answer on every machine, which is what lets all workers derive one
//! placement without talking to each other.
//!
//! # The question
//!
//! `n` GPU machines train a model of `M` bytes; `k` CPU machines help to sum. Machine `i` sums a
//! share of the model. Each way, the link of a GPU machine that sums the share `x` carries
//!
//! ```text
//! (M - x)  its gradient, but for what it sums itself     +  (n-1) x  the others' part of its share
//!    =  M + (n-2) x
//! ```
//!
//! and the link of a CPU machine that sums `y` carries `n y`. The best shares keep every link
//! busy for the same time. They contain the familiar architectures: with `k = 0` this is ring
//! all-reduce, with `k = n` a non-colocated parameter server, and in between it beats both.
//!
//! | | shares | time |
//! |---|---|---|
//! | `n = 1` | the machine itself | none: nothing travels |
//! | `k <= n`, `D = n^2 + kn - 2k` | CPU `2(n-1)/D`, GPU `(n-k)/D` | `2n(n-1)M / (D B)` |
//! | `k > n` | CPU `1/k`, GPU nothing | `M/B` |
//! | all-reduce | GPU `1/n` | `2(n-1)M / (n B)` |
//! | parameter server | CPU `1/k` | `max(M/B, nM/(kB))` |
//!
//! So the gain is `D/n^2` over all-reduce and `D/(2k(n-1))` over the parameter server (BytePS,
//! OSDI'20, section 4 and Theorem 1). With two GPU machines it is one: no helper helps there.
//!
//! # The parts
//!
//! - [`Uniform`]: the closed form, for interfaces of one bandwidth.
//! - [`Cluster`], [`shares`], [`server_weights`]: any bandwidths, by water-filling.
//! - [`link_loads`], [`predict`], [`predict_trees`]: bytes on every link, times and gains.
//! - [`Dealer`]: deals a stream of partitions out in given shares; every prefix is within one
//!   partition of exact and every window within two, in bytes.
//! - [`HashedDealer`]: the same by hash, to compare with.
//! - [`lane_interfaces`], [`lpt`], [`LaneAssigner`]: lanes of a server to its network interfaces,
//!   and partitions to its lanes.
//! - [`Topology`], [`plan_trees`]: racks, and the reduction trees that suit their trunks.
//! - [`TreePlan`], [`TreeDealer`], [`ReductionTree`]: the tree of each partition.
//! - [`shards`]: what each rank of a device group holds of a tensor.
//! - [`Plan`], [`Placement`]: all of it for the tensors of a job.
//! - [`Devices`], [`reduce_inside`], [`inside`]: what a reduction puts on links inside a machine.
//! - [`RackModel`], [`MinimumBandwidth`], [`Prices`], [`offers`]: what PHub's paper computes, and
//!   what a cluster's throughput costs.
//! - [`Compression`], [`Choice`]: whether a codec pays for a tensor, and why.
//! - [`PlanRequest`], [`PlanReport`], [`report_json`]: the data of `sumpter plan`.
//!
//! # From machines to places
//!
//! ```
//! use sumpter_plan::{Dealing, Machine, Placement, Plan, Role, TreePlan, server_weights};
//!
//! let gpu = Machine { role: Role::Gpu, bandwidth_gbps: 25.0, servers: 1 };
//! let cpu = Machine { role: Role::Cpu, bandwidth_gbps: 25.0, servers: 1 };
//! let weights = server_weights(&[gpu, gpu, gpu, gpu, cpu, cpu])?;
//!
//! let (trees, dealing) = (TreePlan::flat(weights), Dealing::Balanced);
//! let plan = Plan { epoch: 1, partition_bytes: 32 << 10, lanes: vec![4; 6], trees, dealing };
//! let mut placement = Placement::new(&plan)?;
//!
//! // A tensor of 20 partitions: the CPU machines sum six each, the GPU machines two.
//! let mut partitions = [0; 6];
//! for place in placement.place(20 * (32 << 10)) {
//!     partitions[place.server] += 1;
//! }
//! assert_eq!(partitions, [2, 2, 2, 2, 6, 6]);
//! # Ok::<(), sumpter_plan::PlanError>(())
//! ```

#![forbid(unsafe_code)]

mod compression;
mod costs;
mod credit;
mod dealer;
mod devices;
mod error;
mod hashed;
mod lanes;
mod loops;
mod machine;
mod phub;
mod placement;
mod policy;
mod predict;
mod report;
mod request;
mod shards;
mod shares;
mod topology;
mod trees;
mod uniform;

pub use compression::{
    Candidate, Choice, CodedTensor, Compression, Cores, LEAST_CODED_BYTES, LEAST_GAIN, RoundTime,
    Why,
};
pub use costs::{LinkPrice, Offer, Prices, offers};
pub use credit::default_credit;
pub use dealer::Dealer;
pub use devices::{
    Device, DeviceKind, Devices, Inside, InsideLink, InsideReport, LinkLoad, LocalChoice,
    LocalReduction, NvLink, all_reduce_s, assisted_s, best_split, cpu_link_load, gpu_link_load,
    inside, local_reduction, reduce_inside, ring_gbps,
};
pub use error::PlanError;
pub use hashed::HashedDealer;
pub use lanes::{LaneAssigner, lane_interfaces, lpt};
pub use loops::{Cuts, LEAST_PART_BYTES, LoopPart, loop_parts};
pub use machine::{BANDWIDTH_GBPS, Cluster, MAX_MACHINES, Machine, Role};
pub use phub::{MinimumBandwidth, RackModel, RackTimes, Reading};
pub use placement::{
    PARTITION_ALIGN_BYTES, PartitionPlace, Placement, Plan, even_partition, largest_partition,
    partition_of,
};
pub use policy::{Architecture, Dealing};
pub use predict::{MAX_MODEL_BYTES, Prediction, predict, predict_trees};
pub use report::{
    InsideMachine, JobTrees, MachineReport, NicReport, OptimizerReport, PlanReport, RackCase,
    RackDecision, RackReport, TreesPart, TreesReport, TreesTime, report_json,
};
pub use request::{
    MachineList, NamedMachine, NamedRack, Nic, PlanRequest, parse_machines, parse_prices,
};
pub use shards::{SMALL_SHARD_BYTES, Shard, shard_cut, shard_turn, shards};
pub use shares::{link_loads, server_weights, shares};
pub use topology::{Topology, racks_by_name};
pub use trees::{
    Alternative, Branch, Edge, Exchange, GroupLevel, Hubs, Level, Loads, PlannedTrees,
    ReductionTree, TreeDealer, TreeOptions, TreePlan, hubs_by_role, plan_job_trees, plan_trees,
    plan_trees_with,
};
pub use uniform::Uniform;
