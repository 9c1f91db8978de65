//! A job on the simulated network: workers with colocated lanes, servers with one lane each. Where
//! racks pass aggregates on, workers are their hubs.

use std::collections::HashMap;
use std::time::Duration;

use sumpter_endpoint::{ConnId, Endpoint, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Event, Hub, Lane, LaneLimits, Layout, OpId, OpMemory, Peer, Place,
    Recovery, Request, Supply, VariablePlace, exchange,
};
use sumpter_plan::{
    Cluster, Dealing, PartitionPlace, Placement, Plan, ReductionTree, Topology, TreePlan,
    largest_partition, predict, server_weights,
};
use sumpter_sum::AlignedBuf;
use sumpter_transport::in_process;
use sumpter_types::{
    Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, Round, Rule, Staleness, TensorId,
    Update,
};
use sumpter_wire::Tier;

use crate::net::{Model, Net, Next, Racks, Way};
use crate::route::{Route, Trees};

pub struct Setup {
    pub workers: usize,
    /// Bytes a second of each machine's link, those with workers first.
    pub rates: Vec<f64>,
    pub racks: Racks,
    /// The reduction trees, of one shape, over machines; without, flat ones.
    pub trees: Option<TreePlan>,
    pub tensors: Vec<usize>,
    pub partition_bytes: u64,
    pub chunk_bytes: u32,
    pub credit_bytes: usize,
    pub model: Model,
    /// Whether the tensors are variables, which the sums update on the lanes.
    pub updates: bool,
}

pub struct Outcome {
    pub seconds: f64,
    /// What the links of machines allow at best, whatever trunks carry.
    pub optimum: f64,
    /// Share of the time in which each direction of each link was idle.
    pub idle: Vec<f64>,
    /// Bytes that all directions of all machines' links have carried.
    pub carried: u64,
    /// Bytes that each direction of each trunk has carried: out of the rack, then into it.
    pub crossed: Vec<u64>,
}

impl Outcome {
    pub fn fraction(&self) -> f64 {
        self.optimum / self.seconds
    }
}

#[derive(Clone, Copy)]
enum End {
    Client { rank: usize, lane: usize },
    Lane { lane: usize, conn: ConnId },
}

pub struct Job {
    pub net: Net,
    clients: Vec<Client<OpMemory<OwnedMemory>>>,
    /// Pass on what the lane beside each client sums for its rack.
    hubs: Vec<Hub>,
    recoveries: Vec<Recovery>,
    lanes: Vec<Lane>,
    colocated: Vec<ConnId>,
    /// Sender and receiver of each pipe.
    ends: Vec<(End, End)>,
    to_lane: Vec<Vec<Option<usize>>>,
    to_worker: Vec<Vec<Option<usize>>>,
    finished: usize,
    /// Operations that have finished since the last call, with their ranks.
    pub done: Vec<(usize, OpId)>,
    updates: bool,
    /// In which tier each worker takes part with its tensors.
    tiers: Vec<Tier>,
    /// The rounds of what is under way.
    rounds: HashMap<(usize, OpId), Round>,
}

const JOB: JobId = JobId(1);

/// What each round subtracts from a variable for each contribution: every value is exact.
const STEP: f64 = 1.0 / 1024.0;

/// A variable of no more bytes for each worker is mirrored by one of them, as in a real job.
const SMALL_BYTES: usize = 64 << 10;

pub fn run(setup: &Setup) -> Outcome {
    let n = setup.workers;
    let mut job = Job::new(setup);
    let (begun, before, behind) = (job.net.now, job.net.carried(), job.net.crossed());
    for rank in 0..n {
        for (index, bytes) in setup.tensors.iter().enumerate() {
            job.submit(rank, index, *bytes, 0);
        }
        job.settle(rank);
    }
    while job.finished < n * setup.tensors.len() {
        job.step();
    }
    let seconds = job.net.now - begun;
    let since = |after: Vec<u64>, before: Vec<u64>| -> Vec<u64> {
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    };
    let carried = since(job.net.carried(), before);
    let crossed = since(job.net.crossed(), behind);
    let idle = |(i, bytes): (usize, &u64)| 1.0 - *bytes as f64 / (setup.rates[i / 2] * seconds);
    let idle = carried.iter().enumerate().map(idle).collect();
    Outcome { seconds, optimum: optimum(setup), idle, carried: carried.iter().sum(), crossed }
}

/// The seconds that all tensors take at best.
pub fn optimum(setup: &Setup) -> f64 {
    let total = setup.tensors.iter().sum::<usize>() as u64;
    predict(&cluster(setup), total).expect("a sound cluster").time_s
}

