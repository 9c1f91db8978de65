//! Runs that go on without workers that died.

use super::*;
use crate::rejoin::{Idle, KnownRun, Rejoin};

/// A worker of an elastic job that goes on with at least `least`.
fn elastic(rank: u32, world_size: u32, least: u32) -> Join {
    let mut join = worker(rank, world_size);
    join.settings.insert("min_workers".to_owned(), least.to_string());
    join.settings.insert("redo".to_owned(), "true".to_owned());
    join
}

fn started(n: u32, least: u32) -> (World, Vec<MemberId>) {
    let mut world = World::new();
    let workers: Vec<_> = (0..n).map(|rank| world.join(elastic(rank, n, least))).collect();
    for worker in &workers {
        world.view(*worker);
    }
    (world, workers)
}

fn suspend(epoch: u32, rank: u32, reason: &str) -> MemberEvent {
    let reason = format!("rank {rank} on host{rank} was lost: {reason}");
    MemberEvent::Suspend { epoch: Epoch(epoch), reason }
}

/// Which ranks have reported, and which are dead, as the worker is notified.
fn resumed(world: &mut World, worker: MemberId) -> (Vec<u32>, Vec<u32>) {
    match world.told_one(worker) {
        MemberEvent::Resume { view, progress } => (
            progress.iter().map(|(rank, _)| rank.0).collect(),
            view.gone.iter().map(|rank| rank.0).collect(),
        ),
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn the_others_stop_tell_and_go_on_without_it() {
    let (mut world, workers) = started(3, 1);
    world.close(workers[1]);
    for worker in [workers[0], workers[2]] {
        assert_eq!(world.told_one(worker), suspend(2, 1, "connection closed"));
        world.say(worker, Message::Progress(Epoch(2), vec![7]));
    }
    for worker in [workers[0], workers[2]] {
        assert_eq!(resumed(&mut world, worker), (vec![0, 2], vec![1]));
    }
    let job = &world.registry.status(world.now, None).jobs[0];
    assert_eq!((job.state.as_str(), job.epoch), ("running", 2));
}

#[test]
fn a_silent_worker_is_one_that_died() {
    let (mut world, workers) = started(2, 1);
    world.alive.retain(|member| *member != workers[0]);
    world.pass(Duration::from_millis(4250));
    assert_eq!(world.told_one(workers[1]), suspend(2, 0, "no heartbeat for 4.2 s"));
}

#[test]
fn one_that_dies_during_the_change_makes_a_newer_epoch_and_is_not_waited_for() {
    let (mut world, workers) = started(4, 2);
    world.close(workers[0]);
    world.say(workers[1], Message::Progress(Epoch(2), vec![]));
    world.say(workers[3], Message::Progress(Epoch(2), vec![]));
    world.close(workers[3]);
    for worker in [workers[1], workers[2]] {
        let told = world.told(worker);
        let reason = suspend(3, 3, "connection closed");
        assert_eq!(told, [suspend(2, 0, "connection closed"), reason]);
        world.say(worker, Message::Progress(Epoch(3), vec![]));
    }
    for worker in [workers[1], workers[2]] {
        assert_eq!(resumed(&mut world, worker), (vec![1, 2], vec![0, 3]));
    }
}

#[test]
fn too_few_survivors_end_with_the_name_of_the_last_that_died() {
    let (mut world, workers) = started(3, 2);
    world.close(workers[2]);
    for worker in [workers[0], workers[1]] {
        world.told(worker);
        world.say(worker, Message::Progress(Epoch(2), vec![]));
        world.told(worker);
    }
    world.close(workers[0]);
    let lost = world.told_one(workers[1]);
    assert!(matches!(lost, MemberEvent::WorkerLost { rank: Rank(0), .. }), "{lost:?}");
}

#[test]
fn a_job_that_does_not_redo_rounds_ends() {
    let mut world = World::new();
    let join = |rank| {
        let mut join = elastic(rank, 2, 1);
        join.settings.insert("redo".to_owned(), "false".to_owned());
        join
    };
    let [zero, one] = [0, 1].map(|rank| world.join(join(rank)));
    for worker in [zero, one] {
        world.view(worker);
    }
    world.close(one);
    let lost = world.told_one(zero);
    assert!(matches!(lost, MemberEvent::WorkerLost { rank: Rank(1), .. }), "{lost:?}");
}

#[test]
fn who_lives_is_out_of_data_when_the_last_with_data_dies() {
    let (mut world, workers) = started(3, 1);
    world.say(workers[1], Message::OutOfData);
    world.say(workers[2], Message::OutOfData);
    for worker in &workers {
        world.told(*worker);
    }
    world.close(workers[0]);
    for worker in [workers[1], workers[2]] {
        let last = MemberEvent::AllOutOfData { last: Rank(2) };
        assert_eq!(world.told(worker), [suspend(2, 0, "connection closed"), last]);
    }
}

/// A run of three, one of which is dead, as its first coordinator left it.
fn known() -> KnownRun {
    let mut scene = World::new();
    let workers: Vec<_> = (0..3).map(|rank| scene.join(elastic(rank, 3, 1))).collect();
    let views: Vec<_> = workers.iter().map(|worker| scene.view(*worker)).collect();
    KnownRun { view: views[0].clone(), ..KnownRun::default() }
}

fn back(rank: u32, run: &KnownRun) -> Join {
    let rejoin = Rejoin { run: Some(run.clone()), ..Rejoin::default() };
    Join { rejoin: Some(Box::new(rejoin)), ..elastic(rank, 3, 1) }
}

/// Ranks 0 and 2 with a coordinator that has come back and given up rank 1, where these ranks were
/// out of data before; and whether each has been told that all are.
fn without_rank_1(idle: &[u32]) -> (World, [MemberId; 2], [bool; 2]) {
    let mut run = known();
    run.idle = Idle { ranks: idle.iter().copied().map(Rank).collect(), ..Idle::default() };
    let mut world = World::new();
    let workers = [0, 2].map(|rank| world.join(back(rank, &run)));
    world.pass(Duration::from_secs(31));
    let told = workers.map(|worker| all_out_of_data(&mut world, worker));
    (world, workers, told)
}

fn all_out_of_data(world: &mut World, worker: MemberId) -> bool {
    world.told(worker).iter().any(|event| matches!(event, MemberEvent::AllOutOfData { .. }))
}

#[test]
fn who_lives_is_out_of_data_when_the_last_with_data_does_not_come_back() {
    assert_eq!(without_rank_1(&[0, 2]).2, [true, true]);
    assert_eq!(without_rank_1(&[0]).2, [false, false]);
}

#[test]
fn who_does_not_come_back_counts_no_more_among_those_that_are_out_of_data() {
    let (mut world, [zero, two], told) = without_rank_1(&[1]);
    assert_eq!(told, [false, false]);
    world.say(zero, Message::OutOfData);
    assert!(!all_out_of_data(&mut world, two), "rank 2 has data");
    world.say(two, Message::OutOfData);
    assert!(all_out_of_data(&mut world, zero));
}

#[test]
fn who_was_given_up_does_not_come_back_with_the_coordinator() {
    let (before, mut after) = (known(), known());
    after.view.epoch = Epoch(2);
    after.view.gone.insert(Rank(1));
    let mut world = World::new();
    let early = world.join(back(1, &before));
    let zero = world.join(back(0, &after));
    let told = world.told.remove(&early).unwrap_or_default();
    let reason = "the others have gone on without rank 1";
    assert!(
        matches!(&told[..], [Event::Tell(MemberEvent::Fatal { message, .. }), Event::Close]
            if message == reason),
        "{told:?}"
    );
    let refused = world.refused(back(1, &before));
    assert!(refused.message.ends_with("the others have gone on without it"), "{refused:?}");
    let two = world.join(back(2, &after));
    assert_eq!((world.told(zero), world.told(two)), (vec![], vec![]), "they work on");
    assert_eq!(world.registry.status(world.now, None).jobs[0].state, "running");
}

#[test]
fn who_dies_while_the_coordinator_is_away_is_done_without() {
    let (mut world, run) = (World::new(), known());
    let workers = [0, 2].map(|rank| world.join(back(rank, &run)));
    world.pass(Duration::from_secs(31));
    let reason = "it did not come back to the coordinator within 30 s";
    for worker in workers {
        assert_eq!(world.told_one(worker), suspend(2, 1, reason));
        world.say(worker, Message::Progress(Epoch(2), vec![]));
    }
    for worker in workers {
        assert_eq!(resumed(&mut world, worker), (vec![0, 2], vec![1]));
    }
}
