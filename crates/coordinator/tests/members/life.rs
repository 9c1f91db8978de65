//! A run in which all goes well: joining, declaring, numbers, leaving.

use std::collections::HashSet;

use sumpter_coordinator::status;
use sumpter_types::{PendingOp, Stats, TensorId};

use super::*;

#[test]
fn members_meet_agree_on_tensors_and_leave() {
    let mut coordinator = coordinator(Serves::OneRun);
    let address = coordinator.address();
    let helper = Peer::join(server(address));
    let wants_a_server = |rank| JoinOptions { expected_servers: 1, ..worker(address, rank, 2) };
    let zero = Peer::join(wants_a_server(0));
    let one = Peer::join(wants_a_server(1));
    let view = helper.started();
    assert_eq!(zero.started(), view);
    assert_eq!(one.started(), view);
    assert_eq!(view.servers[0].member, helper.member.id());
    assert_eq!(view.servers[0].lanes, [lane(9000), lane(9001)]);
    assert_eq!(view.workers[1].lanes, [lane(7001)]);
    assert_eq!(view.workers[1].bandwidth_gbps, Some(25.0));
    // All members of this test live in the coordinator's own process.
    assert_eq!(view.coordinator_rank, Some(Rank(0)));

    one.member.declare(spec("a", &[2, 3]));
    let told = MemberEvent::Tensors { first: TensorId(0), specs: vec![spec("a", &[2, 3])] };
    assert_eq!((zero.next(), one.next()), (told.clone(), told));

    zero.leave();
    assert_eq!(one.next(), MemberEvent::WorkerLeft { rank: Rank(0) });
    one.leave();
    assert_eq!(helper.next(), MemberEvent::JobEnded { job: view.job });
    assert!(coordinator.wait_finished(PATIENCE));
    coordinator.stop();
    assert_eq!(helper.next(), MemberEvent::Finished);
    assert!(helper.events.recv().is_err(), "the coordinator's end is no news after that");
}

#[test]
fn many_tensors_declared_by_all_at_once_come_to_all_in_one_order() {
    let coordinator = coordinator(Serves::ManyJobs);
    let peers = started(&coordinator, 3);
    let n = 3000;
    for (rank, peer) in peers.iter().enumerate() {
        for i in 0..n {
            // Every rank in another order.
            let i = (i + rank * n / 3) % n;
            peer.member.declare(spec(&format!("t{i}"), &[i as u64]));
        }
    }
    let (mut tables, mut lists) = (Vec::new(), 0);
    for peer in &peers {
        let mut table = Vec::new();
        while table.len() < n {
            let MemberEvent::Tensors { first, specs } = peer.next() else { panic!("an error") };
            assert_eq!(first.0 as usize, table.len());
            table.extend(specs.into_iter().map(|spec| spec.name));
            lists += 1;
        }
        tables.push(table);
    }
    assert!(tables.iter().all(|table| *table == tables[0]));
    let names: HashSet<&String> = tables[0].iter().collect();
    assert_eq!(names.len(), n);
    assert!(lists < n, "{lists} messages for {} entries", peers.len() * n);
}

#[test]
fn a_mismatch_in_a_long_list_is_named_on_all_ranks_and_the_rest_is_in_the_table() {
    let coordinator = coordinator(Serves::ManyJobs);
    let peers = started(&coordinator, 3);
    let n = 100;
    for (rank, peer) in peers.iter().enumerate() {
        for i in 0..n {
            let other = u64::from(rank == 1 && i == 50);
            peer.member.declare(spec(&format!("t{i}"), &[1 + other]));
        }
    }
    for peer in &peers {
        let (mut names, mut error) = (HashSet::new(), None);
        while names.len() < n || error.is_none() {
            match peer.next() {
                MemberEvent::Tensors { specs, .. } => {
                    names.extend(specs.into_iter().map(|spec| spec.name));
                }
                MemberEvent::TensorError { name, message } => {
                    assert_eq!(name, "t50");
                    error = Some(message);
                }
                other => panic!("{other:?}"),
            }
        }
        let error = error.unwrap();
        assert!(error.contains("rank 1 declared shape"), "{error}");
        assert!(error.contains("declared shape [1]") && error.contains("[2]"), "{error}");
    }
}

#[test]
fn ranks_that_disagree_about_a_tensor_all_hear_of_it() {
    let coordinator = coordinator(Serves::ManyJobs);
    let peers = started(&coordinator, 3);
    peers[0].member.declare(spec("grad/fc.weight", &[10, 3]));
    peers.iter().for_each(|peer| assert!(matches!(peer.next(), MemberEvent::Tensors { .. })));
    peers[2].member.declare(spec("grad/fc.weight", &[12, 3]));
    for peer in &peers {
        let MemberEvent::TensorError { name, message } = peer.next() else { panic!() };
        assert_eq!(name, "grad/fc.weight");
        assert!(message.contains("rank 0 declared shape [10, 3] float32"), "{message}");
        assert!(message.contains("rank 2 declared shape [12, 3] float32"), "{message}");
    }
}

#[test]
fn ranks_that_wait_for_different_collectives_all_hear_of_it() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    // Heartbeats, which carry the reports, come four times in this.
    let brisk =
        |rank| JoinOptions { peer_timeout: Duration::from_secs(8), ..worker(address, rank, 2) };
    let peers = [Peer::join(brisk(0)), Peer::join(brisk(1))];
    for (peer, shape) in peers.iter().zip([10, 12]) {
        peer.started();
        let op = PendingOp {
            name: format!("t{shape}"),
            tag: format!("world#12|all_reduce(float32 [{shape}])"),
            since_ms: 1200,
            ..PendingOp::default()
        };
        peer.member.report(Stats { pending: vec![op], ..Stats::default() });
    }
    for peer in &peers {
        for expected in ["t10", "t12"] {
            let MemberEvent::TensorError { name, message } = peer.next() else { panic!() };
            assert_eq!(name, expected);
            assert!(message.contains("rank 1 called all_reduce(float32 [12])"), "{message}");
        }
    }
}

#[test]
fn the_status_needs_the_token() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address().to_string();
    let _helper = Peer::join(server(coordinator.address()));
    let zero = Peer::join(worker(coordinator.address(), 0, 2));
    let report = status(&address, &token(), None, None).unwrap();
    assert_eq!(report.servers[0].host, "helper");
    let job = &report.jobs[0];
    assert_eq!((job.name.as_str(), job.state.as_str()), ("default", "waiting"));
    assert_eq!(job.missing, ["rank 1"]);
    assert_eq!(job.workers[0].member, zero.member.id().0);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["jobs"][0]["machines"]["cpu"], 1);

    assert!(status(&address, &token(), None, Some("absent")).unwrap().jobs.is_empty());
    let other = Token::new("another token entirely").unwrap();
    let error = status(&address, &other, None, None).unwrap_err();
    assert!(matches!(error, JoinError::TokenRefused { .. }), "{error}");
}

#[test]
fn a_job_name_can_be_used_again_at_once() {
    let coordinator = coordinator(Serves::ManyJobs);
    let mut runs = HashSet::new();
    for _ in 0..3 {
        let address = coordinator.address();
        let peers = [Peer::join(worker(address, 0, 2)), Peer::join(worker(address, 1, 2))];
        runs.insert(peers.each_ref().map(|peer| peer.started().job));
        let [zero, one] = peers;
        zero.leave();
        assert_eq!(one.next(), MemberEvent::WorkerLeft { rank: Rank(0) });
        one.leave();
    }
    assert_eq!(runs.len(), 3, "each run has its own number");
}
