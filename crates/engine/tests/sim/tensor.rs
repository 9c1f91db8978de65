//! The tensors of a simulated job: where they are summed, what each worker contributes, and what
//! must come out.

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;
use sumpter_endpoint::{ConnId, OwnedMemory};
use sumpter_engine::{
    MirroredSpan, Place, Progress, Relay, Repair, RepairSpec, Request, Share, StateLost, Supply,
    VariablePlace, mirrored_spans,
};
use sumpter_types::{
    Collective, Dtype, ExactSum, GroupId, Rank, ReduceOp, Round, Rule, Staleness, TensorId, Update,
};
use sumpter_wire::{Route, Tier, group_id};

use crate::model;

#[path = "coded.rs"]
mod coded;
#[path = "hubs.rs"]
mod hubs;
#[path = "shards.rs"]
mod shards;
#[path = "sums.rs"]
mod sums;

#[derive(Clone, Debug)]
pub struct Tensor {
    pub request: Request,
    /// Who takes part, and who of them lives.
    pub everyone: Vec<Rank>,
    pub members: Vec<Rank>,
    pub elements: usize,
    pub parts: Vec<Part>,
    pub rounds: u32,
    in_place: bool,
    /// Values that round when they are added, so that the order of addition shows.
    pub rough: bool,
    /// Machines pass on subtotals, each by the same worker always or by any.
    tiered: bool,
    /// So do racks, where there are several.
    in_racks: bool,
    pub steady: bool,
    /// A helper may be the hub of a rack.
    pub is_served: bool,
    /// Each share of a variable has two mirrors; workers of one machine alone contribute directly.
    guarded: bool,
    is_flat: bool,
    /// The shares of a variable, and the first of each one's mirrors; who mirrors which bytes in
    /// this epoch, and how far its workers may run apart.
    shares: Vec<(Range<usize>, Rank)>,
    pub mirrors: Vec<MirroredSpan>,
    pub staleness: Staleness,
    /// What most of a variable's rounds do is decided once their gradients are summed.
    deferred: bool,
    /// Who holds which bytes, if device groups have reduced it; and the number of the first part.
    pub shards: Vec<shards::Shard>,
    first: u32,
    /// What its contributions are encoded with, in this epoch or only in others.
    pub codec: Option<&'static str>,
    is_plain: bool,
}

pub use coded::CHUNK_BYTES as CODED_CHUNK_BYTES;
use coded::carrier_among;

/// A partition, the lane that makes its sum, and the workers that pass on the subtotal of each
/// machine and of each rack; none where workers contribute directly.
#[derive(Clone, Debug)]
pub struct Part {
    pub root: ConnId,
    pub offset: usize,
    pub bytes: usize,
    pub hubs: Vec<Rank>,
    pub rack_hubs: Vec<Rank>,
    /// Those of them that are helpers, with the members of their racks.
    pub servers: Vec<(Rank, Vec<Rank>)>,
    /// Nothing is added: this worker has it, the others get it, past all hubs.
    pub relay: Option<Rank>,
    /// What it is of a variable.
    pub variable: Option<VariablePlace>,
    /// Who keeps what codes of sums leave out.
    pub carrier: Option<Rank>,
}

/// Who runs on which machine, and which machines are in a rack.
#[derive(Clone, Debug)]
pub struct Machines {
    machines: Vec<Vec<Rank>>,
    racks: Vec<Vec<Rank>>,
    /// Those of a machine whose devices reduce among themselves.
    groups: Vec<Vec<Rank>>,
}

/// The workers of a worker's machine that take part in a tensor with it, those that are members of
/// its rack's sums on behalf of some partition, and how many such each partition has.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    pub machine: Vec<Rank>,
    pub rack: Vec<Rank>,
    pub nodes: usize,
    /// The lanes from here on report when all have a result.
    pub keeps_from: usize,
}

