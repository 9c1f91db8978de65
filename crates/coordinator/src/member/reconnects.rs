//! Tests: a coordinator that dies and returns, over loopback. As far as it knows, it is in another
//! process than the members of these tests.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use sumpter_membership::{
    ClusterView, KnownRun, MemberEvent, Rejoin, ServerMemory, Serves, StallLimits, Tenants,
};
use sumpter_types::{Epoch, JobId, Rank, Role, Speeds, TensorId};
use sumpter_wire::Token;

use super::greeting::Greeting;
use crate::codec::rejoin_to_proto;
use crate::member::options::JoinOptions;
use crate::testing::spec;
use crate::{Coordinator, CoordinatorOptions, Member, drain, proto, status};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const ELSEWHERE: u64 = 0;

fn token() -> Token {
    Token::new("the token of these tests").unwrap()
}

fn coordinator(listen: &str) -> Coordinator {
    let options = CoordinatorOptions {
        token: token(),
        tenants: Tenants::default(),
        tls: None,
        start_timeout: PATIENCE,
        peer_timeout: PATIENCE,
        server_timeout: PATIENCE,
        serves: Serves::ManyJobs,
    };
    Coordinator::start_in(ELSEWHERE, listen, options).unwrap()
}

struct Peer {
    member: Member,
    events: mpsc::Receiver<MemberEvent>,
}

impl Peer {
    fn join(coordinator: &str, role: Role, start_timeout: Duration) -> Self {
        let options = JoinOptions {
            stalls: StallLimits::default(),
            coordinator: coordinator.to_owned(),
            token: token(),
            tls: None,
            job: "default".to_owned(),
            role,
            machine: "machine".to_owned(),
            host: "host".to_owned(),
            lanes: vec![([127, 0, 0, 1], 7000).into()],
            bandwidth: None,
            rack: None,
            device_group: None,
            speeds: Speeds::default(),
            expected_servers: 1,
            start_timeout,
            peer_timeout: PATIENCE,
            server_timeout: PATIENCE,
            settings: BTreeMap::new(),
            memory: ServerMemory::default(),
        };
        let (tell, events) = mpsc::channel();
        let member = Member::join(options, move |event| {
            if !matches!(event, MemberEvent::Waiting { .. }) {
                // The test may be over before the member has got all events.
                drop(tell.send(event));
            }
        });
        Self { member: member.unwrap(), events }
    }

    fn worker(coordinator: &str, rank: u32, world_size: u32, start_timeout: Duration) -> Self {
        let (local_rank, local_size) = (rank, world_size);
        let role = Role::Worker { rank: Rank(rank), world_size, local_rank, local_size };
        Self::join(coordinator, role, start_timeout)
    }

    fn next(&self) -> MemberEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    fn started(&self) -> ClusterView {
        match self.next() {
            MemberEvent::Started(view) | MemberEvent::JobStarted(view) => view,
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Answers until the run has no server.
fn go_on_alone(worker: Peer, run: JobId) -> Peer {
    let mut servers = 1;
    while servers > 0 {
        match worker.next() {
            MemberEvent::Resume { view, progress } => {
                assert_eq!((view.job, progress.len()), (run, 2));
                servers = view.servers.len();
            }
            MemberEvent::Suspend { epoch, .. } => worker.member.progress(epoch, vec![4]),
            other => panic!("{other:?}"),
        }
    }
    worker
}

#[test]
fn a_run_outlives_its_coordinator() {
    let mut first = coordinator("127.0.0.1:0");
    let address = first.address().to_string();
    let helper = Peer::join(&address, Role::Server, PATIENCE);
    let workers = [0, 1].map(|rank| Peer::worker(&address, rank, 2, PATIENCE));
    let view = helper.started();
    let run = view.job;
    for worker in &workers {
        assert_eq!(worker.started(), view);
        worker.member.declare(spec("before", &[1]));
    }
    for worker in &workers {
        assert!(matches!(worker.next(), MemberEvent::Tensors { first: TensorId(0), .. }));
    }
    first.stop();
    // Asked of no member in particular; answered by any that comes.
    workers[1].member.declare(spec("meanwhile", &[1]));
    let mut second = coordinator(&address);
    for worker in &workers {
        let MemberEvent::Tensors { first, specs } = worker.next() else { panic!() };
        assert_eq!((first, specs[0].name.as_str()), (TensorId(1), "meanwhile"));
    }
    let report = status(&address, &token(), None, None).unwrap();
    let job = &report.jobs[0];
    assert_eq!((job.state.as_str(), job.epoch, job.tensors), ("running", 1, 2));
    assert_eq!(job.servers, [helper.member.id().0]);

    // The next is lost in the middle of a change, which an operator has asked for.
    drain(&address, &token(), None, &helper.member.id().0.to_string()).unwrap();
    for worker in &workers {
        assert!(matches!(worker.next(), MemberEvent::Suspend { epoch: Epoch(2), .. }));
    }
    workers[0].member.progress(Epoch(2), vec![2]);
    second.stop();
    let third = coordinator(&address);
    for worker in &workers {
        let event = worker.next();
        assert!(matches!(event, MemberEvent::Suspend { epoch: Epoch(3), .. }), "{event:?}");
        worker.member.progress(Epoch(3), vec![3]);
    }
    // Whether it is used once more depends on when it asks again to be drained.
    let workers = workers.map(|worker| std::thread::spawn(move || go_on_alone(worker, run)));
    while helper.next() != MemberEvent::Drained {}
    for worker in workers {
        worker.join().unwrap().member.leave();
    }
    assert!(third.wait_empty(PATIENCE));
}

#[test]
fn a_coordinator_that_stays_away_is_lost() {
    let mut first = coordinator("127.0.0.1:0");
    let address = first.address().to_string();
    let _helper = Peer::join(&address, Role::Server, PATIENCE);
    let zero = Peer::worker(&address, 0, 1, Duration::from_millis(300));
    zero.started();
    first.stop();
    let MemberEvent::CoordinatorLost { message } = zero.next() else { panic!() };
    assert!(message.contains("joining again failed: no coordinator answered"), "{message}");
    // It does not keep anybody from ending.
    drop(zero);
}

#[test]
fn a_run_is_given_back_only_to_those_who_were_in_it() {
    let coordinator = coordinator("127.0.0.1:0");
    let address = coordinator.address().to_string();
    let _helper = Peer::join(&address, Role::Server, PATIENCE);
    let zero = Peer::worker(&address, 0, 1, PATIENCE);
    let mut view = zero.started();
    // Of another run: a member that takes part in a run gets its key.
    view.job.0 += 1;
    let run = Some(KnownRun { view, ..KnownRun::default() });
    let rejoin = Some(rejoin_to_proto(Rejoin { run, ..Rejoin::default() }));
    let role = Some(proto::join::Role::Worker(proto::WorkerRole::default()));
    let join = proto::Join { role, rejoin, ..proto::Join::default() };
    let token = token();
    let greeting = Greeting {
        coordinator: &address,
        token: &token,
        tls: None,
        purpose: proto::purpose::Body::Join(join),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(greeting.until(PATIENCE)).err().unwrap().to_string();
    assert!(refused.contains("it was in no such run"), "{refused}");
}
