//! Clocks of many machines: how far one is ahead of another, and how sure that is.
//!
//! A member sends at `sent`, the coordinator receives at `received` and answers at `replied`, the
//! member receives that at `heard`: `sent` and `heard` by the member's clock, the other two by
//! the coordinator's. Nothing arrives before it was sent, so the offset (coordinator minus
//! member) is at most `received - sent` at the time `sent`, and at least `replied - heard` at the
//! time `heard`. (NTP takes the middle: RFC 5905, section 8.) Two clocks that run evenly differ by
//! a line over time, and each sample bounds it above and below. All lines between the bounds are
//! possible; the middle of them is taken, and half of their spread is the error bound.
//!
//! The bound holds whatever the delays are, equal both ways or not, as long as no clock changes its
//! rate while the samples are taken and the two rates differ by less than [`MAX_DRIFT`].

use rustix::time::{ClockId, clock_gettime};

/// How much the rates of two clocks may differ: two machines that NTP slews at its limit of
/// 500 parts in a million, in opposite directions.
pub const MAX_DRIFT: f64 = 1e-3;

/// Nanoseconds since some moment that is the same for all processes of a machine: the time of
/// every event and every sample.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The four times of a message to the coordinator and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When the member spoke, by its own clock.
    pub sent_ns: u64,
    /// When the coordinator heard it, by the coordinator's.
    pub received_ns: u64,
    /// When the coordinator answered, by the coordinator's.
    pub replied_ns: u64,
    /// When the member heard that, by its own.
    pub heard_ns: u64,
}

/// A member's clock in terms of the coordinator's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alignment {
    /// A time by the member's clock, and what the coordinator's showed then.
    origin: (u64, i128),
    /// How much faster the coordinator's clock runs.
    drift: f64,
    /// How far an aligned time may be off, anywhere in the window that was asked for.
    pub error_ns: f64,
    /// The two ends of that window by the member's clock, with how far the time that the
    /// coordinator's showed then may lie from what [`Alignment::map`] says: half of the spread.
    ends: [(u64, f64); 2],
}

impl Alignment {
    /// A clock that is the coordinator's own.
    #[must_use]
    pub fn same() -> Alignment {
        Alignment { origin: (0, 0), drift: 0.0, error_ns: 0.0, ends: [(0, 0.0), (u64::MAX, 0.0)] }
    }

    /// A time of the member's clock by the coordinator's.
    #[must_use]
    pub fn map(&self, member_ns: u64) -> i64 {
        let since = i128::from(member_ns) - i128::from(self.origin.0);
        let aligned = self.origin.1 + since + (since as f64 * self.drift).round() as i128;
        aligned.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// How far an aligned time may be off at this moment. What the lines between the bounds leave
    /// free is convex in time, so that inside the window a straight line between its ends bounds
    /// it; outside nothing is promised.
    pub(crate) fn error_at(&self, member_ns: u64) -> f64 {
        let [(from, before), (to, after)] = self.ends;
        if to <= from {
            return before.max(after) + ROUNDING_NS;
        }
        let share = member_ns.saturating_sub(from) as f64 / (to - from) as f64;
        before + (after - before) * share.clamp(0.0, 1.0) + ROUNDING_NS
    }
}

/// Times are whole nanoseconds, and a line is drawn in floats.
const ROUNDING_NS: f64 = 2.0;

/// What is known of a clock from elsewhere: at this time by the member's clock the coordinator's
/// showed at most, or at least, that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub at_ns: u64,
    pub theirs_ns: i64,
}

/// Limits from above and from below.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    pub above: Vec<Limit>,
    pub below: Vec<Limit>,
}

/// What the samples say of the offset, as bounds `offset(at) <= limit` or `>= limit`; times and
/// offsets are relative to some origin, so that they fit a float to the nanosecond.
struct Bounds {
    above: Vec<(f64, f64)>,
    below: Vec<(f64, f64)>,
}

impl Bounds {
    /// Of lines with this slope, the least and the greatest offset at time 0.
    fn at_slope(&self, slope: f64) -> (f64, f64) {
        let below = self.below.iter().map(|(at, limit)| limit - slope * at);
        let above = self.above.iter().map(|(at, limit)| limit - slope * at);
        (below.fold(f64::NEG_INFINITY, f64::max), above.fold(f64::INFINITY, f64::min))
    }

    /// Seen from another moment.
    fn seen_from(&self, moment: f64) -> Bounds {
        let shift = |bounds: &[(f64, f64)]| {
            bounds.iter().map(|(at, limit)| (at - moment, *limit)).collect()
        };
        Bounds { above: shift(&self.above), below: shift(&self.below) }
    }

