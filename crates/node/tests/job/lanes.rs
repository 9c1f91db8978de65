//! Jobs of many lanes: a worker connects to one only when it has something for it, and must be
//! allowed as many open files as there may be connections.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use sumpter_config::make_room_for_files;
use sumpter_coordinator::drain;
use sumpter_membership::ClusterView;
use sumpter_node::{NodeError, OpError, Worker};
use sumpter_transport::unix_listen;
use sumpter_types::Epoch;
use sumpter_wire::Token;

use crate::harness::{Job, TOKEN, config, spec, submit, wait};

const SERVERS: usize = 3;
const LANES: usize = 140;
/// Elements of three of the smallest partitions for each lane.
const LARGE: usize = 3 * SERVERS * LANES * (32 << 10) / 4;

/// Connections of workers to servers' lanes of a job, as the system sees them.
fn connections(view: &ClusterView) -> usize {
    let lanes = view.servers.iter().flat_map(|server| &server.lanes);
    let ports: BTreeSet<u16> = lanes.map(|lane| lane.address().port()).collect();
    let table = fs::read_to_string("/proc/self/net/tcp").expect("the system's table");
    let to_lane = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        let port = words.next().and_then(|to| to.rsplit(':').next());
        let port = port.and_then(|port| u16::from_str_radix(port, 16).ok());
        // Established.
        words.next() == Some("01") && port.is_some_and(|port| ports.contains(&port))
    };
    table.lines().skip(1).filter(to_lane).count()
}

/// A round in which every rank takes part, and which is done on none before all have begun it.
fn sum(worker: &Worker, name: &str, len: usize) {
    let values = vec![worker.rank() as f32 + 1.0; len];
    let (completion, tensor) = submit(worker, spec(name, &[len as u64]), values);
    assert_eq!(wait(&completion), Ok(()));
    assert!(tensor.values().iter().all(|value| *value == 3.0));
}

#[test]
fn many_lanes_are_connected_to_once_there_is_something_for_them_in_every_epoch() {
    // A lane takes a few, and so does each end of a connection.
    let files = (16 * SERVERS * LANES) as u64;
    make_room_for_files(files, "the lanes of this test").expect("open files");
    let job = Job::start_with(SERVERS, &[("lanes", &LANES.to_string())]);
    let address = job.address();
    job.run(2, &[("partition_bytes", "32768")], move |worker| {
        for epoch in [1, 2] {
            let view = worker.plan_from(Epoch(epoch)).expect("a plan");
            let lanes = view.servers.iter().map(|server| server.lanes.len()).sum::<usize>();
            assert_eq!(lanes, (SERVERS + 1 - epoch as usize) * LANES);
            for _ in 0..3 {
                sum(worker, "small", 1000);
            }
            let few = connections(&view);
            // No rank goes on before all have counted.
            sum(worker, "small", 1000);
            assert!(few <= 8, "{few} connections for one partition in epoch {epoch}");
            sum(worker, &format!("large {epoch}"), LARGE);
            let many = connections(&view);
            sum(worker, "small", 1000);
            assert!(many > 2 * lanes * 9 / 10, "{many} connections to {lanes} lanes");
            if epoch == 1 && worker.rank() == 0 {
                let token = Token::new(TOKEN).expect("a token");
                let who = view.servers[0].member.0.to_string();
                let report = drain(&address, &token, None, &who).expect("a coordinator");
                assert_eq!(report.drained.len(), 1);
            }
        }
    });
    job.finish();
}

/// Where the process with few open files finds the job's coordinator.
const JOB: &str = "TEST_COORDINATOR";
/// Open files of that process, and the lanes of a server that are more.
const FEW: &str = "200";
const MORE: &str = "300";

#[test]
fn a_rank_with_too_few_open_files_says_so_and_the_others_end() {
    let job = Job::start_with(1, &[("lanes", MORE)]);
    let tests = std::env::current_exe().expect("this program");
    let limited = format!("ulimit -n {FEW}; exec \"$@\"");
    let one = Command::new("sh")
        .args(["-c", &limited, "sh"])
        .arg(tests)
        .args(["--ignored", "--exact", "lanes::joins_with_few_files", "--nocapture"])
        .env(JOB, job.address())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let zero = Worker::join(&job.settings(0, 2, &[("machine", "a")]), &mut || false);
    let error = zero.map_or_else(
        |error| error.to_string(),
        |worker| {
            let (completion, _) = submit(&worker, spec("t", &[1000]), vec![1.0; 1000]);
            let error = wait(&completion).expect_err("one rank is missing");
            assert!(matches!(error, OpError::PeerLost(_)), "{error}");
            error.to_string()
        },
    );
    assert!(error.contains("rank 1"), "{error}");
    let said = one.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    for part in [
        "a worker's connections in a job of 2 workers and 1 servers take 304 open files",
        "the system allows it 200 at most",
        "`ulimit -n ",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
#[ignore = "has few open files: a_rank_with_too_few_open_files_says_so_and_the_others_end"]
fn joins_with_few_files() {
    let address = std::env::var(JOB).expect("it is started by another test");
    let own = [("coordinator", address.as_str()), ("machine", "b"), ("servers", "1")];
    let settings = config(&[&own[..], &[("rank", "1"), ("world_size", "2")]].concat());
    match Worker::join(&settings, &mut || false) {
        Err(NodeError::Start(text)) => println!("{text}"),
        other => panic!("{:?}", other.map(|_| "it joined")),
    }
}

#[test]
fn a_process_that_listens_in_place_of_a_lane_keeps_no_worker_from_it() {
    // An address of its own: none of the other tests takes the port meanwhile.
    let free = TcpListener::bind("127.0.0.8:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port");
    // Where the lane's neighbours look for it. It has something to say to each, or nothing.
    let squatter = unix_listen(address).expect("a free name");
    thread::spawn(move || {
        let mut held = Vec::new();
        loop {
            match squatter.accept() {
                Ok((mut stream, _)) if held.is_empty() => {
                    let _ = stream.write_all(&[0x55; 4096]);
                    held.push(stream);
                }
                Ok((stream, _)) => held.push(stream),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    let port = address.port().to_string();
    let place = [("interfaces", "127.0.0.8"), ("port", port.as_str())];
    let job = Job::start_with(1, &[&[("lanes", "1"), ("machine", "one")], &place[..]].concat());
    job.run_on(&["one", "one"], &[], |worker| {
        sum(worker, "first", 100_000);
        sum(worker, "second", 100_000);
        assert_eq!(worker.stats().counters["pauses"], 0.0, "the server is not suspected");
    });
    job.finish();
}
