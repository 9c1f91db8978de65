//! The event loop: one thread that drives a lane and, in a worker, the client beside it.
//!
//! It sleeps until a socket is ready, a deadline is due or another thread wakes it, and moves bytes
//! between sockets, lane and client. What they mean is up to the [`LaneSide`] and the
//! [`WorkerSide`]. Other threads reach all of it by commands only.

pub(crate) mod greeting;
mod handshakes;
pub(crate) mod lane_side;
pub(crate) mod socket;
pub(crate) mod sockets;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use mio::{Events, Poll, Waker};
use sumpter_config::{Config, LocalLink};
use sumpter_endpoint::{ConnId, Endpoint, LinkError, Received};
use sumpter_engine::exchange;
use sumpter_membership::{LaneView, MemberEvent};
use sumpter_observe::Recording;
use sumpter_transport::{in_process, is_silence, readiness};
use sumpter_types::{JobId, Stats};
use sumpter_wire::Hello;

use crate::command::Command;
use crate::counters::{OfClient, Report, Surroundings};
use crate::error::{NodeError, OpError};
use crate::event_loop::lane_side::LaneSide;
use crate::event_loop::socket::{Phase, ToLane};
use crate::event_loop::sockets::{LISTENER, Sockets, UNIX_LISTENER, WAKER, Way};
use crate::join::Listeners;
use crate::recording::{answer as answer_trace, of_client};
use crate::remote::Remote;
use crate::run::lane_user::LaneUser;
use crate::run::server_hubs::ServerHubs;
use crate::run::worker_side::{Action, WorkerSide};
use crate::run::{WorkerRun, patience};
use crate::worker::loops::LoopPlace;
use crate::worker::start::StartSignal;

const MAX_EVENTS: usize = 256;

/// Operations that a report lists; enough to see what ranks wait for.
const REPORTED_OPS: usize = 16;

/// Bytes that may go to the colocated lane before sockets get their turn.
const IN_PROCESS_TURN: usize = 8 << 20;

/// How long a loop that ends waits for its peers to close, at most: peers that go on with each
/// other may keep it busy.
const LAST_LINGER: Duration = Duration::from_secs(20);

/// Turns between two polls: a socket that becomes ready meanwhile waits no longer than it takes to
/// move a few megabytes.
const TURNS_AT_ONCE: usize = 16;

/// How long a lane with several paths may be silent on one of them.
fn silence(config: &Config) -> Duration {
    config.server_timeout().min(config.peer_timeout())
}

#[derive(Debug)]
pub(crate) struct EventLoop {
    config: Config,
    poll: Poll,
    origin: Instant,
    commands: Receiver<Command>,
    sockets: Sockets,
    lane_side: LaneSide,
    worker_side: WorkerSide,
    /// In a server's lane: what it passes on.
    server_hubs: ServerHubs,
    /// The lane as its peers know it.
    own: LaneView,
    report: Report,
    in_process_more: bool,
    /// It leaves: what it had to send was sent, and no peer is admitted any more.
    said_goodbye: bool,
}

impl EventLoop {
    /// Of lane `index` of the `lanes` of this process; if it is a `worker`, of its loop there,
    /// which signals the start.
    pub(crate) fn new(
        config: &Config,
        listeners: Listeners,
        (index, lanes): (u32, u32),
        worker: Option<(LoopPlace, StartSignal)>,
    ) -> Result<(EventLoop, Remote), NodeError> {
        let failed = NodeError::io("making an event loop");
        let poll = Poll::new().map_err(&failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(&failed)?);
        let registry = poll.registry().try_clone().map_err(&failed)?;
        let own = listeners.view.clone();
        let sockets = Sockets::new(registry, listeners, config.peer_timeout()).map_err(&failed)?;
        let (sender, commands) = crossbeam_channel::unbounded();
        let event_loop = EventLoop {
            config: config.clone(),
            poll,
            origin: Instant::now(),
            commands,
            sockets,
            lane_side: LaneSide::new(config, (index, lanes), worker.is_none()),
            worker_side: WorkerSide::new(config, worker),
            server_hubs: ServerHubs::default(),
            own,
            report: Report::default(),
            in_process_more: false,
            said_goodbye: false,
        };
        Ok((event_loop, Remote { sender, waker }))
    }

