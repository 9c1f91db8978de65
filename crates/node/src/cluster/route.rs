//! Where a worker sends its part of each partition: to the lane that reduces it, or to its
//! machine's hub.

use sumpter_engine::{Client, OpMemory, Place};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, TensorSpec};
use sumpter_wire::Tier;

use crate::cluster::Cluster;
use crate::cluster::lanes::PlacedPartition;

/// The client of a worker: its own tensors, and what it passes on for its machine.
pub(crate) type WorkerClient = Client<OpMemory<TensorMemory>>;

/// Where a worker's part in a tensor's rounds goes.
#[derive(Debug)]
pub(crate) struct Route {
    pub tier: Tier,
    pub places: Vec<Place>,
    /// The partitions whose subtotals this worker passes on, if any.
    pub passed_on: Vec<Place>,
}

/// Whether the workers of a machine contribute to a tensor together.
fn is_whole(spec: &TensorSpec) -> bool {
    spec.ranks.is_empty() && matches!(spec.collective, Collective::AllReduce | Collective::Barrier)
}

/// Where the partitions of a tensor go, as `rank` sees it; tells the client who takes part.
pub(crate) fn route(
    cluster: &mut Cluster,
    client: &mut WorkerClient,
    rank: Rank,
    (spec, members): (&TensorSpec, &[Rank]),
    partitions: &[(u32, PlacedPartition)],
) -> Route {
    let (partitions, contributors) = (partitions.iter().copied(), members.len() as u32);
    let Some(mut hubs) = cluster.hubs.take_if(|_| is_whole(spec)) else {
        let group = client.define_group(members);
        let place = |(number, PlacedPartition { root, offset, bytes })| {
            Place::new(root, number, (offset, bytes), group, contributors)
        };
        let (tier, places) = (Tier::Root, partitions.map(place).collect());
        return Route { tier, places, passed_on: Vec::new() };
    };
    let machine = hubs.machine_of(rank).to_vec();
    let tier = if machine.len() > 1 { Tier::Machine } else { Tier::Root };
    let inside = client.define_group(&machine);
    let (mut places, mut passed_on) = (Vec::new(), Vec::new());
    for (number, PlacedPartition { root, offset, bytes }) in partitions {
        let owners = hubs.next(cluster.lanes[root.0].owner);
        let group = client.define_group(&owners);
        let up = Place::new(root, number, (offset, bytes), group, contributors);
        let Some(hub) = owners.iter().find(|o| tier == Tier::Machine && machine.contains(o)) else {
            places.push(up);
            continue;
        };
        let lane = cluster.lane_of(*hub).expect("every worker has a lane");
        places.push(Place { lane, group: inside, ..up });
        if *hub == rank {
            passed_on.push(up);
        }
    }
    cluster.hubs = Some(hubs);
    Route { tier, places, passed_on }
}
