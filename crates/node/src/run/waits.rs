//! What a worker waits for, as it reports to the coordinator: which operations, and of each that is
//! no longer young the lane whose part is not done.

use std::time::{Duration, Instant};

use sumpter_engine::Outstanding;
use sumpter_types::{PendingOp, Suspicion, TensorId};

use crate::run::WorkerRun;

/// Younger operations name no lane: most are done before anyone could look.
const YOUNG: Duration = Duration::from_secs(1);

impl WorkerRun {
    /// What is under way, the oldest first.
    pub(crate) fn pending(&self, now: Instant, limit: usize) -> Vec<PendingOp> {
        let running = self.running.values();
        let running = running.filter_map(|r| {
            let name = &self.table.spec(r.tensor)?.name;
            Some((r.since, r.round, name, &r.tag, Some(r.tensor)))
        });
        let asked = self.table.waiting();
        let asked = asked.map(|(spec, s)| (s.since, 0, &spec.name, &s.tag, None));
        let mut all: Vec<_> = running.chain(asked).collect();
        all.sort_by_key(|op| (op.0, op.2));
        all.truncate(limit);
        let report = |(since, round, name, tag, tensor): (_, _, &String, &String, _)| {
            let age = now.saturating_duration_since(since);
            let waits = match tensor {
                _ if age < YOUNG => PendingOp::default(),
                None => waits_for("the coordinator's word on it", Suspicion::Near),
                Some(tensor) => self.waits(tensor, now),
            };
            let (name, tag) = (name.clone(), tag.clone());
            PendingOp { name, tag, since_ms: age.as_millis() as u64, round, ..waits }
        };
        all.into_iter().map(report).collect()
    }

    /// The operations of each tensor that were begun, by the tensor's number.
    pub(crate) fn begun_by_tensor(&self) -> Vec<u64> {
        self.table.tensors().iter().map(|tensor| tensor.begun).collect()
    }

    /// Of the lanes a tensor waits for, the most suspicious one, and how it stands; and what is
    /// left of all.
    fn waits(&self, tensor: TensorId, now: Instant) -> PendingOp {
        if self.suspended {
            return waits_for("the new plan of who sums what", Suspicion::Away);
        }
        if let Some(bytes) = self.client.unsupplied(tensor) {
            let sharded = self.table.spec(tensor).is_some_and(|spec| spec.sharded);
            let waits = waits_for(&uncomputed(bytes, sharded), Suspicion::Own);
            return PendingOp { left_bytes: bytes as u64, ..waits };
        }
        let outstanding = self.client.outstanding(tensor);
        let suspicion = |outstanding: &Outstanding| match outstanding.up {
            false => Suspicion::NotConnected,
            true if self.is_away(outstanding.lane) => Suspicion::Away,
            true => Suspicion::Near,
        };
        let worst = outstanding.iter().max_by_key(|a| (suspicion(a), a.to_send, a.to_receive));
        let Some(worst) = worst else { return Default::default() };
        let state = match (worst.up, self.dials.failing_since(worst.lane)) {
            (true, _) => connected(worst),
            (false, Some(since)) => {
                let seconds = now.saturating_duration_since(since).as_secs();
                format!("not connected since {seconds} s")
            }
            (false, None) => "not connected yet".to_owned(),
        };
        let words = format!("{}: {state}", self.describe(worst.lane));
        PendingOp { left_bytes: left_bytes(&outstanding), ..waits_for(&words, suspicion(worst)) }
    }
}

fn waits_for(words: &str, suspicion: Suspicion) -> PendingOp {
    PendingOp { waits_for: words.to_owned(), suspicion, ..PendingOp::default() }
}

/// What is still to come or, if none is, to go. What comes never comes again, but what goes may
/// have to, after a cut.
fn left_bytes(outstanding: &[Outstanding]) -> u64 {
    let sum =
        |bytes: fn(&Outstanding) -> usize| outstanding.iter().map(bytes).sum::<usize>() as u64;
    match sum(|a| a.to_receive) {
        0 => sum(|a| a.to_send),
        bytes => bytes,
    }
}

/// What is to come and to go over a connection.
fn connected(outstanding: &Outstanding) -> String {
    match (outstanding.to_send, outstanding.to_receive) {
        (0, 0) => "connected, its word that all have the result outstanding".to_owned(),
        (0, bytes) => format!("connected, {} of results outstanding", megabytes(bytes)),
        (bytes, _) => format!("connected, {} still to send", megabytes(bytes)),
    }
}

/// What of a contribution has not come from a device, or of a shard from the devices of a group.
fn uncomputed(bytes: usize, sharded: bool) -> String {
    match (bytes, sharded) {
        (0, _) => "the devices of its group, which have not reduced the tensor".to_owned(),
        (_, true) => format!(
            "{} of its own shard, which the devices of its group have not reduced",
            megabytes(bytes)
        ),
        (_, false) => format!(
            "{} of its own contribution, which its device has not computed",
            megabytes(bytes)
        ),
    }
}

/// `3.1 MB`, `12 kB`.
fn megabytes(bytes: usize) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_endpoint::ConnId;

    #[test]
    fn a_connection_is_described_by_what_is_still_to_go_and_to_come() {
        let outstanding =
            |to_send, to_receive| Outstanding { lane: ConnId(0), up: true, to_send, to_receive };
        assert_eq!(
            connected(&outstanding(0, 3_100_000)),
            "connected, 3.1 MB of results outstanding"
        );
        assert_eq!(connected(&outstanding(12_000, 3_100_000)), "connected, 12 kB still to send");
        assert!(connected(&outstanding(0, 0)).starts_with("connected, its word"));
        assert_eq!(megabytes(999), "999 B");
    }

    #[test]
    fn a_rank_of_a_device_group_waits_for_the_devices_of_all() {
        assert_eq!(
            uncomputed(0, true),
            "the devices of its group, which have not reduced the tensor"
        );
        let shard = "12 kB of its own shard, which the devices of its group have not reduced";
        assert_eq!(uncomputed(12_000, true), shard);
        assert!(uncomputed(12_000, false).ends_with("which its device has not computed"));
    }

    #[test]
    fn what_is_left_is_what_comes_and_for_a_sender_what_goes() {
        let lane =
            |to_send, to_receive| Outstanding { lane: ConnId(0), up: true, to_send, to_receive };
        assert_eq!(left_bytes(&[lane(7, 40), lane(8, 2)]), 42);
        assert_eq!(left_bytes(&[lane(7, 0), lane(8, 0)]), 15);
        assert_eq!(left_bytes(&[]), 0);
    }
}