fn machines(setup: &Setup) -> Vec<sumpter_plan::Machine> {
    use sumpter_plan::{Machine, Role};
    let role = |i: usize| if i < setup.workers { Role::Gpu } else { Role::Cpu };
    let machine = |(i, rate): (usize, &f64)| Machine {
        role: role(i),
        bandwidth_gbps: rate * 8e-9,
        servers: 1,
    };
    setup.rates.iter().enumerate().map(machine).collect()
}

fn cluster(setup: &Setup) -> Cluster {
    Cluster::new(machines(setup)).expect("a sound cluster")
}

/// The machines with their racks and trunks.
pub fn topology(setup: &Setup) -> Topology {
    let trunks = setup.racks.trunks.iter().map(|rate| rate * 8e-9).collect();
    Topology::new(cluster(setup), setup.racks.of.clone(), trunks, None).expect("sound racks")
}

fn plan(setup: &Setup) -> Plan {
    let weights = server_weights(&machines(setup)).expect("sound machines");
    let (lanes, dealing) = (vec![1; weights.len()], Dealing::Balanced);
    let trees = setup.trees.clone().unwrap_or_else(|| TreePlan::flat(weights));
    let partition_bytes = largest_partition(setup.partition_bytes, setup.credit_bytes as u64);
    Plan { epoch: 1, partition_bytes, lanes, trees, dealing }
}

impl Job {
    pub fn new(setup: &Setup) -> Job {
        let (n, machines) = (setup.workers, setup.rates.len());
        let settings = |rank: usize| ClientSettings {
            rank: Rank(rank as u32),
            world_size: n as u32,
            epoch: Epoch(1),
            chunk_bytes: setup.chunk_bytes,
            credit_bytes: setup.credit_bytes,
            deterministic: false,
            checksum: false,
        };
        let limits = LaneLimits { max_job_bytes: 1 << 36, max_chunk_bytes: 1 << 24, hub: true };
        let mut job = Job {
            net: Net::new(setup.model, &setup.rates, &setup.racks),
            clients: (0..n).map(|rank| Client::new(settings(rank), machines)).collect(),
            hubs: (0..n).map(|_| Hub::new(JOB, setup.chunk_bytes)).collect(),
            recoveries: (0..n).map(|_| Recovery::default()).collect(),
            lanes: (0..machines).map(|_| Lane::new(limits)).collect(),
            colocated: Vec::new(),
            ends: Vec::new(),
            to_lane: vec![vec![None; machines]; n],
            to_worker: vec![Vec::new(); machines],
            finished: 0,
            done: Vec::new(),
            updates: setup.updates,
            tiers: vec![Tier::Root; n],
            rounds: HashMap::new(),
        };
        for rank in 0..n {
            let peer = Peer {
                job: JOB,
                rank: Rank(rank as u32),
                world_size: n as u32,
                epoch: Epoch(1),
                keeps: false,
                checksum: false,
            };
            for lane in 0..machines {
                if lane == rank {
                    let own = job.lanes[lane].open_resident(peer).expect("a fresh lane");
                    job.colocated.push(own);
                    job.clients[rank].attached(ConnId(lane));
                } else {
                    job.connect(rank, lane, peer);
                }
            }
        }
        let mut placement = Placement::new(&plan(setup)).expect("a sound plan");
        for (index, bytes) in setup.tensors.iter().enumerate() {
            let places = placement.place(*bytes as u64);
            match &setup.trees {
                None => job.register(index, *bytes, &places),
                Some(plan) => {
                    let trees = Trees { plan, workers: n };
                    job.route(index, trees, (&places, placement.trees()));
                }
            }
        }
        if setup.updates {
            job.fill(setup.tensors.len());
        }
        job
    }

    /// Gives the lanes the values of all variables, and waits until they have them.
    fn fill(&mut self, tensors: usize) {
        for rank in 0..self.clients.len() {
            let id = Rank(rank as u32);
            for index in 0..tensors {
                let request = self.request(rank, index, 0);
                self.recoveries[rank].fill(&mut self.clients[rank], id, &request, 1);
            }
            self.settle(rank);
        }
        let lacks = |job: &Job| {
            let filled = |recovery: &Recovery| {
                (0..tensors as u32).all(|index| recovery.is_filled(TensorId(index)))
            };
            !job.recoveries.iter().all(filled)
        };
        while lacks(self) {
            self.step();
        }
    }

