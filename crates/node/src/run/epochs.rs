//! A worker between two epochs: everything stops, every worker tells what it has, and under the new
//! plan interrupted rounds are completed and all others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sumpter_config::Config;
use sumpter_endpoint::ConnId;
use sumpter_engine::{
    Lane, Layout, Place, Progress, REPAIRED, Relay, Repair, RepairSpec, Request, VariablePlace,
    first_passed_on, has_failed, repairs, retained_rounds,
};
use sumpter_membership::ClusterView;
use sumpter_types::{Collective, Rank, Round, TensorId, TensorSpec};
use sumpter_wire::Tier;

use crate::cluster::Cluster;
use crate::cluster::carriers::{among_carriers, carriers};
use crate::cluster::deal::Planned;
use crate::cluster::lanes::PlacedPartition;
use crate::cluster::mirrors::among_mirrors;
use crate::cluster::route::{Participants, Route, route};
use crate::cluster::shards::Stretch;
use crate::codecs::{block_bytes, check_chunks};
use crate::run::table::{Tensor, relay_request};
use crate::run::{WorkerRun, client_settings, policy};

/// What this worker passes on of a round.
type Relayed = (Request, Round, Vec<Place>);

impl WorkerRun {
    /// Stops; what this worker has.
    pub(crate) fn suspend(&mut self, lane: &mut Lane) -> Progress {
        self.suspended = true;
        self.own = None;
        // No lane is dialed before the new plan is there.
        self.dials.clear();
        let beside = (lane, self.view.job);
        let tensors = self.table.len();
        self.recovery.suspend(&mut self.client, &mut self.hub, beside, tensors)
    }

    /// Goes on under a new plan, with what all workers have.
    pub(crate) fn resume(
        &mut self,
        config: &Config,
        view: ClusterView,
        all: &BTreeMap<Rank, Progress>,
        resident: Option<ConnId>,
    ) -> Result<(), String> {
        // Sizes and credit are part of the plan: they change where all have stopped.
        let config = config.changed(&view.changes).map_err(|error| error.to_string())?;
        self.cluster =
            Cluster::new(&view, policy(&config, &view)).map_err(|error| error.to_string())?;
        let settings = client_settings(&config, &view);
        self.view = view;
        self.suspended = false;
        self.connect(settings, resident);
        let (mut relays, mut retained) = (Vec::new(), BTreeSet::new());
        self.mirrors.clear();
        for id in (0..self.table.len() as u32).map(TensorId) {
            if has_failed(id, all) {
                self.client.fail_tensor(id, "it has failed on another rank");
                self.client.lay_out(id, Tier::Root, Layout::default());
                continue;
            }
            if self.orphaned(id).is_none()
                && let Err(lost) = self.choose_mirrors(id, all)
            {
                self.variables.remove(&id);
                self.lost.insert(id, lost);
            }
            if let Some(reason) = self.orphaned(id) {
                self.client.fail_tensor(id, &reason);
                self.client.lay_out(id, Tier::Root, Layout::default());
                continue;
            }
            let (spec, chunk_bytes) = (self.table.spec(id), self.cluster.policy.chunk_bytes);
            let spec = spec.expect("a tensor of the table");
            if let Err(reason) = check_chunks(spec, chunk_bytes, self.rank) {
                let name = spec.name.clone();
                self.fail_tensor(&name, &reason);
                self.client.lay_out(id, Tier::Root, Layout::default());
                continue;
            }
            let spec = self.repair_spec(id);
            let repairs = repairs(id, &spec, all).map_err(|lost| lost.to_string())?;
            retained.extend(retained_rounds(id, &spec, &repairs));
            relays.extend(self.lay_out(id, &repairs));
        }
        self.recovery.resume(&mut self.client, relays, retained);
        let variables: Vec<TensorId> = self.variables.iter().copied().collect();
        variables.into_iter().for_each(|id| self.fill(id));
        Ok(())
    }

    /// What repairs must know of a tensor.
    fn repair_spec(&mut self, id: TensorId) -> RepairSpec {
        let mirrors = self.mirrors(id);
        let spec = self.table.spec(id).expect("a tensor of the table");
        let members = self.members(spec);
        let shards = match spec.sharded {
            true => self.groups.stretches(spec, &members),
            false => Vec::new(),
        };
        RepairSpec {
            bytes: bytes(spec),
            collective: spec.collective.on_wire(),
            root: spec.root,
            members,
            workers_may_fail: self.cluster.policy.workers_may_fail,
            mirrors,
            staleness: spec.staleness,
            shards: shards.into_iter().map(|of| (of.bytes, of.members)).collect(),
        }
    }

