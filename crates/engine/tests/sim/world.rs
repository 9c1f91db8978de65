//! A simulated cluster: workers with colocated lanes, helper lanes, connections that misbehave.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use fastrand::Rng;
use sumpter_endpoint::{ConnId, LinkError, Memory, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Event, Hub, Lane, LaneLimits, Layout, MirroredSpan, OpId, OpMemory,
    OrderSpan, Peer, Place, Progress, REPAIRED, Recovery, Repair, RepairSpec, Request, Supply,
    exchange, first_passed_on, has_failed, mirrored_elements, repairs, retained_rounds,
};
use sumpter_sum::AlignedBuf;
use sumpter_transport::{Side, SimLink, in_process};
use sumpter_types::{
    Action, CallNumber, Collective, Dtype, Epoch, JobId, Rank, ReduceOp, Round, TensorId, Update,
};
use sumpter_wire::Tier;

#[path = "calls.rs"]
mod calls;
#[path = "check.rs"]
mod check;
#[path = "epochs.rs"]
mod epochs;
#[path = "faults.rs"]
mod faults;
#[path = "servers.rs"]
mod servers;
#[path = "states.rs"]
mod states;

use crate::model;
use crate::order::Orders;
use crate::report::Report;
use crate::tensor::{CODED_CHUNK_BYTES, Machines, Tensor, group};
use calls::Calls;
use servers::ServerHub;

struct Worker {
    client: Client<OpMemory<OwnedMemory>>,
    /// Passes on what the lane beside the client sums for their machine.
    hub: Hub,
    /// What it holds for others, and what it passes on of interrupted rounds.
    recovery: Recovery,
    /// Between two epochs: what it has reported.
    progress: Option<Progress>,
    /// Tensors in the order of submission, one entry a round.
    todo: Vec<usize>,
    submitted: Vec<u32>,
    running: HashMap<OpId, (usize, u32)>,
    /// Of operations that are supplied in ranges.
    staged: BTreeMap<OpId, Staged>,
    /// Whose norm is known: what the rounds are to do.
    undecided: Vec<(OpId, Update)>,
    finished: usize,
    released: usize,
    results: HashMap<(usize, u32), Vec<u8>>,
    /// Of rounds that change a variable asynchronously.
    orders: HashMap<(usize, u32), Vec<OrderSpan>>,
}

/// An operation whose contribution comes range by range, in any order.
struct Staged {
    contribution: Vec<u8>,
    missing: Vec<Range<usize>>,
    /// What of the result was announced, as it was then.
    result: BTreeMap<usize, (usize, Option<Vec<u8>>)>,
}

/// A connection between a worker and a lane elsewhere.
struct Wire {
    link: SimLink,
    lane_side: ConnId,
    /// The lane has closed it, and the worker has not noticed.
    is_closed: bool,
}

pub struct World {
    rng: Rng,
    chunk_bytes: u32,
    epoch: Epoch,
    /// Whether results of helpers are kept, so that these may die.
    keeps: bool,
    /// Helpers that sum, by lane.
    helpers: BTreeSet<usize>,
    /// Helpers that have died since the last epoch began, or know nothing of the job any more.
    gone: BTreeSet<usize>,
    changes_left: u32,
    deterministic: bool,
    /// Whether workers die; who was left after each death, and on which machines.
    workers_may_fail: bool,
    generations: Vec<(BTreeSet<usize>, Machines)>,
    /// Variables that had two mirrors everywhere when all had what they mirror, and how often the
    /// epoch has changed since; variables whose state died with all that had it.
    guarded: BTreeSet<usize>,
    plans_at_once: u32,
    lost: BTreeSet<usize>,
    /// Those of the lost that have failed on some worker.
    pub refused: BTreeSet<usize>,
    /// The generation in which a round began, and the last in which a worker finished it.
    spans: HashMap<(usize, u32), (usize, usize)>,
    tensors: Vec<Tensor>,
    workers: Vec<Worker>,
    lanes: Vec<Lane>,
    /// The hubs beside helpers' lanes, as soon as they have something to pass on.
    server_hubs: BTreeMap<usize, ServerHub>,
    colocated: Vec<ConnId>,
    wires: HashMap<(usize, usize), Option<Wire>>,
    /// Connections that are gone for the worker, of which the lane still reads what has arrived.
    remains: BTreeMap<(usize, usize), Wire>,
    /// Whether workers connect to lanes only once they have something for them, as helpers do.
    on_demand: bool,
    callable: Calls,
    cuts_left: u32,
    /// Whether frames carry checksums, and how many bits are flipped on their way.
    checksum: bool,
    flips_left: u32,
    now: Duration,
    report: Report,
    /// The order of another run.
    follows: Option<Orders>,
}

