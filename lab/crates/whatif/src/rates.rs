//! How fast connections go that share links.
//!
//! Queues in front of links are first in, first out, so a connection's part of a link is in
//! proportion to what it has queued: rates are max-min fair with the backlog as weight. A
//! connection that another link holds back leaves its part to the others.
//!
//! All workers push to one server at one rate `u` and pull from it at one rate `d`. With `U` and
//! `D` for the sums over all servers:
//!
//! | link of the server's machine | out | in |
//! |---|---|---|
//! | GPU machine | `U - u + (n-1) d` | `(n-1) u + D - d` |
//! | CPU machine | `n d` | `n u` |
//!
//! Machines of one role and backlog have the same constraints, and these rates are unique, so
//! they have the same rates: a [`WorkerClass`] stands for all of them.

/// Machines alike: their role and what each worker has queued to and from their servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WorkerClass {
    pub cpu: bool,
    /// Backlog of each worker's connection to the server.
    pub push: f64,
    /// Backlog of the server's connection to each worker.
    pub pull: f64,
    /// How many machines are alike.
    pub count: f64,
}

/// Bytes per second of one worker's connection with each machine of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub push: f64,
    pub pull: f64,
}

/// One way of a kind's connections: the rate once it is known, else it rises with the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    pub weight: f64,
    rate: Option<f64>,
}

impl Way {
    /// A way with so much queued.
    pub fn new(weight: f64) -> Self {
        Self { weight, rate: (weight == 0.0).then_some(0.0) }
    }

    /// Whether its rate still rises.
    pub fn rises(&self) -> bool {
        self.rate.is_none()
    }

    /// Fixes the rate at a level, if it rises.
    pub fn fix(&mut self, level: f64) {
        self.rate.get_or_insert(level * self.weight);
    }

    /// The rate; zero where it is not known.
    pub fn rate(&self) -> f64 {
        self.rate.unwrap_or(0.0)
    }

    /// Load per machine: what is fixed, and what each unit of the common level adds.
    pub fn load(&self, times: f64) -> (f64, f64) {
        match self.rate {
            Some(rate) => (times * rate, 0.0),
            None => (0.0, times * self.weight),
        }
    }
}

/// The rates of every kind, in order. Machines that do nothing are a kind as well. `rate` is that
/// of every link, each way.
pub(crate) fn fair(workers: f64, rate: f64, kinds: &[WorkerClass]) -> Vec<Rates> {
    let mut ways: Vec<[Way; 2]> =
        kinds.iter().map(|kind| [Way::new(kind.push), Way::new(kind.pull)]).collect();
    // Way 0 goes out of a worker and way 1 comes in; at a server it is the other way round.
    loop {
        let sums = [0, 1].map(|w| total(kinds, &ways, w));
        let mut full: Option<(f64, usize, usize)> = None;
        for (index, kind) in kinds.iter().enumerate().filter(|(_, kind)| kind.count > 0.0) {
            for out in [0, 1] {
                let (fixed, rising) = load(workers, kind, &ways[index], sums[out], out);
                if rising > 0.0 {
                    let level = ((rate - fixed) / rising).max(0.0);
                    if full.is_none_or(|(least, ..)| level < least) {
                        full = Some((level, index, out));
                    }
                }
            }
        }
        let Some((level, index, out)) = full else { break };
        fix(kinds, &mut ways, index, out, level);
    }
    ways.iter().map(|[push, pull]| Rates { push: push.rate(), pull: pull.rate() }).collect()
}

/// What a worker without a server sends (way 0) or receives (way 1).
fn total(kinds: &[WorkerClass], ways: &[[Way; 2]], way: usize) -> (f64, f64) {
    let loads = kinds.iter().zip(ways).map(|(kind, ways)| ways[way].load(kind.count));
    loads.fold((0.0, 0.0), |sum, load| (sum.0 + load.0, sum.1 + load.1))
}

/// Load of a machine's link, out (0) or in (1).
fn load(
    workers: f64,
    kind: &WorkerClass,
    ways: &[Way; 2],
    sum: (f64, f64),
    out: usize,
) -> (f64, f64) {
    if kind.cpu {
        return ways[1 - out].load(workers);
    }
    let (own, others) = (ways[out].load(1.0), ways[1 - out].load(workers - 1.0));
    (sum.0 - own.0 + others.0, sum.1 - own.1 + others.1)
}

/// Fixes everything that rises on a link which is full at a level.
fn fix(kinds: &[WorkerClass], ways: &mut [[Way; 2]], full: usize, out: usize, level: f64) {
    ways[full][1 - out].fix(level);
    if !kinds[full].cpu {
        for (index, (kind, ways)) in kinds.iter().zip(ways.iter_mut()).enumerate() {
            if index != full || kind.count > 1.0 {
                ways[out].fix(level);
            }
        }
    }
}
