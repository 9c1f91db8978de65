//! Tests: peers that do not keep to the protocol, on either side of a session.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::Duration;

use prost::Message as _;
use sumpter_membership::{FatalKind, MemberEvent, ServerMemory, Serves, StallLimits, Tenants};
use sumpter_types::{Collective, Dtype, Rank, ReduceOp, Role, Speeds, Staleness, TensorSpec};
use sumpter_wire::{PROTOCOL_VERSION, ProofRole, Token};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::codec::{join_to_proto, pieces, shared, spec_to_proto};
use crate::handshake::{Transcript, nonce};
use crate::proto::control_client::ControlClient;
use crate::proto::control_server::{Control, ControlServer};
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{self, CoordinatorMessage, MemberMessage};
use crate::{Coordinator, CoordinatorOptions, JoinError, JoinOptions, Member};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn token() -> Token {
    Token::new("the token of these tests").unwrap()
}

fn coordinator() -> Coordinator {
    let options = CoordinatorOptions {
        token: token(),
        tenants: Tenants::default(),
        tls: None,
        start_timeout: PATIENCE,
        peer_timeout: PATIENCE,
        server_timeout: PATIENCE,
        serves: Serves::ManyJobs,
    };
    Coordinator::start("127.0.0.1:0", options).unwrap()
}

