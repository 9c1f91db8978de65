//! A run from its start to its end: deaths, departures, silence.

use sumpter_types::{Late, Rack};

use super::*;
use crate::rejoin::Rejoin;

fn lost(rank: u32, reason: &str) -> MemberEvent {
    let (host, reason) = (format!("host{rank}"), reason.to_owned());
    MemberEvent::WorkerLost { rank: Rank(rank), host, reason }
}

#[test]
fn a_worker_that_dies_is_named_to_all_others_at_once() {
    let mut world = World::new();
    let workers = world.started(3);
    world.close(workers[1]);
    assert_eq!(world.told_one(workers[0]), lost(1, "connection closed"));
    assert_eq!(world.told_one(workers[2]), lost(1, "connection closed"));
    world.close(workers[0]);
    assert_eq!(world.told(workers[2]), [], "only the first death is the cause");
}

#[test]
fn a_silent_worker_is_given_up_and_told_so_should_it_come_back() {
    let mut world = World::new();
    let workers = world.started(2);
    world.alive.retain(|m| *m != workers[1]);
    world.pass(Duration::from_secs(4));
    assert_eq!(world.told(workers[0]), []);
    world.pass(Duration::from_millis(250));
    assert_eq!(world.told_one(workers[0]), lost(1, "no heartbeat for 4.2 s"));
    let told = world.told.remove(&workers[1]).unwrap();
    let fatal = |e: &Event| {
        matches!(e, Event::Tell(MemberEvent::Fatal { kind: FatalKind::PeerLost, message })
            if message.contains("no heartbeat for 4.2 s"))
    };
    assert!(fatal(&told[0]) && told[1] == Event::Close && told.len() == 2, "{told:?}");
    world.say(workers[1], Message::Heartbeat(None));
    assert_eq!(world.told(workers[1]), [], "it is no member any more");
}

#[test]
fn a_worker_whose_heartbeats_wait_behind_a_trace_is_alive() {
    let mut world = World::new();
    let workers = world.started(2);
    world.alive.retain(|m| *m != workers[1]);
    for _ in 0..5 {
        world.pass(Duration::from_secs(3));
        world.step(Input::Alive(workers[1]));
    }
    assert_eq!(world.told(workers[0]), []);
    world.pass(Duration::from_millis(4250));
    assert_eq!(world.told_one(workers[0]), lost(1, "no heartbeat for 4.2 s"));
}

#[test]
fn workers_that_have_not_joined_yet_are_expected() {
    let mut world = World::new();
    assert_eq!(world.registry.expected_beside("job"), 0);
    world.started(2);
    world.join(server("cpu"));
    let first = world.join(Join { job: "other".to_owned(), ..worker(0, 5) });
    assert_eq!(world.registry.expected_beside("third"), 2 + 5 + 1);
    assert_eq!(world.registry.expected_beside("other"), 2 + 1);
    world.close(first);
    assert_eq!(world.registry.expected_beside("third"), 2 + 1);
}

#[test]
fn a_member_may_ask_for_less_patience() {
    let mut world = World::new();
    let quick = Join { peer_timeout: Duration::from_secs(1), ..worker(1, 2) };
    let zero = world.join(worker(0, 2));
    let one = world.join(quick);
    world.view(zero);
    world.alive.retain(|m| *m != one);
    world.pass(Duration::from_millis(1250));
    assert_eq!(world.told_one(zero), lost(1, "no heartbeat for 1.2 s"));
}

#[test]
fn after_a_standstill_of_the_coordinator_no_member_is_given_up_for_it() {
    let mut world = World::new();
    let workers = world.started(2);
    world.pass(Duration::from_secs(1));
    world.now += Duration::from_secs(60);
    world.step(Input::Tick);
    assert_eq!(world.told(workers[0]), []);
    world.alive.clear();
    world.pass(Duration::from_secs(5));
    assert!(!world.told.is_empty(), "silence after it counts");
}

#[test]
fn a_worker_that_leaves_is_announced_and_the_last_one_ends_the_run() {
    let mut world = World::new();
    let helper = world.join(server("a"));
    let zero = world.join(worker(0, 2));
    let one = world.join(worker(1, 2));
    let job = world.view(helper).job;
    world.say(helper, Message::JobReady(job, Epoch(1)));
    world.view(zero);
    world.view(one);
    world.leave(zero);
    assert_eq!(world.told_one(one), MemberEvent::WorkerLeft { rank: Rank(0) });
    assert_eq!(world.told(helper), []);
    world.leave(one);
    assert_eq!(world.told_one(helper), MemberEvent::JobEnded { job });
    assert!(!world.registry.finished() && !world.registry.running());
}

