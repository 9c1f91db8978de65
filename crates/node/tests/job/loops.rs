//! Workers with several event loops.

use std::sync::{Arc, Barrier};

use sumpter_node::{NodeError, OpError, Worker};
use sumpter_types::{Collective, Dtype, Rank, TensorSpec};

use super::harness::{Job, spec, submit, submit_as, wait};

/// One element, less than a part, a part for two loops, for three and for more.
const SIZES: [u64; 6] = [1, 1000, 33_000, 50_001, 300_007, 1_000_003];

/// What every rank has of each tensor after two rounds with so many loops.
fn sums(machines: &[&str], servers: usize, loops: &str) -> Vec<Vec<Vec<f32>>> {
    let job = Job::start(servers);
    let settings = [("io_threads", loops), ("deterministic", "true")];
    let sums = job.run_on(machines, &settings, |worker| {
        assert_eq!(worker.stats().counters["event_loops"], f64::from(worker.view().loops()));
        let mut all = Vec::new();
        for round in 0..2 {
            let rank = worker.rank() as u64;
            // Sums of these depend on their order.
            let value = |i: u64| ((i * 7919 + rank * 104_729 + round) % 10_007) as f32 / 3.0;
            let tensors = SIZES.map(|len| {
                let spec = spec(&format!("t{len}"), &[len]);
                submit(worker, spec, (0..len).map(value).collect())
            });
            for (completion, tensor) in tensors {
                assert_eq!(wait(&completion), Ok(()));
                all.push(tensor.values().to_vec());
            }
        }
        all
    });
    job.finish();
    sums
}

#[test]
fn the_sums_are_those_of_one_loop_whatever_the_machines_and_the_servers() {
    let clusters: [&[&str]; 3] = [&["a", "b"], &["a", "a", "b", "b"], &["a", "b", "c"]];
    for machines in clusters {
        for servers in [0, 2] {
            let [one, two, three] = ["1", "2", "3"].map(|loops| sums(machines, servers, loops));
            assert!(one.iter().all(|of_rank| *of_rank == one[0]), "{machines:?} {servers}");
            assert!(one == two && one == three, "{machines:?} {servers}");
        }
    }
}

#[test]
fn every_collective_of_all_and_of_some_ranks_works_in_parts() {
    for (loops, servers) in [("2", 1), ("3", 0)] {
        let job = Job::start(servers);
        job.run_on(&["a", "a", "b"], &[("io_threads", loops)], |worker| {
            let rank = worker.rank();
            for len in [3, 200_001] {
                let value = |i: u64| (i % 251) as f32 + rank as f32;
                let all = [Rank(0), Rank(1), Rank(2)];
                for ranks in [&all[..], &all[1..]].into_iter().filter(|r| r.contains(&Rank(rank))) {
                    for collective in Collective::ALL {
                        if matches!(collective, Collective::Update | Collective::Barrier) {
                            continue;
                        }
                        let name = format!("{} {len} {}", collective.name(), ranks.len());
                        let ranks = ranks.to_vec();
                        let root = Rank(2);
                        let spec = TensorSpec { collective, ranks, root, ..spec(&name, &[len]) };
                        let ranks = if spec.ranks.is_empty() { &all[..] } else { &spec.ranks };
                        let (n, sum) = (ranks.len(), ranks.iter().map(|r| r.0).sum::<u32>());
                        let receives = collective.receives(Rank(rank), root);
                        let (completion, tensor) =
                            submit(worker, spec.clone(), (0..len).map(value).collect());
                        assert_eq!(wait(&completion), Ok(()), "{name}");
                        let expected = |i: usize| match (receives, collective) {
                            (false, _) => value(i as u64),
                            (true, Collective::Broadcast) => (i % 251) as f32 + 2.0,
                            (true, _) => (n * (i % 251)) as f32 + sum as f32,
                        };
                        let mut values = tensor.values().iter().enumerate();
                        assert!(values.all(|(i, v)| *v == expected(i)), "{name} on rank {rank}");
                    }
                }
            }
            let barrier = TensorSpec { collective: Collective::Barrier, ..spec("here", &[1]) };
            assert_eq!(wait(&submit(worker, barrier, vec![0.0]).0), Ok(()));
        });
        job.finish();
    }
}

