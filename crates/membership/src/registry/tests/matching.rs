//! Ranks whose calls differ, under random schedules: every rank that waits gets an error, whatever
//! the ranks call and whenever they do, and later calls match again.
//!
//! The ranks here do what the fronts and the worker's node do, in short: names are made of a call's
//! description, its slot and the last failed call; rounds of one name are done in order once the
//! ranks that they need have begun them.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use sumpter_types::RefusedOp;

use super::*;

/// Names of one description. No call begins before the one so many calls ago is over: a later round
/// of a name would be taken for an earlier one.
const SLOTS: usize = 4;
/// Calls after the last one in which ranks may differ.
const EQUAL_CALLS: usize = 3;
/// Rounds of calls of the last description, of which the first needs all ranks.
const ROUNDS: usize = 3;

/// What a rank calls: the number of a description.
type Variant = usize;

/// A description of which ranks receive from rank 0 of their group, and do not wait for another.
const COPIES: Variant = 1;
/// A description of several rounds.
const GATHERS: Variant = 2;

#[derive(Clone, Debug)]
struct Group {
    members: Vec<usize>,
    /// What each of the job's ranks calls.
    calls: Vec<Vec<Variant>>,
    /// Whether all calls have one name, so that only one may be in flight.
    is_named: bool,
    /// How many calls in a row a rank may have in flight.
    depth: usize,
}

#[derive(Clone, Debug)]
struct Plan {
    ranks: usize,
    groups: Vec<Group>,
    /// Who acts next, in which group, and whether by a report.
    schedule: Vec<(usize, usize, bool)>,
}

fn groups(ranks: usize) -> impl Strategy<Value = Group> {
    let members = prop_oneof![
        Just((0..ranks).collect::<Vec<_>>()),
        prop::sample::subsequence((0..ranks).collect::<Vec<_>>(), 2.min(ranks)..=ranks),
    ];
    let variant =
        prop_oneof![4 => Just(0usize), 3 => Just(COPIES), 2 => Just(GATHERS), 3 => 3..6usize];
    // Often the same call everywhere, so that calls match and fail in turn.
    let alike = (variant.clone(), any::<bool>(), vec(variant, ranks))
        .prop_map(move |(one, same, each)| if same { vec![one; ranks] } else { each });
    (members, vec(alike, 1..6), any::<bool>(), 1..=SLOTS).prop_map(
        |(members, calls, is_named, depth)| Group {
            members,
            calls,
            is_named,
            depth: if is_named { 1 } else { depth },
        },
    )
}

fn plans() -> impl Strategy<Value = Plan> {
    let ranks = prop_oneof![3 => Just(3usize), 2 => Just(4), 1 => Just(8), 1 => 2..9usize];
    ranks.prop_flat_map(|ranks| {
        let schedule = vec((0..ranks, 0..2usize, any::<bool>()), 0..150);
        (vec(groups(ranks), 1..3), schedule).prop_map(move |(groups, schedule)| Plan {
            ranks,
            groups,
            schedule,
        })
    })
}

/// A round in flight.
#[derive(Clone, Debug)]
struct Round {
    name: String,
    tag: String,
    call: usize,
    number: u64,
    since: Duration,
    receives: bool,
}

/// What a call has come to on a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Done,
    Failed,
}

/// A rank's calls in one group.
#[derive(Debug, Default)]
struct Series {
    next: usize,
    failed: Option<usize>,
    outcomes: BTreeMap<usize, Outcome>,
}

#[derive(Debug, Default)]
struct Process {
    series: Vec<Series>,
    in_flight: Vec<(usize, Round)>,
    begun: BTreeMap<String, u64>,
    refused_names: BTreeSet<String>,
    refused: VecDeque<RefusedOp>,
}