#[test]
fn a_death_after_a_departure_is_still_a_death() {
    let mut world = World::new();
    let workers = world.started(3);
    world.leave(workers[0]);
    world.close(workers[1]);
    let left = MemberEvent::WorkerLeft { rank: Rank(0) };
    assert_eq!(world.told(workers[2]), [left, lost(1, "connection closed")]);
}

#[test]
fn a_failed_run_is_over_for_the_servers_when_its_last_worker_is_gone() {
    let mut world = World::new();
    let helper = world.join(server("a"));
    let zero = world.join(worker(0, 2));
    let one = world.join(worker(1, 2));
    let job = world.view(helper).job;
    world.say(helper, Message::JobReady(job, Epoch(1)));
    world.close(one);
    assert_eq!(world.told(helper), []);
    world.say(zero, Message::Declare(vec![spec("t", &[1])]));
    assert_eq!(world.told(zero).len(), 2, "the start and the loss; declarations count no more");
    world.close(zero);
    assert_eq!(world.told_one(helper), MemberEvent::JobEnded { job });
}

#[test]
fn a_coordinator_for_one_run_tells_the_servers_when_it_is_over() {
    let mut world = World::with(Serves::OneRun);
    let helper = world.join(server("a"));
    let zero = world.join(worker(0, 1));
    let job = world.view(helper).job;
    world.say(helper, Message::JobReady(job, Epoch(1)));
    world.view(zero);
    world.leave(zero);
    assert_eq!(world.told(helper), [MemberEvent::JobEnded { job }, MemberEvent::Finished]);
    assert!(world.registry.finished());
    let refusal = world.refused(worker(0, 1));
    assert!(refusal.retry, "a new run's coordinator may be about to listen here");
}

#[test]
fn a_coordinator_for_one_job_serves_it_again_and_tells_the_servers_when_it_stops() {
    let mut world = World::with(Serves::OneJob);
    let helper = world.join(server("a"));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (zero, one) = (world.join(worker(0, 2)), world.join(worker(1, 2)));
        let job = world.view(helper).job;
        world.say(helper, Message::JobReady(job, Epoch(1)));
        assert_eq!((world.view(zero).job, world.view(one).job), (job, job));
        assert!(!seen.contains(&job), "every run has a number of its own");
        seen.push(job);
        world.leave(zero);
        let early = world.refused(worker(0, 2));
        assert!(early.retry, "the run is still ending: {}", early.message);
        assert_eq!(world.told_one(one), MemberEvent::WorkerLeft { rank: Rank(0) });
        world.leave(one);
        assert_eq!(world.told(helper), [MemberEvent::JobEnded { job }]);
    }
    assert!(!world.refused(worker_of("other", 0, 1)).retry);
    world.step(Input::Stop);
    assert_eq!(world.told(helper), [MemberEvent::Finished]);
}

#[test]
fn workers_that_are_out_of_data_hear_of_rounds_until_all_are() {
    let mut world = World::new();
    let workers = world.started(3);
    let began = |round| Message::Began { tensor: TensorId(4), round };
    // No rank is out of data: no rank is notified.
    world.say(workers[1], began(0));
    assert!(workers.iter().all(|w| world.told(*w).is_empty()));
    for (order, late) in [[0, 2, 1], [1, 0, 2]].iter().zip([Rank(1), Rank(2)]) {
        let [first, second, last] = order.map(|rank| workers[rank]);
        let rank = Rank(order[0] as u32);
        world.say(first, Message::OutOfData);
        world.say(first, Message::OutOfData);
        for worker in &workers {
            assert_eq!(world.told(*worker), [MemberEvent::OutOfData { rank }]);
        }
        world.say(last, began(1));
        assert_eq!(world.told(first), [MemberEvent::Began { tensor: TensorId(4), round: 1 }]);
        assert!(world.told(second).is_empty() && world.told(last).is_empty());
        world.say(second, Message::OutOfData);
        world.say(last, Message::OutOfData);
        for worker in &workers {
            assert_eq!(world.told(*worker).last(), Some(&MemberEvent::AllOutOfData { last: late }));
        }
    }
}

