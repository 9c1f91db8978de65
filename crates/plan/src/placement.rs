//! Where every partition of every tensor is summed: the placement that all workers derive alike.
//!
//! A tensor is cut into partitions of one size (the last may be smaller), in the order in which
//! they are sent: what the plan allows, halved until every server gets its share of this tensor
//! to within a few percent. What the plan allows leaves room in the credit
//! ([`largest_partition`]). A [`Dealer`] gives each to a server, on every server a
//! [`LaneAssigner`] gives each to a lane.
//!
//! Each size has a dealer of its own. A dealer lets every stretch of its stream deviate by two of
//! its largest partitions; were there one for all, a tensor that is cut finely would still be
//! dealt out in runs as long as the largest partition that the plan allows, and leave links idle
//! for as long. As sizes are halves of each other, all dealers together stay within twice the
//! largest.
//!
//! Invariant: the outcome is a pure function of the plan and of the sizes of the tensors placed so
//! far.

use crate::policy::Dealing;
use crate::{Dealer, HashedDealer, LaneAssigner, PlanError};

/// Partition sizes are multiples of this, a cache line, so that no element of any dtype and no
/// vector register straddles two partitions of an aligned tensor.
pub const PARTITION_ALIGN_BYTES: u64 = 64;

/// Partitions of a tensor for each server that sums. A server's share of a tensor is off by up to
/// one partition, so of an even share by up to 1/256.
const PARTITIONS_PER_SERVER: u64 = 256;

/// Below this, frames and system calls cost more than finer shares gain.
const SMALLEST_PARTITION_BYTES: u64 = 32 << 10;

/// Partitions that a credit has room for, so that each of several servers has something to receive.
const PARTITIONS_IN_CREDIT: u64 = 8;

/// Most lanes of one server: more than any machine has cores, few enough to allocate.
const MAX_LANES: u32 = 4096;

/// One epoch's servers and partition size.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The epoch that this plan is; every change of plan is a new one.
    pub epoch: u64,
    /// Largest size of a partition; a positive multiple of [`PARTITION_ALIGN_BYTES`]. Tensors are
    /// cut finer where the shares of many servers ask for it.
    pub partition_bytes: u64,
    /// The servers, in the order by which [`PartitionPlace::server`] counts them.
    pub servers: Vec<PlannedServer>,
    /// How partitions are given to servers.
    pub dealing: Dealing,
}

/// A server as a plan knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedServer {
    /// Its part of the work, relative to the others, as
    /// [`server_weights`](crate::server_weights) gives it.
    pub weight: f64,
    /// Its number of lanes.
    pub lanes: u32,
}

/// One partition of a tensor and who sums it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionPlace {
    /// Where it starts in the tensor.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// Index of its server in [`Plan::servers`].
    pub server: usize,
    /// Lane on that server.
    pub lane: usize,
}

/// Places tensors one after another, in the order of the tensor table.
///
/// ```
/// use sumpter_plan::{Dealing, Placement, Plan, PlannedServer};
///
/// let server = PlannedServer { weight: 1.0, lanes: 2 };
/// let (servers, dealing) = (vec![server, server], Dealing::Balanced);
/// let plan = Plan { epoch: 1, partition_bytes: 4096, servers, dealing };
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
    /// Servers that get a share.
    summing: u64,
    dealing: AnyDealer,
    lanes: Vec<LaneAssigner>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AnyDealer {
    /// By how often the plan's partition size was halved.
    Balanced(Vec<Dealer>),
    Hashed(HashedDealer),
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

/// How large the partitions of a tensor are: the largest size, halved while that makes the shares
/// of the servers that sum more even, but not below the smallest size.
///
/// ```
/// use sumpter_plan::partition_of;
///
/// assert_eq!(partition_of(1 << 20, 128 << 10, 4), 32 << 10);
/// assert_eq!(partition_of(512 << 20, 128 << 10, 4), 128 << 10);
/// assert_eq!(partition_of(1 << 20, 4096, 4), 4096);
/// ```
#[must_use]
pub fn partition_of(tensor_bytes: u64, largest: u64, summing: u64) -> u64 {
    let even = tensor_bytes / (PARTITIONS_PER_SERVER * summing.max(1));
    let fits = |size: &u64| *size <= even;
    sizes(largest).find(fits).or_else(|| sizes(largest).last()).unwrap_or(largest)
}

impl Placement {
    /// Starts an epoch with nothing placed.
    ///
    /// # Errors
    /// A partition size that is zero or unaligned, a server without lanes, or weights that
    /// [`Dealer::new`] refuses.
    pub fn new(plan: &Plan) -> Result<Self, PlanError> {
        let size = plan.partition_bytes;
        if size == 0 || !size.is_multiple_of(PARTITION_ALIGN_BYTES) {
            let expected = format!("a positive multiple of {PARTITION_ALIGN_BYTES}");
            return Err(PlanError::field("partition_bytes", size, expected));
        }
        for (index, server) in plan.servers.iter().enumerate() {
            if !(1..=MAX_LANES).contains(&server.lanes) {
                let field = format!("lanes of server {index}");
                let expected = format!("a number from 1 to {MAX_LANES}");
                return Err(PlanError::field(field, server.lanes, expected));
            }
        }
        let weights: Vec<f64> = plan.servers.iter().map(|server| server.weight).collect();
        let lanes = plan.servers.iter().map(|server| LaneAssigner::new(server.lanes as usize));
        Ok(Self {
            epoch: plan.epoch,
            partition_bytes: size,
            summing: weights.iter().filter(|weight| **weight > 0.0).count() as u64,
            dealing: match plan.dealing {
                Dealing::Balanced => {
                    let dealers = sizes(size).map(|size| Dealer::new(&weights, size));
                    AnyDealer::Balanced(dealers.collect::<Result<_, _>>()?)
                }
                Dealing::Hashed => AnyDealer::Hashed(HashedDealer::new(&weights)?),
            },
            lanes: lanes.collect(),
        })
    }

    /// The epoch of the plan.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Cuts the next tensor into partitions and places them, in order of offset. A tensor of no
    /// bytes has no partitions.
    pub fn place(&mut self, tensor_bytes: u64) -> Vec<PartitionPlace> {
        let mut places = Vec::new();
        let mut offset = 0;
        let (halvings, size) = self.partition_size(tensor_bytes);
        while offset < tensor_bytes {
            let bytes = size.min(tensor_bytes - offset);
            let server = match &mut self.dealing {
                AnyDealer::Balanced(dealers) => dealers[halvings].deal(bytes),
                AnyDealer::Hashed(dealer) => dealer.deal(),
            };
            places.push(PartitionPlace { offset, bytes, server, lane: 0 });
            offset += bytes;
        }
        self.assign_lanes(&mut places);
        places
    }

    /// How large the partitions of a tensor are, and by how many halvings.
    fn partition_size(&self, tensor_bytes: u64) -> (usize, u64) {
        let size = partition_of(tensor_bytes, self.partition_bytes, self.summing);
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
