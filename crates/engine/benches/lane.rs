//! What a lane costs for each chunk: frames in, sums out, in memory, without a socket.
//!
//! Each iteration is a whole round of one partition: every worker begins and pushes its chunks,
//! and every result is taken. The smallest chunks show the bookkeeping, the usual ones the
//! summation. `cargo bench -p sumpter-engine --bench lane`; `-- --test` runs each case once.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sumpter_endpoint::{ConnId, Endpoint};
use sumpter_engine::{Lane, LaneLimits, Peer};
use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, Round, TensorId};
use sumpter_wire::{Begin, FrameKind, Header, PartitionSpec};

const LIMITS: LaneLimits =
    LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
const CHUNKS: u32 = 16;

/// Driver of a lane: whole frames in, counted bytes out.
struct Bench {
    lane: Lane,
    conns: Vec<ConnId>,
    spec: PartitionSpec,
    payload: Vec<u8>,
    round: Round,
}

impl Bench {
    fn new(workers: u32, chunk_bytes: u32) -> Bench {
        let mut lane = Lane::new(LIMITS);
        let open = |rank| {
            let peer = Peer {
                job: JobId(1),
                rank: Rank(rank),
                world_size: workers,
                epoch: Epoch(1),
                keeps: false,
                checksum: false,
            };
            lane.open(peer).expect("fits").0
        };
        let conns = (0..workers).map(open).collect();
        let spec = PartitionSpec {
            bytes: CHUNKS * chunk_bytes,
            chunk_bytes,
            group: GroupId(0),
            root: Rank(0),
            collective: Collective::AllReduce,
            dtype: Dtype::U8,
            op: ReduceOp::Sum,
            deterministic: false,
            variable: None,
            route: None,
            coding: None,
        };
        let payload = vec![1; chunk_bytes as usize];
        Bench { lane, conns, spec, payload, round: Round(0) }
    }

    fn header(&self, kind: FrameKind, length: usize) -> Header {
        let header = Header::new(kind, Epoch(1), TensorId(5));
        Header { round: self.round, length: length as u32, ..header }
    }

    fn feed(&mut self, conn: ConnId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut moved = 0;
            for space in &mut self.lane.space(conn) {
                let n = space.len().min(bytes.len());
                space[..n].copy_from_slice(&bytes[..n]);
                (bytes, moved) = (&bytes[n..], moved + n);
            }
            self.lane.filled(conn, moved, Duration::ZERO).expect("sound frames");
        }
    }

    /// One round of the partition; the bytes that came out.
    fn round(&mut self) -> usize {
        let spec = Begin { spec: self.spec, priority: 0, call: None, update: None }.encode();
        let begin = [&self.header(FrameKind::Begin, spec.len()).encode()[..], &spec].concat();
        for conn in self.conns.clone() {
            self.feed(conn, &begin);
        }
        let payload = std::mem::take(&mut self.payload);
        let mut out = 0;
        for chunk in 0..CHUNKS {
            let header = Header { chunk, ..self.header(FrameKind::Push, payload.len()) };
            for conn in self.conns.clone() {
                self.feed(conn, &header.encode());
                self.feed(conn, &payload);
            }
            while let Some(conn) = self.lane.next_dirty() {
                let bytes: usize = self.lane.pending(conn).iter().map(|slice| slice.len()).sum();
                self.lane.sent(conn, bytes);
                out += bytes;
            }
        }
        self.payload = payload;
        self.round = self.round.next();
        out
    }
}

fn rounds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lane-chunks");
    for workers in [2, 8] {
        // What all chunks' sums take, with a header each, for every worker.
        group.throughput(Throughput::Elements(u64::from(workers * CHUNKS)));
        for chunk_bytes in [64_u32, 256 << 10] {
            let mut bench = Bench::new(workers, chunk_bytes);
            let expected =
                (workers * CHUNKS) as usize * (sumpter_wire::HEADER_BYTES + chunk_bytes as usize);
            let id = BenchmarkId::new(format!("n={workers}"), chunk_bytes);
            group.bench_function(id, |bencher| {
                bencher.iter(|| assert_eq!(bench.round(), expected));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
