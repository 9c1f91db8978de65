//! Carries messages between sessions and the registry.
//!
//! A session's task only reads; outgoing messages go through a bounded queue for each session,
//! filled while the registry is locked, so that all members get them in one order. The registry is
//! never locked across an await.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::Message as _;
use sumpter_config::make_room_for_files;
use sumpter_membership::{
    Event, FatalKind, Input, MAX_WORLD, MemberEvent, Message, Options, Registry, Rejoin,
    TuneReport, TuneRequest,
};
use sumpter_observe::monotonic_ns;
use sumpter_types::{MemberId, Role, StatusReport};
use sumpter_wire::{PROTOCOL_VERSION, Proof, ProofRole};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

use crate::codec::{
    event_to_proto, join_from_proto, kind_to_proto, message_from_proto, milliseconds, pieces,
    report_to_proto, run_members_to_proto, shared,
};
use crate::handshake::{Transcript, nonce};
use crate::keys::{Keys, Scope, keep_to_job};
use crate::proto;
use crate::proto::control_server::Control;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::drain_request::Who;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{CoordinatorMessage, MemberMessage};
use crate::seat_service::SeatService;
use crate::shares::{Origin, Shares};
use crate::traces::Traces;

/// What a member may leave unread, or it counts as dead.
const UNREAD_LIMIT: usize = 4096;
/// How long a new session may take to prove itself.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Sessions that have not proved themselves, of which one address may have a quarter. A member
/// takes milliseconds to do so.
const GREETINGS_AT_ONCE: usize = 256;
/// How long a session that is over may take to hang up by itself.
const HANGUP_LIMIT: Duration = Duration::from_secs(1);

pub(crate) type Outbound = mpsc::Sender<Result<CoordinatorMessage, Status>>;

/// What all sessions share.
pub(crate) struct Shared {
    keys: Arc<Keys>,
    started: Instant,
    pub seats: SeatService,
    greetings: Mutex<Shares>,
    state: Mutex<State>,
    changed: Condvar,
    /// Members for whose sessions there is room.
    room: AtomicU32,
}

pub(crate) struct State {
    keys: Arc<Keys>,
    pub registry: Registry,
    pub traces: Traces,
    sessions: HashMap<MemberId, Session>,
    last_member: u64,
    stopping: bool,
    /// What several members are being notified of, encoded.
    announced: Option<(Arc<MemberEvent>, ToMember)>,
}

/// The coordinator's end of a member's session.
struct Session {
    outbound: Outbound,
    proof: Proof,
    /// When the latest heartbeat was sent, by its sender's clock, and when it was received.
    beat: (u64, u64),
    /// Dropped with the session, which ends the task that reads from the member.
    _reading: oneshot::Sender<()>,
}

impl Shared {
    /// A registry without members.
    pub fn new(keys: Keys, options: Options) -> Self {
        let keys = Arc::new(keys);
        let seats = SeatService::new(options.serves, options.tenants.clone());
        let (random, mut drawn) = (RandomState::new(), 0u64);
        let draw = move || {
            drawn += 1;
            random.hash_one(drawn)
        };
        Self {
            keys: keys.clone(),
            started: Instant::now(),
            seats,
            greetings: Mutex::new(Shares::new(GREETINGS_AT_ONCE)),
            state: Mutex::new(State {
                keys,
                registry: Registry::new(options, Box::new(draw)),
                sessions: HashMap::new(),
                last_member: 0,
                traces: Traces::default(),
                stopping: false,
                announced: None,
            }),
            changed: Condvar::new(),
            room: AtomicU32::new(0),
        }
    }

    /// Gives the registry an input and the sessions what follows from it.
    pub fn apply(&self, input: Input) {
        let mut state = self.state();
        state.apply(self.started.elapsed(), input);
        if state.registry.is_empty() {
            self.changed.notify_all();
        }
    }

    /// Whether a run is under way.
    pub fn running(&self) -> bool {
        self.state().registry.running()
    }