const JOB: JobId = JobId(77);

/// One connection in so many places bytes in the memory of its ends.
const CONNECTIONS_FOR_A_PLACED_ONE: u32 = 4;

/// A network that hangs is given up after so many steps of its connection, about.
const STEPS_OF_A_HANG: u32 = 30;

/// A small world takes ten thousand steps, few a million, and one in 100,000 twenty; a large one
/// some millions.
const MANY_STEPS: u64 = 50_000_000;
/// Steps in a row in which nothing moves, for each connection: they are taken at random.
const MANY_IDLE_STEPS: usize = 100;
const LEAST_IDLE_STEPS: usize = 100_000;
/// One connection more is tried in a step for so many that there are.
const CALLS_FOR_A_TRY: usize = 100;

/// How large a cluster is.
#[derive(Clone, Debug)]
pub struct Size {
    pub workers: RangeInclusive<usize>,
    pub helpers: RangeInclusive<usize>,
    pub tensors: RangeInclusive<usize>,
}

impl Size {
    /// Every kind of tensor, and thousands of seeds in seconds.
    pub const SMALL: Size = Size { workers: 1..=6, helpers: 0..=3, tensors: 1..=6 };
    /// A few seeds in seconds.
    pub const MEDIUM: Size = Size { workers: 32..=32, helpers: 8..=8, tensors: 1..=3 };
    /// What is quadratic, or counts members in too few bits, shows here. A seed takes some seconds.
    pub const LARGE: Size = Size { workers: 256..=256, helpers: 64..=64, tensors: 1..=3 };

    /// A tensor that the scalar model can follow in a cluster of `n` workers. The sums of hundreds
    /// are exact without products, an order of addition, and a digit for each worker.
    fn tensor(rng: &mut Rng, index: usize, n: usize, machines: &Machines) -> Tensor {
        let is_exact = |tensor: &Tensor| {
            let sums = tensor.request.op != ReduceOp::Product && !tensor.rough;
            n <= *Size::SMALL.workers.end() || (sums && tensor.staleness.is_synchronous())
        };
        loop {
            let tensor = Tensor::new(rng, index, n, machines);
            if is_exact(&tensor) {
                return tensor;
            }
        }
    }
}

/// A lane of a worker, whose client knows the tensors, or of a helper.
fn fresh_lane(hub: bool) -> Lane {
    Lane::new(LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub })
}

impl World {
    pub fn new(seed: u64, size: &Size) -> World {
        World::following(seed, size, None)
    }

