//! What a client does with a lane's frames: results into the tensors, each chunk once and in order.

use std::ops::Range;

use sumpter_codec::Key;
use sumpter_endpoint::Memory;
use sumpter_endpoint::{ConnId, Violation};
use sumpter_observe::EventKind;
use sumpter_sum::AlignedBuf;
use sumpter_types::{Collective, Dtype, ExactSum, MAX_SLOTS, TensorId};
use sumpter_wire::{FrameKind, Header, OrderEntry, Snapshot, Tier, decode_norm, decode_order};

use super::op::{OpId, Place, Request, Supply, find};
use super::receiver::InboundFrame;
use super::retained::RetainedChunk;
use super::sender::ChunkRef;
use super::{Client, Event};
use crate::chunk::ChunkId;
use crate::coding::sum_bytes;

impl<M: Memory> Client<M> {
    /// Processes what has been received.
    pub(super) fn receive(&mut self, lane: ConnId) -> Result<(), Violation> {
        loop {
            let receiver = &mut self.links[lane].receiver;
            if matches!(receiver.frame, InboundFrame::Header) {
                match receiver.inbox.header()? {
                    Some(header) => self.start_frame(lane, header)?,
                    None => return Ok(()),
                }
            } else if receiver.advance(&mut self.operations) {
                receiver.check(&mut self.operations)?;
                let frame = receiver.take_frame();
                self.finish_frame(lane, frame)?;
            } else {
                return Ok(());
            }
        }
    }

