//! Seats: the generations of an elastic job form over sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use sumpter_coordinator::{JoinError, Seat, SeatOptions};
use sumpter_elastic::Seating;
use sumpter_membership::Serves;

use super::{PATIENCE, coordinator, token};

fn seat(coordinator: SocketAddr) -> Arc<Seat> {
    let options = SeatOptions {
        coordinator: coordinator.to_string(),
        token: token(),
        tls: None,
        job: "elastic".to_owned(),
        min_workers: 1,
        max_workers: 0,
        rank: 0,
        expected: 2,
        host: "host".to_owned(),
        machine: "machine".to_owned(),
        start_timeout: PATIENCE,
        peer_timeout: PATIENCE,
    };
    Arc::new(Seat::open(options).unwrap())
}

fn ask(seat: &Arc<Seat>) -> JoinHandle<Option<Seating>> {
    let seat = seat.clone();
    spawn(move || seat.ask(&mut || false).map_err(Option::unwrap).unwrap())
}

fn place(generation: u64, rank: u32) -> Option<Seating> {
    Some(Seating { generation, rank, world_size: 2, local_rank: rank, local_size: 2 })
}

fn eventually(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to pass");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn generations_follow_each_other_until_the_work_is_done() {
    let coordinator = coordinator(Serves::OneJob);
    let (first, second) = (seat(coordinator.address()), seat(coordinator.address()));
    let (asked, too) = (ask(&first), ask(&second));
    let (mut one, mut other) = ((asked.join().unwrap(), first), (too.join().unwrap(), second));
    if one.0 != place(1, 0) {
        std::mem::swap(&mut one, &mut other);
    }
    assert_eq!((one.0, other.0), (place(1, 0), place(1, 1)));
    let survivor = other.1;

    // Without a word: its process is dead.
    drop(one.1);
    eventually(|| survivor.lost() == 1);
    let newcomer = seat(coordinator.address());
    let waits = ask(&newcomer);
    eventually(|| survivor.newcomers() == 1);
    assert_eq!(survivor.ask(&mut || false).unwrap(), place(2, 0));
    assert_eq!(waits.join().unwrap(), place(2, 1));
    assert_eq!((survivor.lost(), survivor.newcomers()), (0, 0));

    survivor.leave(true);
    let late = seat(coordinator.address());
    assert_eq!(late.ask(&mut || false).unwrap(), None);
}

#[test]
fn a_question_can_be_interrupted_and_asked_again() {
    let coordinator = coordinator(Serves::ManyJobs);
    let alone = seat(coordinator.address());
    assert!(matches!(alone.ask(&mut || true), Err(None)));
    let waits = ask(&alone);
    let other = seat(coordinator.address());
    assert!(other.ask(&mut || false).unwrap().is_some());
    assert!(waits.join().unwrap().is_some());
}

#[test]
fn a_question_without_a_coordinator_is_answered_in_time() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
    let options = SeatOptions {
        coordinator: nowhere.to_string(),
        token: token(),
        tls: None,
        job: "elastic".to_owned(),
        min_workers: 1,
        max_workers: 0,
        rank: 0,
        expected: 1,
        host: String::new(),
        machine: String::new(),
        start_timeout: Duration::from_millis(100),
        peer_timeout: PATIENCE,
    };
    let seat = Seat::open(options).unwrap();
    for _ in 0..2 {
        let answer = seat.ask(&mut || false).unwrap_err();
        assert!(matches!(answer, Some(JoinError::Unreachable { .. })));
    }
}
