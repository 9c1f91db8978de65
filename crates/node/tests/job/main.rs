//! Whole jobs over loopback in one process: a coordinator, servers and workers as threads.

mod compression;
mod fabric;
#[path = "../../../fabric/tests/fake/mod.rs"]
mod fake;
mod harness;
mod idle;
mod interfaces;
mod lanes;
mod leaving;
mod loops;
mod machines;
mod servers;
mod tenants;
mod tls;
mod variables;

use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Job, LIMIT, spec, submit, wait};
use sumpter_node::{NodeError, OpError, Worker};
use sumpter_types::Collective;

#[test]
fn every_rank_gets_the_sum_round_after_round_with_and_without_servers() {
    for servers in [0, 2] {
        let job = Job::start(servers);
        job.run(3, &[], |worker| {
            for round in 0..5 {
                let tensors: Vec<_> = [1, 1000, 100_000]
                    .into_iter()
                    .map(|len: u64| {
                        let value = |i| (i % 100) as f32 + (worker.rank() + round) as f32;
                        let spec = spec(&format!("t{len}"), &[len]);
                        submit(worker, spec, (0..len).map(value).collect())
                    })
                    .collect();
                for (completion, tensor) in tensors {
                    assert_eq!(wait(&completion), Ok(()));
                    let expected = |i| (3 * (i % 100) + 3 + 3 * round as usize) as f32;
                    let values = tensor.values().iter().enumerate();
                    assert!(values.clone().all(|(i, v)| *v == expected(i)));
                }
            }
        });
        job.finish();
    }
}

