//! The operations of a client, and the order of the rounds of each tensor: they run one after
//! another. What is relayed for an interrupted round is an operation beside them.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use foldhash::HashMap;
use sumpter_endpoint::{ConnId, Memory, Violation};
use sumpter_types::{Rank, Round, TensorId};
use sumpter_wire::Tier;

use super::op::{Layout, Op, OpId, Place, REPAIRED, Request, Stage, Supply, find};
use super::retained::RetainedChunk;
use crate::chunk::ChunkId;
use crate::spans::Spans;

/// The tiers in which a worker takes part, the innermost first: that is the one of its own
/// operations, and in those further out it passes subtotals on.
const OWN_TIERS: [Tier; 4] = [Tier::Machine, Tier::Rack, Tier::Root, Tier::Worker];

#[derive(Debug)]
pub(super) struct Operations<M> {
    ops: HashMap<OpId, Op<M>>,
    tensors: HashMap<Sequence, Tensor>,
    /// What this worker relays in this epoch to those who lack it, by round.
    relays: HashMap<(TensorId, Round), Relaying>,
    submitted: u64,
}

/// Whose rounds run one after another: a tensor's in a tier, or one partition's alone.
pub(crate) type Sequence = (TensorId, Tier, Option<u32>);

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
    has_failed: bool,
}

/// What a worker has of a tensor's rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The first round that is not finished.
    pub round: Round,
    /// If that round has begun, the bytes of its result that are here.
    pub begun: Option<Spans>,
    /// Whether operations on it have failed: then the others say nothing about its rounds.
    pub has_failed: bool,
}

impl<M> Operations<M> {
    pub(super) fn new() -> Operations<M> {
        let (ops, tensors, relays) = Default::default();
        Operations { ops, tensors, relays, submitted: 0 }
    }

    /// Makes a tensor or a partition known, whose next round is `round`.
    pub(super) fn register(&mut self, of: Sequence, layout: Layout, round: Round) {
        let sorted = |places: &[Place]| places.is_sorted_by(|a, b| a.number < b.number);
        debug_assert!(sorted(&layout.places), "places out of order");
        let (active, waiting) = (None, VecDeque::new());
        let fresh = Tensor { layout, next_round: round, active, waiting, has_failed: false };
        self.tensors.insert(of, fresh);
    }

    /// A new operation for the next round of its tensor, or of one partition `alone`; it waits if
    /// another one is active.
    pub(super) fn submit(&mut self, request: Request, alone: Option<u32>, memory: M) -> OpId {
        let id = self.next_id();
        let key = (request.tensor, request.tier, alone);
        let tensor = self.tensors.get_mut(&key).expect("a registered tensor");
        let round = tensor.next_round;
        tensor.next_round = round.next();
        let Layout { coding, .. } = &tensor.layout;
        let places = (tensor.layout.of(round).clone(), coding.clone());
        let mut op = Op::new(request, round, memory, places);
        op.alone = alone;
        if tensor.active.is_some() {
            tensor.waiting.push_back(id);
        } else {
            tensor.active = Some(id);
            op.stage = Stage::Active;
        }
        self.ops.insert(id, op);
        id
    }

    /// An operation that relays what this worker has of a round; all `places` are its own.
    pub(super) fn relay(
        &mut self,
        request: Request,
        round: Round,
        places: Arc<[Place]>,
        memory: M,
    ) -> OpId {
        let id = self.next_id();
        let mut op = Op::new(request, round, memory, (places.clone(), None));
        op.stage = Stage::Active;
        self.ops.insert(id, op);
        self.relays.insert((request.tensor, round), Relaying { op: id, places });
        id
    }

    fn next_id(&mut self) -> OpId {
        let id = OpId(self.submitted);
        self.submitted += 1;
        id
    }

