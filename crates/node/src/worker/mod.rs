//! A worker's side of Sumpter: joins a job and sums tensors, from any thread.

pub(crate) mod decision;
pub(crate) mod deferred;
pub(crate) mod loops;
pub(crate) mod staged;
pub(crate) mod staged_round;
pub(crate) mod start;
pub(crate) mod tensor;
pub(crate) mod timeline;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use sumpter_config::Config;
use sumpter_coordinator::{JoinOptions, Member};
use sumpter_membership::{ClusterView, LaneView, MemberEvent};
use sumpter_metrics::Endpoint;
use sumpter_types::{Epoch, Rank, Role, Stats, TensorSpec};

use crate::cluster::interfaces::Interfaces;
use crate::cluster::numa::{cores_near, pin};
use crate::cluster::shards::DeviceGroups;
use crate::command::{Command, DeclarationId, Subscription};
use crate::completion::Callback;
use crate::error::{NodeError, OpError};
use crate::event_loop::EventLoop;
use crate::join::{data_tls, interfaces, join_options, lane_listeners};
use crate::metrics::tell_of_worker;
use crate::remote::Remote;
use crate::run::table::members;
use crate::stats::total;
use crate::worker::loops::{LoopPlace, Loops};
use crate::worker::start::StartSignal;
use crate::worker::tensor::{Tensor, check, normalized};
use crate::worker::timeline::Timeline;

/// How often a wait looks whether the caller wants to stop.
const SLICE: Duration = Duration::from_millis(50);

/// A process's membership in a job.
#[derive(Debug)]
pub struct Worker {
    loops: Arc<Loops>,
    member: Arc<Member>,
    view: ClusterView,
    groups: DeviceGroups,
    rank: Rank,
    /// Whether workers may die without ending the job.
    elastic: bool,
    notifier: Sender<Callback>,
    /// What has been declared, and whether it is averaged.
    tensors: Mutex<HashMap<(TensorSpec, bool), Arc<Tensor>>>,
    timeline: Mutex<Option<Timeline>>,
    metrics: Mutex<Option<Endpoint>>,
    threads: Mutex<Option<Threads>>,
}

/// The threads of a worker that has not been shut down.
#[derive(Debug)]
struct Threads {
    event_loops: Vec<JoinHandle<()>>,
    notifier: JoinHandle<()>,
}