    /// Runs until the command to leave.
    pub(crate) fn run(mut self) {
        sumpter_sum::set_float_mode();
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
                self.handle_command(command);
            }
            self.serve(&events);
            self.tend(Instant::now());
            self.move_bytes();
            if let Some(run) = self.worker_side.run() {
                self.report.counters.wait(run.cause(), Instant::now());
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn handle_command(&mut self, command: Command) {
        let EventLoop { lane_side, worker_side, report, .. } = self;
        match command {
            Command::Member(MemberEvent::JobStarted(view)) => {
                self.end_job(view.job);
                for of_loop in view.of_loops() {
                    self.lane_side.expect_job(&of_loop, view.loops());
                    self.server_hubs.expect(&of_loop);
                }
            }
            Command::Member(MemberEvent::JobEnded { job }) => self.end_job(job),
            Command::Member(MemberEvent::TraceAsked { request, job }) => {
                let place = worker_side.place().clone();
                if let (true, Some(member)) = (place.is_first(), worker_side.member().cloned()) {
                    let own = self.recordings(job);
                    let others = place.recordings_of_others(job);
                    answer_trace(request, member, move || own.into_iter().chain(others).collect());
                }
            }
            Command::Member(event) => worker_side.on_event(event, lane_side, report),
            Command::Joined(member) => {
                worker_side.joined(member);
                report.now();
            }
            Command::Serves(member) => self.server_hubs.joined(member),
            Command::Declare(id, spec, average) => worker_side.declare(id, spec, average),
            Command::Submit(id, submission) => worker_side.submit(id, submission, report),
            Command::Mirrored(id, answer) => drop(answer.send(worker_side.mirrored(id))),
            Command::CodecMemory(id, answer) => drop(answer.send(worker_side.codec_memory(id))),
            Command::Supply(staged, bytes) => worker_side.supply(&staged, bytes),
            Command::Decide(deferred, update) => worker_side.decide(&deferred, update),
            Command::Refuse(name, message) => worker_side.refuse(name, message),
            Command::OutOfData(answer) => worker_side.out_of_data(answer),
            Command::Samples(count) => {
                report.counters.samples += count;
                report.soon();
            }
            Command::Timeline(records) => worker_side.record(records),
            Command::Recordings(job, answer) => drop(answer.send(self.recordings(job))),
            Command::Stats(answer) => drop(answer.send(self.stats())),
            Command::Subscribe(subscription) => worker_side.subscribe(subscription, report),
            Command::Fail(reason) => worker_side.fail(&reason),
            Command::Reached(step) => worker_side.reached(step, report),
            Command::Leave(_) => unreachable!("the loop itself leaves"),
        }
        self.perform_actions();
    }

    /// Does to the sockets what the worker has found necessary.
    fn perform_actions(&mut self) {
        while let Some(action) = self.worker_side.next_action() {
            match action {
                Action::Dial(lane) => {
                    let job = self.worker_side.run().map(|run| run.view.job);
                    job.into_iter().for_each(|job| self.dial(ToLane { job, lane }));
                }
                Action::CloseDials => self
                    .sockets
                    .remove_all(|phase| matches!(phase, Phase::ToLane(_) | Phase::Dialing { .. })),
                Action::Close(sockets) => self.close(sockets),
            }
        }
    }

    fn close(&mut self, sockets: Vec<usize>) {
        for index in sockets {
            self.sockets.remove(index);
        }
    }

    /// A run is over: its buffers are freed, its connections closed.
    fn end_job(&mut self, run: JobId) {
        let is_of_run = |to: &ToLane| to.job.run() == run;
        self.sockets.remove_all(
            |phase| matches!(phase, Phase::ToLane(to) | Phase::Dialing { to, .. } if is_of_run(to)),
        );
        for job in self.lane_side.parts_of(run) {
            self.server_hubs.end(job);
            let sockets = self.lane_side.end_job(job);
            self.close(sockets);
        }
    }

    /// Opens a connection to a lane.
    fn dial(&mut self, to: ToLane) {
        let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) else { return };
        let lane = to.lane;
        let paths = run.paths(lane, &self.sockets.sources);
        let path = paths[run.dials().begin(lane, paths.len())];
        let placed = self.sockets.network.is_some() && run.is_away(lane);
        let placed = placed && run.dials().may_place(lane);
        let hello = (Hello { placed, ..run.hello(lane) }, run.key());
        let shared = self.config.local_link == LocalLink::Shm && !run.is_away(lane);
        let shared = shared && run.dials().may_share(lane);
        let way = Way {
            path,
            beside: shared.then(|| run.address(lane)),
            // With one path, the coordinator judges who is silent.
            silence: (paths.len() > 1).then(|| silence(&self.config)),
        };
        match self.sockets.dial(to, way, hello) {
            Ok(index) => run.dials().opened(lane, index),
            Err(error) => {
                run.dials().avoid_path(lane);
                self.dial_failed(to, &error.to_string(), false);
            }
        }
    }

