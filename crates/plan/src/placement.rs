//! Where every partition of every tensor is summed: the placement that all workers derive alike.
//!
//! A tensor is cut into partitions of one size (the last may be smaller), in the order in which
//! they are sent: what the plan allows, halved until every server gets its share of this tensor
//! to within a few percent, or not below what [`Placement::cut_to`] says. What the plan allows
//! leaves room in the credit ([`largest_partition`]). A [`TreeDealer`] gives each a reduction tree,
//! whose root is its server; on every server a [`LaneAssigner`] gives each to a lane.
//!
//! Each size has a dealer of its own. A dealer lets every stretch of its stream deviate by two of
//! its largest partitions; were there one for all, a tensor that is cut finely would still be
//! dealt out in runs as long as the largest partition that the plan allows, and leave links idle
//! for as long. As sizes are halves of each other, all dealers together stay within twice the
//! largest.
//!
//! Invariant: the outcome is a pure function of the plan and of the sizes of the tensors placed so
//! far.

use std::collections::HashMap;

use crate::policy::Dealing;
use crate::{LaneAssigner, PlanError, ReductionTree, TreeDealer, TreePlan};

/// Partition sizes are multiples of this, a cache line, so that no element of any dtype and no
/// vector register straddles two partitions of an aligned tensor.
pub const PARTITION_ALIGN_BYTES: u64 = 64;

/// Partitions of a tensor for each server that sums, where [`even_partition`] allows it. A server's
/// share of a tensor is off by up to one partition, so of an even share by up to 1/256.
const PARTITIONS_PER_SERVER: u64 = 256;

/// The least of them, as far as the smallest size allows it. Dealing evens the shares of many
/// tensors; so many keep the links busy with one.
const LEAST_PARTITIONS_PER_SERVER: u64 = 8;

/// Below this, frames and system calls cost more than finer shares gain.
const SMALLEST_PARTITION_BYTES: u64 = 32 << 10;

/// Partitions that a credit has room for, so that each of several servers has something to receive.
const PARTITIONS_IN_CREDIT: u64 = 8;

/// Most lanes of one server: more than any machine has cores, few enough to allocate.
const MAX_LANES: u32 = 4096;

/// One epoch's servers, reduction trees and partition size.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The epoch that this plan is; every change of plan is a new one.
    pub epoch: u64,
    /// Largest size of a partition; a positive multiple of [`PARTITION_ALIGN_BYTES`]. Tensors are
    /// cut finer where the shares of many servers ask for it.
    pub partition_bytes: u64,
    /// The number of lanes of each server, in the order by which [`PartitionPlace::server`] counts
    /// servers.
    pub lanes: Vec<u32>,
    /// The reduction trees, over servers. Flat ones give each server its part of the work, as
    /// [`server_weights`](crate::server_weights) does.
    pub trees: TreePlan,
    /// How partitions are given to servers.
    pub dealing: Dealing,
}

/// One partition of a tensor and who sums it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionPlace {
    /// Where it starts in the tensor.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The server that makes the result: the root of its tree.
    pub server: usize,
    /// Lane on that server.
    pub lane: usize,
    /// Its reduction tree, of [`Placement::trees`].
    pub tree: usize,
}

/// Places tensors one after another, in the order of the tensor table.
///
/// ```
/// use sumpter_plan::{Dealing, Placement, Plan, TreePlan};
///
/// let (trees, dealing) = (TreePlan::flat(vec![1.0; 2]), Dealing::Balanced);
/// let plan = Plan { epoch: 1, partition_bytes: 4096, lanes: vec![2; 2], trees, dealing };
/// let mut placement = Placement::new(&plan)?;
/// let places = placement.place(10_000);
/// assert_eq!(places.iter().map(|place| place.bytes).collect::<Vec<_>>(), [4096, 4096, 1808]);
/// assert_ne!(places[0].server, places[1].server);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    epoch: u64,
    partition_bytes: u64,
    /// Down to which size partitions are halved for even shares.
    even_bytes: u64,
    /// Servers that get a share.
    summing: u64,
    /// By how often the plan's partition size was halved; one for all if it does not matter.
    dealers: Vec<TreeDealer>,
    lanes: Vec<LaneAssigner>,
    /// Every tree that a partition has, once.
    trees: Vec<ReductionTree>,
    numbers: HashMap<ReductionTree, usize>,
}

