//! Sessions over TLS: who has no certificate of the cluster gets no answer.
//!
//! The certificates are made by `tests/certificates/make`, for 127.0.0.1 and a hundred years.

use sumpter_coordinator::{CoordinatorError, Tls, status};

use super::*;

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../certificates/", $name, ".pem")).to_vec()
    };
}

fn ours() -> Tls {
    Tls { cert: pem!("cert"), key: pem!("key"), ca: pem!("ca") }
}

/// One whose certificate another authority has signed, though it trusts ours.
fn stranger() -> Tls {
    Tls { cert: pem!("other-cert"), key: pem!("other-key"), ca: pem!("ca") }
}

fn encrypted() -> Coordinator {
    let options = CoordinatorOptions { tls: Some(ours()), ..options(Serves::ManyJobs) };
    Coordinator::start("127.0.0.1:0", options).unwrap()
}

#[test]
fn members_with_certificates_meet() {
    let coordinator = encrypted();
    let address = coordinator.address();
    let peers = [0, 1]
        .map(|rank| Peer::join(JoinOptions { tls: Some(ours()), ..worker(address, rank, 2) }));
    for peer in &peers {
        assert_eq!(peer.started().workers.len(), 2);
    }
    let report = status(&address.to_string(), &token(), Some(&ours()), None).unwrap();
    assert_eq!(report.jobs.len(), 1);
    // The token counts as ever.
    let token = Token::new("a wrong token, long enough").unwrap();
    let error = refusal(JoinOptions { token, tls: Some(ours()), ..worker(address, 0, 2) });
    assert!(matches!(error, JoinError::TokenRefused { .. }), "{error}");
}

#[test]
fn without_a_certificate_of_the_cluster_there_is_no_session() {
    let coordinator = encrypted();
    let start_timeout = Duration::from_millis(500);
    for tls in [None, Some(stranger())] {
        let error =
            refusal(JoinOptions { tls, start_timeout, ..worker(coordinator.address(), 0, 1) });
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
    }
}

#[test]
fn a_coordinator_without_a_certificate_of_the_cluster_is_not_trusted() {
    let theirs = Tls { ca: pem!("other-ca"), ..stranger() };
    let options = CoordinatorOptions { tls: Some(theirs), ..options(Serves::ManyJobs) };
    let coordinator = Coordinator::start("127.0.0.1:0", options).unwrap();
    let start_timeout = Duration::from_millis(500);
    let tls = Some(ours());
    let error = refusal(JoinOptions { tls, start_timeout, ..worker(coordinator.address(), 0, 1) });
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[test]
fn a_key_that_is_none_is_named_at_the_start() {
    let tls = Tls { key: b"no key".to_vec(), ..ours() };
    let bad = CoordinatorOptions { tls: Some(tls.clone()), ..options(Serves::ManyJobs) };
    let error = Coordinator::start("127.0.0.1:0", bad).unwrap_err();
    assert!(matches!(error, CoordinatorError::Tls { .. }), "{error}");
    let coordinator = encrypted();
    let error = refusal(JoinOptions { tls: Some(tls), ..worker(coordinator.address(), 0, 1) });
    assert!(matches!(error, JoinError::Tls { .. }), "{error}");
}
