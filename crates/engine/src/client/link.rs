//! A client's connection to one lane: what waits to be sent, by priority, and what arrives.

use std::collections::{HashSet, VecDeque};

use sumpter_sum::AlignedBuf;
use sumpter_types::GroupId;
use sumpter_wire::{Header, checksum};

use super::op::OpId;
use crate::head::{Head, head};
use crate::inbox::Inbox;
use crate::queue::Queue;

#[derive(Debug)]
pub(super) struct Link {
    pub up: bool,
    /// The lane is in this process and reads the tensors where they are.
    pub resident: bool,
    /// Results are kept until the lane says that everyone has them.
    pub keeps: bool,
    pub inbox: Inbox,
    pub input: Input,
    /// Partitions that were admitted and may start.
    pub ready: Ready,
    /// The partition whose chunks are being queued.
    pub current: Option<(OpId, usize)>,
    pub output: VecDeque<Frame>,
    /// Bytes of them.
    pub output_bytes: usize,
    /// Chunks the lane in this process has asked for in vain and can have now.
    pub offers: VecDeque<(OpId, usize, u32)>,
    /// Bytes of the first frame of `output` that have been sent.
    pub sent: usize,
    /// Groups announced on this connection.
    pub groups: HashSet<GroupId>,
    pub dirty: bool,
}

/// Partitions that wait for their turn, by operation and index.
pub(super) type Ready = Queue<(OpId, usize), ()>;

/// What the next payload bytes are for.
#[derive(Debug)]
pub(super) enum Input {
    /// Nothing: a header comes next.
    Header,
    /// A chunk of a result.
    Chunk {
        op: OpId,
        part: usize,
        chunk: u32,
        have: usize,
        len: usize,
        /// Where it goes first if it is to be kept.
        kept: Option<AlignedBuf>,
    },
    /// A chunk nobody waits for any more.
    Discard { left: usize },
    /// The reason of an error.
    Error { header: Header, bytes: Vec<u8>, have: usize },
}

/// A frame to send: a few bytes of its own, then perhaps a chunk of a tensor.
#[derive(Debug)]
pub(super) struct Frame {
    pub head: FrameHead,
    pub chunk: Option<ChunkRef>,
}

#[derive(Debug)]
pub(super) enum FrameHead {
    Small(Head),
    Group(Box<[u8]>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkRef {
    pub op: OpId,
    pub part: usize,
    pub offset: usize,
    pub len: usize,
}

impl Frame {
    pub(super) fn head(&self) -> &[u8] {
        match &self.head {
            FrameHead::Small(bytes) => bytes,
            FrameHead::Group(bytes) => bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.head().len() + self.chunk.map_or(0, |c| c.len)
    }
}

impl Link {
    /// A connection that is down; its frames carry checksums or do not.
    pub(super) fn new(checked: bool) -> Link {
        Link {
            up: false,
            resident: false,
            keeps: false,
            inbox: Inbox::new(checked),
            input: Input::Header,
            ready: Ready::new(),
            current: None,
            output: VecDeque::new(),
            output_bytes: 0,
            offers: VecDeque::new(),
            sent: 0,
            groups: HashSet::new(),
            dirty: false,
        }
    }

    /// A frame's header, with its checksums if the connection carries them.
    pub(super) fn head(&self, header: &Header, payload: &[u8]) -> Head {
        head(header, self.inbox.is_checked().then(|| checksum(payload)))
    }

    /// Queues a frame with a short payload or none.
    pub(super) fn push_small(&mut self, header: &Header, payload: &[u8]) {
        let mut head = self.head(header, payload);
        head.try_extend_from_slice(payload).expect("a header and a spec fit");
        self.push(Frame { head: FrameHead::Small(head), chunk: None });
    }

    /// Queues a frame.
    pub(super) fn push(&mut self, frame: Frame) {
        self.output_bytes += frame.len();
        self.output.push_back(frame);
    }

    /// Forgets the connection, not the partitions. Returns the frames that will not be sent.
    pub(super) fn reset(&mut self) -> VecDeque<Frame> {
        let ready = std::mem::replace(&mut self.ready, Ready::new());
        let frames = std::mem::take(&mut self.output);
        *self = Link {
            ready,
            dirty: self.dirty,
            keeps: self.keeps,
            ..Link::new(self.inbox.is_checked())
        };
        frames
    }
}