/// The sizes that partitions may have, each half of the one before.
fn sizes(largest: u64) -> impl Iterator<Item = u64> {
    let fits = |size: &u64| {
        *size >= SMALLEST_PARTITION_BYTES && size.is_multiple_of(PARTITION_ALIGN_BYTES)
    };
    std::iter::successors(Some(largest), move |size| Some(size / 2).filter(fits))
}

/// The largest size of a partition beside a credit, for [`Plan::partition_bytes`]: what was asked
/// for, halved until the credit has room for eight, but not below the smallest size.
///
/// Workers begin with partitions in one order, `credit_bytes` ahead of what they have sent. With
/// fewer partitions in that, all send to the same one or two servers at once, whose links are
/// crowded while others idle.
///
/// ```
/// use sumpter_plan::largest_partition;
///
/// assert_eq!(largest_partition(1 << 20, 2 << 20), 256 << 10);
/// assert_eq!(largest_partition(1 << 20, 1 << 10), 32 << 10);
/// assert_eq!(largest_partition(4096, 1 << 10), 4096);
/// ```
#[must_use]
pub fn largest_partition(partition_bytes: u64, credit_bytes: u64) -> u64 {
    let room = credit_bytes / PARTITIONS_IN_CREDIT;
    let fits = |size: &u64| *size <= room;
    sizes(partition_bytes)
        .find(fits)
        .or_else(|| sizes(partition_bytes).last())
        .unwrap_or(partition_bytes)
}

/// Down to which size partitions are halved so that the shares of servers are even, if `largest` is
/// their largest size and the slowest link carries `gbps` Gb/s, for [`Placement::cut_to`]: a
/// quarter of the largest. Where no speed is known, or processes share a machine, processors are
/// the limit, and for these fewer partitions count for more than the last percent of evenness.
///
/// ```
/// use sumpter_plan::even_partition;
///
/// assert_eq!(even_partition(128 << 10, Some(10.0)), 32 << 10);
/// assert_eq!(even_partition(128 << 10, None), 128 << 10);
/// assert_eq!(even_partition(256 << 10, Some(f64::INFINITY)), 256 << 10);
/// ```
#[must_use]
pub fn even_partition(largest: u64, gbps: Option<f64>) -> u64 {
    if gbps.is_some_and(f64::is_finite) { largest / 4 } else { largest }
}

/// How large the partitions of a tensor are: the largest size, halved while that makes the shares
/// of the servers that sum more even. Each partition costs processor time, which is what limits
/// fast links, and there the largest size is large (`default_credit`): sizes below `even`
/// ([`even_partition`]) are for tensors of which a server would get fewer than eight, down to 32
/// KiB.
///
/// ```
/// use sumpter_plan::partition_of;
///
/// assert_eq!(partition_of(1 << 20, (128 << 10, 32 << 10), 4), 32 << 10);
/// assert_eq!(partition_of(16 << 20, (256 << 10, 64 << 10), 4), 64 << 10);
/// assert_eq!(partition_of(16 << 20, (256 << 10, 256 << 10), 4), 256 << 10);
/// assert_eq!(partition_of(512 << 20, (128 << 10, 32 << 10), 4), 128 << 10);
/// assert_eq!(partition_of(1 << 20, (4096, 1024), 4), 4096);
/// ```
#[must_use]
pub fn partition_of(tensor_bytes: u64, (largest, even): (u64, u64), summing: u64) -> u64 {
    let cut = |each: u64| tensor_bytes / (each * summing.max(1));
    let even = cut(PARTITIONS_PER_SERVER).max(even).min(cut(LEAST_PARTITIONS_PER_SERVER));
    let fits = |size: &u64| *size <= even;
    sizes(largest).find(fits).or_else(|| sizes(largest).last()).unwrap_or(largest)
}

