//! Forms the generations of elastic jobs, as a state machine without sockets, threads or a clock:
//! (now, what a process said or that it is gone) to (which process is told what).
//!
//! A process that wants to work asks for a seat. Once everybody who can come has come, all are told
//! their rank in the next *generation*, and join the ordinary job of that name. When a generation
//! breaks or makes room for newcomers, its processes ask again.
//!
//! Invariants: a generation's number is never given twice; its ranks are 0 to size - 1, each given
//! once; processes of the last generation come before newcomers, in their old order; a generation
//! is never larger than the limit of its processes, or smaller than what they need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{MAX_ELASTIC_JOBS, MAX_GENERATION, MAX_WORLD, check_name};
use crate::tenants::Tenants;
use crate::types::MemberId;

/// How often those who wait are told for whom.
const NOTICE_EVERY: Duration = Duration::from_secs(5);
/// A gap between ticks beyond this means that the coordinator itself stood still, and others'
/// silence says nothing about them.
const STALL: Duration = Duration::from_secs(1);

/// What a process says when it comes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub job: String,
    /// The fewest and the most workers a generation may have; no limit if the most is 0.
    pub min_workers: u32,
    pub max_workers: u32,
    /// The first generation waits for so many while there is time.
    pub expected: u32,
    pub host: String,
    /// Equal for processes of one machine.
    pub machine: String,
    /// How long a generation may take to form once nobody is at work.
    pub start_timeout: Duration,
    /// Silence after which the process counts as dead.
    pub peer_timeout: Duration,
    /// Its last generation and its rank there; for a newcomer 0 and its number among those that
    /// were started.
    pub generation: u64,
    pub rank: u32,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A process is there; it works in the generation it names, or will ask for a seat.
    Come(MemberId, Box<Request>),
    /// A process asks for a seat in the next generation.
    Ask(MemberId),
    /// A sign of life.
    Heard(MemberId),
    /// A process has ended; the job is `done` if its work is.
    Leave(MemberId, bool),
    /// A process' stream ended without a word.
    Closed(MemberId),
    Tick,
}

/// A process' place in a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seating {
    /// The generation, from 1.
    pub generation: u64,
    /// Its rank.
    pub rank: u32,
    /// The workers of the generation.
    pub world_size: u32,
    /// Its number among those of its machine.
    pub local_rank: u32,
    /// The workers on its machine.
    pub local_size: u32,
}

/// What a process is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Seated(Seating),
    /// Others of its generation are gone, or newcomers could be taken in.
    Changed {
        lost: u32,
        newcomers: u32,
    },
    /// Who is missing.
    Waiting {
        missing: Vec<String>,
        seconds: f64,
    },
    /// The job has ended.
    Over,
    /// There is no seat, for this reason.
    Refused(String),
    Heard,
}

/// All elastic jobs of a coordinator.
pub(crate) struct Seats {
    jobs: BTreeMap<String, Job>,
    /// How long a job is remembered once nobody is left.
    remember: Duration,
    tenants: Arc<Tenants>,
    arrivals: u64,
    last_tick: Duration,
    outbox: Vec<(MemberId, Told)>,
}

#[derive(Default)]
struct Job {
    /// The last generation that was formed.
    generation: u64,
    people: BTreeMap<MemberId, Person>,
    /// Since when the next generation has been forming.
    forming: Option<Duration>,
    next_notice: Duration,
    /// Processes of this generation that are gone.
    lost: u32,
    /// A process has ended its work, so that nobody need begin.
    over: bool,
    /// Since when nobody has been left.
    empty: Option<Duration>,
}

struct Person {
    request: Request,
    arrival: u64,
    asks: bool,
    heard: Duration,
    /// What it was told last of those lost and of newcomers.
    knows: (u32, u32),
}

