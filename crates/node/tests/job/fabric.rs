//! Jobs whose bytes are placed in peers' memory, by libfabric's providers that need no hardware;
//! skipped, with a line that says so, where libfabric is missing.

use std::io::Write;
use std::time::Instant;

use sumpter_fabric::{Choice, providers};
use sumpter_node::{NodeError, OpError, Worker};
use sumpter_types::{Collective, TensorSpec};

use crate::fake::{Release, run_beside};
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
    let clusters = [1, 2, 4].into_iter().flat_map(|n| (0..3).map(move |servers| (n, servers)));
    for (n, servers) in clusters {
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

/// Rounds of a rank, then its counters by name.
fn counted(worker: &Worker) -> (Vec<u32>, Vec<(String, f64)>) {
    let (bits, _) = rounds(worker);
    (bits, worker.stats().counters.into_iter().collect())
}

fn of(counters: &[(String, f64)], name: &str) -> f64 {
    counters.iter().find(|(own, _)| own == name).expect("a counter").1
}

#[test]
fn bytes_between_ranks_of_one_machine_never_go_through_the_network() {
    if !is_here() {
        return;
    }
    let one = ["one", "one"];
    for (machines, local, is_away) in
        [(one, "shm", false), (one, "tcp", false), (["one", "other"], "shm", true)]
    {
        let job = Job::start(0);
        let settings = [&PLACED[..], &[("local_link", local)]].concat();
        for (_, counters) in job.run_on(&machines, &settings, counted) {
            let counted =
                ["placed_connections", "placed_bytes", "registrations", "bytes_sent_away"];
            let counted = counted.map(|name| of(&counters, name));
            assert!(counted.iter().all(|count| (*count > 0.0) == is_away), "{counted:?}");
            assert!(of(&counters, "bytes_sent") > 1e5, "they exchange bytes: {counters:?}");
            // Both rings of each connection, whatever the number of rounds.
            assert_eq!(counted[2], 2.0 * counted[0]);
        }
        job.finish();
    }
}

#[test]
fn no_round_after_the_first_registers_memory() {
    if !is_here() {
        return;
    }
    let job = Job::start_with(1, &PLACED);
    for counts in job.run(2, &PLACED, |worker| [(); 3].map(|()| counted(worker).1)) {
        let [first, _, last] = counts.map(|c| (of(&c, "registrations"), of(&c, "placed_bytes")));
        assert_eq!(first.0, last.0, "registrations");
        assert!(first.0 > 0.0 && first.1 < last.1, "{first:?}, {last:?}");
    }
    job.finish();
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

const FAKE: [(&str, &str); 2] = [("fabric", "auto"), ("fabric_provider", "fake")];

/// The sums of two ranks over a library that a test has built are those over TCP; how many
/// connections of each placed bytes, and for how long.
fn beside_tcp(settings: &[(&str, &str)]) -> (Vec<f64>, f64) {
    let over_tcp = job(2, 0, &TCP);
    let begun = Instant::now();
    let faked = job(2, 0, &[&FAKE[..], settings].concat());
    assert!(faked.iter().zip(&over_tcp).all(|(faked, tcp)| faked.0 == tcp.0));
    (faked.into_iter().map(|(_, placed)| placed).collect(), begun.elapsed().as_secs_f64())
}

#[test]
fn a_network_that_hangs_in_a_round_is_given_up_for_tcp() {
    // Greetings, and some of the records of the first rounds.
    let environment = [("FAKE_FABRIC_WRITES", "40")];
    run_beside(Release::New, &environment, "fabric::hangs_in_a_round_alone");
}

#[test]
#[ignore = "needs another library: a_network_that_hangs_in_a_round_is_given_up_for_tcp"]
fn hangs_in_a_round_alone() {
    let (placed, seconds) = beside_tcp(&[("peer_timeout_s", "3")]);
    assert!(placed.iter().all(|count| *count >= 1.0), "it has worked at first: {placed:?}");
    assert!(seconds > 3.0, "it was waited for: {seconds} s");
}

#[test]
fn a_write_that_a_network_loses_without_an_error_costs_a_connection_and_no_bytes() {
    // With a descriptor to wait for, as of most providers, and without.
    for wait in ["fd", "none"] {
        let environment = [("FAKE_FABRIC_LOSES", "20"), ("FAKE_FABRIC_WAIT", wait)];
        run_beside(Release::New, &environment, "fabric::loses_in_a_round_alone");
    }
}

#[test]
#[ignore = "needs another library: a_write_that_a_network_loses_without_an_error_costs_a_..."]
fn loses_in_a_round_alone() {
    let (placed, seconds) = beside_tcp(&[("peer_timeout_s", "3")]);
    assert!(placed.iter().any(|count| *count > 2.0), "none was made anew: {placed:?}");
    assert!(seconds > 3.0, "nothing was lost: {seconds} s");
}

#[test]
fn errors_of_a_network_in_rounds_cost_connections_and_no_bytes() {
    let environment = [("FAKE_FABRIC_FAILS", "90")];
    run_beside(Release::New, &environment, "fabric::fails_in_rounds_alone");
}

#[test]
#[ignore = "needs another library: errors_of_a_network_in_rounds_cost_connections_and_no_bytes"]
fn fails_in_rounds_alone() {
    let (placed, _) = beside_tcp(&[]);
    assert!(placed.iter().any(|count| *count > 2.0), "none was made anew: {placed:?}");
}

#[test]
fn a_network_that_works_places_bytes_beside_one_that_hangs() {
    run_beside(Release::New, &[], "fabric::works_alone");
}

#[test]
#[ignore = "needs another library: a_network_that_works_places_bytes_beside_one_that_hangs"]
fn works_alone() {
    let (placed, _) = beside_tcp(&[]);
    assert_eq!(placed, [2.0; 2]);
}

#[test]
fn a_driver_that_hangs_while_a_connection_is_made_is_given_up_for_tcp() {
    let environment = [("FAKE_FABRIC", "domain")];
    run_beside(Release::New, &environment, "fabric::hangs_in_a_driver_alone");
}

#[test]
#[ignore = "needs another library: a_driver_that_hangs_while_a_connection_is_made_is_given_up..."]
fn hangs_in_a_driver_alone() {
    assert_eq!(beside_tcp(&[]).0, [0.0; 2]);
}

#[test]
fn a_library_that_hangs_is_given_up_before_the_job_starts() {
    let environment = [("FAKE_FABRIC", "getinfo")];
    run_beside(Release::New, &environment, "fabric::hangs_at_the_start_alone");
}

#[test]
#[ignore = "needs another library: a_library_that_hangs_is_given_up_before_the_job_starts"]
fn hangs_at_the_start_alone() {
    let own = [("coordinator", "127.0.0.1:9"), ("fabric", "libfabric")];
    let error = Worker::join(&config(&own), &mut || false).expect_err("it does not answer");
    let text = error.to_string();
    assert!(text.contains("fabric = libfabric cannot be had: libfabric has not said in"), "{text}");
    assert_eq!(beside_tcp(&[]).0, [0.0; 2]);
}
