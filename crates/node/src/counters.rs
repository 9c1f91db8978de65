//! What an event loop counts, and how it is reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sumpter_coordinator::{Late, Stats};
use sumpter_engine::LaneStats;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes over connections.
    bytes_sent: u64,
    bytes_received: u64,
    /// Those of them that left or entered this machine.
    away_sent: u64,
    away_received: u64,
    /// Bytes between the worker and its colocated lane.
    pub bytes_local: u64,
    /// Operations finished.
    pub operations: u64,
    /// Bytes of tensors summed by finished operations.
    pub tensor_bytes: u64,
    /// The most rounds any one tensor has had: the training step, since each step sends the same
    /// tensors again.
    pub step: u64,
    pub samples: u64,
    /// Time with at least one operation under way.
    busy: Duration,
    busy_since: Option<Instant>,
}

impl Counters {
    /// Bytes were sent over a connection; `away` says whether it leaves this machine.
    pub(crate) fn sent(&mut self, bytes: usize, away: bool) {
        self.bytes_sent += bytes as u64;
        self.away_sent += if away { bytes as u64 } else { 0 };
    }

    /// Bytes were received over a connection; `away` as for [`sent`](Self::sent).
    pub(crate) fn received(&mut self, bytes: usize, away: bool) {
        self.bytes_received += bytes as u64;
        self.away_received += if away { bytes as u64 } else { 0 };
    }

    /// All bytes that have been moved: it changes when any are.
    pub(crate) fn moved(&self) -> u64 {
        self.bytes_sent + self.bytes_received + self.bytes_local
    }

    /// Notes whether anything is under way.
    pub(crate) fn busy(&mut self, busy: bool, now: Instant) {
        match (busy, self.busy_since) {
            (true, None) => self.busy_since = Some(now),
            (false, Some(since)) => {
                self.busy += now.saturating_duration_since(since);
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// The numbers by name.
    pub(crate) fn report(
        &self,
        lane: &LaneStats,
        lane_bytes: u64,
        corrupt_results: u64,
        tensors: usize,
        elapsed: Duration,
    ) -> Stats {
        let running = self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        let counters: [(&str, f64); 17] = [
            ("bytes_sent", self.bytes_sent as f64),
            ("bytes_received", self.bytes_received as f64),
            ("bytes_sent_away", self.away_sent as f64),
            ("bytes_received_away", self.away_received as f64),
            ("bytes_local", self.bytes_local as f64),
            ("rounds", self.operations as f64),
            ("tensor_bytes", self.tensor_bytes as f64),
            ("tensors", tensors as f64),
            ("step", self.step as f64),
            ("samples", self.samples as f64),
            ("busy_s", (self.busy + running).as_secs_f64()),
            ("elapsed_s", elapsed.as_secs_f64()),
            ("lane_rounds", lane.rounds as f64),
            ("summed_bytes", lane.summed_bytes as f64),
            ("duplicate_chunks", lane.duplicate_chunks as f64),
            ("corrupt_frames", (lane.corrupt_frames + corrupt_results) as f64),
            ("lane_memory_bytes", lane_bytes as f64),
        ];
        let late = lane.late.iter().map(|(rank, (count, waited))| Late {
            rank: *rank,
            count: *count,
            seconds: waited.as_secs_f64(),
        });
        Stats {
            counters: BTreeMap::from(counters.map(|(k, v)| (k.to_owned(), v))),
            late: late.collect(),
            pending: Vec::new(),
            begun: Vec::new(),
        }
    }
}
