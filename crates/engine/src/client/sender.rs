//! The sending half of a client's connection: partitions that may start, and frames on their way.

use std::collections::VecDeque;
use std::io::IoSlice;

use foldhash::{HashSet, HashSetExt};
use sumpter_endpoint::{MAX_SLICES, Memory, Outgoing, push_after};
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::GroupId;
use sumpter_wire::{CodecId, Header, checksum};

use super::credit::Ready;
use super::op::OpId;
use super::operations::Operations;
use crate::head::{AHEAD_BYTES, Head, head};

#[derive(Debug)]
pub(super) struct Sender {
    /// Whether frames carry checksums.
    pub checked: bool,
    /// Partitions that were admitted and may start.
    pub ready: Ready,
    /// The partition whose chunks are being queued.
    pub current: Option<(OpId, usize)>,
    frames: VecDeque<Frame>,
    /// Bytes of them.
    bytes: usize,
    /// Bytes of the first frame that have been sent.
    sent: usize,
    /// Groups and codecs announced on this connection.
    groups: HashSet<GroupId>,
    codecs: HashSet<CodecId>,
}

/// A frame to send: a few bytes of its own, then perhaps a chunk of a tensor.
#[derive(Debug)]
pub(super) struct Frame {
    pub head: FrameHead,
    pub chunk: Option<ChunkRef>,
    /// What is sent in place of the chunk, encoded.
    pub code: Option<AlignedBuf>,
}

#[derive(Debug)]
pub(super) enum FrameHead {
    Small(Head),
    Large(Box<[u8]>),
}

/// A chunk of an operation's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRef {
    pub op: OpId,
    pub part: usize,
    pub offset: usize,
    pub len: usize,
    /// Bytes of it on the connection.
    pub on_wire: usize,
}

impl Frame {
    fn head(&self) -> &[u8] {
        match &self.head {
            FrameHead::Small(bytes) => bytes,
            FrameHead::Large(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.head().len() + self.chunk.map_or(0, |chunk| chunk.on_wire)
    }
}

impl Sender {
    pub(super) fn new(checked: bool) -> Sender {
        Sender {
            checked,
            ready: Ready::new(),
            current: None,
            frames: VecDeque::new(),
            bytes: 0,
            sent: 0,
            groups: HashSet::new(),
            codecs: HashSet::new(),
        }
    }

    /// A frame's header, with its checksums if the connection carries them.
    pub(super) fn head(&self, header: &Header, payload: &[u8]) -> Head {
        head(header, self.checked.then(|| checksum(payload)))
    }

    /// Queues a frame with a payload of its own, or none.
    pub(super) fn push_control(&mut self, header: &Header, payload: &[u8]) {
        let mut small = self.head(header, payload);
        let head = match small.try_extend_from_slice(payload) {
            Ok(()) => FrameHead::Small(small),
            Err(_) => FrameHead::Large([&small, payload].concat().into()),
        };
        self.push(Frame { head, chunk: None, code: None });
    }

    /// Queues a frame.
    pub(super) fn push(&mut self, frame: Frame) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Whether a group has not been announced on this connection; from now on it has.
    pub(super) fn announces(&mut self, group: GroupId) -> bool {
        self.groups.insert(group)
    }

    /// The same of a codec.
    pub(super) fn announces_codec(&mut self, codec: CodecId) -> bool {
        self.codecs.insert(codec)
    }

    /// Whether enough is queued for one write; more could not be overtaken.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() >= MAX_SLICES / 2 || self.bytes >= AHEAD_BYTES
    }

    /// Whether a frame that waits to be sent refers to the chunk at `offset`.
    pub(super) fn refers_to(&self, op: OpId, part: usize, offset: usize) -> bool {
        let refers = |chunk: ChunkRef| (chunk.op, chunk.part, chunk.offset) == (op, part, offset);
        self.frames.iter().any(|frame| frame.chunk.is_some_and(refers))
    }

    /// Gives the frames of an operation bytes of their own: its memory may change before they have
    /// left, and their headers have checksums of what it holds now.
    pub(super) fn detach<M: Memory>(&mut self, id: OpId, memory: &M, pool: &mut BufferPool) {
        for frame in &mut self.frames {
            if let (Some(chunk), None) = (frame.chunk.filter(|chunk| chunk.op == id), &frame.code) {
                let mut own = pool.take(chunk.len);
                own.copy_from_slice(memory.contribution(chunk.offset, chunk.len));
                frame.code = Some(own);
            }
        }
    }

    /// The bytes to send next.
    pub(super) fn pending<'a, M: Memory>(&'a self, ops: &'a Operations<M>) -> Outgoing<'a> {
        let mut out = Outgoing::new();
        let mut skip = self.sent;
        for frame in self.frames.iter().take(MAX_SLICES / 2) {
            push_after(&mut out, frame.head(), &mut skip);
            if let Some(ChunkRef { op, offset, len, .. }) = frame.chunk {
                let bytes = match &frame.code {
                    Some(code) => &code[..],
                    None => ops[op].memory.contribution(offset, len),
                };
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                out.push(IoSlice::new(&bytes[skipped..]));
            }
        }
        out
    }

    /// So many more bytes have been sent.
    pub(super) fn advance(&mut self, n: usize) {
        self.sent += n;
    }

    /// The next frame of which all bytes have been sent.
    pub(super) fn pop_sent(&mut self) -> Option<Frame> {
        let len = self.frames.front().map(Frame::len).filter(|len| self.sent >= *len)?;
        self.sent -= len;
        self.bytes -= len;
        self.frames.pop_front()
    }

    /// The frames that will not be sent, since the connection is gone.
    pub(super) fn take_unsent(&mut self) -> VecDeque<Frame> {
        std::mem::take(&mut self.frames)
    }
}