    /// Waits until there is no worker and `holds` is true; whether it is so.
    pub fn wait_empty(&self, limit: Duration, holds: impl Fn(&Registry) -> bool) -> bool {
        let reached = |state: &State| state.registry.is_empty() && holds(&state.registry);
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| !reached(state) && !state.stopping);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        reached(&state)
    }

    /// Ends every session once its queued events have been sent.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        state.apply(self.started.elapsed(), Input::Stop);
        state.sessions.clear();
        self.seats.stop();
        self.changed.notify_all();
    }

    fn enter(&self, session: Session, join: sumpter_membership::Join) -> Option<MemberId> {
        let mut state = self.state();
        if state.stopping {
            return None;
        }
        let id = state.number(join.rejoin.as_deref());
        state.sessions.insert(id, session);
        state.apply(self.started.elapsed(), Input::Join(id, Box::new(join)));
        Some(id)
    }

    /// Makes room for the sessions of a member's job.
    fn make_room(&self, join: &sumpter_membership::Join) -> Result<(), String> {
        let Role::Worker { world_size, .. } = join.role else { return Ok(()) };
        let (expected, open) = {
            let state = self.state();
            (state.registry.expected_beside(&join.job), state.sessions.len())
        };
        // What is impossible is refused by the registry.
        let own = world_size.min(MAX_WORLD).saturating_add(join.expected_servers);
        let sessions = own.saturating_add(u32::try_from(expected).unwrap_or(u32::MAX));
        if sessions <= self.room.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = format!("the coordinator's sessions with a job of {world_size} workers");
        make_room_for_files(u64::from(sessions).saturating_sub(open as u64), &what)?;
        self.room.fetch_max(sessions, Ordering::Relaxed);
        Ok(())
    }

    /// What a member says; of a heartbeat it is noted when it was received.
    fn timed(&self, id: MemberId, message: MemberMessage) -> Result<Message, String> {
        if let Some(FromMember::Heartbeat(proto::Heartbeat { sent_ns, .. })) = message.body {
            let received_ns = monotonic_ns();
            if let Some(session) = self.state().sessions.get_mut(&id) {
                session.beat = (sent_ns, received_ns);
            }
        }
        message_from_proto(message)
    }

    pub fn status(&self, job: &str, scope: Scope) -> StatusReport {
        let job = (!job.is_empty()).then_some(job);
        let mut report = self.state().registry.status(self.started.elapsed(), job);
        if scope == Scope::Job {
            keep_to_job(&mut report);
        }
        report
    }

    /// Begins to take the servers meant out of all runs; says which these are.
    fn drain(&self, who: &Who) -> proto::DrainReport {
        let mut state = self.state();
        let name = |(member, host): (MemberId, &str)| {
            (member, proto::ServerName { member: member.0, host: host.to_owned() })
        };
        let (drained, others): (Vec<_>, Vec<_>) =
            state.registry.hosts_of_servers().map(name).partition(|(_, server)| match who {
                Who::Member(member) => server.member == *member,
                Who::Host(host) => server.host == *host,
            });
        for (member, _) in &drained {
            state.apply(self.started.elapsed(), Input::Drain(*member));
        }
        let names = |servers: Vec<(MemberId, _)>| servers.into_iter().map(|(_, name)| name);
        proto::DrainReport { drained: names(drained).collect(), others: names(others).collect() }
    }

    /// Begins to change the settings of a running job, or says why not. The token of one job shows
    /// no other.
    fn tune(&self, request: &TuneRequest, scope: Scope) -> proto::TuneReport {
        let mut state = self.state();
        if scope == Scope::Job && !state.registry.has_job(&request.job) {
            let refusal = format!("there is no job '{}'", request.job);
            return proto::TuneReport { refusal, ..proto::TuneReport::default() };
        }
        match state.registry.changed(request) {
            Ok((name, changes)) => {
                state.apply(self.started.elapsed(), Input::Tune(name.clone(), changes));
                let TuneReport { job, epoch, settings } = state.registry.tune_report(&name);
                proto::TuneReport { refusal: String::new(), job, epoch, settings }
            }
            Err(refusal) => proto::TuneReport { refusal, ..proto::TuneReport::default() },
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The registry is sound after every step, so a panic elsewhere takes nothing from it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A new member's number: that which it had with a coordinator before, if it is free, or
    /// one that no plan of old names.
    fn number(&mut self, rejoin: Option<&Rejoin>) -> MemberId {
        let (former, highest) = rejoin.map(|r| (r.member, r.highest_member())).unwrap_or_default();
        self.last_member = self.last_member.max(highest.0);
        if former != MemberId::default() && !self.sessions.contains_key(&former) {
            return former;
        }
        self.last_member += 1;
        MemberId(self.last_member)
    }

    fn apply(&mut self, now: Duration, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for (member, event) in self.registry.step(now, input) {
                if let Err(reason) = self.tell(member, event) {
                    self.sessions.remove(&member);
                    inputs.push_back(Input::Closed(member, reason));
                }
            }
        }
        self.announced = None;
    }

    pub(crate) fn tell(&mut self, member: MemberId, event: Event) -> Result<(), String> {
        let Some(session) = self.sessions.get(&member) else { return Ok(()) };
        let body = match event {
            Event::Close => {
                self.sessions.remove(&member);
                return Ok(());
            }
            Event::Welcome { peer_timeout, silence } => {
                welcome(member, &session.proof, peer_timeout, silence)
            }
            Event::Refused(refusal) => ToMember::Refused(proto::Refused {
                kind: kind_to_proto(refusal.kind),
                message: refusal.message,
                retry: refusal.retry,
            }),
            Event::HeartbeatSeen => {
                let (sent_ns, received_ns) = session.beat;
                let replied_ns = monotonic_ns();
                let seen = proto::HeartbeatSeen { sent_ns, received_ns, replied_ns };
                ToMember::HeartbeatSeen(seen)
            }
            Event::LeaveSeen => ToMember::LeaveSeen(proto::LeaveSeen {}),
            Event::Declared => ToMember::Declared(proto::Declared {}),
            Event::Tell(mut event) => {
                self.keys.complete(&mut event);
                event_to_proto(event)
            }
            Event::Announce(event) => {
                let keys = &self.keys;
                let encode = |event: &MemberEvent| {
                    let mut event = event.clone();
                    keys.complete(&mut event);
                    shared(event_to_proto(event))
                };
                match &self.announced {
                    Some((known, body)) if Arc::ptr_eq(known, &event) => body.clone(),
                    _ => {
                        let body = encode(&event);
                        self.announced = Some((event, body.clone()));
                        body
                    }
                }
            }
        };
        for body in pieces(body) {
            let sent = session.outbound.try_send(Ok(CoordinatorMessage { body: Some(body) }));
            sent.map_err(|error| match error {
                TrySendError::Full(_) => format!("it left {UNREAD_LIMIT} events unread"),
                TrySendError::Closed(_) => CLOSED.to_owned(),
            })?;
        }
        Ok(())
    }
}

