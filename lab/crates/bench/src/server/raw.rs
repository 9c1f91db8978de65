//! Plain TCP: the same bytes both ways over the same connections, without frames or summation.
//! The server answers with as many zeros as it has received.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, Incoming, MAX_SLICES, Memory, Now, Outgoing, Violation};
use sumpter_sum::AlignedBuf;

use super::memory::Pages;

/// The server's side.
#[derive(Debug)]
pub(crate) struct RawServer {
    /// Bytes received and not yet answered, by connection.
    owed: Vec<usize>,
    scratch: AlignedBuf,
    zeros: AlignedBuf,
    dirty: VecDeque<ConnId>,
}

impl RawServer {
    pub(crate) fn new(conns: usize, chunk_bytes: usize) -> RawServer {
        let (scratch, zeros) = (AlignedBuf::new(chunk_bytes), AlignedBuf::new(chunk_bytes));
        RawServer { owed: vec![0; conns], scratch, zeros, dirty: VecDeque::new() }
    }
}

impl Endpoint for RawServer {
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_> {
        let mut left = self.owed[conn.0];
        let mut out = Outgoing::new();
        while left > 0 && out.len() < MAX_SLICES / 2 {
            let n = left.min(self.zeros.len());
            out.push(IoSlice::new(&self.zeros[..n]));
            left -= n;
        }
        out
    }

    fn sent(&mut self, conn: ConnId, n: usize) {
        self.owed[conn.0] -= n;
    }

    fn space(&mut self, _conn: ConnId) -> Incoming<'_> {
        let mut out = Incoming::new();
        out.push(IoSliceMut::new(&mut self.scratch));
        out
    }

    fn filled(&mut self, conn: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        if n > 0 && self.owed[conn.0] == 0 {
            self.dirty.push_back(conn);
        }
        self.owed[conn.0] += n;
        Ok(())
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        self.dirty.pop_front()
    }
}

/// A stretch of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub tensor: usize,
    pub offset: usize,
    pub bytes: usize,
}

/// The worker's side: sends its tensors' contributions and receives their results in place.
#[derive(Debug)]
pub(crate) struct RawClient {
    memory: Vec<Pages>,
    conns: Vec<Stream>,
    spare: [u8; 1],
    dirty: VecDeque<ConnId>,
}

#[derive(Debug)]
struct Stream {
    pieces: Vec<Piece>,
    sent: Cursor,
    received: Cursor,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    piece: usize,
    within: usize,
}

impl Cursor {
    fn advance(&mut self, pieces: &[Piece], mut n: usize) {
        while n > 0 {
            let step = n.min(pieces[self.piece].bytes - self.within);
            (self.within, n) = (self.within + step, n - step);
            if self.within == pieces[self.piece].bytes {
                *self = Cursor { piece: self.piece + 1, within: 0 };
            }
        }
    }
}

impl RawClient {
    /// One round: the pieces go to the connections they are listed for.
    pub(crate) fn new(memory: Vec<Pages>, pieces: Vec<Vec<Piece>>) -> RawClient {
        let dirty = (0..pieces.len()).map(ConnId).collect();
        let (sent, received) = Default::default();
        let conns = pieces.into_iter().map(|pieces| Stream { pieces, sent, received }).collect();
        RawClient { memory, conns, spare: [0], dirty }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.conns.iter().all(|c| c.received.piece == c.pieces.len())
    }

    pub(crate) fn into_memory(self) -> Vec<Pages> {
        self.memory
    }
}

impl Endpoint for RawClient {
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_> {
        let Stream { pieces, sent, .. } = &self.conns[conn.0];
        let mut out = Outgoing::new();
        let mut within = sent.within;
        for piece in pieces[sent.piece..].iter().take(MAX_SLICES / 2) {
            let memory = &self.memory[piece.tensor];
            let bytes = memory.contribution(piece.offset + within, piece.bytes - within);
            out.push(IoSlice::new(bytes));
            within = 0;
        }
        out
    }

    fn sent(&mut self, conn: ConnId, n: usize) {
        let Stream { pieces, sent, .. } = &mut self.conns[conn.0];
        sent.advance(pieces, n);
    }

    fn space(&mut self, conn: ConnId) -> Incoming<'_> {
        let Stream { pieces, received, .. } = &self.conns[conn.0];
        let mut out = Incoming::new();
        match pieces.get(received.piece) {
            Some(piece) => {
                let (memory, within) = (&mut self.memory[piece.tensor], received.within);
                let rest = memory.result(piece.offset + within, piece.bytes - within);
                out.push(IoSliceMut::new(rest));
            }
            // Nothing more is due; the end of the connection is read here.
            None => out.push(IoSliceMut::new(&mut self.spare)),
        }
        out
    }

    fn filled(&mut self, conn: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        let Stream { pieces, received, .. } = &mut self.conns[conn.0];
        if n > 0 && received.piece == pieces.len() {
            return Err(Violation::State(format!("{n} bytes more than were sent")));
        }
        received.advance(pieces, n);
        Ok(())
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        self.dirty.pop_front()
    }
}
