//! A simulated cluster: workers with colocated lanes, helper lanes, connections that misbehave.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use sumpter_engine::{
    Client, ClientSettings, ConnId, Event, Lane, LaneLimits, OpId, OwnedMemory, Peer, Place,
    Request, exchange,
};
use sumpter_sum::{Dtype, ReduceOp};
use sumpter_transport::{Side, SimLink, in_process};
use sumpter_wire::{Collective, Epoch, GroupId, JobId, Rank, TensorId, group_id};

use crate::model;

/// What happened in one or many runs.
#[derive(Debug, Default)]
pub struct Report {
    pub operations: u64,
    pub bytes: u64,
    pub cuts: u64,
    pub half_open: u64,
    pub duplicates: u64,
    pub steps: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cuts += other.cuts;
        self.half_open += other.half_open;
        self.duplicates += other.duplicates;
        self.steps += other.steps;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations checked, {} bytes carried in {} steps; faults injected: {} connections \
             cut ({} of them half-open), {} chunks received again",
            self.operations, self.bytes, self.steps, self.cuts, self.half_open, self.duplicates
        )
    }
}

#[derive(Clone, Debug)]
struct Tensor {
    request: Request,
    members: Vec<Rank>,
    elements: usize,
    places: Vec<Place>,
    rounds: u32,
    in_place: bool,
    /// Values that round when they are added, so that the order of addition shows.
    rough: bool,
}

struct Worker {
    client: Client<OwnedMemory>,
    /// Tensors in the order of submission, one entry a round.
    todo: Vec<usize>,
    submitted: Vec<u32>,
    running: HashMap<OpId, (usize, u32)>,
    finished: usize,
    released: usize,
    results: HashMap<(usize, u32), Vec<u8>>,
}

/// A connection between a worker and a lane elsewhere.
struct Wire {
    link: SimLink,
    lane_side: ConnId,
}

pub struct World {
    rng: Rng,
    chunk_bytes: u32,
    deterministic: bool,
    tensors: Vec<Tensor>,
    workers: Vec<Worker>,
    lanes: Vec<Lane>,
    colocated: Vec<ConnId>,
    wires: HashMap<(usize, usize), Option<Wire>>,
    cuts_left: u32,
    now: Duration,
    report: Report,
}

