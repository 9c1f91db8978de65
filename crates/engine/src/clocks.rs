//! Which rounds of which workers are in a variable that changes asynchronously: a vector clock for
//! each stretch of it.

use std::collections::BTreeMap;
use std::ops::Range;

use sumpter_types::{Rank, Round};
use sumpter_wire::Clock;

/// Vector clocks of stretches that do not overlap; positions are the owner's, bytes or elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clocks(BTreeMap<usize, Stretch>);

#[derive(Clone, Debug)]
struct Stretch {
    end: usize,
    /// Rounds of each worker that are in it, by rank, ascending.
    clocks: Vec<Clock>,
}

/// A stretch that has a worker's round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    pub stretch: Range<usize>,
    /// How many rounds, of all workers, it had before.
    pub position: u32,
    /// Whether the round was not in it yet: it must be applied.
    pub is_fresh: bool,
}

/// How many rounds are in what has these clocks, modulo 2^32: the position of the next one.
pub(crate) fn rounds_in(clocks: &[Clock]) -> u32 {
    clocks.iter().fold(0, |sum, clock| sum.wrapping_add(clock.rounds))
}

/// The position of a worker's round in what has these clocks, if it is in it. A worker begins a
/// round only when the one before is over, so that a round which it does again is its last.
pub(crate) fn position_of(clocks: &[Clock], (rank, round): (Rank, Round)) -> Option<u32> {
    let at = clocks.binary_search_by_key(&rank, |clock| clock.rank).ok()?;
    is_behind(round.0, clocks[at].rounds).then(|| clocks[at].position)
}

/// Whether one number of rounds is below another; they are counted modulo 2^32.
fn is_behind(rounds: u32, others: u32) -> bool {
    others.wrapping_sub(rounds).cast_signed() > 0
}

impl Clocks {
    /// How many stretches have clocks of their own.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A stretch has these clocks from now on.
    pub(crate) fn set(&mut self, stretch: Range<usize>, clocks: Vec<Clock>) {
        self.split(&stretch);
        let within: Vec<usize> = self.0.range(stretch.clone()).map(|(start, _)| *start).collect();
        within.iter().for_each(|start| drop(self.0.remove(start)));
        self.0.insert(stretch.start, Stretch { end: stretch.end, clocks });
    }

    /// What of a stretch has no clocks yet, has these.
    pub(crate) fn complete(&mut self, stretch: Range<usize>, clocks: &[Clock]) {
        let mut start = stretch.start;
        let known: Vec<_> = self.within(&stretch).map(|(known, _)| known).collect();
        for known in known.into_iter().chain(std::iter::once(stretch.end..stretch.end)) {
            if start < known.start {
                self.0.insert(start, Stretch { end: known.start, clocks: clocks.to_vec() });
            }
            start = known.end;
        }
    }

    /// The parts of a stretch that have clocks, and these.
    pub(crate) fn within(
        &self,
        stretch: &Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &[Clock])> {
        let Range { start, end } = *stretch;
        let before = self.0.range(..start).next_back();
        let all = before.into_iter().chain(self.0.range(start..end.max(start)));
        let cut = move |(first, known): (&usize, &Stretch)| (*first).max(start)..known.end.min(end);
        all.map(move |(first, known)| (cut((first, known)), known.clocks.as_slice()))
            .filter(|(part, _)| !part.is_empty())
    }

    /// Whether all of a stretch has clocks.
    pub(crate) fn covers(&self, stretch: &Range<usize>) -> bool {
        self.within(stretch).map(|(part, _)| part.len()).sum::<usize>() == stretch.len()
    }

    /// The clocks of a stretch, if they are the same everywhere.
    fn uniform(&self, stretch: &Range<usize>) -> Option<&[Clock]> {
        let mut all = self.within(stretch);
        let (_, first) = all.next()?;
        (all.all(|(_, clocks)| clocks == first) && self.covers(stretch)).then_some(first)
    }

    /// Whether so many rounds of every worker are in all of a stretch that has clocks.
    pub(crate) fn has_all(&self, stretch: &Range<usize>, rounds: u32) -> bool {
        let mut clocks = self.within(stretch).flat_map(|(_, clocks)| clocks);
        clocks.all(|clock| !is_behind(clock.rounds, rounds))
    }

    /// A worker's round goes into a stretch, all of which has clocks: where it is from now on.
    pub(crate) fn advance(
        &mut self,
        stretch: &Range<usize>,
        (rank, round): (Rank, Round),
    ) -> Vec<Added> {
        self.split(stretch);
        let mut out = Vec::new();
        for (start, known) in self.0.range_mut(stretch.clone()) {
            let stretch = *start..known.end;
            if let Some(position) = position_of(&known.clocks, (rank, round)) {
                out.push(Added { stretch, position, is_fresh: false });
                continue;
            }
            let position = rounds_in(&known.clocks);
            let at = known.clocks.binary_search_by_key(&rank, |clock| clock.rank);
            let at = at.unwrap_or_else(|at| {
                known.clocks.insert(at, Clock::new(rank));
                at
            });
            known.clocks[at] = Clock { rank, rounds: round.0.wrapping_add(1), position };
            out.push(Added { stretch, position, is_fresh: true });
        }
        if let Some(clocks) = self.uniform(stretch).map(<[Clock]>::to_vec) {
            self.set(stretch.clone(), clocks);
        }
        out
    }