impl Person {
    /// Ascending by who comes first: those of the last generation by rank, then newcomers.
    fn standing(&self) -> (std::cmp::Reverse<u64>, u32, u64) {
        let Request { generation, rank, .. } = self.request;
        (std::cmp::Reverse(generation), rank, self.arrival)
    }

    fn most(&self) -> u32 {
        match self.request.max_workers {
            0 => u32::MAX,
            most => most,
        }
    }
}

impl Seats {
    /// Without jobs. A job that nobody is left of is remembered for a time: while it is, a process
    /// that comes after its end is told so, and does not begin it anew.
    /// The quotas are those of `tenants`.
    pub fn new(remember: Duration, tenants: Arc<Tenants>) -> Self {
        let (jobs, outbox) = (BTreeMap::new(), Vec::new());
        Self { jobs, remember, tenants, arrivals: 0, last_tick: Duration::ZERO, outbox }
    }

    /// Takes one input; returns what is to be told, in this order.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<(MemberId, Told)> {
        match input {
            Input::Come(id, request) => self.come(now, id, *request),
            Input::Ask(id) => self.with_job_of(now, id, |person| person.asks = true),
            Input::Heard(id) => {
                let person = self.jobs.values_mut().find_map(|job| job.people.get_mut(&id));
                if let Some(person) = person {
                    person.heard = now;
                    self.outbox.push((id, Told::Heard));
                }
            }
            Input::Leave(id, done) => self.remove(now, id, done),
            Input::Closed(id) => self.remove(now, id, false),
            Input::Tick => self.tick(now),
        }
        std::mem::take(&mut self.outbox)
    }

    fn come(&mut self, now: Duration, id: MemberId, mut request: Request) {
        if let Err(what) = well_formed(&request).and_then(|()| self.make_room(&mut request)) {
            self.outbox.push((id, Told::Refused(what)));
            return;
        }
        let name = request.job.clone();
        let job = self.jobs.entry(name.clone()).or_default();
        job.generation = job.generation.max(request.generation);
        job.empty = None;
        self.arrivals += 1;
        let (arrival, asks) = (self.arrivals, false);
        job.people.insert(id, Person { request, arrival, asks, heard: now, knows: (0, 0) });
        self.settle(now, &name);
    }

    /// Whether there is room for one more process; bounds its generations by the job's quota.
    fn make_room(&self, request: &mut Request) -> Result<(), String> {
        let name = &request.job;
        let quota = self.tenants.of(name).and_then(|tenant| tenant.max_workers);
        let most = quota.unwrap_or(MAX_WORLD);
        if request.min_workers > most {
            return Err(format!(
                "job '{name}' needs {} workers (min_workers), its quota is {most} (max_workers)",
                request.min_workers
            ));
        }
        request.max_workers = match request.max_workers {
            0 => most,
            asked => asked.min(most),
        };
        let Some(job) = self.jobs.get(name) else {
            return match self.jobs.len() {
                count if count >= MAX_ELASTIC_JOBS => Err(format!(
                    "the coordinator is full: it has {count} elastic jobs; start job '{name}' \
                     again when one of them has ended"
                )),
                _ => Ok(()),
            };
        };
        // A whole generation at work, and as many who wait to replace it.
        let processes = job.people.len();
        if processes >= 2 * most as usize {
            return Err(format!(
                "job '{name}' has {processes} processes that work or wait for a seat, and at most \
                 {most} may work at once; start another when one of them has ended"
            ));
        }
        Ok(())
    }

    fn with_job_of(&mut self, now: Duration, id: MemberId, change: impl Fn(&mut Person)) {
        let Some(name) = self.job_of(id) else { return };
        let person = self.jobs.get_mut(&name).and_then(|job| job.people.get_mut(&id));
        if let Some(person) = person {
            person.heard = now;
            change(person);
        }
        self.settle(now, &name);
    }

    fn remove(&mut self, now: Duration, id: MemberId, done: bool) {
        let Some(name) = self.job_of(id) else { return };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        if let Some(person) = job.people.remove(&id) {
            job.over |= done;
            job.lost += u32::from(!done && job.awaits(&person));
            job.empty = job.people.is_empty().then_some(now);
        }
        self.settle(now, &name);
    }

    fn tick(&mut self, now: Duration) {
        let stalled = now.saturating_sub(self.last_tick) > STALL;
        self.last_tick = now;
        let mut silent = Vec::new();
        for job in self.jobs.values_mut() {
            for (id, person) in &mut job.people {
                if stalled {
                    person.heard = now;
                } else if now.saturating_sub(person.heard) > person.request.peer_timeout {
                    silent.push(*id);
                }
            }
        }
        silent.into_iter().for_each(|id| self.remove(now, id, false));
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(now, name));
        let remember = self.remember;
        self.jobs.retain(|_, job| match job.empty {
            Some(since) => now.saturating_sub(since) <= remember,
            None => true,
        });
    }

    fn job_of(&self, id: MemberId) -> Option<String> {
        let has = |job: &Job| job.people.contains_key(&id);
        self.jobs.iter().find(|(_, job)| has(job)).map(|(name, _)| name.clone())
    }

    /// Forms the next generation, or gives it up, or tells who is waited for.
    fn settle(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        if job.over {
            let asking: Vec<MemberId> = job.asking().into_iter().map(|(id, _)| id).collect();
            for id in asking {
                job.people.remove(&id);
                self.outbox.push((id, Told::Over));
            }
        } else {
            match job.decide(now) {
                Decision::Form(chosen) => job.form(&chosen, &mut self.outbox),
                Decision::GiveUp(message) => job.give_up(name, &message, &mut self.outbox),
                Decision::Wait(missing) => job.notify(now, &missing, &mut self.outbox),
            }
        }
        if job.people.is_empty() {
            job.empty.get_or_insert(now);
        }
        job.announce(&mut self.outbox);
    }
}

