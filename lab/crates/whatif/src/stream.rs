//! Partitions travelling to servers and sums travelling back, event by event.
//!
//! - **Links** are fluid: each machine has one, full duplex. Queues in front of them are served in
//!   order, so connections share them in proportion to what they have queued. The network
//!   between is not a limit (full bisection).
//! - **Machines that are listed** have links of their own, trunks, and links inside; a partition's
//!   contributions travel through all levels of its reduction tree at one rate ([`Layout::on`]).
//! - **Symmetry.** Workers compute alike and plan alike, so a partition's contributions travel
//!   from all of them at one rate, that of the tightest link. One worker then stands for all, and
//!   one machine for those whose servers have the same to do.
//! - **Connections** are first in, first out: a worker has one to each server, on which its
//!   partitions go in the order in which they were admitted; sums come back in the order in which
//!   they were made. A machine's own server costs the network nothing.
//! - **Order and credit.** Of the partitions that are ready, those of the gradient that was ready
//!   first go first, or with [`Order::Forward`] those of the first layers, then as dealt. The next
//!   is admitted while less than `credit_bytes` are beyond what was sent, where each connection
//!   counts up to `window_bytes` as sent that are still on their way. What was admitted cannot be
//!   recalled.
//! - **Addition.** A server adds contributions of one partition after another while they come
//!   in, `n-1` additions each, and ends at least one addition after the last has arrived.
//! - A sum is sent back when the whole partition is added, and where the server has an optimizer,
//!   when that is done.
//! - **Codec.** A worker's cores encode one admitted partition after another, and decode sums that
//!   have come, in one queue. A server decodes and adds all `n` contributions to a partition and
//!   encodes its sum; on a GPU machine that takes the same cores, on each of `n` such machines
//!   the `n`th part of them all.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::coding::Coding;
use crate::queues::{Coder, Load, Queue, ROUNDING, Task};
use crate::rates::{Rates, WorkerClass, fair};
use crate::routes::Backlog;
use crate::{Case, Layout, Order, Profile, Unit};

/// When each tensor's sum is complete at all workers, in the order of [`Profile::tensors`], since
/// the beginning of the backward pass.
#[must_use]
pub fn completions(profile: &Profile, layout: &Layout, case: &Case) -> Vec<f64> {
    Stream::new(profile, layout, case).run()
}

/// What travels one route: to the server of a machine, or through a reduction tree.
#[derive(Clone, Debug, Default)]
struct Server {
    push: Queue,
    pull: Queue,
    active: bool,
}

/// A moment, ordered as a number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A hash of a few numbers that come from no adversary.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Stream<'a> {
    profile: &'a Profile,
    layout: &'a Layout,
    case: &'a Case,
    workers: usize,
    now: f64,
    /// By route.
    servers: Vec<Server>,
    /// When each machine has added what it has to add so far.
    adders_free_s: Vec<f64>,
    coder: Coder,
    /// Routes with something to send.
    active: Vec<usize>,
    /// The next unit whose gradient is not ready.
    unready: usize,
    /// Ready, not admitted: by urgency, then as dealt, which is in the order of readiness.
    waiting: BinaryHeap<Reverse<(usize, usize)>>,
    /// When each unit's first bytes were sent.
    started: Vec<f64>,
    sums: BinaryHeap<Reverse<(Moment, usize)>>,
    done: Vec<f64>,
}

impl<'a> Stream<'a> {
    fn new(profile: &'a Profile, layout: &'a Layout, case: &'a Case) -> Self {
        let workers = case.workers as usize;
        let machines = workers + case.servers as usize;
        let routes = layout.listed.as_ref().map_or(machines, |listed| listed.routes.len());
        Self {
            profile,
            layout,
            case,
            workers,
            now: 0.0,
            servers: vec![Server::default(); routes],
            adders_free_s: vec![0.0; machines],
            coder: Coder::default(),
            active: Vec::new(),
            unready: 0,
            waiting: BinaryHeap::new(),
            started: vec![0.0; layout.units.len()],
            sums: BinaryHeap::new(),
            done: profile.tensors().iter().map(|tensor| tensor.ready_s).collect(),
        }
    }

