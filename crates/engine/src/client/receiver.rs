//! The receiving half of a client's connection: the frame whose payload is being received.

use std::io::IoSliceMut;

use sumpter_endpoint::{Incoming, Memory, Violation};
use sumpter_sum::AlignedBuf;
use sumpter_wire::Header;

use super::op::OpId;
use super::operations::Operations;
use super::sender::ChunkRef;
use crate::inbox::{Inbox, fill};

#[derive(Debug)]
pub(super) struct Receiver {
    pub inbox: Inbox,
    pub frame: InboundFrame,
}

/// What the next payload bytes are for.
#[derive(Debug)]
pub(super) enum InboundFrame {
    /// Nothing: a header comes next.
    Header,
    /// A chunk of a result.
    Chunk {
        chunk: u32,
        at: ChunkRef,
        have: usize,
        /// Where it is received first if it is to be retained.
        buffer: Option<AlignedBuf>,
    },
    /// A chunk that is not needed any more.
    Discard { left: usize },
    /// The reason of an error, a snapshot, or the norm of a gradient.
    Payload { header: Header, bytes: Vec<u8>, have: usize },
}

impl Receiver {
    pub(super) fn new(checked: bool) -> Receiver {
        Receiver { inbox: Inbox::new(checked), frame: InboundFrame::Header }
    }

    /// Where the next bytes go: straight into the result if a chunk is being received.
    pub(super) fn space<'a, M: Memory>(&'a mut self, ops: &'a mut Operations<M>) -> Incoming<'a> {
        let mut out = Incoming::new();
        match &mut self.frame {
            InboundFrame::Chunk { have, buffer: Some(bytes), .. } => {
                out.push(IoSliceMut::new(&mut bytes[*have..]));
            }
            InboundFrame::Chunk { at, have, buffer: None, .. } => {
                let memory = &mut ops[at.op].memory;
                out.push(IoSliceMut::new(memory.result(at.offset + *have, at.len - *have)));
            }
            InboundFrame::Payload { bytes, have, .. } => {
                out.push(IoSliceMut::new(&mut bytes[*have..]));
            }
            InboundFrame::Header | InboundFrame::Discard { .. } => {}
        }
        let payload = out.iter().map(|space| space.len()).sum();
        out.push(IoSliceMut::new(self.inbox.tail_behind(payload)));
        out
    }

    /// Counts `n` received bytes to the payload and the staging buffer they went to.
    pub(super) fn count(&mut self, n: usize) {
        let direct = match &mut self.frame {
            InboundFrame::Chunk { have, at, .. } => fill(have, at.on_wire, n),
            InboundFrame::Payload { bytes, have, .. } => fill(have, bytes.len(), n),
            InboundFrame::Header | InboundFrame::Discard { .. } => 0,
        };
        self.inbox.grow(n - direct);
    }

    /// Moves staged bytes into the payload; true when the payload is complete.
    pub(super) fn advance<M: Memory>(&mut self, ops: &mut Operations<M>) -> bool {
        let inbox = &mut self.inbox;
        match &mut self.frame {
            InboundFrame::Header => false,
            InboundFrame::Chunk { at, have, buffer: Some(bytes), .. } => {
                *have += inbox.take(&mut bytes[*have..]);
                *have == at.on_wire
            }
            InboundFrame::Chunk { at, have, buffer: None, .. } => {
                let memory = &mut ops[at.op].memory;
                *have += inbox.take(memory.result(at.offset + *have, at.len - *have));
                *have == at.len
            }
            InboundFrame::Payload { bytes, have, .. } => {
                *have += inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            InboundFrame::Discard { left } => {
                *left -= inbox.skip(*left);
                *left == 0
            }
        }
    }

    /// Whether a payload that is complete is what was sent. If not, a result that lies in the
    /// tensor already is overwritten when it is sent again: it is not counted as received.
    pub(super) fn check<M: Memory>(&self, ops: &mut Operations<M>) -> Result<(), Violation> {
        let payload = match &self.frame {
            InboundFrame::Chunk { buffer: Some(bytes), .. } => &bytes[..],
            InboundFrame::Chunk { at, buffer: None, .. } => {
                ops[at.op].memory.result(at.offset, at.len)
            }
            InboundFrame::Payload { bytes, .. } => &bytes[..],
            InboundFrame::Header | InboundFrame::Discard { .. } => return Ok(()),
        };
        Ok(self.inbox.check(payload)?)
    }

    /// The frame that is complete; a header comes next.
    pub(super) fn take_frame(&mut self) -> InboundFrame {
        std::mem::replace(&mut self.frame, InboundFrame::Header)
    }

    /// An operation has ended: what is left of its chunk is discarded. Returns the chunk's buffer.
    pub(super) fn discard_chunk_of(&mut self, op: OpId) -> Option<AlignedBuf> {
        let InboundFrame::Chunk { at, have, buffer, .. } = &mut self.frame else { return None };
        if at.op != op {
            return None;
        }
        let (left, buffer) = (at.on_wire - *have, buffer.take());
        self.frame = InboundFrame::Discard { left };
        buffer
    }

    /// The connection is gone: the buffer of a chunk that will not be completed.
    pub(super) fn interrupt(&mut self) -> Option<AlignedBuf> {
        match self.take_frame() {
            InboundFrame::Chunk { buffer, .. } => buffer,
            _ => None,
        }
    }
}
