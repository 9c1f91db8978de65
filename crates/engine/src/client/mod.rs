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
//! A contribution may come while the operation runs ([`Supply`]). What comes in ranges, from the
//! memory of a device, is admitted partition by partition as it becomes complete, so that nothing
//! holds credit that cannot be sent. What comes in chunks, from the lane beside the client, is
//! paced by its supplier and waits for no credit: what it held could otherwise keep the very
//! contributions from being sent that it waits for.
//!
//! A worker mirrors a share of each variable ([`Mirrors`]): of it the lane sends the gradient, and
//! the client applies the rule as the lane does. A round of a variable is done when the mirrors
//! have it; until then its contributions are kept, so that it can be done again.
//!
//! Each part of the state has an owner: [`Operations`] the rounds, [`CreditWindow`] the admission,
//! [`Links`] what is on the connections, [`RetainedResults`] what others may lack. [`Client`] joins
//! them.

mod credit;
mod event;
mod link;
mod mirror;
mod op;
mod operations;
mod order;
mod outstanding;
mod passing;
mod receiver;
mod receiving;
mod residuals;
mod retained;
mod sender;
mod sending;
mod trace;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use sumpter_endpoint::Memory;
use sumpter_endpoint::{ConnId, Endpoint, Incoming, Now, Outgoing, Violation};
use sumpter_observe::{EventKind, Peer, Recorder};
use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, Epoch, GroupId, Rank, Round, TensorId, Update};
use sumpter_wire::{FrameKind, Header, Tier, encode_apply, group_id};

pub use self::event::Event;
pub use self::op::{Carrier, Layout, OpId, Place, REPAIRED, Request, Supply, VariablePlace};
pub use self::operations::Standing;
pub use self::order::OrderSpan;
pub use self::outstanding::{Backlog, Outstanding};
pub use self::residuals::{CodecMemory, CodecMemoryError};
pub use self::retained::RetainedChunk;

use self::credit::CreditWindow;
use self::link::Links;
pub use self::mirror::MirroredElements;
use self::mirror::Mirrors;
use self::op::Stage;
use self::operations::Operations;
pub(crate) use self::operations::Sequence;
use self::residuals::Residuals;
use self::retained::RetainedResults;
use self::sender::{ChunkRef, Frame};
use self::trace::Trace;
use crate::chunk::ChunkId;
use crate::coding::Coding;
use crate::spans::Spans;

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

/// The state machine of one worker's communication service.
#[derive(Debug)]
pub struct Client<M> {
    settings: ClientSettings,
    groups: HashMap<GroupId, Arc<[Rank]>>,
    operations: Operations<M>,
    credit: CreditWindow,
    links: Links,
    retained: RetainedResults,
    residuals: Residuals,
    mirrors: Mirrors,
    /// Between two epochs: operations wait for their new layouts.
    suspended: bool,
    corrupt_frames: u64,
    events: VecDeque<Event<M>>,
    trace: Trace,
}

impl<M: Memory> Client<M> {
    /// A client with `lanes` connections, all of them down.
    #[must_use]
    pub fn new(settings: ClientSettings, lanes: usize) -> Client<M> {
        Client {
            settings,
            groups: HashMap::new(),
            operations: Operations::new(),
            credit: CreditWindow::new(settings.credit_bytes),
            links: Links::new(lanes, settings.checksum),
            retained: RetainedResults::new(),
            residuals: Residuals::default(),
            mirrors: Mirrors::default(),
            suspended: false,
            corrupt_frames: 0,
            events: VecDeque::new(),
            trace: Trace::default(),
        }
    }

    /// The id of a group of workers, in ascending order; everyone is group 0.
    pub fn define_group(&mut self, ranks: &[Rank]) -> GroupId {
        let world = self.settings.world_size;
        if ranks.len() == world as usize && ranks.last().is_some_and(|last| last.0 < world) {
            return GroupId(0);
        }
        let id = group_id(ranks);
        self.groups.entry(id).or_insert_with(|| ranks.into());
        id
    }

