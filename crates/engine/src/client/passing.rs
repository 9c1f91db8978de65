//! What a client does for a hub: it passes subtotals on, which are supplied chunk by chunk.

use sumpter_endpoint::{ConnId, Memory};
use sumpter_observe::EventKind;
use sumpter_types::{Rank, Round, TensorId};
use sumpter_wire::{FrameKind, Header, Tier};

use super::Client;
use super::op::{Layout, OpId, Place, Request, Stage, find};
use super::operations::Sequence;

impl<M: Memory> Client<M> {
    /// Makes known where one partition is reduced, whose rounds are counted apart from those of all
    /// others: a hub may know a partition only once it has a subtotal of it.
    pub(crate) fn register_alone(
        &mut self,
        tensor: TensorId,
        tier: Tier,
        place: Place,
        round: Round,
    ) {
        let of = (tensor, tier, Some(place.number));
        self.operations.register(of, Layout::new(vec![place]), round);
    }

    /// Queues an operation on a tensor, or on a partition that was registered `alone`.
    pub(crate) fn submit_to(&mut self, request: Request, alone: Option<u32>, memory: M) -> OpId {
        let id = self.operations.submit(request, alone, memory);
        let op = &self.operations[id];
        self.trace.operation(EventKind::Submitted, op);
        if op.stage == Stage::Active {
            self.launch(id);
        }
        id
    }

    /// The round of the next operation on a tensor, or on a partition that was registered alone.
    pub(crate) fn next_round_of(&self, of: Sequence) -> Option<Round> {
        self.operations.next_round(of)
    }

    /// Whether operations on a tensor, or on a partition that was registered alone, have failed
    /// here.
    pub(crate) fn has_failed(&self, of: Sequence) -> bool {
        self.operations.has_failed(of)
    }

    /// What the client is called in groups.
    #[must_use]
    pub(crate) fn rank(&self) -> Rank {
        self.settings.rank
    }

    /// Whether `lane` reports when everyone has a result.
    #[must_use]
    pub fn is_told_by(&self, lane: ConnId) -> bool {
        self.links[lane].releases
    }

    /// `lane` reports when everyone has a result, though nothing of it is retained here.
    pub(crate) fn await_release_of(&mut self, lane: ConnId) {
        self.links[lane].releases = true;
    }

    /// The first `chunks` chunks of a partition are in the memory now, of an operation that is
    /// supplied in chunks; of a partition to which this worker contributes nothing, there is room
    /// for them. Supplying to an operation that has ended does nothing.
    pub fn supply_chunks(&mut self, id: OpId, number: u32, chunks: u32) {
        let Some(op) = self.operations.get_mut(id).filter(|op| op.stage != Stage::Finished) else {
            return;
        };
        let Some(index) = find(&op.places, number) else { return };
        let before = op.begins(index, self.settings.rank);
        let lacks = op.changes_variable(index) && self.mirrors.lacks(op.request.tensor);
        let (lane, part) = (op.places[index].lane, &mut op.parts[index]);
        part.supplied = part.supplied.max(chunks);
        if lacks {
            return;
        }
        if !before && op.stage == Stage::Active && !self.suspended {
            let priority = op.request.priority;
            return self.begin(priority, id, index);
        }
        let link = &mut self.links[lane];
        if link.resident {
            while let Some(chunk) = part.asked.front().copied().filter(|c| *c < part.supplied) {
                part.asked.pop_front();
                link.offers.push_back((id, index, chunk));
            }
        } else if part.announced && !part.ready {
            part.ready = true;
            link.sender.ready.push(op.request.priority, (id, index), ());
            self.links.touch(lane);
        }
    }

    /// Every worker that gets the result of a passed-on partition from here has it, or does not
    /// need it: acknowledges it to the lane that made it, in the tier to which the subtotal went;
    /// at once if others wait for that, as for one who carries what the code of the sum leaves out.
    /// Whether the lane will report that everyone has it.
    pub fn acknowledge(
        &mut self,
        (tensor, tier): (TensorId, Tier),
        number: u32,
        round: Round,
        at_once: bool,
    ) -> bool {
        let Some(place) = self.operations.place_in((tensor, tier), number, round) else {
            return false;
        };
        let carrier = place.carrier.map(|carrier| carrier.rank);
        let (lane, carries) = (place.lane, carrier == Some(self.settings.rank));
        let key = (tensor, tier, number);
        let link = &mut self.links[lane];
        if link.releases && !link.retains && !link.resident {
            self.retained.remember(key, lane, round);
        }
        self.retained.acknowledge(key, round);
        // A lane that may die gets it again when the connection is there again.
        if link.up {
            let header = Header::new(FrameKind::Ack, self.settings.epoch, tensor);
            let header = Header { tier, partition: number, round, ..header };
            link.sender.push_control(&header, &[]);
            if carries || (at_once && link.releases) {
                self.links.touch(lane);
            }
        }
        self.links[lane].releases
    }

    /// Whether a frame that waits to be sent refers to a chunk, though its result may be here:
    /// after a cut, a contribution is sent again that the lane turns out to have.
    #[must_use]
    pub fn is_queued(&self, op: OpId, number: u32, chunk: u32) -> bool {
        let Some(state) = self.operations.get(op) else { return false };
        let Some(index) = find(&state.places, number) else { return false };
        let (offset, _) = state.range(index, chunk, self.settings.chunk_bytes);
        self.links[state.places[index].lane].sender.refers_to(op, index, offset)
    }
}
