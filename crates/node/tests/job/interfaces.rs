//! Members with several network interfaces: here, addresses of loopback.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sumpter_node::{NodeError, Worker};

use crate::harness::{Job, config, spec, submit, wait};

const SERVER: &str = "127.0.0.2,127.0.0.3";

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Sums a few tensors on three workers, which the harness checks.
fn sums(job: &Job, extra: &[(&str, &str)]) -> Vec<Vec<Vec<IpAddr>>> {
    job.run(3, extra, |worker| {
        for round in 0..4 {
            let values = (0..200_000).map(|i| (i % 100) as f32 + (worker.rank() + round) as f32);
            let (completion, tensor) = submit(worker, spec("t", &[200_000]), values.collect());
            assert_eq!(wait(&completion), Ok(()));
            let expected = |i: usize| (3 * (i % 100) + 3 + 3 * round as usize) as f32;
            assert!(tensor.values().iter().enumerate().all(|(i, v)| *v == expected(i)));
        }
        let servers = worker.view().servers.iter().flat_map(|server| &server.lanes);
        servers.map(|lane| lane.addresses.iter().map(|a| a.ip()).collect()).collect()
    })
}

#[test]
fn lanes_of_a_server_take_turns_at_its_interfaces_and_announce_all() {
    for local_link in ["tcp", "shm"] {
        let server = [("interfaces", SERVER), ("lanes", "3"), ("local_link", local_link)];
        let job = Job::start_with(1, &server);
        let workers = [("interfaces", "127.0.1.2,127.0.1.3"), ("local_link", local_link)];
        let (first, second) = (address("127.0.0.2"), address("127.0.0.3"));
        let expected = [[first, second], [second, first], [first, second]];
        for lanes in sums(&job, &workers) {
            assert_eq!(lanes, expected);
        }
        job.finish();
    }
}

#[test]
fn a_server_has_a_lane_for_each_interface_and_a_lane_may_have_several() {
    // Alone, the only lane belongs to both.
    for (lanes, own) in [("0", 1), ("1", 2)] {
        let job = Job::start_with(1, &[("interfaces", SERVER), ("lanes", lanes)]);
        let views = job.run(2, &[], |worker| worker.view().servers[0].lanes.clone());
        let mut at = BTreeMap::new();
        for lane in &views[0] {
            assert_eq!((lane.own, lane.addresses.len()), (own, 2));
            *at.entry(lane.address().ip()).or_insert(0) += 1;
        }
        assert_eq!(at.len(), if own == 1 { 2 } else { 1 });
        job.finish();
    }
}

#[test]
fn an_interface_that_cannot_be_used_is_an_error_before_the_job_starts() {
    for (interfaces, expected) in [
        ("lo,eth-none", "'eth-none' has no address, or does not exist; this machine has"),
        ("192.0.2.1", "'192.0.2.1' has no address, or does not exist"),
    ] {
        let own = [("coordinator", "127.0.0.1:9"), ("interfaces", interfaces)];
        match Worker::join(&config(&own), &mut || false) {
            Err(NodeError::Start(text)) => {
                assert!(text.contains("setting interfaces") && text.contains(expected), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
