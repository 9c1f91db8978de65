//! A worker between two epochs: everything stops, every worker tells what it has, and under the new
//! plan interrupted rounds are completed and all others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sumpter_config::Config;
use sumpter_endpoint::ConnId;
use sumpter_engine::{
    Lane, Layout, Place, Progress, REPAIRED, Relay, Repair, RepairSpec, Request, Supply,
    VariablePlace, first_passed_on, repairs, retained_rounds,
};
use sumpter_membership::ClusterView;
use sumpter_types::{Collective, Rank, Round, TensorId, TensorSpec};
use sumpter_wire::Tier;

use crate::cluster::Cluster;
use crate::cluster::lanes::PlacedPartition;
use crate::cluster::mirrors::among_mirrors;
use crate::cluster::route::{Route, route};
use crate::run::progress;
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
        progress: &[(Rank, Vec<u8>)],
        resident: Option<ConnId>,
    ) -> Result<(), String> {
        let mut all = BTreeMap::new();
        for (rank, bytes) in progress {
            let decoded = progress::decode(bytes);
            all.insert(*rank, decoded.map_err(|error| format!("rank {rank}: {error}"))?);
        }
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
            if self.orphaned(id).is_none()
                && let Err(lost) = self.choose_mirrors(id, &all)
            {
                self.variables.remove(&id);
                self.lost.insert(id, lost);
            }
            if let Some(reason) = self.orphaned(id) {
                self.client.fail_tensor(id, &reason);
                self.client.lay_out(id, Tier::Root, Layout::default());
                continue;
            }
            let spec = self.repair_spec(id);
            let repairs = repairs(id, &spec, &all).map_err(|lost| lost.to_string())?;
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
        RepairSpec {
            bytes: bytes(spec),
            collective: spec.collective.on_wire(),
            root: spec.root,
            members: self.members(spec),
            workers_may_fail: self.cluster.policy.workers_may_fail,
            mirrors,
            staleness: spec.staleness,
        }
    }

    /// Tells the client and the hub where a tensor is summed in this epoch. Returns what this
    /// worker is to pass on of rounds that were interrupted.
    pub(crate) fn lay_out(&mut self, id: TensorId, repairs: &[Repair]) -> Vec<Relayed> {
        let spec = self.table.spec(id).expect("a tensor of the table").clone();
        let everyone = self.members(&spec);
        let mut partitions = self.cluster.place(&spec.ranks, bytes(&spec) as u64);
        if spec.collective == Collective::Update {
            partitions = among_mirrors(&partitions, &self.mirrors(id), spec.staleness);
        }
        let numbered: Vec<_> = (0..).zip(partitions.iter().copied()).collect();
        let whole = self.route(&spec, &everyone, &numbered);
        let tier = whole.tier;
        let mut layout = Layout::new(whole.places);
        let whole = whole.passed_on.into_iter();
        let mut passed_on: Vec<((Tier, Tier), Layout)> =
            whole.map(|(tiers, places)| (tiers, Layout::new(places))).collect();
        let (mut number, mut relayed) = (REPAIRED, Vec::new());
        for repair in repairs {
            let mut places = Vec::new();
            let mut again: Vec<((Tier, Tier), Vec<Place>)> = Vec::new();
            for (span, members) in &repair.sums {
                // The root of a broadcast relays to those who lack it.
                if spec.collective == Collective::Broadcast {
                    let contributors = members.len() as u32;
                    let relay = Relay {
                        span: span.clone(),
                        holder: spec.root,
                        contributors,
                        members: members.clone(),
                    };
                    places.extend(self.relay(&relay, &mut number));
                    continue;
                }
                let parts = cut(&partitions, span, &mut number);
                let route = self.route(&spec, members, &parts);
                if members.contains(&self.rank) {
                    places.extend(route.places);
                    for (tiers, more) in route.passed_on {
                        match again.iter_mut().find(|(known, _)| *known == tiers) {
                            Some((_, places)) => places.extend(more),
                            None => again.push((tiers, more)),
                        }
                    }
                }
            }
            let mut held = Vec::new();
            for relay in &repair.relays {
                let into = if relay.holder == self.rank { &mut held } else { &mut places };
                into.extend(self.relay(relay, &mut number));
            }
            layout.repaired.push((repair.round, places.into()));
            for (tiers, again) in again.into_iter().filter(|(_, again)| !again.is_empty()) {
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

    fn route(
        &mut self,
        spec: &TensorSpec,
        members: &[Rank],
        partitions: &[(u32, PlacedPartition)],
    ) -> Route {
        route(&mut self.cluster, &mut self.client, self.rank, (spec, members), partitions)
    }

    /// This worker's part in a relay from the lane of its holder, in pieces of a partition's size.
    fn relay(&mut self, relay: &Relay, number: &mut u32) -> Vec<Place> {
        let mut places = Vec::new();
        let piece = self.cluster.policy.partition_bytes as usize;
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

/// The parts of a tensor's partitions that are in `span`.
fn cut(
    partitions: &[PlacedPartition],
    span: &Range<usize>,
    number: &mut u32,
) -> Vec<(u32, PlacedPartition)> {
    let mut parts = Vec::new();
    for PlacedPartition { root, offset, bytes, tree, variable } in partitions {
        let (start, end) = (span.start.max(*offset), span.end.min(offset + bytes));
        if start < end {
            let within = (start - offset) as u32;
            let variable = variable.map(|part| VariablePlace { offset: within, ..part });
            let (root, tree, bytes) = (*root, *tree, end - start);
            let part = PlacedPartition { root, offset: start, bytes, tree, variable };
            parts.push((*number, part));
            *number += 1;
        }
    }
    parts
}

fn bytes(spec: &TensorSpec) -> usize {
    (spec.elements().unwrap_or(0) * spec.dtype.size() as u64) as usize
}

fn relay_request(tensor: TensorId, spec: &TensorSpec) -> Request {
    Request {
        tensor,
        tier: Tier::Root,
        collective: spec.collective.on_wire(),
        dtype: spec.dtype,
        op: spec.op,
        root: spec.root,
        average: false,
        priority: i32::MAX,
        supply: Supply::Whole,
        call: None,
        update: None,
    }
}