impl Machines {
    /// Machines of one to three workers, in any order of ranks, in one to three racks.
    pub fn new(rng: &mut Rng, n: usize) -> Machines {
        let mut ranks: Vec<_> = (0..n as u32).map(Rank).collect();
        if rng.bool() {
            rng.shuffle(&mut ranks);
        }
        let most = rng.usize(1..=3);
        let mut machines = Vec::new();
        while !ranks.is_empty() {
            let mut machine = ranks.split_off(ranks.len() - rng.usize(1..=most.min(ranks.len())));
            machine.sort_unstable();
            machines.push(machine);
        }
        let mut racks = vec![Vec::new(); rng.usize(1..=3)];
        for machine in &machines {
            let at = rng.usize(0..racks.len());
            racks[at].extend(machine);
        }
        racks.iter_mut().for_each(|rack: &mut Vec<Rank>| rack.sort_unstable());
        let groups = shards::groups(rng, &machines);
        Machines { machines, racks, groups }
    }

    pub fn of(&self, rank: Rank) -> &[Rank] {
        self.machines.iter().find(|of| of.contains(&rank)).expect("every rank runs somewhere")
    }

    pub fn rack_of(&self, rank: Rank) -> &[Rank] {
        self.racks.iter().find(|of| of.contains(&rank)).expect("every machine is in a rack")
    }

    /// The same without those who are dead.
    pub fn living(&self, alive: impl Fn(Rank) -> bool) -> Machines {
        let of = |group: &Vec<Rank>| group.iter().copied().filter(|r| alive(*r)).collect();
        let all = |groups: &[Vec<Rank>]| {
            groups.iter().map(of).filter(|group: &Vec<Rank>| !group.is_empty()).collect()
        };
        let groups = all(&self.groups);
        Machines { machines: all(&self.machines), racks: all(&self.racks), groups }
    }

    /// As far as these ranks run on them.
    fn among(&self, ranks: &[Rank]) -> Machines {
        self.living(|rank| ranks.contains(&rank))
    }

    fn share_links(&self) -> bool {
        self.machines.iter().any(|machine| machine.len() > 1)
    }
}

/// A group's id, as a client gives it.
pub fn group(ranks: &[Rank], n: usize) -> GroupId {
    let everyone = ranks.len() == n && ranks.iter().all(|rank| (rank.0 as usize) < n);
    if everyone { GroupId(0) } else { group_id(ranks) }
}

impl Tensor {
    pub fn new(rng: &mut Rng, index: usize, n: usize, on: &Machines) -> Tensor {
        let dtype = Dtype::ALL[rng.usize(0..Dtype::ALL.len())];
        let op = ReduceOp::ALL[rng.usize(0..ReduceOp::ALL.len())];
        let all =
            [Collective::AllReduce, Collective::Broadcast, Collective::Reduce, Collective::Update];
        let collective = if rng.bool() { all[0] } else { all[rng.usize(0..4)] };
        if collective == Collective::Update {
            return Tensor::variable(rng, index, n, on);
        }
        let mut members: Vec<Rank> = (0..n as u32).map(Rank).collect();
        if rng.u32(0..4) == 0 {
            members.retain(|_| rng.bool());
            if members.is_empty() {
                members.push(Rank(rng.u32(0..n as u32)));
            }
        }
        let elements = if rng.bool() { rng.usize(1..20) } else { rng.usize(1..1500) };
        let tiered = on.among(&members).share_links() && rng.u32(0..8) > 0;
        let sums = op == ReduceOp::Sum && collective == Collective::AllReduce;
        let average = sums && dtype.is_float() && rng.bool();
        let root = members[rng.usize(0..members.len())];
        let (tensor, tier, priority) = (TensorId(index as u32), Tier::Root, 0);
        let supply = if rng.u32(0..3) == 0 { Supply::Ranges } else { Supply::Whole };
        let request = Request {
            tensor,
            tier,
            collective,
            dtype,
            op,
            root,
            average,
            priority,
            supply,
            call: None,
            update: None,
            rescale: 1.0,
        };
        let rough = dtype == Dtype::F32 && op == ReduceOp::Sum && !average && rng.bool();
        let (rounds, in_place) = (rng.u32(1..5), rng.bool());
        let parts = Vec::new();
        // The order in which machines are added is that of their hubs, so these must stay.
        let steady = rough;
        let everyone = members.clone();
        let in_racks = rng.u32(0..4) > 0;
        let shards = match collective == Collective::AllReduce && rng.u32(0..3) == 0 {
            true => shards::shards(rng, (elements, dtype.size()), &on.groups, &members),
            false => Vec::new(),
        };
        Tensor {
            request,
            everyone,
            members,
            elements,
            parts,
            rounds,
            in_place,
            rough,
            tiered,
            in_racks,
            steady,
            is_served: false,
            guarded: false,
            is_flat: false,
            shares: Vec::new(),
            mirrors: Vec::new(),
            staleness: Staleness::SYNCHRONOUS,
            deferred: false,
            shards,
            first: 0,
            codec: None,
            is_plain: false,
        }
    }