const JOB: JobId = JobId(77);

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let n = rng.usize(1..=4);
        let lanes = n + rng.usize(0..=3);
        let chunk_bytes = 64 * rng.u32(1..=8);
        let deterministic = rng.bool();
        let tensors: Vec<_> =
            (0..rng.usize(1..=6)).map(|t| tensor(&mut rng, t, n, lanes)).collect();
        let workers = (0..n)
            .map(|rank| worker(&mut rng, rank, n, lanes, chunk_bytes, deterministic, &tensors))
            .collect();
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20 };
        let mut world = World {
            cuts_left: if rng.bool() { rng.u32(0..20) } else { 0 },
            rng,
            chunk_bytes,
            deterministic,
            tensors,
            workers,
            lanes: (0..lanes).map(|_| Lane::new(limits)).collect(),
            colocated: Vec::new(),
            wires: HashMap::new(),
            now: Duration::ZERO,
            report: Report::default(),
        };
        for rank in 0..n {
            let peer = world.peer(rank);
            // Mostly as it is in a worker; else the two exchange chunks as frames.
            let (lane, client) = (&mut world.lanes[rank], &mut world.workers[rank].client);
            if world.rng.u32(0..4) > 0 {
                world.colocated.push(lane.open_resident(peer).expect("a fresh lane"));
                client.attached(ConnId(rank));
            } else {
                world.colocated.push(lane.open(peer).expect("a fresh lane").0);
                client.connected(ConnId(rank));
            }
            for lane in (0..lanes).filter(|lane| *lane != rank) {
                world.wires.insert((rank, lane), None);
            }
        }
        world
    }

    fn peer(&self, rank: usize) -> Peer {
        let world_size = self.workers.len() as u32;
        Peer { job: JOB, rank: Rank(rank as u32), world_size, epoch: Epoch(1) }
    }

    pub fn run(mut self) -> Report {
        let mut keys: Vec<_> = self.wires.keys().copied().collect();
        keys.sort_unstable();
        let mut idle = 0;
        while !self.done() {
            self.now += Duration::from_micros(self.rng.u64(1..100));
            self.report.steps += 1;
            let moved = match self.rng.u32(0..100) {
                0..8 => self.submit(),
                8..20 => self.pump(),
                20..22 if !keys.is_empty() => {
                    let key = keys[self.rng.usize(0..keys.len())];
                    self.cut(key)
                }
                _ if !keys.is_empty() => {
                    let key = keys[self.rng.usize(0..keys.len())];
                    self.carry(key)
                }
                _ => self.pump(),
            };
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 100_000, "stuck: {}", self.describe());
        }
        self.check();
        self.report.duplicates +=
            self.lanes.iter().map(|l| l.stats().duplicate_chunks).sum::<u64>();
        self.report
    }

    fn done(&self) -> bool {
        let done = |w: &Worker| w.todo.is_empty() && w.running.is_empty();
        self.workers.iter().all(done)
    }

    fn submit(&mut self) -> bool {
        let rank = self.rng.usize(0..self.workers.len());
        let worker = &mut self.workers[rank];
        let Some(index) = worker.todo.pop() else { return false };
        let tensor = &self.tensors[index];
        let round = worker.submitted[index];
        worker.submitted[index] += 1;
        let request = Request { priority: self.rng.i32(-2..3), ..tensor.request };
        let memory = memory(tensor, round, rank as u32);
        let id = worker.client.submit(request, memory);
        worker.running.insert(id, (index, round));
        self.collect(rank);
        true
    }

    /// Moves bytes between a worker and its colocated lane.
    fn pump(&mut self) -> bool {
        let rank = self.rng.usize(0..self.workers.len());
        let client = &mut self.workers[rank].client;
        let (a, b) = ((client, ConnId(rank)), (&mut self.lanes[rank], self.colocated[rank]));
        let frames = in_process(a, b, self.now, self.rng.usize(1..4096)).expect("no violation");
        let client = (&mut self.workers[rank].client, ConnId(rank));
        let lane = (&mut self.lanes[rank], self.colocated[rank]);
        let chunks = exchange(client, lane, self.rng.usize(1..4096)).expect("no violation");
        self.collect(rank);
        frames + chunks > 0
    }

    /// Makes a connection, or moves a few bytes of one.
    fn carry(&mut self, key: (usize, usize)) -> bool {
        let (rank, lane) = key;
        let peer = self.peer(rank);
        let slot = self.wires.get_mut(&key).expect("a known pair");
        let Some(wire) = slot else {
            let (lane_side, _) = self.lanes[lane].open(peer).expect("a matching peer");
            let link = SimLink::new(self.rng.usize(1..20_000));
            *slot = Some(Wire { link, lane_side });
            self.workers[rank].client.connected(ConnId(lane));
            return true;
        };
        let limit = if self.rng.bool() { self.rng.usize(1..40) } else { self.rng.usize(1..4000) };
        let client = &mut self.workers[rank].client;
        let moved = match self.rng.u32(0..4) {
            0 => wire.link.transmit(Side::A, client, ConnId(lane), limit),
            1 => wire.link.transmit(Side::B, &mut self.lanes[lane], wire.lane_side, limit),
            2 => wire
                .link
                .deliver(Side::B, &mut self.lanes[lane], wire.lane_side, limit, self.now)
                .expect("the lane understands the client"),
            _ => wire
                .link
                .deliver(Side::A, client, ConnId(lane), limit, self.now)
                .expect("the client understands the lane"),
        };
        self.report.bytes += moved as u64;
        self.collect(rank);
        moved > 0
    }

    /// Breaks a connection; sometimes the lane does not notice until the worker is back.
    fn cut(&mut self, key: (usize, usize)) -> bool {
        if self.cuts_left == 0 {
            return false;
        }
        let Some(wire) = self.wires.get_mut(&key).and_then(Option::take) else { return false };
        self.cuts_left -= 1;
        self.report.cuts += 1;
        self.workers[key.0].client.disconnected(ConnId(key.1));
        if self.rng.bool() {
            self.lanes[key.1].close(wire.lane_side);
        } else {
            self.report.half_open += 1;
        }
        self.collect(key.0);
        true
    }

    fn collect(&mut self, rank: usize) {
        let worker = &mut self.workers[rank];
        while let Some(event) = worker.client.next_event() {
            match event {
                Event::Finished(id, outcome) => {
                    assert_eq!(outcome, Ok(()), "{:?}", worker.running[&id]);
                    worker.finished += 1;
                }
                Event::Released(id, memory) => {
                    let key = worker.running.remove(&id).expect("a running operation");
                    worker.results.insert(key, memory.bytes);
                    worker.released += 1;
                }
            }
        }
    }

    fn check(&mut self) {
        for (index, tensor) in self.tensors.iter().enumerate() {
            for round in 0..tensor.rounds {
                let mut expected = expected(tensor, round);
                let receives =
                    |r: &&Rank| tensor.request.collective.receives(**r, tensor.request.root);
                let first = tensor.members.iter().find(receives);
                if let (true, false, Some(rank)) = (tensor.rough, self.deterministic, first) {
                    // Any order of addition will do, but it must be the same order for all.
                    let got = &self.workers[rank.0 as usize].results[&(index, round)];
                    expected = model::close_enough(got, &expected);
                }
                for rank in tensor.members.iter().filter(receives) {
                    let got = &self.workers[rank.0 as usize].results[&(index, round)];
                    assert_eq!(*got, expected, "rank {rank}, round {round} of {tensor:?}");
                }
                self.report.operations += tensor.members.len() as u64;
            }
        }
    }

    fn describe(&self) -> String {
        let mut text = format!("chunk {} det {}\n", self.chunk_bytes, self.deterministic);
        for (rank, worker) in self.workers.iter().enumerate() {
            let running: Vec<_> = worker.running.values().collect();
            text += &format!("rank {rank}: todo {:?}, running {running:?}\n", worker.todo);
        }
        text
    }
}

