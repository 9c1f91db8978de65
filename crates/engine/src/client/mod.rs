//! The communication service of a worker, as a state machine.
//!
//! It cuts operations into the partitions of the placement, sends each lane its partitions in
//! the order of priority, and writes the lanes' results into the tensors. What goes on a
//! connection is chosen only when the connection can take it, so that a later, more urgent
//! partition overtakes all that has not been handed over.
//!
//! Partitions are admitted to their connections in one order for all lanes, the one in which the
//! placement dealt them out, and only `credit_bytes` ahead of what has been sent. So the lanes
//! advance together and every link carries its share at any time, though TCP would give each
//! connection the same rate.
//!
//! Invariants: the rounds of a tensor run one after another; a chunk of a result is taken once
//! and in order; after a connection is made anew, every partition that is not done begins again,
//! from the results it holds; memory lives until no queued frame refers to it.
//!
//! A *streamed* operation gets its contribution chunk by chunk while it runs. It is paced by
//! whoever supplies it, so it waits for no credit: what it holds of the credit could otherwise
//! keep the very contributions from being sent that it waits for.

mod awaited;
mod kept;
mod link;
mod notes;
mod op;
mod receiving;
mod sending;
mod streaming;
mod suspension;

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use sumpter_observe::{Kind, Peer, Recorder};
use sumpter_sum::BufferPool;
use sumpter_types::{Epoch, GroupId, Rank, Round, TensorId};
use sumpter_wire::{Tier, group_id};

pub use self::awaited::{Awaited, Backlog};
pub use self::kept::Kept;
pub use self::op::{Layout, OpId, Place, REPAIRED, Request};
pub use self::suspension::Standing;

use self::kept::Shelf;
use self::link::{ChunkRef, Frame, Input, Link, Ready};
use self::op::{Op, Stage};
use crate::inbox::{Inbox, fill};
use sumpter_endpoint::Memory;
use sumpter_endpoint::{
    ConnId, Endpoint, Incoming, MAX_SLICES, Now, Outgoing, Violation, push_after,
};

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
    /// Bytes of partitions that may be admitted and not yet sent, over all lanes.
    pub credit_bytes: usize,
    /// Whether contributions are added in rank order.
    pub deterministic: bool,
    /// Whether frames carry checksums, but those of a lane in this process.
    pub checksum: bool,
}

/// Bytes of free buffers for results that are kept: what is under way at a time is about the
/// credit of all workers, so this only bounds what a burst leaves behind.
const SPARE_BYTES: usize = 256 << 20;

/// What happened to an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<M> {
    /// The result is there, or the operation failed with a reason.
    Finished(OpId, Result<(), String>),
    /// One more chunk of a streamed operation's result is in the memory; in order, and before the
    /// operation is finished.
    Arrived {
        /// The operation.
        op: OpId,
        /// The partition's number.
        number: u32,
        /// The chunk.
        chunk: u32,
    },
    /// Everyone has a round's result of a partition of which this worker streams a subtotal.
    Everywhere {
        /// The tensor.
        tensor: TensorId,
        /// The partition's number.
        number: u32,
        /// The round.
        round: Round,
    },
    /// The memory is no longer used.
    Released(OpId, M),
}

/// The state machine of one worker's communication service.
#[derive(Debug)]
pub struct Client<M> {
    settings: ClientSettings,
    links: Vec<Link>,
    groups: HashMap<GroupId, Arc<[Rank]>>,
    tensors: HashMap<(TensorId, Tier), Tensor>,
    ops: HashMap<OpId, Op<M>>,
    submitted: u64,
    /// Partitions that are not admitted yet.
    stream: Ready,
    /// Bytes of partitions that are admitted and not sent.
    admitted_bytes: usize,
    dirty: VecDeque<ConnId>,
    events: VecDeque<Event<M>>,
    /// Results that others may lack, in buffers of this pool.
    shelf: Shelf,
    pool: BufferPool,
    /// By tensor, what is passed on to those who lack it, and by which operation.
    relays: HashMap<(TensorId, Round), Relaying>,
    /// Between two epochs: operations wait for their new layouts.
    suspended: bool,
    corrupt_frames: u64,
    /// What happened, and what the lanes are called there.
    recorder: Recorder,
    peers: Vec<Peer>,
}

/// What this worker passes on of a tensor in this epoch.
#[derive(Debug)]
struct Relaying {
    op: OpId,
    places: Arc<[Place]>,
}

#[derive(Debug)]
struct Tensor {
    layout: Layout,
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
            links: (0..lanes).map(|_| Link::new(settings.checksum)).collect(),
            groups: HashMap::new(),
            tensors: HashMap::new(),
            ops: HashMap::new(),
            submitted: 0,
            stream: Ready::new(),
            admitted_bytes: 0,
            dirty: VecDeque::new(),
            events: VecDeque::new(),
            shelf: Shelf::default(),
            pool: BufferPool::new(SPARE_BYTES),
            relays: HashMap::new(),
            suspended: false,
            corrupt_frames: 0,
            recorder: Recorder::default(),
            peers: Vec::new(),
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

