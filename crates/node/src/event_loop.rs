//! The event loop: one thread that drives a lane and, in a worker, the client beside it.
//!
//! It sleeps until a socket is ready, a deadline is due or another thread wakes it. All state is
//! its own; other threads reach it by commands only.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use mio::{Events, Poll, Waker};
use sumpter_config::Config;
use sumpter_coordinator::Member;
use sumpter_endpoint::{ConnId, Endpoint, LinkError, Received};
use sumpter_engine::{JobLimits, Lane, LaneLimits, Peer, exchange};
use sumpter_membership::ClusterView;
use sumpter_transport::{in_process, readiness};
use sumpter_types::{Epoch, JobId, run_memory_counter};
use sumpter_wire::{HandshakeError, Hello, Token};

use crate::command::Command;
use crate::counters::Counters;
use crate::error::NodeError;
use crate::join::Listeners;
use crate::remote::Remote;
use crate::session::{Session, patience};
use crate::socket::{GreetError, Phase, drive_client, drive_server, flush};
use crate::sockets::{LISTENER, Sockets, UNIX_LISTENER, WAKER};
use crate::timeline::Record;
use crate::trace::recorder;
use crate::worker::StartSignal;

const MAX_EVENTS: usize = 256;

/// Bytes that may go to the colocated lane before sockets get their turn.
const IN_PROCESS_TURN: usize = 8 << 20;

/// How long a loop that ends waits for its peers to close, at most: peers that go on with each
/// other may keep it busy.
const LAST_LINGER: Duration = Duration::from_secs(20);

/// Turns between two looks at what is ready: whoever becomes ready meanwhile is not left out for
/// longer than it takes to move a few megabytes.
const TURNS_AT_ONCE: usize = 16;

/// What is known of a run before its workers connect.
#[derive(Debug)]
struct KnownJob {
    epoch: Epoch,
    /// What its members prove to hold.
    key: Option<Token>,
    /// Its share beside other jobs.
    weight: u32,
    /// The machine of each worker, by rank.
    machines: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct EventLoop {
    pub config: Config,
    /// This process's machine.
    machine: String,
    poll: Poll,
    origin: Instant,
    commands: Receiver<Command>,
    pub sockets: Sockets,
    pub lane: Lane,
    /// This lane's number with its owner.
    pub lane_index: u32,
    lane_sockets: HashMap<ConnId, usize>,
    /// The lanes of this process, which share a job's quota.
    pub lanes: u32,
    /// Runs whose workers may connect.
    jobs: HashMap<JobId, KnownJob>,
    pub session: Option<Session>,
    pub member: Option<Arc<Member>>,
    pub start: Option<StartSignal>,
    pub counters: Counters,
    pub next_report: Option<Instant>,
    pub timeline: Option<Sender<Record>>,
    /// Who waits for a plan of an epoch.
    pub asked_for_plan: Vec<(Epoch, Sender<ClusterView>)>,
    /// Who waits for a training step.
    pub asked_for_step: Vec<(u64, Sender<(u64, Instant)>)>,
    in_process_more: bool,
}

impl EventLoop {
    pub(crate) fn new(
        config: &Config,
        listeners: Listeners,
        (lane_index, lanes): (u32, u32),
        start: Option<StartSignal>,
    ) -> Result<(EventLoop, Remote), NodeError> {
        let failed = NodeError::io("making an event loop");
        let poll = Poll::new().map_err(&failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(&failed)?);
        let registry = poll.registry().try_clone().map_err(&failed)?;
        let sockets = Sockets::new(registry, listeners).map_err(&failed)?;
        let (sender, commands) = crossbeam_channel::unbounded();
        let limits = LaneLimits {
            max_job_bytes: config.max_job_bytes / u64::from(lanes.max(1)),
            max_chunk_bytes: 64 << 20,
            // A worker's lane has a client beside it, which waits for the start.
            hub: start.is_some(),
        };
        let mut lane = Lane::new(limits);
        lane.record(recorder(config));
        let event_loop = EventLoop {
            config: config.clone(),
            machine: config.machine_id(),
            poll,
            origin: Instant::now(),
            commands,
            sockets,
            lane,
            lane_index,
            lane_sockets: HashMap::new(),
            lanes,
            jobs: HashMap::new(),
            session: None,
            member: None,
            start,
            counters: Counters::default(),
            next_report: None,
            timeline: None,
            asked_for_plan: Vec::new(),
            asked_for_step: Vec::new(),
            in_process_more: false,
        };
        Ok((event_loop, Remote { sender, waker }))
    }