    /// The same workers and tensors; in the order of another run, nothing dies.
    pub fn following(seed: u64, size: &Size, follows: Option<Orders>) -> World {
        let mut rng = Rng::with_seed(seed);
        let n = rng.usize(size.workers.clone());
        let lanes = n + rng.usize(size.helpers.clone());
        let mut chunk_bytes = 64 * rng.u32(1..=8);
        let deterministic = rng.bool();
        let machines = Machines::new(&mut rng, n);
        let count = rng.usize(size.tensors.clone());
        let mut tensors: Vec<_> =
            (0..count).map(|index| Size::tensor(&mut rng, index, n, &machines)).collect();
        tensors.iter_mut().for_each(|tensor| tensor.encode(&mut rng, deterministic));
        if follows.is_some() {
            rng = Rng::with_seed(!seed);
            chunk_bytes = 64 * rng.u32(1..=8);
        }
        if tensors.iter().any(|tensor| tensor.codec.is_some()) {
            chunk_bytes = CODED_CHUNK_BYTES;
        }
        let mut workers: Vec<_> = (0..n).map(|rank| worker(&mut rng, rank, &tensors)).collect();
        let changes = if rng.bool() { rng.u32(1..6) } else { 0 };
        // A value that a worker lacks when its lane dies is gone.
        let changes_left = if follows.is_some() { 0 } else { changes };
        // The rounds of one worker alone do not survive it.
        let alone = tensors.iter().any(|tensor| !tensor.staleness.is_synchronous());
        let workers_may_fail = changes_left > 0 && n > 1 && rng.bool() && (!alone || rng.bool());
        if workers_may_fail {
            tensors.iter_mut().for_each(|tensor| tensor.guard(&machines));
        }
        for (rank, worker) in (0..).map(Rank).zip(&mut workers) {
            set_variables(worker, rank, &tensors);
        }
        let checksum = rng.bool();
        let on_demand = n > *Size::SMALL.workers.end() || rng.bool();
        let mut world = World {
            flips_left: if checksum { rng.u32(0..20) } else { 0 },
            checksum,
            cuts_left: if rng.bool() { rng.u32(0..20) } else { 0 },
            keeps: changes_left > 0 || rng.bool(),
            helpers: BTreeSet::new(),
            gone: BTreeSet::new(),
            changes_left,
            epoch: Epoch(0),
            rng,
            chunk_bytes,
            deterministic,
            workers_may_fail,
            generations: vec![((0..n).collect(), machines)],
            guarded: BTreeSet::new(),
            plans_at_once: 0,
            lost: BTreeSet::new(),
            refused: BTreeSet::new(),
            spans: HashMap::new(),
            tensors,
            workers,
            lanes: (0..lanes).map(|lane| fresh_lane(lane < n)).collect(),
            server_hubs: BTreeMap::new(),
            colocated: vec![ConnId(0); n],
            wires: HashMap::new(),
            remains: BTreeMap::new(),
            on_demand,
            callable: Calls::default(),
            now: Duration::ZERO,
            report: Report::default(),
            follows,
        };
        for rank in 0..lanes {
            for lane in (0..lanes).filter(|lane| *lane != rank) {
                world.wires.insert((rank, lane), None);
                if !on_demand && rank < n {
                    world.callable.insert((rank, lane));
                }
            }
        }
        world.plan(&BTreeMap::new());
        (0..n).for_each(|rank| world.resume(rank, &HashMap::new()));
        world
    }

    /// How a worker introduces itself to a lane.
    fn peer(&self, rank: usize, lane: usize) -> Peer {
        let (n, epoch) = (self.workers.len(), self.epoch);
        let (keeps, checksum) = (self.keeps && (lane >= n || self.workers_may_fail), self.checksum);
        Peer { job: JOB, rank: Rank(rank as u32), world_size: n as u32, epoch, keeps, checksum }
    }

    /// The workers that live.
    fn living(&self) -> &BTreeSet<usize> {
        &self.generations.last().expect("the first generation").0
    }

    /// The machines of those who live.
    fn machines(&self) -> &Machines {
        &self.generations.last().expect("the first generation").1
    }

