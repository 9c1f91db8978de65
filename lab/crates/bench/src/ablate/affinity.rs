//! Which core handles a contribution: the lane that owns its key, without locks, or the core that
//! owns the worker's connection, which then adds to sums that all cores share.

use std::sync::{Mutex, PoisonError};
use std::thread;

use sumpter_sum::AlignedBuf;

use super::aggregation::timed;
use super::source::{MemorySpec, Source, add};
use crate::error::BenchError;

/// One round of both ways: bytes of contributions aggregated a second.
#[derive(Clone, Copy, Debug)]
pub struct AffinitySample {
    /// A chunk belongs to a core.
    pub key_to_lane_bytes_per_s: f64,
    /// A worker belongs to a core; a lock for each chunk.
    pub worker_to_lane_bytes_per_s: f64,
}

/// A chunk's sum and the contributions in it.
#[derive(Default)]
struct Chunk {
    sum: AlignedBuf,
    summed: usize,
}

impl Chunk {
    fn take(&mut self, contribution: &[u8]) {
        match self.summed {
            0 => self.sum.copy_from_slice(contribution),
            _ => add(&mut self.sum, contribution),
        }
        self.summed += 1;
    }
}

/// Measures both ways.
///
/// # Errors
/// [`BenchError`]; a wrong sum is one.
pub fn affinity(
    spec: &MemorySpec,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<AffinitySample>, BenchError> {
    spec.check()?;
    let source = Source::new(spec);
    let new =
        |range: std::ops::Range<usize>| Chunk { sum: AlignedBuf::new(range.len()), summed: 0 };
    let mut chunks: Vec<Mutex<Chunk>> =
        spec.chunks().into_iter().map(|range| Mutex::new(new(range))).collect();
    let mut samples = Vec::new();
    for round in 0..=spec.rounds {
        if progress() {
            return Err(BenchError::Interrupted);
        }
        let by_key = timed(|| key_to_lane(spec, &source, &mut chunks));
        verify(spec, &source, "key to lane", &mut chunks)?;
        let by_worker = timed(|| worker_to_lane(spec, &source, &chunks));
        verify(spec, &source, "worker to lane", &mut chunks)?;
        if round > 0 {
            samples.push(AffinitySample {
                key_to_lane_bytes_per_s: spec.traffic() / by_key,
                worker_to_lane_bytes_per_s: spec.traffic() / by_worker,
            });
        }
    }
    Ok(samples)
}

fn key_to_lane(spec: &MemorySpec, source: &Source, chunks: &mut [Mutex<Chunk>]) {
    let mut owned: Vec<Vec<_>> = (0..spec.threads).map(|_| Vec::new()).collect();
    for (index, (range, chunk)) in spec.chunks().into_iter().zip(chunks).enumerate() {
        let chunk = chunk.get_mut().unwrap_or_else(PoisonError::into_inner);
        owned[index % spec.threads].push((range, chunk));
    }
    thread::scope(|scope| {
        for chunks in owned {
            scope.spawn(move || {
                let mut scratch = AlignedBuf::new(spec.chunk_bytes);
                for (range, chunk) in chunks {
                    let scratch = &mut scratch[..range.len()];
                    for worker in 0..spec.contributions {
                        source.receive(worker, range.clone(), scratch);
                        chunk.take(scratch);
                    }
                }
            });
        }
    });
}

fn worker_to_lane(spec: &MemorySpec, source: &Source, chunks: &[Mutex<Chunk>]) {
    let ranges = spec.chunks();
    thread::scope(|scope| {
        for thread in 0..spec.threads {
            let ranges = &ranges;
            scope.spawn(move || {
                let mut scratch = AlignedBuf::new(spec.chunk_bytes);
                for (range, chunk) in ranges.iter().zip(chunks) {
                    let scratch = &mut scratch[..range.len()];
                    for worker in (thread..spec.contributions).step_by(spec.threads) {
                        source.receive(worker, range.clone(), scratch);
                        chunk.lock().unwrap_or_else(PoisonError::into_inner).take(scratch);
                    }
                }
            });
        }
    });
}

/// Compares all sums, spoils them and begins anew.
fn verify(
    spec: &MemorySpec,
    source: &Source,
    what: &str,
    chunks: &mut [Mutex<Chunk>],
) -> Result<(), BenchError> {
    let expected = source.expected_bytes(spec.bytes);
    for (range, chunk) in spec.chunks().into_iter().zip(chunks) {
        let chunk = chunk.get_mut().unwrap_or_else(PoisonError::into_inner);
        if chunk.summed != spec.contributions || *chunk.sum != expected[range.clone()] {
            return Err(BenchError::Wrong(format!("{what}: the sum of bytes {range:?} is wrong")));
        }
        chunk.sum.fill(0xff);
        chunk.summed = 0;
    }
    Ok(())
}
