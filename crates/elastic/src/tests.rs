//! What the state machine of seats promises.

use proptest::prelude::*;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn request(min_workers: u32, max_workers: u32, expected: u32) -> Request {
    Request {
        job: "job".to_owned(),
        min_workers,
        max_workers,
        expected,
        host: "host".to_owned(),
        machine: "machine".to_owned(),
        start_timeout: LIMIT,
        peer_timeout: Duration::from_secs(4),
        generation: 0,
        rank: 0,
    }
}

struct Room {
    seats: Seats,
    now: Duration,
    told: Vec<(MemberId, Response)>,
}

impl Room {
    fn new() -> Self {
        Self::of(Tenants::default())
    }

    fn of(tenants: Tenants) -> Self {
        let seats = Seats::new(Duration::from_secs(60), Arc::new(tenants));
        Self { seats, now: Duration::ZERO, told: Vec::new() }
    }

    fn step(&mut self, input: Input) {
        self.told.extend(self.seats.step(self.now, input));
    }

    fn come(&mut self, id: u64, request: &Request) {
        self.step(Input::Come(MemberId(id), Box::new(request.clone())));
        self.ask(id);
    }

    fn ask(&mut self, id: u64) {
        self.step(Input::Ask(MemberId(id)));
    }

    fn die(&mut self, id: u64) {
        self.step(Input::Closed(MemberId(id)));
    }

    /// Lets time pass, with all processes alive.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STALL;
            let everyone: Vec<MemberId> =
                self.seats.jobs.values().flat_map(|job| job.processes.keys().copied()).collect();
            everyone.into_iter().for_each(|id| self.step(Input::Heartbeat(id)));
            self.step(Input::Tick);
        }
    }

    /// The events since the last call, without signs of life and notices.
    fn told(&mut self) -> Vec<(u64, Response)> {
        let told = std::mem::take(&mut self.told).into_iter();
        told.filter(|(_, told)| !matches!(told, Response::HeartbeatSeen | Response::Waiting { .. }))
            .map(|(id, told)| (id.0, told))
            .collect()
    }

    /// (generation, world size, ids by rank) of the seats given since the last call.
    fn seated(&mut self) -> (u64, u32, Vec<u64>) {
        let mut seats: Vec<(u64, Seating)> = Vec::new();
        for (id, told) in self.told() {
            if let Response::Seated(seating) = told {
                seats.push((id, seating));
            }
        }
        seats.sort_by_key(|(_, seating)| seating.rank);
        let (_, first) = seats.first().expect("a generation");
        for (rank, (_, seating)) in seats.iter().enumerate() {
            assert_eq!(seating.rank as usize, rank);
            assert_eq!(seating.generation, first.generation);
            assert_eq!(seating.world_size as usize, seats.len());
        }
        (first.generation, first.world_size, seats.iter().map(|(id, _)| *id).collect())
    }
}

/// Three at work in generation 1.
fn three() -> Room {
    let mut room = Room::new();
    (1..=3).for_each(|id| room.come(id, &request(2, 0, 3)));
    assert_eq!(room.seated(), (1, 3, vec![1, 2, 3]));
    room
}

#[test]
fn the_first_generation_waits_for_all_that_were_started() {
    let mut room = Room::new();
    (1..=2).for_each(|id| room.come(id, &request(2, 0, 3)));
    room.pass(LIMIT / 2);
    assert_eq!(room.told(), vec![]);
    room.pass(LIMIT);
    assert_eq!(room.seated(), (1, 2, vec![1, 2]));
}

#[test]
fn newcomers_come_in_the_order_in_which_they_were_started() {
    let mut room = Room::new();
    for (id, rank) in [(1, 2), (2, 0), (3, 1)] {
        room.come(id, &Request { rank, ..request(2, 0, 3) });
    }
    assert_eq!(room.seated(), (1, 3, vec![2, 3, 1]));
}

#[test]
fn survivors_keep_their_order_and_newcomers_follow() {
    let mut room = three();
    room.die(1);
    room.come(4, &request(2, 0, 3));
    room.ask(3);
    assert!(!room.told().iter().any(|(_, told)| matches!(told, Response::Seated(_))));
    room.ask(2);
    assert_eq!(room.seated(), (2, 3, vec![2, 3, 4]));
}

#[test]
fn those_at_work_hear_of_the_lost_and_of_newcomers() {
    let mut room = three();
    room.come(4, &request(2, 4, 3));
    let news = |lost, newcomers| Response::Changed { lost, newcomers };
    let all = |what: Response| (1..=3).map(|id| (id, what.clone())).collect::<Vec<_>>();
    assert_eq!(room.told(), all(news(0, 1)));
    room.die(3);
    assert_eq!(room.told(), all(news(1, 1))[..2]);
    room.pass(2 * LIMIT);
    assert_eq!(room.told(), vec![], "newcomers wait as long as the others work");
}

