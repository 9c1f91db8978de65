//! What a client puts on a connection, and when: as little ahead of the connection as keeps it
//! busy, so that what is urgent overtakes what is not.

use sumpter_codec::Key;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;
use sumpter_observe::EventKind;
use sumpter_sum::AlignedBuf;
use sumpter_types::{Collective, Epoch, GroupId, TensorId};
use sumpter_wire::{Begin, FrameKind, Header, Snapshot, Tier, encode_group, encode_order};

use super::Client;
use super::op::{Op, OpId, Request, find};
use super::residuals::Source;
use super::sender::{ChunkRef, Frame, FrameHead};

impl<M: Memory> Client<M> {
    /// Takes an operation that is over off the connections. Of one that has `failed` the frames
    /// that have not left get bytes of their own, since its memory is the caller's again.
    pub(super) fn take_off(&mut self, id: OpId, failed: bool) {
        for link in self.links.iter_mut() {
            let buffer = link.receiver.discard_chunk_of(id);
            buffer.into_iter().for_each(|buffer| self.retained.recycle(buffer));
            if failed {
                let memory = &self.operations[id].memory;
                link.sender.detach(id, memory, self.retained.pool());
            }
        }
    }

    /// Queues frames on a connection until it holds enough for one write.
    pub(super) fn refill(&mut self, lane: ConnId) {
        loop {
            let link = &mut self.links[lane];
            if !link.up || link.sender.is_full() {
                return;
            }
            match link.sender.current {
                Some((id, part)) => self.queue_chunk(lane, id, part),
                None => match link.sender.ready.pop() {
                    Some((_, (id, part), ())) => self.start(lane, id, part),
                    None => return,
                },
            }
        }
    }

    /// A partition's turn: its beginning, unless the lane knows of it, then its chunks.
    fn start(&mut self, lane: ConnId, id: OpId, index: usize) {
        let Some(op) = self.operations.active_mut(id) else { return };
        let link = &mut self.links[lane];
        let sends = op.contributes(index, self.settings.rank) && !link.resident;
        if sends {
            link.sender.current = Some((id, index));
        }
        let part = &mut op.parts[index];
        part.ready = sends;
        if !std::mem::replace(&mut part.announced, true) {
            let kind = if sends { EventKind::SendBegin } else { EventKind::Offered };
            self.trace.partition(kind, op, index);
            self.queue_begin(lane, id, index);
        }
    }

    fn queue_begin(&mut self, lane: ConnId, id: OpId, index: usize) {
        let (op, epoch) = (&self.operations[id], self.settings.epoch);
        let spec = op.spec(index, self.settings.chunk_bytes, self.settings.deterministic);
        let sender = &mut self.links[lane].sender;
        for group in [spec.group].into_iter().chain(spec.route.map(|route| route.group)) {
            if group != GroupId(0) && sender.announces(group) {
                let ranks = encode_group(&self.groups[&group]);
                let header = Header::new(FrameKind::Group, epoch, TensorId(group.0));
                let header = Header { length: ranks.len() as u32, ..header };
                sender.push_control(&header, &ranks);
            }
        }
        if let Some(coding) = op.coding(index)
            && sender.announces_codec(coding.id())
        {
            let header = Header::new(FrameKind::Codec, epoch, TensorId(coding.id().0));
            let header = Header { length: coding.text().len() as u32, ..header };
            sender.push_control(&header, coding.text().as_bytes());
        }
        let update = op.request.update.filter(|_| spec.variable.is_some());
        let Request { priority, call, .. } = op.request;
        let encoded = Begin { spec, priority, call, update }.encode();
        let order = encode_order(&op.order_of(&op.places[index]));
        let header = Header {
            chunk: op.parts[index].have,
            length: (encoded.len() + order.len()) as u32,
            ..op.header(FrameKind::Begin, index, epoch)
        };
        match order.is_empty() {
            true => sender.push_control(&header, &encoded),
            false => sender.push_control(&header, &[&encoded[..], &order].concat()),
        }
        if op.request.tier == Tier::Value {
            self.queue_clocks(lane, (op.request.tensor, op.places[index].number), epoch);
        }
    }

    /// Of a variable that changes asynchronously, what is put into a lane has clocks.
    fn queue_clocks(&mut self, lane: ConnId, (tensor, number): (TensorId, u32), epoch: Epoch) {
        let Some(dtype) = self.mirrors.dtype(tensor) else { return };
        let layout = self.operations.layout(tensor, Tier::Worker);
        let places = layout.map_or(&[][..], |layout| &layout.places);
        let Some(place) = find(places, number).map(|at| places[at]) else { return };
        let (size, master) = (dtype.size(), dtype.accumulator().size());
        let first = place.origin / size;
        let elements = first..first + place.bytes / size;
        for (part, clocks) in self.mirrors.clocks(tensor, &elements) {
            let (offset, len) = ((part.start - first) * master, part.len() * master);
            let payload = Snapshot { offset: offset as u32, len: len as u32, clocks }.encode();
            let header = Header::new(FrameKind::Snapshot, epoch, tensor);
            let header = Header { tier: Tier::Value, partition: number, ..header };
            let header = Header { length: payload.len() as u32, ..header };
            self.links[lane].sender.push_control(&header, &payload);
        }
    }