enum Decision {
    Form(Vec<MemberId>),
    /// Too few have come; how many, in words.
    GiveUp(String),
    /// Who is missing, in words.
    Wait(Vec<String>),
}

impl Job {
    /// Whether the next generation waits for this process.
    fn awaits(&self, person: &Person) -> bool {
        !person.asks && person.request.generation == self.generation && self.generation > 0
    }

    /// Those who ask for a seat, in the order of their ranks to be.
    fn asking(&self) -> Vec<(MemberId, &Person)> {
        let people = self.people.iter().filter(|(_, person)| person.asks);
        let mut asking: Vec<_> = people.map(|(id, person)| (*id, person)).collect();
        asking.sort_by_key(|(_, person)| person.standing());
        asking
    }

    fn decide(&mut self, now: Duration) -> Decision {
        let asking = self.asking();
        let at_work = self.people.values().filter(|person| self.awaits(person)).count();
        let broken = asking.iter().any(|(_, p)| p.request.generation == self.generation);
        let Some((_, first)) = asking.first() else {
            self.forming = None;
            return Decision::Wait(Vec::new());
        };
        if at_work > 0 && !broken {
            self.forming = None;
            return Decision::Wait(vec![format!("{at_work} workers to commit")]);
        }
        let count = u32::try_from(asking.len()).unwrap_or(u32::MAX);
        let most = asking.iter().map(|(_, p)| p.most()).min().unwrap_or(u32::MAX);
        let least = asking.iter().map(|(_, p)| p.request.min_workers).max().unwrap_or(1);
        let wanted = match self.generation {
            0 => least.max(first.request.expected.min(most)),
            _ => least,
        };
        let limit = first.request.start_timeout;
        let chosen: Vec<MemberId> = asking.iter().map(|(id, _)| *id).take(most as usize).collect();
        let begun = *self.forming.get_or_insert(now);
        let waited = now.saturating_sub(begun);
        let missing = self.missing(wanted.saturating_sub(count));
        match waited > limit {
            _ if at_work == 0 && count >= wanted => Decision::Form(chosen),
            true if count >= least => Decision::Form(chosen),
            true => Decision::GiveUp(format!(
                "{count} of at least {least} workers came within {:.0} s; missing: {}",
                limit.as_secs_f64(),
                missing.join(", ")
            )),
            false => Decision::Wait(missing),
        }
    }

