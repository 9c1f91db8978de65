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
    pub(crate) fn uniform(&self, stretch: &Range<usize>) -> Option<&[Clock]> {
        let mut all = self.within(stretch);
        let (_, first) = all.next()?;
        (all.all(|(_, clocks)| clocks == first) && self.covers(stretch)).then_some(first)
    }

    /// How many rounds of every worker are in all of a stretch that has clocks.
    pub(crate) fn lowest(&self, stretch: &Range<usize>) -> u32 {
        let clocks = self.within(stretch).flat_map(|(_, clocks)| clocks);
        clocks.map(|(_, clock)| *clock).min().unwrap_or(0)
    }

    /// A worker's round goes into a stretch, all of which has clocks. Returns the parts that do not
    /// have it yet: to these it must be applied.
    pub(crate) fn advance(
        &mut self,
        stretch: &Range<usize>,
        (rank, round): (Rank, Round),
    ) -> Vec<Range<usize>> {
        self.split(stretch);
        let mut fresh = Vec::new();
        for (start, known) in self.0.range_mut(stretch.clone()) {
            let at = match known.clocks.binary_search_by_key(&rank, |(rank, _)| *rank) {
                Ok(at) => at,
                Err(at) => {
                    known.clocks.insert(at, (rank, 0));
                    at
                }
            };
            let clock = &mut known.clocks[at].1;
            if *clock <= round.0 {
                *clock = round.0 + 1;
                fresh.push(*start..known.end);
            }
        }
        if let Some(clocks) = self.uniform(stretch).map(<[Clock]>::to_vec) {
            self.set(stretch.clone(), clocks);
        }
        fresh
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
        (0..).map(Rank).zip(of).collect()
    }

    fn all(map: &Clocks) -> Vec<(Range<usize>, Vec<u32>)> {
        let values = |clocks: &[Clock]| clocks.iter().map(|(_, clock)| *clock).collect();
        map.within(&(0..1000)).map(|(part, clocks)| (part, values(clocks))).collect()
    }

    #[test]
    fn a_round_goes_into_each_stretch_once() {
        let mut map = Clocks::default();
        map.set(0..100, clocks([0, 0]));
        assert_eq!(map.advance(&(20..50), (Rank(1), Round(0))), [20..50]);
        assert_eq!(map.advance(&(20..50), (Rank(1), Round(0))), []);
        assert_eq!(map.advance(&(10..60), (Rank(1), Round(0))), [10..20, 50..60]);
        assert_eq!(
            all(&map),
            [(0..10, vec![0, 0]), (10..60, vec![0, 1]), (60..100, vec![0, 0])],
            "stretches of the same clocks are joined"
        );
        assert_eq!((map.lowest(&(10..60)), map.uniform(&(0..20))), (0, None));
        assert_eq!(map.advance(&(0..100), (Rank(0), Round(0))).len(), 3);
        assert_eq!((map.lowest(&(10..60)), map.lowest(&(0..60))), (1, 0));
        assert_eq!(map.uniform(&(30..40)), Some(&clocks([1, 1])[..]));
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
        assert_eq!(map.lowest(&(0..30)), 0);
    }

    #[test]
    fn a_worker_without_a_clock_has_contributed_nothing() {
        let mut map = Clocks::default();
        map.set(0..8, vec![(Rank(1), 4)]);
        assert_eq!(
            map.advance(&(0..8), (Rank(0), Round(0))),
            std::iter::once(0..8).collect::<Vec<_>>()
        );
        assert_eq!(map.uniform(&(0..8)), Some(&clocks([1, 4])[..]));
    }
}
