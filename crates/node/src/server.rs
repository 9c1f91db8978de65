//! A summation server: one event loop per lane, and a session with the coordinator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use sumpter_config::{Config, Texts};
use sumpter_coordinator::{
    Coordinator, CoordinatorOptions, DrainReport, JoinOptions, Member, TuneReport, TuneRequest,
};
use sumpter_membership::{LaneView, MemberEvent, Serves};
use sumpter_types::{JobId, Role, StatusReport};

use crate::cluster::interfaces::Interfaces;
use crate::cluster::lanes::{connections_on_server, make_room_on_server};
use crate::cluster::numa::{cores_near, cores_of_lanes, pin};
use crate::command::Command;
use crate::error::NodeError;
use crate::event_loop::EventLoop;
use crate::join::{access, data_tls, interfaces, join_options, lane_listeners, tls};
use crate::metrics::{OfServer, tell_of_coordinator};
use crate::recording::answer_of;
use crate::remote::Remote;
use crate::stats::total;
use crate::tenants::tenants;

/// How often a server looks whether it should stop, and reports what it has counted.
const SLICE: Duration = Duration::from_millis(100);
const SLICES_A_REPORT: u32 = 10;

/// The log target of a server's notices to its operator; shown by default.
const NOTICE: &str = "notice";

/// How long a server waits, beyond the peer time-out, until the jobs it sums for have gone on
/// without it: a moment each, but on machines that may be busy.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// What a session with the coordinator asks its server to do.
enum News {
    /// A request for a trace of a run.
    TraceAsked(u64, JobId),
    Ended(End),
}

/// How a session with the coordinator ends.
enum End {
    /// There is nothing left to do.
    Finished,
    Failed(NodeError),
    /// The coordinator is gone, or counts on this server no longer.
    Lost(String),
}

/// Sums for the coordinator's jobs until its run is over, or `interrupted` says true: once for
/// each signal, of which the first lets running jobs go on without this server before it ends, and
/// the second ends it at once. A server that loses its coordinator waits for one to come back.
///
/// # Errors
/// [`NodeError`] when it cannot join, or the coordinator stays away for the start time-out.
pub fn serve(config: &Config, interrupted: &mut dyn FnMut() -> bool) -> Result<(), NodeError> {
    let Some(interfaces) = interfaces(config, interrupted)? else { return Ok(()) };
    let lanes = Lanes::start(config, interfaces)?;
    let announced = (lanes.views.clone(), &lanes.interfaces);
    let options = join_options(config, Role::Server, announced)?;
    let metrics = OfServer::start(config, &options.host, lanes.remotes.clone());
    let metrics = match metrics {
        Ok(metrics) => metrics,
        Err(error) => return lanes.finish(None, Err(error)),
    };
    let drain_limit = config.peer_timeout() + DRAIN_LIMIT;
    let mut lost: Option<String> = None;
    loop {
        let (tell, news) = unbounded();
        let handler = handler(lanes.remotes.clone(), tell);
        let member = match (join(options.clone(), handler, interrupted), &lost) {
            (Ok(Some(member)), _) => Arc::new(member),
            (Ok(None), _) => return lanes.finish(None, Ok(())),
            (Err(error), None) => return lanes.finish(None, Err(error)),
            (Err(error), Some(lost)) => {
                let error = NodeError::PeerLost(format!("{lost}; joining anew failed: {error}"));
                return lanes.finish(None, Err(error));
            }
        };
        metrics.joined(member.id());
        for remote in &lanes.remotes {
            remote.send(Command::Serves(Arc::downgrade(&member)));
        }
        let (coordinator, count) = (&options.coordinator, lanes.remotes.len());
        tracing::info!(target: NOTICE, "joined {coordinator} with {count} lanes; waiting for jobs");
        match attend(&member, &news, &lanes, drain_limit, interrupted) {
            End::Finished => return lanes.finish(Some(&member), Ok(())),
            End::Failed(error) => return lanes.finish(Some(&member), Err(error)),
            End::Lost(message) => {
                tracing::warn!("{message}; joining anew");
                lost = Some(message);
            }
        }
    }
}

/// The event loops that sum, from one session with a coordinator to the next.
struct Lanes {
    interfaces: Interfaces,
    views: Vec<LaneView>,
    remotes: Vec<Remote>,
    threads: Vec<JoinHandle<()>>,
}