    /// A lane could not be connected to; with `permanent`, it never can.
    fn dial_failed(&mut self, ToLane { job, lane }: ToLane, reason: &str, permanent: bool) {
        match self.server_hubs.get_mut(job) {
            Some(run) => {
                let suspect = run.dial_failed(lane, reason, self.config.server_timeout());
                suspect.into_iter().for_each(|suspect| self.server_hubs.suspect(job, suspect));
            }
            None => self.worker_side.dial_failed(lane, reason, permanent),
        }
    }

    /// The path to a lane may be gone, for which the next attempt takes another.
    fn judge_path(&mut self, ToLane { job, lane }: ToLane, error: &LinkError) {
        let LinkError::Io(error) = error else { return };
        let run = user(&mut self.worker_side, &mut self.server_hubs, job);
        if let Some(run) = run.filter(|_| is_silence(error))
            && run.dials().avoid_path(lane)
        {
            tracing::warn!(lane = %run.describe(lane), %error, "connecting another way");
        }
    }

    /// Does what is due: dials lanes again, gives up on handshakes, reports.
    fn tend(&mut self, now: Instant) {
        self.sockets.settle(now);
        for index in self.sockets.overdue(now) {
            let Some(socket) = self.sockets.get(index) else { continue };
            if let Phase::ToLane(_) | Phase::FromWorker(_) = socket.phase {
                socket.link.abandon();
                let silent = "the network in which bytes are placed does not answer";
                self.disconnect(index, &LinkError::Io(io::Error::other(silent)));
                continue;
            }
            let Some(socket) = self.sockets.remove(index) else { continue };
            let shared = socket.is_shared();
            if let Phase::Dialing { to, .. } = socket.phase {
                if let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) {
                    run.dials().avoid_sharing(to.lane, shared);
                    if !shared {
                        run.dials().avoid_path(to.lane);
                    }
                }
                self.dial_failed(to, "no answer", false);
            }
        }
        for index in self.sockets.hung(now) {
            let Some(socket) = self.sockets.get(index) else { continue };
            socket.link.abandon();
            let (limit, network) = (self.config.peer_timeout(), socket.link.network());
            let hangs = "the network in which bytes are placed hangs";
            tracing::warn!(peer = %socket.peer, ?limit, network, "{hangs}");
            self.disconnect(index, &LinkError::Io(io::Error::other(hangs)));
        }
        for (job, lane) in self.server_hubs.due(now) {
            self.dial(ToLane { job, lane });
        }
        self.worker_side.tend(now);
        self.perform_actions();
        if self.report.take_due(now) {
            let stats = self.stats();
            let place = self.worker_side.place();
            match self.worker_side.member() {
                Some(member) if place.is_first() => member.report(place.total(stats)),
                _ => {
                    place.store(stats);
                    place.tell_first(Command::Reached(self.report.counters.step));
                }
            }
            if self.worker_side.run().is_some_and(|run| !run.is_idle()) {
                self.report.soon();
            }
        }
    }

    /// What has been recorded here of a run.
    fn recordings(&self, job: JobId) -> Vec<Recording> {
        let client = self.worker_side.run().filter(|run| run.view.job.run() == job);
        let client = client.map(|run| of_client(run.client.recorder(), run.view.job.event_loop()));
        [self.lane_side.recording(job)].into_iter().chain(client).collect()
    }

    fn stats(&mut self) -> Stats {
        if let Some(run) = self.worker_side.run_mut() {
            run.log_choices();
        }
        let (lane, run) = (&self.lane_side.lane, self.worker_side.run());
        let mut stats = self.report.counters.report(&Surroundings {
            lane: lane.stats(),
            lane_bytes: lane.allocated_bytes(),
            lane_waiting: lane.waiting_partitions(),
            corrupt_results: run.map_or(0, |run| run.client.corrupt_frames()),
            rack_bytes: self.server_hubs.rack_bytes() + run.map_or(0, |run| run.hub.rack_bytes()),
            tensors: run.map_or(0, |run| run.table.len()),
            client: run.map(|run| OfClient {
                backlog: run.client.backlog(),
                admitted_bytes: run.client.admitted_bytes(),
                operations: run.under_way(),
                skipped_blocks: run.client.skipped_blocks(),
                rack_hubs: run.cluster.rack_hubs(),
            }),
            elapsed: self.now(),
            placing: self.sockets.placing(),
        });
        stats.counters.extend(self.lane_side.memory_counters());
        if let Some(run) = run {
            stats.pending = run.pending(Instant::now(), REPORTED_OPS);
            stats.begun = run.begun_by_tensor();
            stats.refused = run.refused.to_vec();
            stats.choices = run.choices().to_vec();
            let counts = [
                ("compressed_tensors", run.compressed_tensors()),
                ("tensors_awaiting_link", run.tensors_awaiting_link()),
            ];
            stats.counters.extend(counts.map(|(name, count)| (name.to_owned(), count)));
        }
        stats
    }

    /// Whether there is more to do, for which no event will come.
    fn is_busy(&self) -> bool {
        self.in_process_more || !self.sockets.turns.is_empty()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.is_busy() {
            return Some(Duration::ZERO);
        }
        let run = self.worker_side.run().and_then(WorkerRun::next_deadline);
        let hubs = self.server_hubs.next_deadline();
        let next = [self.sockets.next_deadline(), run, hubs, self.report.due()];
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
        // Further turns have to wait for the commands that came meanwhile.
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
            Phase::ToLane(to) => {
                let ToLane { job, lane } = *to;
                let run = user(&mut self.worker_side, &mut self.server_hubs, job);
                let Some(run) = run else { return };
                let sent = socket.link.transmit(run.client(), lane);
                let received = socket.link.receive(run.client(), lane, now);
                let moved = |r: &Received| r.bytes > 0;
                if sent.as_ref().is_ok_and(|sent| *sent > 0) || received.as_ref().is_ok_and(moved) {
                    run.progressed();
                }
                self.account(index, sent, received);
            }
            Phase::FromWorker(conn) => {
                let conn = *conn;
                let sent = socket.link.transmit(&mut self.lane_side.lane, conn);
                let received = socket.link.receive(&mut self.lane_side.lane, conn, now);
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
                self.settle_link(index);
                let away = self.sockets.get(index).is_some_and(|socket| socket.away);
                self.report.counters.sent(sent, away);
                self.report.counters.received(received.bytes, away);
                self.sockets.turns.charge(index, sent + received.bytes);
                if received.more {
                    self.sockets.turns.ask(index);
                }
            }
            // The first call that fails gets the system's error, the others see the end only.
            (Err(error), Err(LinkError::Closed)) if is_silence(&error) => {
                self.disconnect(index, &LinkError::Io(error));
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
            Phase::ToLane(to) => {
                if !socket.link.is_settled() {
                    self.cannot_place(to, error);
                }
                self.judge_path(to, error);
                let tensor = violation.and_then(|v| v.corrupted_tensor());
                let run = self.worker_side.run();
                let tensor = run.zip(tensor).and_then(|(run, t)| run.name(t)).map(str::to_owned);
                if let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) {
                    if broken {
                        tracing::error!(lane = %run.describe(to.lane), tensor, %error, "closed");
                    }
                    run.lost(to.lane, Instant::now());
                    self.report.counters.broken += u64::from(run.dials().is_postponed(to.lane));
                }
            }
            Phase::FromWorker(conn) => {
                if broken {
                    tracing::error!(peer = %socket.peer, %error, "closed");
                }
                // A worker that leaves in order just closes.
                self.report.counters.broken += u64::from(!matches!(error, LinkError::Closed));
                self.lane_side.close(conn);
            }
            Phase::Dialing { .. } | Phase::Greeting(_) => {}
        }
    }

    /// Hands over what is new, until nothing moves any more.
    fn move_bytes(&mut self) {
        loop {
            let mut touched = self.move_in_process();
            touched |= self.pass_on();
            touched |= self.pass_on_for_racks();
            if let Some(job) = self.worker_side.run().map(|run| run.view.job) {
                self.dial_wanted(job);
            }
            while let Some(run) = self.worker_side.run_mut()
                && let Some(lane) = run.client.next_dirty()
            {
                let job = run.view.job;
                touched |= self.transmit_to_lane(ToLane { job, lane });
            }
            self.lane_side.lane.end_turn();
            touched |= self.send_results();
            touched |= self.worker_side.settle(&mut self.lane_side, &mut self.report);
            if !touched || self.in_process_more {
                return;
            }
        }
    }

    /// Sends what the lane has finished, at once, while it is in cache.
    fn send_results(&mut self) -> bool {
        let mut touched = false;
        while let Some(conn) = self.lane_side.lane.next_dirty() {
            touched |= self.transmit_to_worker(conn);
        }
        touched
    }

    fn move_in_process(&mut self) -> bool {
        self.in_process_more = false;
        let now = self.now();
        let Some(run) = self.worker_side.run_mut() else { return false };
        let Some((on_client, on_lane)) = run.own else { return false };
        let lane = &mut self.lane_side.lane;
        let client = (&mut run.client, on_client);
        let moved = in_process(client, (lane, on_lane), now, IN_PROCESS_TURN);
        let moved = moved.and_then(|frames| {
            let client = (&mut run.client, on_client);
            let chunks = exchange(client, (lane, on_lane), IN_PROCESS_TURN)?;
            Ok(frames + chunks)
        });
        let moved = match moved {
            Ok(moved) => moved,
            Err(violation) => {
                self.worker_side.disagree(&violation);
                return false;
            }
        };
        if moved > 0 {
            run.last_progress = Instant::now();
        }
        self.report.counters.bytes_local += moved as u64;
        self.in_process_more = moved >= IN_PROCESS_TURN;
        moved > 0
    }

    /// Passes on what the lane has summed for this machine.
    fn pass_on(&mut self) -> bool {
        let Some(run) = self.worker_side.run_mut() else { return false };
        run.hub.pass_on(&mut run.client, &mut self.lane_side.lane)
    }

    /// The same in a server, for the jobs of which this lane is a hub.
    fn pass_on_for_racks(&mut self) -> bool {
        let mut any = false;
        let now = (self.now(), IN_PROCESS_TURN);
        for job in self.server_hubs.begin(&mut self.lane_side.lane, &self.own) {
            let Some(run) = self.server_hubs.get_mut(job) else { continue };
            match run.advance(&mut self.lane_side.lane, now) {
                Ok((bytes, happened)) => {
                    self.report.counters.bytes_local += bytes as u64;
                    any |= happened;
                }
                Err(violation) => {
                    tracing::error!(%job, %violation, "a lane and the hub beside it disagree");
                    run.hub.close();
                }
            }
            self.dial_wanted(job);
            while let Some(run) = self.server_hubs.get_mut(job)
                && let Some(lane) = run.client().next_dirty()
            {
                any |= self.transmit_to_lane(ToLane { job, lane });
            }
        }
        any
    }

    /// Connects to lanes for which there is something, if that has not begun.
    fn dial_wanted(&mut self, job: JobId) {
        while let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, job)
            && let Some(lane) = run.client().next_wanted()
        {
            if run.dials().is_idle(lane) {
                self.dial(ToLane { job, lane });
            }
        }
    }

    fn transmit_to_lane(&mut self, ToLane { job, lane }: ToLane) -> bool {
        let run = user(&mut self.worker_side, &mut self.server_hubs, job);
        let Some(run) = run else { return false };
        let Some(index) = run.dials().socket(lane) else { return false };
        let Some(socket) = self.sockets.get(index) else { return false };
        if !matches!(socket.phase, Phase::ToLane(_)) {
            return false;
        }
        match socket.link.transmit(run.client(), lane) {
            Ok(sent) => {
                self.report.counters.sent(sent, socket.away);
                sent > 0
            }
            Err(error) => {
                self.disconnect(index, &LinkError::Io(error));
                true
            }
        }
    }

    fn transmit_to_worker(&mut self, conn: ConnId) -> bool {
        let Some(index) = self.lane_side.socket(conn) else { return false };
        let Some(socket) = self.sockets.get(index) else { return false };
        match socket.link.transmit(&mut self.lane_side.lane, conn) {
            Ok(sent) => {
                self.report.counters.sent(sent, socket.away);
                self.sockets.turns.charge(index, sent);
                sent > 0
            }
            Err(error) => {
                self.disconnect(index, &LinkError::Io(error));
                true
            }
        }
    }

    /// Fails what is under way, sends what is queued, says goodbye, and waits a little for peers to
    /// do the same, so that no result still on its way is cut off.
    fn leave(&mut self, events: &mut Events) {
        // A rank that is late to a broadcast finds its result here, unless the job has failed.
        let serves = self.worker_side.run().is_some_and(|run| run.over.is_none());
        // The other loops of a worker leave by themselves.
        self.worker_side.end(&OpError::Closed("the session was shut down".to_owned()));
        self.perform_actions();
        let last = Instant::now() + LAST_LINGER;
        let linger = patience(&self.config);
        let (mut deadline, mut moved) = (Instant::now() + linger, self.report.counters.moved());
        // What the loop was woken for beside the command to leave: no event repeats it.
        self.serve(events);
        loop {
            self.move_bytes();
            if self.report.counters.moved() != moved {
                (deadline, moved) = (Instant::now() + linger, self.report.counters.moved());
            }
            let lane = &self.lane_side.lane;
            let run = self.worker_side.run().filter(|_| serves);
            let may = |tensor, rank| run.is_some_and(|run| run.may_begin(tensor, rank));
            let done = lane.is_drained() && !lane.is_expected(may);
            if done && !self.said_goodbye {
                self.said_goodbye = true;
                let established = |p: &Phase| matches!(p, Phase::ToLane(_) | Phase::FromWorker(_));
                for socket in self.sockets.iter_mut().filter(|s| established(&s.phase)) {
                    let _ = socket.link.finish_sending();
                }
            }
            let left = deadline.min(last).saturating_duration_since(Instant::now());
            let is_alone = !self.lane_side.is_connected() && self.sockets.are_flushed();
            if left.is_zero() || (self.said_goodbye && is_alone) {
                return;
            }
            let pause = if self.is_busy() { Duration::ZERO } else { left };
            match self.poll.poll(events, Some(pause)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => self.serve(events),
            }
        }
    }
}

/// Whose connections to the lanes of a job these are.
fn user<'a>(
    worker_side: &'a mut WorkerSide,
    server_hubs: &'a mut ServerHubs,
    job: JobId,
) -> Option<&'a mut dyn LaneUser> {
    if let Some(run) = server_hubs.get_mut(job) {
        return Some(run);
    }
    let run = worker_side.run_mut().filter(|run| run.view.job == job);
    run.map(|run| run as &mut dyn LaneUser)
}
