//! What noting an event costs: `cargo bench -p sumpter-observe`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use sumpter_observe::{EventKind, Part, Peer, Recorder, monotonic_ns};

fn note(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    for (name, capacity) in [("on", 1 << 16), ("off", 0)] {
        let mut ring = Recorder::new(capacity, monotonic_ns);
        let mut round = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                round += 1;
                let part = Part { tensor: 3, tier: 0, round, partition: 7 };
                ring.note(EventKind::SendBegin, black_box(part), Peer::Rank(1), 1 << 20, 9);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, note);
criterion_main!(benches);
