//! A network of links with a rate, in virtual time: what of the optimum the engine reaches where
//! processors cost nothing and nothing disturbs.
//!
//! Each machine has one link to a switch that has no limits of its own; each direction of a link
//! is a queue that is served in order at the link's rate. Machines may be in racks: each rack then
//! has a switch, and a *trunk* joins it to the core; the trunk's directions are such queues too,
//! which all connections between racks share. A connection behaves like TCP without losses on such
//! a network: a kernel that takes a little more than it can send, and a window of bytes that may be
//! under way until the receiver has them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Seconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Machine that sends.
    pub from: usize,
    /// Machine that receives.
    pub to: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Bytes of a segment, which the queues do not cut.
    pub segment: usize,
    /// Bytes that may be on their way in one direction of a connection.
    pub window: usize,
    /// Bytes that a sender's kernel holds and has not sent.
    pub unsent: usize,
    /// Seconds from a link's end to the other side, each way, however many trunks are between.
    pub latency: f64,
}

/// Which machines share a trunk.
#[derive(Clone, Debug, Default)]
pub struct Racks {
    /// The rack of each machine; empty where all are on one switch.
    pub of: Vec<usize>,
    /// Bytes a second of each rack's trunk, each way. One of infinite rate takes no time.
    pub trunks: Vec<f64>,
}

struct Pipe {
    way: Way,
    unsent: VecDeque<u8>,
    under_way: usize,
}

struct Segment {
    pipe: usize,
    bytes: Vec<u8>,
}

struct Queue {
    rate: f64,
    waiting: VecDeque<Segment>,
    served: u64,
}

enum Event {
    /// A link's direction has carried the segment at its head.
    Served(usize),
    /// A segment reaches the receiver's link.
    Reached(Segment),
    /// The sender learns that bytes have arrived.
    Acknowledged(usize, usize),
    /// A deadline of an endpoint.
    Due(usize),
}

/// The network; directions of links are numbered `2 m` (up) and `2 m + 1` (down), those of trunks
/// follow in the same way.
pub struct Net {
    model: Model,
    rack_of: Vec<usize>,
    machines: usize,
    pipes: Vec<Pipe>,
    queues: Vec<Queue>,
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    slots: Vec<Option<Event>>,
    scheduled: u64,
    pub now: f64,
}

/// What the driver has to do next.
pub enum Next {
    /// Give a pipe's receiver these bytes.
    Arrived(usize, Vec<u8>),
    /// The sender of a pipe may have room again.
    Room(usize),
    /// The time has come that this one asked for.
    Due(usize),
    Nothing,
}

impl Net {
    pub fn new(model: Model, rates: &[f64], racks: &Racks) -> Net {
        assert!(racks.of.is_empty() || racks.of.len() == rates.len(), "a rack for each machine");
        let queue = |rate: &f64| Queue { rate: *rate, waiting: VecDeque::new(), served: 0 };
        let links = rates.iter().chain(&racks.trunks);
        Net {
            model,
            rack_of: racks.of.clone(),
            machines: rates.len(),
            pipes: Vec::new(),
            queues: links.flat_map(|rate| [queue(rate), queue(rate)]).collect(),
            events: BinaryHeap::new(),
            slots: Vec::new(),
            scheduled: 0,
            now: 0.0,
        }
    }

    pub fn connect(&mut self, way: Way) -> usize {
        self.pipes.push(Pipe { way, unsent: VecDeque::new(), under_way: 0 });
        self.pipes.len() - 1
    }

    /// Bytes that the sender's kernel would take now.
    pub fn room(&self, pipe: usize) -> usize {
        self.model.unsent.saturating_sub(self.pipes[pipe].unsent.len())
    }

    pub fn send(&mut self, pipe: usize, bytes: &[u8]) {
        self.pipes[pipe].unsent.extend(bytes);
    }

