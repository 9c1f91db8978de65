//! Any order of anything: nothing panics, and what must hold for all workers of a run holds.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

/// What an arbitrary peer may do.
#[derive(Clone, Debug)]
enum Act {
    Join {
        job: u8,
        rank: u32,
        world_size: u32,
        odd_setting: bool,
    },
    JoinServer,
    Declare {
        member: u64,
        name: u8,
        shape: u64,
        ranks: Vec<u32>,
    },
    Pending {
        member: u64,
        number: u8,
        signature: u8,
    },
    /// What a worker has sent while more was waiting, and whether it waits for a link's speed.
    Sent {
        member: u64,
        mib: u32,
        quarters: u32,
        awaiting: bool,
    },
    /// A server answers one of the last starts it was notified of.
    Ready {
        member: u64,
        back: usize,
    },
    /// A worker answers the newest suspension it was notified of, or an older one.
    Answer {
        member: u64,
        newest: bool,
    },
    Suspect {
        member: u64,
        server: u64,
    },
    Drain {
        member: u64,
        itself: bool,
    },
    Tune {
        job: u8,
        partition: u8,
        reset: bool,
    },
    Leave {
        member: u64,
    },
    Close {
        member: u64,
    },
    Violate {
        member: u64,
    },
    Pass {
        milliseconds: u64,
    },
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
        2 => Just(Act::JoinServer),
        12 => (1..8u64, 0..9u8, 1..3u64, some_ranks).prop_map(
            |(member, name, shape, ranks)| {
                // One shape for most names, so that tables do grow.
                let shape = if name == 0 { shape } else { 1 };
                Act::Declare { member, name, shape, ranks }
            }
        ),
        2 => (member.clone(), 0..2u8, 0..2u8)
            .prop_map(|(member, number, signature)| Act::Pending { member, number, signature }),
        8 => (1..8u64, 4..64u32, 0..8u32, any::<bool>())
            .prop_map(|(member, mib, quarters, awaiting)| Act::Sent {
                member, mib, quarters, awaiting
            }),
        4 => (1..12u64, 0..2usize).prop_map(|(member, back)| Act::Ready { member, back }),
        6 => (1..12u64, proptest::bool::weighted(0.9))
            .prop_map(|(member, newest)| Act::Answer { member, newest }),
        1 => (1..12u64, 1..12u64).prop_map(|(member, server)| Act::Suspect { member, server }),
        1 => (member.clone(), any::<bool>())
            .prop_map(|(member, itself)| Act::Drain { member, itself }),
        2 => (0..2u8, 1..5u8, any::<bool>())
            .prop_map(|(job, partition, reset)| Act::Tune { job, partition, reset }),
        1 => member.clone().prop_map(|member| Act::Leave { member }),
        1 => member.clone().prop_map(|member| Act::Close { member }),
        1 => member.prop_map(|member| Act::Violate { member }),
        4 => (0..900u64).prop_map(|milliseconds| Act::Pass { milliseconds }),
        1 => (0..6000u64).prop_map(|milliseconds| Act::Pass { milliseconds }),
    ]
}

/// Random acts, half of the time after the start of a run of three with two servers, of which half
/// have measured links.
fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    let begins = (any::<bool>(), any::<bool>());
    (vec(act(), 1..=most), begins).prop_map(|(mut acts, (started, measured))| {
        let join = |rank| Act::Join { job: 0, rank, world_size: 3, odd_setting: false };
        let servers = [Act::JoinServer, Act::JoinServer];
        let ready = [1, 2].map(|member| Act::Ready { member, back: 0 });
        let start = servers.into_iter().chain((0..3).map(join)).chain(ready);
        let sent = |(member, quarters)| Act::Sent { member, mib: 20, quarters, awaiting: true };
        let sent = [(3, 2), (4, 4), (5, 3)].map(sent).into_iter();
        let measured_links = sent.chain([Act::Pass { milliseconds: 250 }]).filter(|_| measured);
        acts.splice(0..0, start.chain(measured_links).filter(|_| started));
        acts
    })
}