impl Worker {
    /// Joins the job of `config` and waits until it starts. `interrupted` is asked often; when it
    /// says true, the wait ends.
    ///
    /// # Errors
    /// [`NodeError`], naming who is missing if the job does not start in time.
    pub fn join(
        config: &Config,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Worker, NodeError> {
        let interfaces = interfaces(config, interrupted)?.ok_or(NodeError::Interrupted)?;
        let (started, start) = unbounded();
        let (event_loops, lanes) = event_loops(config, &interfaces, &started)?;
        drop(started);
        let options = worker_options(config, lanes, &interfaces)?;
        let host = options.host.clone();
        let (loops, event_loops) = begin(event_loops)?;
        let (notifier, callbacks) = unbounded::<Callback>();
        let notify_thread = spawn("sumpter-notify", move || {
            callbacks.into_iter().for_each(|callback| callback());
        })?;
        let stop = |error| {
            loops.send_all(|| Command::Leave(bounded(1).0));
            Err(error)
        };
        let member = match join_member(options, &loops, interrupted) {
            Ok(member) => member,
            Err(error) => return stop(error),
        };
        loops.send_all(|| Command::Joined(member.clone()));
        match wait_for_start(&start, loops.count(), interrupted) {
            Ok(view) => {
                let worker = Worker {
                    groups: DeviceGroups::of(&view),
                    rank: Rank(config.rank),
                    elastic: config.workers_may_fail(),
                    loops,
                    member,
                    view,
                    notifier,
                    tensors: Mutex::default(),
                    timeline: Mutex::new(None),
                    metrics: Mutex::new(None),
                    threads: Mutex::new(Some(Threads { event_loops, notifier: notify_thread })),
                };
                worker.start_metrics(config, &host)?;
                if let Some(path) = config.timeline.as_deref().filter(|_| config.rank == 0) {
                    worker.start_timeline(path)?;
                }
                Ok(worker)
            }
            Err(error) => {
                member.leave();
                stop(error)
            }
        }
    }

    /// This worker's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Who takes part.
    #[must_use]
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// The ranks of this rank's device group, ascending, and whether each holds shards; itself if
    /// it is in none.
    #[must_use]
    pub fn device_group(&self) -> &[(Rank, bool)] {
        self.groups.of_rank(self.rank)
    }

    /// Declares a tensor, whose sum is divided by the number of ranks with `average`. What does
    /// not fit this job is an error of the tensor's operations. The same declaration again gives
    /// the same tensor.
    #[must_use]
    pub fn declare(&self, spec: TensorSpec, average: bool) -> Arc<Tensor> {
        let world_size = self.view.workers.len();
        let spec = normalized(spec, world_size);
        let tensor = |spec: TensorSpec, id: Result<DeclarationId, String>| {
            let sharded = spec.sharded && id.is_ok();
            let members = members(&spec, world_size as u32);
            let held = sharded.then(|| self.groups.held(&spec, &members, self.rank));
            let (loops, notifier) = (self.loops.clone(), self.notifier.clone());
            Arc::new(Tensor::new((spec, held), id, loops, notifier))
        };
        let elastic = self.elastic;
        if let Err(reason) = check(&spec, average, self.rank, world_size, elastic) {
            return tensor(spec, Err(reason));
        }
        // Held while the command is sent: the event loops count declarations as they come.
        let mut tensors = self.tensors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = DeclarationId(tensors.len() as u32);
        let known = tensors.entry((spec, average)).or_insert_with_key(|(spec, average)| {
            // A loop that has ended fails what is submitted.
            self.loops.send_all(|| Command::Declare(next, spec.clone(), *average));
            tensor(spec.clone(), Ok(next))
        });
        known.clone()
    }

    /// Takes part with zeros in whatever the others begin, until all workers have called this;
    /// the last of them. `interrupted` is asked often; when it says true, the wait ends, but
    /// taking part does not.
    ///
    /// # Errors
    /// [`OpError`] if the job ends first, or `None` if interrupted.
    pub fn out_of_data(
        &self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Rank, Option<OpError>> {
        let (answer, last) = bounded(self.loops.count() as usize);
        self.loops.send_all(|| Command::OutOfData(answer.clone()));
        drop(answer);
        loop {
            match last.recv_timeout(SLICE) {
                Ok(last) => return last.map_err(Some),
                Err(_) if interrupted() => return Err(None),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                    let reason = "the session has been shut down".to_owned();
                    return Err(Some(OpError::Closed(reason)));
                }
            }
        }
    }

    /// Writes what operations do from now on to a file that Chrome and Perfetto show. A timeline
    /// under way ends first.
    ///
    /// # Errors
    /// [`NodeError`] if one of the files cannot be written.
    pub fn start_timeline(&self, path: &Path) -> Result<(), NodeError> {
        self.stop_timeline()?;
        let host = self.view.workers.get(self.rank.0 as usize).map_or("?", |worker| &worker.host);
        let (timeline, records) = Timeline::begin(path, self.rank, host)?;
        self.loops.send_all(|| Command::Timeline(Some(records.clone())));
        drop(records);
        *self.timeline.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(timeline);
        Ok(())
    }

    /// Completes the timeline, if there is one.
    ///
    /// # Errors
    /// [`NodeError`] if it could not be written.
    pub fn stop_timeline(&self) -> Result<(), NodeError> {
        let timeline = &mut self.timeline.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(timeline) = timeline.take() else { return Ok(()) };
        self.loops.send_all(|| Command::Timeline(None));
        timeline.finish()
    }

    fn start_metrics(&self, config: &Config, host: &str) -> Result<(), NodeError> {
        let endpoint = tell_of_worker(config, host, self.member.id(), self.loops.clone())?;
        *self.metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = endpoint;
        Ok(())
    }

    /// Counts samples trained on, for the live line.
    pub fn record_samples(&self, count: u64) {
        self.loops.send_first(Command::Samples(count));
    }

    /// What has been counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        total(self.loops.remotes())
    }

    /// The plan, once it is that of epoch `epoch` or a later one. For a thread that has nothing
    /// else to do.
    ///
    /// # Errors
    /// [`NodeError`] if the session ends first.
    pub fn plan_from(&self, epoch: Epoch) -> Result<ClusterView, NodeError> {
        let (answer, told) = bounded(1);
        self.loops.send_first(Command::Subscribe(Subscription::Plan(epoch, answer)));
        told.recv().map_err(|_| session_over())
    }

    /// The training step, once it is `step` or a later one, and when it was seen.
    ///
    /// # Errors
    /// As of [`plan_from`](Self::plan_from).
    pub fn step_from(&self, step: u64) -> Result<(u64, Instant), NodeError> {
        let (answer, told) = bounded(1);
        self.loops.send_first(Command::Subscribe(Subscription::Step(step, answer)));
        told.recv().map_err(|_| session_over())
    }