    /// Makes known where the partitions of a tensor are summed, before its first operation. The
    /// rounds of each tier are counted on their own.
    pub fn register(&mut self, tensor: TensorId, tier: Tier, layout: impl Into<Layout>) {
        self.register_from(tensor, tier, layout.into(), Round(0));
    }

    /// The same for a tensor whose next round is not the first.
    pub fn register_from(&mut self, tensor: TensorId, tier: Tier, layout: Layout, round: Round) {
        let sorted = |places: &[Place]| places.is_sorted_by(|a, b| a.number < b.number);
        debug_assert!(sorted(&layout.places), "places out of order");
        let fresh = Tensor { layout, next_round: round, active: None, waiting: VecDeque::new() };
        self.tensors.insert((tensor, tier), fresh);
    }

    /// Queues an operation; its tensor must be registered and the groups of its places defined.
    pub fn submit(&mut self, request: Request, memory: M) -> OpId {
        let id = OpId(self.submitted);
        self.submitted += 1;
        let key = (request.tensor, request.tier);
        let tensor = self.tensors.get_mut(&key).expect("a registered tensor");
        let round = tensor.next_round;
        tensor.next_round = round.next();
        let places = tensor.layout.of(round).clone();
        let waits = tensor.active.is_some();
        if waits {
            tensor.waiting.push_back(id);
        }
        self.ops.insert(id, Op::new(request, round, memory, places));
        self.note_op(Kind::Submitted, id);
        if !waits {
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

    /// Bytes of results, since each connection was made, that were copied once more after they
    /// were received, because they came right behind a header.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.links.iter().map(|link| link.inbox.copied_bytes()).sum()
    }

    /// Whether frames carry checksums, as this client asks of every lane elsewhere.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.settings.checksum
    }

    /// Frames that were damaged on their way here; each cost its connection.
    #[must_use]
    pub fn corrupt_frames(&self) -> u64 {
        self.corrupt_frames
    }

    /// Whether the connection of `lane` is up.
    #[must_use]
    pub fn is_up(&self, lane: ConnId) -> bool {
        self.links[lane.0].up
    }

    /// Results of `lane` are kept until it says that everyone has them: its process may die
    /// without ending the job.
    pub fn keep_results_of(&mut self, lane: ConnId) {
        self.links[lane.0].keeps = true;
    }

    /// The connection to `lane` is there, its handshake done.
    pub fn connected(&mut self, lane: ConnId) {
        self.links[lane.0].up = true;
        self.repeat_acks(lane);
        self.touch(lane);
    }

    /// `lane` is in this process: see [`exchange`](crate::exchange).
    pub fn attached(&mut self, lane: ConnId) {
        let link = &mut self.links[lane.0];
        (link.resident, link.inbox) = (true, Inbox::new(false));
        self.connected(lane);
    }

    /// The connection to `lane` is gone: what is not done begins again on the next one.
    pub fn disconnected(&mut self, lane: ConnId) {
        self.drop_input(lane);
        for frame in self.links[lane.0].reset() {
            self.unqueue(frame.chunk);
        }
        let mut again = Ready::new();
        for (id, op) in self.ops.iter_mut().filter(|(_, op)| op.stage == Stage::Active) {
            for (index, part) in op.parts.iter_mut().enumerate() {
                if op.places[index].lane == lane && part.begun && !part.done {
                    (part.sent, part.told, part.ready) = (part.have, false, true);
                    part.asked.clear();
                    // While the connection is made anew, the others must not wait for it.
                    self.admitted_bytes -= std::mem::take(&mut part.admitted);
                    let priority = op.request.priority;
                    again.push(priority, (*id, index), ());
                }
            }
        }
        self.links[lane.0].ready = again;
        self.admit();
    }

    /// Fails the operations on one tensor.
    pub fn fail_tensor(&mut self, tensor: TensorId, reason: &str) {
        self.shelf.forget(tensor, &mut self.pool);
        let of_tensor = |id: &OpId| self.ops[id].request.tensor == tensor;
        let ids: Vec<_> = self.unfinished().into_iter().filter(of_tensor).collect();
        for tier in [Tier::Root, Tier::Machine] {
            if let Some(tensor) = self.tensors.get_mut(&(tensor, tier)) {
                tensor.active = None;
                tensor.waiting.clear();
            }
        }
        for id in ids {
            self.finish(id, Err(reason.to_owned()));
        }
    }

    /// Fails everything that is not finished.
    pub fn fail_all(&mut self, reason: impl Fn(OpId) -> String) {
        self.shelf = Shelf::default();
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
        let key = (op.request.tensor, op.request.tier);
        self.tensors.get_mut(&key).expect("a registered tensor").active = Some(id);
        if !self.suspended {
            self.launch(id);
        }
    }

