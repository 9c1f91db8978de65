//! Workers that run out of data before others.

use sumpter_node::{OpError, Worker};
use sumpter_types::{Collective, Rank, TensorSpec};

use crate::harness::{Job, spec, submit, wait};

fn out_of_data(worker: &Worker) -> Result<Rank, OpError> {
    worker.out_of_data(&mut || false).map_err(|error| error.expect("no interrupt"))
}

/// Rounds a rank has data for.
fn rounds_of(rank: u32) -> u32 {
    4 * rank
}

fn sum_while_there_is_data(worker: &Worker, world_size: u32) {
    for round in 0..rounds_of(worker.rank()) {
        let with_data = (0..world_size).filter(|rank| rounds_of(*rank) > round).count();
        // One large enough for several partitions, one that the others have never named.
        for (name, len) in [("gradient".to_owned(), 20_000), (format!("only {round}"), 3)] {
            let (completion, tensor) = submit(worker, spec(&name, &[len]), vec![1.0; len as usize]);
            assert_eq!(wait(&completion), Ok(()));
            assert!(tensor.values().iter().all(|value| *value == with_data as f32));
        }
    }
}

#[test]
fn they_take_part_with_zeros_on_shared_machines_too() {
    for (machines, servers) in [(&["a", "b", "c"], 0), (&["a", "a", "b"], 1), (&["a"; 3], 0)] {
        let job = Job::start(servers);
        let settings = [("partition_bytes", "4096"), ("chunk_bytes", "4096")];
        let last = job.run_on(machines, &settings, |worker| {
            sum_while_there_is_data(worker, 3);
            let first = out_of_data(worker);
            // Everyone counts as before, and can run out again.
            let (completion, tensor) = submit(worker, spec("all", &[5]), vec![2.0; 5]);
            assert_eq!(wait(&completion), Ok(()));
            assert_eq!(tensor.values(), [6.0; 5]);
            sum_while_there_is_data(worker, 3);
            (first, out_of_data(worker))
        });
        assert_eq!(last, vec![(Ok(Rank(2)), Ok(Rank(2))); 3]);
        job.finish();
    }
}

#[test]
fn a_group_that_an_idle_worker_belongs_to_goes_on_and_a_broadcast_from_it_fails() {
    let job = Job::start(0);
    job.run(3, &[], |worker| {
        if worker.rank() > 0 {
            let pair = TensorSpec { ranks: vec![Rank(0), Rank(2)], ..spec("pair", &[4]) };
            if worker.rank() == 2 {
                let (completion, tensor) = submit(worker, pair, vec![1.0; 4]);
                assert_eq!(wait(&completion), Ok(()));
                assert_eq!(tensor.values(), [1.0; 4]);
            }
            let from = |root, name| TensorSpec {
                collective: Collective::Broadcast,
                root: Rank(root),
                ..spec(name, &[4])
            };
            let (completion, tensor) =
                submit(worker, from(2, "fine"), vec![worker.rank() as f32; 4]);
            assert_eq!(wait(&completion), Ok(()));
            assert_eq!(tensor.values(), [2.0; 4]);
            let (completion, _) = submit(worker, from(0, "from the idle"), vec![0.0; 4]);
            let error = wait(&completion).expect_err("rank 0 has nothing to send").to_string();
            assert!(error.contains("rank 0 is its root, but is out of data"), "{error}");
        }
        assert!(out_of_data(worker).is_ok());
    });
    job.finish();
}

#[test]
fn a_worker_that_leaves_instead_is_named() {
    let job = Job::start(0);
    let outcomes = job.run(2, &[], |worker| match worker.rank() {
        0 => Some(out_of_data(worker)),
        _ => None,
    });
    let error = outcomes[0].clone().and_then(Result::err).expect("rank 1 has left").to_string();
    assert!(error.contains("rank 1 has left the job without running out of data"), "{error}");
    job.finish();
}
