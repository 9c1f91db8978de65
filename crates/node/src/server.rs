//! A summation server: one event loop per lane, and a session with the coordinator.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use sumpter_config::Config;
use sumpter_coordinator::{
    Coordinator, CoordinatorOptions, Late, Member, MemberEvent, Role, Serves, Stats, StatusReport,
};

use crate::command::{Command, Remote};
use crate::error::NodeError;
use crate::event_loop::EventLoop;
use crate::join::{join_options, lane_listeners, tls};
use crate::tenants::tenants;

/// How often a server looks whether it should stop, and reports what it has counted.
const SLICE: Duration = Duration::from_millis(100);
const SLICES_A_REPORT: u32 = 10;

/// The log target of what whoever starts a server wants to see; shown by default.
const NOTICE: &str = "notice";

/// Why a server ends.
enum End {
    Finished,
    Failed(NodeError),
}

/// Sums for the coordinator's jobs until its run is over, or `interrupted` says true.
///
/// # Errors
/// [`NodeError`] when it cannot join, or the coordinator is gone.
pub fn serve(config: &Config, interrupted: &mut dyn FnMut() -> bool) -> Result<(), NodeError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = if config.lanes == 0 { cores } else { config.lanes as usize };
    let mut listeners = Vec::new();
    for lane in 0..lanes {
        let number = u16::try_from(lane).map_err(|_| {
            NodeError::Start(format!("{lanes} lanes are more than there are ports"))
        })?;
        listeners.push(lane_listeners(config, number)?);
    }
    let addresses = listeners.iter().map(|l| l.address).collect();
    let options = join_options(config, Role::Server, addresses)?;
    let mut remotes = Vec::new();
    let mut threads = Vec::new();
    for (index, listeners) in listeners.into_iter().enumerate() {
        let address = listeners.address;
        let numbers = (index as u32, lanes as u32);
        let (event_loop, remote) = EventLoop::new(config, listeners, numbers, None)?;
        let thread = std::thread::Builder::new()
            .name(format!("sumpter-lane-{index}"))
            .spawn(move || event_loop.run())
            .map_err(NodeError::io("starting a lane's thread"))?;
        tracing::info!(lane = index, %address, "listening");
        remotes.push(remote);
        threads.push(thread);
    }
    let (end, ended) = bounded(4);
    let handler = handler(remotes.clone(), end);
    let (answer, joined) = bounded(1);
    std::thread::Builder::new()
        .name("sumpter-join".into())
        .spawn(move || drop(answer.send(Member::join(options, handler))))
        .map_err(NodeError::io("starting a thread"))?;
    let member = loop {
        match joined.recv_timeout(SLICE) {
            Ok(member) => break member?,
            Err(_) if interrupted() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(NodeError::Start("joining the coordinator failed".into()));
            }
        }
    };
    let coordinator = config.coordinator.as_deref().unwrap_or_default();
    tracing::info!(target: NOTICE, "joined {coordinator} with {lanes} lanes; waiting for jobs");
    let mut slices = 0;
    let outcome = loop {
        match ended.recv_timeout(SLICE) {
            Ok(End::Finished) => break Ok(()),
            Ok(End::Failed(error)) => break Err(error),
            Err(_) if interrupted() => break Ok(()),
            Err(_) => {}
        }
        slices += 1;
        if slices % SLICES_A_REPORT == 0 {
            member.report(total(&remotes));
        }
    };
    member.report(total(&remotes));
    for remote in &remotes {
        remote.send(Command::Leave(bounded(1).0));
    }
    for thread in threads {
        // A lane that panicked has said so on standard error; the others still leave.
        let _ = thread.join();
    }
    member.leave();
    outcome
}

fn handler(remotes: Vec<Remote>, end: Sender<End>) -> impl FnMut(MemberEvent) + Send + 'static {
    move |event| {
        let over = match &event {
            MemberEvent::Finished => Some(End::Finished),
            MemberEvent::CoordinatorLost { message } => {
                Some(End::Failed(NodeError::PeerLost(message.clone())))
            }
            MemberEvent::Fatal { kind, message } => {
                Some(End::Failed(NodeError::fatal(*kind, message.clone())))
            }
            MemberEvent::JobStarted(view) => {
                let (name, workers) = (&view.name, view.workers.len());
                tracing::info!(target: NOTICE, "summing for job '{name}' of {workers} workers");
                None
            }
            MemberEvent::JobEnded { .. } => {
                tracing::info!(target: NOTICE, "the job has ended");
                None
            }
            _ => None,
        };
        if let Some(over) = over {
            let _ = end.try_send(over);
        }
        for remote in &remotes {
            remote.send(Command::Member(event.clone()));
        }
    }
}

/// What all lanes have counted together.
fn total(remotes: &[Remote]) -> Stats {
    let mut total = Stats::default();
    for remote in remotes {
        let (answer, stats) = bounded(1);
        remote.send(Command::Stats(answer));
        let Ok(stats) = stats.recv() else { continue };
        for (name, value) in stats.counters {
            let sum = total.counters.entry(name.clone()).or_default();
            *sum = if name == "elapsed_s" { sum.max(value) } else { *sum + value };
        }
        for late in stats.late {
            match total.late.iter_mut().find(|l| l.rank == late.rank) {
                Some(known) => {
                    known.count += late.count;
                    known.seconds += late.seconds;
                }
                None => total.late.push(Late { ..late }),
            }
        }
    }
    total
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
        serves,
    };
    Ok(Coordinator::start(listen, options)?)
}

/// Asks the coordinator of these settings how it stands with one job or with all.
///
/// # Errors
/// [`NodeError`] without a token or a coordinator, or when it does not answer or refuses.
pub fn status(config: &Config, job: Option<&str>) -> Result<StatusReport, NodeError> {
    let Some(token) = config.token()? else {
        return Err(NodeError::Auth("no job token: set SUMPTER_TOKEN".to_owned()));
    };
    let Some(coordinator) = config.coordinator.as_deref() else {
        return Err(NodeError::Start("no coordinator given".to_owned()));
    };
    Ok(sumpter_coordinator::status(coordinator, &token, tls(config)?.as_ref(), job)?)
}