fn worker(coordinator: SocketAddr, rank: u32, world_size: u32) -> JoinOptions {
    JoinOptions {
        coordinator: coordinator.to_string(),
        token: token(),
        tls: None,
        job: "default".to_owned(),
        role: Role::Worker { rank: Rank(rank), world_size, local_rank: 0, local_size: 1 },
        machine: "machine".to_owned(),
        host: format!("host{rank}"),
        lanes: Vec::new(),
        bandwidth: None,
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

fn spec(name: String) -> TensorSpec {
    TensorSpec {
        name,
        dtype: Dtype::F32,
        shape: vec![1],
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

/// A member that says whatever a test wants, and reads only while a test waits for it.
struct Raw {
    runtime: Runtime,
    outbound: mpsc::UnboundedSender<MemberMessage>,
    inbound: Streaming<CoordinatorMessage>,
    challenge: proto::Challenge,
}

impl Raw {
    fn open(address: SocketAddr) -> Self {
        match Self::begin(address, [127, 0, 0, 1].into()) {
            (session, ToMember::Challenge(challenge)) => Self { challenge, ..session },
            (_, other) => panic!("{other:?}"),
        }
    }

    /// A session from this address of this machine, and what the coordinator says first.
    fn begin(address: SocketAddr, from: IpAddr) -> (Self, ToMember) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (outbound, said) = mpsc::unbounded_channel();
        let opened = async {
            let to = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let channel = to.local_address(Some(from)).connect().await.unwrap();
            let mut client = ControlClient::new(channel);
            let response = client.session(UnboundedReceiverStream::new(said)).await.unwrap();
            let mut inbound = response.into_inner();
            let first = inbound.message().await.unwrap().unwrap().body.unwrap();
            (inbound, first)
        };
        let (inbound, first) = runtime.block_on(opened);
        let challenge = proto::Challenge::default();
        (Self { runtime, outbound, inbound, challenge }, first)
    }

    fn say(&self, body: FromMember) {
        self.outbound.send(MemberMessage { body: Some(body) }).unwrap();
    }

    fn hello(&self, version: u32, purpose: &[u8]) -> proto::Hello {
        let member_nonce = nonce().unwrap();
        let transcript = Transcript {
            coordinator_nonce: &self.challenge.nonce,
            member_nonce: &member_nonce,
            member_version: version,
            purpose,
        };
        proto::Hello {
            protocol_version: version,
            nonce: member_nonce.to_vec(),
            purpose: purpose.to_vec(),
            proof: transcript.prove(&token(), ProofRole::Member).to_vec(),
        }
    }

    fn greet(&self, options: &JoinOptions) {
        let purpose = proto::purpose::Body::Join(join_to_proto(options, 0));
        let purpose = proto::Purpose { body: Some(purpose) }.encode_to_vec();
        self.say(FromMember::Hello(self.hello(u32::from(PROTOCOL_VERSION), &purpose)));
    }

    /// What comes next; `None` at the end of the session.
    fn next(&mut self) -> Option<ToMember> {
        let message = self.runtime.block_on(self.inbound.message());
        match message.ok().flatten()?.body.unwrap() {
            ToMember::Shared(encoded) => CoordinatorMessage::decode(encoded).unwrap().body,
            body => Some(body),
        }
    }

    fn refused(&mut self) -> (proto::FatalKind, String) {
        match self.next() {
            Some(ToMember::Refused(refused)) => (refused.kind(), refused.message),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_member_of_another_version_is_told_both_versions() {
    let coordinator = coordinator();
    let mut raw = Raw::open(coordinator.address());
    assert_eq!(raw.challenge.protocol_version, u32::from(PROTOCOL_VERSION));
    raw.say(FromMember::Hello(raw.hello(99, &[])));
    let (kind, text) = raw.refused();
    assert_eq!(kind, proto::FatalKind::Version);
    assert!(text.contains(&format!("version {PROTOCOL_VERSION}")) && text.contains("version 99"));
    assert_eq!(raw.next(), None);
}

#[test]
fn a_proof_recorded_in_one_session_is_worth_nothing_in_another() {
    let coordinator = coordinator();
    let first = Raw::open(coordinator.address());
    let hello = first.hello(u32::from(PROTOCOL_VERSION), &[]);
    let mut second = Raw::open(coordinator.address());
    second.say(FromMember::Hello(hello));
    assert_eq!(second.refused().0, proto::FatalKind::Auth);
}

#[test]
fn what_is_no_greeting_is_refused() {
    let coordinator = coordinator();
    let mut raw = Raw::open(coordinator.address());
    raw.say(FromMember::Leave(proto::Leave {}));
    assert_eq!(raw.refused().0, proto::FatalKind::Protocol);

    for purpose in [&[][..], &[0xff; 40]] {
        let mut raw = Raw::open(coordinator.address());
        raw.say(FromMember::Hello(raw.hello(u32::from(PROTOCOL_VERSION), purpose)));
        assert_eq!(raw.refused().0, proto::FatalKind::Protocol);
    }
    let mut raw = Raw::open(coordinator.address());
    let purpose = proto::purpose::Body::Join(proto::Join::default());
    let purpose = proto::Purpose { body: Some(purpose) }.encode_to_vec();
    raw.say(FromMember::Hello(raw.hello(u32::from(PROTOCOL_VERSION), &purpose)));
    assert_eq!(
        raw.refused(),
        (proto::FatalKind::Protocol, "a request to join without a role".into())
    );
}

#[test]
fn a_member_that_sends_nonsense_is_dismissed_and_the_others_are_told() {
    let list = |bad| {
        let good = spec_to_proto(spec("good".into()));
        FromMember::Declare(proto::Declare { specs: vec![good, bad] })
    };
    let senseless = [
        None,
        Some(FromMember::Hello(proto::Hello::default())),
        Some(list(proto::TensorSpec::default())),
        Some(list(proto::TensorSpec { dtype: 9, ..spec_to_proto(spec("t".into())) })),
        Some(list(proto::TensorSpec { op: 300, ..spec_to_proto(spec("t".into())) })),
    ];
    for body in senseless {
        let coordinator = coordinator();
        let mut raw = Raw::open(coordinator.address());
        raw.greet(&worker(coordinator.address(), 0, 2));
        assert!(matches!(raw.next(), Some(ToMember::Welcome(_))));
        let (tell, events) = blocking::channel();
        let one = worker(coordinator.address(), 1, 2);
        let _one = Member::join(one, move |event| drop(tell.send(event))).unwrap();
        assert!(matches!(raw.next(), Some(ToMember::Started(_))));
        raw.outbound.send(MemberMessage { body: body.clone() }).unwrap();
        match raw.next() {
            Some(ToMember::Fatal(fatal)) => assert_eq!(fatal.kind(), proto::FatalKind::Protocol),
            other => panic!("{body:?}: {other:?}"),
        }
        assert_eq!(raw.next(), None);
        assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), MemberEvent::Started(_)));
        let event = events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event, MemberEvent::WorkerLost { rank: Rank(0), .. }), "{event:?}");
    }
}

#[test]
fn a_member_that_does_not_read_its_events_is_dropped() {
    let coordinator = coordinator();
    let mut raw = Raw::open(coordinator.address());
    raw.greet(&worker(coordinator.address(), 0, 2));
    assert!(matches!(raw.next(), Some(ToMember::Welcome(_))));
    let (tell, events) = blocking::channel();
    let one = worker(coordinator.address(), 1, 2);
    let one = Member::join(one, move |event| drop(tell.send(event))).unwrap();
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), MemberEvent::Started(_)));
    // More than the queue and what HTTP/2 takes on the way to a member that does not read.
    for i in 0..12_000 {
        one.refuse(format!("{i:01000}"), "of no use".to_owned());
    }
    let lost = events.iter().find(|event| !matches!(event, MemberEvent::TensorError { .. }));
    let Some(MemberEvent::WorkerLost { rank, reason, .. }) = lost else { panic!("{lost:?}") };
    assert_eq!((rank, reason.as_str()), (Rank(0), "it left 4096 events unread"));
    drop(raw);
}

