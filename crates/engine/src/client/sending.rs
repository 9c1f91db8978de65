//! What a client puts on a connection, and when: as little ahead of the connection as keeps it
//! busy, so that what is urgent overtakes what is not.

use std::cmp::Reverse;

use arrayvec::ArrayVec;
use sumpter_wire::{Epoch, FrameKind, GroupId, Header, TensorId, encode_group};

use super::Client;
use super::link::{ChunkRef, Frame, Head, Ready};
use super::op::{Op, OpId, Stage};
use crate::endpoint::{ConnId, MAX_SLICES};
use crate::memory::Memory;

impl<M: Memory> Client<M> {
    /// Queues frames on a connection until it holds enough for one write.
    pub(super) fn refill(&mut self, lane: ConnId) {
        loop {
            let link = &mut self.links[lane.0];
            if !link.up || link.output.len() >= MAX_SLICES / 2 {
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
            link.output.push_back(Frame { head: Head::Group(head), chunk: None });
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
        link.output.push_back(Frame { head: Head::Small(head), chunk: None });
        let contributes = op.request.collective.contributes(rank, op.request.root);
        if contributes && !link.resident && part.sent < spec.chunks() {
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
        let chunk = Some(ChunkRef { op: id, part: index, offset, len });
        link.output.push_back(Frame { head: Head::Small(head), chunk });
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
}