    /// Hands segments to the link, as far as the window goes.
    pub fn push(&mut self, pipe: usize) {
        loop {
            let Pipe { way, unsent, under_way } = &mut self.pipes[pipe];
            let n = self.model.segment.min(unsent.len()).min(self.model.window - *under_way);
            if n == 0 {
                return;
            }
            *under_way += n;
            let (first, second) = unsent.as_slices();
            let head = n.min(first.len());
            let bytes = [&first[..head], &second[..n - head]].concat();
            unsent.drain(..n);
            let queue = 2 * way.from;
            self.enqueue(queue, Segment { pipe, bytes });
        }
    }

    pub fn next(&mut self) -> Next {
        let Some(Reverse((Time(now), _, slot))) = self.events.pop() else { return Next::Nothing };
        self.now = now;
        match self.slots[slot].take().expect("an event happens once") {
            Event::Served(index) => {
                let queue = &mut self.queues[index];
                let segment = queue.waiting.pop_front().expect("what was served");
                queue.served += segment.bytes.len() as u64;
                self.serve(index);
                let Way { from, to } = self.pipes[segment.pipe].way;
                if index == 2 * to + 1 {
                    let (pipe, n) = (segment.pipe, segment.bytes.len());
                    self.schedule(self.model.latency, Event::Acknowledged(pipe, n));
                    return Next::Arrived(pipe, segment.bytes);
                }
                if index == 2 * from {
                    self.schedule(self.model.latency, Event::Reached(segment));
                } else {
                    self.forward(index, segment);
                }
                self.next()
            }
            Event::Reached(segment) => {
                self.forward(2 * self.pipes[segment.pipe].way.from, segment);
                self.next()
            }
            Event::Due(who) => Next::Due(who),
            Event::Acknowledged(pipe, n) => {
                self.pipes[pipe].under_way -= n;
                self.push(pipe);
                Next::Room(pipe)
            }
        }
    }

    /// Wakes `who` after so many seconds.
    pub fn wake(&mut self, who: usize, after: f64) {
        self.schedule(after, Event::Due(who));
    }

    /// Bytes carried so far by each direction of each machine's link.
    pub fn carried(&self) -> Vec<u64> {
        self.queues[..2 * self.machines].iter().map(|queue| queue.served).collect()
    }

    /// Bytes carried so far by each direction of each trunk: out of the rack, then into it.
    pub fn crossed(&self) -> Vec<u64> {
        self.queues[2 * self.machines..].iter().map(|queue| queue.served).collect()
    }

    /// Hands a segment that has left a queue to the next one on its way.
    fn forward(&mut self, after: usize, segment: Segment) {
        let Way { from, to } = self.pipes[segment.pipe].way;
        let trunk = |machine: usize| 2 * (self.machines + self.rack_of[machine]);
        let stays = self.rack_of.is_empty() || self.rack_of[from] == self.rack_of[to];
        let next = match after {
            _ if stays => 2 * to + 1,
            _ if after == 2 * from => trunk(from),
            _ if after == trunk(from) => trunk(to) + 1,
            _ => 2 * to + 1,
        };
        if self.queues[next].rate.is_infinite() {
            self.queues[next].served += segment.bytes.len() as u64;
            return self.forward(next, segment);
        }
        self.enqueue(next, segment);
    }

    fn enqueue(&mut self, index: usize, segment: Segment) {
        self.queues[index].waiting.push_back(segment);
        if self.queues[index].waiting.len() == 1 {
            self.serve(index);
        }
    }

    fn serve(&mut self, index: usize) {
        if let Some(segment) = self.queues[index].waiting.front() {
            let seconds = segment.bytes.len() as f64 / self.queues[index].rate;
            self.schedule(seconds, Event::Served(index));
        }
    }

    fn schedule(&mut self, after: f64, event: Event) {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(event);
        self.scheduled += 1;
        self.events.push(Reverse((Time(self.now + after), self.scheduled, slot)));
    }
}
