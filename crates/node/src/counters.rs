//! What an event loop counts, and how it is reported.

use std::time::{Duration, Instant};

use sumpter_endpoint::Placing;
use sumpter_engine::{Backlog, LaneStats};
use sumpter_types::{Late, Stats};

use crate::cluster::RackHubs;

/// How often the coordinator gets the counters, while something happens.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// What a worker waits for while operations are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Contributions that are not handed to the connections yet.
    Send,
    /// Results: the contributions are on their way, or with the lanes.
    Results,
    /// A new plan of who sums what.
    Plan,
    /// The coordinator's answer to the declaration of a tensor.
    Coordinator,
}

/// The names of the counters of waiting, in the order of [`Cause`].
const WAITING: [&str; 4] = ["wait_send_s", "wait_results_s", "wait_plan_s", "wait_coordinator_s"];

/// What a worker has under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfClient {
    pub backlog: Backlog,
    /// Bytes that take credit.
    pub admitted_bytes: usize,
    pub operations: usize,
    /// Blocks that counted as zeros since they were not finite (`nan=skip`).
    pub skipped_blocks: u64,
    /// Whether the racks of the job's machines sum, and where; none if no rack is known.
    pub rack_hubs: Option<RackHubs>,
}

/// What an event loop knows from elsewhere when it reports.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub lane: &'a LaneStats,
    /// Bytes of the lane's buffers.
    pub lane_bytes: u64,
    /// Partitions of the lane that wait for a rank.
    pub lane_waiting: usize,
    /// Corrupt frames that the client received.
    pub corrupt_results: u64,
    /// Bytes that were passed on for racks.
    pub rack_bytes: u64,
    pub tensors: usize,
    pub client: Option<OfClient>,
    pub elapsed: Duration,
    /// What was placed in peers' memory.
    pub placing: Placing,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes over connections.
    bytes_sent: u64,
    bytes_received: u64,
    /// Those of them that left or entered this machine.
    away_sent: u64,
    away_received: u64,
    /// Bytes that left this machine while contributions were queued for the connections. Over
    /// `wait_send_s` they are the rate at which the network drains the queues.
    drained: u64,
    /// Bytes between the worker and its colocated lane.
    pub bytes_local: u64,
    /// Operations finished.
    operations: u64,
    /// Bytes of tensors summed by finished operations.
    tensor_bytes: u64,
    /// The most rounds any one tensor has had: the training step, since each step sends the same
    /// tensors again.
    pub step: u64,
    pub samples: u64,
    /// Time with at least one operation under way.
    busy: Duration,
    busy_since: Option<Instant>,
    /// By cause.
    waited: [Duration; WAITING.len()],
    waiting: Option<(Cause, Instant)>,
    /// Times that this worker stopped for a new plan.
    pub pauses: u64,
    /// Established connections that broke.
    pub broken: u64,
    /// Connections whose bytes are placed in the peer's memory.
    pub placed: u64,
    /// Strangers' connections that were turned away.
    pub refused: u64,
}

/// What is counted, and when it is reported next.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub counters: Counters,
    due: Option<Instant>,
}

impl Report {
    /// Reports at once.
    pub(crate) fn now(&mut self) {
        self.due = Some(Instant::now());
    }

    /// Reports within the usual time.
    pub(crate) fn soon(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + REPORT_EVERY);
    }

    /// When the next report is due, if there is one.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether a report is due; if so, none is until another is asked for.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }
}

impl Counters {
    /// This loop's part of an operation, of so many bytes, has finished, after `rounds` of its
    /// tensor; `counts` says whether this loop counts the operation. Returns whether the step is
    /// another one.
    pub(crate) fn finished(&mut self, rounds: u64, bytes: u64, counts: bool) -> bool {
        let before = self.step;
        self.step = before.max(rounds);
        self.operations += u64::from(counts);
        self.tensor_bytes += bytes;
        self.step > before
    }