fn input(act: &Act, next_member: &mut u64, ears: &mut Ears) -> Input {
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
            Input::Message(MemberId(member), Message::Declare(vec![spec]))
        }
        Act::Pending { member, number, signature } => {
            let (name, tag) = (format!("t{number}"), format!("world#{number}|{signature}"));
            ears.sent.remove(&MemberId(member));
            let pending = vec![PendingOp { name, tag, since_ms: 2000, ..PendingOp::default() }];
            let stats = Stats { pending, ..Stats::default() };
            Input::Message(MemberId(member), Message::Heartbeat(Some(stats)))
        }
        Act::Sent { member, mib, quarters, awaiting } => {
            let sent = Sent { bytes: f64::from(mib << 20), seconds: 0.25 * f64::from(quarters) };
            if ears.welcome.get(&MemberId(member)) == Some(&true) {
                ears.sent.insert(MemberId(member), sent);
            }
            let counters = [
                ("drained_bytes", sent.bytes),
                ("wait_send_s", sent.seconds),
                ("tensors_awaiting_link", f64::from(u8::from(awaiting))),
            ];
            let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
            let stats = Stats { counters, ..Stats::default() };
            Input::Message(MemberId(member), Message::Heartbeat(Some(stats)))
        }
        Act::Ready { member, back } => ears.ready(MemberId(member), back),
        Act::Answer { member, newest } => ears.answer(MemberId(member), newest),
        Act::Suspect { member, server } => {
            let view = ears.views.get(&MemberId(member));
            let plan = view.map_or((JobId(0), Epoch(0)), |view| (view.job, view.epoch));
            let (server, reason) = (MemberId(server), "no route".to_owned());
            Input::Message(MemberId(member), Message::Suspect { server, reason, plan })
        }
        Act::Drain { member, itself: true } => Input::Message(MemberId(member), Message::Drain),
        Act::Drain { member, itself: false } => Input::Drain(MemberId(member)),
        Act::Tune { job, partition, reset } => {
            let size = ("partition_bytes".to_owned(), (4096 << partition).to_string());
            Input::Tune(format!("job{job}"), [size].into_iter().filter(|_| !reset).collect())
        }
        Act::Leave { member } => Input::Message(MemberId(member), Message::Leave),
        Act::Close { member } => Input::Closed(MemberId(member), "gone".to_owned()),
        Act::Violate { member } => Input::Violation(MemberId(member), "nonsense".to_owned()),
        Act::Pass { .. } => Input::Tick,
    }
}

/// What a worker has last said that it sent while more was waiting.
#[derive(Clone, Copy, Debug)]
struct Sent {
    bytes: f64,
    seconds: f64,
}

impl Sent {
    /// Bytes a second, once it is enough to tell.
    fn rate(self) -> Option<f64> {
        (self.bytes >= f64::from(8 << 20) && self.seconds >= 0.25)
            .then(|| self.bytes / self.seconds)
    }
}

/// What workers said, by rank.
type Answers = Vec<(Rank, bytes::Bytes)>;

/// The events of every member, checked as they come.
#[derive(Default)]
struct Ears {
    welcome: BTreeMap<MemberId, bool>,
    /// The newest plan of each worker, and the tensors it was notified of.
    views: BTreeMap<MemberId, ClusterView>,
    tables: BTreeMap<MemberId, Vec<(TensorId, TensorSpec)>>,
    /// The newest epoch each suspended worker was notified of.
    suspended: BTreeMap<MemberId, Epoch>,
    /// What workers and servers have said to these epochs.
    answered: BTreeSet<(MemberId, Epoch)>,
    prepared: BTreeSet<(MemberId, JobId, Epoch)>,
    /// The starts each server was notified of.
    starts: BTreeMap<MemberId, Vec<(JobId, Epoch)>>,
    /// What is in each epoch, the same for all.
    plans: BTreeMap<(JobId, Epoch), ClusterView>,
    progress: BTreeMap<(JobId, Epoch), Answers>,
    /// How often workers have gone on.
    resumed: usize,
    /// What workers have sent, by their last heartbeat.
    sent: BTreeMap<MemberId, Sent>,
    /// The workers that have stopped for a plan with the speed of links, in each run.
    measured: BTreeSet<(JobId, MemberId)>,
}