    /// The slopes for which there is a line, if any: an interval, since what a slope leaves free is
    /// concave in the slope.
    fn slopes(&self) -> Option<(f64, f64)> {
        let room = |slope: f64| {
            let (below, above) = self.at_slope(slope);
            above - below
        };
        let best = search(-MAX_DRIFT, MAX_DRIFT, room);
        if room(best) < 0.0 {
            return None;
        }
        let edge = |mut inside: f64, mut outside: f64| {
            if room(outside) >= 0.0 {
                return outside;
            }
            for _ in 0..BISECTIONS {
                let middle = inside.midpoint(outside);
                let side = if room(middle) >= 0.0 { &mut inside } else { &mut outside };
                *side = middle;
            }
            outside
        };
        Some((edge(best, -MAX_DRIFT), edge(best, MAX_DRIFT)))
    }

    /// The least and the greatest offset that any line has at time 0.
    fn range(&self) -> Option<(f64, f64)> {
        let (low, high) = self.slopes()?;
        let greatest = search(low, high, |slope| self.at_slope(slope).1);
        let least = search(low, high, |slope| -self.at_slope(slope).0);
        Some((self.at_slope(least).0, self.at_slope(greatest).1))
    }
}

/// Steps of a search that leave less than a picosecond of a minute's drift.
const BISECTIONS: usize = 64;

/// Where a concave function is greatest in an interval.
fn search(mut low: f64, mut high: f64, of: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..2 * BISECTIONS {
        let third = (high - low) / 3.0;
        if of(low + third) < of(high - third) { low += third } else { high -= third }
    }
    // The ends are candidates as well: where it is greatest at one, thirds only come near it.
    low.midpoint(high)
}

/// Aligns a member's clock for a window of its time, from its samples, oldest first. If they do not
/// fit one line, a clock has changed its rate: then only the newest that do are used.
///
/// # Errors
/// A text if there is no sample, or none that makes sense.
pub fn align(samples: &[Sample], window: (u64, u64)) -> Result<Alignment, String> {
    align_within(samples, window, &Limits::default())
}