    pub(super) fn get(&self, id: OpId) -> Option<&Op<M>> {
        self.ops.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Op<M>> {
        self.ops.get_mut(&id)
    }

    /// An operation that is under way.
    pub(super) fn active_mut(&mut self, id: OpId) -> Option<&mut Op<M>> {
        self.ops.get_mut(&id).filter(|op| op.stage == Stage::Active)
    }

    /// All operations that are under way, in no order.
    pub(super) fn active(&self) -> impl Iterator<Item = &Op<M>> {
        self.ops.values().filter(|op| op.stage == Stage::Active)
    }

    /// The same with their ids.
    pub(super) fn all_active_mut(&mut self) -> impl Iterator<Item = (OpId, &mut Op<M>)> {
        let active = self.ops.iter_mut().filter(|(_, op)| op.stage == Stage::Active);
        active.map(|(id, op)| (*id, op))
    }

    /// The operations that are not finished, oldest first.
    pub(super) fn unfinished(&self) -> Vec<OpId> {
        let live = self.ops.iter().filter(|(_, op)| op.stage != Stage::Finished);
        let mut ids: Vec<_> = live.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether an operation relays what this worker has of a round.
    pub(super) fn is_relay(&self, id: OpId) -> bool {
        let Op { request: Request { tensor, .. }, round, .. } = self.ops[&id];
        self.relays.get(&(tensor, round)).is_some_and(|relaying| relaying.op == id)
    }

    /// A round is complete: the operation on the tensor that is active from now on.
    pub(super) fn advance(&mut self, id: OpId) -> Option<OpId> {
        let Op { request: Request { tensor, tier, .. }, alone, .. } = self.ops[&id];
        if self.is_relay(id) {
            return None;
        }
        let tensor = self.tensors.get_mut(&(tensor, tier, alone)).expect("a registered tensor");
        tensor.active = tensor.waiting.pop_front();
        if let Some(next) = tensor.active {
            self.ops.get_mut(&next).expect("a submitted operation").stage = Stage::Active;
        }
        tensor.active
    }

    /// The memory of an operation that is finished, once no frame refers to it.
    pub(super) fn release(&mut self, id: OpId) -> Option<M> {
        let unused = |op: &Op<M>| op.stage == Stage::Finished && op.queued == 0;
        self.ops.get(&id).is_some_and(unused).then(|| self.ops.remove(&id))?.map(|op| op.memory)
    }

    /// The unfinished operations on a tensor, oldest first; none is active or waits from now on.
    pub(super) fn cancel(&mut self, tensor: TensorId) -> Vec<OpId> {
        let of_tensor = self.tensors.iter_mut().filter(|((of, ..), _)| *of == tensor);
        for (_, known) in of_tensor {
            known.cancel();
            known.has_failed = true;
        }
        let mut ids = self.unfinished();
        ids.retain(|id| self.ops[id].request.tensor == tensor);
        ids
    }

    /// The same for all tensors.
    pub(super) fn cancel_all(&mut self) -> Vec<OpId> {
        self.tensors.values_mut().for_each(Tensor::cancel);
        self.unfinished()
    }

    /// Whether a tensor takes part in a tier.
    pub(super) fn knows(&self, tensor: TensorId, tier: Tier) -> bool {
        self.tensors.contains_key(&(tensor, tier, None))
    }

    /// The round of the next operation on a tensor, or on one partition alone.
    pub(super) fn next_round(&self, of: Sequence) -> Option<Round> {
        self.tensors.get(&of).map(|tensor| tensor.next_round)
    }

    /// Whether operations on a tensor, or on one partition alone, have failed here.
    pub(super) fn has_failed(&self, of: Sequence) -> bool {
        self.tensors.get(&of).is_some_and(|tensor| tensor.has_failed)
    }

    /// Where the partitions of a tensor are summed.
    pub(super) fn layout(&self, tensor: TensorId, tier: Tier) -> Option<&Layout> {
        self.tensors.get(&(tensor, tier, None)).map(|tensor| &tensor.layout)
    }

    /// Whether this worker encodes a partition of a round, for itself or for its machine.
    pub(super) fn encodes(&self, tensor: TensorId, number: u32, round: Round) -> bool {
        let layout = self.layout(tensor, Tier::Root).filter(|layout| layout.coding.is_some());
        layout.is_some_and(|layout| find(layout.of(round), number).is_some())
    }

    /// What the rounds of a partition belong to: those of its tensor, or none but its own.
    fn rounds_of(&self, tensor: TensorId, tier: Tier, partition: u32) -> Option<&Tensor> {
        let whole = self.tensors.get(&(tensor, tier, None));
        whole.or_else(|| self.tensors.get(&(tensor, tier, Some(partition))))
    }

    /// The operation under way on a tensor.
    pub(super) fn active_on(&self, tensor: TensorId, tier: Tier) -> Option<OpId> {
        self.tensors.get(&(tensor, tier, None))?.active
    }

    /// Where a partition of a tensor is in a round.
    pub(super) fn place_in(
        &self,
        (tensor, tier): (TensorId, Tier),
        number: u32,
        round: Round,
    ) -> Option<&Place> {
        let places = self.rounds_of(tensor, tier, number)?.layout.of(round);
        find(places, number).map(|part| &places[part])
    }

    /// The active operation that a frame of a lane is about, if it is not of the past, and which
    /// of its partitions.
    pub(super) fn addressed(
        &self,
        lane: ConnId,
        of: ChunkId,
    ) -> Result<Option<(OpId, usize)>, Violation> {
        let elsewhere = || Violation::state("a result of a partition that lives elsewhere");
        let is_of_tier = |place: &Place| {
            of.tier.part().is_some() || place.relay.is_some() == (of.tier == Tier::Relay)
        };
        let part_of = |places: &[Place]| {
            let found = find(places, of.partition);
            found.filter(|part| places[*part].lane == lane && is_of_tier(&places[*part]))
        };
        if of.tier == Tier::Relay {
            let current = |id: &OpId| self.ops[id].round == of.round;
            let found = self.relayed(of.tensor, of.round).filter(current);
            return Ok(found.filter_map(|id| Some((id, part_of(&self.ops[&id].places)?))).next());
        }
        let tensor = self.rounds_of(of.tensor, of.tier, of.partition);
        let tensor = tensor.ok_or_else(|| Violation::state("a result of an unknown tensor"))?;
        match tensor.active.filter(|id| self.ops[id].round == of.round) {
            Some(id) => {
                let part = part_of(&self.ops[&id].places).ok_or_else(elsewhere)?;
                Ok(Some((id, part)))
            }
            None if of.partition >= REPAIRED => Ok(None),
            None => part_of(&tensor.layout.places).map(|_| None).ok_or_else(elsewhere),
        }
    }

    /// The operations that may take part in relays of a tensor.
    fn relayed(&self, tensor: TensorId, round: Round) -> impl Iterator<Item = OpId> + '_ {
        let own = OWN_TIERS.into_iter().filter_map(move |tier| self.active_on(tensor, tier));
        let relaying = self.relays.get(&(tensor, round)).map(|relaying| relaying.op);
        let active = |op: &OpId| self.ops.get(op).is_some_and(|op| op.stage == Stage::Active);
        own.chain(relaying.filter(active))
    }

    /// Place of a chunk that a lane calls by `of`: its partition's, in any tier.
    pub(super) fn place_of(&self, of: ChunkId) -> Option<Place> {
        let relayed = self.relays.get(&(of.tensor, of.round));
        // The number of a partition is the same in every tier that sums it.
        let tiers = [of.tier].into_iter().chain(OWN_TIERS);
        let summed = tiers.filter_map(|tier| self.tensors.get(&(of.tensor, tier, None)));
        let layouts = summed.map(|tensor| tensor.layout.of(of.round));
        let mut layouts = layouts.chain(relayed.map(|relayed| &relayed.places));
        layouts.find_map(|places| Some(places[find(places, of.partition)?]))
    }

    /// Ends what operations supplied in chunks, relays and those on parts of variables had under
    /// way, and returns their memory; the others keep what has arrived, and wait for
    /// [`lay_out`](Self::lay_out).
    pub(super) fn suspend(&mut self, chunk_bytes: usize) -> Vec<(OpId, M)> {
        let mut ended = Vec::new();
        for (id, op) in self.ops.iter_mut().filter(|(_, op)| op.stage != Stage::Finished) {
            let relaying = self.relays.get(&(op.request.tensor, op.round));
            if op.request.supply == Supply::Chunks
                || op.request.tier.part().is_some()
                || relaying.is_some_and(|relaying| relaying.op == *id)
            {
                ended.push(*id);
            } else {
                op.settle(chunk_bytes);
            }
        }
        ended.sort_unstable();
        self.relays.clear();
        self.tensors.retain(|(_, tier, _), _| tier.part().is_none());
        let passed_on = |(tensor, tier, _): &Sequence| self.own_tier(*tensor) != Some(*tier);
        let passed_on: Vec<_> = self.tensors.keys().filter(|key| passed_on(key)).copied().collect();
        passed_on.iter().for_each(|key| drop(self.tensors.remove(key)));
        ended.into_iter().filter_map(|id| Some((id, self.ops.remove(&id)?.memory))).collect()
    }

    /// Makes known where a tensor is reduced in this epoch. Returns the operation that goes on
    /// there.
    pub(super) fn lay_out(&mut self, id: TensorId, tier: Tier, layout: Layout) -> Option<OpId> {
        let found = OWN_TIERS.into_iter().find_map(|tier| self.tensors.remove(&(id, tier, None)));
        let Some(mut tensor) = found else {
            self.register((id, tier, None), layout, Round(0));
            return None;
        };
        for op in tensor.active.iter().chain(&tensor.waiting) {
            let op = self.ops.get_mut(op).expect("an unfinished operation");
            op.move_to(tier, &layout);
        }
        tensor.layout = layout;
        let active = tensor.active;
        self.tensors.insert((id, tier, None), tensor);
        active
    }

    /// The first round of a tensor of this worker's own that is not finished.
    pub(super) fn first_unfinished(&self, tensor: TensorId) -> Option<Round> {
        let tensor = self.own(tensor)?;
        Some(tensor.active.map_or(tensor.next_round, |id| self.ops[&id].round))
    }

    fn own(&self, tensor: TensorId) -> Option<&Tensor> {
        self.tensors.get(&(tensor, self.own_tier(tensor)?, None))
    }

    /// The tier of this worker's own operations on a tensor.
    pub(super) fn own_tier(&self, tensor: TensorId) -> Option<Tier> {
        OWN_TIERS.into_iter().find(|tier| self.knows(tensor, *tier))
    }

    /// What this worker has of a tensor of its own; only between epochs.
    pub(super) fn standing(&self, tensor: TensorId) -> Standing {
        let Some(tensor) = self.own(tensor) else { return Standing::default() };
        let (round, begun) = match tensor.active.map(|id| &self.ops[&id]) {
            Some(op) => (op.round, Some(op.done.clone())),
            None => (tensor.next_round, None),
        };
        Standing { round, begun, has_failed: tensor.has_failed }
    }
}

impl<M: Memory> Operations<M> {
    /// Elements of a partition as this worker got them in its own round of an asynchronous
    /// variable, which is under way, if it has all of them.
    pub(super) fn own_answer(
        &mut self,
        (tensor, number): (TensorId, u32),
        elements: &Range<usize>,
        chunk_bytes: u32,
    ) -> Option<&[u8]> {
        let op = self.ops.get_mut(&self.active_on(tensor, Tier::Worker)?)?;
        let part = find(&op.places, number)?;
        let (place, size) = (op.places[part], op.request.dtype.size());
        let start = (elements.start * size).checked_sub(place.origin)?;
        let len = elements.len() * size;
        let received = (op.parts[part].have as usize * chunk_bytes as usize).min(place.bytes);
        (start + len <= received).then(|| op.memory.result(place.offset + start, len))?.get(..len)
    }