#[test]
fn a_recorded_greeting_is_worthless_in_another_session() {
    let coordinator = coordinator();
    let mut honest = Raw::open(coordinator.address());
    let options = worker(coordinator.address(), 0, 2);
    let join = proto::purpose::Body::Join(join_to_proto(&options, 0));
    let purpose = proto::Purpose { body: Some(join) }.encode_to_vec();
    let hello = honest.hello(u32::from(PROTOCOL_VERSION), &purpose);
    let mut replaying = Raw::open(coordinator.address());
    honest.say(FromMember::Hello(hello.clone()));
    assert!(matches!(honest.next(), Some(ToMember::Welcome(_))));
    replaying.say(FromMember::Hello(hello));
    let (kind, text) = replaying.refused();
    assert_eq!((kind, text.as_str()), (proto::FatalKind::Auth, "the tokens differ"));
}

#[test]
fn one_address_cannot_take_all_places_of_sessions_that_prove_nothing() {
    let coordinator = coordinator();
    let (greedy, polite) = ([127, 0, 0, 2].into(), [127, 0, 0, 3].into());
    let mut silent = Vec::new();
    let refused = loop {
        match Raw::begin(coordinator.address(), greedy) {
            (session, ToMember::Challenge(_)) => silent.push(session),
            (_, ToMember::Refused(refused)) => break refused,
            (_, other) => panic!("{other:?}"),
        }
        // The first may have run out of time on a slow machine, and made place.
        assert!(silent.len() < 200, "one address may take every place");
    };
    assert!(refused.retry && refused.message.contains("too many"), "{refused:?}");
    let (_session, first) = Raw::begin(coordinator.address(), polite);
    assert!(matches!(first, ToMember::Challenge(_)), "{first:?}");
}

/// A coordinator that says what a test wants.
#[derive(Clone)]
struct Scripted {
    version: u32,
    /// What its welcomes are proved by; if by nothing, they are worthless.
    token: Option<Token>,
    /// What it says in each session after its welcome. All but the last end with that.
    sessions: Arc<Mutex<VecDeque<Vec<ToMember>>>>,
}

#[tonic::async_trait]
impl Control for Scripted {
    type SessionStream = ReceiverStream<Result<CoordinatorMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<MemberMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (outbound, told) = mpsc::channel(4);
        let (script, is_last) = {
            let mut sessions = self.sessions.lock().unwrap();
            (sessions.pop_front().unwrap_or_default(), sessions.is_empty())
        };
        let (version, token, own_nonce) = (self.version, self.token.clone(), nonce().unwrap());
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            let message = |body| Ok(CoordinatorMessage { body: Some(body) });
            let nonce = own_nonce.to_vec();
            let challenge = proto::Challenge { protocol_version: version, nonce };
            let _ = outbound.send(message(ToMember::Challenge(challenge))).await;
            let Ok(Some(MemberMessage { body: Some(FromMember::Hello(hello)) })) =
                inbound.message().await
            else {
                return;
            };
            let transcript = Transcript {
                coordinator_nonce: &own_nonce,
                member_nonce: &hello.nonce,
                member_version: hello.protocol_version,
                purpose: &hello.purpose,
            };
            let proof = token.map(|token| transcript.prove(&token, ProofRole::Coordinator));
            let welcome = proto::Welcome {
                member: 1,
                proof: proof.unwrap_or([7; 32]).to_vec(),
                peer_timeout_ms: 30_000,
                silence_ms: 30_000,
            };
            let _ = outbound.send(message(ToMember::Welcome(welcome))).await;
            for body in script {
                let _ = outbound.send(message(body)).await;
            }
            while is_last && matches!(inbound.message().await, Ok(Some(_))) {}
        });
        Ok(Response::new(ReceiverStream::new(told)))
    }
}

