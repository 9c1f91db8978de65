//! One server under the load of workers that compute nothing (PHub's ZeroCompute test), beside
//! the same event loop without summation, plain TCP, and plain TCP with the same additions.
//!
//! All variants have the same threads, connections and tensors and take turns round by round, so
//! that what the machine does meanwhile hits all of them. Every round's results are checked,
//! outside the time that is measured.

mod bare;
mod memory;
mod raw;
mod relay;
mod staging;
mod updates;
mod worker;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use sumpter_endpoint::{ConnId, Endpoint, LinkError};
use sumpter_engine::{Lane, LaneLimits, Peer, Place};
use sumpter_plan::{Dealing, Placement, Plan, TreePlan, even_partition, largest_partition};
use sumpter_types::{Epoch, GroupId, JobId, Rank, Rule};

use self::bare::BareServer;
use self::relay::Relay;
use self::worker::{Order, Worker};
use crate::cpu::{ThreadCpu, total_s};
use crate::driver::{Calls, Counters, Driver, loopback_pairs};
use crate::error::BenchError;

pub(crate) use self::memory::Pages;
pub(crate) use self::raw::{Piece, RawClient, RawServer};

const EPOCH: Epoch = Epoch(1);
const JOB: JobId = JobId(1);

/// Threads, connections and buffers beyond this say nothing more about one machine.
const MOST_WORKERS: usize = 64;
const MOST_LANES: usize = 64;

/// What the server does with contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Sums them: the real lane.
    Sum,
    /// Sums them in the order of ranks: the real lane, with deterministic partitions.
    Ordered,
    /// The same frames without summation.
    Relay,
    /// The same bytes without frames.
    Raw,
    /// The same bytes without frames, and the same additions.
    Bare,
    /// Updates variables with the sums, by a rule: the real lane.
    Update(Rule),
}

impl Variant {
    /// Every variant without a rule.
    pub const PLAIN: [Variant; 5] =
        [Variant::Sum, Variant::Ordered, Variant::Relay, Variant::Raw, Variant::Bare];
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// Workers, each with a thread of its own.
    pub workers: usize,
    /// Lanes of the server, each with a thread of its own.
    pub lanes: usize,
    /// Sizes of the tensors, multiples of four: they hold `f32`.
    pub tensors: Vec<usize>,
    /// The largest partition.
    pub partition_bytes: usize,
    /// The unit of streaming.
    pub chunk_bytes: usize,
    /// Bytes a worker may have in flight.
    pub credit_bytes: usize,
    /// Rounds to measure of each variant, after one to warm up.
    pub rounds: usize,
    /// Update rules to measure as well, each once.
    pub rules: Vec<Rule>,
}

/// One round of one variant.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What the server did.
    pub variant: Variant,
    /// From the first worker's start to the last one's end.
    pub seconds: f64,
    /// Processor time of the server's threads.
    pub server_cpu_s: f64,
    /// Processor time of the workers' threads.
    pub worker_cpu_s: f64,
    /// System calls of the server's threads.
    pub server_calls: Calls,
    /// System calls of the workers' threads.
    pub worker_calls: Calls,
}

impl ServerSpec {
    /// What is measured, in the order of turns.
    #[must_use]
    pub fn variants(&self) -> Vec<Variant> {
        let rules = self.rules.iter().map(|rule| Variant::Update(*rule));
        Variant::PLAIN.into_iter().chain(rules).collect()
    }

    fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Argument(text));
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            return wrong(format!("workers: {} is not from 1 to {MOST_WORKERS}", self.workers));
        }
        if !(1..=MOST_LANES).contains(&self.lanes) {
            return wrong(format!("lanes: {} is not from 1 to {MOST_LANES}", self.lanes));
        }
        if self.rounds == 0 {
            return wrong("rounds: 0 rounds measure nothing".to_owned());
        }
        if let Some(odd) = self.tensors.iter().find(|b| **b == 0 || !b.is_multiple_of(4)) {
            return wrong(format!("a tensor of {odd} bytes is no whole number of float32"));
        }
        if self.tensors.is_empty() || !(64..=64 << 20).contains(&self.chunk_bytes) {
            let chunk = self.chunk_bytes;
            return wrong(format!("no tensors, or chunks of {chunk} bytes, not 64B to 64MiB"));
        }
        Ok(())
    }

    /// Where every partition of every tensor is summed, lane by connection.
    fn places(&self) -> Result<Vec<Vec<Place>>, BenchError> {
        let (lanes, trees) = (vec![self.lanes as u32], TreePlan::flat(vec![1.0]));
        let (partition, credit) = (self.partition_bytes as u64, self.credit_bytes as u64);
        let (partition_bytes, dealing) = (largest_partition(partition, credit), Dealing::default());
        let plan = Plan { epoch: 1, partition_bytes, lanes, trees, dealing };
        let placement = Placement::new(&plan);
        // As workers place tensors over loopback, whose speed is not known.
        let placement = placement.map(|p| p.cut_to(even_partition(partition_bytes, None)));
        let mut placement = placement.map_err(|e| BenchError::Argument(e.to_string()))?;
        let place = |(number, p): (u32, sumpter_plan::PartitionPlace)| {
            let stretch = (p.offset as usize, p.bytes as usize);
            Place::new(ConnId(p.lane), number, stretch, GroupId(0), 1)
        };
        let tensor = |bytes: &usize| (0..).zip(placement.place(*bytes as u64)).map(place);
        Ok(self.tensors.iter().map(tensor).map(Iterator::collect).collect())
    }
}