    /// Ends the membership: what others still wait for is sent first. Operations under way fail.
    /// Safe to call twice.
    pub fn shutdown(&self) {
        let threads = self.threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(Threads { event_loops, notifier }) = threads else { return };
        drop(self.metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let (answer, left) = bounded(self.loops.count() as usize);
        self.member.report(self.stats());
        self.loops.send_all(|| Command::Leave(answer.clone()));
        drop(answer);
        // Each loop answers in bounded time, or has ended already.
        left.iter().for_each(drop);
        self.member.leave();
        // A loop that panicked has said so on standard error.
        event_loops.into_iter().for_each(|thread| drop(thread.join()));
        if let Err(error) = self.stop_timeline() {
            tracing::warn!(%error, "the timeline is not complete");
        }
        // The notifying thread ends with its last sender, which may be in a completion that the
        // caller keeps; it holds nothing, so it is not waited for.
        drop(notifier);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn session_over() -> NodeError {
    NodeError::PeerLost("the session is over".to_owned())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NodeError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(NodeError::io("starting a thread"))
}

/// An event loop that is not running, the cores that it may use, and how it is reached.
type Resting = (EventLoop, Vec<usize>, Remote);

/// A worker's event loops, each of which reports the start by `started`; and their lanes.
fn event_loops(
    config: &Config,
    interfaces: &Interfaces,
    started: &Sender<Result<ClusterView, NodeError>>,
) -> Result<(Vec<Resting>, Vec<LaneView>), NodeError> {
    let count = config.io_threads;
    warn_of_cores(count);
    let tls = data_tls(config)?;
    let places = LoopPlace::all(count);
    let (mut event_loops, mut lanes) = (Vec::new(), Vec::new());
    for place in &places {
        let (number, own) = (place.number, own_interfaces(config, interfaces, place));
        let listeners = lane_listeners(config, interfaces, (number as u16, &own), tls.clone())?;
        lanes.push(listeners.view.clone());
        let worker = Some((place.clone(), StartSignal::new(started.clone())));
        let (event_loop, remote) = EventLoop::new(config, listeners, (number, count), worker)?;
        let cores = match config.pin_lanes {
            true => cores_near(&interfaces.all[own[0]].name),
            false => Vec::new(),
        };
        event_loops.push((event_loop, cores, remote));
    }
    let remotes = event_loops.iter().map(|(.., remote)| remote.clone());
    places[0].connect(remotes.collect());
    Ok((event_loops, lanes))
}

/// Runs event loops, each in a thread of its own.
fn begin(event_loops: Vec<Resting>) -> Result<(Arc<Loops>, Vec<JoinHandle<()>>), NodeError> {
    let remotes = event_loops.iter().map(|(.., remote)| remote.clone());
    let loops = Arc::new(Loops::new(remotes.collect()));
    let run = |(number, (event_loop, cores, _)): (usize, Resting)| {
        let name = match number {
            0 => "sumpter-loop".to_owned(),
            number => format!("sumpter-loop-{number}"),
        };
        spawn(&name, move || {
            pin(&cores);
            event_loop.run();
        })
    };
    let threads = event_loops.into_iter().enumerate().map(run).collect::<Result<_, _>>();
    match threads {
        Ok(threads) => Ok((loops, threads)),
        Err(error) => {
            loops.send_all(|| Command::Leave(bounded(1).0));
            Err(error)
        }
    }
}

/// Says so where a worker has more event loops than there are cores: they take turns then, and each
/// waits for the others' tensors.
fn warn_of_cores(loops: u32) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if loops as usize > cores {
        tracing::warn!(
            "io_threads is {loops}, but this process may use {cores} cores: its event loops take \
             turns; give it {cores} at most"
        );
    }
}

/// The interfaces that the lane of an event loop belongs to: the workers of a machine have a lane
/// for each loop, and share its interfaces as the lanes of a server do.
fn own_interfaces(config: &Config, interfaces: &Interfaces, of: &LoopPlace) -> Vec<usize> {
    let loops = of.count as usize;
    let beside = config.local_size.unwrap_or(1).max(1) as usize * loops;
    let place = config.local_rank.unwrap_or(0) as usize * loops + of.number as usize;
    interfaces.of_lanes(beside).swap_remove(place % beside)
}

fn worker_options(
    config: &Config,
    lanes: Vec<LaneView>,
    interfaces: &Interfaces,
) -> Result<JoinOptions, NodeError> {
    let role = Role::Worker {
        rank: Rank(config.rank),
        world_size: config.world_size,
        local_rank: config.local_rank.unwrap_or(0),
        local_size: config.local_size.unwrap_or(1),
    };
    join_options(config, role, (lanes, interfaces))
}

/// Joins on a thread of its own, so that the caller can be interrupted.
fn join_member(
    options: JoinOptions,
    loops: &Arc<Loops>,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Arc<Member>, NodeError> {
    let (answer, joined) = bounded(1);
    let loops = loops.clone();
    spawn("sumpter-join", move || {
        let on_event = move |event: MemberEvent| {
            loops.send_all(|| Command::Member(event.clone()));
        };
        let _ = answer.send(Member::join(options, on_event));
    })?;
    loop {
        match joined.recv_timeout(SLICE) {
            Ok(result) => return Ok(Arc::new(result?)),
            Err(_) if interrupted() => return Err(NodeError::Interrupted),
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                return Err(NodeError::Start("joining the coordinator failed".into()));
            }
        }
    }
}

/// Waits until all loops have begun the run, or one cannot.
fn wait_for_start(
    start: &Receiver<Result<ClusterView, NodeError>>,
    loops: u32,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<ClusterView, NodeError> {
    let mut begun = 0;
    loop {
        match start.recv_timeout(SLICE) {
            Ok(Ok(_)) if begun + 1 < loops => begun += 1,
            Ok(result) => return result,
            Err(_) if interrupted() => return Err(NodeError::Interrupted),
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                return Err(NodeError::Start("the event loop ended before the start".into()));
            }
        }
    }
}
