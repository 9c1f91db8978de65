//! The communication service of a worker, as a state machine.
//!
//! It cuts operations into the partitions of the placement, sends each lane its partitions in
//! the order of priority, and writes the lanes' results into the tensors. What goes on a
//! connection is chosen only when the connection can take it, so that a later, more urgent
//! partition overtakes all that has not been handed over; `credit_bytes` bounds what has.
//!
//! Invariants: the rounds of a tensor run one after another; a chunk of a result is taken once
//! and in order; after a connection is made anew, every partition that is not done begins again,
//! from the results it holds; memory lives until no queued frame refers to it.

mod link;
mod op;

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use arrayvec::ArrayVec;
use sumpter_wire::{
    Epoch, FrameKind, GroupId, Header, Rank, Round, TensorId, encode_group, group_id,
};

pub use self::op::{OpId, Place, Request};

use self::link::{ChunkRef, Frame, Head, Input, Link, Ready};
use self::op::{Op, Part, Stage};
use crate::endpoint::{
    ConnId, Endpoint, Incoming, MAX_SLICES, Now, Outgoing, Violation, push_after,
};
use crate::memory::Memory;

/// What a client must know from the start.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings {
    /// This worker.
    pub rank: Rank,
    /// Workers in the job.
    pub world_size: u32,
    /// The epoch of the plan.
    pub epoch: Epoch,
    /// Bytes of a chunk, a multiple of 64.
    pub chunk_bytes: u32,
    /// Bytes that may be queued on connections, over all lanes.
    pub credit_bytes: usize,
    /// Whether contributions are added in rank order.
    pub deterministic: bool,
}

/// What happened to an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<M> {
    /// The result is there, or the operation failed with a reason.
    Finished(OpId, Result<(), String>),
    /// The memory is no longer used.
    Released(OpId, M),
}

/// The state machine of one worker's communication service.
#[derive(Debug)]
pub struct Client<M> {
    settings: ClientSettings,
    links: Vec<Link>,
    groups: HashMap<GroupId, Arc<[Rank]>>,
    tensors: HashMap<TensorId, Tensor>,
    ops: HashMap<OpId, Op<M>>,
    submitted: u64,
    dirty: VecDeque<ConnId>,
    events: VecDeque<Event<M>>,
}

#[derive(Debug)]
struct Tensor {
    places: Arc<[Place]>,
    next_round: Round,
    active: Option<OpId>,
    waiting: VecDeque<OpId>,
}

