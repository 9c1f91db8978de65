//! How fast members are: the plan has the least of all that it is for.

use sumpter_types::CodecChoice;

use super::*;

fn fast(join: Join, add: u64) -> Join {
    Join { speeds: Speeds { add, ..Speeds::default() }, ..join }
}

/// Rates of additions in the next plan, of workers and of servers.
fn speeds(event: MemberEvent) -> (u64, u64) {
    match event {
        MemberEvent::Started(view) | MemberEvent::Resume { view, .. } => {
            (view.speeds.workers.add, view.speeds.servers.add)
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_plan_has_the_least_of_its_members_and_the_next_one_of_those_that_are_left() {
    let mut world = World::new();
    let slow = world.join(fast(server("slow"), 20));
    let mut elastic = |rank, add| {
        let mut join = fast(worker(rank, 3), add);
        join.settings.insert("min_workers".to_owned(), "1".to_owned());
        join.settings.insert("redo".to_owned(), "true".to_owned());
        world.join(join)
    };
    let workers: Vec<MemberId> = [(0, 7), (1, 5), (2, 9)].map(|(r, add)| elastic(r, add)).into();
    let view = world.view(slow);
    world.say(slow, Message::JobReady(view.job, view.epoch));
    for worker in &workers {
        assert_eq!(speeds(world.told_one(*worker)), (5, 20));
    }
    // The slowest worker dies, and then the only server: of servers nothing is known.
    world.close(workers[1]);
    let mut next = |epoch, expected| {
        for worker in [workers[0], workers[2]] {
            assert!(matches!(world.told_one(worker), MemberEvent::Suspend { .. }));
            world.say(worker, Message::Progress(Epoch(epoch), Vec::new()));
        }
        if epoch == 2 {
            world.view(slow);
            world.say(slow, Message::JobReady(view.job, Epoch(epoch)));
        }
        for worker in [workers[0], workers[2]] {
            assert_eq!(speeds(world.told_one(worker)), expected);
        }
        if epoch == 2 {
            world.close(slow);
        }
    };
    next(2, (7, 20));
    next(3, (7, 0));
}

#[test]
fn the_status_has_what_a_worker_reports_as_chosen() {
    let mut world = World::new();
    let workers: Vec<MemberId> = (0..2).map(|rank| world.join(worker(rank, 2))).collect();
    let choices =
        |codec: &str| vec![CodecChoice { codec: codec.to_owned(), ..CodecChoice::default() }];
    let chosen = |world: &World| world.registry.status(world.now, None).jobs[0].compression.clone();
    let report = |world: &mut World, worker: usize, choices| {
        let stats = Stats { choices, ..Stats::default() };
        world.say(workers[worker], Message::Heartbeat(Some(stats)));
    };
    assert_eq!(chosen(&world), []);
    report(&mut world, 0, choices("int8"));
    assert_eq!(chosen(&world), choices("int8"));
    // The last words of one that has left, until another one says more.
    world.say(workers[0], Message::Leave);
    assert_eq!(chosen(&world), choices("int8"));
    report(&mut world, 1, choices("bf16"));
    assert_eq!(chosen(&world), choices("bf16"));
}

/// A worker reports that it has sent so many bytes in a second in which more was waiting.
fn report(world: &mut World, worker: MemberId, bytes: f64, awaiting: f64) {
    let counters =
        [("drained_bytes", bytes), ("wait_send_s", 1.0), ("tensors_awaiting_link", awaiting)];
    let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
    world.say(worker, Message::Heartbeat(Some(Stats { counters, ..Stats::default() })));
    let seen = world.told.get_mut(&worker).and_then(Vec::pop);
    assert_eq!(seen, Some(Event::HeartbeatSeen));
}

/// Lets the coordinator look at what was reported.
fn tick(world: &mut World) {
    world.pass(Duration::from_millis(250));
}

/// The rate of links in the next plan, for which the workers stop, and the servers get ready.
fn next_link(world: &mut World, workers: &[MemberId], servers: &[MemberId]) -> u64 {
    for server in servers {
        let view = world.view(*server);
        world.say(*server, Message::JobReady(view.job, view.epoch));
    }
    for worker in workers {
        let MemberEvent::Suspend { epoch, .. } = world.told_one(*worker) else { panic!() };
        world.say(*worker, Message::Progress(epoch, Vec::new()));
    }
    let link = |worker: &MemberId| match world.told_one(*worker) {
        MemberEvent::Resume { view, .. } => view.speeds.link,
        other => panic!("unexpected {other:?}"),
    };
    let links: BTreeSet<u64> = workers.iter().map(link).collect();
    assert_eq!(links.len(), 1, "all workers have the same plan");
    links.into_iter().next().unwrap()
}

#[test]
fn a_plan_comes_with_the_rate_of_links_once_it_is_measured_and_wanted() {
    let mut world = World::new();
    let workers = world.started(2);
    let unchanged = |world: &mut World, why: &str| {
        tick(world);
        assert!(workers.iter().all(|worker| world.told(*worker).is_empty()), "{why}");
    };
    report(&mut world, workers[0], 2e9, 0.0);
    report(&mut world, workers[1], 1e9, 0.0);
    unchanged(&mut world, "nobody has a use for it");
    report(&mut world, workers[1], 1e6, 1.0);
    unchanged(&mut world, "one has sent too little");
    report(&mut world, workers[1], 1e9, 1.0);
    tick(&mut world);
    assert_eq!(next_link(&mut world, &workers, &[]), 1_000_000_000);
    report(&mut world, workers[1], 3e9, 1.0);
    unchanged(&mut world, "it was measured before");
    // The next plan, for another reason, has what is known by then.
    let server = world.join(server("helper"));
    world.pass(Duration::from_secs(1));
    assert_eq!(next_link(&mut world, &workers, &[server]), 2_000_000_000);
}

#[test]
fn the_rate_of_links_is_not_waited_for_where_one_has_a_known_speed() {
    let mut world = World::new();
    let mut known = worker(0, 2);
    known.bandwidth = Some(Bandwidth { gbps: 10.0, source: BandwidthSource::Configured });
    let workers = [world.join(known), world.join(worker(1, 2))];
    for worker in workers {
        world.told_one(worker);
        report(&mut world, worker, 1e9, 1.0);
    }
    tick(&mut world);
    assert!(workers.iter().all(|worker| world.told(*worker).is_empty()));
}

#[test]
fn a_measured_rate_outlives_workers_that_have_sent_little_since() {
    let mut world = World::new();
    let workers = world.started(2);
    for worker in &workers {
        report(&mut world, *worker, 1e9, 1.0);
    }
    tick(&mut world);
    assert_eq!(next_link(&mut world, &workers, &[]), 1_000_000_000);
    // As one that has begun anew and has counted nothing yet.
    report(&mut world, workers[0], 0.0, 0.0);
    let server = world.join(server("helper"));
    world.pass(Duration::from_secs(1));
    assert_eq!(next_link(&mut world, &workers, &[server]), 1_000_000_000);
}