    /// Tells the client and the hub where a tensor is summed in this epoch. Returns what this
    /// worker is to pass on of rounds that were interrupted.
    pub(crate) fn lay_out(&mut self, id: TensorId, repairs: &[Repair]) -> Vec<Relayed> {
        let coding = self.choose_coding(id);
        let Tensor { spec, .. } = self.table.tensor(id).expect("a tensor of the table");
        let (spec, encoded) = (spec.clone(), coding.is_some());
        let everyone = self.members(&spec);
        let stretches = self.groups.stretches(&spec, &everyone);
        let start = self.groups.own(&spec, &everyone, self.rank).start;
        let mut partitions = self.place((&spec, encoded), &stretches);
        if spec.collective == Collective::Update {
            partitions = among_mirrors(&partitions, &self.mirrors(id), spec.staleness);
        }
        if let Some(coding) = &coding {
            partitions = among_carriers(partitions, &carriers(coding, spec.dtype, &everyone));
        }
        let numbered: Vec<_> = (0..).zip(partitions.iter().copied()).collect();
        let (mut whole, contributors) = (OwnPart::default(), everyone.len() as u32);
        for stretch in &stretches {
            let Stretch { bytes, planned, members } = stretch;
            let within = |(_, part): &&(u32, PlacedPartition)| {
                stretches.len() == 1 || bytes.contains(&part.offset)
            };
            let parts: Vec<_> = numbered.iter().filter(within).copied().collect();
            if !spec.sharded || members.contains(&self.rank) {
                let among = Participants { planned, members, contributors, encoded };
                whole.add(self.route(&spec, among, &parts));
            }
        }
        let tier = whole.tier.unwrap_or(Tier::Root);
        // Within a machine contributions are plain.
        let coding_to = |to: Tier| coding.clone().filter(|_| to == Tier::Root);
        let places = Layout::new(placed_in(whole.places, start));
        let mut layout = Layout { start, ..places }.coded(coding_to(tier));
        let whole = whole.passed_on.into_iter();
        let pass_on = |((from, to), places): ((Tier, Tier), Vec<Place>)| {
            ((from, to), Layout::new(places).coded(coding_to(to)))
        };
        let mut passed_on: Vec<((Tier, Tier), Layout)> = whole.map(pass_on).collect();
        let (mut number, mut relayed) = (REPAIRED, Vec::new());
        for repair in repairs {
            let of = (&spec, encoded);
            let mut again = self.sum_again(of, (&stretches, &partitions), repair, &mut number);
            let mut held = Vec::new();
            for relay in &repair.relays {
                let into = if relay.holder == self.rank { &mut held } else { &mut again.places };
                into.extend(self.relay(&spec, relay, &mut number));
            }
            layout.repaired.push((repair.round, placed_in(again.places, start).into()));
            for (tiers, again) in again.passed_on.into_iter().filter(|(_, of)| !of.is_empty()) {
                if let Some((_, layout)) = passed_on.iter_mut().find(|(of, _)| *of == tiers) {
                    layout.repaired.push((repair.round, again.into()));
                }
            }
            if !held.is_empty() {
                relayed.push((relay_request(id, &spec), repair.round, held));
            }
        }
        let standing = self.client.standing(id);
        self.client.lay_out(id, tier, layout);
        self.table.move_to(id, tier);
        for (tiers, layout) in passed_on.into_iter().filter(|(_, of)| !of.places.is_empty()) {
            let first = first_passed_on(&layout, repairs, &standing);
            self.hub.register(&mut self.client, id, tiers, layout, first);
        }
        relayed
    }

    /// The partitions of a tensor, each within a stretch.
    fn place(
        &mut self,
        (spec, encoded): (&TensorSpec, bool),
        stretches: &[Stretch],
    ) -> Vec<PlacedPartition> {
        let mut partitions = Vec::new();
        for Stretch { bytes, planned, .. } in stretches {
            let planned = Planned::tensor(spec, planned, encoded);
            let placed = self.cluster.place(planned, bytes.len() as u64);
            let at = |part: PlacedPartition| PlacedPartition {
                offset: bytes.start + part.offset,
                ..part
            };
            partitions.extend(placed.into_iter().map(at));
        }
        partitions
    }

