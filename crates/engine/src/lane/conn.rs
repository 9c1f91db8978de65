//! One child's connection in a lane: the frame being received and the frames to send.

use std::collections::VecDeque;

use sumpter_sum::AlignedBuf;
use sumpter_wire::{HEADER_BYTES, Header, JobId, Rank};

use super::job::PartitionIndex;
use super::partition::{ChunkPlace, Serial};
use crate::endpoint::Incoming;
use crate::inbox::{Inbox, fill};

#[derive(Debug)]
pub(super) struct Conn {
    pub job: JobId,
    pub rank: Rank,
    pub serial: Serial,
    pub inbox: Inbox,
    pub input: Input,
    pub output: VecDeque<Frame>,
    /// Bytes of the first frame of `output` that have been sent.
    pub sent: usize,
    pub dirty: bool,
}

/// What the next payload bytes are for.
#[derive(Debug)]
pub(super) enum Input {
    /// Nothing: a header comes next.
    Header,
    /// A chunk to sum.
    Chunk {
        bytes: AlignedBuf,
        have: usize,
        partition: PartitionIndex,
        child: usize,
        at: ChunkPlace,
    },
    /// A chunk that was received before.
    Discard { left: usize },
    /// A small payload.
    Control { header: Header, bytes: Vec<u8>, have: usize },
}

/// A frame to send.
#[derive(Debug)]
pub(super) struct Frame {
    pub header: [u8; HEADER_BYTES],
    pub payload: Payload,
}

#[derive(Debug)]
pub(super) enum Payload {
    None,
    Value { partition: PartitionIndex, at: ChunkPlace, len: usize },
    Text(Box<[u8]>),
}

impl Frame {
    pub(super) fn len(&self) -> usize {
        HEADER_BYTES
            + match &self.payload {
                Payload::None => 0,
                Payload::Value { len, .. } => *len,
                Payload::Text(text) => text.len(),
            }
    }
}

impl Conn {
    pub(super) fn new(job: JobId, rank: Rank, serial: Serial) -> Conn {
        let (inbox, input) = (Inbox::new(), Input::Header);
        Conn { job, rank, serial, inbox, input, output: VecDeque::new(), sent: 0, dirty: false }
    }

    pub(super) fn space(&mut self) -> Incoming<'_> {
        let mut out = Incoming::new();
        match &mut self.input {
            Input::Chunk { bytes, have, .. } => {
                out.push(std::io::IoSliceMut::new(&mut bytes[*have..]));
            }
            Input::Control { bytes, have, .. } => {
                out.push(std::io::IoSliceMut::new(&mut bytes[*have..]));
            }
            Input::Header | Input::Discard { .. } => {}
        }
        out.push(std::io::IoSliceMut::new(self.inbox.tail()));
        out
    }

    /// Counts `n` received bytes to the payload and the staging buffer they went to.
    pub(super) fn count(&mut self, n: usize) {
        let direct = match &mut self.input {
            Input::Chunk { bytes, have, .. } => fill(have, bytes.len(), n),
            Input::Control { bytes, have, .. } => fill(have, bytes.len(), n),
            Input::Header | Input::Discard { .. } => 0,
        };
        self.inbox.grow(n - direct);
    }

    /// Moves staged bytes into the payload; true when the payload is complete.
    pub(super) fn advance(&mut self) -> bool {
        match &mut self.input {
            Input::Header => false,
            Input::Chunk { bytes, have, .. } => {
                *have += self.inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            Input::Control { bytes, have, .. } => {
                *have += self.inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            Input::Discard { left } => {
                *left -= self.inbox.skip(*left);
                *left == 0
            }
        }
    }
}
