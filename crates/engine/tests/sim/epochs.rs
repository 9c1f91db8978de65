//! Changes of epoch in a simulated cluster: helpers die, come and go at any moment.

use super::*;
use crate::tensor::{Beside, Part};

impl World {
    /// A new epoch: some helpers are there, and every tensor is dealt out anew.
    pub(super) fn plan(&mut self, progress: &BTreeMap<Rank, Progress>) {
        let (n, lanes) = (self.workers.len(), self.lanes.len());
        let copies = self.copies();
        self.plans_at_once += 1;
        let on = self.machines().clone();
        self.epoch = Epoch(self.epoch.0 + 1);
        // Partitions are dealt out anew with every plan; chunks are what they were, or not.
        if self.epoch.0 > 1 && self.rng.bool() {
            let is_coded = self.tensors.iter().any(|tensor| tensor.codec.is_some());
            let unit = if is_coded { CODED_CHUNK_BYTES } else { 64 };
            self.chunk_bytes = unit * self.rng.u32(1..=8);
            self.report.resized += 1;
        }
        self.helpers = (n..lanes).filter(|_| self.rng.u32(0..4) > 0).collect();
        self.gone.clear();
        for lane in 0..lanes {
            self.know(lane);
        }
        let lanes: Vec<usize> = self.living().union(&self.helpers).copied().collect();
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            // With it, the order of additions must not depend on helpers.
            tensor.is_served = !self.deterministic;
            let dealt = tensor.deal(&mut self.rng, &lanes, (n, &on), (copies, progress));
            if let Err(lost) = dealt
                && self.lost.insert(index)
            {
                let guarded = self.guarded.contains(&index);
                assert!(!guarded || self.plans_at_once > 1, "{lost}: {tensor:?}");
                self.report.lost += 1;
            }
        }
    }

    /// How many workers mirror each stretch of a variable.
    fn copies(&self) -> usize {
        1 + usize::from(self.workers_may_fail)
    }

    /// What every worker is to mirror may be there: then each variable survives one change of epoch
    /// with the death of a worker. In one that follows before the mirrors are equal again, it may
    /// die with the one that has got further.
    fn note_guarded(&mut self) {
        let settled = |rank: &usize| {
            let Worker { client, progress, .. } = &self.workers[*rank];
            let ids = self.tensors.iter().map(|tensor| tensor.request.tensor);
            progress.is_none() && !ids.clone().any(|id| client.lacks_mirrored(id))
        };
        if self.living().iter().all(settled) {
            self.plans_at_once = 0;
            let twice = |tensor: &Tensor| tensor.mirrors.iter().all(|of| of.mirrors[1].is_some());
            let all = (0..).zip(&self.tensors).filter(|(_, tensor)| twice(tensor));
            self.guarded = all.map(|(index, _)| index).collect();
        }
    }

    /// Helpers and workers die or change, everyone stops at a moment of its own, tells what it has,
    /// and goes on in the next epoch.
    pub(super) fn change(&mut self) -> bool {
        self.changes_left -= 1;
        self.note_guarded();
        for helper in self.helpers.clone() {
            if self.rng.u32(0..3) == 0 {
                self.report.kills += 1;
                self.kill(helper);
            }
        }
        self.lose_a_worker();
        self.some_steps();
        self.fail_a_tensor();
        self.some_steps();
        loop {
            let mut ranks: Vec<usize> = self.living().iter().copied().collect();
            self.rng.shuffle(&mut ranks);
            for rank in &ranks {
                self.suspend(*rank);
                self.some_steps();
            }
            for helper in self.helpers.clone() {
                self.forget(helper);
            }
            self.report.epochs += 1;
            let progress = self.progress();
            self.plan(&progress);
            let repairs = self.repairs(&progress);
            self.rng.shuffle(&mut ranks);
            // Sometimes the next change comes before all have been notified of this one.
            let reached = match self.changes_left > 0 && self.rng.u32(0..4) == 0 {
                true => self.rng.usize(0..ranks.len()),
                false => ranks.len(),
            };
            for rank in &ranks[..reached] {
                self.resume(*rank, &repairs);
                self.some_steps();
            }
            if reached == ranks.len() {
                return true;
            }
            self.report.nested += 1;
            self.changes_left -= 1;
            if let Some(helper) = self.helpers.first().copied() {
                self.report.kills += 1;
                self.kill(helper);
            }
            self.lose_a_worker();
        }
    }

    /// A worker dies, sometimes: one that no round needs as its root.
    fn lose_a_worker(&mut self) {
        let needed = |rank: usize| {
            let symmetric = [Collective::AllReduce, Collective::Update];
            let rooted = |t: &&Tensor| !symmetric.contains(&t.request.collective);
            self.tensors.iter().filter(rooted).any(|t| t.request.root.0 as usize == rank)
        };
        let victims: Vec<usize> = self.living().iter().copied().filter(|r| !needed(*r)).collect();
        let (alone, some) = (self.living().len() == 1, !victims.is_empty());
        if !self.workers_may_fail || alone || !some || self.rng.bool() {
            return;
        }
        let victim = victims[self.rng.usize(0..victims.len())];
        self.forget_calls(victim);
        for lane in 0..self.lanes.len() {
            let key = (victim, lane);
            if let Some(wire) = self.wires.get_mut(&key).and_then(Option::take) {
                self.leave_behind(key, wire);
            }
        }
        self.kill(victim);
        self.report.deaths += 1;
        let mut living = self.living().clone();
        living.remove(&victim);
        let machines = self.generations[0].1.living(|r| living.contains(&(r.0 as usize)));
        self.generations.push((living, machines));
    }

    /// A tensor fails on some workers, sometimes; the others learn it with the next epoch.
    fn fail_a_tensor(&mut self) {
        let index = self.rng.usize(0..self.tensors.len());
        // A replay needs all rounds.
        let is_replay = self.follows.is_some();
        if is_replay || self.rng.u32(0..6) > 0 || !self.lost.insert(index) {
            return;
        }
        self.report.refused += 1;
        self.refused.insert(index);
        let id = self.tensors[index].request.tensor;
        for rank in self.living().clone() {
            if self.rng.bool() {
                self.workers[rank].client.fail_tensor(id, "this worker refuses it");
                self.collect(rank);
                self.some_steps();
            }
        }
    }

    fn some_steps(&mut self) {
        for _ in 0..self.rng.usize(0..60) {
            self.step();
        }
    }

    /// Everything a lane knew is gone; its peers notice at once.
    fn kill(&mut self, lane: usize) {
        self.forget(lane);
        self.gone.insert(lane);
        self.lanes[lane] = fresh_lane(lane < self.workers.len());
    }

    /// A lane forgets the job, and its connections break.
    fn forget(&mut self, lane: usize) {
        self.forget_server(lane);
        self.lanes[lane].end_job(JOB);
        self.remains.retain(|(_, to), _| *to != lane);
        for rank in 0..self.lanes.len() {
            if self.wires.get_mut(&(rank, lane)).and_then(Option::take).is_some() {
                self.client(rank).disconnected(ConnId(lane));
                self.collect(rank);
            }
        }
    }

    fn suspend(&mut self, rank: usize) {
        let lanes = self.lanes.len();
        for lane in (0..lanes).filter(|lane| *lane != rank) {
            if let Some(wire) = self.wires.get_mut(&(rank, lane)).and_then(Option::take) {
                self.close_lane_side(lane, &wire);
            }
            if let Some(wire) = self.remains.remove(&(rank, lane)) {
                self.close_lane_side(lane, &wire);
            }
        }
        let Worker { client, hub, recovery, progress, .. } = &mut self.workers[rank];
        let lane = (&mut self.lanes[rank], JOB);
        *progress = Some(recovery.suspend(client, hub, lane, self.tensors.len()));
        self.forget(rank);
        self.collect(rank);
    }

    /// What all workers have reported.
    fn progress(&self) -> BTreeMap<Rank, Progress> {
        let reported = |(rank, worker): (usize, &Worker)| {
            (Rank(rank as u32), worker.progress.clone().expect("everyone is suspended"))
        };
        let living =
            self.workers.iter().enumerate().filter(|(rank, _)| self.living().contains(rank));
        living.map(reported).collect()
    }

    fn repairs(&mut self, progress: &BTreeMap<Rank, Progress>) -> HashMap<usize, Vec<Repair>> {
        let mut out = HashMap::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let is_lost = self.lost.contains(&index) && !self.refused.contains(&index);
            if is_lost || has_failed(tensor.request.tensor, progress) {
                continue;
            }
            let spec: RepairSpec = tensor.repair_spec(self.workers_may_fail);
            let found = repairs(tensor.request.tensor, &spec, progress);
            let found = found.unwrap_or_else(|lost| panic!("{lost}\n{progress:?}\n{tensor:?}"));
            for found in &found {
                self.report.relays += found.relays.len() as u64;
                self.report.sums += found.sums.len() as u64;
            }
            out.insert(index, found);
        }
        out
    }

    /// A worker begins the epoch.
    pub(super) fn resume(&mut self, rank: usize, repairs: &HashMap<usize, Vec<Repair>>) {
        let (n, lanes) = (self.workers.len(), self.lanes.len());
        self.forget_calls(rank);
        let settings = ClientSettings {
            rank: Rank(rank as u32),
            world_size: n as u32,
            epoch: self.epoch,
            chunk_bytes: self.chunk_bytes,
            credit_bytes: self.rng.usize(1..100_000),
            deterministic: self.deterministic,
            checksum: self.checksum,
        };
        let worker = &mut self.workers[rank];
        worker.progress = None;
        worker.client.resume(settings, lanes);
        worker.hub.resume(self.chunk_bytes);
        let first = if self.workers_may_fail { 0 } else { n };
        for lane in (first..lanes).filter(|lane| self.keeps && *lane != rank) {
            worker.client.retain_results_of(ConnId(lane));
        }
        let (mut relays, mut retained) = (Vec::new(), BTreeSet::new());
        for (index, tensor) in self.tensors.iter().enumerate() {
            let Request { tensor: id, dtype, .. } = tensor.request;
            if self.lost.contains(&index) {
                worker.client.fail_tensor(id, "it has failed, or its state died");
                worker.client.lay_out(id, Tier::Root, Layout::default());
                continue;
            }
            if let Some(rule) = tensor.rule() {
                let own = mirrored_elements(&tensor.mirrors, Rank(rank as u32), dtype.size());
                let parts = (dtype.accumulator(), 1 + rule.slots().len());
                worker.client.assign_mirrors(id, parts, &own);
                self.report.refills += own.iter().filter(|of| of.lacks).count() as u64;
            }
            let machines = &self.generations.last().expect("the first generation").1;
            let all = (tensor, repairs.get(&index).map_or(&[][..], Vec::as_slice));
            retained.extend(retained_rounds(
                tensor.request.tensor,
                &tensor.repair_spec(self.workers_may_fail),
                all.1,
            ));
            let keeps_from = if self.keeps { first } else { usize::MAX };
            relays.extend(lay_out(worker, Rank(rank as u32), (n, machines, keeps_from), all));
            for view in tensor.views() {
                let beside = view.beside(Rank(rank as u32), machines);
                if view.tiers(&beside).contains(&Tier::Rack) {
                    let of_rack = (&beside, Tier::Rack, Tier::Root);
                    let passed_on = view.passed_on(Rank(rank as u32), n, of_rack, &view.all());
                    self.report.of_racks += passed_on.len() as u64;
                }
            }
        }
        worker.recovery.resume(&mut worker.client, relays, retained);
        worker.client.define_group(&[Rank(rank as u32)]);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let Some(rule) = tensor.rule().filter(|_| !self.lost.contains(&index)) else {
                continue;
            };
            let (own, parts) = (Rank(rank as u32), 1 + rule.slots().len());
            worker.recovery.fill(&mut worker.client, own, &tensor.request, parts);
            self.report.fills += u64::from(!worker.recovery.is_filled(tensor.request.tensor));
        }
        let peer = self.peer(rank, rank);
        // Mostly as it is in a worker; else the two exchange chunks as frames.
        let (lane, client) = (&mut self.lanes[rank], &mut self.workers[rank].client);
        if self.rng.u32(0..4) > 0 {
            self.colocated[rank] = lane.open_resident(peer).expect("a fresh lane");
            client.attached(ConnId(rank));
        } else {
            self.colocated[rank] = lane.open(peer).expect("a fresh lane").0;
            client.connected(ConnId(rank));
        }
        self.collect(rank);
    }
}

