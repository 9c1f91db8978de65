//! A job on the simulated network: workers with colocated lanes, servers with one lane each.

use std::time::Duration;

use sumpter_endpoint::{ConnId, Endpoint, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Event, Lane, LaneLimits, OpId, Peer, Place, Request, Supply, exchange,
};
use sumpter_plan::{
    Cluster, Dealing, PartitionPlace, Placement, Plan, PlannedServer, largest_partition, predict,
    server_weights,
};
use sumpter_transport::in_process;
use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, TensorId};
use sumpter_wire::Tier;

use crate::net::{Model, Net, Next, Way};

pub struct Setup {
    pub workers: usize,
    /// Bytes a second of each machine's link, those with workers first.
    pub rates: Vec<f64>,
    pub tensors: Vec<usize>,
    pub partition_bytes: u64,
    pub chunk_bytes: u32,
    pub credit_bytes: usize,
    pub model: Model,
}

pub struct Outcome {
    pub seconds: f64,
    pub optimum: f64,
    /// Share of the time in which each direction of each link was idle.
    pub idle: Vec<f64>,
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
    clients: Vec<Client<OwnedMemory>>,
    lanes: Vec<Lane>,
    colocated: Vec<ConnId>,
    /// Sender and receiver of each pipe.
    ends: Vec<(End, End)>,
    to_lane: Vec<Vec<Option<usize>>>,
    to_worker: Vec<Vec<Option<usize>>>,
    finished: usize,
    /// Operations that have finished since somebody looked, with their ranks.
    pub done: Vec<(usize, OpId)>,
}

const JOB: JobId = JobId(1);

pub fn run(setup: &Setup) -> Outcome {
    let n = setup.workers;
    let mut job = Job::new(setup);
    for rank in 0..n {
        for (index, bytes) in setup.tensors.iter().enumerate() {
            job.submit(rank, index, *bytes, 0);
        }
        job.settle(rank);
    }
    while job.finished < n * setup.tensors.len() {
        job.step();
    }
    let seconds = job.net.now;
    let carried = job.net.carried();
    let idle = |(i, bytes): (usize, &u64)| 1.0 - *bytes as f64 / (setup.rates[i / 2] * seconds);
    let idle = carried.iter().enumerate().map(idle).collect();
    Outcome { seconds, optimum: optimum(setup), idle }
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

fn plan(setup: &Setup) -> Plan {
    let weights = server_weights(&machines(setup)).expect("sound machines");
    let servers = weights.iter().map(|weight| PlannedServer { weight: *weight, lanes: 1 });
    let dealing = Dealing::Balanced;
    let servers = servers.collect();
    let partition_bytes = largest_partition(setup.partition_bytes, setup.credit_bytes as u64);
    Plan { epoch: 1, partition_bytes, servers, dealing }
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
        let limits = LaneLimits { max_job_bytes: 1 << 36, max_chunk_bytes: 1 << 24, hub: false };
        let mut job = Job {
            net: Net::new(setup.model, &setup.rates),
            clients: (0..n).map(|rank| Client::new(settings(rank), machines)).collect(),
            lanes: (0..machines).map(|_| Lane::new(limits)).collect(),
            colocated: Vec::new(),
            ends: Vec::new(),
            to_lane: vec![vec![None; machines]; n],
            to_worker: vec![Vec::new(); machines],
            finished: 0,
            done: Vec::new(),
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
            job.register(index, &placement.place(*bytes as u64));
        }
        job
    }

    /// Makes known to all clients where a tensor is summed.
    fn register(&mut self, index: usize, places: &[PartitionPlace]) {
        let places = places.iter().enumerate().map(|(number, place)| {
            let stretch = (place.offset as usize, place.bytes as usize);
            Place::new(ConnId(place.server), number as u32, stretch, GroupId(0), 1)
        });
        let places: Vec<_> = places.collect();
        for client in &mut self.clients {
            client.register(TensorId(index as u32), Tier::Root, places.clone());
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
        let request = Request {
            tensor: TensorId(index as u32),
            tier: Tier::Root,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority,
            supply: Supply::Whole,
            update: None,
        };
        let ones = 1.0_f32.to_ne_bytes().repeat(bytes / 4);
        self.clients[rank].submit(request, OwnedMemory { separate: None, bytes: ones })
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
                while let Some(lane) = self.clients[machine].next_dirty() {
                    if let Some(pipe) = self.to_lane[machine][lane.0] {
                        moved += self.feed(pipe);
                    }
                }
                self.collect(machine);
            }
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

    fn collect(&mut self, rank: usize) {
        let expected = self.clients.len() as f32;
        while let Some(event) = self.clients[rank].next_event() {
            match event {
                Event::Finished(op, outcome) => {
                    assert_eq!(outcome, Ok(()));
                    self.finished += 1;
                    self.done.push((rank, op));
                }
                Event::Released(_, memory) => {
                    let right = |four: &[u8]| four == expected.to_ne_bytes();
                    assert!(memory.bytes.chunks_exact(4).all(right), "a wrong sum");
                }
                Event::Available { .. }
                | Event::Ordered { .. }
                | Event::Arrived { .. }
                | Event::PartitionDone { .. }
                | Event::Mirrored { .. }
                | Event::DeliveredToAll { .. } => {
                    panic!("every contribution is whole")
                }
            }
        }
    }
}