    /// Makes known where the partitions of a tensor are reduced, before its first operation. The
    /// rounds of each tier are counted on their own.
    pub fn register(&mut self, tensor: TensorId, tier: Tier, layout: impl Into<Layout>) {
        self.register_from(tensor, tier, layout.into(), Round(0));
    }

    /// The same for a tensor whose next round is not the first.
    pub fn register_from(&mut self, tensor: TensorId, tier: Tier, layout: Layout, round: Round) {
        self.operations.register((tensor, tier, None), layout, round);
    }

    /// Queues an operation; its tensor must be registered and the groups of its places defined.
    pub fn submit(&mut self, request: Request, memory: M) -> OpId {
        self.submit_to(request, None, memory)
    }

    /// An operation that changes a variable asynchronously is to do so in this order, which is of
    /// all its elements, as [`Event::Ordered`] reported it in another run. For an operation that
    /// was submitted just now.
    pub fn follow(&mut self, op: OpId, order: Vec<OrderSpan>) {
        if let Some(op) = self.operations.get_mut(op) {
            op.follows = order;
        }
    }

    /// What happened since the last call.
    pub fn next_event(&mut self) -> Option<Event<M>> {
        self.events.pop_front()
    }

    /// The operations that are not finished, oldest first.
    #[must_use]
    pub fn unfinished(&self) -> Vec<OpId> {
        self.operations.unfinished()
    }

    /// The memory of an operation that has not been released. What has not been supplied may be
    /// written, and what has arrived be read.
    pub fn memory_mut(&mut self, op: OpId) -> Option<&mut M> {
        self.operations.get_mut(op).map(|op| &mut op.memory)
    }

    /// The round of an operation that has not been released.
    #[must_use]
    pub fn round(&self, op: OpId) -> Option<Round> {
        self.operations.get(op).map(|op| op.round)
    }

    /// The round of the next operation on a tensor.
    #[must_use]
    pub fn next_round(&self, tensor: TensorId, tier: Tier) -> Option<Round> {
        self.operations.next_round((tensor, tier, None))
    }

    /// Where the partitions of a tensor are summed in this epoch.
    #[must_use]
    pub fn layout(&self, tensor: TensorId, tier: Tier) -> Option<&Layout> {
        self.operations.layout(tensor, tier)
    }

    /// What this worker's own operation under way on a tensor is to do.
    #[must_use]
    pub fn active(&self, tensor: TensorId) -> Option<&Request> {
        let active = self.operations.active_on(tensor, self.operations.own_tier(tensor)?)?;
        self.operations.get(active).map(|op| &op.request)
    }