/// How a death is mostly noticed.
const CLOSED: &str = "connection closed";

fn welcome(member: MemberId, proof: &Proof, peer_timeout: Duration, silence: Duration) -> ToMember {
    ToMember::Welcome(proto::Welcome {
        member: member.0,
        proof: proof.to_vec(),
        peer_timeout_ms: milliseconds(peer_timeout),
        silence_ms: milliseconds(silence),
    })
}

/// The gRPC service.
#[derive(Clone)]
pub(crate) struct Service(pub Arc<Shared>);

#[tonic::async_trait]
impl Control for Service {
    type SessionStream = ReceiverStream<Result<CoordinatorMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<MemberMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let peer = request.remote_addr();
        let (outbound, told) = mpsc::channel(UNREAD_LIMIT);
        let reader = Reader { shared: self.0.clone(), peer, inbound: request.into_inner() };
        tokio::spawn(reader.run(outbound));
        Ok(Response::new(ReceiverStream::new(told)))
    }
}

/// What a session is for, once it has been greeted.
enum Purpose {
    Join(Box<sumpter_membership::Join>),
    Seat(proto::SeatRequest),
    /// The number of a request that is being answered.
    Trace(u64),
}

/// The task that reads what one member says.
struct Reader {
    shared: Arc<Shared>,
    peer: Option<SocketAddr>,
    inbound: Streaming<MemberMessage>,
}

