//! Contributions that arrive: read from memory, as the kernel copies them out of a socket.

use std::ops::Range;

use sumpter_sum::{AlignedBuf, accumulate};
use sumpter_types::{Dtype, ReduceOp};

use crate::error::BenchError;
use crate::pattern::{Pattern, patterned};

/// Threads beyond this have no cores.
const MOST_THREADS: usize = 256;

/// A model in memory that several workers contribute to.
#[derive(Clone, Copy, Debug)]
pub struct MemorySpec {
    /// Threads that sum.
    pub threads: usize,
    /// Contributions to each sum.
    pub contributions: usize,
    /// Bytes of the model.
    pub bytes: usize,
    /// The unit of streaming.
    pub chunk_bytes: usize,
    /// Rounds to measure of each way, after one to warm up.
    pub rounds: usize,
}

impl MemorySpec {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Argument(text));
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return wrong(format!("threads: {} is not from 1 to {MOST_THREADS}", self.threads));
        }
        if !(2..=64).contains(&self.contributions) {
            let n = self.contributions;
            return wrong(format!("contributions: {n} is not from 2 to 64"));
        }
        if self.rounds == 0 {
            return wrong("rounds: 0 rounds measure nothing".to_owned());
        }
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(64) {
            return wrong(format!("chunks of {} bytes: no multiple of 64", self.chunk_bytes));
        }
        if self.bytes < self.chunk_bytes || !self.bytes.is_multiple_of(4) {
            let Self { bytes, chunk_bytes, .. } = self;
            return wrong(format!(
                "{bytes} bytes: not at least a chunk ({chunk_bytes}) of float32"
            ));
        }
        Ok(())
    }

    /// Where each chunk lies.
    pub(super) fn chunks(&self) -> Vec<Range<usize>> {
        let starts = (0..self.bytes).step_by(self.chunk_bytes);
        starts.map(|at| at..self.bytes.min(at + self.chunk_bytes)).collect()
    }

    /// Bytes of all contributions.
    pub(super) fn traffic(&self) -> f64 {
        (self.contributions * self.bytes) as f64
    }
}

/// What all workers contribute.
pub(super) struct Source {
    contributions: Vec<AlignedBuf>,
    expected: Pattern,
}

impl Source {
    pub(super) fn new(spec: &MemorySpec) -> Source {
        let scales = 1..=spec.contributions as u32;
        let expected = Pattern::new(scales.clone().sum());
        Source { contributions: scales.map(|s| patterned(spec.bytes, s)).collect(), expected }
    }

    /// A part of one contribution arrives in `target`.
    pub(super) fn receive(&self, worker: usize, range: Range<usize>, target: &mut [u8]) {
        target.copy_from_slice(&self.contributions[worker][range]);
    }

    /// Whether `sum` is the sum of all contributions.
    pub(super) fn check(&self, what: &str, sum: &[u8]) -> Result<(), BenchError> {
        match self.expected.differs_at(sum) {
            None => Ok(()),
            Some(at) => Err(BenchError::Wrong(format!("{what}: the sum differs from byte {at}"))),
        }
    }

    /// The first `bytes` of what every sum must be.
    pub(super) fn expected_bytes(&self, bytes: usize) -> AlignedBuf {
        let mut expected = AlignedBuf::new(bytes);
        self.expected.fill(&mut expected);
        expected
    }
}

/// `sum += x` of `f32`.
pub(super) fn add(sum: &mut [u8], x: &[u8]) {
    accumulate(ReduceOp::Sum, Dtype::F32, sum, x);
}
