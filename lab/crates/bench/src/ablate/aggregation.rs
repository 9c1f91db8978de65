//! Tall against wide aggregation, in PHub's words.
//!
//! Tall: each core owns chunks of the model; it receives every contribution to a chunk and adds
//! it while it is in that core's cache. Wide: all cores gang on one buffer after the other; a
//! contribution was received by whichever core, each core adds a part of it, and all wait for
//! each other before the next buffer.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use sumpter_sum::AlignedBuf;

use super::source::{MemorySpec, Source, add};
use crate::error::BenchError;

/// One round of both ways: bytes of contributions aggregated a second.
#[derive(Clone, Copy, Debug)]
pub struct AggregationSample {
    /// Each core its chunks.
    pub tall_bytes_per_s: f64,
    /// All cores one buffer after the other.
    pub wide_bytes_per_s: f64,
}

/// Measures both ways; wide in buffers of `buffer_bytes`.
///
/// # Errors
/// [`BenchError`]; a wrong sum is one.
pub fn aggregation(
    spec: &MemorySpec,
    buffer_bytes: usize,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<AggregationSample>, BenchError> {
    spec.check()?;
    let least = 64 * spec.threads;
    if buffer_bytes < least {
        return Err(BenchError::Argument(format!(
            "buffers of {buffer_bytes} bytes: {} threads need at least {least}",
            spec.threads
        )));
    }
    let source = Source::new(spec);
    let mut sum = AlignedBuf::new(spec.bytes);
    let mut samples = Vec::new();
    for round in 0..=spec.rounds {
        if progress() {
            return Err(BenchError::Interrupted);
        }
        let tall_s = timed(|| tall(spec, &source, &mut sum));
        source.check("tall", &sum)?;
        sum.fill(0xff);
        let wide_s = timed(|| wide(spec, buffer_bytes, &source, &mut sum));
        source.check("wide", &sum)?;
        sum.fill(0xff);
        if round > 0 {
            let (tall, wide) = (spec.traffic() / tall_s, spec.traffic() / wide_s);
            samples.push(AggregationSample { tall_bytes_per_s: tall, wide_bytes_per_s: wide });
        }
    }
    Ok(samples)
}

pub(super) fn timed(body: impl FnOnce()) -> f64 {
    let started = Instant::now();
    body();
    started.elapsed().as_secs_f64()
}

fn tall(spec: &MemorySpec, source: &Source, sum: &mut [u8]) {
    let mut owned: Vec<Vec<_>> = (0..spec.threads).map(|_| Vec::new()).collect();
    let chunks = spec.chunks().into_iter().zip(sum.chunks_mut(spec.chunk_bytes));
    for (index, chunk) in chunks.enumerate() {
        owned[index % spec.threads].push(chunk);
    }
    thread::scope(|scope| {
        for chunks in owned {
            scope.spawn(move || {
                let mut scratch = AlignedBuf::new(spec.chunk_bytes);
                for (range, sum) in chunks {
                    // The first contribution's buffer becomes the sum, as in a lane.
                    source.receive(0, range.clone(), sum);
                    let scratch = &mut scratch[..range.len()];
                    for worker in 1..spec.contributions {
                        source.receive(worker, range.clone(), scratch);
                        add(sum, scratch);
                    }
                }
            });
        }
    });
}

/// A thread's part of one buffer of the model: where it starts and its sum.
type Part<'a> = (usize, &'a mut [u8]);

fn wide(spec: &MemorySpec, buffer_bytes: usize, source: &Source, sum: &mut [u8]) {
    let threads = spec.threads;
    let part_bytes = buffer_bytes.div_ceil(threads).next_multiple_of(64);
    let mut owned: Vec<Vec<Part<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    let mut start = 0;
    for buffer in sum.chunks_mut(part_bytes * threads) {
        let mut parts = buffer.chunks_mut(part_bytes);
        for parts_of_thread in &mut owned {
            let part = parts.next().unwrap_or_default();
            let len = part.len();
            parts_of_thread.push((start, part));
            start += len;
        }
    }
    let starts: Vec<Vec<(usize, usize)>> =
        owned.iter().map(|parts| parts.iter().map(|(at, p)| (*at, p.len())).collect()).collect();
    let received: Vec<_> = (0..threads).map(|_| Mutex::new(AlignedBuf::new(part_bytes))).collect();
    let together = Barrier::new(threads);
    thread::scope(|scope| {
        for (thread, mut parts) in owned.into_iter().enumerate() {
            let (starts, received, together) = (&starts, &received, &together);
            scope.spawn(move || {
                // Another core than the one that adds a part has received it.
                let other = (thread + 1) % threads;
                for worker in 0..spec.contributions {
                    for (buffer, (_, sum)) in parts.iter_mut().enumerate() {
                        let (at, len) = starts[other][buffer];
                        source.receive(worker, at..at + len, &mut lock(&received[other])[..len]);
                        together.wait();
                        let contribution = lock(&received[thread]);
                        match worker {
                            0 => sum.copy_from_slice(&contribution[..sum.len()]),
                            _ => add(sum, &contribution[..sum.len()]),
                        }
                        drop(contribution);
                        together.wait();
                    }
                }
            });
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
