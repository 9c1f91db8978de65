//! Jobs whose bytes are placed in peers' memory, by libfabric's providers that need no hardware;
//! skipped, with a line that says so, where libfabric is missing.

use std::io::Write;

use sumpter_fabric::{Choice, providers};
use sumpter_node::{NodeError, OpError, Worker};
use sumpter_types::{Collective, TensorSpec};

use crate::harness::{Job, config, spec, submit, wait};

const TCP: [(&str, &str); 1] = [("fabric", "tcp")];
const PLACED: [(&str, &str); 2] = [("fabric", "libfabric"), ("fabric_provider", "tcp")];

/// Whether there is a provider to place bytes with here; says what is missing otherwise.
fn is_here() -> bool {
    let choice = Choice { provider: Some("tcp".to_owned()), device: None };
    let Err(reason) = providers(&choice) else { return true };
    // To the terminal, past the capture of a test that passes.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED jobs with placed writes: {reason}");
    false
}

/// The bits of what a rank gets from rounds whose sums depend on their order, and how many of its
/// connections place bytes.
fn rounds(worker: &Worker) -> (Vec<u32>, f64) {
    let mut bits = Vec::new();
    for round in 0..3u32 {
        for (name, collective) in
            [("sum", Collective::AllReduce), ("scatter", Collective::ReduceScatter)]
        {
            let len = 200_000;
            let value = |i: u32| 0.1 + (i % 1000) as f32 / (7 + worker.rank() + round) as f32;
            let spec = TensorSpec { collective, ..spec(name, &[len]) };
            let (completion, tensor) = submit(worker, spec, (0..len as u32).map(value).collect());
            assert_eq!(wait(&completion), Ok(()));
            bits.extend(tensor.values().iter().map(|value| value.to_bits()));
        }
    }
    (bits, worker.stats().counters["placed_connections"])
}

fn job(n: usize, servers: usize, settings: &[(&str, &str)]) -> Vec<(Vec<u32>, f64)> {
    let job = Job::start_with(servers, settings);
    let settings = [settings, &[("deterministic", "true")]].concat();
    let results = job.run(n, &settings, rounds);
    job.finish();
    results
}

#[test]
fn placed_bytes_are_those_of_tcp_whatever_the_cluster() {
    if !is_here() {
        return;
    }
    for (n, servers) in [(1, 1), (2, 0), (2, 1), (2, 2), (4, 0), (4, 2)] {
        let (over_tcp, placed) = (job(n, servers, &TCP), job(n, servers, &PLACED));
        for (rank, (tcp, placed)) in over_tcp.iter().zip(&placed).enumerate() {
            assert!(tcp.0 == placed.0, "rank {rank} of {n} with {servers} servers");
            assert_eq!(tcp.1, 0.0);
            // One for each lane elsewhere, and, of its own lane, one from each other worker.
            let least = if n > 1 { 2 * (n - 1) + 2 * servers } else { 0 };
            assert!(placed.1 >= least as f64, "{} of {least} connections", placed.1);
        }
    }
}

#[test]
fn members_without_a_common_network_sum_over_tcp() {
    if !is_here() {
        return;
    }
    let named = [("fabric", "auto"), ("fabric_provider", "tcp")];
    let tcp = Job::start_with(1, &TCP);
    for (_, placed) in tcp.run(2, &named, rounds) {
        // The two workers place bytes with each other, not with the server.
        assert_eq!(placed, 2.0);
    }
    tcp.finish();
    // A job that demands it goes on without a server that has none.
    let tcp = Job::start_with(1, &TCP);
    for (_, placed) in tcp.run(2, &PLACED, rounds) {
        assert!(placed >= 2.0);
    }
    tcp.finish();
}

#[test]
fn workers_of_which_one_demands_what_the_other_has_not_both_fail() {
    if !is_here() {
        return;
    }
    let job = Job::start(0);
    let ranks = [&PLACED[..], &TCP].into_iter().enumerate().map(|(rank, fabric)| {
        let machine = format!("gpu-{rank}");
        let settings = job.settings(rank, 2, &[&[("machine", machine.as_str())], fabric].concat());
        std::thread::spawn(move || {
            let worker = Worker::join(&settings, &mut || false).expect("joined");
            let (completion, _) = submit(&worker, spec("t", &[100_000]), vec![1.0; 100_000]);
            let error = wait(&completion).expect_err("no way to the other");
            worker.shutdown();
            error
        })
    });
    let errors: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join()).collect();
    // The other ends with the one that knows why, and names it.
    for (error, expected) in
        errors.into_iter().zip(["the peer places no bytes: its fabric is tcp", "rank 0"])
    {
        let error = error.expect("no panic");
        let OpError::PeerLost(text) = &error else { panic!("{error:?}") };
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_cannot_be_had_or_would_not_be_encrypted_is_refused_before_the_job_starts() {
    let refused = |settings: &[(&str, &str)]| {
        let own = [("coordinator", "127.0.0.1:9"), ("fabric", "libfabric")];
        match Worker::join(&config(&[&own[..], settings].concat()), &mut || false) {
            Err(NodeError::Refused(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let text = refused(&[("fabric_provider", "nonesuch")]);
    assert!(text.starts_with("fabric = libfabric cannot be had: libfabric "), "{text}");
    assert!(text.ends_with("; or set fabric = auto"), "{text}");
    let pem = |name| {
        format!("{}/../coordinator/tests/certificates/{name}.pem", env!("CARGO_MANIFEST_DIR"))
    };
    let (cert, key, ca) = (pem("cert"), pem("key"), pem("ca"));
    let text = refused(&[("tls_cert", &cert), ("tls_key", &key), ("tls_ca", &ca)]);
    assert!(text.contains("set tls_data = false"), "{text}");
}
