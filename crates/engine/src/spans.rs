//! Sets of bytes of a tensor, as stretches.

use std::ops::Range;

/// Bytes of a tensor: stretches that neither overlap nor touch, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<(usize, usize)>);

impl Spans {
    /// The bytes from 0 to `end`.
    #[must_use]
    pub fn whole(end: usize) -> Spans {
        let mut all = Spans::default();
        all.insert(0..end);
        all
    }

    /// Adds a stretch.
    pub fn insert(&mut self, stretch: Range<usize>) {
        let Range { mut start, mut end } = stretch;
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, e)| *e < start);
        let last = self.0.partition_point(|(s, _)| *s <= end);
        if let Some((known_start, _)) = self.0[first..last].first() {
            start = start.min(*known_start);
        }
        if let Some((_, known_end)) = self.0[first..last].last() {
            end = end.max(*known_end);
        }
        self.0.splice(first..last, [(start, end)]);
    }

    /// Takes a stretch out.
    pub fn remove(&mut self, stretch: Range<usize>) {
        let Range { start, end } = stretch;
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, e)| *e <= start);
        let last = self.0.partition_point(|(s, _)| *s < end);
        let before = self.0[first..last].first().map(|(s, _)| (*s, start));
        let after = self.0[first..last].last().map(|(_, e)| (end, *e));
        let left = before.into_iter().chain(after).filter(|(s, e)| s < e);
        self.0.splice(first..last, left.collect::<Vec<_>>());
    }

    /// Whether all of a stretch is in the set.
    #[must_use]
    pub fn contains(&self, stretch: &Range<usize>) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < stretch.end);
        stretch.is_empty() || self.0.get(at).is_some_and(|(start, _)| *start <= stretch.start)
    }

    /// How many bytes of a stretch are in the set.
    #[must_use]
    pub fn overlap(&self, stretch: &Range<usize>) -> usize {
        let first = self.0.partition_point(|(_, end)| *end <= stretch.start);
        let within = self.0[first..].iter().take_while(|(start, _)| *start < stretch.end);
        within.map(|(start, end)| stretch.end.min(*end) - stretch.start.max(*start)).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stretches.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

impl FromIterator<Range<usize>> for Spans {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(stretches: I) -> Spans {
        let mut spans = Spans::default();
        stretches.into_iter().for_each(|stretch| spans.insert(stretch));
        spans
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_stretches_is_the_set_of_their_bytes(
            stretches in prop::collection::vec((0usize..60, 0usize..20), 0..12),
            asked in (0usize..60, 0usize..20),
            removed in (0usize..60, 0usize..20),
        ) {
            let mut bytes = [false; 100];
            for (start, len) in &stretches {
                bytes[*start..start + len].fill(true);
            }
            let mut spans: Spans =
                stretches.iter().map(|(start, len)| *start..start + len).collect();
            bytes[removed.0..removed.0 + removed.1].fill(false);
            spans.remove(removed.0..removed.0 + removed.1);
            let mut seen = [false; 100];
            for stretch in spans.iter() {
                prop_assert!(!stretch.is_empty());
                prop_assert!(stretch.start == 0 || !seen[stretch.start - 1], "they touch");
                seen[stretch].fill(true);
            }
            prop_assert_eq!(seen, bytes);
            let asked = asked.0..asked.0 + asked.1;
            let there = bytes[asked.clone()].iter().filter(|b| **b).count();
            prop_assert_eq!(spans.overlap(&asked), there);
            prop_assert_eq!(spans.contains(&asked), there == asked.len());
        }
    }
}
