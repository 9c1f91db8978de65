//! Who is not let in, and how it reads.

use std::net::TcpListener;
use std::time::Instant;

use sumpter_coordinator::CoordinatorError;
use sumpter_membership::FatalKind;

use super::*;

/// A loopback address that no other test takes ports of, so that a port just freed stays free.
const APART: &str = "127.0.0.9:0";

#[test]
fn a_wrong_token_is_refused_without_being_shown() {
    let coordinator = coordinator(Serves::ManyJobs);
    let secret = "quite another secret";
    let token = Token::new(secret).unwrap();
    let error = refusal(JoinOptions { token, ..worker(coordinator.address(), 0, 1) });
    assert_eq!(error.kind(), FatalKind::Auth);
    let text = error.to_string();
    let expected = format!("token refused by the coordinator at {}", coordinator.address());
    assert!(text.contains(&expected) && text.contains("the tokens differ"), "{text}");
    assert!(!text.contains(secret) && !text.contains("the token of these tests"), "{text}");
}

#[test]
fn a_rank_that_is_taken_is_refused_with_both_hosts() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let _one = Peer::join(worker(address, 1, 4));
    let error = refusal(JoinOptions { host: "elsewhere".into(), ..worker(address, 1, 4) });
    assert_eq!(error.kind(), FatalKind::Start);
    let text = error.to_string();
    assert!(text.contains("host1") && text.contains("elsewhere"), "{text}");
}

#[test]
fn different_settings_are_an_error_for_all() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let zero = Peer::join(worker(address, 0, 2));
    let settings = BTreeMap::from([("chunk_bytes".to_owned(), "65536".to_owned())]);
    let error = refusal(JoinOptions { settings, ..worker(address, 1, 2) });
    assert_eq!(error.kind(), FatalKind::Mismatch);
    let MemberEvent::Fatal { kind, message } = zero.next() else { panic!() };
    assert_eq!(kind, FatalKind::Mismatch);
    assert!(message.contains("chunk_bytes") && error.to_string().contains(&message), "{message}");
}

#[test]
fn missing_ranks_are_named_to_those_who_wait() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    // A worker's time-out is how long it tries to join as well, and the longest of all counts for
    // the job: this one keeps the job waiting until the hasty ones are in, however long they take.
    let patient = Peer::join(worker(address, 3, 4));
    let start_timeout = Duration::from_millis(300);
    let hasty = |rank| join_at_last(&JoinOptions { start_timeout, ..worker(address, rank, 4) });
    let peers = [hasty(0), hasty(2)];
    drop(patient);
    for peer in &peers {
        let MemberEvent::Fatal { kind, message } = peer.next() else { panic!() };
        assert_eq!(kind, FatalKind::Start);
        let expected = format!(
            "ranks 1, 3 of 4 did not join within 0.3 s at {address}; present: 0 (host0), 2 (host2)"
        );
        assert_eq!(message, expected);
    }
}

/// Joins with a time-out that a busy machine may exceed.
fn join_at_last(options: &JoinOptions) -> Peer {
    let begun = Instant::now();
    loop {
        match Peer::try_join(options.clone()) {
            Ok(peer) => return peer,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
    }
}

#[test]
fn a_coordinator_that_is_not_there_is_waited_for_and_given_up() {
    let listener = TcpListener::bind(APART).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let start_timeout = Duration::from_millis(200);
    let error = refusal(JoinOptions { start_timeout, ..server(address) });
    assert_eq!(error.kind(), FatalKind::Start);
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("refused"), "{text}");
}

#[test]
fn a_member_may_come_before_its_coordinator() {
    let listener = TcpListener::bind(APART).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let early = std::thread::spawn(move || Peer::join(server(address)));
    let _coordinator = Coordinator::start(&address.to_string(), options(Serves::ManyJobs)).unwrap();
    early.join().unwrap();
}

#[test]
fn what_is_no_coordinator_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stranger = std::thread::spawn(move || drop(listener.accept()));
    let start_timeout = Duration::from_millis(300);
    let error = refusal(JoinOptions { start_timeout, ..server(address) });
    assert_eq!(error.kind(), FatalKind::Start, "{error}");
    stranger.join().unwrap();
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for coordinator in ["no spaces allowed:1", "", "node-without-port", "node:0"] {
        let options = worker(([127, 0, 0, 1], 1).into(), 0, 1);
        let error = refusal(JoinOptions { coordinator: coordinator.to_owned(), ..options });
        assert!(matches!(error, JoinError::Address { .. }), "{coordinator:?}: {error}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let first = coordinator(Serves::ManyJobs);
    let address = first.address().to_string();
    let error = Coordinator::start(&address, options(Serves::ManyJobs)).unwrap_err();
    assert!(matches!(error, CoordinatorError::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");

    let error = Coordinator::start("192.0.2.1:1", options(Serves::ManyJobs)).unwrap_err();
    assert!(matches!(error, CoordinatorError::Listen { .. }), "{error}");
    Coordinator::start("nonsense", options(Serves::ManyJobs)).unwrap_err();
}