/// As [`align`], among the lines that keep these limits as well.
pub(crate) fn align_within(
    samples: &[Sample],
    window: (u64, u64),
    limits: &Limits,
) -> Result<Alignment, String> {
    let sane = |s: &&Sample| s.sent_ns <= s.heard_ns && s.received_ns <= s.replied_ns;
    let samples: Vec<Sample> = samples.iter().filter(sane).copied().collect();
    let Some(last) = samples.last() else {
        return Err("it has exchanged no message with the coordinator".to_owned());
    };
    let origin = last.sent_ns;
    let base = i128::from(last.received_ns) - i128::from(origin);
    let at = |ns: u64| (i128::from(ns) - i128::from(origin)) as f64;
    let offset = |theirs: u64, ours: u64| (i128::from(theirs) - i128::from(ours) - base) as f64;
    let window = (window.0.min(window.1), window.1.max(window.0));
    let ends = [at(window.0), at(window.1)];
    let known = |of: &[Limit]| -> Vec<(f64, f64)> {
        let bound = |l: &Limit| {
            let offset = i128::from(l.theirs_ns) - i128::from(l.at_ns) - base;
            (at(l.at_ns), offset as f64)
        };
        of.iter().map(bound).collect()
    };
    for first in 0..samples.len() {
        let used = &samples[first..];
        let mut bounds = Bounds { above: known(&limits.above), below: known(&limits.below) };
        let heard = used.iter().map(|s| (at(s.heard_ns), offset(s.replied_ns, s.heard_ns)));
        bounds.above.extend(used.iter().map(|s| (at(s.sent_ns), offset(s.received_ns, s.sent_ns))));
        bounds.below.extend(heard);
        let ranges = ends.map(|end| bounds.seen_from(end).range());
        let [Some(begin), Some(end)] = ranges else { continue };
        let [at_begin, at_end] = [begin, end].map(|(low, high)| low.midpoint(high));
        let span = ends[1] - ends[0];
        let drift = if span > 0.0 { (at_end - at_begin) / span } else { 0.0 };
        let halves = [begin, end].map(|(low, high)| (high - low) / 2.0);
        let theirs = base + (at_begin - drift * ends[0]).round() as i128;
        return Ok(Alignment {
            origin: (origin, i128::from(origin) + theirs),
            drift,
            error_ns: halves[0].max(halves[1]) + ROUNDING_NS,
            ends: [(window.0, halves[0]), (window.1, halves[1])],
        });
    }
    Err("its messages to the coordinator seem to arrive before they are sent".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A member's clock that is `offset` behind the coordinator's at its time `origin`.
    #[derive(Clone, Copy, Debug)]
    struct Truth {
        origin: u64,
        offset: i64,
        drift: f64,
    }

    impl Truth {
        fn theirs(&self, ours: u64) -> f64 {
            let since = ours as f64 - self.origin as f64;
            since * (1.0 + self.drift)
        }

        fn coordinator(&self, ours: u64) -> i64 {
            self.theirs(ours).round() as i64 + self.origin as i64 + self.offset
        }
    }

    prop_compose! {
        fn truths()(
            origin in (1u64 << 40)..(1 << 60),
            offset in -(1i64 << 39)..(1 << 59),
            drift in -4e-4..4e-4,
        ) -> Truth {
            Truth { origin, offset, drift }
        }
    }

    /// What is between two beats; delays there, at the coordinator and back.
    type Beat = (u64, u64, u64, u64);

    fn beats() -> impl Strategy<Value = Vec<Beat>> {
        let delay = prop_oneof![1_000..200_000u64, 1_000..50_000_000u64];
        vec((0..5_000_000_000u64, delay.clone(), 0..100_000u64, delay), 1..24)
    }

    fn samples(truth: Truth, beats: &[Beat]) -> Vec<Sample> {
        let mut now = truth.origin;
        let sample = |(pause, there, busy, back): &Beat| {
            now += pause;
            let sent_ns = now;
            let (received, replied) = (now + there, now + there + busy);
            now = replied + back;
            Sample {
                sent_ns,
                received_ns: truth.coordinator(received) as u64,
                replied_ns: truth.coordinator(replied) as u64,
                heard_ns: now,
            }
        };
        beats.iter().map(sample).collect()
    }

    proptest! {
        #[test]
        fn an_aligned_time_is_off_by_no_more_than_the_bound(
            truth in truths(),
            beats in beats(),
            window in (0.0..1.2f64, 0.0..1.2f64),
            at in 0.0..=1.0f64,
        ) {
            let samples = samples(truth, &beats);
            let span = (samples.last().unwrap().heard_ns - truth.origin) as f64;
            let moment = |share: f64| truth.origin + (span * share) as u64;
            let (from, to) = (moment(window.0.min(window.1)), moment(window.0.max(window.1)));
            let alignment = align(&samples, (from, to)).unwrap();
            let when = from + ((to - from) as f64 * at) as u64;
            let error = alignment.map(when) - truth.coordinator(when);
            // The truth itself is computed in floats of some tens of nanoseconds.
            prop_assert!(
                error.abs() as f64 <= alignment.error_ns + 300.0,
                "{error} ns, bound {}", alignment.error_ns
            );
        }

        #[test]
        fn the_bound_at_a_sample_is_no_worse_than_half_of_its_round_trip(
            truth in truths(), beats in beats()
        ) {
            let samples = samples(truth, &beats);
            let last = samples.last().unwrap();
            let alignment = align(&samples, (last.sent_ns, last.heard_ns)).unwrap();
            let trip = (last.heard_ns - last.sent_ns) as f64;
            let drift = MAX_DRIFT * trip;
            prop_assert!(alignment.error_ns <= trip / 2.0 + drift + 300.0);
        }
    }

    #[test]
    fn a_clock_that_changed_its_rate_is_aligned_by_its_newest_samples() {
        let before = Truth { origin: 1 << 40, offset: 1 << 45, drift: 3e-4 };
        let after = Truth { offset: (1 << 45) + 50_000_000, drift: -3e-4, ..before };
        let beats: Vec<Beat> = vec![(1_000_000_000, 20_000, 1_000, 20_000); 6];
        let mut all = samples(before, &beats);
        let mut late = samples(after, &[&beats[..], &beats[..]].concat());
        late.drain(..6);
        all.extend(&late);
        let (from, to) = (late[0].sent_ns, late[5].heard_ns);
        let alignment = align(&all, (from, to)).unwrap();
        let error = alignment.map(to) - after.coordinator(to);
        assert!(error.abs() < 40_000, "{error}");
    }

    #[test]
    fn without_a_sample_there_is_no_alignment() {
        assert!(align(&[], (0, 1)).unwrap_err().contains("no message"));
        let nonsense = Sample { sent_ns: 9, heard_ns: 3, ..Sample::default() };
        assert!(align(&[nonsense], (0, 1)).is_err());
        let early =
            |at: u64| Sample { sent_ns: at, received_ns: 1000, replied_ns: 5000, heard_ns: at + 1 };
        assert!(align(&[early(10)], (0, 1)).unwrap_err().contains("before they are sent"));
    }

    #[test]
    fn the_monotonic_clock_never_goes_back() {
        let times: Vec<u64> = (0..1000).map(|_| monotonic_ns()).collect();
        assert!(times.is_sorted() && times[0] > 0);
    }
}
