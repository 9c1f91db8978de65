//! Any order of anything: nothing panics, and what must hold for all workers of a run holds.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sumpter_wire::TensorId;

use super::*;

/// What an arbitrary peer may do.
#[derive(Clone, Debug)]
enum Act {
    Join { job: u8, rank: u32, world_size: u32, odd_setting: bool },
    JoinServer,
    Declare { member: u64, name: u8, shape: u64, ranks: Vec<u32> },
    Pending { member: u64, number: u8, signature: u8 },
    Ready { member: u64, job: u64 },
    Leave { member: u64 },
    Close { member: u64 },
    Violate { member: u64 },
    Pass { milliseconds: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let member = 1..24u64;
    let some_ranks = prop_oneof![4 => Just(Vec::new()), 1 => vec(0..4u32, 0..3)];
    let join = (0..2u8, 0..3u32, 1..4u32, proptest::bool::weighted(0.05));
    prop_oneof![
        6 => join.prop_map(|(job, rank, world_size, odd_setting)| {
            // Mostly one size a job, so that runs do start.
            let world_size = if world_size == 3 { 3 } else { 2 };
            Act::Join { job, rank, world_size, odd_setting }
        }),
        1 => Just(Act::JoinServer),
        12 => (1..8u64, 0..9u8, 1..3u64, some_ranks).prop_map(
            |(member, name, shape, ranks)| {
                // One shape for most names, so that tables do grow.
                let shape = if name == 0 { shape } else { 1 };
                Act::Declare { member, name, shape, ranks }
            }
        ),
        2 => (member.clone(), 0..2u8, 0..2u8)
            .prop_map(|(member, number, signature)| Act::Pending { member, number, signature }),
        3 => (member.clone(), 1001..1006u64).prop_map(|(member, job)| Act::Ready { member, job }),
        1 => member.clone().prop_map(|member| Act::Leave { member }),
        1 => member.clone().prop_map(|member| Act::Close { member }),
        1 => member.prop_map(|member| Act::Violate { member }),
        1 => (0..6000u64).prop_map(|milliseconds| Act::Pass { milliseconds }),
    ]
}

/// Random acts, half of the time after the start of a run of three.
fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    (vec(act(), 1..=most), any::<bool>()).prop_map(|(mut acts, started)| {
        let join = |rank| Act::Join { job: 0, rank, world_size: 3, odd_setting: false };
        let prefix = if started { 0..3 } else { 0..0 };
        acts.splice(0..0, prefix.map(join));
        acts
    })
}

fn input(act: &Act, next_member: &mut u64) -> Input {
    let mut applicant = |join| {
        *next_member += 1;
        Input::Join(MemberId(*next_member), Box::new(join))
    };
    match act.clone() {
        Act::Join { job, rank, world_size, odd_setting } => {
            let mut join = worker_of(&format!("job{job}"), rank, world_size);
            if odd_setting {
                join.settings.clear();
            }
            applicant(join)
        }
        Act::JoinServer => applicant(server("helper")),
        Act::Declare { member, name, shape, ranks } => {
            let ranks = ranks.into_iter().map(Rank).collect();
            let spec = TensorSpec { ranks, ..spec(&format!("t{name}"), &[shape]) };
            Input::Message(MemberId(member), Message::Declare(spec))
        }
        Act::Pending { member, number, signature } => {
            let (name, tag) = (format!("t{number}"), format!("world#{number}|{signature}"));
            let pending = vec![PendingOp { name, tag, since_ms: 2000 }];
            let stats = Stats { pending, ..Stats::default() };
            Input::Message(MemberId(member), Message::Heartbeat(Some(stats)))
        }
        Act::Ready { member, job } => {
            Input::Message(MemberId(member), Message::JobReady(JobId(job), Epoch(1)))
        }
        Act::Leave { member } => Input::Message(MemberId(member), Message::Leave),
        Act::Close { member } => Input::Closed(MemberId(member), "gone".to_owned()),
        Act::Violate { member } => Input::Violation(MemberId(member), "nonsense".to_owned()),
        Act::Pass { .. } => Input::Tick,
    }
}

/// What every member has heard, checked as it comes.
#[derive(Default)]
struct Ears {
    welcome: BTreeMap<MemberId, bool>,
    /// The run each worker is in, and the tensors it was told of.
    views: BTreeMap<MemberId, ClusterView>,
    tables: BTreeMap<MemberId, Vec<(TensorId, TensorSpec)>>,
}

impl Ears {
    fn hear(&mut self, member: MemberId, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Welcome { .. } => {
                prop_assert_eq!(self.welcome.insert(member, true), None);
            }
            Event::Refused(_) => {
                prop_assert_eq!(self.welcome.insert(member, false), None);
            }
            Event::Close => {
                prop_assert!(self.welcome.remove(&member).is_some(), "closed twice");
                self.welcome.insert(member, false);
            }
            other => {
                prop_assert_eq!(self.welcome.get(&member), Some(&true), "{:?}", other);
                self.listen(member, other)?;
            }
        }
        Ok(())
    }

    fn listen(&mut self, member: MemberId, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Tell(MemberEvent::Started(view)) => {
                prop_assert_eq!(self.views.insert(member, view), None, "started twice");
            }
            Event::Tell(MemberEvent::Tensor { id, spec }) => {
                prop_assert!(self.views.contains_key(&member), "a tensor before the start");
                let table = self.tables.entry(member).or_default();
                prop_assert_eq!(id.0 as usize, table.len(), "ids are dense");
                table.push((id, spec));
            }
            _ => {}
        }
        Ok(())
    }

    /// Workers of one run see one view, and one's table is the beginning of the other's.
    fn agree(&self) -> Result<(), TestCaseError> {
        for (one, view) in &self.views {
            for (other, other_view) in &self.views {
                if view.job != other_view.job {
                    continue;
                }
                prop_assert_eq!(view, other_view);
                let empty = Vec::new();
                let a = self.tables.get(one).unwrap_or(&empty);
                let b = self.tables.get(other).unwrap_or(&empty);
                let shared = a.len().min(b.len());
                prop_assert_eq!(&a[..shared], &b[..shared]);
            }
        }
        Ok(())
    }
}

fn play(acts: &[Act], serves: Serves) -> Result<Ears, TestCaseError> {
    let mut world = World::with(serves);
    let (mut ears, mut next_member) = (Ears::default(), 0);
    for act in acts {
        if let Act::Pass { milliseconds } = act {
            world.now += Duration::from_millis(*milliseconds);
        }
        let input = input(act, &mut next_member);
        for (member, event) in world.registry.step(world.now, input) {
            ears.hear(member, event)?;
        }
        ears.agree()?;
        let report = world.registry.status(world.now, None);
        prop_assert!(report.jobs.iter().all(|job| !job.workers.is_empty()), "an empty job is kept");
    }
    Ok(ears)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn workers_of_a_run_agree_whatever_happens(
        acts in acts(120),
        serves in prop::sample::select(vec![Serves::ManyJobs, Serves::OneJob, Serves::OneRun]),
    ) {
        play(&acts, serves)?;
    }
}

#[test]
fn the_random_acts_do_start_runs_and_grow_tables() {
    let mut runner = TestRunner::deterministic();
    let (mut runs, mut tensors) = (0, 0);
    for _ in 0..50 {
        let acts = acts(120).new_tree(&mut runner).unwrap().current();
        let ears = play(&acts, Serves::ManyJobs).unwrap();
        runs += ears.views.len();
        tensors += ears.tables.values().map(Vec::len).sum::<usize>();
    }
    assert!(runs > 50 && tensors > 100, "{runs} workers in runs, {tensors} tensors told");
}
