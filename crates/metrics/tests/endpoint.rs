//! The endpoint as a scraper sees it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sumpter_metrics::{Endpoint, EndpointError, Process, of_process};
use sumpter_types::Stats;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn endpoint(rounds: Arc<AtomicU64>) -> Endpoint {
    let process = Process { job: Some("j".into()), rank: Some(3), ..Process::default() };
    let source = move || {
        let rounds = rounds.load(Ordering::Relaxed) as f64;
        let counters = [("rounds".to_owned(), rounds)].into();
        of_process(&process, &Stats { counters, ..Stats::default() })
    };
    Endpoint::start(ANY, source).expect("a free port")
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("an endpoint");
    write!(stream, "{request}\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn each_scrape_sees_what_is_counted_by_then() {
    let rounds = Arc::new(AtomicU64::new(7));
    let endpoint = endpoint(rounds.clone());
    let line = "sumpter_rounds_total{job_name=\"j\",role=\"worker\",host=\"\",rank=\"3\"}";
    let answer = ask(endpoint.address(), "GET /metrics HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(answer.contains(&format!("{line} 7.0\n")) && answer.ends_with("# EOF\n"), "{answer}");
    rounds.store(8, Ordering::Relaxed);
    assert!(ask(endpoint.address(), "GET /metrics HTTP/1.1").contains(&format!("{line} 8.0\n")));
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    let endpoint = endpoint(Arc::default());
    let answer = ask(endpoint.address(), "GET / HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("at /metrics\n"), "{answer}");
    let answer = ask(endpoint.address(), "POST /metrics HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD\r\n"));
    let answer = ask(endpoint.address(), "HEAD /metrics HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(ask(endpoint.address(), "nonsense").starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_silent_connection_does_not_block_others() {
    let endpoint = endpoint(Arc::default());
    let idle: Vec<_> = (0..8).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
    assert!(ask(endpoint.address(), "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 "));
    drop(idle);
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_named() {
    let taken = TcpListener::bind(ANY).unwrap();
    let address = taken.local_addr().unwrap();
    let error = Endpoint::start(address, Vec::new).unwrap_err();
    assert!(matches!(error, EndpointError::InUse { .. }));
    let expected = format!("metrics: {address} is in use; give another --metrics-port");
    assert_eq!(error.to_string(), expected);
    // TEST-NET-1: an address of no machine.
    let foreign = Endpoint::start("192.0.2.1:9464".parse().unwrap(), Vec::new).unwrap_err();
    assert!(matches!(foreign, EndpointError::Listen { .. }), "{foreign}");
}

#[test]
fn once_it_is_dropped_there_is_no_answer_and_the_port_is_free() {
    let endpoint = endpoint(Arc::default());
    let address = endpoint.address();
    drop(endpoint);
    assert!(TcpStream::connect(address).is_err());
    assert!(TcpListener::bind(address).is_ok());
}