    /// This worker's part in what is summed again of an interrupted round, but for what it relays.
    fn sum_again(
        &mut self,
        (spec, encoded): (&TensorSpec, bool),
        (stretches, partitions): (&[Stretch], &[PlacedPartition]),
        repair: &Repair,
        number: &mut u32,
    ) -> OwnPart {
        let mut own = OwnPart::default();
        for (span, members) in &repair.sums {
            // The root of a broadcast relays to those who lack it.
            if spec.collective == Collective::Broadcast {
                let (span, members) = (span.clone(), members.clone());
                let contributors = members.len() as u32;
                let relay = Relay { span, holder: spec.root, contributors, members };
                own.places.extend(self.relay(spec, &relay, number));
                continue;
            }
            let parts = cut(partitions, span, number);
            let within = |of: &&Stretch| of.bytes.contains(&span.start);
            let Some(Stretch { planned, .. }) = stretches.iter().find(within) else { continue };
            let contributors = match spec.sharded {
                true => self.members(spec).len(),
                false => members.len(),
            };
            let contributors = contributors as u32;
            let takes_part = members.contains(&self.rank);
            if takes_part || !spec.sharded {
                let among = Participants { planned, members, contributors, encoded };
                let route = self.route(spec, among, &parts);
                if takes_part {
                    own.add(route);
                }
            }
        }
        own
    }

    fn route(
        &mut self,
        spec: &TensorSpec,
        among: Participants<'_>,
        partitions: &[(u32, PlacedPartition)],
    ) -> Route {
        route(&mut self.cluster, &mut self.client, self.rank, (spec, among), partitions)
    }

    /// This worker's part in a relay from the lane of its holder, in pieces of a partition's size.
    fn relay(&mut self, spec: &TensorSpec, relay: &Relay, number: &mut u32) -> Vec<Place> {
        let mut places = Vec::new();
        let piece = self.cluster.policy.partition_bytes as usize;
        let piece = block_bytes(spec).map_or(piece, |block| piece.next_multiple_of(block as usize));
        let group = self.client.define_group(&relay.members);
        let lane = self.cluster.lane_of(relay.holder).expect("every worker has a lane");
        for start in relay.span.clone().step_by(piece) {
            let bytes = piece.min(relay.span.end - start);
            let place = Place::new(lane, *number, (start, bytes), group, relay.contributors);
            *number += 1;
            if relay.members.contains(&self.rank) {
                places.push(Place { relay: Some(relay.holder), ..place });
            }
        }
        places
    }
}

/// This worker's part in some partitions of a tensor.
#[derive(Debug, Default)]
struct OwnPart {
    /// That of its own operations; nothing if it has no part.
    tier: Option<Tier>,
    places: Vec<Place>,
    /// What it passes on, and between which tiers.
    passed_on: Vec<((Tier, Tier), Vec<Place>)>,
}

impl OwnPart {
    /// Adds its part in further partitions. The tiers of all are the same: what a device group
    /// holds has one holder in it, so a machine has equally many of each shard.
    fn add(&mut self, Route { tier, places, passed_on }: Route) {
        debug_assert!(self.tier.is_none_or(|known| known == tier), "{:?} and {tier:?}", self.tier);
        self.tier = Some(tier);
        self.places.extend(places);
        for (tiers, more) in passed_on {
            match self.passed_on.iter_mut().find(|(known, _)| *known == tiers) {
                Some((_, places)) => places.extend(more),
                None => self.passed_on.push((tiers, more)),
            }
        }
    }
}

/// Places in a memory that begins with this byte of the tensor.
fn placed_in(mut places: Vec<Place>, start: usize) -> Vec<Place> {
    places.iter_mut().for_each(|place| place.offset = place.origin - start);
    places
}

/// The parts of a tensor's partitions that are in `span`.
fn cut(
    partitions: &[PlacedPartition],
    span: &Range<usize>,
    number: &mut u32,
) -> Vec<(u32, PlacedPartition)> {
    let mut parts = Vec::new();
    for PlacedPartition { root, offset, bytes, tree, variable, carrier } in partitions {
        let (start, end) = (span.start.max(*offset), span.end.min(offset + bytes));
        if start < end {
            let within = (start - offset) as u32;
            let variable = variable.map(|part| VariablePlace { offset: within, ..part });
            let (root, tree, bytes, carrier) = (*root, *tree, end - start, *carrier);
            let part = PlacedPartition { root, offset: start, bytes, tree, variable, carrier };
            parts.push((*number, part));
            *number += 1;
        }
    }
    parts
}

fn bytes(spec: &TensorSpec) -> usize {
    (spec.elements().unwrap_or(0) * spec.dtype.size() as u64) as usize
}