#[test]
fn a_refused_tensor_is_an_error_for_all_and_stays_refused() {
    let mut world = World::new();
    let workers = world.started(2);
    let (name, message) = ("t".to_owned(), "rank 0 has nothing".to_owned());
    world.say(workers[0], Message::Refuse { name: name.clone(), message: message.clone() });
    let error = MemberEvent::TensorError { name, message };
    assert_eq!(world.told_one(workers[0]), error);
    assert_eq!(world.told_one(workers[1]), error);
    world.say(workers[1], Message::Declare(vec![spec("t", &[1])]));
    assert_eq!(world.told_one(workers[1]), error);
}

#[test]
fn a_failed_single_run_is_an_error_for_the_servers() {
    let mut world = World::with(Serves::OneRun);
    let helper = world.join(server("a"));
    let zero = world.join(worker(0, 1));
    let job = world.view(helper).job;
    world.say(helper, Message::JobReady(job, Epoch(1)));
    world.close(zero);
    let message = "rank 0 on host0 was lost: connection closed".to_owned();
    let fatal = MemberEvent::Fatal { kind: FatalKind::PeerLost, message };
    assert_eq!(world.told(helper), [MemberEvent::JobEnded { job }, fatal]);
}

#[test]
fn a_member_that_breaks_the_protocol_is_dismissed_and_lost_to_the_others() {
    let mut world = World::new();
    let workers = world.started(2);
    world.step(Input::Violation(workers[1], "a tensor of the unknown kind 9".to_owned()));
    assert_eq!(world.told_one(workers[0]), lost(1, "a tensor of the unknown kind 9"));
    let told = world.told.remove(&workers[1]).unwrap();
    assert!(matches!(
        &told[..],
        [Event::Tell(MemberEvent::Fatal { kind: FatalKind::Protocol, .. }), Event::Close]
    ));
}

#[test]
fn the_status_tells_jobs_members_machines_and_numbers() {
    let mut world = World::new();
    world.join(server("a"));
    world.join(Join { machine: "machine-0".into(), ..server("b") });
    let rack = Some(Rack { name: "a".into(), trunk_gbps: Some(25.0) });
    let zero = world.join(Join { expected_servers: 3, rack: rack.clone(), ..worker(0, 3) });
    world.join(Join { machine: "machine-0".into(), ..worker(1, 3) });
    world.join(worker_of("other", 0, 1));
    let counters = BTreeMap::from([("samples".to_owned(), 64.0)]);
    let stats = Stats { counters, ..Stats::default() };
    world.say(zero, Message::Heartbeat(Some(stats)));
    world.now += Duration::from_secs(2);

    let report = world.registry.status(world.now, None);
    assert_eq!((report.jobs.len(), report.servers.len()), (2, 2));
    let report = world.registry.status(world.now, Some("default"));
    let job = &report.jobs[0];
    assert_eq!((job.state.as_str(), job.world_size, job.seconds), ("waiting", 3, 2.0));
    assert_eq!(job.missing, ["rank 2", "1 of 3 servers"]);
    let machines = job.machines;
    assert_eq!((machines.gpu, machines.cpu), (1, 1));
    assert_eq!(job.workers[0].stats.counters["samples"], 64.0);
    let racks = job.workers.iter().map(|worker| worker.rack.clone());
    assert_eq!(racks.collect::<Vec<_>>(), [rack, None]);
    assert_eq!(world.registry.status(world.now, Some("absent")).jobs, []);
}