/// What a worker passes on between two tiers.
type Passed = ((Tier, Tier), Layout);

/// A tensor as the holders of each shard have it, of those that a worker takes part in, and who
/// takes part beside it. A tensor without shards is laid out on those that take no part as well.
fn views(
    tensor: &Tensor,
    rank: Rank,
    (on, keeps_from): (&Machines, usize),
) -> Vec<(Tensor, Beside)> {
    let takes_part = |view: &Tensor| tensor.shards.is_empty() || view.members.contains(&rank);
    let views = tensor.views().into_iter().filter(takes_part);
    let with_those_beside = |view: Tensor| {
        let beside = Beside { keeps_from, ..view.beside(rank, on) };
        (view, beside)
    };
    views.map(with_those_beside).collect()
}

/// A worker's part in rounds that are not repaired: its tier, its places, and what it passes on.
fn in_every_round(
    views: &[(Tensor, Beside)],
    rank: Rank,
    n: usize,
) -> (Option<Tier>, Vec<Place>, Vec<Passed>) {
    let (mut tier, mut own, mut passed) = (None, Vec::new(), Vec::<Passed>::new());
    for (view, beside) in views {
        let (all, tiers) = (view.all(), view.tiers(beside));
        assert!(tier.is_none_or(|known| known == tiers[0]), "shards of several tiers: {view:?}");
        tier = Some(tiers[0]);
        own.extend(view.places(rank, n, beside, &all));
        for pass in tiers.windows(2).map(|pair| (pair[0], pair[1])) {
            let mut places = view.passed_on(rank, n, (beside, pass.0, pass.1), &all);
            match passed.iter_mut().find(|(known, _)| *known == pass) {
                Some((_, layout)) => {
                    places.splice(0..0, layout.places.iter().copied());
                    *layout = Layout::new(places);
                }
                None => passed.push((pass, Layout::new(places))),
            }
        }
    }
    (tier, own, passed)
}

