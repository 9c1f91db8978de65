//! One child's connection in a lane: the frame being received and the frames to send.

use std::collections::VecDeque;

use foldhash::{HashSet, HashSetExt};
use sumpter_sum::AlignedBuf;
use sumpter_types::Rank;
use sumpter_wire::{APPLY_BYTES, FrameError, Header, MAX_BEGIN_BYTES, checksum};

use super::job::{JobIndex, Key, PartitionIndex};
use super::outbox::Outbox;
use super::outcome::{ChunkPlace, Serial};
use super::state::Due;
use crate::head::{Head, head};
use crate::inbox::{Inbox, fill};
use sumpter_endpoint::Incoming;

#[derive(Debug)]
pub(super) struct Conn {
    pub job: JobIndex,
    pub rank: Rank,
    pub serial: Serial,
    pub inbox: Inbox,
    pub inbound: InboundFrame,
    pub outbox: Outbox,
    /// Chunks of variables that are sent to their mirror when there is nothing else to send.
    pub snapshots: VecDeque<Due>,
    /// What is exchanged with a client in this process, instead of frames with payload.
    pub resident: Option<Visits>,
    /// Partitions whose beginning was answered with an error: what was on its way is dropped.
    pub refused: HashSet<Key>,
    pub dirty: bool,
    /// The same, at the end of the driver's turn.
    pub late: bool,
    /// The partition that the last chunk was of, which mostly is that of the next frame as well.
    pub last: PartitionIndex,
}

/// What the next payload bytes are for.
#[derive(Debug)]
pub(super) enum InboundFrame {
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
    /// A chunk that was received before, or that is not needed any more.
    Discard { left: usize },
    /// What a round is about.
    Begin { header: Header, bytes: [u8; MAX_BEGIN_BYTES], have: usize },
    /// What a round does that was begun without saying so.
    Apply { header: Header, bytes: [u8; APPLY_BYTES], have: usize },
    /// The members of a group, the clocks of a variable, or what a round is about with an order.
    List { header: Header, bytes: Vec<u8>, have: usize },
}

/// Chunks that a lane and a client in its process must look at together.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// Sums the client is to take.
    pub deliver: VecDeque<(PartitionIndex, ChunkPlace)>,
    /// Contributions the lane is to add.
    pub ask: VecDeque<(PartitionIndex, ChunkPlace)>,
}

impl Conn {
    pub(super) fn new(
        (job, rank, serial): (JobIndex, Rank, Serial),
        resident: bool,
        checked: bool,
    ) -> Conn {
        Conn {
            job,
            rank,
            serial,
            // Nothing leaves the process to be damaged.
            inbox: Inbox::new(checked && !resident),
            inbound: InboundFrame::Header,
            outbox: Outbox::new(),
            snapshots: VecDeque::new(),
            resident: resident.then(Visits::default),
            refused: HashSet::new(),
            dirty: false,
            late: false,
            last: 0,
        }
    }

    /// A frame's header, with its checksums if the connection carries them.
    pub(super) fn head(&self, header: &Header, payload: &[u8]) -> Head {
        head(header, self.inbox.is_checked().then(|| checksum(payload)))
    }

    pub(super) fn space(&mut self) -> Incoming<'_> {
        let mut out = Incoming::new();
        match &mut self.inbound {
            InboundFrame::Chunk { bytes, have, .. } => {
                out.push(std::io::IoSliceMut::new(&mut bytes[*have..]));
            }
            InboundFrame::Begin { header, bytes, have } => {
                let bytes = &mut bytes[*have..header.length as usize];
                out.push(std::io::IoSliceMut::new(bytes));
            }
            InboundFrame::Apply { header, bytes, have } => {
                let bytes = &mut bytes[*have..header.length as usize];
                out.push(std::io::IoSliceMut::new(bytes));
            }
            InboundFrame::List { bytes, have, .. } => {
                out.push(std::io::IoSliceMut::new(&mut bytes[*have..]));
            }
            InboundFrame::Header | InboundFrame::Discard { .. } => {}
        }
        let payload = out.iter().map(|space| space.len()).sum();
        out.push(std::io::IoSliceMut::new(self.inbox.tail_behind(payload)));
        out
    }

    /// Counts `n` received bytes to the payload and the staging buffer they went to.
    pub(super) fn count(&mut self, n: usize) {
        let direct = match &mut self.inbound {
            InboundFrame::Chunk { bytes, have, .. } => fill(have, bytes.len(), n),
            InboundFrame::Begin { header, have, .. } | InboundFrame::Apply { header, have, .. } => {
                fill(have, header.length as usize, n)
            }
            InboundFrame::List { bytes, have, .. } => fill(have, bytes.len(), n),
            InboundFrame::Header | InboundFrame::Discard { .. } => 0,
        };
        self.inbox.grow(n - direct);
    }

    /// Moves staged bytes into the payload; true when the payload is complete.
    pub(super) fn advance(&mut self) -> bool {
        match &mut self.inbound {
            InboundFrame::Header => false,
            InboundFrame::Chunk { bytes, have, .. } => {
                *have += self.inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            InboundFrame::Begin { header, bytes, have } => {
                let len = header.length as usize;
                *have += self.inbox.take(&mut bytes[*have..len]);
                *have == len
            }
            InboundFrame::Apply { header, bytes, have } => {
                let len = header.length as usize;
                *have += self.inbox.take(&mut bytes[*have..len]);
                *have == len
            }
            InboundFrame::List { bytes, have, .. } => {
                *have += self.inbox.take(&mut bytes[*have..]);
                *have == bytes.len()
            }
            InboundFrame::Discard { left } => {
                *left -= self.inbox.skip(*left);
                *left == 0
            }
        }
    }

    /// Whether a payload that is complete is what was sent. What is discarded is not checked: a
    /// chunk that was counted before may have been overwritten by its result meanwhile.
    pub(super) fn check(&self) -> Result<(), FrameError> {
        match &self.inbound {
            InboundFrame::Header | InboundFrame::Discard { .. } => Ok(()),
            InboundFrame::Chunk { bytes, .. } => self.inbox.check(bytes),
            InboundFrame::Begin { header, bytes, .. } => {
                self.inbox.check(&bytes[..header.length as usize])
            }
            InboundFrame::Apply { header, bytes, .. } => {
                self.inbox.check(&bytes[..header.length as usize])
            }
            InboundFrame::List { bytes, .. } => self.inbox.check(bytes),
        }
    }
}
