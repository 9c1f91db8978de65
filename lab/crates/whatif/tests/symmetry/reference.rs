//! The same exchange of gradients without any reduction: every machine has its links, every
//! sender its connections, and every rate is found on all links. Slow and plain, for small `n`.
//!
//! Senders are groups of workers that send in step. With one group of all workers it is what the
//! crate claims to compute; with a group for each worker every worker goes its own way.

use std::collections::VecDeque;

use sumpter_whatif::{Case, Layout, Order, Profile};

struct Flow {
    machine: usize,
    group: usize,
    /// Direction: to the server, or back.
    pull: bool,
    /// Loads: a link and how often a byte of the flow crosses it.
    links: Vec<(usize, f64)>,
    queue: VecDeque<(usize, f64)>,
}

impl Flow {
    fn left(&self) -> f64 {
        self.queue.iter().map(|(_, left)| left).sum()
    }
}

pub struct Reference<'a> {
    profile: &'a Profile,
    layout: &'a Layout,
    case: &'a Case,
    groups: Vec<Vec<usize>>,
    flows: Vec<Flow>,
    /// Units each group has not begun, or has not ready yet.
    waiting: Vec<Vec<usize>>,
    missing: Vec<usize>,
    started: Vec<f64>,
    adder_free: Vec<f64>,
    sums: Vec<(f64, usize)>,
    done: Vec<f64>,
    now: f64,
}

impl<'a> Reference<'a> {
    pub fn new(
        profile: &'a Profile,
        layout: &'a Layout,
        case: &'a Case,
        groups: Vec<Vec<usize>>,
    ) -> Self {
        let machines = (case.workers + case.servers) as usize;
        let mut flows = Vec::new();
        for machine in 0..machines {
            for (group, members) in groups.iter().enumerate() {
                let members: Vec<_> = members.iter().filter(|&&m| m != machine).collect();
                if members.is_empty() {
                    continue;
                }
                // Link 2m goes out of machine m, 2m + 1 into it.
                let push = members.iter().map(|&&m| (2 * m, 1.0));
                let push = push.chain([(2 * machine + 1, members.len() as f64)]).collect();
                let pull = members.iter().map(|&&m| (2 * m + 1, 1.0));
                let pull = pull.chain([(2 * machine, members.len() as f64)]).collect();
                for (pull, links) in [(false, push), (true, pull)] {
                    flows.push(Flow { machine, group, pull, links, queue: VecDeque::new() });
                }
            }
        }
        let mut order: Vec<usize> = (0..layout.units.len()).collect();
        if case.order() == Order::Forward {
            order.sort_by_key(|&unit| (layout.units[unit].tensor, unit));
        }
        let senders = |machine| flows.iter().filter(|f| f.machine == machine && !f.pull).count();
        Self {
            missing: layout.units.iter().map(|unit| senders(unit.machine)).collect(),
            waiting: vec![order; groups.len()],
            started: vec![f64::INFINITY; layout.units.len()],
            adder_free: vec![0.0; machines],
            sums: Vec::new(),
            done: profile.tensors().iter().map(|tensor| tensor.ready_s).collect(),
            now: 0.0,
            profile,
            layout,
            case,
            groups,
            flows,
        }
    }

    pub fn run(mut self) -> Vec<f64> {
        loop {
            for group in 0..self.groups.len() {
                self.admit(group);
            }
            let rates = self.rates();
            let step = self.step(&rates);
            if step.is_infinite() {
                return self.done;
            }
            self.now += step;
            for (flow, rate) in self.flows.iter_mut().zip(&rates) {
                if let Some(head) = flow.queue.front_mut() {
                    head.1 -= rate * step;
                }
            }
            self.finish();
        }
    }

    fn ready_s(&self, unit: usize) -> f64 {
        self.profile.tensors()[self.layout.units[unit].tensor].ready_s
    }

    fn wire_bytes(&self, unit: usize) -> f64 {
        self.layout.units[unit].bytes as f64 / self.case.compression
    }

    fn unsent(&self, group: usize) -> f64 {
        let pushes = self.flows.iter().filter(|flow| flow.group == group && !flow.pull);
        pushes.map(|flow| (flow.left() - self.case.window_bytes as f64).max(0.0)).sum()
    }

    fn admit(&mut self, group: usize) {
        while self.unsent(group) <= self.case.credit_bytes as f64 * (1.0 + 1e-9) {
            let ready = |&unit: &usize| self.ready_s(unit) <= self.now + 1e-15;
            let Some(position) = self.waiting[group].iter().position(ready) else { return };
            let unit = self.waiting[group].remove(position);
            let (machine, bytes) = (self.layout.units[unit].machine, self.wire_bytes(unit));
            self.started[unit] = self.started[unit].min(self.now);
            let push =
                |flow: &&mut Flow| flow.machine == machine && flow.group == group && !flow.pull;
            if let Some(flow) = self.flows.iter_mut().find(push) {
                flow.queue.push_back((unit, bytes));
            }
        }
    }