    /// Makes a stretch begin and end where others do.
    fn split(&mut self, stretch: &Range<usize>) {
        for at in [stretch.start, stretch.end] {
            let Some((start, known)) = self.0.range_mut(..at).next_back() else { continue };
            if *start < at && at < known.end {
                let rest = Stretch { end: known.end, clocks: known.clocks.clone() };
                known.end = at;
                self.0.insert(at, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(of: [u32; 2]) -> Vec<Clock> {
        (0..).map(Rank).zip(of).map(|(rank, rounds)| Clock { rounds, ..Clock::new(rank) }).collect()
    }

    fn all(map: &Clocks) -> Vec<(Range<usize>, Vec<u32>)> {
        let values = |clocks: &[Clock]| clocks.iter().map(|clock| clock.rounds).collect();
        map.within(&(0..1000)).map(|(part, clocks)| (part, values(clocks))).collect()
    }

    fn added(stretch: Range<usize>, position: u32, is_fresh: bool) -> Added {
        Added { stretch, position, is_fresh }
    }

    #[test]
    fn a_round_goes_into_each_stretch_once() {
        let mut map = Clocks::default();
        map.set(0..100, clocks([0, 0]));
        assert_eq!(map.advance(&(20..50), (Rank(1), Round(0))), [added(20..50, 0, true)]);
        assert_eq!(map.advance(&(20..50), (Rank(1), Round(0))), [added(20..50, 0, false)]);
        assert_eq!(
            map.advance(&(10..60), (Rank(1), Round(0))),
            [added(10..20, 0, true), added(20..50, 0, false), added(50..60, 0, true)]
        );
        assert_eq!(
            all(&map),
            [(0..10, vec![0, 0]), (10..60, vec![0, 1]), (60..100, vec![0, 0])],
            "stretches of the same clocks are joined"
        );
        assert_eq!((map.has_all(&(10..60), 1), map.uniform(&(0..20))), (false, None));
        assert_eq!(map.advance(&(0..100), (Rank(0), Round(0))).len(), 3);
        assert_eq!((map.has_all(&(10..60), 1), map.has_all(&(0..60), 1)), (true, false));
        let last = Clock { position: 1, ..clocks([1, 1])[0] };
        assert_eq!(map.uniform(&(30..40)), Some(&[last, clocks([1, 1])[1]][..]));
    }

    #[test]
    fn a_round_has_the_position_that_it_had_at_first() {
        let mut map = Clocks::default();
        map.set(0..8, clocks([0, 0]));
        map.advance(&(0..8), (Rank(1), Round(0)));
        assert_eq!(map.advance(&(0..8), (Rank(0), Round(0))), [added(0..8, 1, true)]);
        map.advance(&(0..8), (Rank(1), Round(1)));
        // Its worker does it again.
        assert_eq!(map.advance(&(4..6), (Rank(0), Round(0))), [added(4..6, 1, false)]);
        let (_, clocks) = map.within(&(0..8)).next().unwrap();
        assert_eq!(rounds_in(clocks), 3);
        assert_eq!(position_of(clocks, (Rank(1), Round(1))), Some(2));
        assert_eq!(position_of(clocks, (Rank(1), Round(2))), None);
        assert_eq!(position_of(clocks, (Rank(2), Round(0))), None);
    }

    #[test]
    fn clocks_are_set_in_place_of_others_or_where_there_are_none() {
        let mut map = Clocks::default();
        map.set(10..20, clocks([1, 1]));
        map.complete(0..30, &clocks([2, 2]));
        assert_eq!(all(&map), [(0..10, vec![2, 2]), (10..20, vec![1, 1]), (20..30, vec![2, 2])]);
        map.set(5..15, clocks([3, 0]));
        assert_eq!(map.len(), 4);
        assert!(map.covers(&(0..30)) && !map.covers(&(0..31)) && map.covers(&(7..8)));
        map.complete(0..30, &clocks([9, 9]));
        assert!(map.has_all(&(0..30), 0) && !map.has_all(&(0..30), 1));
    }

    #[test]
    fn rounds_are_counted_modulo_2_to_the_32() {
        let mut map = Clocks::default();
        map.set(0..8, clocks([u32::MAX, u32::MAX]));
        assert!(map.advance(&(0..8), (Rank(0), Round(u32::MAX)))[0].is_fresh);
        assert!(!map.advance(&(0..8), (Rank(0), Round(u32::MAX)))[0].is_fresh);
        assert!(map.has_all(&(0..8), u32::MAX) && !map.has_all(&(0..8), 0));
        assert!(map.advance(&(0..8), (Rank(1), Round(u32::MAX)))[0].is_fresh);
        assert!(map.has_all(&(0..8), 0) && !map.has_all(&(0..8), 1));
        assert!(map.advance(&(0..8), (Rank(0), Round(0)))[0].is_fresh);
        assert_eq!(all(&map), [(0..8, vec![1, 0])]);
    }

    #[test]
    fn a_worker_without_a_clock_has_contributed_nothing() {
        let mut map = Clocks::default();
        map.set(0..8, vec![Clock { rounds: 4, ..Clock::new(Rank(1)) }]);
        assert_eq!(map.advance(&(0..8), (Rank(0), Round(0))), [added(0..8, 4, true)]);
        assert_eq!(all(&map), [(0..8, vec![1, 4])]);
    }
}
