//! Workers that leave before others.

use std::thread;
use std::time::{Duration, Instant};

use sumpter_types::{Collective, Rank, TensorSpec};

use crate::harness::{Job, spec, submit, wait};

#[test]
fn a_group_without_a_worker_that_has_left_goes_on() {
    let job = Job::start(0);
    let errors = job.run(3, &[("peer_timeout_s", "3")], |worker| {
        if worker.rank() == 2 {
            return None;
        }
        // Longer than anything that the worker has sent could be on its way.
        thread::sleep(Duration::from_millis(3500));
        let pair = TensorSpec { ranks: vec![Rank(0), Rank(1)], ..spec("pair", &[4]) };
        let (completion, tensor) = submit(worker, pair, vec![1.0; 4]);
        assert_eq!(wait(&completion), Ok(()));
        assert_eq!(tensor.values(), [2.0; 4]);
        let (completion, _) = submit(worker, spec("all", &[4]), vec![1.0; 4]);
        Some(wait(&completion).expect_err("rank 2 has left").to_string())
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("rank 2 has left the job, but 'all' waits for it"), "{error}");
    }
    job.finish();
}

#[test]
fn shutdown_does_not_wait_for_ranks_that_refused_a_broadcast() {
    let job = Job::start(0);
    let took = job.run(2, &[], |worker| {
        let len = 10 + u64::from(worker.rank());
        let from_first = TensorSpec {
            collective: Collective::Broadcast,
            root: Rank(0),
            ..spec("weights", &[len])
        };
        let (completion, _) = submit(worker, from_first, vec![1.0; len as usize]);
        wait(&completion).expect_err("the shapes differ");
        let began = Instant::now();
        worker.shutdown();
        began.elapsed()
    });
    job.finish();
    // A worker that is expected is waited for as long as peer_timeout_s, here 20 s.
    assert!(took.iter().all(|took| *took < Duration::from_secs(10)), "{took:?}");
}
