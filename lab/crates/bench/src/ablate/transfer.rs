//! Bytes there and back between two threads.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use sumpter_endpoint::LinkError;

use crate::cpu::ThreadCpu;
use crate::driver::Driver;
use crate::error::BenchError;
use crate::server::{Pages, Piece, RawClient, RawServer};

/// Links that have not found their way by then never will.
const SETTLING: Duration = Duration::from_secs(5);

/// What it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub seconds: f64,
    /// Processor time of both threads.
    pub cpu_s: f64,
}

/// Moves `bytes` of the one tensor of `memory` from `driver` to `server` and as many back, dealt
/// over their `count` connections by chunks; `placed` of these place bytes.
pub(super) fn there_and_back(
    [mut driver, mut server]: [Driver; 2],
    memory: &mut Vec<Pages>,
    count: usize,
    placed: usize,
    bytes: usize,
    chunk_bytes: usize,
) -> Result<Cost, BenchError> {
    let mut pieces = vec![Vec::new(); count];
    for (index, offset) in (0..bytes).step_by(chunk_bytes).enumerate() {
        let piece = Piece { tensor: 0, offset, bytes: chunk_bytes.min(bytes - offset) };
        pieces[index % count].push(piece);
    }
    let (tell, told) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = tell.send(ThreadCpu::current());
            let mut endpoint = RawServer::new(count, chunk_bytes);
            while server.turn(&mut endpoint).is_ok() {}
        });
        let cpu = BenchError::io("reading the processor time of threads");
        let peer = told.recv().map_err(|_| BenchError::Link(LinkError::Closed))?.map_err(&cpu)?;
        let threads = [peer, ThreadCpu::current().map_err(&cpu)?];
        let cpu_s = || crate::cpu::total_s(&threads).map_err(&cpu);
        let mut nothing = RawClient::new(Vec::new(), vec![Vec::new(); count]);
        let limit = Instant::now() + SETTLING;
        while !driver.is_settled() {
            if Instant::now() > limit {
                return Err(BenchError::Argument("a link does not find its way".to_owned()));
            }
            driver.turn(&mut nothing)?;
        }
        if driver.networks().count() != placed {
            let text = "a link that is to place bytes has fallen back to TCP";
            return Err(BenchError::Argument(text.to_owned()));
        }
        let mut client = RawClient::new(std::mem::take(memory), pieces);
        let (before, started) = (cpu_s()?, Instant::now());
        driver.flush(&mut client)?;
        while !client.is_done() {
            driver.turn(&mut client)?;
        }
        let (seconds, after) = (started.elapsed().as_secs_f64(), cpu_s()?);
        *memory = client.into_memory();
        // Ends the other thread's loop.
        drop(driver);
        Ok(Cost { seconds, cpu_s: after - before })
    })
}