impl Lanes {
    fn start(config: &Config, interfaces: Interfaces) -> Result<Lanes, NodeError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = if config.lanes == 0 { cores } else { config.lanes as usize };
        let tls = data_tls(config)?;
        // As many as cores, but at least one for each interface.
        let count = if config.lanes == 0 { count.max(interfaces.all.len()) } else { count };
        let of_lanes = interfaces.of_lanes(count);
        let mut listeners = Vec::new();
        for (lane, own) in of_lanes.iter().enumerate() {
            let number = u16::try_from(lane).map_err(|_| {
                NodeError::Start(format!("{count} lanes are more than there are ports"))
            })?;
            listeners.push(lane_listeners(config, &interfaces, (number, own), tls.clone())?);
        }
        let near = |own: &Vec<usize>| match config.pin_lanes {
            true => cores_near(&interfaces.all[own[0]].name),
            false => Vec::new(),
        };
        let cores = cores_of_lanes(&of_lanes.iter().map(near).collect::<Vec<_>>());
        let views = listeners.iter().map(|l| l.view.clone()).collect();
        let mut lanes = Lanes { interfaces, views, remotes: Vec::new(), threads: Vec::new() };
        for ((index, listeners), core) in listeners.into_iter().enumerate().zip(cores) {
            let addresses = listeners.view.to_string();
            let numbers = (index as u32, count as u32);
            let (event_loop, remote) = EventLoop::new(config, listeners, numbers, None)?;
            let thread = std::thread::Builder::new()
                .name(format!("sumpter-lane-{index}"))
                .spawn(move || {
                    pin(core.as_slice());
                    event_loop.run();
                })
                .map_err(NodeError::io("starting a lane's thread"))?;
            tracing::info!(lane = index, %addresses, core, "listening");
            lanes.remotes.push(remote);
            lanes.threads.push(thread);
        }
        Ok(lanes)
    }

    /// Ends the lanes, then says goodbye to the coordinator.
    fn finish(
        self,
        member: Option<&Member>,
        outcome: Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        if let Some(member) = member {
            member.report(total(&self.remotes));
        }
        for remote in &self.remotes {
            remote.send(Command::Leave(bounded(1).0));
        }
        for thread in self.threads {
            // A lane that panicked has said so on standard error; the others still leave.
            let _ = thread.join();
        }
        if let Some(member) = member {
            member.leave();
        }
        outcome
    }
}

/// Joins on a thread of its own, so that it can be interrupted; `None` when it was.
fn join(
    options: JoinOptions,
    handler: impl FnMut(MemberEvent) + Send + 'static,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Member>, NodeError> {
    let (answer, joined) = bounded(1);
    std::thread::Builder::new()
        .name("sumpter-join".into())
        .spawn(move || drop(answer.send(Member::join(options, handler))))
        .map_err(NodeError::io("starting a thread"))?;
    loop {
        match joined.recv_timeout(SLICE) {
            Ok(member) => return Ok(Some(member?)),
            Err(_) if interrupted() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(NodeError::Start("joining the coordinator failed".into()));
            }
        }
    }
}

/// Reports what the lanes count until the session is over.
fn attend(
    member: &Arc<Member>,
    news: &Receiver<News>,
    lanes: &Lanes,
    drain_limit: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> End {
    let mut slices = 0;
    let mut leaving: Option<Instant> = None;
    loop {
        match news.recv_timeout(SLICE) {
            Ok(News::TraceAsked(request, job)) => {
                answer_of(&lanes.remotes, request, job, member.clone());
                continue;
            }
            // Who is leaving anyway need not wait for another coordinator.
            Ok(News::Ended(End::Lost(_))) if leaving.is_some() => return End::Finished,
            Ok(News::Ended(end)) => return end,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return End::Lost("the session with the coordinator ended".into());
            }
        }
        match (interrupted(), leaving) {
            (true, Some(_)) => return End::Finished,
            (true, None) => {
                tracing::info!(target: NOTICE, "leaving; another signal ends this server at once");
                member.drain();
                leaving = Some(Instant::now());
            }
            (false, Some(since)) if since.elapsed() >= drain_limit => {
                let waited = drain_limit.as_secs();
                tracing::warn!("jobs still use this server after {waited} s: leaving all the same");
                return End::Finished;
            }
            (false, _) => {}
        }
        // It is to be in no plan any more: jobs would wait for that lane each time.
        if let Some(lane) = lanes.threads.iter().position(JoinHandle::is_finished) {
            let what = format!("lane {lane} of this server has ended, see its error above");
            return End::Failed(NodeError::Internal(what));
        }
        slices += 1;
        if slices % SLICES_A_REPORT == 0 {
            member.report(total(&lanes.remotes));
        }
    }
}

