//! Where a worker sends its part of each partition: to the lane that reduces it, or to the hub of
//! its machine or rack. What changes a variable asynchronously waits for no other worker of the
//! machine.

use sumpter_engine::{Carrier, Client, OpMemory, Place};
use sumpter_plan::Architecture;
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, TensorSpec};
use sumpter_wire::{Route as SourceRoute, Tier};

use crate::cluster::Cluster;
use crate::cluster::deal::Planned;
use crate::cluster::lanes::{Owner, PlacedPartition, lane_of_hub};

/// The client of a worker: its own tensors, and what it passes on for its machine.
pub(crate) type WorkerClient = Client<OpMemory<TensorMemory>>;

/// Where a worker's part in a tensor's rounds goes.
#[derive(Debug)]
pub(crate) struct Route {
    pub tier: Tier,
    pub places: Vec<Place>,
    /// The partitions whose subtotals this worker passes on, if any, and between which tiers.
    pub passed_on: Vec<((Tier, Tier), Vec<Place>)>,
}

/// Who takes part in the sums of some partitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Participants<'a> {
    /// Whose plan places them: of these ranks, or of all if there are none.
    pub planned: &'a [Rank],
    /// Who lives of those.
    pub members: &'a [Rank],
    /// How many ranks' contributions are in the results, those included that others have added.
    pub contributors: u32,
}

/// Where partitions of a tensor go, as `rank` sees it; tells the client who takes part.
pub(crate) fn route(
    cluster: &mut Cluster,
    client: &mut WorkerClient,
    rank: Rank,
    (spec, among): (&TensorSpec, Participants<'_>),
    partitions: &[(u32, PlacedPartition)],
) -> Route {
    let Participants { planned, members, contributors } = among;
    // With nothing summed elsewhere, a link carries each contribution to a share once, and no sum.
    let shared = spec.collective == Collective::ReduceScatter
        && cluster.policy.architecture != Architecture::Ps;
    let share = shared.then(|| cluster.lane_of(spec.root)).flatten();
    let partitions = partitions.iter().map(|(number, partition)| {
        (*number, PlacedPartition { root: share.unwrap_or(partition.root), ..*partition })
    });
    if !spec.staleness.is_synchronous() {
        return route_alone(client, rank, members, partitions);
    }
    // Two workers of a machine cannot mirror what one of them passes on.
    let is_mirrored_twice = spec.collective == Collective::Update && cluster.policy.elastic;
    let are_direct = is_mirrored_twice && !cluster.are_apart(members);
    let workers_may_fail = cluster.policy.workers_may_fail;
    let rooted = spec.collective.has_root().then_some(spec.root);
    let at_root = rooted.and_then(|rank| cluster.lane_of(rank));
    let (hubs, lanes) = cluster.hubs_of(Planned::tensor(spec, planned));
    let Some(hubs) = hubs.filter(|_| !are_direct) else {
        return route_direct(client, (members, contributors), partitions);
    };
    let beside = rooted.map_or(&[][..], |rank| hubs.machine_of(rank)).to_vec();
    let tiers = hubs.tiers(rank);
    let passes = tiers.windows(2).map(|pair| ((pair[0], pair[1]), Vec::new()));
    let (mut places, mut passed_on) = (Vec::new(), passes.collect::<Vec<_>>());
    for (number, PlacedPartition { root, offset, bytes, tree, variable, carrier }) in partitions {
        let owner = lanes[root.0].owner;
        let mirrors = variable.map(|variable| variable.mirrors.into_iter().flatten());
        let mirrors: Vec<Rank> = mirrors.into_iter().flatten().collect();
        let chosen = match mirrors.is_empty() {
            true => hubs.next(owner, rooted, tree),
            false => hubs.of_mirrors(&mirrors),
        };
        // What a lane beside the root would sum, the root's own sums: that saves a hop.
        let own = match owner {
            Owner::Worker(rank) if beside.contains(&rank) => at_root,
            _ => None,
        };
        let outermost = own.unwrap_or(root);
        let keeps = workers_may_fail || matches!(lanes[outermost.0].owner, Owner::Server(_));
        let mut place = |tier: Tier| {
            let (members, hub) = hubs.group(tier, rank, &chosen);
            let at = |hub| lane_of_hub(lanes, hub, (outermost, number)).expect("a hub has a lane");
            let lane = hub.map_or(outermost, at);
            let group = client.define_group(&members);
            // A server does not know the tensor: the members say where its subtotal goes.
            let route = hub.filter(|hub| hubs.is_server(*hub)).map(|rank| {
                let (hubs, _) = hubs.group(Tier::Root, rank, &chosen);
                let (lane, group) = (outermost.0 as u32, client.define_group(&hubs));
                SourceRoute { lane, group, rank, keeps }
            });
            let place = Place::new(lane, number, (offset, bytes), group, contributors);
            let carrier = carrier.filter(|_| tier == Tier::Root);
            let carrier =
                carrier.and_then(|carrier| carrier_of(&members, hubs.machine_of(carrier)));
            (Place { variable, route, carrier, ..place }, hub)
        };
        let (first, mut hub) = place(tiers[0]);
        places.push(first);
        for ((_, to), places) in &mut passed_on {
            if hub != Some(rank) {
                break;
            }
            let (next, further) = place(*to);
            places.push(next);
            hub = further;
        }
    }
    Route { tier: tiers[0], places, passed_on }
}

/// The same where all contribute to the lanes that make the results.
fn route_direct(
    client: &mut WorkerClient,
    (members, contributors): (&[Rank], u32),
    partitions: impl Iterator<Item = (u32, PlacedPartition)>,
) -> Route {
    let group = client.define_group(members);
    let place = |(number, PlacedPartition { root, offset, bytes, variable, carrier, .. })| {
        let place = Place::new(root, number, (offset, bytes), group, contributors);
        let carrier = carrier.and_then(|carrier| carrier_of(members, &[carrier]));
        Place { variable, carrier, ..place }
    };
    let (tier, places) = (Tier::Root, partitions.map(place).collect());
    Route { tier, places, passed_on: Vec::new() }
}

/// The member of a group that is one of these workers; any if none is, since they have left.
fn carrier_of(group: &[Rank], workers: &[Rank]) -> Option<Carrier> {
    let found = group.iter().find(|rank| workers.contains(rank));
    let rank = *found.or_else(|| group.first())?;
    Some(Carrier { rank, contributions: group.len() as u32 })
}

/// The same of a variable that each worker changes alone.
fn route_alone(
    client: &mut WorkerClient,
    rank: Rank,
    members: &[Rank],
    partitions: impl Iterator<Item = (u32, PlacedPartition)>,
) -> Route {
    let (group, contributors) = (client.define_group(&[rank]), members.len() as u32);
    let place = |(number, PlacedPartition { root, offset, bytes, variable, .. })| {
        let place = Place::new(root, number, (offset, bytes), group, contributors);
        Place { variable, ..place }
    };
    let takes_part = members.contains(&rank);
    let places = partitions.filter(|_| takes_part).map(place).collect();
    Route { tier: Tier::Worker, places, passed_on: Vec::new() }
}