    /// A tensor whose gradients change a variable.
    fn variable(rng: &mut Rng, index: usize, n: usize, on: &Machines) -> Tensor {
        let floats = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
        let dtype = floats[rng.usize(0..4)];
        let elements = if rng.bool() { rng.usize(1..20) } else { rng.usize(1..1500) };
        let mut members: Vec<Rank> = (0..n as u32).map(Rank).collect();
        if rng.u32(0..4) == 0 {
            members.retain(|rank| rank.0 == 0 || rng.bool());
        }
        // The last ones leave room for all rounds of six workers in a value.
        let bounds = [0, 0, 0, 1, 2].map(Staleness);
        let bound = rng.usize(0..=bounds.len());
        let staleness = bounds.get(bound).copied().unwrap_or(Staleness::UNBOUNDED);
        let together = staleness.is_synchronous();
        let dtype = if together { dtype } else { [Dtype::F32, Dtype::F64, Dtype::Bf16][bound % 3] };
        let tiered = together && on.among(&members).share_links() && rng.u32(0..8) > 0;
        let in_racks = together && rng.u32(0..4) > 0;
        let average = together && rng.bool();
        let rule = Rule::ALL[rng.usize(0..Rule::ALL.len())];
        let update = if together { model::update(rule, 0) } else { model::addition() };
        let request = Request {
            tensor: TensorId(index as u32),
            tier: Tier::Root,
            collective: Collective::Update,
            dtype,
            op: ReduceOp::Sum,
            root: Rank(0),
            average,
            priority: 0,
            supply: if rng.u32(0..3) == 0 { Supply::Ranges } else { Supply::Whole },
            call: None,
            update: Some(update),
            rescale: 1.0,
        };
        let mut shares = Vec::new();
        let mut start = 0;
        while start < elements {
            let end = elements.min(start + rng.usize(1..=elements));
            let size = dtype.size();
            let mirror = members[rng.usize(0..members.len())];
            shares.push((start * size..end * size, mirror));
            start = end;
        }
        let mut tensor = Tensor {
            request,
            everyone: members.clone(),
            members,
            elements,
            parts: Vec::new(),
            rounds: rng.u32(1..5),
            in_place: false,
            rough: together && dtype == Dtype::F32 && !average && rng.bool(),
            tiered,
            in_racks,
            steady: true,
            is_served: false,
            guarded: false,
            is_flat: false,
            shares,
            mirrors: Vec::new(),
            staleness,
            deferred: together && rng.bool(),
            shards: Vec::new(),
            first: 0,
            codec: None,
            is_plain: false,
        };
        tensor.mirror(1, on, &BTreeMap::new()).expect("it has no state to lose");
        tensor
    }

