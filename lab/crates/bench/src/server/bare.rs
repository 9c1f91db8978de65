//! The least that a server does which sums: plain TCP, with no frames and no bookkeeping of rounds,
//! and the same additions. What is left between it and the real lane is the lane's own cost.
//!
//! Every worker sends the same tensors in the same order over a connection to a lane, so a place in
//! the stream is a place in the model, and it is complete once the last worker is past it.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, Incoming, Now, Outgoing, Violation};
use sumpter_sum::{AlignedBuf, accumulate};
use sumpter_types::{Dtype, ReduceOp};

const ELEMENT_BYTES: usize = 4;

/// One lane.
#[derive(Debug)]
pub(super) struct BareServer {
    chunk_bytes: usize,
    /// All tensors that this lane sums, one after another.
    sums: AlignedBuf,
    /// How far any contribution has been written into `sums`.
    begun: usize,
    /// How far all have: what is sent back.
    complete: usize,
    /// A contribution to what another worker began.
    scratch: AlignedBuf,
    conns: Vec<Stream>,
    /// No worker sends more than a round has; the end of a connection is read here.
    spare: [u8; 1],
    dirty: VecDeque<ConnId>,
}

/// One worker's place in the round.
#[derive(Debug, Default)]
struct Stream {
    /// Bytes of whole elements that count.
    summed: usize,
    /// The beginning of the next element.
    rest: [u8; ELEMENT_BYTES],
    rest_bytes: usize,
    sent: usize,
}

impl BareServer {
    /// For workers that each send `bytes` in a round, a multiple of an element's.
    pub(super) fn new(workers: usize, bytes: usize, chunk_bytes: usize) -> BareServer {
        BareServer {
            chunk_bytes,
            sums: AlignedBuf::new(bytes),
            begun: 0,
            complete: 0,
            scratch: AlignedBuf::new(chunk_bytes),
            conns: (0..workers).map(|_| Stream::default()).collect(),
            spare: [0],
            dirty: VecDeque::new(),
        }
    }

    /// Notes what has become complete, and the connections that can send again.
    fn advance(&mut self) {
        let complete = self.conns.iter().map(|stream| stream.summed).min().unwrap_or(0);
        let idle = self.conns.iter().enumerate().filter(|(_, s)| s.sent == self.complete);
        if complete > self.complete {
            self.dirty.extend(idle.map(|(conn, _)| ConnId(conn)));
            self.complete = complete;
        }
    }
}

impl Endpoint for BareServer {
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_> {
        let mut out = Outgoing::new();
        let sent = self.conns[conn.0].sent;
        if sent < self.complete {
            out.push(IoSlice::new(&self.sums[sent..self.complete]));
        }
        out
    }

    fn sent(&mut self, conn: ConnId, n: usize) {
        self.conns[conn.0].sent += n;
        if self.conns.iter().all(|stream| stream.sent == self.sums.len()) {
            // The round is over: no worker begins the next one before all have its results.
            (self.begun, self.complete) = (0, 0);
            self.conns.fill_with(Stream::default);
        }
    }

    fn space(&mut self, conn: ConnId) -> Incoming<'_> {
        let stream = &self.conns[conn.0];
        let mut out = Incoming::new();
        let room = self.chunk_bytes.min(self.sums.len() - stream.summed);
        if room == 0 {
            out.push(IoSliceMut::new(&mut self.spare));
            return out;
        }
        let to = if stream.summed == self.begun {
            &mut self.sums[stream.summed..stream.summed + room]
        } else {
            &mut self.scratch[..room]
        };
        let (rest, space) = to.split_at_mut(stream.rest_bytes);
        rest.copy_from_slice(&stream.rest[..stream.rest_bytes]);
        out.push(IoSliceMut::new(space));
        out
    }

    fn filled(&mut self, conn: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        let stream = &mut self.conns[conn.0];
        let at = stream.summed;
        if n > 0 && at == self.sums.len() {
            return Err(Violation::State(format!("{n} bytes more than a round has")));
        }
        let bytes = stream.rest_bytes + n;
        let whole = bytes - bytes % ELEMENT_BYTES;
        let rest = if at == self.begun {
            &self.sums[at + whole..at + bytes]
        } else {
            let both = whole.min(self.begun - at);
            let (begun, new) = self.sums[at..at + whole].split_at_mut(both);
            accumulate(ReduceOp::Sum, Dtype::F32, begun, &self.scratch[..both]);
            new.copy_from_slice(&self.scratch[both..whole]);
            &self.scratch[whole..bytes]
        };
        stream.rest[..rest.len()].copy_from_slice(rest);
        (stream.rest_bytes, stream.summed) = (rest.len(), at + whole);
        self.begun = self.begun.max(at + whole);
        self.advance();
        Ok(())
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        self.dirty.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 64;
    const WORKERS: usize = 3;

    /// Gives one worker's next bytes to the server, as many as fit; how many that were.
    fn give(server: &mut BareServer, worker: usize, at: usize, most: usize) -> usize {
        let model = contribution(worker);
        let given = {
            let mut space = server.space(ConnId(worker));
            let n = space[0].len().min(most).min(BYTES - at);
            space[0][..n].copy_from_slice(&model[at..at + n]);
            n
        };
        server.filled(ConnId(worker), given, Now::ZERO).expect("within the round");
        given
    }

    fn contribution(worker: usize) -> Vec<u8> {
        let element = |i: usize| ((i * WORKERS + worker) as f32).to_le_bytes();
        (0..BYTES / ELEMENT_BYTES).flat_map(element).collect()
    }

    fn expected() -> Vec<u8> {
        let element = |i: usize| ((0..WORKERS).map(|w| i * WORKERS + w).sum::<usize>()) as f32;
        (0..BYTES / ELEMENT_BYTES).flat_map(|i| element(i).to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn every_worker_gets_the_sums_however_streams_are_cut(
            turns in prop::collection::vec((0..WORKERS, 1..20_usize), 0..80),
        ) {
            let mut server = BareServer::new(WORKERS, BYTES, 16);
            for _round in 0..2 {
                let (mut given, mut got) = ([0; WORKERS], vec![Vec::<u8>::new(); WORKERS]);
                let rest = (0..WORKERS).cycle().map(|worker| (worker, BYTES)).take(8 * WORKERS);
                for (worker, most) in turns.iter().copied().chain(rest) {
                    if given[worker] < BYTES {
                        given[worker] += give(&mut server, worker, given[worker], most);
                    }
                    while let Some(conn) = server.next_dirty() {
                        let out: Vec<u8> =
                            server.pending(conn).iter().flat_map(|s| s.to_vec()).collect();
                        got[conn.0].extend(&out);
                        server.sent(conn, out.len());
                    }
                }
                prop_assert!(got.iter().all(|result| *result == expected()));
            }
        }
    }

    #[test]
    fn more_than_a_round_is_refused() {
        let mut server = BareServer::new(2, 4, 16);
        assert_eq!(server.space(ConnId(0))[0].len(), 4);
        server.filled(ConnId(0), 4, Now::ZERO).expect("the round");
        assert!(server.filled(ConnId(0), 1, Now::ZERO).is_err());
    }
}
