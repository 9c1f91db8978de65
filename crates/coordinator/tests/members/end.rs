//! Ends of all kinds: a death, a departure, the coordinator's own.

use sumpter_coordinator::{drain, status};
use sumpter_types::Epoch;

use super::*;

#[test]
fn a_worker_that_dies_is_named_to_the_others() {
    let coordinator = coordinator(Serves::ManyJobs);
    let mut peers = started(&coordinator, 3);
    drop(peers.remove(1));
    for peer in &peers {
        let (rank, host) = (Rank(1), "host1".to_owned());
        let reason = "connection closed".to_owned();
        assert_eq!(peer.next(), MemberEvent::WorkerLost { rank, host, reason });
    }
}

#[test]
fn after_a_death_a_new_run_waits_for_the_old_one_to_end() {
    let coordinator = coordinator(Serves::ManyJobs);
    let mut peers = started(&coordinator, 2);
    drop(peers.remove(1));
    let survivor = peers.remove(0);
    assert!(matches!(survivor.next(), MemberEvent::WorkerLost { .. }));
    let address = coordinator.address();
    let next = std::thread::spawn(move || Peer::join(worker(address, 0, 1)));
    drop(survivor);
    next.join().unwrap().started();
}

#[test]
fn a_worker_lost_before_the_start_can_come_again() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let zero = Peer::join(worker(address, 0, 2));
    drop(zero);
    let one = Peer::join(worker(address, 1, 2));
    // The place is free as soon as the coordinator has seen the end of the first connection.
    let zero = loop {
        match Peer::try_join(worker(address, 0, 2)) {
            Ok(peer) => break peer,
            Err(error) => assert!(error.to_string().contains("is taken"), "{error}"),
        }
    };
    assert_eq!(zero.started(), one.started());
}

/// Noise, so that the plan with all answers travels in several pieces.
fn answer(rank: u64) -> Vec<u8> {
    let next = |state: &mut u64, _| {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((*state >> 56) as u8)
    };
    (0..700_000).scan(rank, next).collect()
}

#[test]
fn a_run_goes_on_without_a_server_that_dies_and_with_one_that_comes() {
    let coordinator = coordinator(Serves::ManyJobs);
    let helper = Peer::join(server(coordinator.address()));
    let workers = [0, 1].map(|rank| Peer::join(worker(coordinator.address(), rank, 2)));
    let job = helper.started().job;
    workers.iter().for_each(|worker| assert_eq!(worker.started().servers.len(), 1));
    let epoch = Epoch(2);
    drop(helper);
    let reason = "the server on helper was lost: connection closed".to_owned();
    for (rank, worker) in workers.iter().enumerate() {
        assert_eq!(worker.next(), MemberEvent::Suspend { epoch, reason: reason.clone() });
        worker.member.progress(epoch, answer(rank as u64));
    }
    let answers = vec![(Rank(0), answer(0).into()), (Rank(1), answer(1).into())];
    for worker in &workers {
        let MemberEvent::Resume { view, progress } = worker.next() else { panic!() };
        assert_eq!((view.job, view.epoch, view.servers, &progress), (job, epoch, vec![], &answers));
    }

    let other = Peer::join(server(coordinator.address()));
    for worker in &workers {
        let reason = "a server joined on helper".to_owned();
        assert_eq!(worker.next(), MemberEvent::Suspend { epoch: Epoch(3), reason });
        worker.member.progress(Epoch(3), Vec::new());
    }
    let plan = other.started();
    assert_eq!((plan.epoch, plan.servers[0].member), (Epoch(3), other.member.id()));
    for worker in &workers {
        let MemberEvent::Resume { view, .. } = worker.next() else { panic!() };
        assert_eq!(view, plan);
    }

    workers[1].member.suspect(other.member.id(), (job, Epoch(3)), "no route".to_owned());
    for worker in &workers {
        let reason = "rank 1 on host1 cannot reach the server on helper: no route".to_owned();
        assert_eq!(worker.next(), MemberEvent::Suspend { epoch: Epoch(4), reason });
        worker.member.progress(Epoch(4), Vec::new());
    }
    assert_eq!(other.next(), MemberEvent::JobEnded { job });
}

