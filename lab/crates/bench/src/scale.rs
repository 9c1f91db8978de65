//! Thousands of members of one coordinator, without training: what membership costs by number.
//!
//! Each member is a real [`Member`] with a thread and a session of its own; what runs in the
//! coordinator's process is what would run for as many machines. Workers answer a change of plan
//! as a worker does, and report as many numbers as one does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use sumpter_coordinator::{JoinOptions, Member, message_bytes};
use sumpter_membership::{MemberEvent, ServerMemory, StallLimits};
use sumpter_plan::{
    Dealing, Machine, Placement, Plan, PlanError, Role as PlanRole, TreePlan, largest_partition,
    server_weights,
};
use sumpter_types::{
    Bandwidth, BandwidthSource, Collective, Dtype, Epoch, PendingOp, Rank, ReduceOp, Role, Speeds,
    Staleness, Stats, TensorSpec,
};
use sumpter_wire::Token;

use crate::BenchError;
use crate::cpu::ThreadCpu;

/// Members that join at once: fewer than a coordinator greets of one address.
const JOINING: usize = 32;
/// Counters of a worker's report.
const COUNTERS: usize = 32;
/// Operations that a worker reports while it waits.
const PENDING: usize = 16;
/// The age of an operation that is compared between ranks, and is no stall yet.
const WAITED_MS: u64 = 1500;
/// The stack of a thread that joins members.
const STACK_BYTES: usize = 256 << 10;

/// The members of a job.
#[derive(Clone, Debug)]
pub struct CrowdSpec {
    /// The coordinator's `HOST:PORT`.
    pub coordinator: String,
    /// The cluster's token.
    pub token: String,
    /// Workers, each on a machine of its own.
    pub workers: u32,
    /// Servers, likewise; at least one to change the plan.
    pub servers: u32,
    /// Lanes of each server; a worker has one.
    pub lanes: u32,
    /// How long members wait for the coordinator and for each other, and for an answer.
    pub patience: Duration,
    /// Silence after which a member counts as dead; heartbeats come four times as often.
    pub peer_timeout: Duration,
}

/// What a worker does while it sends heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It trains: nothing waits for long.
    Training,
    /// Its operations wait for one rank, as those of all others do.
    Waiting,
}

/// What an epoch change took.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// From the death of a server until every worker has the new plan.
    pub seconds: f64,
    /// Until every worker has been told to stop.
    pub suspended_s: f64,
    /// The largest message with the new plan.
    pub message_bytes: usize,
}

/// All members of a job, in this process.
#[derive(Debug)]
pub struct Crowd {
    spec: CrowdSpec,
    workers: Vec<Member>,
    servers: Vec<Member>,
    events: mpsc::Receiver<(usize, Seen)>,
    tensors: u32,
    plan_bytes: usize,
}

/// What a worker was told, as far as it is looked at here.
#[derive(Debug)]
enum Seen {
    Started(usize),
    Tensors(u32, usize),
    Suspend(Epoch),
    Resume(usize),
    Lost(String),
}