    /// Makes known to all clients where a tensor is summed, and to each what it mirrors of it.
    fn register(&mut self, index: usize, bytes: usize, places: &[PartitionPlace]) {
        let (n, id) = (self.clients.len(), TensorId(index as u32));
        // One after the other an equal share of a large one; a partition is not cut here.
        let share = |start: usize| if bytes <= SMALL_BYTES * n { index } else { start * n / bytes };
        let place = |(number, place): (usize, &PartitionPlace)| {
            let stretch = (place.offset as usize, place.bytes as usize);
            let variable = self.updates.then(|| VariablePlace {
                mirrors: [Some(Rank((share(stretch.0) % n) as u32)), None],
                home: number as u32,
                offset: 0,
                staleness: Staleness::SYNCHRONOUS,
                lacks: false,
            });
            let lane = ConnId(place.server);
            Place { variable, ..Place::new(lane, number as u32, stretch, GroupId(0), 1) }
        };
        let places: Vec<Place> = places.iter().enumerate().map(place).collect();
        for (rank, client) in self.clients.iter_mut().enumerate() {
            client.register(id, Tier::Root, places.clone());
            let own = |variable: VariablePlace| variable.is_mirror(Rank(rank as u32));
            for place in places.iter().filter(|place| place.variable.is_some_and(own)) {
                let value = vec![AlignedBuf::new(place.bytes)];
                let elements = place.offset / 4..(place.offset + place.bytes) / 4;
                let first = elements.start;
                client.mirror_from(id, (elements, first), Dtype::F32, value);
            }
        }
    }

    /// The same of a tensor with reduction trees, and what each client passes on of it.
    fn route(
        &mut self,
        index: usize,
        trees: Trees<'_>,
        partitions: (&[PartitionPlace], &[ReductionTree]),
    ) {
        assert!(!self.updates, "the hubs of a variable would be its mirrors");
        let id = TensorId(index as u32);
        for (rank, (client, hub)) in self.clients.iter_mut().zip(&mut self.hubs).enumerate() {
            let define = |ranks: &[Rank]| client.define_group(ranks);
            let Route { tier, places, passed_on } =
                trees.route(Rank(rank as u32), partitions, define);
            self.tiers[rank] = tier;
            client.register(id, tier, places);
            if let Some((tiers, places)) = passed_on {
                hub.register(client, id, tiers, Layout::new(places), Round(0));
            }
        }
    }

    /// One round of a tensor.
    fn request(&self, rank: usize, index: usize, priority: i32) -> Request {
        let sgd = Update::new(Rule::Sgd { momentum: false, nesterov: false });
        let all_reduce = Collective::AllReduce;
        Request {
            tensor: TensorId(index as u32),
            tier: self.tiers[rank],
            collective: if self.updates { Collective::Update } else { all_reduce },
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority,
            supply: Supply::Whole,
            call: None,
            update: self.updates.then_some(Update { step: -STEP, ..sgd }),
            rescale: 1.0,
        }
    }

    /// Lets the next thing happen in the network. Returns who wanted to be woken now.
    pub fn step(&mut self) -> Option<usize> {
        match self.net.next() {
            Next::Arrived(pipe, bytes) => self.deliver(pipe, &bytes),
            Next::Room(pipe) => self.transmit(pipe),
            Next::Due(who) => return Some(who),
            Next::Nothing => panic!("stuck at {} s with {} done", self.net.now, self.finished),
        }
        None
    }

    fn connect(&mut self, rank: usize, lane: usize, peer: Peer) {
        let (conn, _) = self.lanes[lane].open(peer).expect("a fresh lane");
        let (client, lane_end) = (End::Client { rank, lane }, End::Lane { lane, conn });
        self.to_lane[rank][lane] = Some(self.net.connect(Way { from: rank, to: lane }));
        self.ends.push((client, lane_end));
        let back = self.net.connect(Way { from: lane, to: rank });
        self.ends.push((lane_end, client));
        let known = self.to_worker[lane].len();
        self.to_worker[lane].resize(known.max(conn.0 + 1), None);
        self.to_worker[lane][conn.0] = Some(back);
        self.clients[rank].connected(ConnId(lane));
    }

    pub fn submit(&mut self, rank: usize, index: usize, bytes: usize, priority: i32) -> OpId {
        let request = self.request(rank, index, priority);
        let ones = 1.0_f32.to_ne_bytes().repeat(bytes / 4);
        // The gradient of a variable is needed until its mirrors have it.
        let memory = match self.updates {
            true => OwnedMemory { separate: Some(ones), bytes: vec![0; bytes] },
            false => OwnedMemory { separate: None, bytes: ones },
        };
        let round = self.clients[rank].next_round(request.tensor, request.tier);
        let op = self.clients[rank].submit(request, OpMemory::Tensor(memory));
        self.rounds.insert((rank, op), round.expect("a registered tensor"));
        op
    }