fn tensor(rng: &mut Rng, index: usize, n: usize, lanes: usize) -> Tensor {
    let dtype = Dtype::ALL[rng.usize(0..Dtype::ALL.len())];
    let op = ReduceOp::ALL[rng.usize(0..ReduceOp::ALL.len())];
    let all = [Collective::AllReduce, Collective::Broadcast, Collective::Reduce];
    let collective = if rng.bool() { all[0] } else { all[rng.usize(0..3)] };
    let mut members: Vec<Rank> = (0..n as u32).map(Rank).collect();
    if rng.u32(0..4) == 0 {
        members.retain(|_| rng.bool());
        if members.is_empty() {
            members.push(Rank(rng.u32(0..n as u32)));
        }
    }
    let elements = if rng.bool() { rng.usize(1..20) } else { rng.usize(1..1500) };
    let partition_bytes = 512 * rng.usize(1..8);
    let bytes = elements * dtype.size();
    let places = (0..bytes)
        .step_by(partition_bytes)
        .map(|offset| Place {
            lane: ConnId(rng.usize(0..lanes)),
            offset,
            bytes: partition_bytes.min(bytes - offset),
        })
        .collect();
    let halves = op == ReduceOp::Sum && members.len() == 2 && collective == Collective::AllReduce;
    let divisor = (halves && dtype.is_float() && rng.bool()).then_some(2);
    let root = members[rng.usize(0..members.len())];
    let everyone = members.len() == n;
    let group = if everyone { GroupId(0) } else { group_id(&members) };
    let tensor = TensorId(index as u32);
    let request = Request { tensor, collective, dtype, op, root, group, divisor, priority: 0 };
    let rough = dtype == Dtype::F32 && op == ReduceOp::Sum && divisor.is_none() && rng.bool();
    let (rounds, in_place) = (rng.u32(1..5), rng.bool());
    Tensor { request, members, elements, places, rounds, in_place, rough }
}

fn worker(
    rng: &mut Rng,
    rank: usize,
    n: usize,
    lanes: usize,
    chunk_bytes: u32,
    deterministic: bool,
    tensors: &[Tensor],
) -> Worker {
    let settings = ClientSettings {
        rank: Rank(rank as u32),
        world_size: n as u32,
        epoch: Epoch(1),
        chunk_bytes,
        credit_bytes: rng.usize(1..100_000),
        deterministic,
    };
    let mut client = Client::new(settings, lanes);
    let mut todo = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        client.register(tensor.request.tensor, tensor.places.clone());
        assert_eq!(client.define_group(&tensor.members), tensor.request.group);
        if tensor.members.contains(&Rank(rank as u32)) {
            todo.extend(std::iter::repeat_n(index, tensor.rounds as usize));
        }
    }
    rng.shuffle(&mut todo);
    Worker {
        client,
        todo,
        submitted: vec![0; tensors.len()],
        running: HashMap::new(),
        finished: 0,
        released: 0,
        results: HashMap::new(),
    }
}

fn memory(tensor: &Tensor, round: u32, rank: u32) -> OwnedMemory {
    let Request { tensor: TensorId(id), op, dtype, .. } = tensor.request;
    let value = |i| match (model::contribution(op, id, round, rank, i), tensor.rough) {
        (value, false) => value as f64,
        (value, true) => f64::from(model::roughen(value, i)),
    };
    let bytes = model::encode(dtype, (0..tensor.elements).map(value));
    match tensor.in_place {
        true => OwnedMemory { separate: None, bytes },
        false => OwnedMemory { bytes: vec![0xaa; bytes.len()], separate: Some(bytes) },
    }
}

fn expected(tensor: &Tensor, round: u32) -> Vec<u8> {
    let Request { tensor: TensorId(id), op, dtype, collective, root, divisor, .. } = tensor.request;
    let contributors: Vec<_> =
        tensor.members.iter().filter(|r| collective.contributes(**r, root)).collect();
    if tensor.rough {
        let sum = |element| {
            let values = contributors.iter().map(|rank| {
                model::roughen(model::contribution(op, id, round, rank.0, element), element)
            });
            f64::from(values.reduce(|a, b| a + b).expect("a contributor"))
        };
        return model::encode(dtype, (0..tensor.elements).map(sum));
    }
    let value = |element| {
        let values = contributors.iter().map(|rank| {
            model::as_stored(dtype, model::contribution(op, id, round, rank.0, element))
        });
        model::reduce(op, values) as f64 / f64::from(divisor.unwrap_or(1))
    };
    model::encode(dtype, (0..tensor.elements).map(value))
}