fn handler(remotes: Vec<Remote>, news: Sender<News>) -> impl FnMut(MemberEvent) + Send + 'static {
    // The connections of each.
    let mut jobs = BTreeMap::new();
    move |event| {
        let tell = |event: &MemberEvent| {
            for remote in &remotes {
                remote.send(Command::Member(event.clone()));
            }
        };
        let end = match &event {
            MemberEvent::JobStarted(view) => {
                let needed = connections_on_server(view, remotes.len());
                let known = jobs.insert(view.job, needed);
                // Those of the epoch before may still be open. Workers that cannot connect go on
                // without this server; it is others' as well.
                let more = needed.saturating_sub(known.unwrap_or_default());
                if let Err(what) = make_room_on_server(view, remotes.len(), more) {
                    tracing::error!("{what}");
                }
                let (name, workers, epoch) = (&view.name, view.workers.len(), view.epoch);
                if known.is_none() {
                    tracing::info!(target: NOTICE, "summing for job '{name}' of {workers} workers");
                } else {
                    tracing::info!(%epoch, "job '{name}' has other servers");
                }
                return tell(&event);
            }
            MemberEvent::JobEnded { job } => {
                jobs.remove(job);
                tracing::info!(target: NOTICE, "the job has ended");
                return tell(&event);
            }
            MemberEvent::TraceAsked { request, job } => {
                let _ = news.send(News::TraceAsked(*request, *job));
                return;
            }
            MemberEvent::Finished => End::Finished,
            MemberEvent::Draining => {
                tracing::info!(target: NOTICE, "an operator drains this server");
                return;
            }
            MemberEvent::Drained => {
                tracing::info!(target: NOTICE, "no job uses this server any more");
                End::Finished
            }
            MemberEvent::Fatal { kind, message } => {
                End::Failed(NodeError::fatal(*kind, message.clone()))
            }
            MemberEvent::CoordinatorLost { message } | MemberEvent::GivenUp { message } => {
                // The next coordinator knows nothing of these.
                for job in std::mem::take(&mut jobs).into_keys() {
                    tell(&MemberEvent::JobEnded { job });
                }
                End::Lost(message.clone())
            }
            _ => return,
        };
        let _ = news.send(News::Ended(end));
    }
}

/// Runs a coordinator for many jobs until `interrupted` says true.
///
/// # Errors
/// [`NodeError`] without a token, or when the address cannot be used.
pub fn run_coordinator(
    listen: &str,
    config: &Config,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<(), NodeError> {
    let mut coordinator = start_coordinator(listen, config, Serves::ManyJobs)?;
    let _metrics = tell_of_coordinator(config, &coordinator)?;
    tracing::info!(target: NOTICE, "coordinating at {}", coordinator.address());
    while !interrupted() {
        std::thread::park_timeout(SLICE);
    }
    coordinator.stop();
    Ok(())
}

/// Starts a coordinator in this process.
///
/// # Errors
/// [`NodeError`] without a token, or when the address cannot be used.
pub fn start_coordinator(
    listen: &str,
    config: &Config,
    serves: Serves,
) -> Result<Coordinator, NodeError> {
    let Some(token) = config.token()? else {
        return Err(NodeError::Auth(
            "a coordinator needs the cluster's token: set SUMPTER_TOKEN or SUMPTER_TOKEN_FILE"
                .to_owned(),
        ));
    };
    let options = CoordinatorOptions {
        tenants: tenants(config, &token)?,
        token,
        tls: tls(config)?,
        start_timeout: config.start_timeout(),
        peer_timeout: config.peer_timeout(),
        server_timeout: config.server_timeout(),
        serves,
    };
    Ok(Coordinator::start(listen, options)?)
}

/// Asks the coordinator of these settings how it stands with one job or with all.
///
/// # Errors
/// [`NodeError`] without a token or a coordinator, or when it does not answer or refuses.
pub fn status(config: &Config, job: Option<&str>) -> Result<StatusReport, NodeError> {
    let (coordinator, token, tls) = access(config)?;
    Ok(sumpter_coordinator::status(coordinator, &token, tls.as_ref(), job)?)
}

/// Has the coordinator of these settings take servers out of all runs: the one with this number,
/// or all of this host.
///
/// # Errors
/// As of [`status`].
pub fn drain(config: &Config, who: &str) -> Result<DrainReport, NodeError> {
    let (coordinator, token, tls) = access(config)?;
    Ok(sumpter_coordinator::drain(coordinator, &token, tls.as_ref(), who)?)
}

/// Has the coordinator of these settings change settings of a running job: those named, by their
/// texts, after all others are as at the start if `reset`. `None` is the only job there is. With an
/// `epoch`, only if the plan is still that one's.
///
/// # Errors
/// As of [`status`], and if nothing changes because of what was asked.
pub fn tune(
    config: &Config,
    job: Option<&str>,
    settings: Texts,
    reset: bool,
    epoch: Option<u32>,
) -> Result<TuneReport, NodeError> {
    let (coordinator, token, tls) = access(config)?;
    let (job, epoch) = (job.unwrap_or_default().to_owned(), epoch.unwrap_or_default());
    let request = TuneRequest { job, settings, reset, epoch };
    let report = sumpter_coordinator::tune(coordinator, &token, tls.as_ref(), request)?;
    match report.refusal.is_empty() {
        true => Ok(report),
        false => Err(NodeError::Refused(report.refusal)),
    }
}
