//! From the first worker to the start of the run, or to giving up.

use super::*;

#[test]
fn a_job_starts_when_its_last_rank_joins_and_all_see_the_same_view() {
    let mut world = World::new();
    let one = world.join(worker(1, 2));
    assert_eq!(world.told(one), []);
    let zero = world.join(worker(0, 2));
    let view = world.view(zero);
    assert_eq!(world.view(one), view);
    let hosts: Vec<&str> = view.workers.iter().map(|w| w.host.as_str()).collect();
    assert_eq!(hosts, ["host0", "host1"]);
    assert_eq!((view.job, view.epoch.0, view.name.as_str()), (JobId(1001), 1, "default"));
    assert_eq!(view.coordinator_rank, None);
}

#[test]
fn a_job_waits_for_the_servers_it_expects_and_starts_when_they_are_ready() {
    let mut world = World::new();
    let first = world.join(server("b"));
    let zero = world.join(Join { expected_servers: 1, ..worker(0, 2) });
    let one = world.join(Join { expected_servers: 2, ..worker(1, 2) });
    assert_eq!(world.told(zero), []);
    let second = world.join(server("a"));
    let view = world.view(first);
    assert_eq!(world.view(second), view);
    let servers: Vec<MemberId> = view.servers.iter().map(|s| s.member).collect();
    assert_eq!(servers, [second, first], "in the order of hosts");

    world.say(first, Message::JobReady(view.job, Epoch(1)));
    world.say(first, Message::JobReady(view.job, Epoch(1)));
    world.say(second, Message::JobReady(JobId(5), Epoch(1)));
    assert_eq!(world.told(zero), [], "one server is not ready");
    world.say(second, Message::JobReady(view.job, Epoch(1)));
    assert_eq!(world.view(zero), view);
    assert_eq!(world.view(one), view);
}

#[test]
fn more_servers_than_expected_take_part_too_and_a_later_one_has_no_part_in_the_start() {
    let mut world = World::new();
    let early = world.join(server("a"));
    let zero = world.join(worker(0, 1));
    let job = world.view(early).job;
    world.say(early, Message::JobReady(job, Epoch(1)));
    assert_eq!(world.view(zero).servers.len(), 1);

    let late = world.join(server("b"));
    assert_eq!(world.told(late), []);
    world.leave(zero);
    assert_eq!(world.told_one(early), MemberEvent::JobEnded { job });
    assert_eq!(world.told(late), []);

    world.join(worker(0, 1));
    assert_eq!(world.view(late).servers.len(), 2);
}

#[test]
fn waiting_workers_are_told_every_few_seconds_what_is_missing() {
    let mut world = World::new();
    let zero = world.join(Join { expected_servers: 2, ..worker(0, 3) });
    world.join(server("a"));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.told(zero), []);
    world.pass(Duration::from_secs(1));
    let missing = ["rank 1", "rank 2", "1 of 2 servers"].map(str::to_owned).to_vec();
    assert_eq!(world.told_one(zero), MemberEvent::Waiting { missing, seconds: 3.0 });
    world.pass(Duration::from_secs(6));
    assert_eq!(world.told(zero).len(), 2);
}

#[test]
fn of_many_missing_ranks_only_the_first_are_listed() {
    let mut world = World::new();
    let zero = world.join(worker(0, 1000));
    world.pass(Duration::from_secs(3));
    let MemberEvent::Waiting { missing, .. } = world.told_one(zero) else { panic!() };
    assert_eq!((missing.len(), missing.last().unwrap().as_str()), (17, "983 more ranks"));
    world.pass(Duration::from_secs(27));
    let Some(MemberEvent::Fatal { message, .. }) = world.told(zero).pop() else { panic!() };
    assert!(message.contains("16 and 983 more of 1000 did not join"), "{message}");
}