/// Tells a worker where a tensor is summed in this epoch; what it is to pass on of it.
fn lay_out(
    worker: &mut Worker,
    rank: Rank,
    (n, on, keeps_from): (usize, &Machines, usize),
    (tensor, repairs): (&Tensor, &[Repair]),
) -> Vec<(Request, Round, Vec<Place>)> {
    let Worker { client, hub, .. } = worker;
    let id: TensorId = tensor.request.tensor;
    let start = tensor.own(rank).start;
    let placed = |mut places: Vec<Place>| {
        places.iter_mut().for_each(|place| place.offset = place.origin - start);
        places
    };
    let views = views(tensor, rank, (on, keeps_from));
    let mut define = |(view, beside): &(Tensor, Beside), parts: &[(u32, Part, Vec<Rank>)]| {
        let groups = parts.iter().flat_map(|(_, part, of)| view.groups(beside, part, of));
        for members in groups {
            assert_eq!(client.define_group(&members), group(&members, n));
        }
    };
    views.iter().for_each(|of| define(of, &of.0.all()));
    let (tier, own, mut passed) = in_every_round(&views, rank, n);
    let mut layout = Layout { start, ..Layout::new(placed(own)) };
    let (mut number, mut relays) = (REPAIRED, Vec::new());
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for repair in repairs {
        let sums = tensor.repaired(repair, number);
        number += sums.len() as u32;
        let (mut mine, mut again) = (Vec::new(), Vec::new());
        for of @ (view, beside) in &views {
            let here = |(_, part, _): &&(u32, Part, Vec<Rank>)| view.has(part.offset);
            let sums: Vec<_> = sums.iter().filter(here).cloned().collect();
            define(of, &sums);
            mine.extend(view.places(rank, n, beside, &sums));
            let places =
                |((from, to), _): &Passed| view.passed_on(rank, n, (beside, *from, *to), &sums);
            again.push(passed.iter().map(places).collect::<Vec<_>>());
        }
        let mut held = Vec::new();
        for (place, members) in tensor.relayed(repair, number, n) {
            number += 1;
            groups.push(members.clone());
            if place.relay == Some(rank) {
                held.push(place);
            } else if members.contains(&rank) {
                mine.push(place);
            }
        }
        layout.repaired.push((repair.round, placed(mine).into()));
        for (index, (_, layout)) in passed.iter_mut().enumerate() {
            let again: Vec<Place> = again.iter().flat_map(|of| of[index].clone()).collect();
            if !again.is_empty() {
                layout.repaired.push((repair.round, again.into()));
            }
        }
        if !held.is_empty() {
            let request = Request { supply: Supply::Whole, ..tensor.request };
            relays.push((request, repair.round, held));
        }
    }
    groups.iter().for_each(|members| assert_eq!(client.define_group(members), group(members, n)));
    let tier = tier.unwrap_or(Tier::Root);
    client.lay_out(id, tier, layout.coded(tensor.coding().filter(|_| tier == Tier::Root)));
    let standing = client.standing(id);
    for (pass, layout) in passed {
        let layout = layout.coded(tensor.coding().filter(|_| pass.1 == Tier::Root));
        if !layout.places.is_empty() {
            let first = first_passed_on(&layout, repairs, &standing);
            hub.register(client, id, pass, layout, first);
        }
    }
    relays
}