impl Process {
    /// The next call of a group; the tensors to declare.
    fn call(
        &mut self,
        now: Duration,
        of: (usize, &Group),
        variant: Variant,
        rank: usize,
    ) -> Vec<String> {
        let (group, Group { members, is_named, .. }) = of;
        let is_root = members[0] == rank;
        let series = &mut self.series[group];
        let call = series.next;
        series.next += 1;
        let after = series.failed.map_or(String::new(), |failed| format!("!{failed}"));
        let slot = if *is_named { 0 } else { call % SLOTS };
        let rounds = if variant == GATHERS { ROUNDS } else { 1 };
        let mut names = Vec::new();
        for round in 0..rounds {
            let name = format!("g{group}.v{variant}.{round}.{slot}{after}");
            let part = if round == 0 { String::new() } else { format!(".{round}") };
            let tag = format!("g{group}#{call}{part}|v{variant}.{round}{after}");
            if self.refused_names.contains(&name) {
                self.refuse(group, call, name, tag);
                continue;
            }
            let begun = self.begun.entry(name.clone()).or_default();
            let number = *begun;
            *begun += 1;
            let receives = variant == COPIES && !is_root;
            let round = Round { name: name.clone(), tag, call, number, since: now, receives };
            self.in_flight.push((group, round));
            names.push(name);
        }
        self.settle(group);
        names
    }

    fn refuse(&mut self, group: usize, call: usize, name: String, tag: String) {
        self.refused.push_back(RefusedOp { name, tag });
        self.series[group].outcomes.insert(call, Outcome::Failed);
    }

    fn tensor_error(&mut self, name: &str) {
        self.refused_names.insert(name.to_owned());
        let (failed, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|(_, r)| r.name == name);
        self.in_flight = rest;
        for (group, round) in failed {
            self.refuse(group, round.call, round.name, round.tag);
            self.settle(group);
        }
    }

    /// A front sees a failure when it has waited for the call, in order.
    fn settle(&mut self, group: usize) {
        let waits = |call| self.in_flight.iter().any(|(g, r)| *g == group && r.call == call);
        let series = &self.series[group];
        let mut failed = series.failed;
        for call in 0..series.next {
            match series.outcomes.get(&call) {
                // A call is over with its first error.
                Some(Outcome::Failed) => failed = Some(call),
                _ if waits(call) => break,
                _ => {}
            }
        }
        self.series[group].failed = failed;
    }

    /// The oldest call of a group in flight, or the next one.
    fn oldest(&self, group: usize) -> usize {
        let calls = self.in_flight.iter().filter(|(g, _)| *g == group).map(|(_, r)| r.call);
        calls.min().unwrap_or(self.series[group].next)
    }

    fn report(&self, now: Duration) -> Message {
        let pending = self.in_flight.iter().map(|(_, round)| PendingOp {
            name: round.name.clone(),
            tag: round.tag.clone(),
            since_ms: (now - round.since).as_millis() as u64,
            round: round.number,
            ..PendingOp::default()
        });
        let refused = self.refused.iter().cloned().collect();
        Message::Heartbeat(Some(Stats { pending: pending.collect(), refused, ..Stats::default() }))
    }
}

struct Job {
    world: World,
    workers: Vec<MemberId>,
    plan: Plan,
    processes: Vec<Process>,
}

impl Job {
    fn new(plan: &Plan) -> Self {
        let mut world = World::new();
        let workers = world.started(plan.ranks as u32);
        let process = || Process {
            series: plan.groups.iter().map(|_| Series::default()).collect(),
            ..Process::default()
        };
        let processes = (0..plan.ranks).map(|_| process()).collect();
        Self { world, workers, plan: plan.clone(), processes }
    }

    fn calls_of(&self, group: usize) -> usize {
        self.plan.groups[group].calls.len() + EQUAL_CALLS
    }

    fn variant(&self, rank: usize, group: usize, call: usize) -> Variant {
        self.plan.groups[group].calls.get(call).map_or(0, |each| each[rank])
    }

    /// Makes a rank's next call in a group, if it may; whether it did.
    fn call(&mut self, rank: usize, group: usize) -> bool {
        let process = &self.processes[rank];
        let (of, next) = (&self.plan.groups[group], process.series[group].next);
        if !of.members.contains(&rank)
            || next == self.calls_of(group)
            || process.oldest(group) + of.depth <= next
        {
            return false;
        }
        let ranks: Vec<Rank> = of.members.iter().map(|rank| Rank(*rank as u32)).collect();
        let variant = self.variant(rank, group, next);
        for name in self.processes[rank].call(self.world.now, (group, of), variant, rank) {
            let spec = TensorSpec { ranks: ranks.clone(), ..spec(&name, &[1]) };
            self.world.say(self.workers[rank], Message::Declare(vec![spec]));
        }
        self.hear();
        true
    }