    /// Who is waited for: the processes that work as before, and how many others.
    fn missing(&self, others: u32) -> Vec<String> {
        let at_work = self.people.values().filter(|person| self.awaits(person));
        let mut missing: Vec<String> = at_work
            .map(|p| format!("rank {} on {} to stop", p.request.rank, p.request.host))
            .collect();
        if others > 0 {
            missing.push(format!("{others} more workers to start"));
        }
        missing
    }

    fn form(&mut self, chosen: &[MemberId], outbox: &mut Vec<(MemberId, Told)>) {
        self.generation += 1;
        (self.forming, self.lost) = (None, 0);
        let machine = |id: &MemberId| self.people.get(id).map(|p| p.request.machine.clone());
        let machines: Vec<Option<String>> = chosen.iter().map(machine).collect();
        for (rank, id) in chosen.iter().enumerate() {
            let same = |others: &[Option<String>]| {
                others.iter().filter(|other| **other == machines[rank]).count() as u32
            };
            let seating = Seating {
                generation: self.generation,
                rank: rank as u32,
                world_size: chosen.len() as u32,
                local_rank: same(&machines[..rank]),
                local_size: same(&machines),
            };
            if let Some(person) = self.people.get_mut(id) {
                (person.asks, person.knows) = (false, (0, 0));
                (person.request.generation, person.request.rank) = (self.generation, seating.rank);
                outbox.push((*id, Told::Seated(seating)));
            }
        }
    }

    fn give_up(&mut self, name: &str, message: &str, outbox: &mut Vec<(MemberId, Told)>) {
        self.forming = None;
        let message = format!("job '{name}' cannot go on: {message}");
        let asking: Vec<MemberId> = self.asking().into_iter().map(|(id, _)| id).collect();
        for id in asking {
            self.people.remove(&id);
            outbox.push((id, Told::Refused(message.clone())));
        }
    }

    fn notify(&mut self, now: Duration, missing: &[String], outbox: &mut Vec<(MemberId, Told)>) {
        if missing.is_empty() || now < self.next_notice {
            return;
        }
        self.next_notice = now + NOTICE_EVERY;
        let seconds = self.forming.map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
        for (id, _) in self.asking() {
            outbox.push((id, Told::Waiting { missing: missing.to_vec(), seconds }));
        }
    }

    /// Tells those at work what has changed since they were told last.
    fn announce(&mut self, outbox: &mut Vec<(MemberId, Told)>) {
        let asking: Vec<_> = self.asking().iter().map(|(_, person)| person.most()).collect();
        let newcomers = asking.len() as u32;
        let generation = self.generation;
        let at_work = self.people.values().filter(|person| self.awaits(person)).count() as u32;
        for (id, person) in &mut self.people {
            if person.asks || person.request.generation != generation || generation == 0 {
                continue;
            }
            // Whoever would find no room waits until somebody goes.
            let room = person.most().saturating_sub(at_work);
            let knows = (self.lost, newcomers.min(room));
            if person.knows != knows {
                person.knows = knows;
                outbox.push((*id, Told::Changed { lost: knows.0, newcomers: knows.1 }));
            }
        }
    }
}