    /// Copies a retained chunk into the operation that lacks it, if one does; which, and to what
    /// bytes of its memory.
    pub(super) fn restore(
        &mut self,
        chunk: &RetainedChunk,
        rank: Rank,
    ) -> Option<(OpId, Range<usize>)> {
        let active = |tier| {
            let tensor = self.tensors.get(&(chunk.tensor, tier, None))?;
            Some((tensor.active?, tensor.layout.start))
        };
        let (id, start) = OWN_TIERS.into_iter().find_map(active)?;
        let op = self.ops.get_mut(&id).expect("an active operation");
        let Request { collective, root, dtype, .. } = op.request;
        let receives = collective.receives(rank, root);
        if op.round != chunk.round || !receives || op.done.contains(&chunk.span()) {
            return None;
        }
        let within = chunk.origin - start..chunk.origin - start + chunk.len;
        let result = op.memory.result(within.start, within.len());
        result.copy_from_slice(&chunk.bytes[..chunk.len]);
        if let Some(divisor) = op.request.divisor(chunk.contributors) {
            sumpter_sum::divide(dtype, result, divisor);
        }
        op.done.insert(chunk.span());
        Some((id, within))
    }
}

impl<M> Index<OpId> for Operations<M> {
    type Output = Op<M>;

    fn index(&self, id: OpId) -> &Op<M> {
        self.ops.get(&id).expect("an operation that has not been released")
    }
}

impl<M> IndexMut<OpId> for Operations<M> {
    fn index_mut(&mut self, id: OpId) -> &mut Op<M> {
        self.ops.get_mut(&id).expect("an operation that has not been released")
    }
}

impl Tensor {
    fn cancel(&mut self) {
        self.active = None;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_types::{Collective, Dtype, GroupId, ReduceOp};

    const TENSOR: TensorId = TensorId(5);
    const LANE: ConnId = ConnId(0);

    fn layout() -> Layout {
        Layout::new(vec![Place::new(LANE, 0, (0, 64), GroupId(0), 2)])
    }

    fn operations() -> Operations<&'static str> {
        let mut ops = Operations::new();
        ops.register((TENSOR, Tier::Root, None), layout(), Round(3));
        ops
    }