#[test]
fn a_job_that_cannot_start_in_time_names_who_is_missing_to_all() {
    let mut world = World::new();
    let zero = world.join(worker(0, 4));
    let one = world.join(worker(1, 4));
    world.pass(Duration::from_secs(20));
    let three = world.join(Join { coordinator: "10.0.0.9:29400".into(), ..worker(3, 4) });
    world.pass(Duration::from_secs(10));
    for (member, address) in [(zero, "node0"), (one, "node0"), (three, "10.0.0.9")] {
        let fatal = world.told(member).pop();
        let message = format!(
            "rank 2 of 4 did not join within 30 s at {address}:29400; present: 0 (host0), \
             1 (host1), 3 (host3)"
        );
        assert_eq!(fatal, Some(MemberEvent::Fatal { kind: FatalKind::Start, message }));
    }
    world.pass(Duration::from_secs(30));
    assert_eq!(world.told(zero), [], "a failure is told once");
}

#[test]
fn missing_servers_are_named_too_and_the_longest_wish_counts() {
    let mut world = World::new();
    let patient = Duration::from_secs(40);
    let zero = world.join(Join { expected_servers: 2, start_timeout: patient, ..worker(0, 3) });
    world.join(server("a"));
    world.pass(Duration::from_secs(39));
    assert!(world.told(zero).iter().all(|e| matches!(e, MemberEvent::Waiting { .. })));
    world.pass(Duration::from_secs(1));
    let (kind, message) = world.fatal(zero);
    assert_eq!(kind, FatalKind::Start);
    assert_eq!(
        message,
        "ranks 1, 2 of 3 and 1 of 2 servers did not join within 40 s at node0:29400; present: \
         0 (host0); servers on a"
    );
}

#[test]
fn a_worker_lost_before_the_start_frees_its_place() {
    let mut world = World::new();
    let zero = world.join(worker(0, 3));
    let first_try = world.join(worker(1, 3));
    world.close(first_try);
    assert_eq!(world.told(zero), []);
    world.join(worker(1, 3));
    world.join(worker(2, 3));
    world.view(zero);
}

#[test]
fn a_job_is_forgotten_when_all_who_waited_for_it_are_gone() {
    let mut world = World::new();
    let zero = world.join(worker(0, 4));
    world.close(zero);
    let zero = world.join(worker(0, 1));
    world.view(zero);
}

#[test]
fn a_server_that_never_gets_ready_fails_the_start() {
    let mut world = World::new();
    let helper = world.join(server("slow"));
    let zero = world.join(worker(0, 1));
    let job = world.view(helper).job;
    world.pass(Duration::from_secs(30));
    let (kind, message) = world.fatal(zero);
    assert_eq!(kind, FatalKind::Start);
    assert_eq!(message, "the servers on slow did not get ready within 30 s");
    world.say(helper, Message::JobReady(job, Epoch(1)));
    assert_eq!(world.told(zero), [], "too late");
}

#[test]
fn a_start_goes_on_without_a_server_that_is_lost_if_it_can() {
    for expected_servers in [1, 2] {
        let mut world = World::new();
        let [a, b] = ["a", "b"].map(|host| world.join(server(host)));
        let zero = world.join(Join { expected_servers, ..worker(0, 1) });
        let job = world.view(a).job;
        world.view(b);
        world.say(b, Message::JobReady(job, Epoch(1)));
        world.close(a);
        if expected_servers == 2 {
            let (kind, message) = world.fatal(zero);
            assert_eq!(kind, FatalKind::Start);
            let why = "the run could not start: the server on a was lost: connection closed";
            assert_eq!(message, why);
            continue;
        }
        let view = world.view(b);
        assert_eq!((view.epoch, view.servers.len()), (Epoch(2), 1));
        assert_eq!(world.told(zero), [], "it was ready for another plan");
        world.say(b, Message::JobReady(job, Epoch(2)));
        assert_eq!(world.view(zero), view);
    }
}

