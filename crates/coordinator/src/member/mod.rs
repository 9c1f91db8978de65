//! A member's side of the control plane: one thread that holds the session.
//!
//! The queue of what a member says is unbounded, but what fills it is not: each tensor is declared
//! once, in lists of which one at a time is on its way, and heartbeats stop within the peer
//! time-out if the coordinator no longer reads.

mod clock;
mod declarations;
mod greeting;
mod memory;
pub(crate) mod options;
#[cfg(test)]
mod reconnects;
mod returning;
mod seat;
mod session;
mod traces;

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, PoisonError, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sumpter_membership::MemberEvent;
use sumpter_types::{Epoch, JobId, MemberId, Role, Stats, StatusReport, TensorId, TensorSpec};
use sumpter_wire::Token;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::codec::{join_to_proto, report_from_proto};
use crate::error::JoinError;
use crate::handshake::process_number;
use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::tls::Tls;
use greeting::Greeting;
pub use options::JoinOptions;
use returning::AWAY_LIMIT;
pub use seat::{Seat, SeatOptions};
use session::{Command, Session, Standing, StatsSlot};
pub use traces::{TraceOf, Traces, traces};

/// How long leaving waits for the coordinator to have seen it.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How long a request of one who is no member may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Operations that are reported as waiting: the oldest show what is wrong.
const PENDING_LIMIT: usize = 64;