    /// All rates rise in proportion to what is queued until a link is full, which fixes its flows.
    fn rates(&self) -> Vec<f64> {
        let size = |&(unit, _): &(usize, f64)| self.layout.units[unit].bytes as f64;
        let weights: Vec<f64> =
            self.flows.iter().map(|flow| flow.queue.iter().map(size).sum()).collect();
        let mut rates: Vec<Option<f64>> =
            weights.iter().map(|&weight| (weight == 0.0).then_some(0.0)).collect();
        while rates.iter().any(Option::is_none) {
            let mut fixed = vec![0.0; 2 * self.adder_free.len()];
            let mut rising = fixed.clone();
            for ((flow, weight), rate) in self.flows.iter().zip(&weights).zip(&rates) {
                for &(link, times) in &flow.links {
                    match rate {
                        Some(rate) => fixed[link] += times * rate,
                        None => rising[link] += times * weight,
                    }
                }
            }
            let level = |link: usize| (self.case.link_rate() - fixed[link]).max(0.0) / rising[link];
            let rises = (0..fixed.len()).filter(|&link| rising[link] > 0.0);
            let full = rises.min_by(|&a, &b| level(a).total_cmp(&level(b))).expect("a flow rises");
            for ((flow, weight), rate) in self.flows.iter().zip(&weights).zip(&mut rates) {
                if flow.links.iter().any(|&(link, _)| link == full) {
                    rate.get_or_insert(weight * level(full));
                }
            }
        }
        rates.into_iter().flatten().collect()
    }

    fn step(&self, rates: &[f64]) -> f64 {
        let mut step = f64::INFINITY;
        for (flow, rate) in self.flows.iter().zip(rates) {
            if let Some((_, left)) = flow.queue.front() {
                step = step.min(left / rate);
            }
        }
        for &(sum_s, _) in &self.sums {
            step = step.min(sum_s - self.now);
        }
        for group in 0..self.groups.len() {
            let later = |&&unit: &&usize| self.ready_s(unit) > self.now + 1e-15;
            for unit in self.waiting[group].iter().filter(later) {
                step = step.min(self.ready_s(*unit) - self.now);
            }
            if self.waiting[group].iter().any(|unit| !later(&unit)) {
                step = step.min(self.room_in(group, rates));
            }
        }
        step.max(0.0)
    }

    /// When what is unsent falls to the credit: between two moments at which it changes slope.
    fn room_in(&self, group: usize, rates: &[f64]) -> f64 {
        let pushes: Vec<(f64, f64)> = self
            .flows
            .iter()
            .zip(rates)
            .filter(|(flow, _)| flow.group == group && !flow.pull)
            .map(|(flow, rate)| (flow.left() - self.case.window_bytes as f64, *rate))
            .filter(|(left, _)| *left > 0.0)
            .collect();
        let unsent = |step: f64| pushes.iter().map(|(l, r)| (l - r * step).max(0.0)).sum::<f64>();
        let mut corners: Vec<f64> = pushes.iter().map(|(left, rate)| left / rate).collect();
        corners.sort_by(f64::total_cmp);
        let (mut before, credit) = (0.0, self.case.credit_bytes as f64);
        for corner in corners {
            if unsent(corner) <= credit {
                let fall = (unsent(before) - unsent(corner)) / (corner - before);
                return before + (unsent(before) - credit) / fall;
            }
            before = corner;
        }
        unreachable!("at the last corner nothing is unsent")
    }

    fn finish(&mut self) {
        let mut arrived = Vec::new();
        for index in 0..self.flows.len() {
            let Some(&(unit, left)) = self.flows[index].queue.front() else { continue };
            if left > self.wire_bytes(unit) * 1e-9 {
                continue;
            }
            self.flows[index].queue.pop_front();
            if self.flows[index].pull {
                let done = &mut self.done[self.layout.units[unit].tensor];
                *done = done.max(self.now);
            } else {
                self.missing[unit] -= 1;
                arrived.extend((self.missing[unit] == 0).then_some(unit));
            }
        }
        for unit in arrived {
            let one_s = self.profile.addition_s(self.layout.units[unit].bytes as f64);
            let one_s = if self.case.workers > 1 { one_s } else { 0.0 };
            let free = &mut self.adder_free[self.layout.units[unit].machine];
            let all_s = f64::from(self.case.workers - 1) * one_s;
            *free = (free.max(self.started[unit]) + all_s).max(self.now + one_s);
            self.sums.push((*free, unit));
        }
        let now = self.now;
        self.sums.sort_by(|a, b| a.0.total_cmp(&b.0));
        let made = self.sums.partition_point(|&(sum_s, _)| sum_s <= now + 1e-15);
        for (_, unit) in self.sums.drain(..made).collect::<Vec<_>>() {
            let (machine, bytes) = (self.layout.units[unit].machine, self.wire_bytes(unit));
            for flow in self.flows.iter_mut().filter(|flow| flow.machine == machine && flow.pull) {
                flow.queue.push_back((unit, bytes));
            }
        }
    }
}
