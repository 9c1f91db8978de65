//! Coordinators and members in one process, over loopback.

mod end;
mod life;
mod refusal;
mod seat;
mod tenants;
mod tls;
mod trace;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use sumpter_coordinator::{Coordinator, CoordinatorOptions, JoinError, JoinOptions, Member};
use sumpter_membership::{
    ClusterView, LaneView, MemberEvent, ServerMemory, Serves, StallLimits, Tenants,
};
use sumpter_types::{
    Bandwidth, BandwidthSource, Collective, Dtype, Rank, ReduceOp, Role, Speeds, Staleness,
    TensorSpec,
};
use sumpter_wire::Token;

/// Far longer than anything here takes; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn token() -> Token {
    Token::new("the token of these tests").unwrap()
}

fn options(serves: Serves) -> CoordinatorOptions {
    CoordinatorOptions {
        token: token(),
        tenants: Tenants::default(),
        tls: None,
        start_timeout: PATIENCE,
        peer_timeout: PATIENCE,
        server_timeout: PATIENCE,
        serves,
    }
}

fn coordinator(serves: Serves) -> Coordinator {
    Coordinator::start("127.0.0.1:0", options(serves)).unwrap()
}

fn lane(port: u16) -> LaneView {
    ([127, 0, 0, 1], port).into()
}

fn worker(coordinator: SocketAddr, rank: u32, world_size: u32) -> JoinOptions {
    JoinOptions {
        coordinator: coordinator.to_string(),
        token: token(),
        tls: None,
        job: "default".to_owned(),
        role: Role::Worker {
            rank: Rank(rank),
            world_size,
            local_rank: rank,
            local_size: world_size,
        },
        machine: "this machine".to_owned(),
        host: format!("host{rank}"),
        lanes: vec![lane(7000 + rank as u16)],
        bandwidth: Some(Bandwidth { gbps: 25.0, source: BandwidthSource::Interface }),
        rack: None,
        device_group: None,
        speeds: Speeds::default(),
        expected_servers: 0,
        start_timeout: PATIENCE,
        peer_timeout: PATIENCE,
        server_timeout: PATIENCE,
        settings: BTreeMap::new(),
        memory: ServerMemory::default(),
        stalls: StallLimits::default(),
    }
}

fn server(coordinator: SocketAddr) -> JoinOptions {
    JoinOptions {
        role: Role::Server,
        host: "helper".to_owned(),
        machine: "helper".to_owned(),
        lanes: vec![lane(9000), lane(9001)],
        ..worker(coordinator, 0, 1)
    }
}

fn spec(name: &str, shape: &[u64]) -> TensorSpec {
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

/// A member and its messages.
struct Peer {
    member: Member,
    events: mpsc::Receiver<MemberEvent>,
}

impl Peer {
    fn join(options: JoinOptions) -> Self {
        Self::try_join(options).unwrap()
    }

    fn try_join(options: JoinOptions) -> Result<Self, JoinError> {
        let (tell, events) = mpsc::channel();
        let member = Member::join(options, move |event| {
            // How often it is notified of what is missing depends on the machine's speed.
            if !matches!(event, MemberEvent::Waiting { .. }) {
                // The test may be over before the member has got all events.
                drop(tell.send(event));
            }
        })?;
        Ok(Self { member, events })
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

    /// Leaves, after which nothing more may come.
    fn leave(self) {
        self.member.leave();
        drop(self.member);
        let rest: Vec<MemberEvent> = self.events.iter().collect();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

/// Workers of a job that has started.
fn started(coordinator: &Coordinator, n: u32) -> Vec<Peer> {
    let address = coordinator.address();
    let peers: Vec<Peer> = (0..n).map(|rank| Peer::join(worker(address, rank, n))).collect();
    for peer in &peers {
        assert_eq!(peer.started().workers.len(), n as usize);
    }
    peers
}

fn refusal(options: JoinOptions) -> JoinError {
    match Peer::try_join(options) {
        Ok(_) => panic!("must be refused"),
        Err(error) => error,
    }
}