    /// Workers may die: each share of a variable has two mirrors, all change it together, what a
    /// round does is known when it begins, and no order of addition shows, which is that of hubs,
    /// hence of mirrors. Device groups, which go on without none of theirs, reduce nothing.
    pub fn guard(&mut self, on: &Machines) {
        self.shards.clear();
        // What a worker has left out of its contributions dies with it, so nothing is.
        self.codec = self.codec.map(|_| "bf16");
        if self.rule().is_some() {
            (self.deferred, self.rough) = (false, false);
            (self.staleness, self.guarded) = (Staleness::SYNCHRONOUS, true);
            self.is_flat = on.among(&self.members).machines.len() == 1;
            self.mirror(2, on, &BTreeMap::new()).expect("it has no state to lose");
        }
    }

    /// Who mirrors which bytes in the next epoch.
    pub fn mirror(
        &mut self,
        copies: usize,
        on: &Machines,
        progress: &BTreeMap<Rank, Progress>,
    ) -> Result<(), StateLost> {
        if self.rule().is_none() {
            return Ok(());
        }
        let (members, everyone) = (&self.members, &self.everyone);
        let share = |(span, first): &(Range<usize>, Rank)| {
            let at = everyone.iter().position(|rank| rank == first).expect("a member");
            let ring = everyone[at..].iter().chain(&everyone[..at]);
            let candidates = ring.copied().filter(|rank| members.contains(rank)).collect();
            Share { span: span.clone(), candidates }
        };
        let shares: Vec<Share> = self.shares.iter().map(share).collect();
        let may_join = |a, b| self.may_join(on, a, b);
        let size = self.request.dtype.size();
        let spans =
            mirrored_spans(self.request.tensor, (&shares, size), copies, may_join, progress);
        self.mirrors = if members.is_empty() { Vec::new() } else { spans? };
        Ok(())
    }

    /// Whether two workers may mirror the same: not as two hubs of one machine or rack.
    pub fn may_join(&self, on: &Machines, a: Rank, b: Rank) -> bool {
        let apart = !self.passes_on() || !on.of(a).contains(&b);
        apart && (!self.is_racked(&on.among(&self.members)) || !on.rack_of(a).contains(&b))
    }

    /// Whether racks pass on subtotals, of workers who all take part.
    fn is_racked(&self, on: &Machines) -> bool {
        self.in_racks && on.racks.len() > 1
    }

    /// Whether machines pass on subtotals.
    fn passes_on(&self) -> bool {
        self.tiered && !self.is_flat
    }

    /// The rule by which the tensor's gradients change a variable.
    pub fn rule(&self) -> Option<Rule> {
        self.request.update.map(|update| update.rule)
    }

    /// What a worker mirrors of the variable: where, and its parts before the first round.
    pub fn mirrored_by(&self, rank: Rank) -> Vec<(Range<usize>, Vec<Vec<u8>>)> {
        let Some(rule) = self.rule() else { return Vec::new() };
        let Request { tensor, dtype, .. } = self.request;
        let parts = model::parts(rule, dtype, (tensor.0, self.elements));
        let widening = dtype.accumulator().size() / dtype.size();
        let own = self.mirrors.iter().filter(|of| of.mirrors.contains(&Some(rank)));
        own.map(|MirroredSpan { span, .. }| {
            let wide = span.start * widening..span.end * widening;
            (span.clone(), parts.iter().map(|part| part[wide.clone()].to_vec()).collect())
        })
        .collect()
    }

    /// The parts of the variable after all rounds.
    pub fn final_parts(&self, on: &Machines) -> Vec<Vec<u8>> {
        match self.staleness.is_synchronous() {
            true => self.after(self.rounds - 1, on).0,
            false => vec![self.final_value()],
        }
    }

    /// What a round of a variable is applied with.
    pub fn update(&self, round: u32) -> Option<Update> {
        let rule = self.rule()?;
        Some(match self.staleness.is_synchronous() {
            false => model::addition(),
            true if self.defers(round) => Update::defer(rule),
            true => model::update(rule, round),
        })
    }

