//! What a client records for a trace: the path of each partition, and both ends of an operation.
//!
//! Chunks are not recorded: a partition has dozens of them, and their times follow from its own.

use sumpter_observe::{EventKind, Part, Peer, Recorder};

use super::op::Op;

#[derive(Debug, Default)]
pub(super) struct Trace {
    pub recorder: Recorder,
    /// What the lanes are called, by connection.
    pub lanes: Vec<Peer>,
}

impl Trace {
    /// Records what has happened to a partition.
    pub(super) fn partition<M>(&mut self, kind: EventKind, op: &Op<M>, part: usize) {
        if !self.recorder.is_on() {
            return;
        }
        let place = op.places[part];
        let about = Part {
            tensor: op.request.tensor.0,
            tier: op.tier(part) as u8,
            round: op.round.0,
            partition: place.number,
        };
        let peer = self.lanes.get(place.lane.0).copied().unwrap_or_default();
        self.recorder.note(kind, about, peer, place.bytes, 0);
    }

    /// Records what has happened to an operation.
    pub(super) fn operation<M>(&mut self, kind: EventKind, op: &Op<M>) {
        let (tensor, round) = (op.request.tensor.0, op.round.0);
        let about = Part { tensor, tier: op.request.tier as u8, round, partition: Part::WHOLE };
        self.recorder.note(kind, about, Peer::Unknown, 0, 0);
    }
}