#[test]
fn a_tensor_of_another_shape_fails_on_every_rank_and_names_both() {
    let job = Job::start(0);
    let errors = job.run(2, &[], |worker| {
        let len = 10 + u64::from(worker.rank()) * 2;
        let (completion, _) = submit(worker, spec("grad", &[len]), vec![1.0; len as usize]);
        let error = wait(&completion).expect_err("the shapes differ");
        // Other tensors still work.
        let (completion, tensor) = submit(worker, spec("other", &[4]), vec![1.0; 4]);
        assert_eq!(wait(&completion), Ok(()));
        assert_eq!(tensor.values(), [2.0; 4]);
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, OpError::Mismatch(_)), "{text}");
        let parts = ["grad", "rank 0", "rank 1", "[10]", "[12]"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    job.finish();
}

#[test]
fn a_known_tensor_of_another_shape_fails_on_every_rank_too() {
    let job = Job::start(1);
    let errors = job.run(2, &[], |worker| {
        let (completion, _) = submit(worker, spec("grad", &[8]), vec![1.0; 8]);
        assert_eq!(wait(&completion), Ok(()));
        // Once this is done, no rank waits for the first round any more.
        let (completion, _) = submit(worker, spec("other", &[1]), vec![1.0]);
        assert_eq!(wait(&completion), Ok(()));
        let len = if worker.rank() == 0 { 8 } else { 9 };
        let (completion, _) = submit(worker, spec("grad", &[len]), vec![1.0; len as usize]);
        wait(&completion).expect_err("the shapes differ").to_string()
    });
    assert!(errors.iter().all(|text| text.contains("[8]") && text.contains("[9]")), "{errors:?}");
    job.finish();
}

#[test]
fn a_rank_that_is_late_to_a_broadcast_finds_it_where_others_have_left() {
    let job = Job::start(0);
    let (left, late) = (Arc::new(Barrier::new(2)), 1);
    let results = job.run(3, &[], move |worker| {
        // As many partitions as there are ranks, so that the one that leaves owns one.
        let mut spec = spec("weights", &[3 * 65536 / 4]);
        spec.collective = Collective::Broadcast;
        if worker.rank() == late {
            left.wait();
            // The other rank leaves meanwhile; it has never had a message from this one.
            thread::sleep(Duration::from_millis(300));
        }
        let (completion, tensor) = submit(worker, spec, vec![worker.rank() as f32; 3 * 65536 / 4]);
        let result = wait(&completion);
        if worker.rank() == 2 {
            left.wait();
        }
        (result, tensor.values().iter().all(|value| *value == 0.0))
    });
    assert_eq!(results, vec![(Ok(()), true); 3]);
    job.finish();
}

#[test]
fn who_waits_for_a_rank_that_has_left_is_told_so() {
    let job = Job::start(0);
    let errors = job.run(2, &[], |worker| {
        if worker.rank() == 1 {
            return None;
        }
        let (completion, _) = submit(worker, spec("lonely", &[8]), vec![1.0; 8]);
        wait(&completion).err()
    });
    let error = errors[0].as_ref().expect("no other rank contributes");
    let text = error.to_string();
    assert!(matches!(error, OpError::PeerLost(_)), "{text}");
    assert!(text.contains("rank 1 has left") && text.contains("lonely"), "{text}");
}

#[test]
fn a_result_on_its_way_survives_its_summer_leaving() {
    // The worker that has its result first leaves at once; the other must still get all of its own.
    // What is left goes out when the kernel says so, which may be as the word to leave comes.
    for _ in 0..8 {
        let job = Job::start(0);
        job.run(2, &[], |worker| {
            let len = 4_000_000;
            let last = spec("last", &[len]);
            let (completion, tensor) = submit(worker, last, vec![1.5; len as usize]);
            assert_eq!(wait(&completion), Ok(()));
            assert!(tensor.values().iter().all(|v| *v == 3.0));
        });
        job.finish();
    }
}

#[test]
fn a_missing_rank_is_named() {
    let job = Job::start(0);
    let settings = job.settings(0, 2, &[("start_timeout_s", "1")]);
    let begun = Instant::now();
    loop {
        let error = Worker::join(&settings, &mut || false).expect_err("rank 1 never comes");
        let text = error.to_string();
        assert!(matches!(error, NodeError::Start(_)), "{text}");
        assert!(text.contains("127.0.0.1"), "{text}");
        if text.contains("rank 1") {
            return;
        }
        // The time-out bounds the way to the coordinator, too, which a busy machine may exceed.
        assert!(begun.elapsed() < LIMIT, "{text}");
    }
}

#[test]
fn a_wrong_token_and_no_token_are_refused() {
    let job = Job::start(0);
    let settings = job.settings(0, 1, &[("token", "another token, as long")]);
    let error = Worker::join(&settings, &mut || false).expect_err("the tokens differ");
    assert!(matches!(error, NodeError::Auth(_)), "{error}");
    let mut settings = job.settings(0, 1, &[]);
    settings.token = None;
    let error = Worker::join(&settings, &mut || false).expect_err("there is no token");
    assert!(error.to_string().contains("SUMPTER_TOKEN"), "{error}");
}

#[test]
fn a_port_in_use_is_named() {
    let job = Job::start(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let settings = job.settings(0, 1, &[("port", &port)]);
    let error = Worker::join(&settings, &mut || false).expect_err("the port is taken");
    let text = error.to_string();
    assert!(text.contains(&port) && text.contains("SUMPTER_PORT"), "{text}");
}

#[test]
fn waiting_for_a_job_can_be_interrupted() {
    let job = Job::start(0);
    let settings = job.settings(0, 2, &[]);
    let error = Worker::join(&settings, &mut || true).expect_err("interrupted");
    assert!(matches!(error, NodeError::Interrupted), "{error}");
}

#[test]
fn joining_again_and_again_leaves_no_threads_behind() {
    // In a process of its own, as the tests beside this one have threads, too.
    let this = std::env::current_exe().expect("a path");
    let mut alone = Command::new(this);
    let output = alone.args(["--ignored", "--exact", "cycles_alone"]).output().expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "counts the threads of its process: joining_again_and_again_leaves_no_threads_behind"]
fn cycles_alone() {
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let cycle = || {
        let job = Job::start(0);
        job.run(2, &[], |worker| {
            let (completion, _) = submit(worker, spec("t", &[1000]), vec![1.0; 1000]);
            assert_eq!(wait(&completion), Ok(()));
        });
        job.finish();
    };
    let before = threads();
    (0..10).for_each(|_| cycle());
    // A thread that was joined may be listed for a moment.
    let ended = Instant::now();
    while threads() > before {
        assert!(ended.elapsed() < LIMIT, "{before} threads became {}", threads());
        std::thread::sleep(Duration::from_millis(10));
    }
}