impl Crowd {
    /// Has all members join, and waits until every worker has the first plan.
    ///
    /// # Errors
    /// A token that cannot be one, a member that is refused, or a start that takes too long.
    pub fn join(spec: CrowdSpec) -> Result<Crowd, BenchError> {
        let argument = |error: &dyn ToString| BenchError::Argument(error.to_string());
        let token = Token::new(&spec.token).map_err(|error| argument(&error))?;
        let (tell, events) = mpsc::channel();
        let total = spec.servers + spec.workers;
        let next = AtomicU32::new(0);
        let (servers, workers) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
        let join_all = || -> Result<(), BenchError> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return Ok(());
                }
                let failed = |error| refused(&spec, number, &error);
                if number < spec.servers {
                    let options = server(&spec, &token, number);
                    let member = Member::join(options, |_| {}).map_err(failed)?;
                    servers.lock().unwrap_or_else(PoisonError::into_inner).push(member);
                    continue;
                }
                let (rank, tell) = (number - spec.servers, tell.clone());
                let notice = move |event| {
                    if let Some(seen) = seen(event, rank == 0) {
                        // The crowd may be gone already.
                        drop(tell.send((rank as usize, seen)));
                    }
                };
                let member = Member::join(worker(&spec, &token, rank), notice).map_err(failed)?;
                workers.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, member);
            }
        };
        thread::scope(|scope| -> Result<(), BenchError> {
            let mut threads = Vec::new();
            for _ in 0..JOINING {
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                let spawned = builder.spawn_scoped(scope, join_all);
                threads.push(spawned.map_err(BenchError::io("a thread that joins members"))?);
            }
            let joined = |thread: thread::ScopedJoinHandle<'_, Result<(), BenchError>>| {
                thread.join().unwrap_or_else(|_| Err(BenchError::Wrong("a panic".to_owned())))
            };
            threads.into_iter().try_for_each(joined)
        })?;
        let servers = servers.into_inner().unwrap_or_else(PoisonError::into_inner);
        let workers = workers.into_inner().unwrap_or_else(PoisonError::into_inner);
        let workers = workers.into_values().collect();
        let mut crowd = Crowd { spec, workers, servers, events, tensors: 0, plan_bytes: 0 };
        crowd.plan_bytes = crowd.until_all("the first plan", |_, seen| match seen {
            Seen::Started(bytes) => Some(bytes),
            _ => None,
        })?;
        Ok(crowd)
    }

    /// Bytes of the message with the first plan.
    #[must_use]
    pub fn plan_bytes(&self) -> usize {
        self.plan_bytes
    }

    /// Has every worker declare `count` further tensors, as the ranks of a job do, and waits until
    /// each has all of them; the bytes of the messages about them that a worker gets.
    ///
    /// # Errors
    /// A worker that is lost, or an answer that takes too long.
    pub fn declare(&mut self, count: u32) -> Result<usize, BenchError> {
        let first = self.tensors;
        self.tensors += count;
        for number in first..self.tensors {
            let spec = tensor(number);
            self.workers.iter().for_each(|worker| worker.declare(spec.clone()));
        }
        let mut seen_by = vec![0; self.workers.len()];
        let mut bytes = 0;
        self.until_all("the tensor table", |rank, seen| match seen {
            Seen::Tensors(new, of) => {
                bytes += of;
                seen_by[rank] += new;
                (seen_by[rank] == count).then_some(0)
            }
            _ => None,
        })?;
        Ok(bytes)
    }

    /// Sends heartbeats with fresh numbers for so long, as members of a job do.
    ///
    /// # Errors
    /// A worker that is lost meanwhile.
    pub fn beat(&mut self, seconds: Duration, load: Load) -> Result<(), BenchError> {
        let (end, every) = (Instant::now() + seconds, self.spec.peer_timeout / 4);
        let mut round = 0;
        while Instant::now() < end {
            for worker in &self.workers {
                worker.report(stats(self.tensors, round, load));
            }
            round += 1;
            let pause = Instant::now() + every;
            while let Some(left) = pause.min(end).checked_duration_since(Instant::now()) {
                match self.events.recv_timeout(left) {
                    Ok((rank, Seen::Lost(why))) => return Err(lost(rank, &why)),
                    Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Lets a server die without a word, and waits until every worker has the plan without it.
    /// Each worker answers with its standing in every tensor; with `apart`, no two alike.
    ///
    /// # Errors
    /// No server is left, a worker is lost, or an answer takes too long.
    pub fn change(&mut self, apart: bool) -> Result<Change, BenchError> {
        let Some(victim) = self.servers.pop() else {
            return Err(BenchError::Argument("there is no server that could die".to_owned()));
        };
        let begun = Instant::now();
        drop(victim);
        let (mut suspended, mut suspended_s) = (BTreeSet::new(), 0.0);
        let (workers, tensors) = (std::mem::take(&mut self.workers), self.tensors);
        let resumed =
            self.until_all_of(&workers, "the plan without a server", |rank, seen| match seen {
                Seen::Suspend(epoch) => {
                    workers[rank].progress(epoch, progress(tensors, apart.then_some(rank)));
                    suspended.insert(rank);
                    if suspended.len() == workers.len() {
                        suspended_s = begun.elapsed().as_secs_f64();
                    }
                    None
                }
                Seen::Resume(bytes) => Some(bytes),
                _ => None,
            });
        self.workers = workers;
        let message_bytes = resumed?;
        Ok(Change { seconds: begun.elapsed().as_secs_f64(), suspended_s, message_bytes })
    }

    /// Has all members leave, the workers first.
    pub fn leave(self) {
        for members in [self.workers, self.servers] {
            let next = Mutex::new(members.into_iter());
            thread::scope(|scope| {
                for _ in 0..JOINING {
                    scope.spawn(|| {
                        loop {
                            let member = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                            match member {
                                Some(member) => member.leave(),
                                None => return,
                            }
                        }
                    });
                }
            });
        }
    }

    fn until_all(
        &mut self,
        what: &str,
        each: impl FnMut(usize, Seen) -> Option<usize>,
    ) -> Result<usize, BenchError> {
        let workers = std::mem::take(&mut self.workers);
        let found = self.until_all_of(&workers, what, each);
        self.workers = workers;
        found
    }

    /// Waits until `each` has given something for every worker; the largest of it.
    fn until_all_of(
        &self,
        workers: &[Member],
        what: &str,
        mut each: impl FnMut(usize, Seen) -> Option<usize>,
    ) -> Result<usize, BenchError> {
        let deadline = Instant::now() + self.spec.patience;
        let (mut done, mut largest) = (0, 0);
        while done < workers.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((rank, seen)) = self.events.recv_timeout(left) else {
                let (workers, limit) = (workers.len(), self.spec.patience.as_secs());
                return Err(BenchError::Wrong(format!(
                    "{done} of {workers} workers had {what} within {limit} s"
                )));
            };
            if let Seen::Lost(why) = seen {
                return Err(lost(rank, &why));
            }
            if let Some(found) = each(rank, seen) {
                (done, largest) = (done + 1, largest.max(found));
            }
        }
        Ok(largest)
    }
}

/// Processor seconds in which one worker places a model's tensors: on the lane of every worker and
/// those of every server, each on a machine of its own with an equal link.
///
/// # Errors
/// Numbers of which no plan can be made.
pub fn placement_s(
    (workers, servers, lanes): (u32, u32, u32),
    tensors: &[u64],
) -> Result<f64, BenchError> {
    let machine = |role| Machine { role, bandwidth_gbps: 100.0, servers: 1 };
    let roles = (0..workers).map(|_| PlanRole::Gpu).chain((0..servers).map(|_| PlanRole::Cpu));
    let machines: Vec<Machine> = roles.map(machine).collect();
    let of_each = (0..workers).map(|_| 1).chain((0..servers).map(|_| lanes)).collect();
    let cpu = ThreadCpu::current().and_then(|thread| Ok((thread.seconds()?, thread)));
    let (before, thread) = cpu.map_err(BenchError::io("the processor time of a thread"))?;
    let refused = |error: PlanError| BenchError::Argument(error.to_string());
    let trees = TreePlan::flat(server_weights(&machines).map_err(refused)?);
    let (partition_bytes, dealing) = (largest_partition(1 << 20, 1 << 20), Dealing::Balanced);
    let plan = Plan { epoch: 1, partition_bytes, lanes: of_each, trees, dealing };
    let mut placement = Placement::new(&plan).map_err(refused)?;
    let placed: u64 =
        tensors.iter().flat_map(|bytes| placement.place(*bytes)).map(|place| place.bytes).sum();
    let after = thread.seconds().map_err(BenchError::io("the processor time of a thread"))?;
    let seconds = after - before;
    if placed != tensors.iter().sum::<u64>() {
        return Err(BenchError::Wrong(format!("{placed} bytes were placed")));
    }
    Ok(seconds)
}

/// What is looked at of an event; sizes only where they are `measured`.
fn seen(event: MemberEvent, measured: bool) -> Option<Seen> {
    let bytes = |event: MemberEvent| if measured { message_bytes(event) } else { 0 };
    Some(match event {
        event @ MemberEvent::Started(_) => Seen::Started(bytes(event)),
        MemberEvent::Tensors { first, specs } => {
            let new = specs.len() as u32;
            Seen::Tensors(new, bytes(MemberEvent::Tensors { first, specs }))
        }
        MemberEvent::Suspend { epoch, .. } => Seen::Suspend(epoch),
        event @ MemberEvent::Resume { .. } => Seen::Resume(bytes(event)),
        MemberEvent::Fatal { message, .. } | MemberEvent::CoordinatorLost { message } => {
            Seen::Lost(message)
        }
        MemberEvent::WorkerLost { rank, reason, .. } => {
            Seen::Lost(format!("rank {rank} was lost: {reason}"))
        }
        MemberEvent::TensorError { name, message } => Seen::Lost(format!("'{name}': {message}")),
        _ => return None,
    })
}

fn lost(rank: usize, why: &str) -> BenchError {
    BenchError::Wrong(format!("rank {rank} cannot go on: {why}"))
}

fn refused(spec: &CrowdSpec, number: u32, error: &dyn ToString) -> BenchError {
    let who = match number.checked_sub(spec.servers) {
        Some(rank) => format!("rank {rank} of {}", spec.workers),
        None => format!("server {number} of {}", spec.servers),
    };
    BenchError::Wrong(format!("{who} did not join: {}", error.to_string()))
}

fn worker(spec: &CrowdSpec, token: &Token, rank: u32) -> JoinOptions {
    let world_size = spec.workers;
    let lanes = vec![address(rank, 0).into()];
    JoinOptions {
        coordinator: spec.coordinator.clone(),
        token: token.clone(),
        tls: None,
        job: "scale".to_owned(),
        role: Role::Worker { rank: Rank(rank), world_size, local_rank: 0, local_size: 1 },
        // As long as the name of a real one: an id of the boot and one of the network namespace.
        machine: format!("00000000-0000-4000-8000-{rank:012x}/4026531840"),
        host: format!("worker-{rank:05}"),
        lanes,
        bandwidth: Some(Bandwidth { gbps: 100.0, source: BandwidthSource::Interface }),
        rack: None,
        device_group: None,
        speeds: Speeds::default(),
        expected_servers: spec.servers,
        start_timeout: spec.patience,
        peer_timeout: spec.peer_timeout,
        server_timeout: spec.peer_timeout,
        settings: BTreeMap::from([("partition_bytes".to_owned(), "1048576".to_owned())]),
        memory: ServerMemory::default(),
        stalls: StallLimits::default(),
    }
}

fn server(spec: &CrowdSpec, token: &Token, number: u32) -> JoinOptions {
    let host = spec.workers + number;
    JoinOptions {
        role: Role::Server,
        machine: format!("00000000-0000-4000-8000-{host:012x}/4026531840"),
        host: format!("server-{number:05}"),
        lanes: (0..spec.lanes).map(|lane| address(host, lane).into()).collect(),
        ..worker(spec, token, 0)
    }
}

/// Where a lane would listen: a machine for each member.
fn address(host: u32, lane: u32) -> SocketAddr {
    let [_, b, c, d] = host.to_be_bytes();
    ([10, b, c, d], 40000 + lane as u16).into()
}

fn tensor(number: u32) -> TensorSpec {
    TensorSpec {
        name: format!("module.layers.{}.attention.dense.weight.{number}", number / 8),
        dtype: Dtype::F32,
        shape: vec![1024, 1024],
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

/// A report as a worker of a job with so many tensors makes it.
fn stats(tensors: u32, round: u64, load: Load) -> Stats {
    let counters = (0..COUNTERS).map(|n| (format!("worker_counter_{n}_bytes"), (n * 1000) as f64));
    let op = |number: usize| PendingOp {
        name: tensor(number as u32).name,
        tag: format!("world#{number}|all_reduce float32 [1024, 1024] sum"),
        since_ms: if load == Load::Waiting { WAITED_MS } else { 3 },
        round,
        ..PendingOp::default()
    };
    Stats {
        counters: counters.collect(),
        pending: (0..PENDING.min(tensors as usize)).map(op).collect(),
        begun: vec![if load == Load::Waiting { 1 } else { round + 1 }; tensors as usize],
        ..Stats::default()
    }
}

/// About what a worker says of so many tensors in the middle of a round.
fn progress(tensors: u32, rank: Option<usize>) -> Vec<u8> {
    let standing = |number: u32| {
        // A bit of a hash: whether this rank has begun the round of this tensor.
        let begun = rank.map_or(0, |rank| {
            let of_both = (rank as u64) << 32 | u64::from(number);
            of_both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63
        });
        [0x0a, 4, 0x08, 7, 0x10, begun as u8]
    };
    (0..tensors).flat_map(standing).collect()
}