/// A worker's or server's membership. Dropped without [`leave`](Self::leave), it counts as dead.
#[derive(Debug)]
pub struct Member {
    standing: Arc<Standing>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    stats: StatsSlot,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Joins: waits until the coordinator can be reached and has welcomed or refused this
    /// process, at most for the start time-out.
    ///
    /// `on_event` is called on the member's own thread, which also sends its heartbeats: it must
    /// not block, and must not wait for a thread that drops the member or makes it leave.
    ///
    /// # Errors
    /// [`JoinError`] if this process does not become a member.
    pub fn join(
        options: JoinOptions,
        on_event: impl FnMut(MemberEvent) + Send + 'static,
    ) -> Result<Self, JoinError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (welcomed, welcome) = blocking::sync_channel(1);
        let (commands, asked) = mpsc::unbounded_channel();
        let stats = StatsSlot::default();
        let standing = Arc::new(Standing::default());
        let shared = (stats.clone(), standing.clone());
        let thread =
            std::thread::Builder::new().name("sumpter-member".to_owned()).spawn(move || {
                runtime.block_on(take_part(&options, on_event, shared, asked, welcomed));
                runtime.shutdown_background();
            })?;
        let ended = || JoinError::from(std::io::Error::other("the session's thread ended"));
        welcome.recv().map_err(|_| ended())??;
        Ok(Self { standing, commands: Some(commands), stats, thread: Some(thread) })
    }

    /// This member's number, by which a server finds itself in a [`ClusterView`]. It may change
    /// when a lost coordinator comes back.
    ///
    /// [`ClusterView`]: crate::ClusterView
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.standing.id()
    }

    /// Declares a tensor. The answer is an event: [`MemberEvent::Tensors`], which comes once for
    /// each tensor and may have come already, or [`MemberEvent::TensorError`].
    pub fn declare(&self, spec: TensorSpec) {
        self.ask(Command::Declare(spec));
    }

    /// Says that this worker cannot take part in the rounds of a tensor; all workers get
    /// [`MemberEvent::TensorError`].
    pub fn refuse(&self, name: String, message: String) {
        self.ask(Command::Refuse(name, message));
    }

    /// Says that this worker has no more data and takes part with zeros until
    /// [`MemberEvent::AllOutOfData`]; the others get [`MemberEvent::OutOfData`].
    pub fn out_of_data(&self) {
        self.ask(Command::OutOfData);
    }

    /// Tells the workers that are out of data that a round has begun.
    pub fn began(&self, tensor: TensorId, round: u64) {
        self.ask(Command::Began(tensor, round));
    }

    /// Answers [`MemberEvent::Suspend`] of this epoch: what this worker has of the rounds under
    /// way, in bytes that only workers understand; every worker gets all answers with
    /// [`MemberEvent::Resume`]. The worker's connections must be closed already.
    pub fn progress(&self, epoch: Epoch, payload: Vec<u8>) {
        self.ask(Command::Progress(epoch, payload));
    }

    /// Says that this worker cannot reach a server of its run: the run goes on without it. Of no
    /// effect once a later plan is under way.
    pub fn suspect(&self, server: MemberId, plan: (JobId, Epoch), reason: String) {
        self.ask(Command::Suspect(server, plan, reason));
    }

    /// Asks to be taken out of all runs (for servers); the answer is [`MemberEvent::Drained`].
    pub fn drain(&self) {
        self.ask(Command::Drain);
    }

    /// Answers [`MemberEvent::TraceAsked`] with a piece of what was recorded, in bytes that only
    /// members understand; `last` completes the answer.
    pub fn send_trace(&self, request: u64, payload: Vec<u8>, last: bool) {
        self.ask(Command::Trace(request, payload, last));
    }

    /// Leaves the latest numbers for the next heartbeat.
    pub fn report(&self, mut stats: Stats) {
        stats.pending.truncate(PENDING_LIMIT);
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = Some(stats);
    }

    /// Says goodbye, and waits until that was seen, at most a second, or some more for a lost
    /// coordinator to come back. Nothing happens the second time.
    pub fn leave(&self) {
        let (done, seen) = blocking::sync_channel(1);
        if self.ask(Command::Leave(done)) {
            let begun = Instant::now();
            // Also returns when the session ends otherwise.
            while seen.recv_timeout(LEAVE_LIMIT) == Err(RecvTimeoutError::Timeout)
                && self.standing.is_away()
                && begun.elapsed() < AWAY_LIMIT
            {}
        }
    }

    fn ask(&self, command: Command) -> bool {
        self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.commands = None;
        let Some(thread) = self.thread.take() else { return };
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

async fn take_part(
    options: &JoinOptions,
    on_event: impl FnMut(MemberEvent),
    (stats, standing): (StatsSlot, Arc<Standing>),
    asked: mpsc::UnboundedReceiver<Command>,
    welcomed: blocking::SyncSender<Result<(), JoinError>>,
) {
    let greeting = Greeting {
        coordinator: &options.coordinator,
        token: &options.token,
        tls: options.tls.as_ref(),
        purpose: proto::purpose::Body::Join(join_to_proto(options, process_number())),
    };
    let greeted = match greeting.until(options.start_timeout).await {
        Ok(greeted) => greeted,
        Err(error) => {
            // The caller waits for this.
            let _ = welcomed.send(Err(error));
            return;
        }
    };
    let (rank, workers) = match options.role {
        Role::Worker { rank, world_size, .. } => (Some(rank), world_size),
        Role::Server => (None, 0),
    };
    standing.set_id(MemberId(greeted.welcome.member));
    let _ = welcomed.send(Ok(()));
    let coordinator = options.coordinator.clone();
    let mut session = Session::new(greeted, on_event, coordinator, rank, stats, standing);
    if let Some(rank) = rank {
        session.memory.declarations.set_rank(rank, workers);
    }
    session.run(options, asked).await;
}

/// Asks a coordinator how it stands with one job or with all.
///
/// # Errors
/// [`JoinError`] if it does not answer, or does not hold the token.
pub fn status(
    coordinator: &str,
    token: &Token,
    tls: Option<&Tls>,
    job: Option<&str>,
) -> Result<StatusReport, JoinError> {
    let job = job.unwrap_or_default().to_owned();
    let purpose = proto::purpose::Body::Status(proto::StatusRequest { job });
    match ask(coordinator, token, tls, purpose)? {
        Some(ToMember::Status(report)) => Ok(report_from_proto(report)),
        _ => Err(no_answer(coordinator, "it did not tell its status")),
    }
}

/// Asks a coordinator to take servers out of all runs, after which they end; which servers these
/// are. A name of digits alone is a member's number, any other a host, all of whose servers are
/// meant.
///
/// # Errors
/// [`JoinError`] if it does not answer, or does not hold the token.
pub fn drain(
    coordinator: &str,
    token: &Token,
    tls: Option<&Tls>,
    who: &str,
) -> Result<proto::DrainReport, JoinError> {
    let who = match who.parse() {
        Ok(member) => proto::drain_request::Who::Member(member),
        Err(_) => proto::drain_request::Who::Host(who.to_owned()),
    };
    let purpose = proto::purpose::Body::Drain(proto::DrainRequest { who: Some(who) });
    match ask(coordinator, token, tls, purpose)? {
        Some(ToMember::DrainReport(report)) => Ok(report),
        _ => Err(no_answer(coordinator, "it did not say which servers it drains")),
    }
}

/// Asks a coordinator to change settings of a running job; what it answers, a refusal included.
///
/// # Errors
/// [`JoinError`] if it does not answer, or does not hold the token.
pub fn tune(
    coordinator: &str,
    token: &Token,
    tls: Option<&Tls>,
    request: proto::TuneRequest,
) -> Result<proto::TuneReport, JoinError> {
    match ask(coordinator, token, tls, proto::purpose::Body::Tune(request))? {
        Some(ToMember::TuneReport(report)) => Ok(report),
        _ => Err(no_answer(coordinator, "it did not say what it changes")),
    }
}

/// The coordinator's answer to one who does not become a member.
fn ask(
    coordinator: &str,
    token: &Token,
    tls: Option<&Tls>,
    purpose: proto::purpose::Body,
) -> Result<Option<ToMember>, JoinError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let greeting = Greeting { coordinator, token, tls, purpose };
    let answer = runtime.block_on(async {
        let mut greeted = greeting.only(REQUEST_LIMIT).await?;
        let answer = timeout(REQUEST_LIMIT, greeted.inbound.message()).await;
        Ok(answer.ok().and_then(Result::ok).flatten().and_then(|message| message.body))
    });
    runtime.shutdown_background();
    answer
}

fn no_answer(coordinator: &str, reason: &str) -> JoinError {
    JoinError::NotACoordinator { coordinator: coordinator.to_owned(), reason: reason.to_owned() }
}
