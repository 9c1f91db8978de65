//! A simulated cluster: workers with colocated lanes, helper lanes, connections that misbehave.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use sumpter_engine::{
    Client, ClientSettings, ConnId, Event, Held, Hub, Lane, LaneLimits, OpId, OwnedMemory, Peer,
    Request, exchange,
};
use sumpter_transport::{Side, SimLink, in_process};
use sumpter_wire::{Epoch, JobId, Rank};

use crate::model;
use crate::tensor::{Machines, Tensor, group};

/// What happened in one or many runs.
#[derive(Debug, Default)]
pub struct Report {
    pub operations: u64,
    pub bytes: u64,
    pub cuts: u64,
    pub half_open: u64,
    pub duplicates: u64,
    /// Chunks that were passed on for a machine.
    pub subtotals: u64,
    pub steps: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cuts += other.cuts;
        self.half_open += other.half_open;
        self.duplicates += other.duplicates;
        self.subtotals += other.subtotals;
        self.steps += other.steps;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations checked, {} bytes carried in {} steps, {} subtotals passed on; faults \
             injected: {} connections cut ({} of them half-open), {} chunks received again",
            self.operations,
            self.bytes,
            self.steps,
            self.subtotals,
            self.cuts,
            self.half_open,
            self.duplicates
        )
    }
}

struct Worker {
    client: Client<Held<OwnedMemory>>,
    /// Passes on what the lane beside the client sums for their machine.
    hub: Hub,
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
    machines: Machines,
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
        let n = rng.usize(1..=6);
        let lanes = n + rng.usize(0..=3);
        let chunk_bytes = 64 * rng.u32(1..=8);
        let deterministic = rng.bool();
        let machines = Machines::new(&mut rng, n);
        let tensors: Vec<_> = (0..rng.usize(1..=6))
            .map(|t| Tensor::new(&mut rng, t, (n, lanes), &machines))
            .collect();
        let settings = |rng: &mut Rng, rank: usize| ClientSettings {
            rank: Rank(rank as u32),
            world_size: n as u32,
            epoch: Epoch(1),
            chunk_bytes,
            credit_bytes: rng.usize(1..100_000),
            deterministic,
        };
        let workers = (0..n)
            .map(|rank| {
                let settings = settings(&mut rng, rank);
                worker(&mut rng, settings, lanes, &tensors, &machines)
            })
            .collect();
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: true };
        let mut world = World {
            cuts_left: if rng.bool() { rng.u32(0..20) } else { 0 },
            rng,
            chunk_bytes,
            deterministic,
            machines,
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
        let tier = tensor.tier(self.machines.of(Rank(rank as u32)));
        let request = Request { tier, priority: self.rng.i32(-2..3), ..tensor.request };
        let memory = tensor.memory(round, rank as u32);
        let id = worker.client.submit(request, Held::Tensor(memory));
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
        let Worker { client, hub, .. } = &mut self.workers[rank];
        let passed = self.rng.bool() && hub.pass_on(client, &mut self.lanes[rank]);
        self.collect(rank);
        frames + chunks > 0 || passed
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
            self.report.subtotals += u64::from(matches!(event, Event::Arrived { .. }));
            let heard = worker.hub.hear(event, &mut worker.client, &mut self.lanes[rank]);
            let Some(event) = heard.expect("no violation") else { continue };
            match event {
                Event::Arrived { .. } => panic!("no worker streams"),
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
                let mut expected = tensor.expected(round, &self.machines);
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

fn worker(
    rng: &mut Rng,
    settings: ClientSettings,
    lanes: usize,
    tensors: &[Tensor],
    machines: &Machines,
) -> Worker {
    let (rank, n) = (settings.rank, settings.world_size as usize);
    let machine = machines.of(rank);
    let mut client = Client::new(settings, lanes);
    let mut hub = Hub::new(JOB, settings.chunk_bytes);
    let mut todo = Vec::new();
    client.define_group(machine);
    for (index, tensor) in tensors.iter().enumerate() {
        let id = tensor.request.tensor;
        assert_eq!(client.define_group(&tensor.members), group(&tensor.members, n));
        for part in tensor.parts.iter().filter(|part| !part.hubs.is_empty()) {
            client.define_group(&part.hubs);
        }
        client.register(id, tensor.tier(machine), tensor.places(n, machine));
        let passed_on = tensor.passed_on(rank, n, machine);
        if !passed_on.is_empty() {
            hub.register(&mut client, id, passed_on);
        }
        if tensor.members.contains(&rank) {
            todo.extend(std::iter::repeat_n(index, tensor.rounds as usize));
        }
    }
    rng.shuffle(&mut todo);
    Worker {
        client,
        hub,
        todo,
        submitted: vec![0; tensors.len()],
        running: HashMap::new(),
        finished: 0,
        released: 0,
        results: HashMap::new(),
    }
}
