//! Compressed tensors: their sums are the same on all ranks, whatever carries them.

use sumpter_types::{Collective, Dtype, ReduceOp, TensorSpec};

use crate::harness::{Job, spec, submit, wait};

/// More than a partition, and no multiple of a block.
const LEN: u64 = 50_003;

fn compressed(name: &str, codec: &str) -> TensorSpec {
    TensorSpec { compression: codec.to_owned(), ..spec(name, &[LEN]) }
}

/// A whole number of 64ths, and other ones on each rank.
fn value(rank: u32, i: u64) -> f32 {
    ((i * (7 + u64::from(rank)) % 1021) as f32 - 500.0) / 64.0
}

fn values(rank: u32) -> Vec<f32> {
    (0..LEN).map(|i| value(rank, i)).collect()
}

#[test]
fn a_sum_is_within_the_error_of_its_codec_wherever_its_workers_are() {
    let layouts: [(&[&str], usize, &str); 4] = [
        (&["a", "b"], 0, "1"),
        (&["a", "b", "c"], 2, "1"),
        (&["a", "a", "b"], 1, "1"),
        (&["a", "a", "b"], 1, "2"),
    ];
    for (machines, servers, loops) in layouts {
        let job = Job::start(servers);
        let settings = [("partition_bytes", "16384"), ("io_threads", loops)];
        let sums = job.run_on(machines, &settings, |worker| {
            let codecs = ["fp16", "int8", "int8:two_way=false", "topk:k=0.999"];
            let round = |codec: &str| {
                let name = format!("by {codec}");
                let sum = |_| {
                    let (done, tensor) =
                        submit(worker, compressed(&name, codec), values(worker.rank()));
                    assert_eq!(wait(&done), Ok(()), "{codec}");
                    tensor.values().to_vec()
                };
                [0, 1, 2].map(sum)
            };
            codecs.map(round)
        });
        assert!(sums.iter().all(|of_rank| *of_rank == sums[0]), "{machines:?}: ranks differ");
        let ranks = machines.len() as u32;
        for (number, rounds) in sums[0].iter().enumerate() {
            for (i, sum) in (0..LEN).flat_map(|i| rounds.iter().map(move |s| (i, s[i as usize]))) {
                let exact: f32 = (0..ranks).map(|rank| value(rank, i)).sum();
                let most = if number == 0 { 0.02 } else { 0.3 };
                assert!((sum - exact).abs() < most, "{machines:?} {number} {i}: {sum} {exact}");
            }
        }
        job.finish();
    }
}

#[test]
fn what_is_chosen_is_the_same_on_all_ranks_and_follows_what_is_known_of_links() {
    for (gbps, machines, is_exact) in [
        (Some("0.1"), ["a", "b", "c"], false),
        (Some("0.1"), ["a", "a", "b"], false),
        (None, ["a", "b", "c"], true),
        // Nothing crosses the network but to the server.
        (Some("0.1"), ["a", "a", "a"], true),
    ] {
        let servers = usize::from(!is_exact);
        let settings = [("partition_bytes", "16384"), ("io_threads", "2")];
        let known = gbps.map(|gbps| ("bandwidth_gbps", gbps));
        let all: Vec<_> = settings.into_iter().chain(known).collect();
        let job = Job::start_with(servers, known.as_slice());
        let sums = job.run_on(&machines, &all, |worker| {
            let own = values(worker.rank());
            let (done, tensor) = submit(worker, compressed("x", "auto:codecs=int8"), own);
            assert_eq!(wait(&done), Ok(()));
            tensor.values().to_vec()
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{machines:?}: ranks differ");
        let exact = |i| (0..3).map(|rank| value(rank, i)).sum::<f32>();
        let off = (0..LEN).zip(&sums[0]).map(|(i, sum)| (sum - exact(i)).abs());
        let most = off.fold(0.0, f32::max);
        assert!(most < 0.3 && (most == 0.0) == is_exact, "{gbps:?} {machines:?}: {most}");
        job.finish();
    }
}

#[test]
fn what_cannot_be_compressed_is_an_error_with_tensor_rank_and_codec() {
    let job = Job::start(0);
    job.run(2, &[("chunk_bytes", "6144")], |worker| {
        let text = |spec: TensorSpec| {
            let (done, _tensor) = submit(worker, spec, values(worker.rank()));
            wait(&done).expect_err("it cannot be compressed").to_string()
        };
        let own = format!("rank {}", worker.rank());
        let all = |spec: &TensorSpec, words: &[&str]| {
            let text = text(spec.clone());
            for word in [spec.name.as_str(), &own].iter().chain(words) {
                assert!(text.contains(word), "{word} is not in: {text}");
            }
        };
        let by = |name: &str| compressed(name, "int8");
        all(&TensorSpec { dtype: Dtype::I32, ..by("i") }, &["codec int8", "not int32"]);
        let most = TensorSpec { op: ReduceOp::Max, ..by("m") };
        all(&most, &["codec int8", "all_reduce max"]);
        let collective = Collective::Broadcast;
        all(&TensorSpec { collective, ..by("b") }, &["codec int8", "broadcast"]);
        all(&TensorSpec { sharded: true, ..by("s") }, &["codec int8", "device group"]);
        all(&compressed("k", "topk:k=60000"), &["codec topk", "k=60000", "1 to 50003"]);
        all(&compressed("u", "zip"), &["no codec is called 'zip'"]);
        let auto = TensorSpec { dtype: Dtype::I32, ..compressed("o", "auto") };
        all(&auto, &["codec auto", "not int32"]);
        all(&compressed("a", "int8:bits=4"), &["codec int8 takes no argument 'bits'"]);
        all(&compressed("w", "powersgd"), &["codec powersgd works on whole matrices"]);
        // In every round.
        for _ in 0..2 {
            all(&by("c"), &["codec int8", "blocks of 4096 bytes", "chunk_bytes is 6144"]);
        }
        let (done, _tensor) = submit(worker, spec("plain", &[LEN]), values(worker.rank()));
        assert_eq!(wait(&done), Ok(()));
    });
    job.finish();
}