#[test]
fn who_finds_no_room_is_kept_for_later() {
    let mut room = Room::new();
    (1..=3).for_each(|id| room.come(id, &request(1, 2, 2)));
    assert_eq!(room.seated(), (1, 2, vec![1, 2]));
    room.die(1);
    room.ask(2);
    assert_eq!(room.seated(), (2, 2, vec![2, 3]));
}

#[test]
fn too_few_are_told_how_many_came() {
    let mut room = three();
    room.die(1);
    room.die(2);
    room.ask(3);
    assert!(!room.told().iter().any(|(_, told)| matches!(told, Response::Seated(_))));
    room.pass(LIMIT + Duration::from_secs(1));
    let told = room.told();
    let [(3, Response::Refused(why))] = &told[..] else { panic!("{told:?}") };
    assert!(why.contains("1 of at least 2 workers") && why.contains("1 more"), "{why}");
}

#[test]
fn who_does_not_stop_in_time_is_left_behind_and_comes_back_as_a_newcomer() {
    let mut room = three();
    room.ask(2);
    room.ask(3);
    room.pass(LIMIT + Duration::from_secs(1));
    assert_eq!(room.seated(), (2, 2, vec![2, 3]));
    room.ask(1);
    assert_eq!(room.told().len(), 2, "both learn of a newcomer");
    room.ask(2);
    room.ask(3);
    assert_eq!(room.seated(), (3, 3, vec![2, 3, 1]));
}

#[test]
fn a_silent_process_is_gone() {
    let mut room = three();
    for _ in 0..20 {
        room.now += Duration::from_millis(250);
        for id in [1, 2] {
            room.step(Input::Heartbeat(MemberId(id)));
        }
        room.step(Input::Tick);
    }
    let lost = Response::Changed { lost: 1, newcomers: 0 };
    assert_eq!(room.told(), vec![(1, lost.clone()), (2, lost)]);
}

#[test]
fn a_process_that_comes_after_the_end_is_told_so() {
    let mut room = three();
    room.step(Input::Leave(MemberId(1), true));
    room.come(4, &request(2, 0, 3));
    assert_eq!(room.told(), vec![(4, Response::Over)]);
    for id in [2, 3] {
        room.step(Input::Leave(MemberId(id), true));
    }
    room.pass(Duration::from_secs(30));
    room.come(5, &request(1, 0, 1));
    assert_eq!(room.told(), vec![(5, Response::Over)]);
    room.pass(Duration::from_secs(90));
    room.come(6, &request(1, 0, 1));
    assert_eq!(room.seated(), (1, 1, vec![6]));
}

#[test]
fn a_coordinator_that_has_forgotten_learns_the_generation_from_those_at_work() {
    let mut room = Room::new();
    for (id, rank) in [(7, 1), (8, 0)] {
        let back = Request { generation: 5, rank, ..request(2, 0, 2) };
        room.step(Input::Come(MemberId(id), Box::new(back)));
    }
    room.come(9, &request(2, 0, 2));
    room.ask(7);
    room.ask(8);
    assert_eq!(room.seated(), (6, 3, vec![8, 7, 9]));
}