    /// Moves what can move on a machine, until nothing does.
    pub fn settle(&mut self, machine: usize) {
        loop {
            let mut moved = 0;
            if let Some(client) = self.clients.get_mut(machine) {
                let own = self.colocated[machine];
                let now = Duration::from_secs_f64(self.net.now);
                let (on_client, lane) = (ConnId(machine), &mut self.lanes[machine]);
                moved += in_process((client, on_client), (lane, own), now, usize::MAX)
                    .expect("no violation");
                moved +=
                    exchange((client, on_client), (lane, own), usize::MAX).expect("no violation");
                let (client, lane) = (&mut self.clients[machine], &mut self.lanes[machine]);
                moved += usize::from(self.hubs[machine].pass_on(client, lane));
                while let Some(lane) = self.clients[machine].next_dirty() {
                    if let Some(pipe) = self.to_lane[machine][lane.0] {
                        moved += self.feed(pipe);
                    }
                }
                moved += self.collect(machine);
            }
            self.lanes[machine].end_turn();
            while let Some(conn) = self.lanes[machine].next_dirty() {
                if let Some(Some(pipe)) = self.to_worker[machine].get(conn.0).copied() {
                    moved += self.feed(pipe);
                }
            }
            if moved == 0 {
                return;
            }
        }
    }

    /// Lets the kernel take what a pipe's sender has, as far as there is room.
    fn feed(&mut self, pipe: usize) -> usize {
        let (endpoint, conn): (&mut dyn Endpoint, ConnId) = match self.ends[pipe].0 {
            End::Client { rank, lane } => (&mut self.clients[rank], ConnId(lane)),
            End::Lane { lane, conn } => (&mut self.lanes[lane], conn),
        };
        let mut total = 0;
        loop {
            let mut n = 0;
            for slice in &endpoint.pending(conn) {
                let take = slice.len().min(self.net.room(pipe));
                self.net.send(pipe, &slice[..take]);
                n += take;
            }
            if n == 0 {
                break;
            }
            endpoint.sent(conn, n);
            self.net.push(pipe);
            total += n;
        }
        total
    }

    fn transmit(&mut self, pipe: usize) {
        self.feed(pipe);
        let machine = match self.ends[pipe].0 {
            End::Client { rank, .. } => rank,
            End::Lane { lane, .. } => lane,
        };
        self.settle(machine);
    }

    fn deliver(&mut self, pipe: usize, mut bytes: &[u8]) {
        let (machine, endpoint, conn): (usize, &mut dyn Endpoint, ConnId) = match self.ends[pipe].1
        {
            End::Client { rank, lane } => (rank, &mut self.clients[rank], ConnId(lane)),
            End::Lane { lane, conn } => (lane, &mut self.lanes[lane], conn),
        };
        let now = Duration::from_secs_f64(self.net.now);
        while !bytes.is_empty() {
            let mut n = 0;
            for space in &mut endpoint.space(conn) {
                let take = space.len().min(bytes.len() - n);
                space[..take].copy_from_slice(&bytes[n..n + take]);
                n += take;
            }
            endpoint.filled(conn, n, now).expect("no violation");
            bytes = &bytes[n..];
        }
        self.settle(machine);
    }

    /// Handles a client's events; returns how many the hub has taken, which may move the lane.
    fn collect(&mut self, rank: usize) -> usize {
        let sum = self.clients.len() as f32;
        let mut passed = 0;
        while let Some(event) = self.clients[rank].next_event() {
            let event = self.recoveries[rank].on_event(event, &mut self.clients[rank]);
            let Some(event) = event else { continue };
            let (client, lane) = (&mut self.clients[rank], &mut self.lanes[rank]);
            let event = self.hubs[rank].on_event(event, client, lane).expect("no violation");
            let Some(event) = event else {
                passed += 1;
                continue;
            };
            match event {
                Event::Finished(op, outcome) => {
                    assert_eq!(outcome, Ok(()));
                    self.finished += 1;
                    self.done.push((rank, op));
                }
                Event::Released(op, memory) => {
                    let round = self.rounds.remove(&(rank, op)).expect("what was submitted");
                    let value = -(STEP as f32) * sum * (round.0 + 1) as f32;
                    let expected = if self.updates { value } else { sum };
                    let right = |four: &[u8]| four == expected.to_ne_bytes();
                    assert!(memory.bytes.chunks_exact(4).all(right), "a wrong sum");
                }
                Event::Available { .. }
                | Event::Ordered { .. }
                | Event::Arrived { .. }
                | Event::PartitionDone { .. }
                | Event::Mirrored { .. }
                | Event::Norm { .. }
                | Event::PartitionNorm { .. }
                | Event::DeliveredToAll { .. } => {
                    panic!("every contribution is whole")
                }
            }
        }
        passed
    }
}
