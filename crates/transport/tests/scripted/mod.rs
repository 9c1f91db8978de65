//! An endpoint that sends a known stream and checks what it receives.

use std::io::{IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, Incoming, Now, Outgoing, Violation};
use sumpter_wire::FrameError;

pub struct Scripted {
    out: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    expected: usize,
    space: Vec<u8>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sent, received) = (self.sent, self.received.len());
        write!(f, "sent {sent} of {}, received {received} of {}", self.out.len(), self.expected)
    }
}

fn stream(len: usize) -> impl Iterator<Item = u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
}

impl Scripted {
    /// Sends `send` bytes, expects `expect`, and takes at most `space` at once.
    pub fn new(send: usize, expect: usize, space: usize) -> Scripted {
        Scripted {
            out: stream(send).collect(),
            sent: 0,
            received: Vec::new(),
            expected: expect,
            space: vec![0; space],
        }
    }

    pub fn is_done(&self) -> bool {
        self.sent == self.out.len() && self.received.len() >= self.expected
    }

    #[allow(dead_code, reason = "not all tests that have this module end early")]
    pub fn received_a_beginning(&self) -> bool {
        self.received.iter().copied().eq(stream(self.expected).take(self.received.len()))
    }

    pub fn received_right(&self) -> bool {
        self.received.iter().copied().eq(stream(self.expected))
    }
}

impl Endpoint for Scripted {
    fn pending(&mut self, _: ConnId) -> Outgoing<'_> {
        // Three slices of odd sizes, as frames give.
        let mut rest = &self.out[self.sent..];
        let mut out = Outgoing::new();
        for len in [32, 70_001, 13] {
            let (slice, after) = rest.split_at(len.min(rest.len()));
            if !slice.is_empty() {
                out.push(IoSlice::new(slice));
            }
            rest = after;
        }
        out
    }

    fn sent(&mut self, _: ConnId, n: usize) {
        self.sent += n;
    }

    fn space(&mut self, _: ConnId) -> Incoming<'_> {
        let middle = self.space.len() / 3;
        let (a, b) = self.space.split_at_mut(middle);
        let slices = [a, b].into_iter().filter(|s| !s.is_empty());
        slices.map(IoSliceMut::new).collect()
    }

    fn filled(&mut self, _: ConnId, n: usize, _: Now) -> Result<(), Violation> {
        self.received.extend_from_slice(&self.space[..n]);
        match self.received.len() <= self.expected {
            true => Ok(()),
            false => Err(FrameError::UnknownKind(0).into()),
        }
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        None
    }
}