fn well_formed(request: &Request) -> Result<(), String> {
    for (what, name) in
        [("job", &request.job), ("host", &request.host), ("machine", &request.machine)]
    {
        check_name(what, name)?;
    }
    if request.generation > MAX_GENERATION {
        return Err(format!(
            "generation {}; at most {MAX_GENERATION} are possible",
            request.generation
        ));
    }
    let Request { min_workers, max_workers, .. } = *request;
    if min_workers == 0 || (max_workers > 0 && max_workers < min_workers) {
        return Err(format!(
            "min_workers is {min_workers} and max_workers {max_workers}: an elastic job needs at \
             least 1 worker, and may not have more than the most"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        told: Vec<(MemberId, Told)>,
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

        /// Lets time pass, with everybody alive.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now += STALL;
                let everyone: Vec<MemberId> =
                    self.seats.jobs.values().flat_map(|job| job.people.keys().copied()).collect();
                everyone.into_iter().for_each(|id| self.step(Input::Heard(id)));
                self.step(Input::Tick);
            }
        }

        /// What was told since the last call, without signs of life and notices.
        fn told(&mut self) -> Vec<(u64, Told)> {
            let told = std::mem::take(&mut self.told).into_iter();
            told.filter(|(_, told)| !matches!(told, Told::Heard | Told::Waiting { .. }))
                .map(|(id, told)| (id.0, told))
                .collect()
        }

        /// (generation, world size, ids by rank) of the seats given since the last call.
        fn seated(&mut self) -> (u64, u32, Vec<u64>) {
            let mut seats: Vec<(u64, Seating)> = Vec::new();
            for (id, told) in self.told() {
                if let Told::Seated(seating) = told {
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
        assert!(!room.told().iter().any(|(_, told)| matches!(told, Told::Seated(_))));
        room.ask(2);
        assert_eq!(room.seated(), (2, 3, vec![2, 3, 4]));
    }

    #[test]
    fn those_at_work_hear_of_the_lost_and_of_newcomers() {
        let mut room = three();
        room.come(4, &request(2, 4, 3));
        let news = |lost, newcomers| Told::Changed { lost, newcomers };
        let all = |what: Told| (1..=3).map(|id| (id, what.clone())).collect::<Vec<_>>();
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
        assert!(!room.told().iter().any(|(_, told)| matches!(told, Told::Seated(_))));
        room.pass(LIMIT + Duration::from_secs(1));
        let told = room.told();
        let [(3, Told::Refused(why))] = &told[..] else { panic!("{told:?}") };
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
        assert_eq!(room.told().len(), 2, "both hear of a newcomer");
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
                room.step(Input::Heard(MemberId(id)));
            }
            room.step(Input::Tick);
        }
        let lost = Told::Changed { lost: 1, newcomers: 0 };
        assert_eq!(room.told(), vec![(1, lost.clone()), (2, lost)]);
    }

    #[test]
    fn whoever_comes_after_the_end_is_told_so() {
        let mut room = three();
        room.step(Input::Leave(MemberId(1), true));
        room.come(4, &request(2, 0, 3));
        assert_eq!(room.told(), vec![(4, Told::Over)]);
        for id in [2, 3] {
            room.step(Input::Leave(MemberId(id), true));
        }
        room.pass(Duration::from_secs(30));
        room.come(5, &request(1, 0, 1));
        assert_eq!(room.told(), vec![(5, Told::Over)]);
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
                Told::Seated(seating) => (seating.local_rank, seating.local_size),
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
        let refused = |(_, told): &(u64, Told)| matches!(told, Told::Refused(_));
        assert!(room.told().iter().all(refused));
    }

    /// What the only process that was told anything since the last call was refused with.
    fn refused(room: &mut Room) -> String {
        let told = room.told();
        let [(_, Told::Refused(why))] = &told[..] else { panic!("{told:?}") };
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
        let (name, quota) = ("job".to_owned(), crate::tenants::Quota::default());
        let tenant = crate::tenants::Tenant { name, token, quota, max_workers: Some(2) };
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
        /// and once nobody is at work those who ask are answered in bounded time.
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
                    if let Told::Seated(seating) = told {
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
                let at_work = job.people.values().any(|person| job.awaits(person));
                job.people.values().filter(move |person| person.asks && !at_work)
            });
            prop_assert_eq!(waiting.count(), 0);
        }
    }
}
