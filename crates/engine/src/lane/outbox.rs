//! What a lane has to send to one child: results wait, the most urgent first, until the connection
//! can take them.

use std::collections::VecDeque;

use super::job::PartitionIndex;
use super::outcome::ChunkPlace;
use crate::head::{AHEAD_BYTES, Head};
use crate::queue::Queue;
use sumpter_endpoint::MAX_SLICES;
use sumpter_sum::AlignedBuf;

/// A frame to send.
#[derive(Debug)]
pub(super) struct Frame {
    pub head: Head,
    pub payload: Payload,
}

#[derive(Debug)]
pub(super) enum Payload {
    /// A finished chunk, or of a variable's the gradient.
    Value { partition: PartitionIndex, at: ChunkPlace, gradient: bool, len: usize },
    /// Whole frames, one behind the other.
    Notices(Vec<u8>),
    /// The first bytes of a buffer, which goes back to the pool.
    Owned { bytes: AlignedBuf, len: usize },
}

impl Frame {
    pub(super) fn len(&self) -> usize {
        self.head.len()
            + match &self.payload {
                Payload::Value { len, .. } | Payload::Owned { len, .. } => *len,
                Payload::Notices(bytes) => bytes.len(),
            }
    }
}

#[derive(Debug)]
pub(super) struct Outbox {
    /// By the order in which they were pushed.
    waiting: Queue<u64, Frame>,
    pushed: u64,
    /// Small frames that overtake what waits: one behind the other, so that all of them are one
    /// piece of a write.
    notices: Vec<u8>,
    /// Whether one of them cannot wait until there is something else to send.
    is_notice_due: bool,
    /// Whose turn has come, in the order of sending.
    chosen: VecDeque<Frame>,
    /// Bytes of them, and how many of these have been sent, all of the first frame.
    chosen_bytes: usize,
    sent: usize,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            waiting: Queue::new(),
            pushed: 0,
            notices: Vec::new(),
            is_notice_due: false,
            chosen: VecDeque::new(),
            chosen_bytes: 0,
            sent: 0,
        }
    }

    /// Whether nothing waits behind what is being sent, and that is not enough for one write.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_notice_due && self.chosen_bytes < AHEAD_BYTES
    }

    /// Whether all that cannot wait has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.chosen.is_empty() && self.waiting.is_empty() && !self.is_notice_due
    }

    /// A frame to send in its turn.
    pub(super) fn push(&mut self, priority: i32, frame: Frame) {
        self.waiting.push(priority, self.pushed, frame);
        self.pushed += 1;
    }

    /// A small frame that overtakes what waits.
    pub(super) fn push_notice(&mut self, head: &Head, payload: &[u8]) {
        self.push_idle(head, payload);
        self.is_notice_due = true;
    }

    /// A small frame that goes with the next one that cannot wait.
    pub(super) fn push_idle(&mut self, head: &Head, payload: &[u8]) {
        self.notices.extend_from_slice(head);
        self.notices.extend_from_slice(payload);
    }

    /// Chooses what is sent next: enough for one write, and no more, since what comes later may be
    /// more urgent.
    pub(super) fn refill(&mut self) {
        while self.chosen.len() < MAX_SLICES / 2 && self.chosen_bytes < AHEAD_BYTES {
            let next = match self.is_notice_due {
                true => None,
                false => self.waiting.pop().map(|(_, _, frame)| frame),
            };
            if next.is_none() && !self.is_notice_due {
                return;
            }
            self.is_notice_due = false;
            let notices = Some(std::mem::take(&mut self.notices)).filter(|bytes| !bytes.is_empty());
            let notices = notices.map(Payload::Notices);
            let notices = notices.map(|payload| Frame { head: Head::new(), payload });
            for frame in notices.into_iter().chain(next) {
                self.chosen_bytes += frame.len();
                self.chosen.push_back(frame);
            }
        }
    }

    /// What is sent next, and how many bytes of the first frame have been.
    pub(super) fn chosen(&self) -> (impl Iterator<Item = &Frame>, usize) {
        (self.chosen.iter().take(MAX_SLICES / 2), self.sent)
    }

    /// So many more bytes of the chosen frames have been sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n;
    }

    /// The buffers of what will not be sent.
    pub(super) fn into_owned(mut self) -> impl Iterator<Item = AlignedBuf> {
        let waiting = std::iter::from_fn(move || self.waiting.pop().map(|(_, _, frame)| frame));
        self.chosen.into_iter().chain(waiting).filter_map(|frame| match frame.payload {
            Payload::Owned { bytes, .. } => Some(bytes),
            Payload::Value { .. } | Payload::Notices(_) => None,
        })
    }

    /// The next frame of which all bytes have been sent.
    pub(super) fn pop_sent(&mut self) -> Option<Frame> {
        let len = self.chosen.front().map(Frame::len).filter(|len| self.sent >= *len)?;
        self.sent -= len;
        self.chosen_bytes -= len;
        let mut frame = self.chosen.pop_front();
        if let Some(Frame { payload: Payload::Notices(bytes), .. }) = &mut frame
            && self.notices.is_empty()
        {
            bytes.clear();
            self.notices = std::mem::take(bytes);
        }
        frame
    }
}
