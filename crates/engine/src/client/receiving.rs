//! What a client does with a lane's frames: results into the tensors, each chunk once and in order.

use sumpter_wire::{FrameKind, Header};

use super::Client;
use super::link::{Input, Link};
use super::op::OpId;
use crate::endpoint::{ConnId, Violation};
use crate::memory::Memory;

impl<M: Memory> Client<M> {
    pub(super) fn start_frame(&mut self, lane: ConnId, header: Header) -> Result<(), Violation> {
        if header.epoch != self.settings.epoch {
            return Err(Violation::state(format!("a frame of epoch {}", header.epoch)));
        }
        let input = match header.kind {
            FrameKind::Result => self.expect(lane, &header)?,
            FrameKind::Done => {
                self.done(lane, &header)?;
                Input::Header
            }
            FrameKind::Error => {
                Input::Error { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Begin | FrameKind::Push | FrameKind::Group => {
                return Err(Violation::state(format!("a {:?} frame from a lane", header.kind)));
            }
        };
        self.links[lane.0].input = input;
        Ok(())
    }

    /// The active operation that a frame of a lane is about, if it is not of the past.
    fn subject(&self, lane: ConnId, header: &Header) -> Result<Option<OpId>, Violation> {
        let tensor = self.tensors.get(&header.tensor);
        let tensor = tensor.ok_or_else(|| Violation::state("a result of an unknown tensor"))?;
        let place = tensor.places.get(header.partition as usize);
        if place.is_none_or(|p| p.lane != lane) {
            return Err(Violation::state("a result of a partition that lives elsewhere"));
        }
        let current = |id: &OpId| self.ops[id].round == header.round;
        Ok(tensor.active.filter(current))
    }

    fn expect(&self, lane: ConnId, header: &Header) -> Result<Input, Violation> {
        let left = header.length as usize;
        let Some(id) = self.subject(lane, header)? else { return Ok(Input::Discard { left }) };
        let (op, part) = (&self.ops[&id], header.partition as usize);
        let have = op.parts[part].have;
        let (_, len) = op.range(part, header.chunk, self.settings.chunk_bytes);
        let request = &op.request;
        if !request.collective.receives(self.settings.rank, request.root) || len != left {
            return Err(Violation::state(format!(
                "a result of {left} bytes where {len} were expected"
            )));
        }
        match header.chunk {
            chunk if chunk < have => Ok(Input::Discard { left }),
            chunk if chunk == have => Ok(Input::Chunk { op: id, part, chunk, have: 0, len }),
            chunk => Err(Violation::state(format!("chunk {chunk} arrived before chunk {have}"))),
        }
    }

    fn done(&mut self, lane: ConnId, header: &Header) -> Result<(), Violation> {
        let Some(id) = self.subject(lane, header)? else { return Ok(()) };
        let request = self.ops[&id].request;
        if request.collective.receives(self.settings.rank, request.root) {
            return Err(Violation::state("a round was called done before its result was sent"));
        }
        self.part_done(id, header.partition as usize);
        Ok(())
    }

    pub(super) fn finish_frame(&mut self, lane: ConnId) {
        match std::mem::replace(&mut self.links[lane.0].input, Input::Header) {
            Input::Header | Input::Discard { .. } => {}
            Input::Error { header, bytes, .. } => {
                self.fail_tensor(header.tensor, &String::from_utf8_lossy(&bytes));
            }
            Input::Chunk { op: id, part, chunk, .. } => {
                let chunk_bytes = self.settings.chunk_bytes;
                let op = self.ops.get_mut(&id).expect("a receiving operation");
                let (offset, len) = op.range(part, chunk, chunk_bytes);
                if let Some(divisor) = op.request.divisor {
                    let result = op.memory.result(offset, len);
                    sumpter_sum::divide(op.request.dtype, result, divisor);
                }
                op.parts[part].have = chunk + 1;
                if (chunk as usize + 1) * chunk_bytes as usize >= op.places[part].bytes {
                    self.part_done(id, part);
                }
            }
        }
    }

    fn part_done(&mut self, id: OpId, part: usize) {
        let op = self.ops.get_mut(&id).expect("an active operation");
        if std::mem::replace(&mut op.parts[part].done, true) {
            return;
        }
        op.left -= 1;
        if op.left == 0 {
            self.succeed(id);
        }
    }

    /// Moves staged bytes into the payload; true when the payload is complete.
    pub(super) fn advance(&mut self, lane: ConnId) -> bool {
        let Link { input, inbox, .. } = &mut self.links[lane.0];
        match input {
            Input::Header => false,
            Input::Chunk { op, part, chunk, have, len } => {
                let op = self.ops.get_mut(op).expect("a receiving operation");
                let (offset, _) = op.range(*part, *chunk, self.settings.chunk_bytes);
                *have += inbox.take(op.memory.result(offset + *have, *len - *have));
                have == len
            }
            Input::Error { bytes, have, .. } => {
                *have += inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            Input::Discard { left } => {
                *left -= inbox.skip(*left);
                *left == 0
            }
        }
    }
}
