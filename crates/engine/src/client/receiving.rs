//! What a client does with a lane's frames: results into the tensors, each chunk once and in order.

use sumpter_observe::Kind;
use sumpter_types::{Round, TensorId};
use sumpter_wire::{FrameKind, Header, Tier};

use super::link::{Input, Link};
use super::op::{OpId, Place, REPAIRED, Stage, find};
use super::{Client, Event};
use crate::chunk::ChunkId;
use sumpter_endpoint::Memory;
use sumpter_endpoint::{ConnId, Violation};

impl<M: Memory> Client<M> {
    fn start_frame(&mut self, lane: ConnId, header: Header) -> Result<(), Violation> {
        if header.epoch != self.settings.epoch {
            return Err(Violation::state(format!("a frame of epoch {}", header.epoch)));
        }
        let input = match header.kind {
            FrameKind::Result => self.expect(lane, ChunkId::of(&header), header.length as usize)?,
            FrameKind::Done => {
                self.done(lane, &header)?;
                Input::Header
            }
            FrameKind::Released => {
                self.let_go(ChunkId::of(&header));
                Input::Header
            }
            FrameKind::Error => {
                Input::Error { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Begin | FrameKind::Push | FrameKind::Group | FrameKind::Ack => {
                return Err(Violation::state(format!("a {:?} frame from a lane", header.kind)));
            }
        };
        if let Input::Chunk { op, part, chunk: 0, .. } = input {
            self.note(Kind::ReceiveBegin, op, part);
        }
        self.links[lane.0].input = input;
        Ok(())
    }

    /// The active operation that a frame of a lane is about, if it is not of the past, and which
    /// of its partitions.
    fn subject(&self, lane: ConnId, of: ChunkId) -> Result<Option<(OpId, usize)>, Violation> {
        let elsewhere = || Violation::state("a result of a partition that lives elsewhere");
        let part_of = |places: &[Place]| {
            find(places, of.partition).filter(|part| {
                places[*part].lane == lane
                    && places[*part].relay.is_some() == (of.tier == Tier::Relay)
            })
        };
        if of.tier == Tier::Relay {
            let current = |id: &OpId| self.ops[id].round == of.round;
            let found = self.relayed(of.tensor, of.round).filter(current);
            return Ok(found.filter_map(|id| Some((id, part_of(&self.ops[&id].places)?))).next());
        }
        let tensor = self.tensors.get(&(of.tensor, of.tier));
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
        let tiers = [Tier::Machine, Tier::Root];
        let own =
            tiers.into_iter().filter_map(move |tier| self.tensors.get(&(tensor, tier))?.active);
        let passed_on = self.relays.get(&(tensor, round)).map(|relaying| relaying.op);
        let active = |op: &OpId| self.ops.get(op).is_some_and(|op| op.stage == Stage::Active);
        own.chain(passed_on.filter(active))
    }

    fn expect(&mut self, lane: ConnId, of: ChunkId, left: usize) -> Result<Input, Violation> {
        let Some((id, part)) = self.subject(lane, of)? else {
            return Ok(Input::Discard { left });
        };
        let op = &self.ops[&id];
        let have = op.parts[part].have;
        let (_, len) = op.range(part, of.chunk, self.settings.chunk_bytes);
        if !op.receives(part, self.settings.rank) || len != left {
            return Err(Violation::state(format!(
                "a result of {left} bytes where {len} were expected"
            )));
        }
        match of.chunk {
            chunk if chunk < have => Ok(Input::Discard { left }),
            chunk if chunk == have => {
                let keeps = self.links[lane.0].keeps;
                let kept = keeps.then(|| self.pool.take(len));
                Ok(Input::Chunk { op: id, part, chunk, have: 0, len, kept })
            }
            chunk => Err(Violation::state(format!("chunk {chunk} arrived before chunk {have}"))),
        }
    }

    fn done(&mut self, lane: ConnId, header: &Header) -> Result<(), Violation> {
        let Some((id, part)) = self.subject(lane, ChunkId::of(header))? else { return Ok(()) };
        if self.ops[&id].receives(part, self.settings.rank) {
            return Err(Violation::state("a round was called done before its result was sent"));
        }
        self.part_done(id, part);
        Ok(())
    }

    /// Takes in what has been received.
    pub(super) fn take_in(&mut self, lane: ConnId) -> Result<(), Violation> {
        loop {
            let link = &mut self.links[lane.0];
            if matches!(link.input, Input::Header) {
                match link.inbox.header()? {
                    Some(header) => self.start_frame(lane, header)?,
                    None => return Ok(()),
                }
            } else if self.advance(lane) {
                self.check(lane)?;
                self.finish_frame(lane);
            } else {
                return Ok(());
            }
        }
    }

    /// Whether a payload that is complete is what was sent. If not, a result that lies in the
    /// tensor already is overwritten when it is sent again: it is not counted as received.
    fn check(&mut self, lane: ConnId) -> Result<(), Violation> {
        let Link { input, inbox, .. } = &mut self.links[lane.0];
        let payload = match input {
            Input::Chunk { kept: Some(bytes), .. } => &bytes[..],
            Input::Chunk { op, part, chunk, len, kept: None, .. } => {
                let op = self.ops.get_mut(op).expect("a receiving operation");
                let (offset, _) = op.range(*part, *chunk, self.settings.chunk_bytes);
                op.memory.result(offset, *len)
            }
            Input::Error { bytes, .. } => &bytes[..],
            Input::Header | Input::Discard { .. } => return Ok(()),
        };
        Ok(inbox.check(payload)?)
    }

    fn finish_frame(&mut self, lane: ConnId) {
        match std::mem::replace(&mut self.links[lane.0].input, Input::Header) {
            Input::Header | Input::Discard { .. } => {}
            Input::Error { header, bytes, .. } => {
                self.fail_tensor(header.tensor, &String::from_utf8_lossy(&bytes));
            }
            Input::Chunk { op: id, part, chunk, len, kept, .. } => {
                if let Some(bytes) = kept {
                    let op = self.ops.get_mut(&id).expect("a receiving operation");
                    let (offset, _) = op.range(part, chunk, self.settings.chunk_bytes);
                    op.memory.result(offset, len).copy_from_slice(&bytes);
                    self.keep(id, part, chunk, bytes);
                }
                self.chunk_done(id, part, chunk);
            }
        }
    }

    /// A chunk's sum lies in the result.
    fn chunk_done(&mut self, id: OpId, part: usize, chunk: u32) {
        let chunk_bytes = self.settings.chunk_bytes;
        let op = self.ops.get_mut(&id).expect("a receiving operation");
        let (offset, len) = op.range(part, chunk, chunk_bytes);
        if let Some(divisor) = op.divisor(part) {
            let result = op.memory.result(offset, len);
            sumpter_sum::divide(op.request.dtype, result, divisor);
        }
        op.parts[part].have = chunk + 1;
        let streamed = op.request.streamed;
        if streamed {
            self.events.push_back(Event::Arrived { op: id, number: op.places[part].number, chunk });
        }
        if (chunk as usize + 1) * chunk_bytes as usize >= op.places[part].bytes {
            let resident = self.links[op.places[part].lane.0].resident;
            self.note(if resident { Kind::CopyEnd } else { Kind::ReceiveEnd }, id, part);
            // Of a subtotal's total, whoever streams it knows when others may be told.
            if !streamed {
                self.queue_ack(id, part);
                self.all_kept(id, part);
            }
            self.part_done(id, part);
        }
    }

    /// This worker's contribution to a chunk; `None` if nobody waits for the round any more, or
    /// if it is not there yet: then it will be [offered](Self::next_offer).
    pub(crate) fn contribution(
        &mut self,
        lane: ConnId,
        of: ChunkId,
    ) -> Result<Option<&[u8]>, Violation> {
        let Some((id, part)) = self.subject(lane, of)? else { return Ok(None) };
        let op = self.ops.get_mut(&id).expect("an active operation");
        if of.chunk >= op.parts[part].supplied {
            op.parts[part].asked.push_back(of.chunk);
            return Ok(None);
        }
        let (offset, len) = op.range(part, of.chunk, self.settings.chunk_bytes);
        Ok(Some(op.memory.contribution(offset, len)))
    }

    /// Takes a chunk's sum from a lane in this process.
    pub(crate) fn take(
        &mut self,
        lane: ConnId,
        of: ChunkId,
        value: &[u8],
    ) -> Result<(), Violation> {
        let input = self.expect(lane, of, value.len())?;
        if let Input::Chunk { op: id, part, chunk, len, .. } = input {
            if chunk == 0 {
                self.note(Kind::CopyBegin, id, part);
            }
            let op = self.ops.get_mut(&id).expect("a receiving operation");
            let (offset, _) = op.range(part, chunk, self.settings.chunk_bytes);
            op.memory.result(offset, len).copy_from_slice(value);
            self.chunk_done(id, part, chunk);
        }
        Ok(())
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
    fn advance(&mut self, lane: ConnId) -> bool {
        let Link { input, inbox, .. } = &mut self.links[lane.0];
        match input {
            Input::Header => false,
            Input::Chunk { have, len, kept: Some(bytes), .. } => {
                *have += inbox.take(&mut bytes[*have..]);
                have == len
            }
            Input::Chunk { op, part, chunk, have, len, kept: None } => {
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
