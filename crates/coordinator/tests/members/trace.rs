//! Requests for a trace: who answers, who may ask, and how clocks compare.

use sumpter_coordinator::traces;
use sumpter_observe::{align, monotonic_ns};

use super::*;

/// Answers the next request with its own words.
fn answer(peer: &Peer, words: &[&str]) {
    let MemberEvent::TraceAsked { request, .. } = peer.next() else { panic!("a request") };
    for word in words {
        peer.member.send_trace(request, word.as_bytes().to_vec(), false);
    }
    peer.member.send_trace(request, Vec::new(), true);
}

#[test]
fn a_request_gets_every_members_answer_and_how_its_clock_compares() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let helper = Peer::join(server(address));
    let wants_a_server = |rank| JoinOptions { expected_servers: 1, ..worker(address, rank, 2) };
    let [zero, one] = [0, 1].map(|rank| Peer::join(wants_a_server(rank)));
    let view = helper.started();
    assert_eq!((zero.started(), one.started()), (view.clone(), view.clone()));
    one.member.declare(spec("weight", &[2]));
    assert!(matches!((zero.next(), one.next()), (MemberEvent::Tensors { .. }, _)));
    let from = monotonic_ns();
    let asking = std::thread::spawn(move || {
        traces(&address.to_string(), &token(), None, Some("default")).unwrap()
    });
    for (peer, words) in [(&helper, &[][..]), (&one, &["a", "b"]), (&zero, &["c"])] {
        answer(peer, words);
    }
    let found = asking.join().unwrap();
    assert_eq!((found.job.as_str(), found.run), ("default", view.job.0));
    assert_eq!((found.tensors, found.missing), (vec!["weight".to_owned()], Vec::new()));
    let mut said: Vec<_> = found.members.iter().map(|m| (m.rank, m.pieces.concat())).collect();
    said.sort();
    assert_eq!(said, [(None, vec![]), (Some(0), b"c".to_vec()), (Some(1), b"ab".to_vec())]);
    let to = monotonic_ns();
    for member in found.members {
        // All have one clock here, so that what is found is the error itself.
        let clock = align(&member.samples, (from, to)).unwrap();
        for at in [from, from.midpoint(to), to] {
            let error = clock.map(at) - at as i64;
            assert!(error.abs() as f64 <= clock.error_ns, "{error} ns of {}", clock.error_ns);
        }
    }
}

#[test]
fn a_run_that_is_not_there_is_refused_in_words() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let ask = |job| traces(&address.to_string(), &token(), None, job).unwrap_err().to_string();
    assert!(ask(None).contains("no job is running"));
    assert!(ask(Some("other")).contains("no job called 'other' is running"));
    let of = |job: &str| Peer::join(JoinOptions { job: job.to_owned(), ..worker(address, 0, 1) });
    let peers = ["red", "blue"].map(of);
    peers.iter().for_each(|peer| drop(peer.started()));
    assert!(ask(None).contains("several jobs are running: blue, red; name one"));
}
