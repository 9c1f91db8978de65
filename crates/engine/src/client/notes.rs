//! What a client notes for whoever asks for a trace: a partition's way, and an operation's ends.
//!
//! Chunks are not noted: a partition has dozens of them, and their times follow from its own.

use sumpter_observe::{Kind, Part, Peer, Recorder};

use super::Client;
use super::link::ChunkRef;
use super::op::OpId;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;

impl<M: Memory> Client<M> {
    /// Notes from now on in this ring what happens.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// What has been noted.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// What the lanes are called in what is noted, by connection.
    pub fn name_lanes(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
    }

    /// Notes what has happened to a partition.
    pub(super) fn note(&mut self, kind: Kind, id: OpId, part: usize) {
        if !self.recorder.is_on() {
            return;
        }
        let Some(op) = self.ops.get(&id) else { return };
        let place = op.places[part];
        let about = Part {
            tensor: op.request.tensor.0,
            tier: op.tier(part) as u8,
            round: op.round.0,
            partition: place.number,
        };
        let peer = self.peers.get(place.lane.0).copied().unwrap_or_default();
        self.recorder.note(kind, about, peer, place.bytes, 0);
    }

    /// Notes what has happened to an operation.
    pub(super) fn note_op(&mut self, kind: Kind, id: OpId) {
        let Some(op) = self.ops.get(&id) else { return };
        let (tensor, round) = (op.request.tensor.0, op.round.0);
        let about = Part { tensor, tier: op.request.tier as u8, round, partition: Part::WHOLE };
        self.recorder.note(kind, about, Peer::Nobody, 0, 0);
    }

    /// A partition's turn has come on the connection that there is now.
    pub(super) fn note_turn(&mut self, lane: ConnId, id: OpId, part: usize) {
        let sends = self.ops[&id].contributes(part, self.settings.rank);
        let sends = sends && !self.links[lane.0].resident;
        self.note(if sends { Kind::SendBegin } else { Kind::Offered }, id, part);
    }

    /// A chunk of a contribution has been handed over; notes it if it is the last.
    pub(super) fn note_sent(&mut self, chunk: ChunkRef) {
        let ChunkRef { op: id, part, offset, len } = chunk;
        let Some(op) = self.ops.get(&id) else { return };
        let place = &op.places[part];
        if offset + len == place.offset + place.bytes {
            self.note(Kind::SendEnd, id, part);
        }
    }
}
