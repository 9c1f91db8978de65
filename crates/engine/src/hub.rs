//! One contribution and one result for each aggregate: a client passes on what the lane beside it
//! has summed for the workers of a machine, or the machines of a rack, and receives the result for
//! all of them.
//!
//! The lane lends the accumulator of each chunk that has all contributions to the aggregate; the
//! client sends it as the contribution of the aggregate to the next tier, and receives the result
//! into it; the lane takes it back and sends it to the members. Bytes are moved by ownership of
//! their buffer: never copied, but for what a cut connection leaves behind, and from tier to tier
//! in one process.
//!
//! So it is for every collective, with the hubs of the aggregates as members of the next tier. The
//! root of a broadcast or reduce is the hub of its aggregates. A hub that only sends gives the
//! accumulators back when its contribution is not needed any more, and one that only receives is
//! lent empty ones. A worker that mirrors a partition of a variable is the hub of its aggregates:
//! it makes the value of the gradient. What is the hub of an outer aggregate is that of its inner
//! one too, so that it has begun whatever it passes on.
//!
//! A hub beside a worker knows the tensors, and its worker registers the partitions to pass on.
//! One in a server learns of each with its first subtotal, whose [route](Route) says where it goes,
//! and counts the rounds of each partition apart from all others.
//!
//! Invariants: the subtotals of a round are passed on by one operation a tier, whose rounds keep
//! step with the workers'; a buffer is in one place, the lane, the operation or on its way between.

use foldhash::{HashMap, HashSet};
use sumpter_sum::AlignedBuf;
use sumpter_types::{JobId, Round, TensorId};
use sumpter_wire::{PartitionSpec, Route, Tier};

use crate::client::{Client, Event, Layout, OpId, Place, Request, Sequence, Supply};
use crate::lane::{Lane, Subtotal, Total};
use sumpter_endpoint::{ConnId, Memory, Violation};

/// The memory of an operation: a tensor of the worker's, or subtotals of its machine.
#[derive(Debug)]
pub enum OpMemory<M> {
    /// A tensor.
    Tensor(M),
    /// What a hub passes on.
    Subtotals(Subtotals),
    /// Results that others lack.
    Results(Vec<u8>),
}

/// Chunks in buffers of their own, each there from when it was lent until it is given back.
#[derive(Debug)]
pub struct Subtotals {
    chunk_bytes: usize,
    chunks: Vec<Option<AlignedBuf>>,
}

impl<M: Memory> Memory for OpMemory<M> {
    fn contribution(&self, offset: usize, len: usize) -> &[u8] {
        match self {
            OpMemory::Tensor(memory) => memory.contribution(offset, len),
            OpMemory::Results(bytes) => &bytes[offset..offset + len],
            OpMemory::Subtotals(Subtotals { chunk_bytes, chunks }) => {
                let chunk = chunks[offset / chunk_bytes].as_ref().expect("a chunk that was lent");
                &chunk[offset % chunk_bytes..][..len]
            }
        }
    }

    fn result(&mut self, offset: usize, len: usize) -> &mut [u8] {
        match self {
            OpMemory::Tensor(memory) => memory.result(offset, len),
            OpMemory::Results(bytes) => &mut bytes[offset..offset + len],
            // The end of a chunk is not in it, and the next one may be elsewhere.
            OpMemory::Subtotals(_) if len == 0 => &mut [],
            OpMemory::Subtotals(Subtotals { chunk_bytes, chunks }) => {
                let chunk = chunks[offset / *chunk_bytes].as_mut().expect("a chunk that was lent");
                &mut chunk[offset % *chunk_bytes..][..len]
            }
        }
    }

    fn in_place(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        match self {
            OpMemory::Tensor(memory) => memory.in_place(offset, len),
            OpMemory::Results(_) | OpMemory::Subtotals(_) => None,
        }
    }
}

