//! Who mirrors which part of a variable in an epoch: a function of what all workers have reported.
//!
//! A share has one mirror, or two where workers may die. The first of a stretch has its state, and
//! the second gets it from there if it lacks it; so a worker may become a mirror in any epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use sumpter_types::{Rank, Round, TensorId};
use sumpter_wire::MAX_MIRRORS;

use crate::client::{MirroredElements, Standing};
use crate::recovery::Progress;
use crate::spans::Spans;

/// A part of a variable that is mirrored as a whole, in one piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Bytes of the tensor.
    pub span: Range<usize>,
    /// The living workers that may mirror it, in the order of preference.
    pub candidates: Vec<Rank>,
}

/// A stretch of a variable, and who mirrors it in an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredSpan {
    /// Bytes of the tensor.
    pub span: Range<usize>,
    /// The share that they are a part of.
    pub share: Range<usize>,
    /// The mirrors. The first one has the state, and fills the lane.
    pub mirrors: [Option<Rank>; MAX_MIRRORS],
    /// The second one gets the state from the first.
    pub lacks: bool,
    /// The interrupted round that the state has in it, though others may lack its result.
    pub applied: Option<Round>,
}

/// The workers that mirrored a stretch of a variable have all died.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the workers that kept bytes {span:?} of its state have died")]
pub struct StateLost {
    span: Range<usize>,
}

/// Who mirrors a variable in the next epoch, from the progress of all workers: of each stretch the
/// first mirror is one that has the state, of those the one that has got furthest; the second, if
/// there are to be `copies`, one that may be a mirror together with it.
///
/// # Errors
/// [`StateLost`] if the variable has a value and none of the candidates has a stretch of it, or
/// where there are two copies none with a round that some worker is past: the mirror that had it
/// died before it could give it to the other.
pub fn mirrored_spans(
    id: TensorId,
    (shares, size): (&[Share], usize),
    copies: usize,
    may_join: impl Fn(Rank, Rank) -> bool,
    progress: &BTreeMap<Rank, Progress>,
) -> Result<Vec<MirroredSpan>, StateLost> {
    let members: BTreeSet<Rank> = shares.iter().flat_map(|s| s.candidates.clone()).collect();
    let known = |rank: &Rank| progress.get(rank).map(|p| Known::of(id, size, p));
    let known: BTreeMap<Rank, Known> =
        members.iter().filter_map(|rank| Some((*rank, known(rank)?))).collect();
    let interrupted = known.values().map(|known| known.standing.round).min();
    // Then the contributions to the interrupted round are gone.
    let is_past =
        copies > 1 && known.values().any(|known| Some(known.standing.round) > interrupted);
    let ends = known.values().flat_map(Known::ends);
    let ends = ends.chain(shares.iter().flat_map(|share| [share.span.start, share.span.end]));
    let ends: BTreeSet<usize> = ends.collect();
    let mut out: Vec<MirroredSpan> = Vec::new();
    for Share { span: share, candidates } in shares {
        let ends: Vec<usize> = ends.range(share.start..=share.end).copied().collect();
        for pair in ends.windows(2) {
            let span = pair[0]..pair[1];
            // What a worker has of the stretch: nothing, or the state without or with the round
            // that was interrupted. One that has no value yet will get it as the others did.
            let has = |rank: &Rank| match known.get(rank) {
                Some(known) => known.level(&span, interrupted.unwrap_or_default()),
                None => Level::Unset,
            };
            let best = candidates.iter().map(has).max().unwrap_or(Level::Nothing);
            let first = candidates.iter().find(|rank| has(rank) == best);
            let is_lost = best == Level::Nothing || (best == Level::State && is_past);
            let first = first.filter(|_| !is_lost).ok_or(StateLost { span: span.clone() })?;
            let may_be = |rank: &&Rank| *rank != first && may_join(*first, **rank);
            let others: Vec<&Rank> =
                candidates.iter().filter(|_| copies > 1).filter(may_be).collect();
            let alike = others.iter().find(|rank| has(rank) == best);
            let second = alike.or(others.first()).map(|rank| **rank);
            let next = MirroredSpan {
                share: share.clone(),
                mirrors: [Some(*first), second],
                lacks: second.is_some() && alike.is_none(),
                applied: interrupted.filter(|_| best == Level::Applied),
                span,
            };
            match out.last_mut() {
                Some(last) if last.joins(&next) => last.span.end = next.span.end,
                _ => out.push(next),
            }
        }
    }
    Ok(out)
}

/// What a worker has of a stretch of a variable; the later is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Nothing,
    /// The variable has no value here yet, and will have.
    Unset,
    State,
    /// With the round that was interrupted.
    Applied,
}

/// What is known of a worker's part in a variable, in bytes of the tensor.
struct Known {
    standing: Standing,
    mirrored: Option<Spans>,
}

impl Known {
    fn of(id: TensorId, size: usize, progress: &Progress) -> Known {
        let standing = progress.standings.get(id.0 as usize).cloned().unwrap_or_default();
        let bytes = |spans: &Spans| spans.iter().map(|s| s.start * size..s.end * size).collect();
        Known { standing, mirrored: progress.mirrored.get(&id).map(bytes) }
    }

    fn ends(&self) -> Vec<usize> {
        let spans = self.mirrored.iter().chain(&self.standing.begun);
        spans.flat_map(|spans| spans.iter().flat_map(|span| [span.start, span.end])).collect()
    }

    fn level(&self, span: &Range<usize>, interrupted: Round) -> Level {
        let Standing { round, begun, .. } = &self.standing;
        match &self.mirrored {
            None => Level::Unset,
            Some(mirrored) if !mirrored.contains(span) => Level::Nothing,
            _ if *round > interrupted => Level::Applied,
            _ if begun.as_ref().is_some_and(|done| done.contains(span)) => Level::Applied,
            _ => Level::State,
        }
    }
}

