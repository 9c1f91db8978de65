//! A process' seat in an elastic job: one thread that holds the session with the coordinator, and
//! opens it again when it is lost.

use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sumpter_elastic::Seating;
use sumpter_membership::FatalKind;
use sumpter_wire::Token;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use super::greeting::{Greeted, Greeting};
use crate::codec::milliseconds;
use crate::error::JoinError;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{self, CoordinatorMessage, MemberMessage};
use crate::tls::Tls;

/// Heartbeats within the silence after which a process counts as dead: one may well be late.
const BEATS_PER_TIMEOUT: u32 = 4;
/// The least peer time-out: below it, scheduling alone would look like death.
const LEAST_PEER_TIMEOUT: Duration = Duration::from_millis(20);
/// How long leaving waits for the session's thread.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How often a wait looks whether the caller wants to stop.
const SLICE: Duration = Duration::from_millis(50);

/// What a process needs to ask for a seat.
#[derive(Clone, Debug)]
pub struct SeatOptions {
    /// The coordinator's `HOST:PORT`.
    pub coordinator: String,
    /// The secret both ends prove to hold.
    pub token: Token,
    /// Certificates, if the coordinator speaks TLS.
    pub tls: Option<Tls>,
    /// The elastic job's name, without a generation.
    pub job: String,
    /// The fewest workers a generation may have; at least 1.
    pub min_workers: u32,
    /// The most; 0 for no limit.
    pub max_workers: u32,
    /// This process' number among those that were started: newcomers get ranks in this order.
    pub rank: u32,
    /// The workers that were started, for which the first generation waits.
    pub expected: u32,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// How long to wait for the coordinator, and how long a generation may take to form once no
    /// process is at work.
    pub start_timeout: Duration,
    /// Silence after which a process counts as dead.
    pub peer_timeout: Duration,
}

/// A process' place in an elastic job, as long as it lives. Dropped without
/// [`leave`](Self::leave), it counts as dead.
#[derive(Debug)]
pub struct Seat {
    commands: Option<mpsc::UnboundedSender<Command>>,
    shared: Arc<Mutex<Shared>>,
    answers: Mutex<blocking::Receiver<Answer>>,
    ended: Mutex<blocking::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

type Answer = Result<Option<Seating>, JoinError>;

#[derive(Debug)]
enum Command {
    Ask,
    Leave(bool),
}

#[derive(Debug)]
struct Shared {
    /// The last place; before the first, only the rank that the process was started with.
    seating: Seating,
    lost: u32,
    newcomers: u32,
}

impl Seat {
    /// Begins to hold a session; nothing is asked for yet.
    ///
    /// # Errors
    /// [`JoinError::System`] if the operating system refuses a thread.
    pub fn open(options: SeatOptions) -> Result<Self, JoinError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (commands, asked) = mpsc::unbounded_channel();
        let (answer, answers) = blocking::channel();
        let (ending, ended) = blocking::sync_channel(1);
        let seating = Seating { rank: options.rank, ..Seating::default() };
        let shared = Arc::new(Mutex::new(Shared { seating, lost: 0, newcomers: 0 }));
        let mut holder = Holder { options, asked, answer, shared: shared.clone(), asks: false };
        let thread =
            std::thread::Builder::new().name("sumpter-seat".to_owned()).spawn(move || {
                runtime.block_on(holder.hold());
                runtime.shutdown_background();
                // The owner may be gone.
                let _ = ending.try_send(());
            })?;
        let (answers, ended) = (Mutex::new(answers), Mutex::new(ended));
        Ok(Self { commands: Some(commands), shared, answers, ended, thread: Some(thread) })
    }