impl Reader {
    async fn run(mut self, outbound: Outbound) {
        match self.greet(&outbound).await {
            Ok(Some((Purpose::Join(join), proof))) => self.serve(outbound, *join, proof).await,
            Ok(Some((Purpose::Seat(request), proof))) => {
                let _ = outbound.try_send(Ok(message(welcome(
                    MemberId(0),
                    &proof,
                    Duration::ZERO,
                    Duration::ZERO,
                ))));
                self.shared.seats.serve(outbound, &mut self.inbound, request).await;
            }
            Ok(Some((Purpose::Trace(request), _))) => {
                // The members' answers go there; the requester closes the stream when it has them.
                while let Ok(Some(_)) = self.inbound.message().await {}
                self.shared.end_trace(request);
                drop(outbound);
            }
            Ok(None) => drop(outbound),
            Err(refused) => {
                // A closed queue has no reader.
                let _ = outbound.try_send(Ok(message(ToMember::Refused(refused))));
                drop(outbound);
            }
        }
        // Hanging up first would cut off the last events.
        let rest = async { while let Ok(Some(_)) = self.inbound.message().await {} };
        let _ = timeout(HANGUP_LIMIT, rest).await;
    }

    /// Lets the peer prove itself; answers a request for the status right away.
    async fn greet(
        &mut self,
        outbound: &Outbound,
    ) -> Result<Option<(Purpose, Proof)>, proto::Refused> {
        let origin = self.peer.and_then(|peer| Shares::origin(peer.ip()));
        let Some(_place) = Place::take(self.shared.clone(), origin) else {
            let what = "too many connections are being greeted; try again";
            return Err(refused(FatalKind::Start, what, true));
        };
        let nonce = nonce().map_err(|e| refused(FatalKind::Start, &e.to_string(), true))?;
        let challenge = proto::Challenge {
            protocol_version: u32::from(PROTOCOL_VERSION),
            nonce: nonce.to_vec(),
        };
        let _ = outbound.try_send(Ok(message(ToMember::Challenge(challenge))));
        let hello = match timeout(GREETING_LIMIT, self.inbound.message()).await {
            Ok(Ok(Some(MemberMessage { body: Some(FromMember::Hello(hello)) }))) => hello,
            Ok(Ok(Some(_))) => {
                return Err(refused(
                    FatalKind::Protocol,
                    "the first message is no greeting",
                    false,
                ));
            }
            Ok(Ok(None) | Err(_)) | Err(_) => return Ok(None),
        };
        // What it wants decides whose token it must prove, so it is read before the proof.
        let purpose = proto::Purpose::decode(&hello.purpose[..]).ok().and_then(|p| p.body);
        let (proof, scope) = self.check(&nonce, &hello, purpose.as_ref())?;
        match purpose {
            Some(proto::purpose::Body::Join(join)) => {
                let join = join_from_proto(join);
                let join = join.map_err(|what| refused(FatalKind::Protocol, &what, false))?;
                self.shared.make_room(&join).map_err(|what| {
                    warn!("{what}");
                    refused(FatalKind::Start, &what, false)
                })?;
                let run = join.rejoin.as_ref().and_then(|rejoin| rejoin.run.as_ref());
                if run.is_some_and(|run| !self.shared.keys.shows_membership(&run.view)) {
                    warn!(peer = ?self.peer, "refused a process: it was in no such run");
                    return Err(refused(FatalKind::PeerLost, "it was in no such run", false));
                }
                Ok(Some((Purpose::Join(Box::new(join)), proof)))
            }
            Some(proto::purpose::Body::Seat(request)) => Ok(Some((Purpose::Seat(request), proof))),
            Some(proto::purpose::Body::Status(request)) => {
                answer(
                    outbound,
                    &proof,
                    ToMember::Status(report_to_proto(self.shared.status(&request.job, scope))),
                );
                Ok(None)
            }
            Some(proto::purpose::Body::Drain(proto::DrainRequest { who })) => {
                let who = who.ok_or_else(|| {
                    refused(FatalKind::Protocol, "a request to drain no server", false)
                })?;
                answer(outbound, &proof, ToMember::DrainReport(self.shared.drain(&who)));
                Ok(None)
            }
            Some(proto::purpose::Body::Tune(request)) => {
                let proto::TuneRequest { job, settings, reset, epoch } = request;
                let request = TuneRequest { job, settings, reset, epoch };
                answer(outbound, &proof, ToMember::TuneReport(self.shared.tune(&request, scope)));
                Ok(None)
            }
            Some(proto::purpose::Body::Trace(request)) => {
                let run = self.shared.run_members(&request.job);
                let run = run.map_err(|what| refused(FatalKind::Start, &what, false))?;
                // Before the members' answers, which go to the same queue.
                answer(outbound, &proof, ToMember::TraceHead(run_members_to_proto(run.clone())));
                Ok(Some((Purpose::Trace(self.shared.begin_trace(&run, outbound)), proof)))
            }
            None => Err(refused(FatalKind::Protocol, "a greeting without a purpose", false)),
        }
    }

