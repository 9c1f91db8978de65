//! The registry under a clock of our own: what each kind of trouble looks like to each member.

mod admission;
mod epochs;
mod matching;
mod property;
mod quotas;
mod returning;
mod runs;
mod speeds;
mod stalls;
mod start;
mod survivors;
mod tensors;
mod tuning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sumpter_types::{
    Bandwidth, BandwidthSource, Collective, DeviceGroup, Dtype, Epoch, JobId, MemberId, PendingOp,
    Rank, ReduceOp, Role, Speeds, Staleness, Stats, TensorId, TensorSpec,
};

use super::{Event, Input, Join, Message, Options, Refusal, Registry, ServerMemory};
use crate::event::{FatalKind, MemberEvent};
use crate::registry::io::{Serves, StallLimits};
use crate::view::{ClusterView, LaneView};

/// The process the coordinator of these tests runs in.
const OUR_PROCESS: u64 = 77;

/// An all-reduce of floats.
pub(crate) fn spec(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        collective: Collective::AllReduce,
        op: ReduceOp::Sum,
        root: Rank(0),
        ranks: Vec::new(),
        rule: None,
        staleness: Staleness::default(),
        sharded: false,
        compression: String::new(),
    }
}

fn worker_of(job: &str, rank: u32, world_size: u32) -> Join {
    Join {
        job: job.to_owned(),
        role: Role::Worker {
            rank: Rank(rank),
            world_size,
            local_rank: rank,
            local_size: world_size,
        },
        machine: format!("machine-{rank}"),
        host: format!("host{rank}"),
        lanes: vec![([10, 0, 0, 1], 7000 + rank as u16).into()],
        bandwidth: None,
        rack: None,
        device_group: None,
        speeds: Speeds::default(),
        expected_servers: 0,
        start_timeout: Duration::from_secs(30),
        peer_timeout: Duration::from_secs(4),
        server_timeout: Duration::from_secs(2),
        settings: BTreeMap::from([("chunk_bytes".to_owned(), "262144".to_owned())]),
        coordinator: "node0:29400".to_owned(),
        process: u64::from(rank),
        memory: ServerMemory::default(),
        rejoin: None,
        stalls: StallLimits::default(),
    }
}

fn worker(rank: u32, world_size: u32) -> Join {
    worker_of("default", rank, world_size)
}

fn server(host: &str) -> Join {
    Join {
        job: String::new(),
        role: Role::Server,
        machine: format!("machine-{host}"),
        host: host.to_owned(),
        lanes: vec![([10, 0, 0, 2], 9000).into()],
        ..worker(0, 1)
    }
}

/// A registry, its clock, and the events of its members that have not been looked at.
/// The same for one member.
fn alone(event: Event) -> Event {
    match event {
        Event::Announce(event) => Event::Tell(Arc::unwrap_or_clone(event)),
        other => other,
    }
}

struct World {
    registry: Registry,
    now: Duration,
    told: BTreeMap<MemberId, Vec<Event>>,
    last_member: u64,
    /// Members that send heartbeats.
    alive: Vec<MemberId>,
}

impl World {
    fn new() -> Self {
        Self::with(Serves::ManyJobs)
    }

    fn with(serves: Serves) -> Self {
        let options = Options {
            start_timeout: Duration::from_secs(30),
            peer_timeout: Duration::from_secs(4),
            server_timeout: Duration::from_secs(2),
            serves,
            process: OUR_PROCESS,
            tenants: Default::default(),
        };
        let mut drawn = 1000;
        let draw = move || {
            drawn += 1;
            drawn
        };
        Self {
            registry: Registry::new(options, Box::new(draw)),
            now: Duration::ZERO,
            told: BTreeMap::new(),
            last_member: 0,
            alive: Vec::new(),
        }
    }

    fn step(&mut self, input: Input) {
        for (member, event) in self.registry.step(self.now, input) {
            self.told.entry(member).or_default().push(alone(event));
        }
    }

    fn try_join(&mut self, join: Join) -> (MemberId, Option<Refusal>) {
        self.last_member += 1;
        let member = MemberId(self.last_member);
        self.step(Input::Join(member, Box::new(join)));
        let told = self.told.get_mut(&member).expect("an applicant hears something");
        match told.remove(0) {
            Event::Welcome { .. } => {
                self.alive.push(member);
                (member, None)
            }
            Event::Refused(refusal) => {
                assert_eq!(self.told.remove(&member), Some(vec![Event::Close]));
                (member, Some(refusal))
            }
            other => panic!("neither welcome nor refusal: {other:?}"),
        }
    }

    fn join(&mut self, join: Join) -> MemberId {
        let (member, refusal) = self.try_join(join);
        assert_eq!(refusal, None);
        member
    }

    fn refused(&mut self, join: Join) -> Refusal {
        self.try_join(join).1.expect("must be refused")
    }

    /// Workers `0..n` of the default job, started and with nothing left to read.
    fn started(&mut self, n: u32) -> Vec<MemberId> {
        let workers: Vec<MemberId> = (0..n).map(|rank| self.join(worker(rank, n))).collect();
        for member in &workers {
            self.view(*member);
        }
        workers
    }

    fn say(&mut self, member: MemberId, message: Message) {
        self.step(Input::Message(member, message));
    }

    fn close(&mut self, member: MemberId) {
        self.alive.retain(|m| *m != member);
        self.step(Input::Closed(member, "connection closed".to_owned()));
    }

    fn leave(&mut self, member: MemberId) {
        self.alive.retain(|m| *m != member);
        self.say(member, Message::Leave);
        let told = self.told.remove(&member).unwrap_or_default();
        assert_eq!(told, [Event::LeaveSeen, Event::Close]);
    }

    /// Lets time pass as a coordinator does, while the members that are alive say so.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = end.min(self.now + Duration::from_millis(250));
            for member in self.alive.clone() {
                self.step(Input::Message(member, Message::Heartbeat(None)));
                let told = self.told.get_mut(&member).expect("a heartbeat is answered");
                assert_eq!(told.pop(), Some(Event::HeartbeatSeen));
            }
            self.step(Input::Tick);
        }
    }

    /// The member's events since the last look.
    fn told(&mut self, member: MemberId) -> Vec<MemberEvent> {
        let told = self.told.remove(&member).unwrap_or_default();
        let event = |event| match event {
            Event::Tell(event) => Some(event),
            // To each list that it has declared.
            Event::Declared => None,
            other => panic!("unexpected {other:?}"),
        };
        told.into_iter().filter_map(event).collect()
    }

    /// The member's only event since the last look.
    fn told_one(&mut self, member: MemberId) -> MemberEvent {
        let mut told = self.told(member);
        assert_eq!(told.len(), 1, "{told:?}");
        told.remove(0)
    }

    fn view(&mut self, member: MemberId) -> ClusterView {
        match self.told_one(member) {
            MemberEvent::Started(view) | MemberEvent::JobStarted(view) => view,
            other => panic!("unexpected {other:?}"),
        }
    }

    fn fatal(&mut self, member: MemberId) -> (FatalKind, String) {
        match self.told_one(member) {
            MemberEvent::Fatal { kind, message } => (kind, message),
            other => panic!("unexpected {other:?}"),
        }
    }
}
