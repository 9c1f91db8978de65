//! What a client costs: submitting operations and choosing what goes on a connection next, for
//! many small tensors and for one large one, with much and with little credit.
//!
//! Nothing answers: each iteration submits to a fresh client and takes all it sends.
//! `cargo bench -p sumpter-engine --bench queue`; `-- --test` runs each case once.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sumpter_endpoint::{ConnId, Endpoint, OwnedMemory};
use sumpter_engine::{Client, ClientSettings, Place, Request, Supply};
use sumpter_types::{Collective, Dtype, Epoch, GroupId, Rank, ReduceOp, TensorId};
use sumpter_wire::{BEGIN_BYTES, HEADER_BYTES, Tier};

const LANE: ConnId = ConnId(0);
const CHUNK_BYTES: usize = 64 << 10;
const PARTITION_BYTES: usize = 256 << 10;

/// So many tensors of so many bytes.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    tensors: usize,
    bytes: usize,
}

const LOADS: [Load; 2] = [
    Load { name: "many-small", tensors: 1000, bytes: 4096 },
    Load { name: "one-large", tensors: 1, bytes: 64 << 20 },
];

impl Load {
    fn partitions(self) -> usize {
        self.tensors * self.bytes.div_ceil(PARTITION_BYTES)
    }

    /// Bytes that go on the connection: tensors, a header a chunk, a header and a spec a partition.
    fn sent_bytes(self) -> usize {
        let chunks = self.tensors * self.bytes.div_ceil(CHUNK_BYTES);
        let begins = self.partitions() * (HEADER_BYTES + BEGIN_BYTES);
        self.tensors * self.bytes + chunks * HEADER_BYTES + begins
    }

    fn places(self) -> Vec<Place> {
        let starts = (0..self.bytes).step_by(PARTITION_BYTES);
        let place = |(number, offset)| {
            let stretch = (offset, PARTITION_BYTES.min(self.bytes - offset));
            Place::new(LANE, number, stretch, GroupId(0), 1)
        };
        (0..).zip(starts).map(place).collect()
    }
}

fn client(load: Load, credit_bytes: usize) -> Client<OwnedMemory> {
    let settings = ClientSettings {
        rank: Rank(0),
        world_size: 2,
        epoch: Epoch(1),
        chunk_bytes: CHUNK_BYTES as u32,
        credit_bytes,
        deterministic: false,
        checksum: false,
    };
    let mut client = Client::new(settings, 1);
    for tensor in 0..load.tensors {
        client.register(TensorId(tensor as u32), Tier::Root, load.places());
    }
    client.connected(LANE);
    client
}

fn request(tensor: usize) -> Request {
    Request {
        tensor: TensorId(tensor as u32),
        tier: Tier::Root,
        collective: Collective::AllReduce,
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: false,
        // Later tensors are more urgent, as the first layers' gradients are.
        priority: tensor as i32,
        supply: Supply::Whole,
        call: None,
        update: None,
        rescale: 1.0,
    }
}

/// Submits everything, then sends until nothing is left; returns the bytes sent.
fn submit_and_send(client: &mut Client<OwnedMemory>, memory: Vec<OwnedMemory>) -> usize {
    for (tensor, memory) in memory.into_iter().enumerate() {
        client.submit(request(tensor), memory);
    }
    let mut sent = 0;
    loop {
        let bytes: usize = client.pending(LANE).iter().map(|slice| slice.len()).sum();
        if bytes == 0 {
            return sent;
        }
        client.sent(LANE, bytes);
        sent += bytes;
    }
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("client-queue");
    for load in LOADS {
        group.throughput(Throughput::Elements(load.partitions() as u64));
        for credit_bytes in [64 << 10, 32 << 20] {
            let memory = vec![0; load.bytes];
            let fresh = || {
                let owned = OwnedMemory { separate: None, bytes: memory.clone() };
                (client(load, credit_bytes), vec![owned; load.tensors])
            };
            let id = BenchmarkId::new(load.name, format!("credit={}KiB", credit_bytes >> 10));
            group.bench_function(id, |bencher| {
                let run = |(mut client, memory)| {
                    assert_eq!(submit_and_send(&mut client, memory), load.sent_bytes());
                    // Returned, so that freeing its memory is not measured.
                    client
                };
                bencher.iter_batched(fresh, run, BatchSize::PerIteration);
            });
        }
    }
    group.finish();
}

criterion_group!(benches, queue);
criterion_main!(benches);
