//! The tensors of a simulated job: where they are summed, what each worker contributes, and what
//! must come out.

use fastrand::Rng;
use sumpter_engine::{ConnId, OwnedMemory, Place, Request};
use sumpter_sum::{Dtype, ReduceOp};
use sumpter_wire::{Collective, GroupId, Rank, TensorId, Tier, group_id};

use crate::model;

#[derive(Clone, Debug)]
pub struct Tensor {
    pub request: Request,
    pub members: Vec<Rank>,
    pub elements: usize,
    pub parts: Vec<Part>,
    pub rounds: u32,
    in_place: bool,
    /// Values that round when they are added, so that the order of addition shows.
    pub rough: bool,
}

/// A partition, the lane that makes its sum, and the worker of each machine that passes the
/// machine's subtotal on; none where workers contribute directly.
#[derive(Clone, Debug)]
pub struct Part {
    pub root: ConnId,
    pub offset: usize,
    pub bytes: usize,
    pub hubs: Vec<Rank>,
}

/// Who runs on which machine.
#[derive(Clone, Debug)]
pub struct Machines(Vec<Vec<Rank>>);

impl Machines {
    /// Machines of one to three workers, in any order of ranks.
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
        Machines(machines)
    }

    pub fn of(&self, rank: Rank) -> &[Rank] {
        self.0.iter().find(|machine| machine.contains(&rank)).expect("every rank runs somewhere")
    }

    fn share_links(&self) -> bool {
        self.0.iter().any(|machine| machine.len() > 1)
    }
}

/// A group's id, as a client gives it.
pub fn group(ranks: &[Rank], n: usize) -> GroupId {
    if ranks.len() == n { GroupId(0) } else { group_id(ranks) }
}

impl Tensor {
    pub fn new(rng: &mut Rng, index: usize, (n, lanes): (usize, usize), on: &Machines) -> Tensor {
        let dtype = Dtype::ALL[rng.usize(0..Dtype::ALL.len())];
        let op = ReduceOp::ALL[rng.usize(0..ReduceOp::ALL.len())];
        let all = [Collective::AllReduce, Collective::Broadcast, Collective::Reduce];
        let collective = if rng.bool() { all[0] } else { all[rng.usize(0..3)] };
        let mut members: Vec<Rank> = (0..n as u32).map(Rank).collect();
        if rng.u32(0..4) == 0 {
            members.retain(|_| rng.bool());
            if members.is_empty() {
                members.push(Rank(rng.u32(0..n as u32)));
            }
        }
        let elements = if rng.bool() { rng.usize(1..20) } else { rng.usize(1..1500) };
        let partition_bytes = 512 * rng.usize(1..8);
        let bytes = elements * dtype.size();
        let whole = members.len() == n && collective == Collective::AllReduce;
        let tiered = whole && on.share_links() && rng.u32(0..8) > 0;
        let part = |offset| Part {
            root: ConnId(rng.usize(0..lanes)),
            offset,
            bytes: partition_bytes.min(bytes - offset),
            hubs: if tiered { hubs(rng, on) } else { Vec::new() },
        };
        let parts = (0..bytes).step_by(partition_bytes).map(part).collect();
        let exact = op == ReduceOp::Sum && collective == Collective::AllReduce;
        let halves = exact && members.len().is_power_of_two() && members.len() > 1;
        let divisor = (halves && dtype.is_float() && rng.bool()).then_some(members.len() as u32);
        let root = members[rng.usize(0..members.len())];
        let (tensor, tier, priority) = (TensorId(index as u32), Tier::Root, 0);
        let streamed = false;
        let request =
            Request { tensor, tier, collective, dtype, op, root, divisor, priority, streamed };
        let rough = dtype == Dtype::F32 && op == ReduceOp::Sum && divisor.is_none() && rng.bool();
        let (rounds, in_place) = (rng.u32(1..5), rng.bool());
        Tensor { request, members, elements, parts, rounds, in_place, rough }
    }