impl<M: Memory> Client<M> {
    /// A client with `lanes` connections, all of them down.
    #[must_use]
    pub fn new(settings: ClientSettings, lanes: usize) -> Client<M> {
        Client {
            settings,
            links: (0..lanes).map(|_| Link::new()).collect(),
            groups: HashMap::new(),
            tensors: HashMap::new(),
            ops: HashMap::new(),
            submitted: 0,
            dirty: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The id of a group of workers, in ascending order; everyone is group 0.
    pub fn define_group(&mut self, ranks: &[Rank]) -> GroupId {
        if ranks.len() == self.settings.world_size as usize {
            return GroupId(0);
        }
        let id = group_id(ranks);
        self.groups.entry(id).or_insert_with(|| ranks.into());
        id
    }

    /// Makes a tensor's placement known, before its first operation.
    pub fn register(&mut self, tensor: TensorId, places: Vec<Place>) {
        let places = places.into();
        let fresh = Tensor { places, next_round: Round(0), active: None, waiting: VecDeque::new() };
        self.tensors.insert(tensor, fresh);
    }

    /// Queues an operation; its tensor must be registered and its group defined.
    pub fn submit(&mut self, request: Request, memory: M) -> OpId {
        let id = OpId(self.submitted);
        self.submitted += 1;
        let tensor = self.tensors.get_mut(&request.tensor).expect("a registered tensor");
        let places = tensor.places.clone();
        let round = tensor.next_round;
        tensor.next_round = round.next();
        let parts = vec![Part::default(); places.len()];
        let (left, stage) = (parts.len(), Stage::Waiting);
        self.ops.insert(id, Op { request, round, memory, places, parts, left, queued: 0, stage });
        if tensor.active.is_some() {
            tensor.waiting.push_back(id);
        } else {
            self.activate(id);
        }
        id
    }

    /// What happened since the last call.
    pub fn next_event(&mut self) -> Option<Event<M>> {
        self.events.pop_front()
    }

    /// The operations that are not finished, oldest first.
    #[must_use]
    pub fn unfinished(&self) -> Vec<OpId> {
        let live = self.ops.iter().filter(|(_, op)| op.stage != Stage::Finished);
        let mut ids: Vec<_> = live.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether the connection of `lane` is up.
    #[must_use]
    pub fn is_up(&self, lane: ConnId) -> bool {
        self.links[lane.0].up
    }

    /// The connection to `lane` is there, its handshake done.
    pub fn connected(&mut self, lane: ConnId) {
        self.links[lane.0].up = true;
        self.touch(lane);
    }

    /// The connection to `lane` is gone: what is not done begins again on the next one.
    pub fn disconnected(&mut self, lane: ConnId) {
        for frame in self.links[lane.0].reset() {
            self.unqueue(frame.chunk);
        }
        let mut again = Vec::new();
        for (id, op) in self.ops.iter_mut().filter(|(_, op)| op.stage == Stage::Active) {
            for (index, part) in op.parts.iter_mut().enumerate() {
                if op.places[index].lane == lane && !part.done {
                    part.sent = part.have;
                    let priority = op.request.priority;
                    again.push(Ready { priority, order: Reverse((*id, index)) });
                }
            }
        }
        self.links[lane.0].ready = again.into();
    }

    /// Fails the operations on one tensor.
    pub fn fail_tensor(&mut self, tensor: TensorId, reason: &str) {
        let of_tensor = |id: &OpId| self.ops[id].request.tensor == tensor;
        let ids: Vec<_> = self.unfinished().into_iter().filter(of_tensor).collect();
        if let Some(tensor) = self.tensors.get_mut(&tensor) {
            tensor.active = None;
            tensor.waiting.clear();
        }
        for id in ids {
            self.finish(id, Err(reason.to_owned()));
        }
    }

    /// Fails everything that is not finished.
    pub fn fail_all(&mut self, reason: impl Fn(OpId) -> String) {
        for tensor in self.tensors.values_mut() {
            tensor.active = None;
            tensor.waiting.clear();
        }
        for id in self.unfinished() {
            self.finish(id, Err(reason(id)));
        }
    }

    fn activate(&mut self, id: OpId) {
        let op = self.ops.get_mut(&id).expect("a submitted operation");
        op.stage = Stage::Active;
        let (places, priority) = (op.places.clone(), op.request.priority);
        let tensor = self.tensors.get_mut(&op.request.tensor).expect("a registered tensor");
        tensor.active = Some(id);
        for (index, place) in places.iter().enumerate() {
            let ready = Ready { priority, order: Reverse((id, index)) };
            self.links[place.lane.0].ready.push(ready);
            self.touch(place.lane);
        }
        if places.is_empty() {
            self.succeed(id);
        }
    }

    fn succeed(&mut self, id: OpId) {
        let tensor = self.ops[&id].request.tensor;
        let tensor = self.tensors.get_mut(&tensor).expect("a registered tensor");
        tensor.active = None;
        let next = tensor.waiting.pop_front();
        self.finish(id, Ok(()));
        if let Some(next) = next {
            self.activate(next);
        }
    }

    fn finish(&mut self, id: OpId, outcome: Result<(), String>) {
        let op = self.ops.get_mut(&id).expect("an unfinished operation");
        op.stage = Stage::Finished;
        for link in &mut self.links {
            if let Input::Chunk { op, have, len, .. } = link.input
                && op == id
            {
                link.input = Input::Discard { left: len - have };
            }
        }
        self.events.push_back(Event::Finished(id, outcome));
        self.release(id);
    }

    fn release(&mut self, id: OpId) {
        let unused = |op: &Op<M>| op.stage == Stage::Finished && op.queued == 0;
        if self.ops.get(&id).is_some_and(unused) {
            let op = self.ops.remove(&id).expect("just seen");
            self.events.push_back(Event::Released(id, op.memory));
        }
    }

    fn unqueue(&mut self, chunk: Option<ChunkRef>) {
        if let Some(ChunkRef { op: id, .. }) = chunk {
            self.ops.get_mut(&id).expect("a queued frame's operation is kept").queued -= 1;
            self.release(id);
        }
    }

    fn touch(&mut self, lane: ConnId) {
        let link = &mut self.links[lane.0];
        if link.up && !link.dirty {
            link.dirty = true;
            self.dirty.push_back(lane);
        }
    }

    /// Queues frames on a connection until it holds enough for one write or its credit.
    fn refill(&mut self, lane: ConnId) {
        let credit = (self.settings.credit_bytes / self.links.len()).max(1);
        loop {
            let link = &mut self.links[lane.0];
            if !link.up || link.output.len() >= MAX_SLICES / 2 || link.queued_bytes >= credit {
                return;
            }
            match link.current {
                Some((id, part)) => self.queue_chunk(lane, id, part),
                None => match link.ready.pop() {
                    Some(Ready { order: Reverse((id, part)), .. }) => {
                        self.queue_begin(lane, id, part);
                    }
                    None => return,
                },
            }
        }
    }

    fn queue_begin(&mut self, lane: ConnId, id: OpId, index: usize) {
        let Some(op) = self.ops.get(&id).filter(|op| op.stage == Stage::Active) else { return };
        let (rank, epoch) = (self.settings.rank, self.settings.epoch);
        let spec = op.spec(index, self.settings.chunk_bytes, self.settings.deterministic);
        let link = &mut self.links[lane.0];
        if spec.group != GroupId(0) && link.groups.insert(spec.group) {
            let ranks = encode_group(&self.groups[&spec.group]);
            let header = Header::new(FrameKind::Group, epoch, TensorId(spec.group.0));
            let header = Header { length: ranks.len() as u32, ..header };
            let head = [&header.encode()[..], &ranks].concat().into();
            link.push(Frame { head: Head::Group(head), chunk: None });
        }
        let part = &op.parts[index];
        let encoded = spec.encode();
        let header = Header {
            chunk: part.have,
            length: encoded.len() as u32,
            ..Self::header(FrameKind::Begin, epoch, op, index)
        };
        let mut head = ArrayVec::new();
        head.try_extend_from_slice(&header.encode()).expect("a header fits");
        head.try_extend_from_slice(&encoded).expect("a header and a spec fit");
        link.push(Frame { head: Head::Small(head), chunk: None });
        if op.request.collective.contributes(rank, op.request.root) && part.sent < spec.chunks() {
            link.current = Some((id, index));
        }
    }

    fn queue_chunk(&mut self, lane: ConnId, id: OpId, index: usize) {
        let chunk_bytes = self.settings.chunk_bytes;
        let link = &mut self.links[lane.0];
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.stage == Stage::Active) else {
            link.current = None;
            return;
        };
        let chunk = op.parts[index].sent;
        let (offset, len) = op.range(index, chunk, chunk_bytes);
        let header = Self::header(FrameKind::Push, self.settings.epoch, op, index);
        let header = Header { chunk, length: len as u32, ..header };
        let mut head = ArrayVec::new();
        head.try_extend_from_slice(&header.encode()).expect("a header fits");
        let chunk = Some(ChunkRef { op: id, offset, len });
        link.push(Frame { head: Head::Small(head), chunk });
        op.queued += 1;
        op.parts[index].sent += 1;
        if (op.parts[index].sent as usize) * (chunk_bytes as usize) >= op.places[index].bytes {
            link.current = None;
        }
    }

    fn header(kind: FrameKind, epoch: Epoch, op: &Op<M>, part: usize) -> Header {
        let header = Header::new(kind, epoch, op.request.tensor);
        Header { partition: part as u32, round: op.round, ..header }
    }

    fn start_frame(&mut self, lane: ConnId, header: Header) -> Result<(), Violation> {
        if header.epoch != self.settings.epoch {
            return Err(Violation::state(format!("a frame of epoch {}", header.epoch)));
        }
        let input = match header.kind {
            FrameKind::Result => self.expect(lane, &header)?,
            FrameKind::Done => {
                self.done(lane, &header)?;
                Input::Header
            }
            FrameKind::Error => {
                Input::Error { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Begin | FrameKind::Push | FrameKind::Group => {
                return Err(Violation::state(format!("a {:?} frame from a lane", header.kind)));
            }
        };
        self.links[lane.0].input = input;
        Ok(())
    }

    /// The active operation that a frame of a lane is about, if it is not of the past.
    fn subject(&self, lane: ConnId, header: &Header) -> Result<Option<OpId>, Violation> {
        let tensor = self.tensors.get(&header.tensor);
        let tensor = tensor.ok_or_else(|| Violation::state("a result of an unknown tensor"))?;
        let place = tensor.places.get(header.partition as usize);
        if place.is_none_or(|p| p.lane != lane) {
            return Err(Violation::state("a result of a partition that lives elsewhere"));
        }
        let current = |id: &OpId| self.ops[id].round == header.round;
        Ok(tensor.active.filter(current))
    }

    fn expect(&self, lane: ConnId, header: &Header) -> Result<Input, Violation> {
        let left = header.length as usize;
        let Some(id) = self.subject(lane, header)? else { return Ok(Input::Discard { left }) };
        let (op, part) = (&self.ops[&id], header.partition as usize);
        let have = op.parts[part].have;
        let (_, len) = op.range(part, header.chunk, self.settings.chunk_bytes);
        let request = &op.request;
        if !request.collective.receives(self.settings.rank, request.root) || len != left {
            return Err(Violation::state(format!(
                "a result of {left} bytes where {len} were expected"
            )));
        }
        match header.chunk {
            chunk if chunk < have => Ok(Input::Discard { left }),
            chunk if chunk == have => Ok(Input::Chunk { op: id, part, chunk, have: 0, len }),
            chunk => Err(Violation::state(format!("chunk {chunk} arrived before chunk {have}"))),
        }
    }

    fn done(&mut self, lane: ConnId, header: &Header) -> Result<(), Violation> {
        let Some(id) = self.subject(lane, header)? else { return Ok(()) };
        let request = self.ops[&id].request;
        if request.collective.receives(self.settings.rank, request.root) {
            return Err(Violation::state("a round was called done before its result was sent"));
        }
        self.part_done(id, header.partition as usize);
        Ok(())
    }

    fn finish_frame(&mut self, lane: ConnId) {
        match std::mem::replace(&mut self.links[lane.0].input, Input::Header) {
            Input::Header | Input::Discard { .. } => {}
            Input::Error { header, bytes, .. } => {
                self.fail_tensor(header.tensor, &String::from_utf8_lossy(&bytes));
            }
            Input::Chunk { op: id, part, chunk, .. } => {
                let chunk_bytes = self.settings.chunk_bytes;
                let op = self.ops.get_mut(&id).expect("a receiving operation");
                let (offset, len) = op.range(part, chunk, chunk_bytes);
                if let Some(divisor) = op.request.divisor {
                    let result = op.memory.result(offset, len);
                    sumpter_sum::divide(op.request.dtype, result, divisor);
                }
                op.parts[part].have = chunk + 1;
                if (chunk as usize + 1) * chunk_bytes as usize >= op.places[part].bytes {
                    self.part_done(id, part);
                }
            }
        }
    }

    fn part_done(&mut self, id: OpId, part: usize) {
        let op = self.ops.get_mut(&id).expect("an active operation");
        if std::mem::replace(&mut op.parts[part].done, true) {
            return;
        }
        op.left -= 1;
        if op.left == 0 {
            self.succeed(id);
        }
    }
}

impl<M: Memory> Endpoint for Client<M> {
    fn pending(&mut self, lane: ConnId) -> Outgoing<'_> {
        self.refill(lane);
        let link = &self.links[lane.0];
        let mut out = Outgoing::new();
        let mut skip = link.sent;
        for frame in link.output.iter().take(MAX_SLICES / 2) {
            push_after(&mut out, frame.head(), &mut skip);
            if let Some(ChunkRef { op, offset, len }) = frame.chunk {
                let bytes = self.ops[&op].memory.contribution(offset, len);
                let skipped = skip.min(len);
                skip -= skipped;
                out.push(IoSlice::new(&bytes[skipped..]));
            }
        }
        out
    }

    fn sent(&mut self, lane: ConnId, n: usize) {
        let link = &mut self.links[lane.0];
        link.sent += n;
        while let Some(len) = self.links[lane.0].output.front().map(Frame::len)
            && self.links[lane.0].sent >= len
        {
            let link = &mut self.links[lane.0];
            link.sent -= len;
            link.queued_bytes -= len;
            let frame = link.output.pop_front().expect("just seen");
            self.unqueue(frame.chunk);
        }
    }

    fn space(&mut self, lane: ConnId) -> Incoming<'_> {
        let mut out = Incoming::new();
        let link = &mut self.links[lane.0];
        match &mut link.input {
            Input::Chunk { op, part, chunk, have, len } => {
                let op = self.ops.get_mut(op).expect("a receiving operation");
                let (offset, _) = op.range(*part, *chunk, self.settings.chunk_bytes);
                out.push(IoSliceMut::new(op.memory.result(offset + *have, *len - *have)));
            }
            Input::Error { bytes, have, .. } => out.push(IoSliceMut::new(&mut bytes[*have..])),
            Input::Header | Input::Discard { .. } => {}
        }
        out.push(IoSliceMut::new(link.inbox.tail()));
        out
    }

    fn filled(&mut self, lane: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        let link = &mut self.links[lane.0];
        let direct = match &mut link.input {
            Input::Chunk { have, len, .. } => fill(have, *len, n),
            Input::Error { bytes, have, .. } => fill(have, bytes.len(), n),
            Input::Header | Input::Discard { .. } => 0,
        };
        link.inbox.grow(n - direct);
        loop {
            let link = &mut self.links[lane.0];
            if matches!(link.input, Input::Header) {
                match link.inbox.header()? {
                    Some(header) => self.start_frame(lane, header)?,
                    None => return Ok(()),
                }
            } else if self.advance(lane) {
                self.finish_frame(lane);
            } else {
                return Ok(());
            }
        }
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        let lane = self.dirty.pop_front()?;
        self.links[lane.0].dirty = false;
        Some(lane)
    }
}

impl<M: Memory> Client<M> {
    /// Moves staged bytes into the payload; true when the payload is complete.
    fn advance(&mut self, lane: ConnId) -> bool {
        let Link { input, inbox, .. } = &mut self.links[lane.0];
        match input {
            Input::Header => false,
            Input::Chunk { op, part, chunk, have, len } => {
                let op = self.ops.get_mut(op).expect("a receiving operation");
                let (offset, _) = op.range(*part, *chunk, self.settings.chunk_bytes);
                *have += inbox.take(op.memory.result(offset + *have, *len - *have));
                have == len
            }
            Input::Error { bytes, have, .. } => {
                *have += inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            Input::Discard { left } => {
                *left -= inbox.skip(*left);
                *left == 0
            }
        }
    }
}

/// Advances `have` by at most `n` up to `len`; returns by how much.
fn fill(have: &mut usize, len: usize, n: usize) -> usize {
    let direct = n.min(len - *have);
    *have += direct;
    direct
}