    /// The value of a variable that changes asynchronously, once all rounds of all are in it.
    fn final_value(&self) -> Vec<u8> {
        let Request { tensor: TensorId(id), dtype, .. } = self.request;
        let value = |element| {
            let all = self.everyone.iter().map(|rank| model::delta(rank.0, element)).sum::<i64>();
            model::initial(id, element) + (i64::from(self.rounds) * all) as f64
        };
        model::encode(dtype.accumulator(), (0..self.elements).map(value))
    }

    /// Checks what a worker got in its rounds of a variable that changes asynchronously: its own
    /// rounds, those of others within the bound, and never less than before.
    pub fn check_own(&self, rank: Rank, results: &[&Vec<u8>]) {
        let Request { tensor: TensorId(id), dtype, .. } = self.request;
        if dtype == Dtype::Bf16 {
            return;
        }
        let mut before = vec![vec![0; 1 + self.workers()]; self.elements];
        for (round, result) in (0..).map(Round).zip(results) {
            for (element, value) in model::decode(dtype, result).into_iter().enumerate() {
                let of = || format!("element {element} of {round} of rank {rank}: {self:?}");
                let clocks = model::rounds(value, (id, element), self.workers());
                let clocks =
                    clocks.unwrap_or_else(|| panic!("no sum of deltas: {value}, {}", of()));
                let awaited = self.staleness.awaited(round).map(u32::cast_signed);
                for worker in &self.everyone {
                    let clock = clocks[worker.0 as usize];
                    let enough = awaited.is_none_or(|awaited| clock.cast_signed() >= awaited);
                    assert!(enough, "{clock} rounds of rank {worker} are in {}", of());
                    assert!(clock >= before[element][worker.0 as usize], "went back: {}", of());
                }
                assert_eq!(clocks[rank.0 as usize], round.0 + 1, "its own: {}", of());
                before[element] = clocks;
            }
        }
    }

    /// One more than the highest rank.
    fn workers(&self) -> usize {
        self.everyone.last().map_or(0, |rank| rank.0 as usize + 1)
    }

    /// Whether it is decided what a round does once its gradient is summed.
    pub fn defers(&self, round: u32) -> bool {
        self.deferred && round % 4 != 2
    }

    /// The sum of the squares of a variable's gradient.
    pub fn squares(&self, round: u32, on: &Machines) -> ExactSum {
        model::squares(self.request.dtype, &self.sum(round, (&self.everyone, on)))
    }

    /// A variable's parts after a round, and its value in the type of the tensor.
    fn after(&self, round: u32, on: &Machines) -> (Vec<Vec<u8>>, Vec<u8>) {
        let Request { tensor, dtype, .. } = self.request;
        let rule = self.rule().expect("a variable");
        let mut parts = model::parts(rule, dtype, (tensor.0, self.elements));
        let mut weights = Vec::new();
        for round in 0..=round {
            let gradient = self.sum(round, (&self.everyone, on));
            let update = match self.defers(round) {
                true => model::decided(rule, round, &model::squares(dtype, &gradient)),
                false => model::update(rule, round),
            };
            weights = model::apply(&update, dtype, &mut parts, &gradient);
        }
        (parts, weights)
    }

