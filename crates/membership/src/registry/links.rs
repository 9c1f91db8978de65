//! What links carry, as the reports of workers tell: a machine's rate is that at which its workers'
//! send queues drained while they were not empty. Bytes over the whole time would measure how often
//! there is something to send.

use std::collections::BTreeMap;

use sumpter_types::Stats;

/// The tensors of a worker for which `auto` would choose a codec if it knew a link's speed.
const AWAITING: &str = "tensors_awaiting_link";

/// Seconds of sending, and bytes, from which on they tell a rate: connections begin slowly.
const LEAST_S: f64 = 0.25;
const LEAST_BYTES: f64 = (8 << 20) as f64;

fn counter(stats: &Stats, name: &str) -> f64 {
    stats.counters.get(name).copied().unwrap_or_default()
}

/// Whether a worker has a use for the links' rate.
pub(super) fn awaits_link(stats: &Stats) -> bool {
    counter(stats, AWAITING) > 0.0
}

/// Bytes a second of a worker; `None` until it has sent enough.
fn drain_rate(stats: &Stats) -> Option<f64> {
    let (bytes, seconds) = (counter(stats, "drained_bytes"), counter(stats, "wait_send_s"));
    (bytes >= LEAST_BYTES && seconds >= LEAST_S).then(|| bytes / seconds)
}

/// Bytes a second of the slowest of these workers' machines; `None` until all have sent enough. The
/// workers of a machine share its link.
pub(super) fn slowest<'a>(workers: impl Iterator<Item = (&'a str, &'a Stats)>) -> Option<u64> {
    let mut machines: BTreeMap<&str, f64> = BTreeMap::new();
    for (machine, stats) in workers {
        *machines.entry(machine).or_default() += drain_rate(stats)?;
    }
    // A rate of less than a byte a second is none.
    machines.into_values().reduce(f64::min).map(|rate| rate as u64).filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(bytes: f64, seconds: f64) -> Stats {
        let counters = [("drained_bytes", bytes), ("wait_send_s", seconds)];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        Stats { counters, ..Stats::default() }
    }

    #[test]
    fn the_slowest_machine_counts_with_all_its_workers() {
        let (fast, slow) = (stats(6e9, 2.0), stats(1e9, 1.0));
        let of = |workers: &[(&str, &Stats)]| slowest(workers.iter().copied());
        assert_eq!(of(&[("a", &fast), ("b", &slow)]), Some(1_000_000_000));
        assert_eq!(of(&[("a", &fast), ("b", &slow), ("b", &slow)]), Some(2_000_000_000));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn too_little_tells_nothing_of_any_machine() {
        let fast = stats(3e9, 1.0);
        let little = [
            Stats::default(),
            stats(LEAST_BYTES - 1.0, 1.0),
            stats(1e9, LEAST_S / 2.0),
            stats(f64::NAN, 1.0),
            stats(1e9, f64::NAN),
            stats(1e9, f64::INFINITY),
        ];
        for other in &little {
            assert_eq!(slowest([("a", &fast), ("b", other)].into_iter()), None, "{other:?}");
        }
    }
}
