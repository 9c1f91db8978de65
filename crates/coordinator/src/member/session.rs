//! A member's session after its welcome: messages in both directions, and its end.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as blocking};
use std::time::Duration;

use sumpter_membership::{FatalKind, KnownRun, MemberEvent};
use sumpter_observe::monotonic_ns;
use sumpter_types::{Epoch, JobId, MemberId, Rank, Stats, TensorId, TensorSpec};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::Status;

use super::clock::{ClockLog, Next};
use super::greeting::Greeted;
use super::memory::Memory;
use crate::codec::{event_from_proto, stats_to_proto};
use crate::error::root_cause;
use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{CoordinatorMessage, MemberMessage};

/// Heartbeats within the silence after which a process counts as dead: one may well be late.
const BEATS_PER_TIMEOUT: u32 = 4;
/// A timer later than this was not late by itself: this process stood still, and the
/// coordinator's silence says nothing about the coordinator.
const STALL: Duration = Duration::from_secs(1);
/// The least peer time-out: below it, scheduling alone would look like death.
const LEAST_PEER_TIMEOUT: Duration = Duration::from_millis(20);

/// What the member's owner asks of its session.
pub(super) enum Command {
    Declare(TensorSpec),
    /// A tensor cannot be used; name and reason.
    Refuse(String, String),
    OutOfData,
    Began(TensorId, u64),
    Progress(Epoch, Vec<u8>),
    Suspect(MemberId, (JobId, Epoch), String),
    Drain,
    /// Some of a trace: the request, the bytes, whether they are the last.
    Trace(u64, Vec<u8>, bool),
    /// Leave, and say so to the sender's other end.
    Leave(blocking::SyncSender<()>),
}

/// The latest numbers, until a heartbeat takes them along.
pub(super) type StatsSlot = Arc<Mutex<Option<Stats>>>;

/// How the member stands with its coordinator, for its owner to see.
#[derive(Debug, Default)]
pub(super) struct Standing {
    id: AtomicU64,
    away: AtomicBool,
}

impl Standing {
    pub fn id(&self) -> MemberId {
        MemberId(self.id.load(Ordering::Relaxed))
    }

    pub fn set_id(&self, id: MemberId) {
        self.id.store(id.0, Ordering::Relaxed);
    }

    /// Whether there is no coordinator now, but one is expected to come back.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }
}

/// A welcomed session.
pub(super) struct Session<F> {
    pub(super) greeted: Greeted,
    on_event: F,
    pub(super) coordinator: String,
    rank: Option<Rank>,
    stats: StatsSlot,
    pub(super) standing: Arc<Standing>,
    pub(super) heard: Instant,
    pub(super) memory: Memory,
    pub(super) clock: ClockLog,
    leaving: Option<blocking::SyncSender<()>>,
    /// After this, the end of the stream is no news.
    over: bool,
}

impl<F: FnMut(MemberEvent)> Session<F> {
    pub fn new(
        greeted: Greeted,
        on_event: F,
        coordinator: String,
        rank: Option<Rank>,
        stats: StatsSlot,
        standing: Arc<Standing>,
    ) -> Self {
        Self {
            greeted,
            on_event,
            coordinator,
            rank,
            stats,
            standing,
            heard: Instant::now(),
            memory: Memory::default(),
            clock: ClockLog::default(),
            leaving: None,
            over: false,
        }
    }

