//! What a client puts on a connection, and when: as little ahead of the connection as keeps it
//! busy, so that what is urgent overtakes what is not.

use sumpter_types::{Collective, Epoch, GroupId, TensorId};
use sumpter_wire::{Begin, FrameKind, Header, encode_group};

use super::Client;
use super::link::{ChunkRef, Frame, FrameHead};
use super::op::{Op, OpId, Stage};
use crate::head::AHEAD_BYTES;
use sumpter_endpoint::Memory;
use sumpter_endpoint::{ConnId, MAX_SLICES};

impl<M: Memory> Client<M> {
    /// Queues frames on a connection until it holds enough for one write.
    pub(super) fn refill(&mut self, lane: ConnId) {
        loop {
            let link = &mut self.links[lane.0];
            let enough = link.output.len() >= MAX_SLICES / 2 || link.output_bytes >= AHEAD_BYTES;
            if !link.up || enough {
                return;
            }
            match link.current {
                Some((id, part)) => self.queue_chunk(lane, id, part),
                None => match link.ready.pop() {
                    Some((_, (id, part), ())) => self.start(lane, id, part),
                    None => return,
                },
            }
        }
    }

    /// A partition's turn: its beginning, unless the lane knows of it, then its chunks.
    fn start(&mut self, lane: ConnId, id: OpId, index: usize) {
        let Some(op) = self.ops.get(&id).filter(|op| op.stage == Stage::Active) else { return };
        if !op.parts[index].told {
            self.note_turn(lane, id, index);
            self.queue_begin(lane, id, index);
        }
        let op = self.ops.get_mut(&id).expect("an active operation");
        let rank = self.settings.rank;
        let link = &mut self.links[lane.0];
        op.parts[index].told = true;
        op.parts[index].ready = false;
        if op.contributes(index, rank) && !link.resident {
            op.parts[index].ready = true;
            link.current = Some((id, index));
        }
    }

    fn queue_begin(&mut self, lane: ConnId, id: OpId, index: usize) {
        let (op, epoch) = (&self.ops[&id], self.settings.epoch);
        let spec = op.spec(index, self.settings.chunk_bytes, self.settings.deterministic);
        let link = &mut self.links[lane.0];
        if spec.group != GroupId(0) && link.groups.insert(spec.group) {
            let ranks = encode_group(&self.groups[&spec.group]);
            let header = Header::new(FrameKind::Group, epoch, TensorId(spec.group.0));
            let header = Header { length: ranks.len() as u32, ..header };
            let head = [&link.head(&header, &ranks)[..], &ranks].concat().into();
            link.push(Frame { head: FrameHead::Group(head), chunk: None });
        }
        let part = &op.parts[index];
        let encoded = Begin { spec, priority: op.request.priority }.encode();
        let header = Header {
            chunk: part.have,
            length: encoded.len() as u32,
            ..Self::header(FrameKind::Begin, epoch, op, index)
        };
        link.push_small(&header, &encoded);
    }

    fn queue_chunk(&mut self, lane: ConnId, id: OpId, index: usize) {
        let chunk_bytes = self.settings.chunk_bytes;
        let link = &mut self.links[lane.0];
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.stage == Stage::Active) else {
            link.current = None;
            return;
        };
        let (part, bytes) = (&mut op.parts[index], op.places[index].bytes);
        // A chunk whose result is here was counted before the connection was made anew.
        let chunk = part.sent.max(part.have);
        let end = part.supplied.min(bytes.div_ceil(chunk_bytes as usize) as u32);
        part.sent = end.min(chunk + 1);
        if part.sent == end {
            part.ready = false;
            link.current = None;
        }
        if chunk >= end {
            return;
        }
        let (offset, len) = op.range(index, chunk, chunk_bytes);
        let header = Self::header(FrameKind::Push, self.settings.epoch, op, index);
        let header = Header { chunk, length: len as u32, ..header };
        // What is sent again after a cut may be overwritten by its result while it waits here:
        // then the lane has it, and drops what comes without a look at its checksum.
        let head = link.head(&header, op.memory.contribution(offset, len));
        let chunk = Some(ChunkRef { op: id, part: index, offset, len });
        link.push(Frame { head: FrameHead::Small(head), chunk });
        op.queued += 1;
    }

    /// Tells the lane that it may let go of a partition's sums, whenever the connection has
    /// something else to say.
    pub(super) fn queue_ack(&mut self, id: OpId, index: usize) {
        let op = &self.ops[&id];
        let header = Self::header(FrameKind::Ack, self.settings.epoch, op, index);
        let lane = op.places[index].lane;
        let waited_for = op.does(index).0 != Collective::AllReduce;
        let link = &mut self.links[lane.0];
        link.push_small(&header, &[]);
        if link.keeps && waited_for {
            // Who receives no data is done only when all others have it.
            self.touch(lane);
        }
    }

    fn header(kind: FrameKind, epoch: Epoch, op: &Op<M>, part: usize) -> Header {
        let header = Header::new(kind, epoch, op.request.tensor);
        let (tier, partition) = (op.tier(part), op.places[part].number);
        Header { tier, partition, round: op.round, ..header }
    }
}