    pub fn run(&mut self) -> Report {
        let most_idle = LEAST_IDLE_STEPS.max(MANY_IDLE_STEPS * self.wires.len());
        let mut idle = 0;
        while !self.done() {
            let changes = self.changes_left > 0 && self.rng.u32(0..400) == 0;
            let moved = if changes { self.change() } else { self.step() };
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < most_idle, "stuck: {}", self.describe());
            assert!(self.report.steps < MANY_STEPS, "it never ends: {}", self.describe());
        }
        self.check();
        for lane in &self.lanes {
            self.report.duplicates += lane.stats().duplicate_chunks;
        }
        std::mem::take(&mut self.report)
    }

    /// The orders of all rounds that change a variable asynchronously.
    pub fn orders(&self) -> Orders {
        let workers = (0..).map(Rank).zip(&self.workers);
        let of = |(rank, worker): (Rank, &Worker)| {
            let orders = worker.orders.clone().into_iter();
            orders.map(move |((index, round), order)| ((index, rank, round), order))
        };
        workers.flat_map(of).collect()
    }

    /// What a worker got in a round.
    pub fn result(&self, index: usize, rank: Rank, round: u32) -> &Vec<u8> {
        &self.workers[rank.0 as usize].results[&(index, round)]
    }

    fn step(&mut self) -> bool {
        self.now += Duration::from_micros(self.rng.u64(1..100));
        self.report.steps += 1;
        let calls = self.callable.len();
        match self.rng.u32(0..100) {
            0..8 => self.submit(),
            8..12 => self.supply(),
            12..14 => self.decide(),
            14..20 => self.pump(),
            20..24 => self.pump_server(),
            24..26 if calls > 0 => {
                let key = self.callable.get(self.rng.usize(0..calls));
                self.cut(key)
            }
            26..30 if calls > 0 => {
                let key = self.callable.get(self.rng.usize(0..calls));
                self.damage(key)
            }
            30..34 if !self.remains.is_empty() => self.read_remains(),
            _ if calls > 0 => {
                // Where there are many connections, most have nothing to carry.
                let first = self.rng.usize(0..calls);
                let tries = 1 + calls / CALLS_FOR_A_TRY;
                (first..first + tries).any(|at| self.carry(self.callable.get(at)))
            }
            _ => self.pump(),
        }
    }

    fn done(&self) -> bool {
        let done = |w: &Worker| w.todo.is_empty() && w.running.is_empty();
        self.living().iter().all(|rank| done(&self.workers[*rank]))
    }

    /// Any worker that lives.
    fn someone(&mut self) -> usize {
        let nth = self.rng.usize(0..self.living().len());
        *self.living().iter().nth(nth).expect("just counted")
    }

    fn submit(&mut self) -> bool {
        let rank = self.someone();
        let now = self.generations.len() - 1;
        let worker = &mut self.workers[rank];
        let Some(index) = worker.todo.pop() else { return false };
        if self.lost.contains(&index) {
            return true;
        }
        let tensor = &self.tensors[index];
        let round = worker.submitted[index];
        worker.submitted[index] += 1;
        self.spans.entry((index, round)).or_insert((now, now));
        // As it was laid out: the machine may have lost a worker since.
        let mut tiers = Tier::AGGREGATES.into_iter().chain([Tier::Root]);
        let known = |tier: &Tier| worker.client.next_round(tensor.request.tensor, *tier).is_some();
        let tier = tiers.find(known).unwrap_or(Tier::Worker);
        let update = tensor.update(round);
        // Half of the programs count their calls.
        let call = (index % 2 == 0).then(|| CallNumber::new(8 * u64::from(round)));
        let priority = self.rng.i32(-2..3);
        let rescale = tensor.rescale(round);
        let request = Request { tier, priority, call, update, rescale, ..tensor.request };
        let memory = tensor.memory(round, rank as u32);
        let mut memory = tensor.shard_of(memory, Rank(rank as u32));
        let staged = (request.supply == Supply::Ranges).then(|| {
            let contributes = request.collective.contributes(Rank(rank as u32), request.root);
            let missing =
                if contributes { cut(&mut self.rng, memory.bytes.len()) } else { Vec::new() };
            let there = memory.separate.as_mut().unwrap_or(&mut memory.bytes);
            let contribution = there.clone();
            there.fill(NOISE);
            Staged { contribution, missing, result: BTreeMap::new() }
        });
        let id = worker.client.submit(request, OpMemory::Tensor(memory));
        worker.running.insert(id, (index, round));
        let key = (index, Rank(rank as u32), round);
        if let Some(order) = self.follows.as_ref().and_then(|orders| orders.get(&key)) {
            worker.client.follow(id, order.clone());
            self.report.replayed += 1;
        }
        staged.into_iter().for_each(|staged| drop(worker.staged.insert(id, staged)));
        self.collect(rank);
        true
    }

    /// A range of a contribution comes into the memory.
    fn supply(&mut self) -> bool {
        let rank = self.someone();
        let worker = &mut self.workers[rank];
        let lacking: Vec<OpId> = worker
            .staged
            .iter()
            .filter(|(_, s)| !s.missing.is_empty())
            .map(|(id, _)| *id)
            .collect();
        if lacking.is_empty() {
            return false;
        }
        let id = lacking[self.rng.usize(0..lacking.len())];
        let staged = worker.staged.get_mut(&id).expect("one of them");
        let range = staged.missing.swap_remove(self.rng.usize(0..staged.missing.len()));
        let Some(OpMemory::Tensor(memory)) = worker.client.memory_mut(id) else {
            panic!("an operation has released the memory of its contribution")
        };
        let there = memory.separate.as_mut().unwrap_or(&mut memory.bytes);
        there[range.clone()].copy_from_slice(&staged.contribution[range.clone()]);
        worker.client.supply(id, range);
        self.report.ranges += 1;
        self.collect(rank);
        true
    }

    /// A worker that knows the norm of a gradient says what the round does.
    fn decide(&mut self) -> bool {
        let rank = self.someone();
        let worker = &mut self.workers[rank];
        if worker.undecided.is_empty() {
            return false;
        }
        let nth = self.rng.usize(0..worker.undecided.len());
        let (id, update) = worker.undecided.swap_remove(nth);
        worker.client.decide(id, update);
        self.report.decided += 1;
        self.report.skipped += u64::from(update.action == Action::Skip);
        self.collect(rank);
        true
    }

    /// Moves bytes between a worker and its colocated lane.
    fn pump(&mut self) -> bool {
        let rank = self.someone();
        if self.workers[rank].progress.is_some() {
            return false;
        }
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
        let peer = self.peer(rank, lane);
        let suspended = |rank: usize| self.workers.get(rank).is_some_and(|w| w.progress.is_some());
        let known = |lane: &usize| self.helpers.contains(lane) || self.living().contains(lane);
        let absent = !known(&lane) || self.gone.contains(&lane);
        if suspended(rank) || suspended(lane) || absent {
            return false;
        }
        let is_up = self.wires[&key].is_some();
        if !is_up && !self.calls(rank, lane) {
            return false;
        }
        let slot = self.wires.get_mut(&key).expect("a known pair");
        let Some(wire) = slot else {
            let (lane_side, _) = self.lanes[lane].open(peer).expect("a matching peer");
            let capacity = self.rng.usize(1..20_000);
            let link = match self.rng.u32(0..CONNECTIONS_FOR_A_PLACED_ONE) {
                0 => {
                    let lockable = (self.rng.u32(0..8) == 0).then(|| self.rng.usize(0..60_000));
                    let link = SimLink::placed_within(lockable, capacity, self.rng.u64(..));
                    self.report.placed += u64::from(link.is_placed());
                    self.report.unregistered += u64::from(!link.is_placed());
                    link
                }
                _ => SimLink::new(capacity),
            };
            *slot = Some(Wire { link, lane_side, is_closed: false });
            self.remains.remove(&key);
            self.client(rank).connected(ConnId(lane));
            return true;
        };
        // Nothing else is seen of it than that it owes something.
        let is_seen = [Side::A, Side::B].into_iter().any(|side| wire.link.owes(side));
        if wire.link.is_stuck() && is_seen && self.rng.u32(0..STEPS_OF_A_HANG) == 0 {
            self.sever(key);
            return true;
        }
        let limit = if self.rng.bool() { self.rng.usize(1..40) } else { self.rng.usize(1..4000) };
        let client = match self.server_hubs.get_mut(&rank) {
            Some(server) => &mut server.client,
            None => &mut self.workers[rank].client,
        };
        let moved = match self.rng.u32(0..4) {
            0 => wire.link.transmit(Side::A, client, ConnId(lane), limit),
            // A lane that is gone moves nothing.
            1 | 2 if wire.is_closed => Ok(0),
            1 => wire.link.transmit(Side::B, &mut self.lanes[lane], wire.lane_side, limit),
            2 => {
                let into = &mut self.lanes[lane];
                wire.link.deliver(Side::B, into, wire.lane_side, limit, self.now)
            }
            _ => wire.link.deliver(Side::A, client, ConnId(lane), limit, self.now),
        };
        let moved = match moved {
            Ok(moved) => moved,
            Err(error) => {
                self.note_end(&error);
                self.sever(key);
                return true;
            }
        };
        self.report.bytes += moved as u64;
        self.collect(rank);
        moved > 0
    }

    /// Flips a bit that is on its way.
    fn damage(&mut self, key: (usize, usize)) -> bool {
        let Some(wire) = self.wires.get_mut(&key).and_then(Option::as_mut) else { return false };
        let side = if self.rng.bool() { Side::A } else { Side::B };
        let in_flight = wire.link.in_flight(side);
        if self.flips_left == 0 || in_flight == 0 {
            return false;
        }
        self.flips_left -= 1;
        self.report.flips += 1;
        wire.link.damage(side, self.rng.usize(0..in_flight), self.rng.u8(0..8))
    }

    /// Breaks a connection; whether the lane has not noticed.
    fn sever(&mut self, key: (usize, usize)) -> bool {
        let wire = self.wires.get_mut(&key).and_then(Option::take).expect("a connection");
        self.client(key.0).disconnected(ConnId(key.1));
        let half_open = self.rng.bool() && !wire.is_closed;
        if !half_open {
            self.close_lane_side(key.1, &wire);
        }
        self.collect(key.0);
        half_open
    }

    fn collect(&mut self, rank: usize) {
        if self.server_hubs.contains_key(&rank) {
            return self.collect_server(rank);
        }
        let worker = &mut self.workers[rank];
        while let Some(event) = worker.client.next_event() {
            self.report.subtotals += u64::from(matches!(event, Event::Arrived { .. }));
            self.report.one_way += u64::from(matches!(event, Event::PartitionDone { .. }));
            let Some(event) = worker.recovery.on_event(event, &mut worker.client) else {
                continue;
            };
            let heard = worker.hub.on_event(event, &mut worker.client, &mut self.lanes[rank]);
            let Some(event) = heard.expect("no violation") else { continue };
            match event {
                Event::Arrived { .. }
                | Event::PartitionDone { .. }
                | Event::Mirrored { .. }
                | Event::PartitionNorm { .. }
                | Event::DeliveredToAll { .. } => {
                    panic!("only hubs supply in chunks")
                }
                Event::Available { op, bytes } => {
                    // The memory of the last ones is among the events that follow.
                    let memory = worker.client.memory_mut(op);
                    let now = memory.map(|m| m.result(bytes.start, bytes.len()).to_vec());
                    let staged = worker.staged.get_mut(&op).expect("supplied in ranges");
                    staged.announce(bytes, now);
                }
                Event::Norm { op, squares } => {
                    let (index, round) = worker.running[&op];
                    let tensor = &self.tensors[index];
                    let expected = tensor.squares(round, &self.generations[0].1);
                    assert_eq!(squares, expected, "the norm of round {round}: {tensor:?}");
                    let again = worker.undecided.iter().any(|(known, _)| *known == op);
                    assert!(!again, "a norm was reported twice");
                    let rule = tensor.rule().expect("a variable");
                    worker.undecided.push((op, model::decided(rule, round, &squares)));
                }
                Event::Ordered { op, order } => {
                    worker.orders.insert(worker.running[&op], order);
                }
                Event::Finished(id, outcome) => {
                    let of = worker.running[&id];
                    assert!(outcome == Ok(()) || self.lost.contains(&of.0), "{outcome:?}: {of:?}");
                    worker.finished += 1;
                }
                Event::Released(id, memory) => {
                    let key = worker.running.remove(&id).expect("a running operation");
                    let (_, last) = self.spans.get_mut(&key).expect("a round that began");
                    *last = self.generations.len() - 1;
                    let staged = worker.staged.remove(&id);
                    if let Some(staged) = staged.filter(|_| !self.lost.contains(&key.0)) {
                        let Tensor { request, members, .. } = &self.tensors[key.0];
                        let receives = |r: &Rank| request.collective.receives(*r, request.root);
                        // A broadcast to no other worker needs no bytes.
                        let all_in = staged.missing.is_empty() || !members.iter().any(receives);
                        assert!(all_in, "it ended without {:?}", staged.missing);
                        let own = receives(&Rank(rank as u32)).then_some(&memory.bytes);
                        staged.check(own);
                    }
                    worker.results.insert(key, memory.bytes);
                    worker.released += 1;
                }
            }
        }
        self.note_wanted(rank);
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

/// What memory holds before a contribution is in it.
const NOISE: u8 = 0x5a;

/// `bytes` in ranges, in order.
fn cut(rng: &mut Rng, bytes: usize) -> Vec<Range<usize>> {
    if bytes == 0 {
        // A worker that holds nothing of a tensor waits for its group as well.
        return std::iter::once(0..0).collect();
    }
    let mut ends: BTreeSet<usize> = (0..rng.usize(0..6)).map(|_| rng.usize(1..=bytes)).collect();
    ends.insert(bytes);
    let mut start = 0;
    ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}

impl Staged {
    fn announce(&mut self, bytes: Range<usize>, now: Option<Vec<u8>>) {
        let before = self.result.range(..bytes.end).next_back();
        let free = before.is_none_or(|(start, known)| start + known.0 <= bytes.start);
        assert!(free, "bytes {bytes:?} were announced before");
        self.result.insert(bytes.start, (bytes.len(), now));
    }

    /// The operation is over, with this result if it receives any.
    fn check(self, result: Option<&Vec<u8>>) {
        let announced: usize = self.result.values().map(|(len, _)| len).sum();
        assert_eq!(announced, result.map_or(0, Vec::len), "not all of the result was announced");
        for (start, (len, then)) in self.result {
            let now = result.map(|result| &result[start..start + len]);
            assert!(then.is_none_or(|then| Some(&then[..]) == now), "it was not final at {start}");
        }
    }
}

fn worker(rng: &mut Rng, rank: usize, tensors: &[Tensor]) -> Worker {
    let mut todo = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.members.contains(&Rank(rank as u32)) {
            todo.extend(std::iter::repeat_n(index, tensor.rounds as usize));
        }
    }
    rng.shuffle(&mut todo);
    // Its settings come with its first epoch.
    let settings = ClientSettings {
        rank: Rank(rank as u32),
        world_size: 0,
        epoch: Epoch(0),
        chunk_bytes: 64,
        credit_bytes: 0,
        deterministic: false,
        checksum: false,
    };
    Worker {
        client: Client::new(settings, 0),
        hub: Hub::new(JOB, 64),
        recovery: Recovery::default(),
        progress: Some(Progress::default()),
        todo,
        submitted: vec![0; tensors.len()],
        running: HashMap::new(),
        staged: BTreeMap::new(),
        undecided: Vec::new(),
        finished: 0,
        released: 0,
        results: HashMap::new(),
        orders: HashMap::new(),
    }
}

/// Gives variables their first values.
fn set_variables(Worker { client, .. }: &mut Worker, id: Rank, tensors: &[Tensor]) {
    for tensor in tensors.iter().filter(|tensor| tensor.rule().is_some()) {
        client.begin_mirroring(tensor.request.tensor);
        let Request { tensor: number, dtype, .. } = tensor.request;
        for (span, parts) in tensor.mirrored_by(id) {
            let parts = parts.iter().map(|part| {
                let mut buffer = AlignedBuf::new(part.len());
                buffer.copy_from_slice(part);
                buffer
            });
            let first = span.start / dtype.size();
            let share = first..span.end / dtype.size();
            client.mirror_from(number, (share, first), dtype.accumulator(), parts.collect());
        }
        if !tensor.staleness.is_synchronous() {
            client.mirror_rounds_of(number, dtype, &tensor.everyone);
        }
    }
}