    /// Checks the peer's version and proof; returns ours, and what it may do.
    fn check(
        &self,
        nonce: &[u8],
        hello: &proto::Hello,
        purpose: Option<&proto::purpose::Body>,
    ) -> Result<(Proof, Scope), proto::Refused> {
        let peer = self.peer.map_or_else(|| "an unknown address".to_owned(), |p| p.to_string());
        if hello.protocol_version != u32::from(PROTOCOL_VERSION) {
            let what = format!(
                "the coordinator speaks protocol version {PROTOCOL_VERSION}, the process at \
                 {peer} version {}; install the same Sumpter everywhere",
                hello.protocol_version
            );
            warn!("{what}");
            return Err(refused(FatalKind::Version, &what, false));
        }
        let transcript = Transcript {
            coordinator_nonce: nonce,
            member_nonce: &hello.nonce,
            member_version: hello.protocol_version,
            purpose: &hello.purpose,
        };
        let proves = |token: &_| transcript.verify(token, ProofRole::Member, &hello.proof);
        let Some((token, scope)) = self.shared.keys.proved(purpose, proves) else {
            warn!(%peer, "refused a process: it does not hold the token");
            self.shared.state().registry.refused();
            return Err(refused(FatalKind::Auth, "the tokens differ", false));
        };
        Ok((transcript.prove(token, ProofRole::Coordinator), scope))
    }

    /// Passes on what a member says until its session ends on either side.
    async fn serve(&mut self, outbound: Outbound, join: sumpter_membership::Join, proof: Proof) {
        let (reading, mut ended) = oneshot::channel();
        let session = Session { outbound, proof, beat: (0, 0), _reading: reading };
        let Some(id) = self.shared.enter(session, join) else { return };
        loop {
            let message = tokio::select! {
                _ = &mut ended => return,
                message = self.inbound.message() => message,
            };
            let input = match message {
                Ok(Some(MemberMessage { body: Some(FromMember::TracePiece(piece)) })) => {
                    self.shared.pass_on_trace(id, piece);
                    // Its heartbeats wait behind a long trace.
                    Input::Alive(id)
                }
                Ok(Some(message)) => match self.shared.timed(id, message) {
                    Ok(message) => Input::Message(id, message),
                    Err(what) => Input::Violation(id, what),
                },
                Ok(None) | Err(_) => Input::Closed(id, CLOSED.to_owned()),
            };
            let over = matches!(input, Input::Closed(..));
            self.shared.apply(input);
            if over {
                self.shared.state().sessions.remove(&id);
                return;
            }
        }
    }
}

/// A place among the sessions that are being greeted, given back when dropped.
struct Place {
    shared: Arc<Shared>,
    origin: Origin,
}

impl Place {
    fn take(shared: Arc<Shared>, origin: Origin) -> Option<Place> {
        let mut shares = shared.greetings.lock().unwrap_or_else(PoisonError::into_inner);
        if !shares.has_place_for(origin) {
            return None;
        }
        shares.take(origin);
        drop(shares);
        Some(Place { shared, origin })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shares = self.shared.greetings.lock();
        shares.unwrap_or_else(PoisonError::into_inner).give_back(self.origin);
    }
}

/// Answers a request of one who is no member.
fn answer(outbound: &Outbound, proof: &Proof, body: ToMember) {
    let welcome = welcome(MemberId(0), proof, Duration::ZERO, Duration::ZERO);
    for body in [welcome, body] {
        // A closed queue has no reader.
        let _ = outbound.try_send(Ok(message(body)));
    }
}

pub(crate) fn message(body: ToMember) -> CoordinatorMessage {
    CoordinatorMessage { body: Some(body) }
}

fn refused(kind: FatalKind, message: &str, retry: bool) -> proto::Refused {
    proto::Refused { kind: kind_to_proto(kind), message: message.to_owned(), retry }
}