    /// Runs until told to leave.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(MAX_EVENTS);
        loop {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    tracing::error!(error = %e, "the event loop cannot wait for events");
                    return;
                }
                _ => {}
            }
            // Commands first: a run must be known before its workers' connections are looked at.
            while let Ok(command) = self.commands.try_recv() {
                if let Command::Leave(answer) = command {
                    self.leave(&mut events);
                    let _ = answer.send(());
                    return;
                }
                self.obey(command);
            }
            self.serve(&events);
            self.tend(Instant::now());
            self.move_bytes();
            if let Some(session) = &self.session {
                self.counters.wait(session.cause(), Instant::now());
            }
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether there is more to do, of which no event will tell.
    fn is_busy(&self) -> bool {
        self.in_process_more || !self.sockets.turns.is_empty()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.is_busy() {
            return Some(Duration::ZERO);
        }
        let session = self.session.as_ref().and_then(Session::next_deadline);
        let next = [self.sockets.next_deadline(), session, self.next_report];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn serve(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKER => {}
                LISTENER | UNIX_LISTENER => self.sockets.accept(),
                token => {
                    let index = Sockets::index(token);
                    if let Some(socket) = self.sockets.get(index) {
                        socket.link.ready(readiness(event));
                        self.sockets.turns.ask(index);
                    }
                }
            }
        }
        // Whoever asks again has to wait until the commands that came meanwhile are obeyed.
        for _ in 0..self.sockets.turns.len().min(TURNS_AT_ONCE) {
            if let Some(index) = self.sockets.turns.begin() {
                self.advance(index);
            }
        }
    }

    /// Does what a socket's readiness allows.
    fn advance(&mut self, index: usize) {
        let now = self.now();
        let Some(socket) = self.sockets.get(index) else { return };
        match &mut socket.phase {
            Phase::Dialing { .. } => self.advance_dialing(index),
            Phase::Greeting(_) => self.advance_greeting(index),
            Phase::ToLane(lane) => {
                let lane = *lane;
                let Some(session) = self.session.as_mut() else { return };
                let sent = socket.link.transmit(&mut session.client, lane);
                let received = socket.link.receive(&mut session.client, lane, now);
                let moved = |r: &Received| r.bytes > 0;
                if sent.as_ref().is_ok_and(|sent| *sent > 0) || received.as_ref().is_ok_and(moved) {
                    session.last_progress = Instant::now();
                }
                self.account(index, sent, received);
            }
            Phase::FromWorker(conn) => {
                let conn = *conn;
                let sent = socket.link.transmit(&mut self.lane, conn);
                let received = socket.link.receive(&mut self.lane, conn, now);
                self.account(index, sent, received);
                self.send_results();
            }
        }
    }

    fn account(
        &mut self,
        index: usize,
        sent: io::Result<usize>,
        received: Result<Received, LinkError>,
    ) {
        match (sent, received) {
            (Ok(sent), Ok(received)) => {
                let away = self.sockets.get(index).is_some_and(|socket| socket.away);
                self.counters.sent(sent, away);
                self.counters.received(received.bytes, away);
                self.sockets.turns.charge(index, sent + received.bytes);
                if received.more {
                    self.sockets.turns.ask(index);
                }
            }
            // The reading side knows best: what was received before the end has been taken.
            (_, Err(error)) => self.disconnect(index, &error),
            (Err(error), Ok(_)) => self.disconnect(index, &LinkError::Io(error)),
        }
    }

    /// An established connection is gone.
    fn disconnect(&mut self, index: usize, error: &LinkError) {
        let Some(socket) = self.sockets.remove(index) else { return };
        let violation = match error {
            LinkError::Violation(violation) => Some(violation),
            _ => None,
        };
        let broken = matches!(error, LinkError::Violation(_) | LinkError::Tls(_));
        match socket.phase {
            Phase::ToLane(lane) => {
                if let Some(session) = self.session.as_mut() {
                    if broken {
                        let tensor = violation.and_then(|v| v.corrupted_tensor());
                        let tensor = tensor.and_then(|t| session.name(t));
                        tracing::error!(lane = %session.describe(lane), tensor, %error, "closed");
                    }
                    session.lost(lane, Instant::now());
                    self.counters.broken += u64::from(session.links[lane.0].retry_at.is_some());
                }
            }
            Phase::FromWorker(conn) => {
                if broken {
                    tracing::error!(peer = %socket.peer, %error, "closed");
                }
                // Whoever leaves in order just hangs up.
                self.counters.broken += u64::from(!matches!(error, LinkError::Closed));
                self.lane.close(conn);
                self.lane_sockets.remove(&conn);
            }
            Phase::Dialing { .. } | Phase::Greeting(_) => {}
        }
    }

    fn advance_greeting(&mut self, index: usize) {
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Greeting(handshake) = &mut socket.phase else { return };
        let key_of = |job| self.jobs.get(&job).and_then(|known| known.key.clone());
        match drive_server(socket.link.as_mut(), handshake, key_of) {
            Ok(None) => {}
            Ok(Some(hello)) => self.admit(index, &hello),
            Err(GreetError::Link(LinkError::Closed)) => drop(self.sockets.remove(index)),
            // A peer may hear of the start before we do; it calls again.
            Err(GreetError::Handshake(HandshakeError::UnknownJob)) => self.refuse(index),
            Err(error) => {
                tracing::warn!(peer = %socket.peer, %error, "a connection was refused");
                self.counters.refused += 1;
                self.refuse(index);
            }
        }
    }

    /// Sends what a handshake says last, and closes.
    fn refuse(&mut self, index: usize) {
        let Some(socket) = self.sockets.remove(index) else { return };
        let (Phase::Greeting(mut handshake), mut link) = (socket.phase, socket.link) else {
            return;
        };
        // The few bytes of a refusal fit any socket's buffer.
        let _ = flush(link.as_mut(), &mut handshake);
        let _ = link.finish_sending();
    }

    fn admit(&mut self, index: usize, hello: &Hello) {
        let verdict = self.judge(hello);
        let away = self
            .jobs
            .get(&hello.job)
            .is_none_or(|job| job.machines.get(hello.rank.0 as usize) != Some(&self.machine));
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Greeting(handshake) = &mut socket.phase else { return };
        match verdict {
            Err(reason) => {
                tracing::debug!(peer = %socket.peer, %reason, "a connection was refused");
                handshake.refuse(&reason);
                self.refuse(index);
            }
            Ok((conn, old)) => {
                handshake.accept();
                // As above: an acceptance is four bytes.
                let _ = flush(socket.link.as_mut(), handshake);
                // Nothing is sent here: a link that continues elsewhere waits for the other end.
                let _ = socket.link.upgrade(false);
                socket.phase = Phase::FromWorker(conn);
                socket.away = away;
                socket.deadline = None;
                self.sockets.greeted(index);
                let weight = self.jobs.get(&hello.job).map_or(1, |known| known.weight);
                self.sockets.assign(index, hello.job, weight);
                if let Some(stale) = old.and_then(|old| self.lane_sockets.remove(&old)) {
                    self.sockets.remove(stale);
                }
                self.lane_sockets.insert(conn, index);
                self.advance(index);
            }
        }
    }

    fn judge(&mut self, hello: &Hello) -> Result<(ConnId, Option<ConnId>), String> {
        if hello.lane != self.lane_index {
            return Err(format!("this is lane {}, not {}", self.lane_index, hello.lane));
        }
        match self.jobs.get(&hello.job) {
            None => Err("the job is not known here (yet)".to_owned()),
            Some(KnownJob { epoch, machines, .. })
                if (*epoch, machines.len()) != (hello.epoch, hello.world_size as usize) =>
            {
                Err(format!("the job has epoch {epoch} and {} workers", machines.len()))
            }
            Some(_) => self.lane.open(Peer {
                job: hello.job,
                rank: hello.rank,
                world_size: hello.world_size,
                epoch: hello.epoch,
                keeps: hello.keeps,
                checksum: hello.checksum,
            }),
        }
    }

    /// A run whose workers may connect.
    pub(crate) fn know_job(&mut self, view: &ClusterView) {
        let machines = view.workers.iter().map(|worker| worker.machine.clone()).collect();
        let (key, weight) = (view.key.clone(), view.quota.weight);
        self.jobs.insert(view.job, KnownJob { epoch: view.epoch, key, weight, machines });
        // What a worker gives its own job is its own business.
        if self.start.is_none() && self.session.is_none() {
            let lanes = u64::from(self.lanes.max(1));
            let max_bytes = view.quota.max_bytes.unwrap_or(u64::MAX).min(self.config.max_job_bytes);
            let max_connections = view.quota.max_connections.unwrap_or(u32::MAX);
            let limits = JobLimits { max_bytes: max_bytes / lanes, max_connections };
            self.lane.know(view.job, limits);
        }
    }

    /// What each run's sums occupy in this lane, by the name of its counter.
    pub(crate) fn run_memory(&self) -> impl Iterator<Item = (String, f64)> {
        let jobs = self.jobs.keys();
        jobs.map(|job| (run_memory_counter(*job), self.lane.job_bytes(*job) as f64))
    }

    /// A run is over: its buffers are freed, its connections closed.
    pub(crate) fn end_job(&mut self, job: JobId) {
        self.jobs.remove(&job);
        for conn in self.lane.end_job(job) {
            if let Some(index) = self.lane_sockets.remove(&conn) {
                self.sockets.remove(index);
            }
        }
    }

    /// Hands over what is new, until nothing moves any more.
    pub(crate) fn move_bytes(&mut self) {
        loop {
            let mut touched = self.move_in_process();
            touched |= self.pass_on();
            while let Some(lane) = self.session.as_mut().and_then(|s| s.client.next_dirty()) {
                touched |= self.transmit_to_lane(lane);
            }
            touched |= self.send_results();
            touched |= self.settle();
            if !touched || self.in_process_more {
                return;
            }
        }
    }

    /// Sends what the lane has finished, at once, while it is in cache.
    fn send_results(&mut self) -> bool {
        let mut touched = false;
        while let Some(conn) = self.lane.next_dirty() {
            touched |= self.transmit_to_worker(conn);
        }
        touched
    }

    fn move_in_process(&mut self) -> bool {
        self.in_process_more = false;
        let now = self.now();
        let Some(session) = self.session.as_mut() else { return false };
        let Some((on_client, on_lane)) = session.own else { return false };
        let (client, lane) = ((&mut session.client, on_client), (&mut self.lane, on_lane));
        let moved = in_process(client, lane, now, IN_PROCESS_TURN).and_then(|frames| {
            let client = (&mut session.client, on_client);
            let chunks = exchange(client, (&mut self.lane, on_lane), IN_PROCESS_TURN)?;
            Ok(frames + chunks)
        });
        let moved = match moved {
            Ok(moved) => moved,
            Err(violation) => {
                self.disagree(&violation);
                return false;
            }
        };
        if moved > 0 {
            session.last_progress = Instant::now();
        }
        self.counters.bytes_local += moved as u64;
        self.in_process_more = moved >= IN_PROCESS_TURN;
        moved > 0
    }

    /// Passes on what the lane has summed for this machine.
    fn pass_on(&mut self) -> bool {
        let Some(session) = self.session.as_mut() else { return false };
        session.hub.pass_on(&mut session.client, &mut self.lane)
    }

    fn transmit_to_lane(&mut self, lane: ConnId) -> bool {
        let Some(session) = self.session.as_mut() else { return false };
        let Some(index) = session.links[lane.0].socket else { return false };
        let Some(socket) = self.sockets.get(index) else { return false };
        if !matches!(socket.phase, Phase::ToLane(_)) {
            return false;
        }
        match socket.link.transmit(&mut session.client, lane) {
            Ok(sent) => {
                self.counters.sent(sent, socket.away);
                sent > 0
            }
            Err(error) => {
                self.disconnect(index, &LinkError::Io(error));
                true
            }
        }
    }

    fn transmit_to_worker(&mut self, conn: ConnId) -> bool {
        let Some(index) = self.lane_sockets.get(&conn).copied() else { return false };
        let Some(socket) = self.sockets.get(index) else { return false };
        match socket.link.transmit(&mut self.lane, conn) {
            Ok(sent) => {
                self.counters.sent(sent, socket.away);
                self.sockets.turns.charge(index, sent);
                sent > 0
            }
            Err(error) => {
                self.disconnect(index, &LinkError::Io(error));
                true
            }
        }
    }

    /// Sends what is queued, says goodbye, and waits a little for peers to do the same, so that
    /// no result still on its way is cut off.
    fn leave(&mut self, events: &mut Events) {
        let last = Instant::now() + LAST_LINGER;
        let linger = patience(&self.config);
        let (mut deadline, mut moved) = (Instant::now() + linger, self.counters.moved());
        let mut said_goodbye = false;
        // What the loop was woken for beside the command to leave: no event tells of it again.
        self.serve(events);
        loop {
            self.move_bytes();
            if self.counters.moved() != moved {
                (deadline, moved) = (Instant::now() + linger, self.counters.moved());
            }
            // Whoever is late to a broadcast finds its result here, unless the job has failed.
            let failed = self.session.as_ref().is_some_and(|session| session.over.is_some());
            let done = self.lane.is_drained() && (failed || !self.lane.is_expected());
            if done && !said_goodbye {
                said_goodbye = true;
                let established = |p: &Phase| matches!(p, Phase::ToLane(_) | Phase::FromWorker(_));
                for socket in self.sockets.iter_mut().filter(|s| established(&s.phase)) {
                    let _ = socket.link.finish_sending();
                }
            }
            let open: HashSet<usize> = self.lane_sockets.values().copied().collect();
            let left = deadline.min(last).saturating_duration_since(Instant::now());
            if left.is_zero() || (said_goodbye && open.is_empty()) {
                return;
            }
            let pause = if self.is_busy() { Duration::ZERO } else { left };
            match self.poll.poll(events, Some(pause)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => self.serve(events),
            }
        }
    }

    fn advance_dialing(&mut self, index: usize) {
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Dialing { lane, handshake } = &mut socket.phase else { return };
        let lane = *lane;
        let outcome = match socket.link.check_connected() {
            // Not there yet; another event will come.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(e) => Err(GreetError::Link(LinkError::Io(e))),
            Ok(()) => drive_client(socket.link.as_mut(), handshake),
        };
        let outcome = outcome.and_then(|through| {
            if through {
                socket.link.upgrade(true).map_err(LinkError::Io)?;
            }
            Ok(through)
        });
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                socket.phase = Phase::ToLane(lane);
                socket.deadline = None;
                if let Some(session) = self.session.as_mut() {
                    socket.away = session.is_away(lane);
                    session.links[lane.0].succeeded();
                    session.client.connected(lane);
                }
                self.advance(index);
            }
            Err(error) => {
                self.sockets.remove(index);
                self.dial_failed(lane, &error.to_string(), error.is_permanent());
            }
        }
    }
}
