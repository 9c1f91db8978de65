//! What waits: partitions in front of links, and those that a worker's codec handles.

use std::collections::VecDeque;

/// What is left of a transfer after rounding, as a part of it.
pub(crate) const ROUNDING: f64 = 1e-9;

/// A partition in front of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Its bytes before an ideal compression divides them: whole numbers, so that queues with the
    /// same partitions are recognised.
    pub weight: u64,
    /// Its bytes on the link.
    pub bytes: f64,
}

/// One direction of all workers' connections with one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    units: VecDeque<usize>,
    /// What is left of the first.
    pub head_bytes: f64,
    /// What is left of all.
    pub bytes: f64,
    /// Weights of all, the first one in full.
    pub backlog: u64,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    pub fn first(&self) -> Option<usize> {
        self.units.front().copied()
    }

    pub fn push(&mut self, unit: usize, load: Load) {
        if self.units.is_empty() {
            self.head_bytes = load.bytes;
        }
        self.units.push_back(unit);
        self.bytes += load.bytes;
        self.backlog += load.weight;
    }

    pub fn advance(&mut self, bytes: f64) {
        self.head_bytes -= bytes;
        self.bytes = (self.bytes - bytes).max(0.0);
    }

    /// The first, if it has been sent.
    pub fn pop(&mut self, load: impl Fn(usize) -> Load) -> Option<usize> {
        let left = self.head_bytes;
        let unit = self.units.pop_front_if(|unit| left <= load(*unit).bytes * ROUNDING)?;
        match self.units.front() {
            Some(&next) => {
                self.head_bytes = load(next).bytes;
                self.backlog -= load(unit).weight;
            }
            None => *self = Self::default(),
        }
        Some(unit)
    }
}

/// What a worker's codec does with a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Task {
    /// Encodes a contribution, of so many bytes on the link.
    Encode(usize, f64),
    /// Decodes a sum.
    Decode(usize),
}

/// The codec of every worker: one task after another.
#[derive(Debug, Default)]
pub(crate) struct Coder {
    tasks: VecDeque<(f64, Task)>,
    free_s: f64,
    encoding: usize,
    /// Bytes of contributions that are not encoded yet.
    pub encoding_bytes: f64,
}

impl Coder {
    pub fn push(&mut self, now: f64, seconds: f64, task: Task) {
        self.occupy(now, seconds);
        if let Task::Encode(_, bytes) = task {
            self.encoding += 1;
            self.encoding_bytes += bytes;
        }
        self.tasks.push_back((self.free_s, task));
    }

    /// The cores do something else after what they have to do already.
    pub fn occupy(&mut self, now: f64, seconds: f64) {
        self.free_s = self.free_s.max(now) + seconds;
    }

    /// When the next task is done.
    pub fn next_s(&self) -> Option<f64> {
        self.tasks.front().map(|(done_s, _)| *done_s)
    }

    /// The first task, if it is done.
    pub fn pop(&mut self, now: f64) -> Option<Task> {
        let (_, task) = self.tasks.pop_front_if(|(done_s, _)| *done_s <= now)?;
        if let Task::Encode(_, bytes) = task {
            self.encoding -= 1;
            // Rounding leaves nothing once all are encoded.
            self.encoding_bytes = match self.encoding {
                0 => 0.0,
                _ => (self.encoding_bytes - bytes).max(0.0),
            };
        }
        Some(task)
    }
}