#[test]
fn the_status_still_tells_the_last_numbers_of_those_who_left() {
    let mut world = World::new();
    let server = world.join(server("s"));
    let workers = [0, 1].map(|rank| world.join(worker(rank, 2)));
    let job = world.view(server).job;
    world.say(server, Message::JobReady(job, Epoch(1)));
    let stats = |value| {
        let counters = [("rounds".to_owned(), value)].into();
        Some(Stats { counters, ..Stats::default() })
    };
    world.say(workers[0], Message::Heartbeat(stats(7.0)));
    world.say(workers[1], Message::Heartbeat(stats(8.0)));
    let rounds = |world: &World| -> Vec<f64> {
        let report = world.registry.status(world.now, None);
        let job = &report.jobs[0];
        let counted = |w: &sumpter_types::MemberStatus| w.stats.counters.get("rounds").copied();
        job.workers.iter().map(|w| counted(w).unwrap_or(0.0)).collect()
    };
    workers.iter().for_each(|id| drop(world.told.remove(id)));
    world.leave(workers[1]);
    assert_eq!(rounds(&world), [7.0, 8.0]);
    world.told.remove(&workers[0]);
    world.leave(workers[0]);
    world.told.remove(&server);
    world.leave(server);
    assert_eq!(rounds(&world), [7.0, 8.0]);
    let report = world.registry.status(world.now, None);
    assert_eq!((report.jobs[0].state.as_str(), report.servers.len()), ("ended", 1));
    assert!(report.jobs[0].over && report.servers[0].gone);
    assert!(report.jobs[0].workers.iter().all(|worker| worker.gone));
    assert_eq!(happened(&world), [("jobs_ended", 1)]);
    // Another run of the name begins a new page.
    world.join(worker(0, 2));
    assert_eq!(rounds(&world), [0.0]);
    assert_eq!(world.registry.status(world.now, None).jobs.len(), 1);
}

#[test]
fn what_a_server_saw_of_several_jobs_is_put_down_to_each_and_stays_when_it_is_gone() {
    let mut world = World::new();
    let server_id = world.join(server("s"));
    let mut start = |name: &str| {
        let worker = world.join(worker_of(name, 0, 1));
        let run = world.view(server_id).job;
        world.say(server_id, Message::JobReady(run, Epoch(1)));
        (worker, run)
    };
    let ((_, other), (own_worker, own)) = (start("other"), start("own"));
    let runs = [other, own];
    let report = |world: &mut World, server, counts: [u64; 2]| {
        let late = runs.into_iter().zip(counts);
        let late = late.map(|(run, count)| Late { run, rank: Rank(0), count, seconds: 0.5 });
        let stats = Stats { late: late.collect(), ..Stats::default() };
        world.say(server, Message::Heartbeat(Some(stats)));
    };
    let counts = |world: &World| {
        ["other", "own"].map(|name| {
            let late = world.registry.status(world.now, Some(name)).jobs.remove(0).late;
            let [late] = &late[..] else { panic!("{name}: {late:?}") };
            late.count
        })
    };
    report(&mut world, server_id, [3, 7]);
    assert_eq!(counts(&world), [3, 7]);
    world.close(server_id);
    assert_eq!(counts(&world), [3, 7]);
    // The same process, whose counts go on.
    let rejoin = Rejoin { member: server_id, run: None, served: BTreeMap::new() };
    let back = world.join(Join { rejoin: Some(Box::new(rejoin)), ..server("s") });
    report(&mut world, back, [4, 7]);
    assert_eq!(counts(&world), [4, 7]);
    // Another one.
    let second = world.join(server("t"));
    report(&mut world, second, [1, 1]);
    assert_eq!(counts(&world), [5, 8]);
    world.told.remove(&own_worker);
    world.leave(own_worker);
    assert_eq!(counts(&world), [5, 8]);
}

/// What was counted at least once.
fn happened(world: &World) -> Vec<(&'static str, u64)> {
    let events = world.registry.status(world.now, None).events;
    let names = ["jobs_ended", "jobs_failed", "plan_changes", "refused", "servers_lost"];
    let names = names.into_iter().chain(["workers_lost"]);
    names.map(|name| (name, events[name])).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn the_status_counts_what_a_person_may_want_to_be_woken_for() {
    let mut world = World::new();
    let server = world.join(server("s"));
    let workers = [0, 1].map(|rank| world.join(worker(rank, 2)));
    let view = world.view(server);
    world.say(server, Message::JobReady(view.job, Epoch(1)));
    assert_eq!(happened(&world), []);
    let live = world.registry.status(world.now, None);
    assert!(!live.jobs[0].over && !live.servers[0].gone && !live.jobs[0].workers[0].gone);
    world.close(server);
    assert_eq!(happened(&world), [("plan_changes", 1), ("servers_lost", 1)]);
    world.refused(worker(1, 3));
    world.registry.refused();
    for worker in workers {
        world.close(worker);
    }
    let all = [
        ("jobs_failed", 1),
        ("plan_changes", 1),
        ("refused", 2),
        ("servers_lost", 1),
        ("workers_lost", 2),
    ];
    assert_eq!(happened(&world), all);
}