#[test]
fn local_ranks_count_by_machine() {
    let mut room = Room::new();
    for (id, machine) in [(1, "a"), (2, "b"), (3, "a")] {
        room.come(id, &Request { machine: machine.to_owned(), ..request(1, 0, 3) });
    }
    let locals: Vec<_> = room
        .told()
        .into_iter()
        .map(|(_, told)| match told {
            Response::Seated(seating) => (seating.local_rank, seating.local_size),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(locals, vec![(0, 2), (0, 1), (1, 2)]);
}

#[test]
fn an_impossible_request_is_refused() {
    let mut room = Room::new();
    room.come(1, &request(0, 0, 1));
    room.come(2, &request(3, 2, 1));
    let refused = |(_, told): &(u64, Response)| matches!(told, Response::Refused(_));
    assert!(room.told().iter().all(refused));
}

/// The refusal of the only process that got an event since the last call.
fn refused(room: &mut Room) -> String {
    let told = room.told();
    let [(_, Response::Refused(why))] = &told[..] else { panic!("{told:?}") };
    why.clone()
}

#[test]
fn a_name_or_a_generation_beyond_all_reason_is_refused() {
    let mut room = Room::new();
    let long = "x".repeat(1 << 20);
    for (what, bad) in [
        ("job", Request { job: long.clone(), ..request(1, 0, 1) }),
        ("job", Request { job: String::new(), ..request(1, 0, 1) }),
        ("host", Request { host: long.clone(), ..request(1, 0, 1) }),
        ("machine", Request { machine: long.clone(), ..request(1, 0, 1) }),
    ] {
        room.come(1, &bad);
        let why = refused(&mut room);
        assert!(why.starts_with(&format!("the {what}'s name has")), "{why}");
    }
    room.come(1, &Request { generation: u64::MAX, ..request(1, 0, 1) });
    assert!(refused(&mut room).starts_with("generation 18446744073709551615"));
    assert!(room.seats.jobs.is_empty(), "nothing is kept of who was refused");
}

#[test]
fn a_job_has_no_more_workers_and_waiting_processes_than_its_quota_allows() {
    let token = sumpter_wire::Token::new("a token of the tests").unwrap();
    let (name, quota) = ("job".to_owned(), sumpter_types::Quota::default());
    let tenant = sumpter_membership::Tenant { name, token, quota, max_workers: Some(2) };
    let mut room = Room::of(Tenants { listed: Some(vec![tenant]), max_jobs: None });
    room.come(1, &request(3, 0, 3));
    assert!(refused(&mut room).contains("needs 3 workers (min_workers), its quota is 2"));
    (2..=5).for_each(|id| room.come(id, &request(1, 0, 4)));
    assert_eq!(room.seated(), (1, 2, vec![2, 3]));
    room.come(6, &request(1, 0, 4));
    let why = refused(&mut room);
    assert!(why.contains("4 processes") && why.contains("at most 2"), "{why}");
    room.die(2);
    room.come(7, &request(1, 0, 4));
    room.told();
    room.ask(3);
    assert_eq!(room.seated(), (2, 2, vec![3, 4]), "room again, and the others come first");
}

#[test]
fn there_are_only_so_many_elastic_jobs() {
    let mut room = Room::new();
    let named = |number: usize| Request { job: format!("job-{number}"), ..request(1, 0, 2) };
    for number in 0..MAX_ELASTIC_JOBS {
        room.step(Input::Come(MemberId(number as u64), Box::new(named(number))));
    }
    assert_eq!(room.told(), vec![]);
    room.come(1 << 20, &named(MAX_ELASTIC_JOBS));
    assert!(refused(&mut room).contains("the coordinator is full: it has 4096 elastic jobs"));
}

#[derive(Clone, Debug)]
enum Act {
    Come,
    Ask(u64),
    Die(u64),
    Done(u64),
    Pass(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Come),
        4 => (0..12u64).prop_map(Act::Ask),
        2 => (0..12u64).prop_map(Act::Die),
        1 => (0..12u64).prop_map(Act::Done),
        2 => (1..80u8).prop_map(Act::Pass),
    ]
}

proptest! {
    /// Whatever happens, generations are complete, within their limits and numbered upward,
    /// and once no process is at work those that ask are answered in bounded time.
    #[test]
    fn generations_are_sound(
        acts in proptest::collection::vec(act(), 1..40),
        min in 1..4u32,
        extra in 0..4u32,
    ) {
        let mut room = Room::new();
        let (mut last, mut next) = (0, 0);
        for act in acts {
            match act {
                Act::Come => {
                    room.come(next, &request(min, min + extra, min));
                    next += 1;
                }
                Act::Ask(id) => room.ask(id),
                Act::Die(id) => room.die(id),
                Act::Done(id) => room.step(Input::Leave(MemberId(id), true)),
                Act::Pass(seconds) => room.pass(Duration::from_secs(u64::from(seconds))),
            }
            let told = room.told();
            let mut generations: BTreeMap<u64, Vec<Seating>> = BTreeMap::new();
            for (_, told) in told {
                if let Response::Seated(seating) = told {
                    generations.entry(seating.generation).or_default().push(seating);
                }
            }
            for (generation, seats) in generations {
                // Number 1 comes again only after the job was forgotten.
                prop_assert!(generation == last + 1 || generation == 1);
                last = generation;
                let size = seats.len() as u32;
                prop_assert!((min..=min + extra).contains(&size));
                prop_assert!(seats.iter().zip(0..).all(|(s, r)| s.rank == r));
                prop_assert!(seats.iter().all(|s| s.world_size == size));
            }
        }
        let everyone: Vec<u64> = (0..next).collect();
        everyone.iter().for_each(|id| room.ask(*id));
        room.pass(LIMIT + LIMIT);
        let waiting = room.seats.jobs.values().flat_map(|job| {
            let at_work = job.processes.values().any(|process| job.awaits(process));
            job.processes.values().filter(move |process| process.asks && !at_work)
        });
        prop_assert_eq!(waiting.count(), 0);
    }
}