/// What a member that meets a coordinator comes to.
fn meet(
    scripted: Scripted,
    on_event: impl FnMut(MemberEvent) + Send + 'static,
    then: impl FnOnce(Result<Member, JoinError>),
) {
    let (address_is, address) = blocking::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address_is.send(listener.local_addr().unwrap()).unwrap();
            let serving = Server::builder().serve_with_incoming_shutdown(
                ControlServer::new(scripted),
                TcpIncoming::from(listener),
                async { drop(stopped.await) },
            );
            serving.await.unwrap();
        });
    });
    then(Member::join(worker(address.recv().unwrap(), 0, 1), on_event));
    stop.send(()).unwrap();
    thread.join().unwrap();
}

/// What a member thinks of a coordinator that does not prove itself.
fn mistrust(version: u32) -> JoinError {
    let mut error = None;
    let impostor = Scripted { version, token: None, sessions: Arc::default() };
    meet(impostor, |_| {}, |result| error = result.err());
    error.expect("an impostor must not be trusted")
}

#[test]
fn a_coordinator_that_does_not_hold_the_token_is_not_trusted() {
    let error = mistrust(u32::from(PROTOCOL_VERSION));
    assert!(matches!(error, JoinError::CoordinatorUnproven { .. }), "{error}");
    assert_eq!(error.kind(), FatalKind::Auth);
}

#[test]
fn a_coordinator_of_another_version_is_named_with_both_versions() {
    let error = mistrust(99);
    assert_eq!(error.kind(), FatalKind::Version);
    let text = error.to_string();
    let ours = format!("version {PROTOCOL_VERSION}");
    assert!(text.contains("version 99") && text.contains(&ours), "{text}");
}

#[test]
fn pieces_of_a_coordinator_that_died_are_not_those_of_the_next() {
    // As a coordinator starts a run of one worker.
    let coordinator = coordinator();
    let mut raw = Raw::open(coordinator.address());
    raw.greet(&worker(coordinator.address(), 0, 1));
    assert!(matches!(raw.next(), Some(ToMember::Welcome(_))));
    let started = raw.next().unwrap();
    assert!(matches!(started, ToMember::Started(_)), "{started:?}");

    // Noise, so that it travels in several pieces.
    let large = |name: &str, mut state: u64| {
        let message = (0..1 << 20)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b'0' + (state >> 58) as u8)
            })
            .collect();
        ToMember::TensorError(proto::TensorError { name: name.to_owned(), message })
    };
    let ToMember::TensorError(whole) = large("whole", 2) else { unreachable!() };
    let mut broken_off: Vec<_> = pieces(shared(large("broken off", 1))).collect();
    assert!(broken_off.len() > 2);
    broken_off.truncate(2);
    broken_off.insert(0, started);
    let sessions = [broken_off, pieces(shared(ToMember::TensorError(whole.clone()))).collect()];
    let scripted = Scripted {
        version: u32::from(PROTOCOL_VERSION),
        token: Some(token()),
        sessions: Arc::new(Mutex::new(sessions.into())),
    };
    let (tell, events) = blocking::channel();
    meet(
        scripted,
        move |event| drop(tell.send(event)),
        |member| {
            let _member = member.unwrap();
            assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), MemberEvent::Started(_)));
            let expected = MemberEvent::TensorError { name: whole.name, message: whole.message };
            let event = events.recv_timeout(PATIENCE).unwrap();
            // Without the text, which is large.
            assert!(event == expected, "{}", &format!("{event:?}")[..80]);
        },
    );
}