    fn report(&mut self, rank: usize) {
        self.world.now += Duration::from_millis(100);
        self.world.say(self.workers[rank], self.processes[rank].report(self.world.now));
        self.hear();
    }

    /// Lets every rank take what it was sent, and the rounds that can be done be done.
    fn hear(&mut self) {
        for (rank, member) in self.workers.iter().enumerate() {
            for event in self.world.told.remove(member).unwrap_or_default() {
                if let Event::Tell(MemberEvent::TensorError { name, .. }) = event {
                    self.processes[rank].tensor_error(&name);
                }
            }
        }
        for rank in 0..self.processes.len() {
            let done: Vec<usize> = (0..self.processes[rank].in_flight.len())
                .filter(|index| self.is_done(rank, *index))
                .collect();
            for index in done.into_iter().rev() {
                let (group, round) = self.processes[rank].in_flight.remove(index);
                let outcomes = &mut self.processes[rank].series[group].outcomes;
                outcomes.entry(round.call).or_insert(Outcome::Done);
                self.processes[rank].settle(group);
            }
        }
    }

    fn is_done(&self, rank: usize, index: usize) -> bool {
        let (group, round) = &self.processes[rank].in_flight[index];
        let members = &self.plan.groups[*group].members;
        let begun = |rank: &usize| {
            self.processes[*rank].begun.get(&round.name).is_some_and(|begun| *begun > round.number)
        };
        match round.receives {
            true => begun(&members[0]),
            false => members.iter().all(begun),
        }
    }

    /// Runs the schedule, then lets everyone make all its calls.
    fn run(&mut self) {
        for (rank, group, reports) in self.plan.schedule.clone() {
            match reports {
                true => self.report(rank),
                false => _ = group < self.plan.groups.len() && self.call(rank, group),
            }
        }
        let calls: usize = (0..self.plan.groups.len()).map(|group| self.calls_of(group)).sum();
        // Each turn ends a call at least, on all ranks.
        for _ in 0..2 * calls {
            for rank in 0..self.plan.ranks {
                (0..self.plan.groups.len()).for_each(|group| while self.call(rank, group) {});
            }
            self.world.now += Duration::from_secs(1);
            (0..self.plan.ranks).for_each(|rank| self.report(rank));
            (0..self.plan.ranks).for_each(|rank| self.report(rank));
        }
    }

    fn outcomes(&self, group: usize, call: usize) -> Vec<Option<Outcome>> {
        let of = |rank: &usize| self.processes[*rank].series[group].outcomes.get(&call).copied();
        self.plan.groups[group].members.iter().map(of).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_of_a_call_that_differs_gets_an_error_and_none_waits(plan in plans()) {
        let mut job = Job::new(&plan);
        job.run();
        for (rank, process) in job.processes.iter().enumerate() {
            prop_assert!(process.in_flight.is_empty(), "rank {rank} waits: {process:?}");
        }
        for (group, Group { members, calls, depth, .. }) in plan.groups.iter().enumerate() {
            for call in 0..job.calls_of(group) {
                let variant = |rank: &usize| job.variant(*rank, group, call);
                let first = variant(&members[0]);
                let outcomes = job.outcomes(group, call);
                prop_assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
                let copies = members.iter().any(|rank| variant(rank) == COPIES);
                if members.iter().any(|rank| variant(rank) != first) && !copies {
                    let failed = outcomes.iter().all(|o| *o == Some(Outcome::Failed));
                    prop_assert!(failed, "call {call} of {members:?}: {outcomes:?}");
                }
            }
            let differs =
                calls.iter().any(|each| members.iter().any(|rank| each[*rank] != each[members[0]]));
            let last = job.outcomes(group, job.calls_of(group) - 1);
            let matched = last.iter().all(|o| *o == Some(Outcome::Done));
            prop_assert!(matched || (*depth > 1 && differs), "the last call: {last:?}");
            if !differs {
                let all = (0..job.calls_of(group)).flat_map(|call| job.outcomes(group, call));
                prop_assert!(all.into_iter().all(|o| o == Some(Outcome::Done)));
            }
        }
    }
}
