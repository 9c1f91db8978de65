//! Training in virtual time: what each layer computes is a wait, its gradients are summed by the
//! engine. So the order of sums, and what the next forward pass waits for, can be compared at the
//! true sizes and rates, to the last digit the same every time.

use std::collections::HashSet;

use sumpter_engine::OpId;

use crate::job::{Job, Setup};

/// A layer: seconds of its forward and backward pass; its tensor is that of the same index, and may
/// be empty.
#[derive(Clone, Copy)]
pub struct Layer {
    pub forward: f64,
    pub backward: f64,
}

/// How sums are ordered, and what a forward pass waits for.
#[derive(Clone, Copy)]
pub struct Way {
    /// The first layer first; else as gradients get ready.
    pub urgent_first: bool,
    /// Each layer waits for its own gradient; else the first waits for all.
    pub overlap: bool,
}

/// A worker's compute.
struct Player {
    /// The layer under way, and whether backward.
    layer: usize,
    backward: bool,
    /// It waits for sums, not for its compute.
    waits: bool,
    under_way: Vec<Option<OpId>>,
    begun: Vec<f64>,
}

struct Replay<'a> {
    job: Job,
    tensors: &'a [usize],
    layers: &'a [Layer],
    way: Way,
    paces: Vec<f64>,
    jitter: f64,
    random: fastrand::Rng,
    players: Vec<Player>,
}

/// How ranks differ in what they take for a layer, as parts of it.
#[derive(Clone, Copy)]
pub struct Uneven {
    /// By how much each layer varies, at random.
    pub jitter: f64,
    /// By how much the first rank is faster than the last one; those between are in steps.
    pub skew: f64,
}

/// Plays so many iterations and one before; returns the mean seconds of those that count.
pub fn play(setup: &Setup, layers: &[Layer], way: Way, iterations: usize, uneven: Uneven) -> f64 {
    let fresh = |_| Player {
        layer: 0,
        backward: false,
        waits: true,
        under_way: vec![None; layers.len()],
        begun: Vec::new(),
    };
    let mut replay = Replay {
        job: Job::new(setup),
        tensors: &setup.tensors,
        layers,
        way,
        paces: (0..setup.workers).map(|rank| pace(rank, setup.workers, uneven.skew)).collect(),
        jitter: uneven.jitter,
        random: fastrand::Rng::with_seed(7),
        players: (0..setup.workers).map(fresh).collect(),
    };
    (0..setup.workers).for_each(|rank| replay.go_on(rank));
    while replay.players.iter().any(|player| player.begun.len() < iterations + 2) {
        if let Some(rank) = replay.job.step() {
            replay.computed(rank);
        }
        replay.look_at_sums();
    }
    let mean = |p: &Player| (p.begun[iterations + 1] - p.begun[1]) / iterations as f64;
    replay.players.iter().map(mean).sum::<f64>() / setup.workers as f64
}

/// The last rank's is 1.
fn pace(rank: usize, ranks: usize, skew: f64) -> f64 {
    let behind = (ranks - 1 - rank) as f64 / (ranks - 1).max(1) as f64;
    1.0 - skew * behind
}

impl Replay<'_> {
    fn compute(&mut self, rank: usize, seconds: f64) {
        let varied = seconds * (1.0 + self.jitter * (2.0 * self.random.f64() - 1.0));
        self.job.net.wake(rank, varied * self.paces[rank]);
    }

    /// Begins a layer's forward pass if what it needs is there.
    fn go_on(&mut self, rank: usize) {
        let player = &mut self.players[rank];
        let missing = |layer: usize| player.under_way[layer].is_some();
        let for_all = player.layer == 0 && !self.way.overlap;
        let waits =
            if for_all { (0..self.layers.len()).any(missing) } else { missing(player.layer) };
        player.waits = waits;
        if !waits {
            if player.layer == 0 {
                player.begun.push(self.job.net.now);
            }
            let layer = player.layer;
            self.compute(rank, self.layers[layer].forward);
        }
    }

    /// A worker has computed what it was at.
    fn computed(&mut self, rank: usize) {
        let (layers, player) = (self.layers, &mut self.players[rank]);
        let layer = player.layer;
        if !player.backward && layer + 1 < layers.len() {
            player.layer += 1;
            self.go_on(rank);
        } else if !player.backward {
            player.backward = true;
            self.compute(rank, layers[layer].backward);
        } else {
            let priority = if self.way.urgent_first { -(layer as i32) } else { 0 };
            if self.tensors[layer] > 0 {
                player.under_way[layer] =
                    Some(self.job.submit(rank, layer, self.tensors[layer], priority));
            }
            if layer > 0 {
                player.layer -= 1;
                self.compute(rank, layers[layer - 1].backward);
            } else {
                (player.backward, player.waits) = (false, true);
            }
            self.job.settle(rank);
        }
    }

    fn look_at_sums(&mut self) {
        let done: HashSet<(usize, OpId)> = self.job.done.drain(..).collect();
        if done.is_empty() {
            return;
        }
        for rank in 0..self.players.len() {
            let player = &mut self.players[rank];
            for op in &mut player.under_way {
                if op.is_some_and(|op| done.contains(&(rank, op))) {
                    *op = None;
                }
            }
            if player.waits && !player.backward {
                self.go_on(rank);
            }
        }
    }
}