impl MirroredSpan {
    /// Whether the next stretch is treated alike.
    fn joins(&self, next: &MirroredSpan) -> bool {
        let same = MirroredSpan { span: self.span.clone(), ..next.clone() } == *self;
        same && self.span.end == next.span.start
    }

    /// What `rank` mirrors of it, of elements of so many bytes.
    fn elements(&self, rank: Rank, size: usize) -> Option<MirroredElements> {
        let elements = |bytes: &Range<usize>| bytes.start / size..bytes.end / size;
        let (span, share) = (elements(&self.span), elements(&self.share));
        let lacks = self.lacks && self.mirrors[0] != Some(rank);
        let own = self.mirrors.contains(&Some(rank));
        own.then_some(MirroredElements { span, share, lacks, applied: self.applied })
    }
}

/// What `rank` mirrors of a variable whose elements have so many bytes.
#[must_use]
pub fn mirrored_elements(spans: &[MirroredSpan], rank: Rank, size: usize) -> Vec<MirroredElements> {
    spans.iter().filter_map(|span| span.elements(rank, size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TensorId = TensorId(0);
    const SIZE: usize = 4;

    /// What a worker reports: its round, the end of what it has of the result, and the end of what
    /// it mirrors, as elements.
    fn reported(round: u32, done: usize, mirrored: Option<usize>) -> Progress {
        let begun = Some(Spans::whole(done * SIZE));
        Progress {
            standings: vec![Standing { round: Round(round), begun, has_failed: false }],
            mirrored: mirrored.into_iter().map(|end| (ID, Spans::whole(end))).collect(),
            ..Progress::default()
        }
    }

    /// A stretch, its mirrors, whether the second lacks the state, and whether that has a round.
    type Chosen = (Range<usize>, Vec<u32>, bool, bool);

    fn chosen(copies: usize, progress: Vec<Option<Progress>>) -> Result<Vec<Chosen>, StateLost> {
        let living = |rank: &u32| progress[*rank as usize].is_some();
        let ring = |first: u32| (first..4).chain(0..first).filter(living).map(Rank).collect();
        let shares = [
            Share { span: 0..40, candidates: ring(0) },
            Share { span: 40..80, candidates: ring(2) },
        ];
        let known = (0..).map(Rank).zip(progress.clone());
        let known = known.filter_map(|(rank, progress)| Some((rank, progress?))).collect();
        // Ranks 0 and 1 are on one machine, as are 2 and 3.
        let may_join = |a: Rank, b: Rank| a.0 / 2 != b.0 / 2;
        let spans = mirrored_spans(ID, (&shares, SIZE), copies, may_join, &known)?;
        let plain = |of: MirroredSpan| {
            let ranks = of.mirrors.into_iter().flatten().map(|rank| rank.0).collect();
            (of.span.start / SIZE..of.span.end / SIZE, ranks, of.lacks, of.applied.is_some())
        };
        Ok(spans.into_iter().map(plain).collect())
    }

    #[test]
    fn the_first_in_order_mirror_a_variable_without_a_value() {
        let fresh = || Some(Progress::default());
        let all = vec![fresh(), fresh(), fresh(), fresh()];
        let one = chosen(1, all.clone()).unwrap();
        assert_eq!(one, [(0..10, vec![0], false, false), (10..20, vec![2], false, false)]);
        let two = chosen(2, all).unwrap();
        assert_eq!(two, [(0..10, vec![0, 2], false, false), (10..20, vec![2, 0], false, false)]);
    }

    #[test]
    fn who_has_the_state_gives_it_to_a_new_mirror_on_another_machine() {
        let none = || Some(reported(3, 0, Some(0)));
        let all = vec![None, none(), Some(reported(3, 0, Some(20))), none()];
        let found = chosen(2, all).unwrap();
        assert_eq!(found, [(0..10, vec![2, 1], true, false), (10..20, vec![2, 1], true, false)]);
    }

    #[test]
    fn the_mirror_that_has_got_further_gives_its_state_to_the_other() {
        let rank0 = reported(3, 20, Some(20));
        let rank2 = reported(3, 6, Some(20));
        let rest = || Some(reported(3, 20, Some(0)));
        let found = chosen(2, vec![Some(rank0), rest(), Some(rank2), rest()]).unwrap();
        let expected = [
            (0..6, vec![0, 2], false, true),
            (6..10, vec![0, 2], true, true),
            (10..20, vec![0, 2], true, true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_worker_that_will_get_the_value_may_be_a_mirror() {
        let set = || Some(reported(0, 0, Some(0)));
        let found = chosen(2, vec![None, None, Some(reported(0, 0, None)), set()]).unwrap();
        assert_eq!(found[0], (0..10, vec![2], false, false));
    }

    #[test]
    fn a_state_without_a_round_that_a_worker_is_past_is_lost() {
        let behind = || Some(reported(3, 0, Some(20)));
        let begins = chosen(2, vec![Some(reported(3, 20, Some(0))), None, behind(), None]);
        assert_eq!(begins.unwrap()[0], (0..10, vec![2, 0], true, false));
        let past = chosen(2, vec![Some(reported(4, 0, Some(0))), None, behind(), None]);
        assert_eq!(past, Err(StateLost { span: 0..40 }));
    }

    #[test]
    fn a_state_that_no_worker_has_is_lost() {
        let none = || Some(reported(3, 0, Some(0)));
        let rank1 = Some(reported(3, 20, Some(15)));
        let lost = chosen(2, vec![None, rank1, none(), none()]);
        assert_eq!(lost, Err(StateLost { span: 60..80 }));
    }
}
