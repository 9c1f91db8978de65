//! What containers decide by: whether `sumpter-server health` ends with 0.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};

use common::{PROGRAM, started};

fn health(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("health").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A port that was free a moment ago.
fn port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

#[test]
fn a_coordinator_is_healthy_until_it_ends() {
    let port = port();
    let line = ["coordinator", "--listen", "127.0.0.1:0", "--metrics-port", &port];
    let mut coordinator = started(&line, "coordinating at");
    let answer = health(&["--metrics-port", &port]);
    assert_eq!(answer.status.code(), Some(0), "{}", said(&answer));
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    let answer = health(&["--metrics-port", &port]);
    assert_eq!(answer.status.code(), Some(1));
    assert!(said(&answer).contains("does not answer"), "{}", said(&answer));
}

#[test]
fn a_program_that_is_no_metrics_endpoint_is_not_taken_for_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 512]);
        stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap();
    });
    let answer = health(&["--metrics-port", &port]);
    assert_eq!(answer.status.code(), Some(1));
    assert!(said(&answer).contains("another program has this port"), "{}", said(&answer));
}

#[test]
fn without_a_port_there_is_nothing_to_ask() {
    let mut program = Command::new(PROGRAM);
    let answer = program.arg("health").env_remove("SUMPTER_METRICS_PORT").output().unwrap();
    assert_eq!(answer.status.code(), Some(2));
    assert!(said(&answer).contains("--metrics-port"), "{}", said(&answer));
}