    /// Gives the partitions of an active operation to the stream.
    fn launch(&mut self, id: OpId) {
        let op = &self.ops[&id];
        let (places, request) = (op.places.clone(), op.request);
        for index in 0..places.len() {
            if request.streamed {
                self.begin(request.priority, id, index);
            } else {
                self.stream.push(request.priority, (id, index), ());
            }
        }
        if places.is_empty() {
            self.succeed(id);
        }
        self.admit();
    }

    /// Gives connections the next partitions of the stream, as far as the credit goes.
    fn admit(&mut self) {
        while self.admitted_bytes < self.settings.credit_bytes
            && let Some((priority, (id, index), ())) = self.stream.pop()
        {
            let Some(op) = self.ops.get_mut(&id).filter(|op| op.stage == Stage::Active) else {
                continue;
            };
            let place = op.places[index];
            let link = &self.links[place.lane.0];
            if link.up && !link.resident && op.contributes(index, self.settings.rank) {
                op.parts[index].admitted = place.bytes;
                self.admitted_bytes += place.bytes;
            }
            self.begin(priority, id, index);
        }
    }

    /// Gives a partition of an active operation to its connection.
    fn begin(&mut self, priority: i32, id: OpId, index: usize) {
        let op = self.ops.get_mut(&id).expect("an active operation");
        let lane = op.places[index].lane;
        (op.parts[index].begun, op.parts[index].ready) = (true, true);
        self.links[lane.0].ready.push(priority, (id, index), ());
        self.touch(lane);
    }

    fn succeed(&mut self, id: OpId) {
        let Op { request: Request { tensor, tier, .. }, round, .. } = self.ops[&id];
        if self.relays.get(&(tensor, round)).is_some_and(|relaying| relaying.op == id) {
            return self.finish(id, Ok(()));
        }
        let tensor = self.tensors.get_mut(&(tensor, tier)).expect("a registered tensor");
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
        for part in &mut op.parts {
            self.admitted_bytes -= std::mem::take(&mut part.admitted);
        }
        for link in &mut self.links {
            if let Input::Chunk { op, have, len, kept, .. } = &mut link.input
                && *op == id
            {
                kept.take().into_iter().for_each(|bytes| self.pool.give(bytes));
                link.input = Input::Discard { left: *len - *have };
            }
        }
        self.note_op(Kind::Finished, id);
        self.events.push_back(Event::Finished(id, outcome));
        self.release(id);
        self.admit();
    }

    fn release(&mut self, id: OpId) {
        let unused = |op: &Op<M>| op.stage == Stage::Finished && op.queued == 0;
        if self.ops.get(&id).is_some_and(unused) {
            let op = self.ops.remove(&id).expect("just seen");
            self.events.push_back(Event::Released(id, op.memory));
        }
    }

    fn unqueue(&mut self, chunk: Option<ChunkRef>) {
        if let Some(ChunkRef { op: id, part, len, .. }) = chunk {
            let op = self.ops.get_mut(&id).expect("a queued frame's operation is kept");
            op.queued -= 1;
            let credit = len.min(op.parts[part].admitted);
            op.parts[part].admitted -= credit;
            self.admitted_bytes -= credit;
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
}

impl<M: Memory> Endpoint for Client<M> {
    fn pending(&mut self, lane: ConnId) -> Outgoing<'_> {
        self.refill(lane);
        let link = &self.links[lane.0];
        let mut out = Outgoing::new();
        let mut skip = link.sent;
        for frame in link.output.iter().take(MAX_SLICES / 2) {
            push_after(&mut out, frame.head(), &mut skip);
            if let Some(ChunkRef { op, offset, len, .. }) = frame.chunk {
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
            let frame = link.output.pop_front().expect("just seen");
            link.output_bytes -= len;
            frame.chunk.into_iter().for_each(|chunk| self.note_sent(chunk));
            self.unqueue(frame.chunk);
        }
        self.admit();
    }

    fn space(&mut self, lane: ConnId) -> Incoming<'_> {
        let mut out = Incoming::new();
        let link = &mut self.links[lane.0];
        match &mut link.input {
            Input::Chunk { have, kept: Some(bytes), .. } => {
                out.push(IoSliceMut::new(&mut bytes[*have..]));
            }
            Input::Chunk { op, part, chunk, have, len, kept: None } => {
                let op = self.ops.get_mut(op).expect("a receiving operation");
                let (offset, _) = op.range(*part, *chunk, self.settings.chunk_bytes);
                out.push(IoSliceMut::new(op.memory.result(offset + *have, *len - *have)));
            }
            Input::Error { bytes, have, .. } => out.push(IoSliceMut::new(&mut bytes[*have..])),
            Input::Header | Input::Discard { .. } => {}
        }
        let payload = out.iter().map(|space| space.len()).sum();
        out.push(IoSliceMut::new(link.inbox.tail_behind(payload)));
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
        self.take_in(lane).inspect_err(|violation| {
            self.corrupt_frames += u64::from(violation.is_corruption());
        })
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        let lane = self.dirty.pop_front()?;
        self.links[lane.0].dirty = false;
        Some(lane)
    }
}