/// What a client passes on for the lane beside it.
#[derive(Debug)]
pub struct Hub {
    job: JobId,
    chunk_bytes: usize,
    /// By the tier of the subtotals; what has a route, by partition.
    tensors: HashMap<Sequence, Passage>,
    running: HashMap<OpId, Running>,
    failed: HashSet<TensorId>,
    /// Bytes of a rack's subtotals that were passed on.
    rack_bytes: u64,
    closed: bool,
}

/// The partitions of a tensor that are passed on, and the latest round's operation.
#[derive(Debug)]
struct Passage {
    /// The tier to which they go.
    to: Tier,
    /// Each partition's bytes, and where its chunks begin in the operation's memory.
    partitions: HashMap<u32, (usize, usize)>,
    chunks: usize,
    latest: Option<OpId>,
    /// Whether workers of other machines are done only once all receivers have the result.
    awaited: bool,
}

/// An operation that passes on a round's subtotals.
#[derive(Debug)]
struct Running {
    tensor: TensorId,
    /// The tier of the subtotals.
    from: Tier,
    round: Round,
    /// The only partition, if its rounds are counted apart.
    alone: Option<u32>,
    /// What was to be given back when the client had let go of the memory, by partition and chunk.
    late: Vec<(u32, u32)>,
}

impl Passage {
    /// Where a chunk is in the operation's memory.
    fn slot(&self, number: u32, chunk: u32) -> usize {
        self.partitions[&number].1 + chunk as usize
    }
}

impl Running {
    fn of(&self) -> Sequence {
        (self.tensor, self.from, self.alone)
    }

    fn chunk(&self, job: JobId, partition: u32, chunk: u32) -> Subtotal {
        let Running { tensor, from: tier, round, .. } = *self;
        Subtotal { job, tensor, tier, partition, round, chunk }
    }

    fn total(&self, job: JobId, partition: u32) -> Total {
        let Running { tensor, from: tier, round, .. } = *self;
        Total { job, tensor, tier, partition, round }
    }
}

impl Hub {
    /// A hub that passes nothing on yet.
    #[must_use]
    pub fn new(job: JobId, chunk_bytes: u32) -> Hub {
        let (tensors, running, failed) = Default::default();
        let (chunk_bytes, rack_bytes, closed) = (chunk_bytes as usize, 0, false);
        Hub { job, chunk_bytes, tensors, running, failed, rack_bytes, closed }
    }