    /// Deals the partitions out anew, to some of `lanes`, for those who live.
    ///
    /// # Errors
    /// If a variable's state died with the workers that had it: the tensor has no partitions.
    pub fn deal(
        &mut self,
        rng: &mut Rng,
        lanes: &[usize],
        (n, on): (usize, &Machines),
        (copies, progress): (usize, &BTreeMap<Rank, Progress>),
    ) -> Result<(), StateLost> {
        self.members.retain(|rank| lanes.contains(&(rank.0 as usize)));
        self.parts.clear();
        if self.members.is_empty() {
            return Ok(());
        }
        let on = &on.among(&self.members);
        self.is_flat = self.guarded && on.machines.len() == 1;
        self.mirror(copies, on, progress)?;
        // Whether encoding pays may change with the plan; and then what is in each round.
        self.is_plain = self.is_encoded_by_hubs() && rng.u32(0..4) == 0;
        let partition_bytes = match self.codec {
            Some(_) => CODED_CHUNK_BYTES as usize * rng.usize(1..4),
            None => 512 * rng.usize(1..8),
        };
        let whole = [(0..self.bytes(), self.members.clone())];
        let stretches = if self.shards.is_empty() { &whole[..] } else { &self.shards };
        let mut parts = Vec::new();
        // A worker that takes no part sums nothing.
        for (bytes, holders) in stretches {
            let sums = |lane: &&usize| **lane >= n || holders.contains(&Rank(**lane as u32));
            let lanes: Vec<usize> = lanes.iter().filter(sums).copied().collect();
            let (on, fixed) = (on.among(holders), [self.rooted()]);
            for offset in bytes.clone().step_by(partition_bytes) {
                let root = ConnId(lanes[rng.usize(0..lanes.len())]);
                let (hubs, mut rack_hubs) = self.any_hubs(rng, &on, (self.steady, &fixed));
                let servers = self.any_servers(rng, &on, &lanes, (n, &hubs, &mut rack_hubs));
                let bytes = partition_bytes.min(bytes.end - offset);
                let (relay, variable) = (None, None);
                let carrier = None;
                parts.push(Part {
                    root,
                    offset,
                    bytes,
                    hubs,
                    rack_hubs,
                    servers,
                    relay,
                    variable,
                    carrier,
                });
            }
        }
        self.parts = match self.rule() {
            Some(_) => self.among_mirrors(&parts, on),
            None => self.among_carriers(parts, on),
        };
        Ok(())
    }

    /// The same partitions, cut where the mirrors change; each mirror is the hub of its machine.
    fn among_mirrors(&self, parts: &[Part], on: &Machines) -> Vec<Part> {
        let mut out = Vec::new();
        for part in parts {
            for MirroredSpan { span, mirrors, lacks, .. } in &self.mirrors {
                let start = part.offset.max(span.start);
                let end = (part.offset + part.bytes).min(span.end);
                if start < end {
                    let (offset, bytes, home) = (start, end - start, out.len() as u32);
                    let staleness = self.staleness;
                    let within = 0;
                    let (mirrors, lacks) = (*mirrors, *lacks);
                    let variable =
                        VariablePlace { mirrors, home, offset: within, staleness, lacks };
                    let variable = Some(variable);
                    let (hubs, rack_hubs) = self.hubs_beside(&mirrors, on);
                    let root = part.root;
                    let (relay, servers, carrier) = (None, Vec::new(), None);
                    let part = Part {
                        root,
                        offset,
                        bytes,
                        hubs,
                        rack_hubs,
                        servers,
                        relay,
                        variable,
                        carrier,
                    };
                    out.push(part);
                }
            }
        }
        out
    }

    pub fn bytes(&self) -> usize {
        self.elements * self.request.dtype.size()
    }

    /// What a repair must know.
    pub fn repair_spec(&self, workers_may_fail: bool) -> RepairSpec {
        let Request { collective, root, .. } = self.request;
        RepairSpec {
            bytes: self.bytes(),
            collective,
            root,
            members: self.members.clone(),
            workers_may_fail,
            mirrors: self.mirrors.clone(),
            staleness: self.staleness,
            shards: self.shards.clone(),
        }
    }