impl Ears {
    fn answer(&mut self, member: MemberId, newest: bool) -> Input {
        let newest_epoch = self.suspended.get(&member).copied().unwrap_or_default();
        let epoch = if newest { newest_epoch } else { Epoch(newest_epoch.0.saturating_sub(1)) };
        self.answered.insert((member, epoch));
        Input::Message(member, Message::Progress(epoch, member.0.to_le_bytes().to_vec()))
    }

    fn ready(&mut self, member: MemberId, back: usize) -> Input {
        let starts = self.starts.get(&member).map_or(&[][..], Vec::as_slice);
        let (job, epoch) = starts.iter().rev().nth(back).copied().unwrap_or_default();
        self.prepared.insert((member, job, epoch));
        Input::Message(member, Message::JobReady(job, epoch))
    }

    fn hear(&mut self, member: MemberId, event: Event) -> Result<(), TestCaseError> {
        match alone(event) {
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
                if let Event::Tell(event) = other {
                    self.listen(member, event)?;
                }
            }
        }
        Ok(())
    }

    fn listen(&mut self, member: MemberId, event: MemberEvent) -> Result<(), TestCaseError> {
        match event {
            MemberEvent::Started(view) => {
                self.plan(&view)?;
                prop_assert_eq!(self.views.insert(member, view), None, "started twice");
            }
            MemberEvent::JobStarted(view) => {
                self.starts.entry(member).or_default().push((view.job, view.epoch));
            }
            MemberEvent::Suspend { epoch, reason } => {
                self.measure(member, &reason)?;
                let last = self.suspended.insert(member, epoch);
                let last = last.or(self.views.get(&member).map(|view| view.epoch));
                prop_assert!(last.is_some_and(|last| last < epoch), "{epoch} after {last:?}");
            }
            MemberEvent::Resume { view, progress } => self.resume(member, view, progress)?,
            MemberEvent::Tensors { first, specs } => {
                prop_assert!(self.views.contains_key(&member), "a tensor before the start");
                let table = self.tables.entry(member).or_default();
                prop_assert_eq!(first.0 as usize, table.len(), "ids are dense");
                prop_assert!(!specs.is_empty());
                table.extend((first.0..).map(TensorId).zip(specs));
            }
            _ => {}
        }
        Ok(())
    }

    /// A plan for the speed of links comes once in a run, when all of its workers have sent enough,
    /// with the slowest one's rate.
    fn measure(&mut self, member: MemberId, reason: &str) -> Result<(), TestCaseError> {
        if !reason.contains("as measured") {
            return Ok(());
        }
        let view = self.views.get(&member).expect("started");
        prop_assert_eq!(view.speeds.link, 0, "measured before");
        let first = self.measured.insert((view.job, member));
        prop_assert!(first, "{member} stops a second time: {reason}");
        let here = |id: &&MemberId| self.welcome.get(id) == Some(&true);
        let of_run = self.views.iter().filter(|(_, known)| known.job == view.job);
        let workers = of_run.map(|(id, _)| id).filter(here);
        let rates = workers.map(|id| self.sent.get(id).and_then(|sent| sent.rate()));
        let rates = rates.collect::<Option<Vec<f64>>>();
        let slowest = rates.map(|rates| rates.into_iter().fold(f64::INFINITY, f64::min));
        let expected = slowest.map(|rate| {
            format!("the slowest link carries {:.3} Gb/s, as measured", rate.floor() * 8e-9)
        });
        prop_assert_eq!(expected.as_deref(), Some(reason));
        Ok(())
    }

    /// All see the same plan in an epoch, and every server of it had said that it is ready.
    fn plan(&mut self, view: &ClusterView) -> Result<(), TestCaseError> {
        let (job, epoch) = (view.job, view.epoch);
        let before = self.plans.range(..(job, epoch)).next_back();
        if let Some(((of, _), known)) = before.filter(|((of, _), _)| *of == job) {
            let lost = known.speeds.link > 0 && view.speeds.link == 0;
            prop_assert!(!lost, "the speed of links of {of} is not known any more");
        }
        prop_assert_eq!(self.plans.entry((job, epoch)).or_insert_with(|| view.clone()), view);
        for server in &view.servers {
            prop_assert!(self.prepared.contains(&(server.member, job, epoch)), "{view:?}");
        }
        Ok(())
    }

    /// A worker goes on only in the epoch it has answered for, with the answers of all.
    fn resume(
        &mut self,
        member: MemberId,
        view: ClusterView,
        progress: Answers,
    ) -> Result<(), TestCaseError> {
        self.plan(&view)?;
        let (job, epoch) = (view.job, view.epoch);
        prop_assert_eq!(self.suspended.remove(&member), Some(epoch));
        prop_assert!(self.answered.contains(&(member, epoch)));
        for (_, payload) in &progress {
            let by = MemberId(u64::from_le_bytes(payload[..].try_into().unwrap()));
            prop_assert!(self.answered.contains(&(by, epoch)), "{by} has not answered");
        }
        let known = self.progress.entry((job, epoch)).or_insert_with(|| progress.clone());
        prop_assert_eq!(&*known, &progress);
        let before = self.views.insert(member, view.clone()).expect("started");
        prop_assert_eq!((before.job, before.workers), (job, view.workers));
        self.resumed += 1;
        Ok(())
    }

    /// Workers of one run see one view in an epoch; one's table is the beginning of the other's.
    fn agree(&self) -> Result<(), TestCaseError> {
        for (one, view) in &self.views {
            for (other, other_view) in &self.views {
                if view.job != other_view.job {
                    continue;
                }
                if view.epoch == other_view.epoch {
                    prop_assert_eq!(view, other_view);
                }
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
        let input = input(act, &mut next_member, &mut ears);
        for (member, event) in world.registry.step(world.now, input) {
            ears.hear(member, event)?;
        }
        ears.agree()?;
        let report = world.registry.status(world.now, None);
        prop_assert!(report.jobs.iter().all(|job| !job.workers.is_empty()), "an empty job is kept");
    }
    settle(&mut world, &mut ears)?;
    Ok(ears)
}

/// Lets all members answer what they were asked: no change stays incomplete.
fn settle(world: &mut World, ears: &mut Ears) -> Result<(), TestCaseError> {
    // A drain put off until the start makes one more epoch.
    for _ in 0..3 {
        let workers: Vec<MemberId> = ears.suspended.keys().copied().collect();
        let mut inputs: Vec<Input> = workers.iter().map(|w| ears.answer(*w, true)).collect();
        for (server, count) in
            ears.starts.iter().map(|(s, list)| (*s, list.len())).collect::<Vec<_>>()
        {
            inputs.extend((0..count).map(|back| ears.ready(server, back)));
        }
        for input in inputs {
            for (member, event) in world.registry.step(world.now, input) {
                ears.hear(member, event)?;
            }
        }
    }
    for job in world.registry.status(world.now, None).jobs {
        prop_assert!(!["starting", "changing"].contains(&job.state.as_str()), "{job:?}");
    }
    Ok(())
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
    let (mut runs, mut tensors, mut resumed, mut measured) = (0, 0, 0, 0);
    for _ in 0..50 {
        let acts = acts(120).new_tree(&mut runner).unwrap().current();
        let ears = play(&acts, Serves::ManyJobs).unwrap();
        runs += ears.views.len();
        tensors += ears.tables.values().map(Vec::len).sum::<usize>();
        resumed += ears.resumed;
        measured += ears.measured.len();
    }
    let counted = format!("{runs} workers in runs, {tensors} tensors told, {resumed} resumed");
    assert!(runs > 50 && tensors > 100 && resumed > 50, "{counted}");
    assert!(measured > 10, "{measured} workers stopped for the speed of links");
}