    fn queue_chunk(&mut self, lane: ConnId, id: OpId, index: usize) {
        let chunk_bytes = self.settings.chunk_bytes;
        let sender = &mut self.links[lane].sender;
        let Some(op) = self.operations.active_mut(id) else {
            sender.current = None;
            return;
        };
        let (part, bytes) = (&mut op.parts[index], op.places[index].bytes);
        // A chunk whose result is here was counted before the connection was made anew.
        let chunk = part.sent.max(part.have);
        // When it is done, what was to be sent again after a cut is not needed, and may be gone.
        let end = match part.done {
            true => part.sent,
            false => part.supplied.min(bytes.div_ceil(chunk_bytes as usize) as u32),
        };
        part.sent = end.min(chunk + 1);
        if part.sent == end {
            part.ready = false;
            sender.current = None;
        }
        if chunk >= end {
            return;
        }
        let (offset, len) = op.range(index, chunk, chunk_bytes);
        let header = op.header(FrameKind::Push, index, self.settings.epoch);
        let code = self.code_len(id, index, chunk).map(|len| self.retained.buffer(len));
        let code = match code.map(|code| self.encode(id, index, chunk, code)).transpose() {
            Ok(code) => code,
            Err(reason) => {
                let tensor = self.operations[id].request.tensor;
                return self.fail_tensor(tensor, &reason);
            }
        };
        self.operations[id].queued += 1;
        let (op, sender) = (&self.operations[id], &mut self.links[lane].sender);
        // What is sent again after a cut may be overwritten by its result while it waits here:
        // then the lane has it, and drops what comes without a look at its checksum.
        let payload = code.as_deref().unwrap_or_else(|| op.memory.contribution(offset, len));
        let on_wire = payload.len();
        let header = Header { chunk, length: on_wire as u32, ..header };
        let head = sender.head(&header, payload);
        let chunk = Some(ChunkRef { op: id, part: index, offset, len, on_wire });
        sender.push(Frame { head: FrameHead::Small(head), chunk, code });
    }

    /// Bytes of the code of this worker's contribution to a chunk, if it is encoded, or goes with
    /// what earlier rounds have left out of it.
    pub(super) fn code_len(&self, id: OpId, part: usize, chunk: u32) -> Option<usize> {
        let op = &self.operations[id];
        let (_, len) = op.range(part, chunk, self.settings.chunk_bytes);
        let apart = op.coding(part).is_some() || self.flushes(op, part, chunk, len);
        apart.then(|| op.sent_len(part, len))
    }

    /// Whether a contribution that is not encoded goes with what earlier rounds have left out: this
    /// worker does not encode it in a tier further out either.
    fn flushes(&self, op: &Op<M>, part: usize, chunk: u32, len: usize) -> bool {
        let Request { tensor, tier, dtype, .. } = op.request;
        let place = &op.places[part];
        let origin = place.origin + chunk as usize * self.settings.chunk_bytes as usize;
        self.residuals.holds(tensor, dtype, origin, len)
            && op.does(part).0 == Collective::AllReduce
            && self.operations.own_tier(tensor) == Some(tier)
            && !self.operations.encodes(tensor, place.number, op.round)
    }

    /// Encodes this worker's contribution to a chunk into a buffer of that length: always to the
    /// same bytes, whenever and however often it is sent. A text with this rank if it cannot.
    pub(super) fn encode(
        &mut self,
        id: OpId,
        part: usize,
        chunk: u32,
        mut code: AlignedBuf,
    ) -> Result<AlignedBuf, String> {
        let (rank, chunk_bytes) = (self.settings.rank, self.settings.chunk_bytes);
        let op = &self.operations[id];
        let Request { tensor, dtype, rescale, .. } = op.request;
        let (offset, len) = op.range(part, chunk, chunk_bytes);
        let origin = op.places[part].origin + chunk as usize * chunk_bytes as usize;
        let elements = op.memory.contribution(offset, len);
        let source = Source { tensor, dtype, origin, elements, rescale };
        let Some(coding) = op.coding(part) else {
            self.residuals.flush(source, &mut code);
            return Ok(code);
        };
        let at = coding.coder().at(Key { tensor, round: op.round, rank }, dtype, origin);
        let encoded = self.residuals.encode(coding, at, source, &mut code);
        encoded.map(|()| code).map_err(|error| format!("rank {rank}: {error}"))
    }

    /// A chunk of a contribution has been handed over; records it if it is the last.
    pub(super) fn trace_sent(&mut self, chunk: ChunkRef) {
        let ChunkRef { op: id, part, offset, len, .. } = chunk;
        let op = &self.operations[id];
        let place = &op.places[part];
        if offset + len == place.offset + place.bytes {
            self.trace.partition(EventKind::SendEnd, op, part);
        }
    }
}
