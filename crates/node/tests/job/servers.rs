//! A server survives its coordinator, and ends on request.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use sumpter_coordinator::status;
use sumpter_membership::Serves;
use sumpter_node::{NodeError, serve, start_coordinator};
use sumpter_types::StatusReport;
use sumpter_wire::Token;

use super::harness::{LIMIT, TOKEN, config};

fn servers(address: &str) -> Result<Vec<u64>, sumpter_coordinator::JoinError> {
    let token = Token::new(TOKEN).expect("a token");
    let numbers = |report: StatusReport| report.servers.iter().map(|s| s.member).collect();
    status(address, &token, None, None).map(numbers)
}

/// Waits until the coordinator knows a server.
fn joined(address: &str) {
    let begun = Instant::now();
    while !servers(address).is_ok_and(|servers| !servers.is_empty()) {
        assert!(begun.elapsed() < LIMIT, "no server joined");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_joins_anew_when_its_coordinator_comes_back_and_leaves_on_a_signal() {
    let start = |address: &str| start_coordinator(address, &config(&[]), Serves::ManyJobs);
    let mut first = start("127.0.0.1:0").expect("a free port");
    let address = first.address().to_string();
    let own = [("coordinator", address.as_str()), ("lanes", "1"), ("start_timeout_s", "60")];
    let settings = config(&own);
    let (signal, signals) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || serve(&settings, &mut || signals.try_recv().is_ok()));
    joined(&address);
    first.stop();
    let second = start(&address).expect("the port of the first");
    joined(&address);
    signal.send(()).expect("the server runs");
    server.join().expect("no panic").expect("the server ended well");
    assert!(servers(&address).expect("a status").is_empty(), "it has left");
    drop(second);
}

#[test]
fn a_server_that_finds_no_coordinator_any_more_says_what_it_lost() {
    let mut coordinator =
        start_coordinator("127.0.0.1:0", &config(&[]), Serves::ManyJobs).expect("a free port");
    let address = coordinator.address().to_string();
    let own = [("coordinator", address.as_str()), ("lanes", "1"), ("start_timeout_s", "3")];
    let settings = config(&own);
    let server = std::thread::spawn(move || serve(&settings, &mut || false));
    joined(&address);
    coordinator.stop();
    let error = server.join().expect("no panic").expect_err("no coordinator is there");
    assert!(matches!(&error, NodeError::PeerLost(text) if text.contains(&address)), "{error}");
}
