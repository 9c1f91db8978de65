//! What the event loops of one process have counted.

use crossbeam_channel::bounded;
use sumpter_types::{PendingOp, Stats};

use crate::command::Command;
use crate::remote::Remote;

/// Counters that all loops of a process count alike, or at the same time: of these the largest
/// counts, of all others the sum.
const ALIKE: [&str; 15] = [
    "elapsed_s",
    "tensors",
    "compressed_tensors",
    "tensors_awaiting_link",
    "step",
    "busy_s",
    "operations",
    "pauses",
    "wait_send_s",
    "wait_results_s",
    "wait_plan_s",
    "wait_coordinator_s",
    "rack_hubs",
    "rack_hubs_on_workers",
    "rack_hubs_on_servers",
];

/// What all loops have counted together.
pub(crate) fn total(remotes: &[Remote]) -> Stats {
    let counted = remotes.iter().filter_map(|remote| {
        let (answer, stats) = bounded(1);
        remote.send(Command::Stats(answer));
        // A loop that has ended counts nothing.
        stats.recv().ok()
    });
    counted.reduce(add).unwrap_or_default()
}

/// What two loops have counted together.
pub(crate) fn add(mut total: Stats, other: Stats) -> Stats {
    for (name, value) in other.counters {
        let is_alike = ALIKE.contains(&name.as_str());
        let sum = total.counters.entry(name).or_default();
        *sum = if is_alike { sum.max(value) } else { *sum + value };
    }
    for late in other.late {
        match total.late.iter_mut().find(|known| (known.run, known.rank) == (late.run, late.rank)) {
            Some(known) => {
                known.count += late.count;
                known.seconds += late.seconds;
            }
            None => total.late.push(late),
        }
    }
    other.pending.into_iter().for_each(|op| add_pending(&mut total.pending, op));
    let most = total.begun.len().max(other.begun.len());
    total.begun.resize(most, 0);
    for (begun, other) in total.begun.iter_mut().zip(other.begun) {
        *begun = (*begun).max(other);
    }
    // The loop that speaks for the worker has them.
    total.choices.extend(other.choices);
    let refused = other.refused.into_iter().filter(|op| !total.refused.contains(op));
    total.refused.extend(refused.collect::<Vec<_>>());
    total
}

/// Adds an operation that a loop has under way, of which others may have parts.
fn add_pending(all: &mut Vec<PendingOp>, op: PendingOp) {
    let is_same = |known: &&mut PendingOp| {
        (&known.name, &known.tag, known.round) == (&op.name, &op.tag, op.round)
    };
    let Some(known) = all.iter_mut().find(is_same) else {
        all.push(op);
        return all.sort_by_key(|op| std::cmp::Reverse(op.since_ms));
    };
    let (since_ms, left_bytes) =
        (known.since_ms.max(op.since_ms), known.left_bytes + op.left_bytes);
    let suspicious = (op.suspicion, op.left_bytes) > (known.suspicion, known.left_bytes);
    if suspicious {
        *known = op;
    }
    (known.since_ms, known.left_bytes) = (since_ms, left_bytes);
}

#[cfg(test)]
mod tests {
    use sumpter_types::{JobId, Late, Rank, RefusedOp, Suspicion};

    use super::*;

    #[test]
    fn the_counts_of_two_loops_are_those_of_their_worker() {
        let counters = |sent, busy| {
            let counters = [("bytes_sent", sent), ("busy_s", busy), ("step", 7.0)];
            counters.map(|(name, value)| (name.to_owned(), value)).into()
        };
        let late = |rank, count| Late { run: JobId(7), rank: Rank(rank), count, seconds: 0.5 };
        let refused = RefusedOp { name: "x".into(), tag: "world#1|a".into() };
        let one = Stats {
            counters: counters(3.0, 1.5),
            late: vec![late(0, 1)],
            begun: vec![2, 0],
            refused: vec![refused.clone()],
            ..Stats::default()
        };
        let other = Stats {
            counters: counters(4.0, 1.0),
            late: vec![late(0, 2), late(1, 1), Late { run: JobId(8), ..late(0, 9) }],
            begun: vec![2, 5, 1],
            refused: vec![refused.clone()],
            ..Stats::default()
        };
        let both = add(one, other);
        let count = |name: &str| both.counters[name];
        assert_eq!([count("bytes_sent"), count("busy_s"), count("step")], [7.0, 1.5, 7.0]);
        let late: Vec<_> = both.late.iter().map(|late| (late.rank.0, late.count)).collect();
        assert_eq!(late, [(0, 3), (1, 1), (0, 9)]);
        assert_eq!((both.begun, both.refused), (vec![2, 5, 1], vec![refused]));
    }

    #[test]
    fn an_operation_in_parts_is_pending_once_and_names_what_is_most_suspicious() {
        let op = |name: &str, since_ms, waits_for: &str, suspicion, left_bytes| PendingOp {
            name: name.to_owned(),
            since_ms,
            waits_for: waits_for.to_owned(),
            suspicion,
            left_bytes,
            ..PendingOp::default()
        };
        let pending = |pending| Stats { pending, ..Stats::default() };
        let both = add(
            pending(vec![op("x", 900, "lane 0", Suspicion::Near, 10)]),
            pending(vec![
                op("old", 2000, "", Suspicion::Near, 0),
                op("x", 901, "lane 1", Suspicion::NotConnected, 4),
            ]),
        );
        let expected = [
            op("old", 2000, "", Suspicion::Near, 0),
            op("x", 901, "lane 1", Suspicion::NotConnected, 14),
        ];
        assert_eq!(both.pending, expected);
    }
}