#[test]
fn a_server_that_is_drained_may_go_once_the_workers_have_gone_on() {
    let coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address().to_string();
    let idle = Peer::join(JoinOptions { host: "idle".to_owned(), ..server(coordinator.address()) });
    idle.member.drain();
    assert_eq!(idle.next(), MemberEvent::Drained);
    idle.leave();

    let helper = Peer::join(server(coordinator.address()));
    let zero = Peer::join(worker(coordinator.address(), 0, 1));
    let job = helper.started().job;
    zero.started();
    assert!(drain(&address, &token(), None, "elsewhere").unwrap().drained.is_empty());
    let report = drain(&address, &token(), None, "helper").unwrap();
    assert_eq!(report.drained[0].member, helper.member.id().0);
    let MemberEvent::Suspend { epoch, .. } = zero.next() else { panic!() };
    assert!(status(&address, &token(), None, None).unwrap().servers[0].draining);
    assert_eq!(helper.next(), MemberEvent::Draining);
    assert!(helper.events.try_recv().is_err(), "the workers have not gone on");
    zero.member.progress(epoch, Vec::new());
    assert!(matches!(zero.next(), MemberEvent::Resume { .. }));
    assert_eq!(helper.next(), MemberEvent::JobEnded { job });
    assert_eq!(helper.next(), MemberEvent::Drained);
    helper.leave();
    assert!(drain(&address, &token(), None, "1").unwrap().drained.is_empty(), "it is gone");
}

#[test]
fn the_end_of_the_coordinator_is_told_and_the_rank_that_held_it_is_named() {
    let mut coordinator = coordinator(Serves::ManyJobs);
    let address = coordinator.address();
    let peers = started(&coordinator, 2);
    coordinator.stop();
    let lost = |event| match event {
        MemberEvent::CoordinatorLost { message } => message,
        other => panic!("{other:?}"),
    };
    // All members of this test live in the coordinator's own process, so rank 0 holds it.
    let message = lost(peers[0].next());
    assert!(message.contains(&address.to_string()), "{message}");
    let event = peers[1].next();
    assert!(matches!(event, MemberEvent::WorkerLost { rank: Rank(0), .. }), "{event:?}");
    lost(peers[1].next());
    for peer in peers {
        assert!(peer.events.recv().is_err(), "nothing comes after the end");
        peer.member.leave();
    }
}

#[test]
fn the_end_of_a_coordinator_that_a_finished_rank_held_names_no_rank() {
    let mut coordinator = coordinator(Serves::ManyJobs);
    let mut peers = started(&coordinator, 2);
    let one = peers.remove(1);
    peers.remove(0).leave();
    assert_eq!(one.next(), MemberEvent::WorkerLeft { rank: Rank(0) });
    coordinator.stop();
    assert!(matches!(one.next(), MemberEvent::CoordinatorLost { .. }));
}

#[test]
fn leaving_twice_or_after_the_end_returns() {
    let mut coordinator = coordinator(Serves::ManyJobs);
    let peers = started(&coordinator, 1);
    peers[0].member.leave();
    peers[0].member.leave();
    coordinator.stop();
    coordinator.stop();
    peers[0].member.leave();
}

#[test]
fn a_failed_single_run_is_over_too() {
    let coordinator = coordinator(Serves::OneRun);
    let helper = Peer::join(server(coordinator.address()));
    let zero = Peer::join(worker(coordinator.address(), 0, 1));
    let job = helper.started().job;
    zero.started();
    drop(zero);
    assert_eq!(helper.next(), MemberEvent::JobEnded { job });
    let MemberEvent::Fatal { message, .. } = helper.next() else { panic!() };
    assert!(message.contains("rank 0 on host0 was lost"), "{message}");
    assert!(coordinator.wait_finished(PATIENCE));
}
