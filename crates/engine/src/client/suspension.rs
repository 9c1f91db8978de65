//! Between two epochs: what a client has is counted, everything else begins anew in other places.

use std::collections::VecDeque;

use sumpter_types::{Round, TensorId};
use sumpter_wire::Tier;

use super::kept::Kept;
use super::link::{Link, Ready};
use super::op::{Layout, Op, OpId, Place, Request, Stage, find};
use super::{Client, ClientSettings, Event, Relaying, Tensor};
use crate::chunk::ChunkId;
use crate::spans::Spans;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;

/// What a worker has of a tensor's rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The first round that is not finished.
    pub round: Round,
    /// If that round has begun, the bytes of its result that are here.
    pub begun: Option<Spans>,
}

impl<M: Memory> Client<M> {
    /// Lets go of all connections and of what streamed operations and relays had under way; the
    /// operations of the worker's own tensors wait for [`lay_out`](Self::lay_out). Returns what
    /// was kept; the memory of all others is released.
    pub fn suspend(&mut self) -> Vec<Kept> {
        for lane in (0..self.links.len()).map(ConnId) {
            self.drop_input(lane);
            for frame in self.links[lane.0].reset() {
                self.unqueue(frame.chunk);
            }
        }
        self.suspended = true;
        self.stream = Ready::new();
        self.admitted_bytes = 0;
        self.dirty.clear();
        let chunk_bytes = self.settings.chunk_bytes as usize;
        let mut passing = Vec::new();
        for (id, op) in self.ops.iter_mut().filter(|(_, op)| op.stage != Stage::Finished) {
            let relaying = self.relays.get(&(op.request.tensor, op.round));
            let relaying = relaying.is_some_and(|relaying| relaying.op == *id);
            if op.request.streamed || relaying {
                passing.push(*id);
                continue;
            }
            op.settle(chunk_bytes);
        }
        passing.sort_unstable();
        self.relays.clear();
        for op in passing.iter().filter_map(|id| Some((*id, self.ops.remove(id)?))) {
            self.events.push_back(Event::Released(op.0, op.1.memory));
        }
        let machine: Vec<TensorId> = self.tensors.keys().filter_map(of_machine).collect();
        for tensor in machine {
            self.tensors.remove(&(tensor, Tier::Root));
        }
        self.shelf.empty()
    }

    /// First byte in its tensor of a chunk that a lane calls by `of`, and how many workers
    /// contribute to it.
    pub(crate) fn origin(&self, of: ChunkId) -> Option<(usize, u32)> {
        let start = of.chunk as usize * self.settings.chunk_bytes as usize;
        let relayed = self.relays.get(&(of.tensor, of.round));
        // The number of a partition is the same in every tier that sums it.
        let tiers = [of.tier, Tier::Machine, Tier::Root].into_iter();
        let summed = tiers.filter_map(|tier| self.tensors.get(&(of.tensor, tier)));
        let layouts = summed.map(|tensor| tensor.layout.of(of.round));
        let mut layouts = layouts.chain(relayed.map(|relayed| &relayed.places));
        let place = layouts.find_map(|places| Some(places[find(places, of.partition)?]))?;
        Some((place.origin + start, place.contributors))
    }

    /// Takes a chunk that the lane in this process had finished into the operation that waits for
    /// it, if one does.
    pub(crate) fn take_kept(&mut self, kept: &Kept) {
        let tiers = [Tier::Machine, Tier::Root];
        let active = |tier| self.tensors.get(&(kept.tensor, tier))?.active;
        let Some(id) = tiers.into_iter().find_map(active) else { return };
        let op = self.ops.get_mut(&id).expect("an active operation");
        let Request { collective, root, dtype, .. } = op.request;
        let receives = collective.receives(self.settings.rank, root);
        if op.round != kept.round || !receives || op.done.contains(&kept.span()) {
            return;
        }
        let result = op.memory.result(kept.origin, kept.len);
        result.copy_from_slice(&kept.bytes[..kept.len]);
        if let Some(divisor) = op.request.divisor(kept.contributors) {
            sumpter_sum::divide(dtype, result, divisor);
        }
        op.done.insert(kept.span());
    }

    /// The first round of a tensor of this worker's own that is not finished here.
    pub(crate) fn first_unfinished(&self, tensor: TensorId) -> Option<Round> {
        let tensor = self.own(tensor)?;
        Some(tensor.active.map_or(tensor.next_round, |id| self.ops[&id].round))
    }

    fn own(&self, tensor: TensorId) -> Option<&Tensor> {
        let tiers = [Tier::Machine, Tier::Root];
        tiers.into_iter().find_map(|tier| self.tensors.get(&(tensor, tier)))
    }

    /// What this worker has of a tensor of its own; only between epochs.
    #[must_use]
    pub fn standing(&self, tensor: TensorId) -> Standing {
        let Some(tensor) = self.own(tensor) else { return Standing::default() };
        match tensor.active.map(|id| &self.ops[&id]) {
            Some(op) => Standing { round: op.round, begun: Some(op.done.clone()) },
            None => Standing { round: tensor.next_round, begun: None },
        }
    }

    /// A new epoch begins, with `lanes` connections, all of them down. Every tensor must be
    /// [laid out](Self::lay_out) anew.
    pub fn resume(&mut self, settings: ClientSettings, lanes: usize) {
        self.settings = settings;
        self.links = (0..lanes).map(|_| Link::new(settings.checksum)).collect();
        self.dirty = VecDeque::new();
        self.suspended = false;
    }

    /// Makes known where a tensor is summed in this epoch; what had begun, goes on there.
    pub fn lay_out(&mut self, id: TensorId, tier: Tier, layout: Layout) {
        let tiers = [Tier::Machine, Tier::Root];
        let found = tiers.into_iter().find_map(|tier| self.tensors.remove(&(id, tier)));
        let Some(mut tensor) = found else { return self.register(id, tier, layout) };
        for op in tensor.active.iter().chain(&tensor.waiting) {
            let op = self.ops.get_mut(op).expect("an unfinished operation");
            op.move_to(tier, layout.of(op.round).clone());
        }
        tensor.layout = layout;
        let active = tensor.active;
        self.tensors.insert((id, tier), tensor);
        if let Some(active) = active {
            self.launch(active);
        }
    }

    /// Passes on what this worker has of a round and others lack; all `places` are relays of its
    /// own.
    pub fn relay(&mut self, request: Request, round: Round, places: Vec<Place>, memory: M) -> OpId {
        let id = OpId(self.submitted);
        self.submitted += 1;
        let places: std::sync::Arc<[Place]> = places.into();
        let mut op = Op::new(request, round, memory, places.clone());
        op.stage = Stage::Active;
        self.ops.insert(id, op);
        self.relays.insert((request.tensor, round), Relaying { op: id, places });
        self.launch(id);
        id
    }
}

fn of_machine((tensor, tier): &(TensorId, Tier)) -> Option<TensorId> {
    (*tier == Tier::Machine).then_some(*tensor)
}

impl<M> Op<M> {
    /// Notes what has arrived; the rest begins anew elsewhere.
    fn settle(&mut self, chunk_bytes: usize) {
        for (place, part) in self.places.iter().zip(&self.parts) {
            let have = place.bytes.min(part.have as usize * chunk_bytes);
            self.done.insert(place.origin..place.origin + have);
        }
        self.parts.iter_mut().for_each(|part| part.admitted = 0);
    }
}