    fn run(mut self) -> Vec<f64> {
        loop {
            self.release();
            self.admit();
            let rates = self.rates();
            let step = self.next_event(&rates);
            if step.is_infinite() {
                return self.done;
            }
            self.advance(step, &rates);
            self.finish_tasks();
            self.finish_transfers();
            self.finish_sums();
        }
    }

    /// Gradients that are ready now.
    fn release(&mut self) {
        while let Some(unit) = self.layout.units.get(self.unready) {
            let tensor = &self.profile.tensors()[unit.tensor];
            if tensor.ready_s > self.now {
                break;
            }
            let urgency = match self.case.order() {
                Order::Readiness => 0,
                Order::Forward => unit.tensor,
            };
            self.waiting.push(Reverse((urgency, self.unready)));
            self.unready += 1;
        }
    }

    /// Partitions begun as far as the credit goes.
    fn admit(&mut self) {
        let credit = self.case.credit_bytes as f64;
        let window = self.case.window_bytes as f64;
        let mut unsent = 0.0;
        if !self.waiting.is_empty() {
            unsent = self.unsent(0.0, &[]).0 + self.coder.encoding_bytes;
        }
        while unsent <= credit * (1.0 + ROUNDING) {
            let Some(Reverse((_, unit))) = self.waiting.pop() else { break };
            let Unit { route, bytes, tensor, .. } = self.layout.units[unit];
            self.started[unit] = self.now;
            if !self.travels(route) {
                continue; // Its only worker is in the server's own process.
            }
            let encode_s = bytes as f64 * self.profile.coding(tensor).encode_s;
            if encode_s > 0.0 {
                let task = Task::Encode(unit, self.push_load(unit).bytes);
                let before = self.coder.encoding_bytes;
                self.coder.push(self.now, encode_s, task);
                unsent += self.coder.encoding_bytes - before;
                continue;
            }
            let before = (self.servers[route].push.bytes - window).max(0.0);
            self.push(unit);
            unsent += (self.servers[route].push.bytes - window).max(0.0) - before;
        }
    }

    /// A contribution in front of its link.
    fn push_load(&self, unit: usize) -> Load {
        self.load(unit, self.coding(unit).contribution)
    }

    /// A sum in front of its link.
    fn pull_load(&self, unit: usize) -> Load {
        self.load(unit, self.coding(unit).answer)
    }

    fn load(&self, unit: usize, part: f64) -> Load {
        let bytes = self.layout.units[unit].bytes as f64 * part;
        Load { weight: bytes.round().max(1.0) as u64, bytes: bytes / self.case.compression }
    }