    /// Bytes were sent over a connection; `away` says whether it leaves this machine.
    pub(crate) fn sent(&mut self, bytes: usize, away: bool) {
        self.bytes_sent += bytes as u64;
        self.away_sent += if away { bytes as u64 } else { 0 };
        if away && matches!(self.waiting, Some((Cause::Send, _))) {
            self.drained += bytes as u64;
        }
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

    /// Notes what is waited for from now on.
    pub(crate) fn wait(&mut self, cause: Option<Cause>, now: Instant) {
        if self.waiting.map(|(before, _)| before) == cause {
            return;
        }
        if let Some((before, since)) = self.waiting {
            self.waited[before as usize] += now.saturating_duration_since(since);
        }
        self.waiting = cause.map(|cause| (cause, now));
    }

    /// The numbers by name.
    pub(crate) fn report(&self, around: &Surroundings<'_>) -> Stats {
        let Surroundings { lane, elapsed, .. } = around;
        let running = self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        let counters: [(&str, f64); 24] = [
            ("bytes_sent", self.bytes_sent as f64),
            ("bytes_received", self.bytes_received as f64),
            ("bytes_sent_away", self.away_sent as f64),
            ("bytes_received_away", self.away_received as f64),
            ("bytes_local", self.bytes_local as f64),
            ("rounds", self.operations as f64),
            ("tensor_bytes", self.tensor_bytes as f64),
            ("tensors", around.tensors as f64),
            ("step", self.step as f64),
            ("samples", self.samples as f64),
            ("busy_s", (self.busy + running).as_secs_f64()),
            ("elapsed_s", elapsed.as_secs_f64()),
            ("lane_rounds", lane.rounds as f64),
            ("summed_bytes", lane.summed_bytes as f64),
            ("rack_bytes", around.rack_bytes as f64),
            ("duplicate_chunks", lane.duplicate_chunks as f64),
            ("corrupt_frames", (lane.corrupt_frames + around.corrupt_results) as f64),
            ("lane_memory_bytes", around.lane_bytes as f64),
            ("lane_waiting_partitions", around.lane_waiting as f64),
            ("broken_connections", self.broken as f64),
            ("placed_connections", self.placed as f64),
            ("placed_bytes", around.placing.bytes as f64),
            ("registrations", around.placing.registrations as f64),
            ("refused_connections", self.refused as f64),
        ];
        let late = lane.late.iter().map(|((run, rank), (count, waited))| Late {
            run: *run,
            rank: *rank,
            count: *count,
            seconds: waited.as_secs_f64(),
        });
        Stats {
            counters: counters.into_iter().chain(self.of_worker(around)).map(named).collect(),
            late: late.collect(),
            ..Stats::default()
        }
    }

    /// What only a worker counts.
    fn of_worker(&self, around: &Surroundings<'_>) -> Vec<(&'static str, f64)> {
        let Some(client) = around.client else { return Vec::new() };
        let mut waited = self.waited;
        if let Some((cause, since)) = self.waiting {
            waited[cause as usize] += since.elapsed();
        }
        let waited = WAITING.into_iter().zip(waited.map(|time| time.as_secs_f64()));
        let now = [
            ("queued_partitions", client.backlog.partitions as f64),
            ("queued_bytes", client.backlog.bytes as f64),
            ("credit_used_bytes", client.admitted_bytes as f64),
            ("operations", client.operations as f64),
            ("pauses", self.pauses as f64),
            ("drained_bytes", self.drained as f64),
            ("skipped_blocks", client.skipped_blocks as f64),
            ("event_loops", 1.0),
        ];
        let flag = |value| f64::from(u8::from(value));
        let rack_hubs = client.rack_hubs.map(|hubs| {
            [
                ("rack_hubs", flag(hubs.sum)),
                ("rack_hubs_on_workers", flag(hubs.on_workers)),
                ("rack_hubs_on_servers", hubs.on_servers as f64),
            ]
        });
        now.into_iter().chain(rack_hubs.into_iter().flatten()).chain(waited).collect()
    }
}

fn named((name, value): (&str, f64)) -> (String, f64) {
    (name.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn report(counters: &Counters, client: Option<OfClient>) -> BTreeMap<String, f64> {
        let around = Surroundings {
            lane: &LaneStats::default(),
            lane_bytes: 0,
            lane_waiting: 3,
            corrupt_results: 0,
            rack_bytes: 5,
            tensors: 0,
            client,
            elapsed: Duration::ZERO,
            placing: Placing { bytes: 13, registrations: 2 },
        };
        counters.report(&around).counters
    }

    #[test]
    fn waiting_adds_up_by_cause_and_stops_when_nothing_is_under_way() {
        let (start, mut counters) = (Instant::now(), Counters::default());
        let at = |ms| start + Duration::from_millis(ms);
        counters.wait(Some(Cause::Send), at(0));
        counters.wait(Some(Cause::Send), at(10));
        counters.wait(Some(Cause::Results), at(30));
        counters.wait(None, at(100));
        counters.wait(Some(Cause::Plan), at(500));
        counters.wait(None, at(505));
        let backlog = Backlog { partitions: 7, bytes: 11 };
        let client = OfClient {
            backlog,
            admitted_bytes: 9,
            operations: 2,
            skipped_blocks: 3,
            rack_hubs: None,
        };
        let told = report(&counters, Some(client));
        let waited = WAITING.map(|name| told[name]);
        assert_eq!(waited, [0.030, 0.070, 0.005, 0.0]);
        let queues = ["queued_partitions", "queued_bytes", "credit_used_bytes", "operations"];
        assert_eq!(queues.map(|name| told[name]), [7.0, 11.0, 9.0, 2.0]);
        assert_eq!(told["skipped_blocks"], 3.0);
        assert!(!told.contains_key("rack_hubs"));
        for (sum, on_workers, on_servers) in [(false, false, 0), (true, true, 0), (true, false, 4)]
        {
            let rack_hubs = Some(RackHubs { sum, on_workers, on_servers });
            let told = report(&counters, Some(OfClient { rack_hubs, ..client }));
            let flags = [told["rack_hubs"], told["rack_hubs_on_workers"]];
            assert_eq!(flags, [sum, on_workers].map(|flag| f64::from(u8::from(flag))));
            assert_eq!(told["rack_hubs_on_servers"], f64::from(on_servers as u8));
        }
    }

    #[test]
    fn the_drain_rate_counts_what_leaves_while_the_queues_hold_something() {
        let (start, mut counters) = (Instant::now(), Counters::default());
        let at = |ms| start + Duration::from_millis(ms);
        counters.sent(1000, true);
        counters.wait(Some(Cause::Send), at(0));
        counters.sent(50, true);
        counters.sent(300, false);
        counters.wait(Some(Cause::Results), at(20));
        counters.sent(7, true);
        counters.wait(None, at(900));
        let backlog = Backlog { partitions: 0, bytes: 0 };
        let client = OfClient {
            backlog,
            admitted_bytes: 0,
            operations: 0,
            skipped_blocks: 0,
            rack_hubs: None,
        };
        let told = report(&counters, Some(client));
        assert_eq!((told["drained_bytes"], told["wait_send_s"]), (50.0, 0.020));
        assert_eq!(told["bytes_sent_away"], 1057.0);
    }

    #[test]
    fn a_server_tells_nothing_of_what_only_workers_have() {
        let told = report(&Counters::default(), None);
        assert_eq!((told["lane_waiting_partitions"], told["rack_bytes"]), (3.0, 5.0));
        assert_eq!((told["placed_bytes"], told["registrations"]), (13.0, 2.0));
        assert!(WAITING.iter().all(|name| !told.contains_key(*name)));
    }
}