    /// The tier at which a worker takes part.
    pub fn tier(&self, machine: &[Rank]) -> Tier {
        let tiered = self.parts.iter().any(|part| !part.hubs.is_empty());
        if tiered && machine.len() > 1 { Tier::Machine } else { Tier::Root }
    }

    /// Where the partitions of a worker's operation go.
    pub fn places(&self, n: usize, machine: &[Rank]) -> Vec<Place> {
        let place = |(number, part): (u32, &Part)| {
            let (mut lane, mut members) = (part.root, &*self.members);
            if !part.hubs.is_empty() {
                members = &part.hubs;
            }
            if self.tier(machine) == Tier::Machine {
                let hub = part.hubs.iter().find(|hub| machine.contains(hub));
                (lane, members) = (ConnId(hub.expect("one hub a machine").0 as usize), machine);
            }
            let Part { offset, bytes, .. } = *part;
            Place { lane, number, offset, bytes, group: group(members, n) }
        };
        (0..).zip(&self.parts).map(place).collect()
    }

    /// The partitions whose subtotals a worker passes on.
    pub fn passed_on(&self, rank: Rank, n: usize, machine: &[Rank]) -> Vec<Place> {
        let mine = |part: &Part| machine.len() > 1 && part.hubs.contains(&rank);
        let place = |(number, part): (u32, &Part)| {
            let (lane, offset, group) = (part.root, 0, group(&part.hubs, n));
            Place { lane, number, offset, bytes: part.bytes, group }
        };
        (0..).zip(&self.parts).filter(|(_, part)| mine(part)).map(place).collect()
    }

    /// What a worker contributes to a round.
    pub fn memory(&self, round: u32, rank: u32) -> OwnedMemory {
        let Request { tensor: TensorId(id), op, dtype, .. } = self.request;
        let value = |i| match (model::contribution(op, id, round, rank, i), self.rough) {
            (value, false) => value as f64,
            (value, true) => f64::from(model::roughen(value, i)),
        };
        let bytes = model::encode(dtype, (0..self.elements).map(value));
        match self.in_place {
            true => OwnedMemory { separate: None, bytes },
            false => OwnedMemory { bytes: vec![0xaa; bytes.len()], separate: Some(bytes) },
        }
    }

    /// What a round must give; of rough values, in the order that `deterministic` prescribes.
    pub fn expected(&self, round: u32, on: &Machines) -> Vec<u8> {
        let Request { tensor: TensorId(id), op, dtype, collective, root, divisor, .. } =
            self.request;
        let contributors: Vec<_> =
            self.members.iter().copied().filter(|r| collective.contributes(*r, root)).collect();
        let raw = |rank: Rank, element| model::contribution(op, id, round, rank.0, element);
        if self.rough {
            let of = |ranks: &[Rank], element| {
                let values = ranks.iter().map(|rank| model::roughen(raw(*rank, element), element));
                values.reduce(|a, b| a + b).expect("a contributor")
            };
            let sum = |element: usize| {
                let inside = |p: &&Part| (p.offset..p.offset + p.bytes).contains(&(element * 4));
                let hubs = &self.parts.iter().find(inside).expect("a partition").hubs;
                let subtotals = hubs.iter().map(|hub| of(on.of(*hub), element));
                f64::from(subtotals.reduce(|a, b| a + b).unwrap_or(of(&contributors, element)))
            };
            return model::encode(dtype, (0..self.elements).map(sum));
        }
        let value = |element| {
            let values = contributors.iter().map(|r| model::as_stored(dtype, raw(*r, element)));
            model::reduce(op, values) as f64 / f64::from(divisor.unwrap_or(1))
        };
        model::encode(dtype, (0..self.elements).map(value))
    }
}

/// Any worker of each machine, in the order of ranks.
fn hubs(rng: &mut Rng, on: &Machines) -> Vec<Rank> {
    let mut hubs: Vec<_> =
        on.0.iter().map(|machine| machine[rng.usize(0..machine.len())]).collect();
    hubs.sort_unstable();
    hubs
}