    /// Asks for a place in the next generation and waits for it; `None` if the job's work is done.
    /// `interrupted` is asked often; when it says true, the wait ends.
    ///
    /// # Errors
    /// [`JoinError`] if the coordinator is not there or if too few workers come, and `None` if
    /// interrupted.
    pub fn ask(
        &self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Seating>, Option<JoinError>> {
        let ended = || Some(JoinError::from(std::io::Error::other("the seat was left")));
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer that an interrupted wait has left.
        while answers.try_recv().is_ok() {}
        let commands = self.commands.as_ref();
        if commands.is_none_or(|commands| commands.send(Command::Ask).is_err()) {
            return Err(ended());
        }
        loop {
            match answers.recv_timeout(SLICE) {
                Ok(answer) => return answer.map_err(Some),
                Err(blocking::RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(blocking::RecvTimeoutError::Timeout) if interrupted() => return Err(None),
                Err(blocking::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Processes of this one's generation that are gone.
    #[must_use]
    pub fn lost(&self) -> u32 {
        lock(&self.shared).lost
    }

    /// Processes that the next generation would take in.
    #[must_use]
    pub fn newcomers(&self) -> u32 {
        lock(&self.shared).newcomers
    }

    /// Gives the seat up, at most a second later; the job is `done` if no more workers are needed.
    /// Nothing happens the second time.
    pub fn leave(&self, done: bool) {
        let commands = self.commands.as_ref();
        if commands.is_some_and(|commands| commands.send(Command::Leave(done)).is_ok()) {
            // Its end otherwise is as good.
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(LEAVE_LIMIT);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's side of a seat.
struct Holder {
    options: SeatOptions,
    asked: mpsc::UnboundedReceiver<Command>,
    answer: blocking::Sender<Answer>,
    shared: Arc<Mutex<Shared>>,
    /// Whether the owner waits for an answer.
    asks: bool,
}

/// Why a session ended.
enum End {
    /// The seat was left, or is not taken.
    Left,
    /// There is no seat and nothing to hold before the next question.
    Unseated,
    /// It is to be opened again.
    Lost,
}

impl Holder {
    async fn hold(&mut self) {
        // Nothing is there to hold before the first question.
        let mut end = End::Unseated;
        loop {
            match end {
                End::Left => return,
                End::Unseated if !self.asks => match self.asked.recv().await {
                    Some(Command::Ask) => self.asks = true,
                    Some(Command::Leave(_)) | None => return,
                },
                End::Unseated | End::Lost => {}
            }
            end = self.open().await;
        }
    }

    /// Opens a session and holds it to its end.
    async fn open(&mut self) -> End {
        let options = self.options.clone();
        let greeting = Greeting {
            coordinator: &options.coordinator,
            token: &options.token,
            tls: options.tls.as_ref(),
            purpose: proto::purpose::Body::Seat(self.request()),
        };
        let greeted = tokio::select! {
            greeted = greeting.until(options.start_timeout) => greeted,
            () = self.left() => return End::Left,
        };
        match greeted {
            Ok(greeted) => self.session(greeted).await,
            Err(error) => {
                self.tell(Err(error));
                End::Unseated
            }
        }
    }

    /// Returns when the owner gives the seat up; notes meanwhile whether it asks.
    async fn left(&mut self) {
        while let Some(Command::Ask) = self.asked.recv().await {
            self.asks = true;
        }
    }

    fn request(&self) -> proto::SeatRequest {
        let SeatOptions { job, min_workers, max_workers, expected, host, machine, .. } =
            self.options.clone();
        let Seating { generation, rank, .. } = lock(&self.shared).seating;
        proto::SeatRequest {
            job,
            min_workers,
            max_workers,
            expected,
            host,
            machine,
            start_timeout_ms: milliseconds(self.options.start_timeout),
            peer_timeout_ms: milliseconds(self.peer_timeout()),
            generation,
            rank,
        }
    }

    fn peer_timeout(&self) -> Duration {
        self.options.peer_timeout.max(LEAST_PEER_TIMEOUT)
    }

    async fn session(&mut self, mut greeted: Greeted) -> End {
        let say = |body| {
            // A closed queue shows as the end of the stream.
            let _ = greeted.outbound.send(MemberMessage { body: Some(body) });
        };
        if self.asks {
            say(FromMember::AskSeat(proto::AskSeat {}));
        }
        let limit = self.peer_timeout();
        let mut beats = interval(limit / BEATS_PER_TIMEOUT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = greeted.inbound.message() => {
                    heard = Instant::now();
                    match message {
                        Ok(Some(CoordinatorMessage { body: Some(body) })) => {
                            if !self.on_message(body) {
                                return End::Unseated;
                            }
                        }
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return End::Lost,
                    }
                }
                command = self.asked.recv() => match command {
                    Some(Command::Ask) => {
                        self.asks = true;
                        say(FromMember::AskSeat(proto::AskSeat {}));
                    }
                    Some(Command::Leave(done)) => {
                        say(FromMember::LeaveSeat(proto::LeaveSeat { done }));
                        // The end of the stream is the sign that it was read.
                        let rest = async {
                            while let Ok(Some(_)) = greeted.inbound.message().await {}
                        };
                        let _ = tokio::time::timeout(LEAVE_LIMIT, rest).await;
                        return End::Left;
                    }
                    None => return End::Left,
                },
                _ = beats.tick() => say(FromMember::Heartbeat(proto::Heartbeat::default())),
                () = sleep_until(heard + limit) => return End::Lost,
            }
        }
    }

    /// Takes what the coordinator sent; whether the session goes on.
    fn on_message(&mut self, body: ToMember) -> bool {
        match body {
            ToMember::Seating(seating) => {
                let seating = Seating {
                    generation: seating.generation,
                    rank: seating.rank,
                    world_size: seating.world_size,
                    local_rank: seating.local_rank,
                    local_size: seating.local_size,
                };
                *lock(&self.shared) = Shared { seating, lost: 0, newcomers: 0 };
                self.tell(Ok(Some(seating)));
            }
            ToMember::SeatsChanged(proto::SeatsChanged { lost, newcomers }) => {
                let shared = &mut lock(&self.shared);
                (shared.lost, shared.newcomers) = (lost, newcomers);
            }
            ToMember::SeatsOver(_) => {
                self.tell(Ok(None));
                return false;
            }
            ToMember::Refused(refused) => {
                let coordinator = self.options.coordinator.clone();
                let (kind, message) = (FatalKind::Start, refused.message);
                self.tell(Err(JoinError::Refused { coordinator, kind, message }));
                return false;
            }
            ToMember::Waiting(proto::Waiting { missing, seconds }) => {
                let (job, missing) = (&self.options.job, missing.join(", "));
                if seconds > 0.0 {
                    warn!("job '{job}' waits for {missing}, for {seconds:.0} s");
                } else {
                    info!("job '{job}': waiting for {missing}");
                }
            }
            _ => {}
        }
        true
    }

    fn tell(&mut self, answer: Answer) {
        if std::mem::take(&mut self.asks) {
            // The owner may have stopped waiting.
            let _ = self.answer.send(answer);
        }
    }
}
