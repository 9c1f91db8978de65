//! Buffers that start at a page against buffers that start off it: for the kernel alone, and for
//! receiving over TCP and adding.

use std::io::{Read, Write};
use std::thread;
use std::time::Instant;

use sumpter_sum::AlignedBuf;

use super::source::add;
use crate::driver::loopback_pairs;
use crate::error::BenchError;
use crate::pattern::{Pattern, patterned};

/// One measurement with buffers off a page by `offset_bytes`.
#[derive(Clone, Copy, Debug)]
pub struct AlignmentSample {
    /// Where in a page both buffers start.
    pub offset_bytes: usize,
    /// Bytes of contribution added a second, nothing received.
    pub kernel_bytes_per_s: f64,
    /// Bytes of contribution received and added a second.
    pub receive_bytes_per_s: f64,
}

/// Measures each of `offsets` `rounds` times, interleaved: `chunks` chunks of `chunk_bytes` each,
/// added to one accumulator.
///
/// # Errors
/// [`BenchError`]; a wrong sum is one.
pub fn alignment(
    offsets: &[usize],
    chunk_bytes: usize,
    chunks: usize,
    rounds: usize,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<AlignmentSample>, BenchError> {
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(4) || chunks == 0 || rounds == 0 {
        let text = "chunks must hold whole float32, and chunks and rounds be more than zero";
        return Err(BenchError::Argument(text.to_owned()));
    }
    // 7 times the largest scale must be exact in f32.
    if chunks > 1 << 20 || offsets.iter().any(|o| *o >= 4096) {
        let text = "at most 2^20 chunks, at offsets below a page";
        return Err(BenchError::Argument(text.to_owned()));
    }
    let mut samples = Vec::new();
    for round in 0..=rounds {
        for &offset_bytes in offsets {
            if progress() {
                return Err(BenchError::Interrupted);
            }
            let bytes = (chunk_bytes * chunks) as f64;
            let kernel = bytes / kernel_s(offset_bytes, chunk_bytes, chunks)?;
            let receive = bytes / receive_s(offset_bytes, chunk_bytes, chunks)?;
            let (kernel_bytes_per_s, receive_bytes_per_s) = (kernel, receive);
            if round > 0 {
                let sample =
                    AlignmentSample { offset_bytes, kernel_bytes_per_s, receive_bytes_per_s };
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn kernel_s(offset: usize, chunk_bytes: usize, chunks: usize) -> Result<f64, BenchError> {
    let mut sum = AlignedBuf::new(offset + chunk_bytes);
    let mut x = AlignedBuf::new(offset + chunk_bytes);
    Pattern::new(1).fill(&mut x[offset..]);
    let started = Instant::now();
    for _ in 0..chunks {
        add(std::hint::black_box(&mut sum[offset..]), std::hint::black_box(&x[offset..]));
    }
    let seconds = started.elapsed().as_secs_f64();
    check(&sum[offset..], chunks)?;
    Ok(seconds)
}

fn receive_s(offset: usize, chunk_bytes: usize, chunks: usize) -> Result<f64, BenchError> {
    let failed = BenchError::io("receiving over loopback");
    let (mut from, mut to) =
        loopback_pairs(1).map_err(&failed)?.pop().expect("one pair was asked for");
    thread::scope(|scope| {
        scope.spawn(move || {
            let chunk = patterned(chunk_bytes, 1);
            // An error here ends the stream early, which the reader reports.
            let _ = (0..chunks).try_for_each(|_| to.write_all(&chunk));
        });
        let mut sum = AlignedBuf::new(offset + chunk_bytes);
        let mut x = AlignedBuf::new(offset + chunk_bytes);
        let started = Instant::now();
        for _ in 0..chunks {
            from.read_exact(&mut x[offset..]).map_err(&failed)?;
            add(&mut sum[offset..], &x[offset..]);
        }
        let seconds = started.elapsed().as_secs_f64();
        check(&sum[offset..], chunks)?;
        Ok(seconds)
    })
}

fn check(sum: &[u8], chunks: usize) -> Result<(), BenchError> {
    match Pattern::new(chunks as u32).differs_at(sum) {
        None => Ok(()),
        Some(at) => Err(BenchError::Wrong(format!("alignment: the sum differs from byte {at}"))),
    }
}
