//! The training steps of a worker, from its operations: each step sends the same tensors again, so
//! that round `r` of them is step `r`.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Event, EventKind};

/// One operation of a worker: a round of a tensor. Times by the worker's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Op {
    begun: Option<u64>,
    ended: Option<u64>,
}

/// A step: from its first gradient to the next step's, or to its own last result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub begin_ns: u64,
    /// When the last of its results was there.
    pub last_ns: u64,
    pub end_ns: u64,
}

/// The complete steps in a client's events, by number.
///
/// The tensors of a step are those whose latest round is the latest of all, or the one before:
/// a step may be under way. What is summed less often has lower rounds and does not count.
pub(crate) fn steps(events: &[Event]) -> BTreeMap<u32, Step> {
    let mut ops: BTreeMap<u32, BTreeMap<u32, Op>> = BTreeMap::new();
    for event in events {
        let (begun, ended) = match event.kind {
            EventKind::Submitted => (Some(event.at_ns), None),
            EventKind::Finished => (None, Some(event.at_ns)),
            _ => continue,
        };
        let rounds = ops.entry(event.part.tensor).or_default();
        let op = rounds.entry(event.part.round).or_default();
        op.begun = [op.begun, begun].into_iter().flatten().min();
        op.ended = op.ended.max(ended);
    }
    let last = |rounds: &BTreeMap<u32, Op>| rounds.keys().next_back().copied().unwrap_or(0);
    let latest = ops.values().map(last).max().unwrap_or(0);
    ops.retain(|_, rounds| last(rounds) + 1 >= latest);
    let mut found = BTreeMap::new();
    let rounds: BTreeSet<u32> = ops.values().flat_map(BTreeMap::keys).copied().collect();
    for round in rounds {
        let of_round: Vec<Op> = ops.values().filter_map(|o| o.get(&round).copied()).collect();
        let begun: Option<Vec<u64>> = of_round.iter().map(|op| op.begun).collect();
        let ended: Option<Vec<u64>> = of_round.iter().map(|op| op.ended).collect();
        let (Some(begun), Some(ended)) = (begun, ended) else { continue };
        let (Some(begin_ns), Some(last_ns)) = (begun.iter().min(), ended.iter().max()) else {
            continue;
        };
        // Of the newest step some tensors may not have been submitted yet.
        if of_round.len() == ops.len() {
            found.insert(round, (*begin_ns, *last_ns));
        }
    }
    let begin_of = |round: u32| {
        let next = ops.values().filter_map(|rounds| rounds.get(&round)?.begun);
        next.min()
    };
    let step = |(round, (begin_ns, last_ns)): (&u32, &(u64, u64))| {
        let next = begin_of(round + 1).unwrap_or(*last_ns);
        (*round, Step { begin_ns: *begin_ns, last_ns: *last_ns, end_ns: next.max(*last_ns) })
    };
    found.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Part, Peer};

    fn event(kind: EventKind, tensor: u32, round: u32, at_ns: u64) -> Event {
        let part = Part { tensor, round, partition: Part::WHOLE, tier: 0 };
        Event { at_ns, kind, part, peer: Peer::Unknown, bytes: 0, run: 0 }
    }

    #[test]
    fn a_step_lasts_until_the_next_begins_and_one_under_way_is_none() {
        let mut events = Vec::new();
        for round in 3..6u32 {
            let at = u64::from(round) * 1000;
            events.push(event(EventKind::Submitted, 0, round, at));
            events.push(event(EventKind::Submitted, 1, round, at + 100));
            if round < 5 {
                events.push(event(EventKind::Finished, 1, round, at + 300));
                events.push(event(EventKind::Finished, 0, round, at + 250));
            }
        }
        // Parameters that were broadcast once.
        events.push(event(EventKind::Submitted, 7, 0, 10));
        events.push(event(EventKind::Finished, 7, 0, 20));
        let found = steps(&events);
        let step = |round: u64| Step {
            begin_ns: round * 1000,
            last_ns: round * 1000 + 300,
            end_ns: (round + 1) * 1000,
        };
        assert_eq!(found, [(3, step(3)), (4, step(4))].into());
    }

    #[test]
    fn the_last_step_ends_with_its_last_result() {
        let events = [event(EventKind::Submitted, 0, 0, 5), event(EventKind::Finished, 0, 0, 9)];
        let step = Step { begin_ns: 5, last_ns: 9, end_ns: 9 };
        assert_eq!(steps(&events), [(0, step)].into());
        assert_eq!(steps(&events[1..]), BTreeMap::new());
        assert_eq!(steps(&[]), BTreeMap::new());
    }
}