    fn start_frame(&mut self, lane: ConnId, header: Header) -> Result<(), Violation> {
        if header.epoch != self.settings.epoch {
            return Err(Violation::state(format!("a frame of epoch {}", header.epoch)));
        }
        let of = ChunkId::of(&header);
        let frame = match header.kind {
            FrameKind::Result => self.expect(lane, of, header.length as usize)?,
            FrameKind::Done if header.length > 0 => {
                InboundFrame::Payload { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Done => {
                self.done(lane, of, Vec::new())?;
                InboundFrame::Header
            }
            FrameKind::Released => {
                self.delivered_to_all(of);
                InboundFrame::Header
            }
            FrameKind::Error => {
                InboundFrame::Payload { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Norm => {
                InboundFrame::Payload { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Snapshot => {
                let parts = (1 + MAX_SLOTS) * 2 * self.settings.chunk_bytes as usize;
                let most = Snapshot::payload_bytes(self.settings.world_size as usize, parts);
                if header.length as usize > most {
                    return Err(Violation::state("a snapshot of more than a chunk"));
                }
                InboundFrame::Payload { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Begin
            | FrameKind::Push
            | FrameKind::Group
            | FrameKind::Codec
            | FrameKind::Ack
            | FrameKind::Mirrored
            | FrameKind::Apply => {
                return Err(Violation::state(format!("a {:?} frame from a lane", header.kind)));
            }
        };
        if let InboundFrame::Chunk { chunk: 0, at: ChunkRef { op, part, .. }, .. } = frame {
            self.trace.partition(EventKind::ReceiveBegin, &self.operations[op], part);
        }
        self.links[lane].receiver.frame = frame;
        Ok(())
    }

    /// What to do with a chunk of a result of `left` bytes.
    fn expect(
        &mut self,
        lane: ConnId,
        of: ChunkId,
        left: usize,
    ) -> Result<InboundFrame, Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else {
            return Ok(InboundFrame::Discard { left });
        };
        let op = &self.operations[id];
        let state = &op.parts[part];
        // A result goes to the buffer of its subtotal.
        if op.request.supply == Supply::Chunks && of.chunk >= state.supplied {
            let text = format!("a total of chunk {}, of which there is no subtotal", of.chunk);
            return Err(Violation::state(text));
        }
        let have = state.have;
        let (offset, len) = op.range(part, of.chunk, self.settings.chunk_bytes);
        let on_wire = op.received_len(part, len, self.settings.rank);
        if !op.receives(part, self.settings.rank) || on_wire != left {
            return Err(Violation::state(format!(
                "a result of {left} bytes where {on_wire} were expected"
            )));
        }
        match of.chunk {
            chunk if chunk < have => Ok(InboundFrame::Discard { left }),
            // Behind the last chunk there is nothing to receive.
            chunk if chunk == have && !op.parts[part].done => {
                let mirrors = op.mirrors(part, self.settings.rank);
                if mirrors && !op.request.update.is_some_and(|update| update.is_decided()) {
                    return Err(Violation::state("a gradient of a round that is not decided"));
                }
                // Of a variable, its mirrors have what is needed.
                let of_variable =
                    op.places[part].variable.is_some() || op.request.tier.part().is_some();
                let retains = self.links[lane].retains && !of_variable;
                // What is encoded again after a cut must be what it was: a contribution as a whole.
                let apart = retains || mirrors || op.coding(part).is_some();
                let buffer = apart.then(|| self.retained.buffer(on_wire));
                let at = ChunkRef { op: id, part, offset, len, on_wire };
                Ok(InboundFrame::Chunk { chunk, at, have: 0, buffer })
            }
            chunk => Err(Violation::state(format!("chunk {chunk} arrived before chunk {have}"))),
        }
    }

    fn done(&mut self, lane: ConnId, of: ChunkId, order: Vec<OrderEntry>) -> Result<(), Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else { return Ok(()) };
        let op = &mut self.operations[id];
        if op.tier(part) == Tier::Worker {
            let size = op.request.dtype.size() as u32;
            let is_whole = |entry: &OrderEntry| entry.end.is_multiple_of(size);
            let all = op.places[part].bytes;
            let ends = order.last().is_some_and(|last| last.end as usize == all);
            if !ends || !order.iter().all(is_whole) {
                return Err(Violation::state("an order of other bytes than the partition's"));
            }
            op.parts[part].order = order;
        }
        if op.places[part].variable.is_some() {
            // It may overtake the result.
            op.parts[part].settled = true;
            self.complete_part(id, part);
        } else if self.operations[id].receives(part, self.settings.rank) {
            return Err(Violation::state("a round was called done before its result was sent"));
        } else {
            self.part_done(id, part);
        }
        Ok(())
    }

    /// A lane reports that everyone has a partition's result.
    fn delivered_to_all(&mut self, of: ChunkId) {
        let ChunkId { tensor, tier, partition: number, round, .. } = of;
        if self.operations.own_tier(tensor) != Some(tier) {
            self.events.push_back(Event::DeliveredToAll { tensor, tier, number, round });
        }
        self.retained.release((tensor, tier, number), round);
    }

    fn finish_frame(&mut self, lane: ConnId, frame: InboundFrame) -> Result<(), Violation> {
        match frame {
            InboundFrame::Header | InboundFrame::Discard { .. } => {}
            InboundFrame::Payload { header, bytes, .. } if header.kind == FrameKind::Snapshot => {
                self.take_snapshot(lane, &header, &bytes)?;
            }
            InboundFrame::Payload { header, bytes, .. } if header.kind == FrameKind::Norm => {
                self.norm(lane, ChunkId::of(&header), &decode_norm(&bytes)?)?;
            }
            InboundFrame::Payload { header, bytes, .. } if header.kind == FrameKind::Done => {
                self.done(lane, ChunkId::of(&header), decode_order(header.kind, &bytes)?)?;
            }
            InboundFrame::Payload { header, bytes, .. } => {
                self.fail_tensor(header.tensor, &String::from_utf8_lossy(&bytes));
            }
            InboundFrame::Chunk { chunk, at, buffer: Some(code), .. }
                if self.operations[at.op].decodes(at.part) =>
            {
                let decoded = self.decode((lane, chunk), at, &code);
                self.retained.recycle(code);
                if let Err(reason) = decoded {
                    let tensor = self.operations[at.op].request.tensor;
                    self.fail_tensor(tensor, &reason);
                    return Ok(());
                }
                self.chunk_done(chunk, at);
            }
            InboundFrame::Chunk { chunk, at, buffer, .. } => {
                let mirrors = self.operations[at.op].mirrors(at.part, self.settings.rank);
                if let (true, Some(gradient)) = (mirrors, &buffer) {
                    self.mirror(at, gradient)?;
                    buffer.into_iter().for_each(|buffer| self.retained.recycle(buffer));
                } else if let Some(bytes) = buffer {
                    let memory = &mut self.operations[at.op].memory;
                    memory.result(at.offset, at.len).copy_from_slice(&bytes);
                    match self.links[lane].retains {
                        true => self.retain(lane, chunk, at, bytes),
                        false => self.retained.recycle(bytes),
                    }
                }
                self.chunk_done(chunk, at);
            }
        }
        Ok(())
    }

    /// Decodes a chunk of a sum into the result, and retains it if others may lack it; a text if it
    /// is no code.
    fn decode(
        &mut self,
        (lane, chunk): (ConnId, u32),
        at: ChunkRef,
        value: &[u8],
    ) -> Result<(), String> {
        let carries = self.operations[at.op].carries(at.part, self.settings.rank);
        match carries {
            Some(contributions) => self.carry(at, value, contributions)?,
            None => self.decode_code(at, value)?,
        }
        // The lane lets nobody else have it until it knows that the carrier does.
        if carries.is_some() || self.links[lane].retains {
            let mut bytes = self.retained.buffer(at.len);
            let memory = &mut self.operations[at.op].memory;
            bytes.copy_from_slice(memory.result(at.offset, at.len));
            self.retain(lane, chunk, at, bytes);
        }
        Ok(())
    }

    /// Takes a sum of so many contributions itself, or their codes: what its own code leaves out is
    /// kept, and the result is as all others have it.
    fn carry(&mut self, at: ChunkRef, value: &[u8], contributions: u32) -> Result<(), String> {
        let ChunkRef { op: id, part, offset, len, .. } = at;
        let op = &self.operations[id];
        let (Request { tensor, dtype, .. }, place) = (op.request, op.places[part]);
        let (origin, key) = (place.origin + offset - place.offset, Key::of_sum(tensor, op.round));
        let Some(coding) = op.coding(part).cloned() else { return Ok(()) };
        let of = ((key, origin), (dtype, len));
        let pool = self.retained.pool();
        let added = match coding.coder().carries_codes(dtype, len, contributions) {
            true => {
                let added = coding.coder().add_codes(of, value, pool);
                Some(added.map_err(|error| format!("partition {}: {error}", place.number))?)
            }
            false => None,
        };
        let sum = added.as_deref().unwrap_or(value);
        let code = coding.sum_coder().encode_sum(of, sum, pool);
        let mut decoded = self.retained.buffer(sum.len());
        let sums = (key, sum_bytes(dtype, origin));
        let kept = coding.coder().decode_sum(sums, &code, (Dtype::F32, &mut decoded));
        kept.expect("a code that was made here");
        self.residuals.carry(&coding, (tensor, dtype, origin), sum, &decoded);
        self.retained.recycle(decoded);
        added.into_iter().for_each(|sum| self.retained.recycle(sum));
        let done = self.decode_code(at, &code);
        self.retained.recycle(code);
        done
    }

    fn decode_code(&mut self, at: ChunkRef, code: &[u8]) -> Result<(), String> {
        let ChunkRef { op: id, part, offset, len, .. } = at;
        let op = &mut self.operations[id];
        let Request { tensor, dtype, .. } = op.request;
        let place = op.places[part];
        let origin = place.origin + offset - place.offset;
        let Some(coding) = op.coding(part).cloned() else { return Ok(()) };
        let key = Key::of_sum(tensor, op.round);
        let result = (dtype, op.memory.result(offset, len));
        let decoded = coding.coder().decode_sum((key, origin), code, result);
        decoded.map_err(|error| format!("a sum that partition {} got: {error}", place.number))
    }

    /// A variable that this worker mirrors has changed in the lane.
    fn take_snapshot(
        &mut self,
        lane: ConnId,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let (Snapshot { offset, len, clocks }, parts) = Snapshot::decode(payload)?;
        let tensor = header.tensor;
        if self.mirrors.held(tensor).is_none() && self.operations.knows(tensor, Tier::Worker) {
            // The variable has failed here, and the lane has not heard of it yet.
            return Ok(());
        }
        let elements = self.mirrored_at(lane, (tensor, header.partition), (offset, len));
        let is_taken = elements.is_some_and(|elements| {
            let parts = match parts.is_empty() {
                true => {
                    let of = (tensor, header.partition);
                    self.operations.own_answer(of, &elements, self.settings.chunk_bytes)
                }
                false => Some(parts),
            };
            parts.is_some_and(|parts| self.mirrors.restore(tensor, elements, clocks, parts))
        });
        if !is_taken {
            return Err(Violation::state("a snapshot of what is not mirrored here"));
        }
        let header = Header { kind: FrameKind::Mirrored, length: 0, ..*header };
        self.links[lane].sender.push_control(&header, &[]);
        self.links.touch(lane);
        Ok(())
    }

    /// The elements of a variable that bytes of a partition's value are, in a lane.
    fn mirrored_at(
        &self,
        lane: ConnId,
        (tensor, number): (TensorId, u32),
        (offset, len): (u32, u32),
    ) -> Option<Range<usize>> {
        let layout = self.operations.layout(tensor, Tier::Worker)?;
        let place = layout.places[find(&layout.places, number)?];
        let dtype = self.mirrors.dtype(tensor)?;
        let (size, master) = (dtype.size(), dtype.accumulator().size());
        let bytes = offset as usize..offset as usize + len as usize;
        let (start, end) = (bytes.start / master, bytes.end / master);
        let is_whole = [bytes.start, bytes.end].iter().all(|at| at.is_multiple_of(master));
        let first = place.origin / size;
        let within = place.lane == lane && end <= place.bytes / size;
        (is_whole && within).then_some(first + start..first + end)
    }

    /// The squares of a partition's gradient have this sum.
    fn norm(&mut self, lane: ConnId, of: ChunkId, squares: &ExactSum) -> Result<(), Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else { return Ok(()) };
        let op = &mut self.operations[id];
        let number = op.places[part].number;
        let all = op.take_norm(part, squares);
        if op.request.supply == Supply::Chunks {
            let squares = squares.clone();
            self.events.push_back(Event::PartitionNorm { op: id, number, squares });
        } else if let Some(squares) = all {
            self.events.push_back(Event::Norm { op: id, squares });
        }
        Ok(())
    }

    /// The gradient of a chunk that this worker mirrors: its new value goes to the result.
    fn mirror(&mut self, at: ChunkRef, gradient: &[u8]) -> Result<(), Violation> {
        let op = &mut self.operations[at.op];
        let (Request { tensor, dtype, update, .. }, place) = (op.request, op.places[at.part]);
        let (update, round) = (update.expect("a variable's round is an update"), op.round);
        let first = (place.origin + at.offset - place.offset) / dtype.size();
        let weights = op.memory.result(at.offset, at.len);
        let gradient = (dtype, &gradient[..at.len]);
        let mirrored = self.mirrors.apply((tensor, round), first, &update, gradient, weights);
        let early = || Violation::state("a gradient before its mirror has the variable's value");
        mirrored.then_some(()).ok_or_else(early)
    }

    fn retain(&mut self, lane: ConnId, chunk: u32, at: ChunkRef, bytes: AlignedBuf) {
        let (op, part) = (&self.operations[at.op], at.part);
        let (tensor, round, place) = (op.request.tensor, op.round, &op.places[part]);
        let origin = place.origin + chunk as usize * self.settings.chunk_bytes as usize;
        let (len, contributors) = (at.len, place.contributors);
        let chunk = RetainedChunk { tensor, round, origin, bytes, len, contributors };
        self.retained.insert((tensor, op.tier(part), place.number), lane, chunk);
    }

    /// A chunk of the reduced tensor lies in the result.
    fn chunk_done(&mut self, chunk: u32, at: ChunkRef) {
        let ChunkRef { op: id, part, offset, len, .. } = at;
        let op = &mut self.operations[id];
        if let Some(divisor) = op.divisor(part) {
            let result = op.memory.result(offset, len);
            sumpter_sum::divide(op.request.dtype, result, divisor);
        }
        op.parts[part].have = chunk + 1;
        let (place, supply) = (op.places[part], op.request.supply);
        match supply {
            Supply::Whole => {}
            // A variable's may be made again, to the same bytes, until its mirrors have it.
            Supply::Ranges if place.variable.is_some() => {}
            Supply::Ranges => {
                let bytes = offset..offset + len;
                if op.request.update.is_some() {
                    op.announce(bytes.clone());
                }
                self.events.push_back(Event::Available { op: id, bytes });
            }
            Supply::Chunks => {
                self.events.push_back(Event::Arrived { op: id, number: place.number, chunk });
            }
        }
        if offset + len == place.offset + place.bytes {
            let resident = self.links[place.lane].resident;
            let kind = if resident { EventKind::CopyEnd } else { EventKind::ReceiveEnd };
            self.trace.partition(kind, op, part);
            // The hub that passes a subtotal on decides when its total may be acknowledged; what it
            // mirrors, it has.
            if supply != Supply::Chunks || self.operations[id].mirrors(part, self.settings.rank) {
                self.acknowledge_part(id, part);
            }
            self.complete_part(id, part);
        }
    }

    /// A partition is done, if all of it is here and nothing of it is needed again.
    fn complete_part(&mut self, id: OpId, part: usize) {
        let (op, rank) = (&self.operations[id], self.settings.rank);
        if !op.is_complete(part, rank, self.settings.chunk_bytes) || op.parts[part].done {
            return;
        }
        let place = op.places[part];
        let in_ranges = op.request.supply == Supply::Ranges && place.variable.is_some();
        // What one worker does alone, it does again as a whole.
        if in_ranges && op.tier(part) != Tier::Worker {
            let bytes = place.offset..place.offset + place.bytes;
            self.operations[id].announce(bytes.clone());
            self.events.push_back(Event::Available { op: id, bytes });
        }
        self.part_done(id, part);
    }

    /// All of a partition's result is here: the lane may drop it, and learns so when the connection
    /// has something else to send.
    fn acknowledge_part(&mut self, id: OpId, part: usize) {
        let op = &self.operations[id];
        let lane = op.places[part].lane;
        let header = op.header(FrameKind::Ack, part, self.settings.epoch);
        let mirrors = op.mirrors(part, self.settings.rank);
        let carries = op.carries(part, self.settings.rank);
        let key = (op.request.tensor, op.tier(part), op.places[part].number);
        let link = &mut self.links[lane];
        link.sender.push_control(&header, &[]);
        let awaited = match op.does(part).0 {
            // The others get the code of the sum once its carrier has the sum.
            Collective::AllReduce => carries.is_some(),
            // The others are done once the mirrors have it.
            Collective::Update => mirrors,
            // A worker that receives no data is done only when all others have it.
            _ => link.retains,
        };
        if awaited {
            self.links.touch(lane);
        }
        if mirrors || op.request.tier.part().is_some() {
            self.retained.remember(key, lane, op.round);
        }
        self.retained.acknowledge(key, op.round);
    }

    fn part_done(&mut self, id: OpId, part: usize) {
        let op = &mut self.operations[id];
        if std::mem::replace(&mut op.parts[part].done, true) {
            return;
        }
        op.left -= 1;
        if op.request.supply == Supply::Chunks {
            let Place { number, variable, .. } = op.places[part];
            if !op.receives(part, self.settings.rank) {
                self.events.push_back(Event::PartitionDone { op: id, number });
            } else if variable.is_some() {
                self.events.push_back(Event::Mirrored { op: id, number });
            }
        }
        let op = &self.operations[id];
        if op.left == 0 {
            if op.request.supply == Supply::Ranges && op.request.tier == Tier::Worker {
                let places = op.places.clone();
                let bytes = |place: &Place| place.offset..place.offset + place.bytes;
                let all = places.iter().map(bytes);
                self.events.extend(all.map(|bytes| Event::Available { op: id, bytes }));
            }
            if op.request.tier == Tier::Worker {
                let order = op.order();
                self.events.push_back(Event::Ordered { op: id, order });
            }
            self.succeed(id);
        }
    }

    /// A chunk that the lane in this process asked for before it was there.
    pub(crate) fn next_offer(&mut self, lane: ConnId) -> Option<ChunkId> {
        while let Some((id, part, chunk)) = self.links[lane].offers.pop_front() {
            if let Some(op) = self.operations.active_mut(id) {
                let (tensor, tier) = (op.request.tensor, op.tier(part));
                let (partition, round) = (op.places[part].number, op.round);
                return Some(ChunkId { tensor, tier, partition, round, chunk });
            }
        }
        None
    }

    /// This worker's contribution to a chunk; `None` if the round is over here, or if it is not
    /// there yet: then it will be [offered](Self::next_offer).
    pub(crate) fn contribution(
        &mut self,
        lane: ConnId,
        of: ChunkId,
    ) -> Result<Option<&[u8]>, Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else { return Ok(None) };
        let op = &mut self.operations[id];
        if of.chunk >= op.parts[part].supplied {
            op.parts[part].asked.push_back(of.chunk);
            return Ok(None);
        }
        let (offset, len) = op.range(part, of.chunk, self.settings.chunk_bytes);
        Ok(Some(op.memory.contribution(offset, len)))
    }

    /// The same, if it is there and is not sent as it is: its code, or itself with what earlier
    /// rounds have left out, in a buffer that is taken for it.
    pub(crate) fn coded_contribution(
        &mut self,
        lane: ConnId,
        of: ChunkId,
        take: impl FnOnce(usize) -> AlignedBuf,
    ) -> Result<Option<AlignedBuf>, Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else { return Ok(None) };
        let is_there = of.chunk < self.operations[id].parts[part].supplied;
        let len = self.code_len(id, part, of.chunk).filter(|_| is_there);
        let code = len.map(|len| self.encode(id, part, of.chunk, take(len))).transpose();
        Ok(code.unwrap_or_else(|reason| {
            self.fail_tensor(of.tensor, &reason);
            None
        }))
    }

    /// This worker's contribution to a chunk, if its result is the next to come and goes to the
    /// same memory, as it is.
    pub(crate) fn in_place(
        &mut self,
        lane: ConnId,
        of: ChunkId,
    ) -> Result<Option<&mut [u8]>, Violation> {
        let Some((id, part)) = self.operations.addressed(lane, of)? else { return Ok(None) };
        let op = &self.operations[id];
        let state = &op.parts[part];
        let is_next = of.chunk < state.supplied && of.chunk == state.have && !state.done;
        if !is_next || op.request.update.is_some() || !op.receives(part, self.settings.rank) {
            return Ok(None);
        }
        if self.code_len(id, part, of.chunk).is_some() {
            return Ok(None);
        }
        let op = &mut self.operations[id];
        let (offset, len) = op.range(part, of.chunk, self.settings.chunk_bytes);
        Ok(op.memory.in_place(offset, len))
    }

    /// Takes a chunk of a result from the lane in this process, of `len` bytes; without a `value`,
    /// it is in the memory already.
    pub(crate) fn take(
        &mut self,
        lane: ConnId,
        of: ChunkId,
        len: usize,
        value: Option<&[u8]>,
    ) -> Result<(), Violation> {
        if let InboundFrame::Chunk { chunk, at, buffer, .. } = self.expect(lane, of, len)? {
            buffer.into_iter().for_each(|buffer| self.retained.recycle(buffer));
            let op = &mut self.operations[at.op];
            if chunk == 0 {
                self.trace.partition(EventKind::CopyBegin, op, at.part);
            }
            match value {
                None => {}
                Some(value) if op.mirrors(at.part, self.settings.rank) => {
                    self.mirror(at, value)?;
                }
                Some(code) if op.decodes(at.part) => {
                    self.decode((lane, chunk), at, code).map_err(Violation::state)?;
                }
                Some(value) => op.memory.result(at.offset, at.len).copy_from_slice(value),
            }
            self.chunk_done(chunk, at);
        }
        Ok(())
    }
}