#[test]
fn elements_of_other_sizes_are_cut_between_elements() {
    let job = Job::start(1);
    job.run(2, &[("io_threads", "3")], |worker| {
        let rank = u64::from(worker.rank());
        let bytes = TensorSpec { dtype: Dtype::U8, ..spec("bytes", &[700_001]) };
        let values = (0..700_001_u64).map(|i| (i % 100 + rank) as u8).collect();
        let (small, byte_tensor) = submit_as(worker, bytes, values, false);
        let wide = TensorSpec { dtype: Dtype::I64, ..spec("wide", &[90_001]) };
        let values = (0..90_001_u64).map(|i| (i << 32) + rank).collect();
        let (large, wide_tensor) = submit_as(worker, wide, values, false);
        assert_eq!((wait(&small), wait(&large)), (Ok(()), Ok(())));
        let byte = |i: usize| (2 * (i % 100) + 1) as u8;
        assert!(byte_tensor.values().iter().enumerate().all(|(i, v)| *v == byte(i)));
        let wide = |i: usize| ((i as u64) << 33) + 1;
        assert!(wide_tensor.values().iter().enumerate().all(|(i, v)| *v == wide(i)));
    });
    job.finish();
}

#[test]
fn rounds_of_one_tensor_that_threads_submit_at_once_have_one_order_in_all_loops() {
    let job = Job::start(0);
    job.run(2, &[("io_threads", "2")], |worker| {
        let begin = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    for _ in 0..20 {
                        let value = (1 << thread) as f32;
                        let (completion, tensor) =
                            submit(worker, spec("x", &[40_000]), vec![value; 40_000]);
                        assert_eq!(wait(&completion), Ok(()));
                        // Whichever of the other rank's rounds it met, it was one.
                        let other = tensor.values()[0];
                        assert!(tensor.values().iter().all(|v| *v == other));
                    }
                });
            }
        });
    });
    job.finish();
}

#[test]
fn a_tensor_of_another_shape_fails_once_on_every_rank_and_others_go_on() {
    let job = Job::start(0);
    let errors = job.run(2, &[("io_threads", "2")], |worker| {
        // The parts of both are equal.
        let shape: [u64; 2] = if worker.rank() == 0 { [300, 200] } else { [200, 300] };
        let (completion, _) = submit(worker, spec("grad", &shape), vec![1.0; 60_000]);
        let error = wait(&completion).expect_err("the shapes differ");
        let (completion, tensor) = submit(worker, spec("other", &[60_000]), vec![1.0; 60_000]);
        assert_eq!(wait(&completion), Ok(()));
        assert!(tensor.values().iter().all(|v| *v == 2.0));
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, OpError::Mismatch(_)), "{text}");
        assert!(["grad", "[300, 200]", "[200, 300]"].iter().all(|p| text.contains(p)), "{text}");
    }
    job.finish();
}

#[test]
fn ranks_without_data_contribute_zeros_to_every_part() {
    let job = Job::start(1);
    job.run(3, &[("io_threads", "2")], |worker| {
        let rounds = 1 + worker.rank();
        for round in 0..rounds {
            for len in SIZES {
                let spec = spec(&format!("t{len}"), &[len]);
                let (completion, tensor) = submit(worker, spec, vec![1.0; len as usize]);
                assert_eq!(wait(&completion), Ok(()));
                let expected = (3 - round) as f32;
                assert!(tensor.values().iter().all(|v| *v == expected), "{len} in {round}");
            }
        }
        let last = worker.out_of_data(&mut || false);
        assert!(last.is_ok(), "{last:?}");
    });
    job.finish();
}

#[test]
fn a_rank_with_another_number_of_loops_is_refused_with_both() {
    let job = Job::start(0);
    let together = Arc::new(Barrier::new(2));
    let ranks = ["2", "3"].into_iter().enumerate().map(|(rank, loops)| {
        let settings = job.settings(rank, 2, &[("io_threads", loops)]);
        let together = together.clone();
        std::thread::spawn(move || {
            together.wait();
            Worker::join(&settings, &mut || false).map(drop).expect_err("they differ")
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let errors: Vec<NodeError> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let refused = errors.iter().filter(|error| matches!(error, NodeError::Mismatch(_)));
    let text = refused.map(ToString::to_string).collect::<String>();
    for part in ["setting io_threads differs", "rank 0", "rank 1", "has 2", "has 3"] {
        assert!(text.contains(part), "{part}: {errors:?}");
    }
}