impl Placement {
    /// Starts an epoch with nothing placed.
    ///
    /// # Errors
    /// A partition size that is zero or unaligned, a server without lanes, trees over another
    /// number of servers, or some that [`TreeDealer::new`] refuses.
    pub fn new(plan: &Plan) -> Result<Self, PlanError> {
        let size = plan.partition_bytes;
        if size == 0 || !size.is_multiple_of(PARTITION_ALIGN_BYTES) {
            let expected = format!("a positive multiple of {PARTITION_ALIGN_BYTES}");
            return Err(PlanError::field("partition_bytes", size, expected));
        }
        for (index, lanes) in plan.lanes.iter().enumerate() {
            if !(1..=MAX_LANES).contains(lanes) {
                let field = format!("lanes of server {index}");
                let expected = format!("a number from 1 to {MAX_LANES}");
                return Err(PlanError::field(field, lanes, expected));
            }
        }
        if plan.trees.nodes() != plan.lanes.len() {
            let expected = format!("one for each of {} servers", plan.lanes.len());
            return Err(PlanError::field("nodes of the trees", plan.trees.nodes(), expected));
        }
        let summing = |server: &usize| plan.trees.branches.iter().any(|b| b.roots[*server] > 0.0);
        let dealer = |size| TreeDealer::with(&plan.trees, size, plan.dealing);
        let dealers = match plan.dealing {
            Dealing::Balanced => sizes(size).map(dealer).collect::<Result<_, _>>()?,
            // A hash counts partitions, whatever their size.
            Dealing::Hashed => vec![dealer(size)?],
        };
        let lanes = plan.lanes.iter().map(|lanes| LaneAssigner::new(*lanes as usize));
        Ok(Self {
            epoch: plan.epoch,
            partition_bytes: size,
            even_bytes: size / 4,
            summing: (0..plan.lanes.len()).filter(summing).count() as u64,
            dealers,
            lanes: lanes.collect(),
            trees: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    /// With partitions halved down to `even_bytes` so that the shares of servers are even, in place
    /// of a quarter of the largest size; see [`even_partition`].
    #[must_use]
    pub fn cut_to(self, even_bytes: u64) -> Self {
        Self { even_bytes, ..self }
    }

    /// With the lanes of a server at interfaces of their own, as in [`LaneAssigner::over`]: its
    /// partitions are dealt over those first. `lanes` has one entry for each of its lanes.
    #[must_use]
    pub fn over_interfaces(mut self, server: usize, lanes: &[(usize, u32)]) -> Self {
        debug_assert_eq!(self.lanes[server].loads().len(), lanes.len());
        self.lanes[server] = LaneAssigner::over(lanes);
        self
    }

    /// The epoch of the plan.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Cuts the next tensor into partitions and places them, in order of offset. A tensor of no
    /// bytes has no partitions.
    pub fn place(&mut self, tensor_bytes: u64) -> Vec<PartitionPlace> {
        self.place_blocks(tensor_bytes, PARTITION_ALIGN_BYTES)
    }

    /// The same of a tensor whose blocks of so many bytes are not cut: every partition begins with
    /// one. Its partitions are smaller by less than a block, or as large as one.
    pub fn place_blocks(&mut self, tensor_bytes: u64, block_bytes: u64) -> Vec<PartitionPlace> {
        let mut places = Vec::new();
        let mut offset = 0;
        let (halvings, size) = self.partition_size(tensor_bytes);
        let block = block_bytes.max(1);
        let size = (size / block * block).max(block);
        while offset < tensor_bytes {
            let bytes = size.min(tensor_bytes - offset);
            let dealer = halvings.min(self.dealers.len() - 1);
            let tree = self.dealers[dealer].deal(bytes);
            let server = tree.root;
            let tree = self.number(tree);
            places.push(PartitionPlace { offset, bytes, server, lane: 0, tree });
            offset += bytes;
        }
        self.assign_lanes(&mut places);
        places
    }

    /// The trees of the partitions placed so far, each once. They are few: groups of contributors
    /// are made for each once.
    #[must_use]
    pub fn trees(&self) -> &[ReductionTree] {
        &self.trees
    }

    fn number(&mut self, tree: ReductionTree) -> usize {
        if let Some(number) = self.numbers.get(&tree) {
            return *number;
        }
        self.trees.push(tree.clone());
        self.numbers.insert(tree, self.trees.len() - 1);
        self.trees.len() - 1
    }

    /// How large the partitions of a tensor are, and by how many halvings.
    fn partition_size(&self, tensor_bytes: u64) -> (usize, u64) {
        let sizes_of = (self.partition_bytes, self.even_bytes);
        let size = partition_of(tensor_bytes, sizes_of, self.summing);
        (sizes(self.partition_bytes).take_while(|larger| *larger > size).count(), size)
    }

    /// Gives every server's partitions of this tensor to its lanes, as one set.
    fn assign_lanes(&mut self, places: &mut [PartitionPlace]) {
        let mut by_server: Vec<&mut PartitionPlace> = places.iter_mut().collect();
        by_server.sort_by_key(|place| place.server);
        let mut sizes = Vec::new();
        for group in by_server.chunk_by_mut(|a, b| a.server == b.server) {
            sizes.clear();
            sizes.extend(group.iter().map(|place| place.bytes));
            let lanes = self.lanes[group[0].server].assign(&sizes);
            for (place, lane) in group.iter_mut().zip(lanes) {
                place.lane = lane;
            }
        }
    }
}