    /// Bytes of results, since each connection was made, that were copied once more after they
    /// were received, because they came right behind a header.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.links.iter().map(|link| link.receiver.inbox.copied_bytes()).sum()
    }

    /// What earlier rounds have left out of this worker's contributions to a tensor that is encoded
    /// with error feedback, as `f32`: of the elements that are summed here, once a round was
    /// encoded here.
    #[must_use]
    pub fn residual(&self, tensor: TensorId) -> Option<&[u8]> {
        self.residuals.residual(tensor)
    }

    /// What the codec of a tensor keeps from round to round; nothing before it has encoded here.
    ///
    /// # Errors
    /// While a round of the tensor is under way.
    pub fn codec_memory(&self, tensor: TensorId) -> Result<CodecMemory, CodecMemoryError> {
        match self.active(tensor) {
            Some(_) => Err(CodecMemoryError::UnderWay),
            None => Ok(self.residuals.memory(tensor)),
        }
    }

    /// The round of a tensor that this worker begins next.
    #[must_use]
    pub fn next_own_round(&self, tensor: TensorId) -> Option<Round> {
        self.next_round(tensor, self.operations.own_tier(tensor)?)
    }

    /// The next round of a tensor that is encoded goes on from this, as [`codec_memory`] returned
    /// it in this client or another one; what the codec does not keep is not used.
    ///
    /// # Errors
    /// While a round of the tensor is under way, or if it is of another length.
    ///
    /// [`codec_memory`]: Self::codec_memory
    pub fn set_codec_memory(
        &mut self,
        tensor: TensorId,
        coding: &Coding,
        memory: &CodecMemory,
    ) -> Result<(), CodecMemoryError> {
        match self.active(tensor) {
            Some(_) => Err(CodecMemoryError::UnderWay),
            None => self.residuals.set(tensor, coding, memory),
        }
    }

    /// Blocks of contributions that counted as zeros since they were not finite (`nan=skip`).
    #[must_use]
    pub fn skipped_blocks(&self) -> u64 {
        self.residuals.skipped()
    }

    /// Those of one tensor since the last call.
    pub fn take_skipped_blocks(&mut self, tensor: TensorId) -> u64 {
        self.residuals.take_skipped(tensor)
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
        self.links[lane].up
    }

    /// Whether anything under way is sent to `lane`, or its result comes from there.
    #[must_use]
    pub fn needs(&self, lane: ConnId) -> bool {
        outstanding::needs(&self.operations, lane)
    }

    /// Bytes of partitions that have credit and are not sent.
    #[must_use]
    pub fn admitted_bytes(&self) -> usize {
        self.credit.admitted_bytes()
    }

    /// What has not been handed to the connections yet. It looks at every partition that is under
    /// way.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        outstanding::backlog(&self.operations, &self.links, &self.settings)
    }

    /// What the active operations on a tensor wait for, by lane: the worker's own operation and
    /// what is relayed for its machine. Nothing between two epochs.
    #[must_use]
    pub fn outstanding(&self, tensor: TensorId) -> Vec<Outstanding> {
        if self.suspended {
            return Vec::new();
        }
        outstanding::of_tensor(tensor, &self.operations, &self.links, &self.settings)
    }

    /// Records from now on in this ring what happens.
    pub fn record(&mut self, recorder: Recorder) {
        self.trace.recorder = recorder;
    }

    /// What has been recorded.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.trace.recorder
    }

    /// What the lanes are called in what is recorded, by connection.
    pub fn name_lanes(&mut self, peers: Vec<Peer>) {
        self.trace.lanes = peers;
    }

    /// Results of `lane` are retained until it reports that everyone has them: its process may die
    /// without ending the job.
    pub fn retain_results_of(&mut self, lane: ConnId) {
        let link = &mut self.links[lane];
        (link.retains, link.releases) = (true, true);
    }

    /// The connection to `lane` is there, its handshake done.
    pub fn connected(&mut self, lane: ConnId) {
        self.links.begin(lane);
        let link = &mut self.links[lane];
        for ((tensor, tier, partition), round) in self.retained.acknowledged_to(lane) {
            let header = Header::new(FrameKind::Ack, self.settings.epoch, tensor);
            link.sender.push_control(&Header { tier, partition, round, ..header }, &[]);
        }
        self.links.touch(lane);
    }

    /// The next lane for which there is something although its connection is down; each once, until
    /// its connection has come and gone. A driver may make connections only then, or earlier.
    pub fn next_wanted(&mut self) -> Option<ConnId> {
        self.links.next_wanted()
    }

    /// `lane` is in this process: see [`exchange`](crate::exchange).
    pub fn attached(&mut self, lane: ConnId) {
        self.links[lane].attach();
        self.connected(lane);
    }

    /// The connection to `lane` is gone: what is not done begins again on the next one.
    pub fn disconnected(&mut self, lane: ConnId) {
        self.drop_connection(lane);
        let ready = &mut self.links[lane].sender.ready;
        for (id, op) in self.operations.all_active_mut() {
            for (index, part) in op.parts.iter_mut().enumerate() {
                if op.places[index].lane == lane && part.admitted && !part.done {
                    (part.sent, part.announced, part.ready) = (part.have, false, true);
                    part.asked.clear();
                    // While the connection is made anew, the others must not wait for it.
                    self.credit.refund(&mut part.credit, usize::MAX);
                    ready.push(op.request.priority, (id, index), ());
                }
            }
        }
        // If only for acknowledgments, which may be lost with it.
        self.links.touch(lane);
        self.admit();
    }

    /// Mirrors a stretch of a variable from now on, the elements from `first` on of a share: its
    /// value and its slots, as elements of `master`. Its rounds may begin once all of it is
    /// mirrored.
    pub fn mirror_from(
        &mut self,
        tensor: TensorId,
        (share, first): (Range<usize>, usize),
        master: Dtype,
        parts: Vec<AlignedBuf>,
    ) {
        self.mirrors.insert(tensor, (share, first), master, parts);
    }

    /// A variable has a value from now on, whether any of it is mirrored here or not.
    pub fn begin_mirroring(&mut self, tensor: TensorId) {
        self.mirrors.begin(tensor);
    }

    /// The elements of a variable whose value and slots are here; `None` if it has no value yet.
    #[must_use]
    pub fn mirrored_elements(&self, tensor: TensorId) -> Option<&Spans> {
        self.mirrors.held(tensor)
    }

    /// This is what the worker mirrors of a variable in this epoch, in `parts` parts of `master`.
    /// What it lacks of that comes from the other mirror; until then the worker does not take part
    /// in rounds that change it.
    pub fn assign_mirrors(
        &mut self,
        tensor: TensorId,
        (master, parts): (Dtype, usize),
        all: &[MirroredElements],
    ) {
        self.mirrors.assign(tensor, (master, parts), all);
    }

    /// Whether some of what this worker mirrors of a variable is still to come.
    #[must_use]
    pub fn lacks_mirrored(&self, tensor: TensorId) -> bool {
        self.mirrors.lacks(tensor)
    }

    /// Takes a part of these elements of a variable from the other mirror.
    pub(crate) fn take_mirrored(
        &mut self,
        tensor: TensorId,
        part: usize,
        elements: &Range<usize>,
        bytes: &[u8],
    ) {
        if self.mirrors.take(tensor, part, elements, bytes) {
            let active = self.operations.active_on(tensor, Tier::Root);
            active.into_iter().for_each(|id| self.launch(id));
        }
    }

    /// These workers change a variable of this type asynchronously: of each, the mirrored elements
    /// have the rounds that they had before, or none.
    pub fn mirror_rounds_of(&mut self, tensor: TensorId, dtype: Dtype, workers: &[Rank]) {
        self.mirrors.count_rounds(tensor, dtype, workers);
    }

    /// The value and the slots of these elements of a variable, if they are mirrored here.
    #[must_use]
    pub fn mirrored(&self, tensor: TensorId, elements: &Range<usize>) -> Option<Vec<&[u8]>> {
        self.mirrors.parts(tensor, elements)
    }

    /// The value of these elements of a variable in the type of the tensor, if they are mirrored
    /// here.
    #[must_use]
    pub fn mirrored_weights(
        &self,
        tensor: TensorId,
        elements: &Range<usize>,
        dtype: Dtype,
    ) -> Option<Vec<u8>> {
        self.mirrors.weights(tensor, elements, dtype)
    }

    /// Fails the operations on one tensor.
    pub fn fail_tensor(&mut self, tensor: TensorId, reason: &str) {
        self.retained.forget(tensor);
        self.mirrors.forget(tensor);
        self.residuals.forget(tensor);
        for id in self.operations.cancel(tensor) {
            self.finish(id, Err(reason.to_owned()));
        }
    }

    /// Fails everything that is not finished.
    pub fn fail_all(&mut self, reason: impl Fn(OpId) -> String) {
        self.retained.clear();
        for id in self.operations.cancel_all() {
            self.finish(id, Err(reason(id)));
        }
    }

    /// These bytes of the tensor are in the memory now, of an operation that is supplied in ranges.
    /// Supplying to an operation that has ended does nothing.
    pub fn supply(&mut self, id: OpId, bytes: Range<usize>) {
        let Some(op) = self.operations.get_mut(id).filter(|op| op.stage != Stage::Finished) else {
            return;
        };
        debug_assert_eq!(op.request.supply, Supply::Ranges);
        op.supplied.get_or_insert_default().insert(bytes.clone());
        let (active, has_part) = (op.stage == Stage::Active, !op.places.is_empty());
        match active && !self.suspended {
            true if has_part => {
                self.offer(id, &bytes);
                self.admit();
            }
            true => self.succeed(id),
            false => {}
        }
    }

    /// Says what an operation does whose update was deferred, the same as all other workers; on one
    /// that is decided or has ended, it does nothing.
    pub fn decide(&mut self, id: OpId, update: Update) {
        let Some(op) = self.operations.get_mut(id).filter(|op| op.stage != Stage::Finished) else {
            return;
        };
        if op.request.update.is_none_or(|known| known.is_decided()) {
            return;
        }
        op.request.update = Some(update);
        if op.stage != Stage::Active || self.suspended {
            return;
        }
        let payload = encode_apply(&update);
        let undecided =
            op.parts.iter().zip(op.places.iter()).enumerate().filter(|(_, (part, place))| {
                part.announced && !part.done && place.variable.is_some()
            });
        for (index, (_, place)) in undecided {
            let header = op.header(FrameKind::Apply, index, self.settings.epoch);
            let header = Header { length: payload.len() as u32, ..header };
            self.links[place.lane].sender.push_control(&header, &payload);
            self.links.touch(place.lane);
        }
    }

    /// Bytes of this worker's contribution to the active operations on a tensor that are to come in
    /// ranges and are not in the memory yet: `Some(0)` if it has none to contribute, which was not
    /// supplied either.
    #[must_use]
    pub fn unsupplied(&self, tensor: TensorId) -> Option<usize> {
        outstanding::unsupplied(tensor, &self.operations, self.settings.rank)
    }

    /// Drops all connections and what operations supplied in chunks and relays had under way; those
    /// of the worker's own tensors wait for [`lay_out`](Self::lay_out). Returns what was retained;
    /// the memory of all others is released.
    pub fn suspend(&mut self) -> Vec<RetainedChunk> {
        self.links.ids().for_each(|lane| self.drop_connection(lane));
        self.links.forget_dirty();
        self.suspended = true;
        self.credit = CreditWindow::new(self.settings.credit_bytes);
        let ended = self.operations.suspend(self.settings.chunk_bytes as usize);
        self.restore_mirrored();
        self.events.extend(ended.into_iter().map(|(id, memory)| Event::Released(id, memory)));
        self.retained.take_all()
    }

    /// What this worker has of a tensor of its own; only between epochs.
    #[must_use]
    pub fn standing(&self, tensor: TensorId) -> Standing {
        self.operations.standing(tensor)
    }

    /// A new epoch begins, with `lanes` connections, all of them down. Every tensor must be
    /// [laid out](Self::lay_out) anew.
    pub fn resume(&mut self, settings: ClientSettings, lanes: usize) {
        self.settings = settings;
        self.credit = CreditWindow::new(settings.credit_bytes);
        self.links = Links::new(lanes, settings.checksum);
        self.suspended = false;
    }

    /// Makes known where a tensor is reduced in this epoch; what had begun, goes on there.
    pub fn lay_out(&mut self, id: TensorId, tier: Tier, layout: Layout) {
        if let Some(active) = self.operations.lay_out(id, tier, layout) {
            let op = &mut self.operations[active];
            for place in op.places.iter().filter(|place| place.relay.is_none()) {
                let Place { origin, bytes, .. } = *place;
                self.residuals.begin_anew(id, op.request.dtype, origin, bytes);
            }
            for bytes in op.unannounced().iter() {
                op.announce(bytes.clone());
                self.events.push_back(Event::Available { op: active, bytes });
            }
            self.launch(active);
        }
    }

    /// Relays what this worker has of a round and others lack; all `places` are relays of its
    /// own.
    pub fn relay(&mut self, request: Request, round: Round, places: Vec<Place>, memory: M) -> OpId {
        let id = self.operations.relay(request, round, places.into(), memory);
        self.launch(id);
        id
    }

    /// First byte in its tensor of a chunk that a lane calls by `of`, and how many workers
    /// contribute to it.
    pub(crate) fn origin(&self, of: ChunkId) -> Option<(usize, u32)> {
        let start = of.chunk as usize * self.settings.chunk_bytes as usize;
        let place = self.operations.place_of(of)?;
        Some((place.origin + start, place.contributors))
    }

    /// What this worker has mirrored of a variable for its machine may not have come back to its
    /// own operation: copies it there.
    fn restore_mirrored(&mut self) {
        for (_, op) in self.operations.all_active_mut() {
            let Request { tensor, dtype, update, .. } = op.request;
            if update.is_none() {
                continue;
            }
            for elements in self.mirrors.applied(tensor, op.round).iter() {
                let size = dtype.size();
                let bytes = elements.start * size..elements.end * size;
                let weights = self.mirrors.weights(tensor, &elements, dtype);
                if let Some(weights) = weights.filter(|_| !op.done.contains(&bytes)) {
                    op.memory.result(bytes.start, bytes.len()).copy_from_slice(&weights);
                    op.done.insert(bytes);
                }
            }
        }
    }

    /// Copies a chunk that the lane in this process had finished into the operation that waits for
    /// it, if one does.
    pub(crate) fn restore(&mut self, chunk: &RetainedChunk) {
        let restored = self.operations.restore(chunk, self.settings.rank);
        let Some((op, bytes)) = restored else { return };
        if self.operations[op].request.supply == Supply::Ranges {
            self.events.push_back(Event::Available { op, bytes });
        }
    }

    /// The first round of a tensor of this worker's own that is not finished here.
    pub(crate) fn first_unfinished(&self, tensor: TensorId) -> Option<Round> {
        self.operations.first_unfinished(tensor)
    }

    /// Begins an active operation: as much of it as has its contribution.
    fn launch(&mut self, id: OpId) {
        if self.suspended {
            return;
        }
        let op = &self.operations[id];
        let (partitions, priority) = (op.places.len(), op.request.priority);
        let is_over = partitions == 0 && !op.awaits_supply(self.settings.rank);
        if op.request.supply == Supply::Chunks {
            let lacks = self.mirrors.lacks(op.request.tensor);
            let begins = |index: &usize| {
                let op = &self.operations[id];
                op.begins(*index, self.settings.rank) && !(lacks && op.changes_variable(*index))
            };
            let begun: Vec<_> = (0..partitions).filter(begins).collect();
            begun.into_iter().for_each(|index| self.begin(priority, id, index));
        } else {
            self.offer(id, &(0..usize::MAX));
        }
        if is_over {
            self.succeed(id);
        }
        self.admit();
    }

    /// Offers those partitions of an active operation for admission that have bytes of this
    /// stretch, and all of their contribution.
    fn offer(&mut self, id: OpId, bytes: &Range<usize>) {
        let op = &mut self.operations[id];
        let in_ranges = op.request.supply == Supply::Ranges;
        let lacks = self.mirrors.lacks(op.request.tensor);
        for index in 0..op.places.len() {
            let Place { offset, bytes: len, .. } = op.places[index];
            let within = offset < bytes.end && bytes.start <= offset + len;
            let held_up = lacks && op.changes_variable(index);
            if within && !held_up && op.offer(index, self.settings.rank) {
                if in_ranges {
                    self.trace.partition(EventKind::Supplied, op, index);
                }
                self.credit.enqueue(op.request.priority, id, index);
            }
        }
    }

    /// Gives connections the next partitions, as far as the credit goes.
    fn admit(&mut self) {
        while let Some((priority, id, index)) = self.credit.admit() {
            let Some(op) = self.operations.active_mut(id) else { continue };
            let place = op.places[index];
            let link = &self.links[place.lane];
            if link.up && !link.resident && op.contributes(index, self.settings.rank) {
                let bytes = op.sent_len(index, place.bytes);
                self.credit.charge(&mut op.parts[index].credit, bytes);
            }
            self.begin(priority, id, index);
        }
    }

    /// Gives a partition of an active operation to its connection.
    fn begin(&mut self, priority: i32, id: OpId, index: usize) {
        let op = &mut self.operations[id];
        let lane = op.places[index].lane;
        (op.parts[index].admitted, op.parts[index].ready) = (true, true);
        self.links[lane].sender.ready.push(priority, (id, index), ());
        self.links.touch(lane);
    }

    fn succeed(&mut self, id: OpId) {
        let Request { tensor, tier, .. } = self.operations[id].request;
        if self.operations.own_tier(tensor) == Some(tier) && !self.operations.is_relay(id) {
            self.residuals.commit(tensor);
        }
        let next = self.operations.advance(id);
        self.finish(id, Ok(()));
        if let Some(next) = next {
            self.launch(next);
        }
    }

    fn finish(&mut self, id: OpId, outcome: Result<(), String>) {
        let op = &mut self.operations[id];
        op.stage = Stage::Finished;
        for part in &mut op.parts {
            self.credit.refund(&mut part.credit, usize::MAX);
        }
        self.trace.operation(EventKind::Finished, op);
        self.take_off(id, outcome.is_err());
        self.events.push_back(Event::Finished(id, outcome));
        self.release(id);
        self.admit();
    }

    fn release(&mut self, id: OpId) {
        if let Some(memory) = self.operations.release(id) {
            self.events.push_back(Event::Released(id, memory));
        }
    }

    /// A frame that refers to a chunk is not queued any more.
    fn unqueue(&mut self, chunk: ChunkRef) {
        let op = &mut self.operations[chunk.op];
        op.queued -= 1;
        self.credit.refund(&mut op.parts[chunk.part].credit, chunk.on_wire);
        if op.stage == Stage::Finished {
            self.release(chunk.op);
        }
    }

    /// Forgets what is on the connection to `lane`.
    fn drop_connection(&mut self, lane: ConnId) {
        let link = &mut self.links[lane];
        if let Some(buffer) = link.receiver.interrupt() {
            self.retained.recycle(buffer);
        }
        for Frame { chunk, code, .. } in link.reset() {
            code.into_iter().for_each(|code| self.retained.recycle(code));
            chunk.into_iter().for_each(|chunk| self.unqueue(chunk));
        }
    }
}

impl<M: Memory> Endpoint for Client<M> {
    fn pending(&mut self, lane: ConnId) -> Outgoing<'_> {
        self.refill(lane);
        self.links[lane].sender.pending(&self.operations)
    }

    fn sent(&mut self, lane: ConnId, n: usize) {
        self.links[lane].sender.advance(n);
        while let Some(frame) = self.links[lane].sender.pop_sent() {
            frame.code.into_iter().for_each(|code| self.retained.recycle(code));
            if let Some(chunk) = frame.chunk {
                self.trace_sent(chunk);
                self.unqueue(chunk);
            }
        }
        self.admit();
    }

    fn space(&mut self, lane: ConnId) -> Incoming<'_> {
        self.links[lane].receiver.space(&mut self.operations)
    }

    fn filled(&mut self, lane: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        self.links[lane].receiver.count(n);
        self.receive(lane).inspect_err(|violation| {
            self.corrupt_frames += u64::from(violation.is_corruption());
        })
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        self.links.next_dirty()
    }
}
