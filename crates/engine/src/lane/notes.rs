//! What a lane records for a trace: contributions in, sums, results out, each for
//! a partition as a whole.

use sumpter_observe::{EventKind, Part, Peer, Recorder};
use sumpter_types::Rank;

use super::Lane;
use super::conn::InboundFrame;
use super::job::{JobIndex, Key, PartitionIndex};
use super::outbox::Payload;
use super::outcome::ChunkPlace;
use sumpter_endpoint::ConnId;

impl Lane {
    /// Notes from now on in this ring what happens.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// What has been noted, of all jobs.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Notes what has happened to the round of a partition in `slot`.
    pub(super) fn note(
        &mut self,
        kind: EventKind,
        (job, at, slot): (JobIndex, PartitionIndex, usize),
        rank: Option<Rank>,
    ) {
        if !self.recorder.is_on() {
            return;
        }
        let job = &self.jobs[job];
        let Key { tensor, tier, partition, .. } = job.key(at);
        let known = job.partition(at);
        let Some(round) = known.round(slot) else { return };
        let part = Part { tensor: tensor.0, tier: tier as u8, round: round.0, partition };
        let peer = rank.map_or(Peer::Unknown, |rank| Peer::Rank(rank.0));
        self.recorder.note(kind, part, peer, known.spec.bytes as usize, job.id.0);
    }

    /// A frame has begun; notes the first chunk of a contribution.
    pub(super) fn note_arrival(&mut self, id: ConnId) {
        let Some(conn) = self.conns[id.0].as_ref() else { return };
        let InboundFrame::Chunk { partition, at, .. } = conn.inbound else { return };
        if at.chunk == 0 {
            let (job, rank) = (conn.job, conn.rank);
            self.note(EventKind::ArriveBegin, (job, partition, at.slot), Some(rank));
        }
    }

    /// A chunk of a contribution is here and not added yet.
    pub(super) fn note_chunk(
        &mut self,
        job: JobIndex,
        at: PartitionIndex,
        place: ChunkPlace,
        rank: Rank,
    ) {
        let partition = self.jobs[job].partition(at);
        let (last, adds) = (partition.spec.chunks() - 1, partition.adding_begins(place));
        if place.chunk == last {
            self.note(EventKind::ArriveEnd, (job, at, place.slot), Some(rank));
        }
        if adds {
            self.note(EventKind::SumBegin, (job, at, place.slot), None);
        }
    }

    /// A frame has been handed over; notes the last chunk of a result.
    pub(super) fn note_sent(&mut self, id: ConnId, payload: &Payload) {
        let Payload::Value { partition, at, .. } = payload else { return };
        let Some(conn) = self.conns[id.0].as_ref() else { return };
        let (job, rank) = (conn.job, conn.rank);
        if at.chunk + 1 == self.jobs[job].partition(*partition).spec.chunks() {
            self.note(EventKind::ReturnEnd, (job, *partition, at.slot), Some(rank));
        }
    }
}