/// Measures every variant `rounds` times; `progress` is called before each round and stops the
/// benchmark by returning true.
///
/// # Errors
/// [`BenchError`]; a wrong sum in any round is one.
pub fn server(
    spec: &ServerSpec,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<Sample>, BenchError> {
    spec.check()?;
    let places = spec.places()?;
    thread::scope(|scope| {
        let mut bench = Bench::start(scope, spec, &places)?;
        let mut samples = Vec::new();
        let count = bench.variants.len();
        for round in 0..=spec.rounds {
            for turn in 0..count {
                if progress() {
                    return Err(BenchError::Interrupted);
                }
                // The system that goes first in one round goes last in another.
                let sample = bench.round((turn + round) % count)?;
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        Ok(samples)
    })
}

/// The running threads. Dropping it ends them: workers that get no more orders close their
/// connections, and a lane ends with its first connection that closes.
struct Bench {
    variants: Vec<Variant>,
    orders: Vec<Sender<Order>>,
    answers: Vec<Receiver<Result<(), BenchError>>>,
    workers: Vec<ThreadCpu>,
    lanes: Vec<Vec<ThreadCpu>>,
    worker_counters: Vec<Arc<Counters>>,
    lane_counters: Vec<Arc<Counters>>,
}

impl Bench {
    fn start<'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        spec: &'scope ServerSpec,
        places: &'scope [Vec<Place>],
    ) -> Result<Bench, BenchError> {
        let variants = spec.variants();
        let counters = || variants.iter().map(|_| Arc::<Counters>::default()).collect();
        let mut bench = Bench {
            variants: spec.variants(),
            orders: Vec::new(),
            answers: Vec::new(),
            workers: Vec::new(),
            lanes: Vec::new(),
            worker_counters: counters(),
            lane_counters: counters(),
        };
        let mut theirs: Vec<Vec<Vec<TcpStream>>> = (0..spec.workers).map(|_| Vec::new()).collect();
        for (index, variant) in variants.into_iter().enumerate() {
            let mut cpus = Vec::new();
            theirs.iter_mut().for_each(|streams| streams.push(Vec::new()));
            for lane in 0..spec.lanes {
                let pairs = loopback_pairs(spec.workers);
                let mut ours = Vec::new();
                for (pair, streams) in
                    pairs.map_err(BenchError::io("connecting"))?.into_iter().zip(&mut theirs)
                {
                    ours.push(pair.0);
                    streams[index].push(pair.1);
                }
                let counters = bench.lane_counters[index].clone();
                let endpoint = endpoint(variant, spec, lane_bytes(places, lane))?;
                let driver = Driver::new(ours, counters);
                let driver = driver.map_err(BenchError::io("making an event loop"))?;
                let (tell, told) = channel();
                scope.spawn(move || serve(endpoint, driver, &tell));
                cpus.push(introduced(&told)?);
            }
            bench.lanes.push(cpus);
        }
        for (rank, streams) in theirs.into_iter().enumerate() {
            bench.hire(scope, spec, places, Rank(rank as u32), streams)?;
        }
        Ok(bench)
    }

    fn hire<'scope>(
        &mut self,
        scope: &'scope thread::Scope<'scope, '_>,
        spec: &'scope ServerSpec,
        places: &'scope [Vec<Place>],
        rank: Rank,
        streams: Vec<Vec<TcpStream>>,
    ) -> Result<(), BenchError> {
        let drivers: Result<Vec<_>, _> = streams
            .into_iter()
            .zip(&self.worker_counters)
            .map(|(streams, counters)| Driver::new(streams, counters.clone()))
            .collect();
        let drivers = drivers.map_err(BenchError::io("making an event loop"))?;
        let ((order, orders), (answer, answers)) = (channel(), channel());
        let (tell, told) = channel();
        scope.spawn(move || {
            let _ = tell.send(ThreadCpu::current());
            let mut worker = Worker::new(spec, places, rank, drivers);
            for order in orders {
                if answer.send(worker.obey(order)).is_err() {
                    return;
                }
            }
        });
        self.workers.push(introduced(&told)?);
        self.orders.push(order);
        self.answers.push(answers);
        Ok(())
    }

    /// One round of a variant, by its index.
    fn round(&mut self, variant: usize) -> Result<Sample, BenchError> {
        let before = self.sample(variant, 0.0)?;
        let started = Instant::now();
        self.command(Order::Round(variant))?;
        let after = self.sample(variant, started.elapsed().as_secs_f64())?;
        self.command(Order::Check(variant))?;
        Ok(Sample {
            server_cpu_s: after.server_cpu_s - before.server_cpu_s,
            worker_cpu_s: after.worker_cpu_s - before.worker_cpu_s,
            server_calls: after.server_calls - before.server_calls,
            worker_calls: after.worker_calls - before.worker_calls,
            ..after
        })
    }

    /// All that was counted so far; the threads sleep meanwhile.
    fn sample(&self, variant: usize, seconds: f64) -> Result<Sample, BenchError> {
        let failed = BenchError::io("reading the processor time of threads");
        Ok(Sample {
            variant: self.variants[variant],
            seconds,
            server_cpu_s: total_s(&self.lanes[variant]).map_err(&failed)?,
            worker_cpu_s: total_s(&self.workers).map_err(&failed)?,
            server_calls: self.lane_counters[variant].calls(),
            worker_calls: self.worker_counters[variant].calls(),
        })
    }

    fn command(&self, order: Order) -> Result<(), BenchError> {
        let died = || BenchError::Wrong("a worker's thread died".to_owned());
        for worker in &self.orders {
            worker.send(order).map_err(|_| died())?;
        }
        let answers: Vec<_> = self.answers.iter().map(Receiver::recv).collect();
        answers.into_iter().try_for_each(|answer| answer.map_err(|_| died())?)
    }
}

fn introduced(told: &Receiver<std::io::Result<ThreadCpu>>) -> Result<ThreadCpu, BenchError> {
    let died = |_| BenchError::Wrong("a thread died at its start".to_owned());
    told.recv().map_err(died)?.map_err(BenchError::io("finding a thread's processor time"))
}

/// What each worker contributes to one lane in a round.
fn lane_bytes(places: &[Vec<Place>], lane: usize) -> usize {
    places.iter().flatten().filter(|place| place.lane.0 == lane).map(|place| place.bytes).sum()
}

/// A lane of the variant, to which each worker contributes `bytes` in a round.
fn endpoint(
    variant: Variant,
    spec: &ServerSpec,
    bytes: usize,
) -> Result<Box<dyn Endpoint + Send>, BenchError> {
    match variant {
        Variant::Relay => Ok(Box::new(Relay::new(spec.workers, spec.chunk_bytes))),
        Variant::Raw => Ok(Box::new(RawServer::new(spec.workers, spec.chunk_bytes))),
        Variant::Bare => Ok(Box::new(BareServer::new(spec.workers, bytes, spec.chunk_bytes))),
        Variant::Sum | Variant::Ordered | Variant::Update(_) => {
            let chunk = spec.chunk_bytes as u32;
            let limits =
                LaneLimits { max_job_bytes: u64::MAX / 2, max_chunk_bytes: chunk, hub: false };
            let mut lane = Lane::new(limits);
            for rank in 0..spec.workers {
                let world_size = spec.workers as u32;
                let peer = Peer {
                    job: JOB,
                    rank: Rank(rank as u32),
                    world_size,
                    epoch: EPOCH,
                    keeps: false,
                    checksum: false,
                };
                let opened = lane.open(peer).map_err(BenchError::Wrong)?;
                // The driver counts connections as the lane does.
                assert_eq!(opened, (ConnId(rank), None));
            }
            Ok(Box::new(lane))
        }
    }
}

/// A lane's thread, until a worker hangs up: at the end, or because something failed; then those
/// who still wait must learn of it.
fn serve(
    mut endpoint: Box<dyn Endpoint + Send>,
    mut driver: Driver,
    tell: &Sender<std::io::Result<ThreadCpu>>,
) {
    let _ = tell.send(ThreadCpu::current());
    loop {
        match driver.turn(&mut *endpoint) {
            Ok(()) => {}
            Err(LinkError::Closed) => return,
            Err(error) => {
                // Workers see their connections close; the reason is only known here.
                eprintln!("a lane of the benchmark failed: {error}");
                return;
            }
        }
    }
}
