//! Every benchmark runs small, checks its own results and gives the samples it promises.

use sumpter_bench::{
    BenchError, MemorySpec, ServerSpec, Variant, affinity, aggregation, alignment, connections,
    server,
};
use sumpter_types::Rule;

const MEMORY: MemorySpec =
    MemorySpec { threads: 2, contributions: 3, bytes: 100_004, chunk_bytes: 4096, rounds: 2 };

fn spec(workers: usize, lanes: usize) -> ServerSpec {
    ServerSpec {
        workers,
        lanes,
        tensors: vec![4, 256, 100_000, 36, 300_000],
        partition_bytes: 65_536,
        chunk_bytes: 4096,
        credit_bytes: 1 << 20,
        rounds: 2,
        rules: vec![
            Rule::Sgd { momentum: false, nesterov: false },
            Rule::Sgd { momentum: true, nesterov: true },
            Rule::Adam { amsgrad: false },
        ],
    }
}

fn go_on() -> bool {
    false
}

#[test]
fn a_server_gives_every_variant_the_same_rounds_and_counts_its_calls() {
    for (workers, lanes) in [(1, 1), (3, 1), (2, 2)] {
        let samples = server(&spec(workers, lanes), go_on).expect("runs");
        let variants = spec(workers, lanes).variants();
        assert_eq!(variants.len(), Variant::PLAIN.len() + 3);
        for variant in variants {
            let of_variant: Vec<_> = samples.iter().filter(|s| s.variant == variant).collect();
            assert_eq!(of_variant.len(), 2, "{variant:?}");
            for sample in of_variant {
                assert!(sample.seconds > 0.0, "{sample:?}");
                assert!(sample.server_cpu_s + sample.worker_cpu_s > 0.0, "{sample:?}");
                // 400 kB cannot pass in fewer calls than one a worker and lane.
                let least = (workers * lanes) as u64;
                let calls = [sample.server_calls, sample.worker_calls];
                assert!(calls.iter().all(|c| c.reads >= least && c.writes >= least), "{sample:?}");
            }
        }
    }
}

#[test]
fn a_server_stops_when_it_is_told_to() {
    let mut rounds = 0;
    let stopped = server(&spec(2, 1), || {
        rounds += 1;
        rounds == 4
    });
    assert!(matches!(stopped, Err(BenchError::Interrupted)), "{stopped:?}");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let cases = [
        (ServerSpec { workers: 0, ..spec(1, 1) }, "workers: 0"),
        (ServerSpec { lanes: 65, ..spec(1, 1) }, "lanes: 65"),
        (ServerSpec { rounds: 0, ..spec(1, 1) }, "rounds: 0"),
        (ServerSpec { tensors: vec![6], ..spec(1, 1) }, "a tensor of 6 bytes"),
        (ServerSpec { tensors: vec![], ..spec(1, 1) }, "no tensors"),
        (ServerSpec { partition_bytes: 100, ..spec(1, 1) }, "partition_bytes"),
    ];
    for (spec, expected) in cases {
        let refused = server(&spec, go_on).expect_err(expected).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let alone = MemorySpec { contributions: 1, ..MEMORY };
    assert!(affinity(&alone, go_on).expect_err("one").to_string().contains("contributions: 1"));
    let tiny = aggregation(&MEMORY, 64, go_on).expect_err("tiny").to_string();
    assert!(tiny.contains("buffers of 64 bytes"), "{tiny}");
    let none = connections(&[0], 1 << 20, 4096, 1, go_on).expect_err("none").to_string();
    assert!(none.contains("connections: 0"), "{none}");
}

#[test]
fn ablations_measure_both_ways_with_equal_sums() {
    let samples = aggregation(&MEMORY, 10_000, go_on).expect("runs");
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|s| s.tall_bytes_per_s > 0.0 && s.wide_bytes_per_s > 0.0));
    let samples = affinity(&MEMORY, go_on).expect("runs");
    assert_eq!(samples.len(), 2);
    let positive = |s: &sumpter_bench::AffinitySample| {
        s.key_to_lane_bytes_per_s > 0.0 && s.worker_to_lane_bytes_per_s > 0.0
    };
    assert!(samples.iter().all(positive));
    let samples = alignment(&[0, 4, 64], 8192, 10, 2, go_on).expect("runs");
    assert_eq!(samples.iter().map(|s| s.offset_bytes).collect::<Vec<_>>(), [0, 4, 64, 0, 4, 64]);
    let samples = connections(&[1, 2], 1 << 20, 4096, 2, go_on).expect("runs");
    assert_eq!(samples.iter().map(|s| s.connections).collect::<Vec<_>>(), [1, 2, 1, 2]);
    assert!(samples.iter().all(|s| s.seconds > 0.0));
}
