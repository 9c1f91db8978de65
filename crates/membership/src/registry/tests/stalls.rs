//! Operations that wait for a rank, seen from the members and from who asks for the status.

use super::*;

/// Two workers that are started, with these limits of rank 0, and a tensor 'w'.
fn waiting(warning_s: u64, shutdown_s: u64) -> (World, Vec<MemberId>) {
    let mut world = World::new();
    let seconds = Duration::from_secs;
    let stalls = StallLimits { warning: seconds(warning_s), shutdown: seconds(shutdown_s) };
    let zero = world.join(Join { stalls, ..worker(0, 2) });
    let workers = vec![zero, world.join(worker(1, 2))];
    world.say(workers[0], Message::Declare(vec![spec("w", &[4])]));
    for member in &workers {
        world.told(*member);
    }
    (world, workers)
}

/// What a worker reports that has begun so many rounds of 'w' and waits for the last of them.
fn report(begun: u64, since: Option<Duration>) -> Message {
    let op = |since: Duration| PendingOp {
        name: "w".into(),
        since_ms: since.as_millis() as u64,
        round: begun - 1,
        ..PendingOp::default()
    };
    let pending = since.into_iter().map(op).collect();
    Message::Heartbeat(Some(Stats { pending, begun: vec![begun], ..Stats::default() }))
}

/// Time passes while rank 0 waits for rank 1.
fn wait(world: &mut World, workers: &[MemberId], seconds: u64) -> Vec<MemberEvent> {
    let since = world.now;
    for _ in 0..seconds {
        let waited = world.now - since;
        world.say(workers[0], report(1, Some(waited)));
        world.pass(Duration::from_secs(1));
    }
    let told = world.told.remove(&workers[0]).unwrap_or_default();
    let event = |event| match event {
        Event::Tell(event) => Some(event),
        _ => None,
    };
    told.into_iter().filter_map(event).collect()
}

fn stall(world: &World) -> Option<sumpter_types::StallStatus> {
    world.registry.status(world.now, None).jobs.remove(0).stall
}

#[test]
fn a_large_transfer_that_goes_on_is_no_stall_and_one_that_stands_still_is() {
    let (mut world, workers) = waiting(10, 0);
    let mut left_bytes = 1 << 30;
    let mut pass = |world: &mut World, seconds, per_second| {
        for _ in 0..seconds {
            left_bytes -= per_second;
            for member in &workers {
                let op = PendingOp {
                    name: "w".into(),
                    since_ms: world.now.as_millis() as u64,
                    left_bytes,
                    ..PendingOp::default()
                };
                let stats = Stats { pending: vec![op], begun: vec![1], ..Stats::default() };
                world.say(*member, Message::Heartbeat(Some(stats)));
            }
            world.pass(Duration::from_secs(1));
        }
    };
    pass(&mut world, 40, 1 << 20);
    assert_eq!(stall(&world), None);
    pass(&mut world, 12, 0);
    let shown = stall(&world).expect("nothing comes any more");
    assert!(shown.message.contains("all 2 ranks have begun this round"), "{shown:?}");
    assert!((12.0..14.0).contains(&shown.seconds), "since it last moved: {shown:?}");
    pass(&mut world, 1, 1);
    assert_eq!(stall(&world), None);
}

#[test]
fn the_lowest_rank_is_notified_of_a_straggler_and_of_the_end_of_the_wait() {
    let (mut world, workers) = waiting(10, 0);
    let told = wait(&mut world, &workers, 15);
    let [MemberEvent::Stalled { message, over: false }] = &told[..] else { panic!("{told:?}") };
    let expected = "waiting for rank 1 (host host1) on 'w' since 10 s: it has not begun this \
                    round; 1 other has";
    assert_eq!(message, expected);
    let shown = stall(&world).unwrap();
    assert_eq!((shown.tensor.as_str(), shown.round, &shown.ranks[..]), ("w", 0, &[1][..]));
    assert!(shown.message.contains("rank 1 (host host1) on 'w' since 14 s"), "{shown:?}");
    world.say(workers[1], report(1, None));
    world.say(workers[0], report(1, None));
    world.step(Input::Tick);
    assert_eq!(stall(&world), None);
    let told = world.told.remove(&workers[0]).unwrap();
    let Some(Event::Tell(MemberEvent::Stalled { message, over: true })) = told.last() else {
        panic!("{told:?}")
    };
    assert!(message.starts_with("no longer waiting for rank 1 (host host1) on 'w'"), "{message}");
    assert_eq!(world.told.remove(&workers[1]).map(|told| told.len()), Some(1));
}

#[test]
fn without_limits_nothing_is_told_and_nothing_ends() {
    let (mut world, workers) = waiting(0, 0);
    assert_eq!(wait(&mut world, &workers, 100), []);
    assert_eq!(stall(&world), None);
}

#[test]
fn a_wait_beyond_the_shutdown_limit_ends_the_job_and_says_for_whom_it_waited() {
    let (mut world, workers) = waiting(0, 20);
    let told = wait(&mut world, &workers, 25);
    assert!(matches!(told[..], [MemberEvent::Fatal { .. }]), "{told:?}");
    let (kind, message) = world.fatal(workers[1]);
    assert_eq!(kind, FatalKind::PeerLost);
    assert!(message.contains("for rank 1 (host host1) on 'w' since 20 s"), "{message}");
    assert!(message.ends_with("the job ends because stall_shutdown_s is 20"), "{message}");
}
