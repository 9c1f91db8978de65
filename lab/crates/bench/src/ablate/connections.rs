//! One TCP connection between a worker and a lane against several, both ways at once, by one
//! thread on each side.

use std::sync::Arc;

use super::transfer::{Cost, there_and_back};
use crate::driver::{Driver, loopback_pairs};
use crate::error::BenchError;
use crate::pattern::Pattern;
use crate::server::Pages;

const MOST_CONNECTIONS: usize = 64;

/// One transfer over so many connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionsSample {
    /// Connections between the two threads.
    pub connections: usize,
    /// For `bytes` there and as many back.
    pub seconds: f64,
    /// Processor time of both threads.
    pub cpu_s: f64,
}

/// Moves `bytes` there and back over each number of connections, `rounds` times, interleaved.
///
/// # Errors
/// [`BenchError`]; bytes that arrive wrong are one.
pub fn connections(
    counts: &[usize],
    bytes: usize,
    chunk_bytes: usize,
    rounds: usize,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<ConnectionsSample>, BenchError> {
    if let Some(count) = counts.iter().find(|c| !(1..=MOST_CONNECTIONS).contains(c)) {
        let text = format!("connections: {count} is not from 1 to {MOST_CONNECTIONS}");
        return Err(BenchError::Argument(text));
    }
    if chunk_bytes == 0 || bytes < chunk_bytes * MOST_CONNECTIONS || rounds == 0 {
        let text = format!(
            "{bytes} bytes in chunks of {chunk_bytes}: need {MOST_CONNECTIONS} chunks and a round"
        );
        return Err(BenchError::Argument(text));
    }
    let mut memory = vec![Pages::new(bytes, 1)];
    let mut samples = Vec::new();
    for round in 0..=rounds {
        for &count in counts {
            if progress() {
                return Err(BenchError::Interrupted);
            }
            let sample = transfer(&mut memory, count, bytes, chunk_bytes)?;
            if let Some(at) = memory[0].check(&Pattern::new(0)) {
                let text = format!("{count} connections: wrong bytes from {at} on");
                return Err(BenchError::Wrong(text));
            }
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn transfer(
    memory: &mut Vec<Pages>,
    count: usize,
    bytes: usize,
    chunk_bytes: usize,
) -> Result<ConnectionsSample, BenchError> {
    let failed = BenchError::io("connecting over loopback");
    let pairs = loopback_pairs(count).map_err(&failed)?;
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let driver = Driver::new(ours, Arc::default()).map_err(&failed)?;
    let server = Driver::new(theirs, Arc::default()).map_err(&failed)?;
    let Cost { seconds, cpu_s } =
        there_and_back([driver, server], memory, count, 0, bytes, chunk_bytes)?;
    Ok(ConnectionsSample { connections: count, seconds, cpu_s })
}