    /// Nothing is passed on any more, and what fails from now on is not reported to this machine's
    /// workers: the end of the session reaches them by another path.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Makes known which partitions of a tensor are passed on from here, between which tiers, from
    /// `round` on, and where to. The places' offsets are of no interest; their groups must have
    /// been defined.
    pub fn register<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        tensor: TensorId,
        (from, to): (Tier, Tier),
        layout: Layout,
        round: Round,
    ) {
        let (partitions, chunks, latest, awaited) = Default::default();
        let mut passage = Passage { to, partitions, chunks, latest, awaited };
        let mut place_all = |places: &[Place]| {
            let place = |place: &Place| {
                passage.partitions.insert(place.number, (place.bytes, passage.chunks));
                let offset = passage.chunks * self.chunk_bytes;
                passage.chunks += place.bytes.div_ceil(self.chunk_bytes);
                Place { offset, ..*place }
            };
            places.iter().map(place).collect()
        };
        let repaired = layout.repaired.iter().map(|(round, places)| (*round, place_all(places)));
        let repaired = repaired.collect();
        let layout = Layout { places: place_all(&layout.places), repaired, ..layout };
        client.register_from(tensor, to, layout, round);
        self.tensors.insert((tensor, from, None), passage);
    }

    /// What is passed on of a partition's tensor, or of the partition alone.
    fn passage(&self, tensor: TensorId, tier: Tier, partition: u32) -> Option<&Passage> {
        let whole = self.tensors.get(&(tensor, tier, None));
        whole.or_else(|| self.tensors.get(&(tensor, tier, Some(partition))))
    }

    /// Bytes that were passed on of what the machines of a rack contribute, as a worker contributes
    /// them.
    #[must_use]
    pub fn rack_bytes(&self) -> u64 {
        self.rack_bytes
    }

    /// Between two epochs: whatever was lent is given back as it comes, and nothing is passed on
    /// before the tensors have been registered anew.
    pub fn suspend(&mut self) {
        self.tensors.clear();
        self.running.clear();
    }

    /// A new epoch begins, with chunks of this size.
    pub fn resume(&mut self, chunk_bytes: u32) {
        self.chunk_bytes = chunk_bytes as usize;
    }

    /// Passes on the subtotals that the lane has; true if there were any. Tells the lanes that
    /// made the totals of those that this machine has.
    pub fn pass_on<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        lane: &mut Lane,
    ) -> bool {
        while let Some(total) = lane.next_total(self.job) {
            let Total { tensor, tier, partition, round, .. } = total;
            let passage = self.passage(tensor, tier, partition).filter(|_| !self.closed);
            if let Some(Passage { to, awaited, .. }) = passage
                && !self.failed.contains(&tensor)
            {
                let of = (tensor, *to);
                let is_reported = client.acknowledge(of, partition, round, *awaited);
                // What a lane has made that does not die is there for those who lack it.
                if !is_reported && self.tensors.contains_key(&(tensor, tier, Some(partition))) {
                    lane.release_total(total);
                }
            }
        }
        while let Some((total, update)) = lane.next_decision(self.job) {
            let Total { tensor, tier, partition, round, .. } = total;
            let passage = self.passage(tensor, tier, partition);
            let latest = passage.and_then(|passage| passage.latest);
            let current = |op: &OpId| client.round(*op) == Some(round);
            // What is not passed on yet is decided when it begins. A worker decides about all of a
            // tensor at once.
            if let Some(op) = latest.filter(current) {
                client.decide(op, update);
            }
        }
        let mut any = false;
        while let Some((of, spec, bytes)) = lane.next_subtotal(self.job) {
            any = true;
            if self.closed || self.failed.contains(&of.tensor) {
                lane.recycle(bytes);
                continue;
            }
            let learned = self.learn(client, lane, (&of, &spec));
            let found = learned.and_then(|()| self.operation(client, lane, of, &spec));
            let (op, slot) = match found {
                Ok(found) => found,
                // A worker took part in what is none of this hub's: that fails, and no more.
                Err(reason) => {
                    lane.recycle(bytes);
                    self.refuse(lane, of.tensor, reason);
                    continue;
                }
            };
            match client.memory_mut(op) {
                Some(OpMemory::Subtotals(held)) => {
                    held.chunks[slot] = Some(bytes);
                    if of.tier == Tier::Rack
                        && spec.collective.contributes(client.rank(), spec.root)
                    {
                        let before = of.chunk as usize * self.chunk_bytes;
                        let left = (spec.bytes as usize).saturating_sub(before);
                        self.rack_bytes += left.min(self.chunk_bytes) as u64;
                    }
                    client.supply_chunks(op, of.partition, of.chunk + 1);
                }
                _ => lane.recycle(bytes),
            }
        }
        any
    }

    fn refuse(&mut self, lane: &mut Lane, tensor: TensorId, reason: &str) {
        self.failed.insert(tensor);
        lane.refuse_subtotals(self.job, tensor, reason);
    }

    /// A subtotal with a route may be the first of its partition: registers it from its round on.
    fn learn<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        lane: &Lane,
        (of, spec): (&Subtotal, &PartitionSpec),
    ) -> Result<(), &'static str> {
        let Some(Route { lane: next, group, keeps, rank }) = spec.route else { return Ok(()) };
        let key = (of.tensor, of.tier, Some(of.partition));
        if self.tensors.contains_key(&key) {
            return Ok(());
        }
        if rank != client.rank() {
            return Err("a subtotal was to be passed on as another server's");
        }
        let members = lane.group(self.job, group).ok_or("a route to a group that is not known")?;
        let group = client.define_group(&members);
        let next = ConnId(next as usize);
        if keeps {
            client.await_release_of(next);
        }
        let (to, bytes) = (Tier::Root, spec.bytes as usize);
        let place = Place::new(next, of.partition, (0, bytes), group, members.len() as u32);
        client.register_alone(of.tensor, to, place, of.round);
        let partitions = [(of.partition, (bytes, 0))].into_iter().collect();
        let (chunks, latest, awaited) = (spec.chunks() as usize, None, false);
        self.tensors.insert(key, Passage { to, partitions, chunks, latest, awaited });
        Ok(())
    }

    /// The operation that passes on the round of a subtotal, and where the chunk is in its memory.
    fn operation<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        lane: &Lane,
        of: Subtotal,
        spec: &PartitionSpec,
    ) -> Result<(OpId, usize), &'static str> {
        let alone = spec.route.map(|_| of.partition);
        let passage = self.tensors.get_mut(&(of.tensor, of.tier, alone));
        let passage = passage.ok_or("this worker passes no subtotal of the tensor on")?;
        let known = passage.partitions.get(&of.partition);
        let (bytes, first) = known.ok_or("this worker passes no subtotal of the partition on")?;
        if (spec.bytes as usize, spec.chunk_bytes as usize) != (*bytes, self.chunk_bytes) {
            return Err("an aggregate's partition has another size than the one that is passed on");
        }
        let slot = first + of.chunk as usize;
        let current = |op: &OpId| client.round(*op) == Some(of.round);
        if let Some(op) = passage.latest.filter(current) {
            return Ok((op, slot));
        }
        // Its operations are over here, and what this worker mirrors of a variable is gone.
        if client.has_failed((of.tensor, passage.to, alone)) {
            return Err("the tensor has failed on the worker that passes its subtotals on");
        }
        if client.next_round_of((of.tensor, passage.to, alone)) != Some(of.round) {
            return Err("an aggregate's round is not the one that is passed on next");
        }
        let request = Request {
            tensor: of.tensor,
            tier: passage.to,
            collective: spec.collective,
            dtype: spec.dtype,
            op: spec.op,
            root: spec.root,
            // The lane of a variable divides, by the number of all workers.
            average: spec.variable.is_some_and(|variable| variable.divisor > 1),
            // All members have begun, that of this worker too, so its own operation is under way.
            priority: match alone {
                None => client.active(of.tensor).map_or(0, |request| request.priority),
                Some(_) => lane.priority_of(&of).unwrap_or(0),
            },
            supply: Supply::Chunks,
            call: lane.call_of(&of),
            update: lane.update_of(&of),
            rescale: client.active(of.tensor).map_or(1.0, |request| request.rescale),
        };
        let chunks = std::iter::repeat_with(|| None).take(passage.chunks).collect();
        let memory = Subtotals { chunk_bytes: self.chunk_bytes, chunks };
        let op = client.submit_to(request, alone, OpMemory::Subtotals(memory));
        passage.latest = Some(op);
        passage.awaited = spec.collective.has_root();
        let (tensor, from, round) = (of.tensor, of.tier, of.round);
        let running = Running { tensor, from, round, alone, late: Vec::new() };
        self.running.insert(op, running);
        Ok((op, slot))
    }

    /// Takes the client's events that are about subtotals; all others are returned.
    ///
    /// # Errors
    /// [`Violation`] when client and lane disagree: a bug, since both are ours.
    pub fn on_event<M: Memory>(
        &mut self,
        event: Event<OpMemory<M>>,
        client: &mut Client<OpMemory<M>>,
        lane: &mut Lane,
    ) -> Result<Option<Event<M>>, Violation> {
        match event {
            Event::Arrived { op, number, chunk } if self.running.contains_key(&op) => {
                self.give_back(client, lane, (op, number, chunk))?;
                Ok(None)
            }
            Event::PartitionDone { op, number } => {
                if let Some(running) = self.running.get(&op) {
                    let (bytes, _) = self.tensors[&running.of()].partitions[&number];
                    for chunk in 0..bytes.div_ceil(self.chunk_bytes) as u32 {
                        self.give_back(client, lane, (op, number, chunk))?;
                    }
                }
                Ok(None)
            }
            Event::Mirrored { op, number: partition } => {
                if let Some(running) = self.running.get(&op) {
                    lane.settle_total(running.total(self.job, partition));
                }
                Ok(None)
            }
            Event::PartitionNorm { op, number: partition, squares } => {
                if let Some(running) = self.running.get(&op) {
                    lane.pass_norm(running.total(self.job, partition), &squares);
                }
                Ok(None)
            }
            Event::Finished(op, outcome) if self.running.contains_key(&op) => {
                if let (Err(reason), false) = (outcome, self.closed) {
                    self.refuse(lane, self.running[&op].tensor, &reason);
                }
                Ok(None)
            }
            Event::DeliveredToAll { tensor, tier: to, number: partition, round } => {
                let goes_there = |tier: &Tier| {
                    self.passage(tensor, *tier, partition).is_some_and(|passage| passage.to == to)
                };
                if let Some(tier) = Tier::AGGREGATES.into_iter().find(goes_there) {
                    lane.release_total(Total { job: self.job, tensor, tier, partition, round });
                }
                Ok(None)
            }
            Event::Released(op, OpMemory::Subtotals(memory)) => {
                self.release(op, memory, lane)?;
                Ok(None)
            }
            Event::Released(_, OpMemory::Results(_)) => Ok(None),
            Event::Released(op, OpMemory::Tensor(memory)) => Ok(Some(Event::Released(op, memory))),
            Event::Finished(op, outcome) => Ok(Some(Event::Finished(op, outcome))),
            Event::Arrived { op, number, chunk } => Ok(Some(Event::Arrived { op, number, chunk })),
            Event::Available { op, bytes } => Ok(Some(Event::Available { op, bytes })),
            Event::Norm { op, squares } => Ok(Some(Event::Norm { op, squares })),
            Event::Ordered { op, order } => Ok(Some(Event::Ordered { op, order })),
        }
    }

    /// A total has arrived, or a subtotal is not needed any more: the lane gets it in the buffer it
    /// lent.
    fn give_back<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        lane: &mut Lane,
        (op, number, chunk): (OpId, u32, u32),
    ) -> Result<(), Violation> {
        let queued = client.is_queued(op, number, chunk);
        let running = self.running.get_mut(&op).expect("a running operation");
        let Some(OpMemory::Subtotals(held)) = client.memory_mut(op) else {
            running.late.push((number, chunk));
            return Ok(());
        };
        let at = self.tensors[&running.of()].slot(number, chunk);
        let slot = &mut held.chunks[at];
        let total = match slot {
            // After a cut a frame may still have to send these bytes, though they count no more.
            Some(bytes) if queued => {
                let mut copy = lane.spare(bytes.len());
                copy.copy_from_slice(bytes);
                Some(copy)
            }
            _ => slot.take(),
        };
        let total = total.ok_or_else(|| Violation::state("a total without a buffer"))?;
        lane.return_total(running.chunk(self.job, number, chunk), total)
    }

    /// The client has let go of an operation's memory: totals that had arrived by then go back.
    fn release(
        &mut self,
        op: OpId,
        mut memory: Subtotals,
        lane: &mut Lane,
    ) -> Result<(), Violation> {
        let Some(running) = self.running.remove(&op) else {
            memory.chunks.into_iter().flatten().for_each(|bytes| lane.recycle(bytes));
            return Ok(());
        };
        let passage = &self.tensors[&running.of()];
        for (number, chunk) in &running.late {
            let total = memory.chunks[passage.slot(*number, *chunk)].take();
            let total = total.ok_or_else(|| Violation::state("a total without a buffer"))?;
            lane.return_total(running.chunk(self.job, *number, *chunk), total)?;
        }
        memory.chunks.into_iter().flatten().for_each(|bytes| lane.recycle(bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sumpter_endpoint::OwnedMemory;
    use sumpter_transport::in_process;
    use sumpter_types::{Collective, Dtype, Epoch, GroupId, Rank, ReduceOp};

    use super::*;
    use crate::resident::exchange;
    use crate::{ClientSettings, LaneLimits, Peer};

    const JOB: JobId = JobId(1);
    const TENSOR: TensorId = TensorId(0);
    const CHUNK_BYTES: u32 = 64;
    const BYTES: usize = 100;
    /// The lane beside the worker; behind it the one that its machine contributes to.
    const OWN: ConnId = ConnId(0);
    const ROOT: ConnId = ConnId(1);

    /// A worker of two, alone on its machine, with its first round's subtotals in the lane.
    fn contributed() -> (Client<OpMemory<OwnedMemory>>, Lane, Hub) {
        let settings = ClientSettings {
            rank: Rank(0),
            world_size: 2,
            epoch: Epoch(1),
            chunk_bytes: CHUNK_BYTES,
            credit_bytes: 1 << 20,
            deterministic: false,
            checksum: false,
        };
        let mut client = Client::new(settings, 2);
        let (machine, all) = (client.define_group(&[Rank(0)]), GroupId(0));
        let place = |lane, group, workers| Place::new(lane, 0, (0, BYTES), group, workers);
        client.register(TENSOR, Tier::Machine, vec![place(OWN, machine, 1)]);
        let mut hub = Hub::new(JOB, CHUNK_BYTES);
        let tiers = (Tier::Machine, Tier::Root);
        let layout = Layout::new(vec![place(ROOT, all, 2)]);
        hub.register(&mut client, TENSOR, tiers, layout, Round(0));
        let limits = LaneLimits { max_job_bytes: 1 << 20, max_chunk_bytes: 1 << 20, hub: true };
        let mut lane = Lane::new(limits);
        let (job, rank, world_size, epoch) = (JOB, Rank(0), 2, Epoch(1));
        let peer = Peer { job, rank, world_size, epoch, keeps: false, checksum: false };
        client.attached(OWN);
        let conn = lane.open_resident(peer).unwrap();
        let request = Request {
            tensor: TENSOR,
            tier: Tier::Machine,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale: 1.0,
        };
        let memory = OwnedMemory { separate: None, bytes: vec![1; BYTES] };
        client.submit(request, OpMemory::Tensor(memory));
        let (on_client, on_lane) = ((&mut client, OWN), (&mut lane, conn));
        in_process(on_client, on_lane, Duration::ZERO, usize::MAX).unwrap();
        exchange((&mut client, OWN), (&mut lane, conn), usize::MAX).unwrap();
        (client, lane, hub)
    }

    #[test]
    fn subtotals_are_passed_on() {
        let (mut client, mut lane, mut hub) = contributed();
        assert!(hub.pass_on(&mut client, &mut lane));
        assert_eq!(client.next_round_of((TENSOR, Tier::Root, None)), Some(Round(1)));
    }

    #[test]
    fn no_round_begins_of_a_tensor_that_has_failed() {
        let (mut client, mut lane, mut hub) = contributed();
        client.fail_tensor(TENSOR, "this worker refuses it");
        assert!(hub.pass_on(&mut client, &mut lane));
        assert_eq!(client.next_round_of((TENSOR, Tier::Root, None)), Some(Round(0)));
        assert!(!hub.pass_on(&mut client, &mut lane), "they are not offered again");
    }
}
