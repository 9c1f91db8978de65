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