    fn coding(&self, unit: usize) -> &'a Coding {
        self.profile.coding(self.layout.units[unit].tensor)
    }

    /// A contribution goes to the server.
    fn push(&mut self, unit: usize) {
        let (route, load) = (self.layout.units[unit].route, self.push_load(unit));
        self.activate(route);
        self.servers[route].push.push(unit, load);
    }

    fn finish_tasks(&mut self) {
        while let Some(task) = self.coder.pop(self.now) {
            match task {
                Task::Encode(unit, _) => self.push(unit),
                Task::Decode(unit) => self.complete(unit),
            }
        }
    }

    /// A sum is there.
    fn complete(&mut self, unit: usize) {
        let done = &mut self.done[self.layout.units[unit].tensor];
        *done = done.max(self.now);
    }

    /// Bytes admitted and not counted as sent in `step` from now, and how fast they get fewer.
    fn unsent(&self, step: f64, rates: &[Rates]) -> (f64, f64) {
        let window = self.case.window_bytes as f64;
        let mut total = (0.0, 0.0);
        for (position, &route) in self.active.iter().enumerate() {
            let rate = rates.get(position).map_or(0.0, |rates| rates.push);
            let left = self.servers[route].push.bytes - rate * step - window;
            if left > 0.0 {
                total.0 += left;
                total.1 += rate;
            }
        }
        total
    }

    /// How long until the credit has room. What is unsent falls ever more slowly, so that each
    /// step along its slope ends at or before that moment, and a few reach it.
    fn room_in(&self, rates: &[Rates]) -> f64 {
        let credit = self.case.credit_bytes as f64;
        let mut step = 0.0;
        loop {
            let (unsent, rate) = self.unsent(step, rates);
            let unsent = unsent + self.coder.encoding_bytes;
            if unsent <= credit * (1.0 + ROUNDING) {
                return step;
            }
            if rate == 0.0 {
                return f64::INFINITY; // Until something is encoded.
            }
            let next = step + (unsent - credit) / rate;
            if next == step {
                return step;
            }
            step = next;
        }
    }

    /// The rates of the active routes, in their order.
    fn rates(&self) -> Vec<Rates> {
        if let Some(listed) = &self.layout.listed {
            let backlog = |&route: &usize| {
                let Server { push, pull, .. } = &self.servers[route];
                let gradients = |queue: &Queue, part: fn(&Coding) -> f64| {
                    let part = queue.first().map_or(1.0, |unit| part(self.coding(unit)));
                    self.case.compression / part
                };
                let ways = [gradients(push, |c| c.contribution), gradients(pull, |c| c.answer)];
                let (push, pull) = (push.backlog as f64, pull.backlog as f64);
                Backlog { route, push, pull, gradients: ways }
            };
            let network = self.case.link_rate() / (listed.bandwidth_gbps * 1e9 / 8.0);
            let backlogs: Vec<Backlog> = self.active.iter().map(backlog).collect();
            return listed.routes.fair(network, &backlogs);
        }
        let gpus = self.active.iter().filter(|&&machine| machine < self.workers).count();
        let idle = (self.workers - gpus) as f64;
        let mut kinds = vec![WorkerClass { cpu: false, push: 0.0, pull: 0.0, count: idle }];
        let mut alike: HashMap<_, _, BuildHasherDefault<Mixer>> = HashMap::default();
        let mut kind_of = Vec::with_capacity(self.active.len());
        for &machine in &self.active {
            let server = &self.servers[machine];
            let (push, pull) = (server.push.backlog, server.pull.backlog);
            let cpu = machine >= self.workers;
            let index = *alike.entry((cpu, push, pull)).or_insert(kinds.len());
            match kinds.get_mut(index) {
                Some(kind) => kind.count += 1.0,
                None => {
                    let (push, pull) = (push as f64, pull as f64);
                    kinds.push(WorkerClass { cpu, push, pull, count: 1.0 });
                }
            }
            kind_of.push(index);
        }
        let rates = fair(self.workers as f64, self.case.link_rate(), &kinds);
        kind_of.into_iter().map(|kind| rates[kind]).collect()
    }

    /// Time to the next event; infinite when all is done.
    fn next_event(&self, rates: &[Rates]) -> f64 {
        let mut step = f64::INFINITY;
        if let Some(unit) = self.layout.units.get(self.unready) {
            step = self.profile.tensors()[unit.tensor].ready_s - self.now;
        }
        if let Some(Reverse((Moment(sum_s), _))) = self.sums.peek() {
            step = step.min(sum_s - self.now);
        }
        if let Some(done_s) = self.coder.next_s() {
            step = step.min(done_s - self.now);
        }
        for (&route, rates) in self.active.iter().zip(rates) {
            let server = &self.servers[route];
            if rates.push > 0.0 {
                step = step.min(server.push.head_bytes / rates.push);
            }
            if rates.pull > 0.0 {
                step = step.min(server.pull.head_bytes / rates.pull);
            }
        }
        if !self.waiting.is_empty() {
            step = step.min(self.room_in(rates));
        }
        step.max(0.0)
    }

    fn advance(&mut self, step: f64, rates: &[Rates]) {
        for (&route, rates) in self.active.iter().zip(rates) {
            let server = &mut self.servers[route];
            server.push.advance(rates.push * step);
            server.pull.advance(rates.pull * step);
        }
        self.now += step;
    }

    fn finish_transfers(&mut self) {
        let mut position = 0;
        while let Some(&route) = self.active.get(position) {
            let mut push = std::mem::take(&mut self.servers[route].push);
            let sent = push.pop(|unit| self.push_load(unit));
            self.servers[route].push = push;
            if let Some(unit) = sent {
                self.begin_sum(unit);
            }
            let mut pull = std::mem::take(&mut self.servers[route].pull);
            let received = pull.pop(|unit| self.pull_load(unit));
            self.servers[route].pull = pull;
            if let Some(unit) = received {
                let bytes = self.layout.units[unit].bytes as f64;
                match bytes * self.coding(unit).decode_s {
                    0.0 => self.complete(unit),
                    decode_s => self.coder.push(self.now, decode_s, Task::Decode(unit)),
                }
            }
            let server = &self.servers[route];
            if !server.push.is_empty() || !server.pull.is_empty() {
                position += 1;
            } else {
                self.servers[route].active = false;
                self.active.swap_remove(position);
            }
        }
    }

    /// All contributions to a unit have arrived: its sum will be there when they are added, by its
    /// hubs and then by its server.
    fn begin_sum(&mut self, unit: usize) {
        let Unit { machine, route, bytes, tensor } = self.layout.units[unit];
        let coding = self.profile.coding(tensor);
        let addition_s = match coding.add_s {
            Some(add_s) => bytes as f64 * add_s,
            None => self.profile.addition_s(bytes as f64),
        };
        let answer_s = bytes as f64 * coding.answer_s;
        // Each contribution is decoded, the first one as well.
        let first = if coding.add_s.is_some() { 1.0 } else { 0.0 };
        let own = [(machine, (self.workers - 1) as f64)];
        let adders = self.layout.listed.as_ref().map_or(&own[..], |of| of.routes.adders(route));
        let (mut arrived_s, mut sum_s) = (self.now, self.now);
        for &(adder, additions) in adders {
            if adder == machine {
                arrived_s = sum_s;
            }
            let adder_s = self.adders_free_s[adder].max(self.started[unit]);
            let additions = additions + first;
            let last_s = if additions > 0.0 { addition_s } else { 0.0 };
            let mut free_s = (adder_s + additions * addition_s).max(arrived_s + last_s);
            if let Some(rate) = self.case.update_bytes_per_s.filter(|_| adder == machine) {
                free_s += bytes as f64 / rate;
            }
            if adder == machine {
                free_s += answer_s;
            }
            self.adders_free_s[adder] = free_s;
            sum_s = sum_s.max(free_s);
        }
        if coding.works() && self.is_gpu(machine) {
            // Of as many partitions on GPU machines as there are of those, each has one.
            let server_s = self.workers as f64 * addition_s + answer_s;
            self.coder.occupy(self.now, server_s / self.workers as f64);
        }
        self.sums.push(Reverse((Moment(sum_s), unit)));
    }

    fn finish_sums(&mut self) {
        while let Some(&Reverse((Moment(sum_s), unit))) = self.sums.peek() {
            if sum_s > self.now {
                break;
            }
            self.sums.pop();
            let (route, load) = (self.layout.units[unit].route, self.pull_load(unit));
            self.activate(route);
            self.servers[route].pull.push(unit, load);
        }
    }

    fn activate(&mut self, route: usize) {
        if !std::mem::replace(&mut self.servers[route].active, true) {
            self.active.push(route);
        }
    }

    fn is_gpu(&self, machine: usize) -> bool {
        match &self.layout.listed {
            Some(listed) => listed.routes.is_gpu(machine),
            None => machine < self.workers,
        }
    }

    /// Whether contributions cross any link on their way.
    fn travels(&self, route: usize) -> bool {
        match &self.layout.listed {
            Some(listed) => listed.routes.travels(route),
            None => self.workers > usize::from(route < self.workers),
        }
    }
}