    fn request() -> Request {
        Request {
            tensor: TENSOR,
            tier: Tier::Root,
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
        }
    }

    fn result(round: u32) -> ChunkId {
        let round = Round(round);
        ChunkId { tensor: TENSOR, tier: Tier::Root, partition: 0, round, chunk: 0 }
    }

    #[test]
    fn the_rounds_of_a_tensor_run_one_after_another() {
        let mut ops = operations();
        let ids = ["first", "second"].map(|memory| ops.submit(request(), None, memory));
        assert_eq!(
            ids.map(|id| (ops[id].stage, ops[id].round.0)),
            [(Stage::Active, 3), (Stage::Waiting, 4)]
        );
        assert_eq!(ops.addressed(LANE, result(3)).unwrap(), Some((ids[0], 0)));
        assert_eq!(ops.addressed(LANE, result(4)).unwrap(), None);
        assert_eq!(ops.advance(ids[0]), Some(ids[1]));
        assert_eq!(ops.addressed(LANE, result(4)).unwrap(), Some((ids[1], 0)));
        assert_eq!(ops.advance(ids[1]), None);
        assert_eq!(ops.first_unfinished(TENSOR), Some(Round(5)));
    }

    #[test]
    fn memory_is_released_when_the_operation_has_finished_and_no_frame_refers_to_it() {
        let mut ops = operations();
        let id = ops.submit(request(), None, "memory");
        ops[id].queued = 1;
        assert_eq!(ops.release(id), None);
        ops[id].stage = Stage::Finished;
        assert_eq!(ops.release(id), None);
        ops[id].queued = 0;
        assert_eq!(ops.release(id), Some("memory"));
        assert!(ops.get(id).is_none());
    }

    #[test]
    fn between_two_epochs_operations_keep_what_has_arrived_and_relays_end() {
        let mut ops = operations();
        let own = ops.submit(request(), None, "own");
        let relay = Place { relay: Some(Rank(1)), ..layout().places[0] };
        let relaying = ops.relay(request(), Round(2), [relay].into(), "relayed");
        ops[own].parts[0].have = 1;
        assert_eq!(ops.suspend(16), [(relaying, "relayed")]);
        let begun = Some(Spans::whole(16));
        assert_eq!(
            ops.standing(TENSOR),
            Standing { round: Round(3), begun, ..Standing::default() }
        );
        assert_eq!(ops.lay_out(TENSOR, Tier::Machine, layout()), Some(own));
        assert_eq!((ops[own].request.tier, ops[own].parts[0].have), (Tier::Machine, 0));
    }

    #[test]
    fn a_cancelled_tensor_has_no_operation_under_way() {
        let mut ops = operations();
        let ids = ["first", "second"].map(|memory| ops.submit(request(), None, memory));
        assert_eq!(ops.cancel(TensorId(6)), []);
        assert_eq!(ops.cancel(TENSOR), ids);
        assert_eq!(ops.active_on(TENSOR, Tier::Root), None);
    }
}