#[test]
fn a_worker_that_leaves_while_the_run_starts_is_lost_to_the_others() {
    let mut world = World::new();
    world.join(server("a"));
    let zero = world.join(worker(0, 2));
    let one = world.join(worker(1, 2));
    world.leave(one);
    let event = world.told_one(zero);
    assert!(matches!(event, MemberEvent::WorkerLost { rank: Rank(1), .. }), "{event:?}");
}

#[test]
fn the_view_says_which_rank_holds_the_coordinator() {
    let mut world = World::new();
    world.join(worker(0, 2));
    let one = world.join(Join { process: OUR_PROCESS, ..worker(1, 2) });
    assert_eq!(world.view(one).coordinator_rank, Some(Rank(1)));
}

#[test]
fn jobs_of_different_names_do_not_touch_each_other() {
    let mut world = World::new();
    let helper = world.join(server("a"));
    let a = world.join(worker_of("a", 0, 1));
    let in_a = world.view(helper);
    world.say(helper, Message::JobReady(in_a.job, Epoch(1)));
    let b = world.join(worker_of("b", 0, 1));
    let in_b = world.view(helper);
    assert_ne!(in_a.job, in_b.job);
    world.say(helper, Message::JobReady(in_b.job, Epoch(1)));
    world.view(a);
    world.view(b);

    world.say(a, Message::Declare(vec![spec("t", &[1])]));
    world.say(b, Message::Declare(vec![spec("t", &[2])]));
    assert!(matches!(world.told_one(a), MemberEvent::Tensors { .. }));
    assert!(matches!(world.told_one(b), MemberEvent::Tensors { .. }));
    world.close(a);
    assert_eq!(world.told(b), []);
    assert_eq!(world.told_one(helper), MemberEvent::JobEnded { job: in_a.job });
}

/// A worker of a device group.
fn grouped(rank: u32, name: &str, machine: &str, holds: bool) -> Join {
    let (name, machine) = (name.to_owned(), machine.to_owned());
    Join { device_group: Some(DeviceGroup { name, holds }), machine, ..worker(rank, 3) }
}

/// What two of these workers are told when the third has come.
fn started(joins: [Join; 3]) -> [MemberEvent; 2] {
    let mut world = World::new();
    let [zero, one, _] = joins.map(|join| world.join(join));
    [zero, one].map(|id| world.told_one(id))
}

#[test]
fn the_device_groups_of_ranks_are_in_the_view() {
    let joins = [grouped(0, "m/0", "m", true), grouped(1, "m/0", "m", false), worker(2, 3)];
    let [MemberEvent::Started(view), _] = started(joins) else { panic!() };
    let groups = view.device_groups();
    let ranks: Vec<Rank> = groups["m/0"].iter().map(|worker| worker.rank).collect();
    assert_eq!((groups.len(), ranks), (1, vec![Rank(0), Rank(1)]));
}

#[test]
fn a_device_group_that_cannot_be_is_named_before_the_job_starts() {
    let refused = |joins: [Join; 3]| {
        let [MemberEvent::Fatal { kind: FatalKind::Start, message }, other] = started(joins) else {
            panic!("started")
        };
        assert!(matches!(other, MemberEvent::Fatal { .. }), "all are told");
        message
    };
    let apart =
        [grouped(0, "g", "m1", true), grouped(1, "g", "m2", true), grouped(2, "g", "m1", true)];
    let message = refused(apart);
    for part in ["'g'", "rank 0 is on m1 (host0)", "rank 1 on m2 (host1)", "device_group"] {
        assert!(message.contains(part), "{message}");
    }
    let unheld =
        [grouped(0, "g", "m1", false), grouped(1, "g", "m1", false), grouped(2, "h", "m1", true)];
    let message = refused(unheld);
    for part in ["'g' on m1 (host0)", "ranks 0, 1", "device_shards=false"] {
        assert!(message.contains(part), "{message}");
    }
}