    /// Who takes part beside a worker; no worker if it does not take part itself.
    pub fn beside(&self, rank: Rank, on: &Machines) -> Beside {
        if !self.members.contains(&rank) {
            return Beside::default();
        }
        let on = on.among(&self.members);
        let machine = on.of(rank).to_vec();
        let rack = on.rack_of(rank).to_vec();
        let machines = on.machines.iter().filter(|machine| rack.contains(&machine[0])).count();
        let nodes = match (self.is_racked(&on), self.passes_on()) {
            (false, _) => 1,
            (true, true) => machines,
            (true, false) => rack.len(),
        };
        Beside { machine, rack, nodes, keeps_from: usize::MAX }
    }

    /// The tiers in which a worker takes part, the innermost first.
    pub fn tiers(&self, beside: &Beside) -> Vec<Tier> {
        if !self.staleness.is_synchronous() {
            return vec![Tier::Worker];
        }
        let machine = (self.passes_on() && beside.machine.len() > 1).then_some(Tier::Machine);
        let rack = (beside.nodes > 1).then_some(Tier::Rack);
        machine.into_iter().chain(rack).chain([Tier::Root]).collect()
    }

    /// The members of a partition's sum in a tier, for a worker, and its hub if it has one.
    fn group_of<'a>(
        &self,
        tier: Tier,
        beside: &'a Beside,
        (part, members): (&'a Part, &'a [Rank]),
    ) -> (Vec<Rank>, Option<Rank>) {
        let inner = if part.hubs.is_empty() { members } else { &part.hubs };
        let in_rack = |rank: &&Rank| beside.rack.contains(rank);
        let hub = |hubs: &[Rank], of: &[Rank]| hubs.iter().copied().find(|hub| of.contains(hub));
        match tier {
            Tier::Machine => (beside.machine.clone(), hub(&part.hubs, &beside.machine)),
            Tier::Rack => {
                let group = inner.iter().filter(in_rack).copied().collect();
                let here = |of: &&(Rank, Vec<Rank>)| of.1.iter().any(|r| beside.rack.contains(r));
                let server = part.servers.iter().find(here).map(|(server, _)| *server);
                (group, server.or(hub(&part.rack_hubs, &beside.rack)))
            }
            _ if part.rack_hubs.is_empty() => (inner.to_vec(), None),
            _ => (part.rack_hubs.clone(), None),
        }
    }

    /// All partitions, by number, with who takes part.
    pub fn all(&self) -> Vec<(u32, Part, Vec<Rank>)> {
        let numbered = (self.first..).zip(&self.parts);
        numbered.map(|(i, part)| (i, part.clone(), self.members.clone())).collect()
    }

    /// The partitions of a repair's sums: those of every round, as far as they are concerned. A
    /// broadcast's are with its root.
    pub fn repaired(&self, repair: &Repair, first: u32) -> Vec<(u32, Part, Vec<Rank>)> {
        let mut out = Vec::new();
        for (span, members) in &repair.sums {
            for part in &self.parts {
                let start = part.offset.max(span.start);
                let end = (part.offset + part.bytes).min(span.end);
                if start < end {
                    let number = first + out.len() as u32;
                    let (offset, bytes) = (start, end - start);
                    let root = self.request.root;
                    let part = match self.request.collective {
                        Collective::Broadcast => {
                            let (lane, relay) = (ConnId(root.0 as usize), Some(root));
                            let (hubs, rack_hubs, servers) = Default::default();
                            let (root, variable, carrier) = (lane, None, None);
                            Part {
                                root,
                                offset,
                                bytes,
                                hubs,
                                rack_hubs,
                                servers,
                                relay,
                                variable,
                                carrier,
                            }
                        }
                        _ => {
                            let within = (offset - part.offset) as u32;
                            let variable =
                                part.variable.map(|v| VariablePlace { offset: within, ..v });
                            Part { offset, bytes, variable, ..part.clone() }
                        }
                    };
                    out.push((number, part, members.clone()));
                }
            }
        }
        out
    }

    /// The relays of a repair, by number.
    pub fn relayed(&self, repair: &Repair, first: u32, n: usize) -> Vec<(Place, Vec<Rank>)> {
        let place = |(number, relay): (u32, &Relay)| {
            let Relay { span, holder, members, .. } = relay;
            let place = Place {
                lane: ConnId(holder.0 as usize),
                number,
                offset: span.start,
                origin: span.start,
                bytes: span.len(),
                group: group(members, n),
                contributors: relay.contributors,
                relay: Some(*holder),
                variable: None,
                route: None,
                carrier: None,
            };
            (place, members.clone())
        };
        (first..).zip(&repair.relays).map(place).collect()
    }

    /// Where the partitions of a worker's operation go.
    pub fn places(
        &self,
        rank: Rank,
        n: usize,
        beside: &Beside,
        parts: &[(u32, Part, Vec<Rank>)],
    ) -> Vec<Place> {
        let tier = self.tiers(beside)[0];
        let place = |(number, part, members): &(u32, Part, Vec<Rank>)| {
            let contributors = self.contributors(members);
            let Part { root, offset, bytes, relay, variable, carrier, .. } = *part;
            let (group_members, hub) = match relay {
                Some(_) => (members.clone(), None),
                None if tier == Tier::Worker => (vec![rank], None),
                None => self.group_of(tier, beside, (part, members)),
            };
            let lane = hub.map_or(root, |hub| ConnId(hub.0 as usize));
            let (number, origin, group) = (*number, offset, group(&group_members, n));
            let route = self.route(n, beside, (hub, part, members));
            let place = Place::new(lane, number, (offset, bytes), group, contributors);
            let carrier = carrier_among(carrier, &group_members);
            Place { origin, relay, variable, route, carrier, ..place }
        };
        parts.iter().filter(|(_, _, members)| members.contains(&rank)).map(place).collect()
    }

    /// The partitions of which a worker passes on the subtotals of a tier to the next one.
    pub fn passed_on(
        &self,
        rank: Rank,
        n: usize,
        (beside, from, to): (&Beside, Tier, Tier),
        parts: &[(u32, Part, Vec<Rank>)],
    ) -> Vec<Place> {
        let mine = |(_, part, members): &&(u32, Part, Vec<Rank>)| {
            part.relay.is_none() && self.group_of(from, beside, (part, members)).1 == Some(rank)
        };
        let place = |(number, part, members): &(u32, Part, Vec<Rank>)| {
            let (group_members, hub) = self.group_of(to, beside, (part, members));
            Place {
                lane: hub.map_or(part.root, |hub| ConnId(hub.0 as usize)),
                number: *number,
                offset: 0,
                origin: part.offset,
                bytes: part.bytes,
                group: group(&group_members, n),
                contributors: self.contributors(members),
                relay: None,
                variable: part.variable,
                route: self.route(n, beside, (hub, part, members)),
                carrier: carrier_among(part.carrier, &group_members),
            }
        };
        parts.iter().filter(mine).map(place).collect()
    }

    /// Where a hub sends the subtotals of a partition, if it is a helper.
    fn route(
        &self,
        n: usize,
        beside: &Beside,
        (hub, part, members): (Option<Rank>, &Part, &[Rank]),
    ) -> Option<Route> {
        let rank = hub.filter(|hub| hub.0 as usize >= n)?;
        let (outer, _) = self.group_of(Tier::Root, beside, (part, members));
        let (lane, keeps) = (part.root.0 as u32, part.root.0 >= beside.keeps_from);
        Some(Route { lane, group: group(&outer, n), rank, keeps })
    }

    /// All groups of a partition's sums, for a worker.
    pub fn groups(&self, beside: &Beside, part: &Part, members: &[Rank]) -> Vec<Vec<Rank>> {
        let mut all = vec![members.to_vec()];
        if self.staleness.is_synchronous() {
            let tiers = self.tiers(beside).into_iter();
            all.extend(tiers.map(|tier| self.group_of(tier, beside, (part, members)).0));
        }
        all
    }
}