    /// Attends to a session until it is over; if the coordinator was lost, how.
    pub(super) async fn attend(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Option<String> {
        let limit = |milliseconds| Duration::from_millis(milliseconds).max(LEAST_PEER_TIMEOUT);
        let peer_timeout = limit(self.greeted.welcome.peer_timeout_ms);
        // How long the coordinator bears our silence.
        let silence = limit(self.greeted.welcome.silence_ms);
        let mut beats = interval(silence.min(peer_timeout) / BEATS_PER_TIMEOUT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = self.heard + peer_timeout;
            let due = self.memory.declarations.due(self.heard);
            tokio::select! {
                message = self.greeted.inbound.message() => {
                    if let ControlFlow::Break(lost) = self.on_message(message) {
                        return lost;
                    }
                }
                command = commands.recv() => match command {
                    None => return None,
                    Some(command) => self.handle_command(command),
                },
                () = sleep_until(due.unwrap_or(deadline)), if due.is_some() => self.ask_next(),
                _ = beats.tick() => self.beat(),
                () = sleep_until(deadline) => {
                    if deadline.elapsed() < STALL {
                        let silence = self.heard.elapsed().as_secs_f64();
                        return Some(format!("no sign of life for {silence:.1} s"));
                    }
                    self.heard = Instant::now();
                }
            }
        }
    }

    /// Says what the owner wants said.
    pub(super) fn handle_command(&mut self, command: Command) {
        self.memory.ask(&command);
        self.say_of(command);
    }

    /// Declares what is to be declared, unless a list is on its way.
    pub(super) fn ask_next(&mut self) {
        if let Some(specs) = self.memory.declarations.next_list(Instant::now()) {
            self.say(FromMember::Declare(proto::Declare { specs }));
        }
    }

    /// Says it, perhaps once more.
    pub(super) fn say_of(&mut self, command: Command) {
        let body = match command {
            Command::Declare(spec) => {
                self.memory.declarations.add(spec, Instant::now());
                return self.ask_next();
            }
            Command::Refuse(name, message) => {
                FromMember::Refuse(proto::TensorError { name, message })
            }
            Command::OutOfData => FromMember::OutOfData(proto::OutOfData::default()),
            Command::Began(TensorId(tensor), round) => {
                FromMember::Began(proto::Began { tensor, round })
            }
            Command::Progress(Epoch(epoch), payload) => {
                FromMember::Progress(proto::Progress { epoch, payload })
            }
            Command::Suspect(MemberId(member), (JobId(run), Epoch(epoch)), reason) => {
                FromMember::Suspect(proto::Suspect { member, reason, epoch, run })
            }
            Command::Drain => FromMember::Drain(proto::Drain {}),
            Command::Trace(request, payload, last) => {
                let clock = if last { self.clock.samples() } else { Vec::new() };
                FromMember::TracePiece(proto::TracePiece { request, payload, last, clock })
            }
            Command::Leave(done) => {
                // The last counters, for a status after the end.
                self.beat();
                self.leaving = Some(done);
                FromMember::Leave(proto::Leave {})
            }
        };
        self.say(body);
    }

    /// Takes what the coordinator sent; when the session is over, breaks with how the coordinator
    /// was lost, if it was.
    fn on_message(
        &mut self,
        message: Result<Option<CoordinatorMessage>, Status>,
    ) -> ControlFlow<Option<String>> {
        self.heard = Instant::now();
        let body = match message {
            Ok(Some(CoordinatorMessage { body: Some(body) })) => body,
            Ok(Some(_)) => return ControlFlow::Continue(()),
            Ok(None) => return ControlFlow::Break(Some("it ended the session".to_owned())),
            Err(status) => {
                let how = format!("connection closed ({})", root_cause(&status));
                return ControlFlow::Break(Some(how));
            }
        };
        if let ToMember::LeaveSeen(_) = body {
            // The owner may have given up waiting.
            let _ = self.leaving.take().map(|done| done.try_send(()));
            return ControlFlow::Break(None);
        }
        if let ToMember::HeartbeatSeen(seen) = &body {
            match self.clock.on_heartbeat_seen(seen, monotonic_ns()) {
                Next::Nothing => {}
                Next::Beat => self.beat(),
                Next::Answer(asked) => asked.into_iter().for_each(|event| self.pass_on(event)),
            }
        }
        if let ToMember::Declared(_) = &body {
            self.memory.declarations.answered();
            self.ask_next();
        }
        let event = match self.greeted.pieces.take(body) {
            Ok(Some(body)) => event_from_proto(body),
            Ok(None) => Ok(None),
            Err(what) => Err(what),
        };
        match event {
            Ok(Some(event @ MemberEvent::TraceAsked { .. })) => {
                if self.clock.ask(event) {
                    self.beat();
                }
            }
            Ok(Some(event)) => self.pass_on(event),
            Ok(None) => {}
            Err(what) => {
                let message = format!("the coordinator at {} sent {what}", self.coordinator);
                (self.on_event)(MemberEvent::Fatal { kind: FatalKind::Protocol, message });
                return ControlFlow::Break(None);
            }
        }
        ControlFlow::Continue(())
    }

    fn pass_on(&mut self, event: MemberEvent) {
        let mut ready = None;
        self.memory.on_event(&event, self.rank);
        match &event {
            MemberEvent::JobStarted(view) => ready = Some((view.job, view.epoch)),
            MemberEvent::Finished | MemberEvent::Fatal { .. } | MemberEvent::GivenUp { .. } => {
                self.over = true;
            }
            _ => {}
        }
        (self.on_event)(event);
        if let Some((JobId(job), Epoch(epoch))) = ready {
            self.say(FromMember::JobReady(proto::JobReady { job, epoch }));
        }
    }

    /// Tells the owner that the coordinator is gone, and which worker went with it.
    pub(super) fn lost(&mut self, how: &str) {
        if self.is_over() {
            return;
        }
        let gone = &self.memory.gone;
        let holder = self.memory.run().and_then(|KnownRun { view, .. }| {
            let rank = view.coordinator_rank?;
            let news = Some(rank) != self.rank && !gone.contains(&rank);
            view.workers.iter().find(|worker| news && worker.rank == rank)
        });
        if let Some(worker) = holder {
            (self.on_event)(MemberEvent::WorkerLost {
                rank: worker.rank,
                host: worker.host.clone(),
                reason: format!("its process held the coordinator, which was lost: {how}"),
            });
        }
        let message = format!("lost the coordinator at {}: {how}", self.coordinator);
        (self.on_event)(MemberEvent::CoordinatorLost { message });
    }

    /// Whether the end of the coordinator is no news.
    pub(super) fn is_over(&self) -> bool {
        self.over || self.leaving.is_some()
    }

    fn beat(&mut self) {
        let stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stats = stats.as_ref().map(stats_to_proto);
        self.say(FromMember::Heartbeat(proto::Heartbeat { stats, sent_ns: monotonic_ns() }));
    }

    fn say(&self, body: FromMember) {
        // A closed queue shows as the end of the stream.
        let _ = self.greeted.outbound.send(MemberMessage { body: Some(body) });
    }
}
