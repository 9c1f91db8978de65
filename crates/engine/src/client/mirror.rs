//! The variables that a worker mirrors: the value and the slots of a share of each, on which it
//! applies the same rule to the same gradients as the lane.
//!
//! What workers mirror is what a job keeps; the state in a lane is a copy of it. A mirror receives
//! the gradient in place of the new value, so that it costs no bytes on the network.
//!
//! Of a variable that changes asynchronously it receives snapshots, with the clocks that say which
//! rounds of which workers are in them.
//!
//! Where workers may die, a share has two mirrors. A worker that is to mirror in this epoch what it
//! does not have *lacks* it until the other mirror's copy of it is [here](Mirrors::take).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use arrayvec::ArrayVec;
use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, MAX_SLOTS, Rank, Round, TensorId, Update};
use sumpter_wire::Clock;

use crate::clocks::Clocks;
use crate::spans::Spans;

/// All that a worker mirrors.
#[derive(Debug, Default)]
pub(super) struct Mirrors(HashMap<TensorId, Mirror>);

/// What a worker mirrors of a variable.
#[derive(Debug, Default)]
struct Mirror {
    /// By the first element.
    shards: BTreeMap<usize, Shard>,
    /// The elements whose state is here.
    held: Spans,
    /// What another mirror gives to this one.
    lacking: Lacking,
    /// The last round that was applied, and to which elements.
    applied: Option<(Round, Spans)>,
    /// Which rounds are in it, by element, if it changes asynchronously.
    clocks: Clocks,
    /// The type of the tensor, if it changes asynchronously.
    dtype: Option<Dtype>,
}

/// Elements that a worker mirrors from now on, and whose state is not all here.
#[derive(Debug, Default)]
struct Lacking {
    /// The elements, and the round that their state will have, if it is one that was interrupted.
    spans: Vec<(Range<usize>, Option<Round>)>,
    /// By part, the elements that have not come.
    missing: Vec<Spans>,
}

/// What a worker is to mirror of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredElements {
    /// The elements.
    pub span: Range<usize>,
    /// The share of the variable that they are a part of, which lies in one piece.
    pub share: Range<usize>,
    /// The other mirror gives the state to this one.
    pub lacks: bool,
    /// The interrupted round that is in the state.
    pub applied: Option<Round>,
}

/// A stretch of a variable: its parts, as elements of the master type.
#[derive(Debug)]
struct Shard {
    master: Dtype,
    parts: Vec<AlignedBuf>,
}

impl Mirrors {
    /// Takes the parts of a stretch of a variable that begins at element `first` of a share.
    pub(super) fn insert(
        &mut self,
        tensor: TensorId,
        (share, first): (Range<usize>, usize),
        master: Dtype,
        parts: Vec<AlignedBuf>,
    ) {
        let mirror = self.0.entry(tensor).or_default();
        let shard = Shard { master, parts };
        let elements = first..first + shard.len();
        // It is newer than what another mirror may be about to give.
        mirror.lacking.missing.iter_mut().for_each(|part| part.remove(elements.clone()));
        mirror.held.insert(elements.clone());
        if elements == share {
            mirror.shards.insert(first, shard);
            return;
        }
        let whole = mirror.shards.entry(share.start);
        let whole = whole.or_insert_with(|| Shard::zeros(master, share.len(), shard.parts.len()));
        let at = whole.bytes(share.start, &elements);
        for (into, part) in whole.parts.iter_mut().zip(&shard.parts) {
            into[at.clone()].copy_from_slice(part);
        }
    }

    /// A variable has a value from now on, whether any of it is mirrored here or not.
    pub(super) fn begin(&mut self, tensor: TensorId) {
        self.0.entry(tensor).or_default();
    }

    /// The elements of a variable whose state is here; `None` if it has no value yet.
    pub(super) fn held(&self, tensor: TensorId) -> Option<&Spans> {
        self.0.get(&tensor).map(|mirror| &mirror.held)
    }

    /// This is all that is mirrored here of a variable from now on, in `parts` parts of the master
    /// type.
    pub(super) fn assign(
        &mut self,
        tensor: TensorId,
        (master, parts): (Dtype, usize),
        all: &[MirroredElements],
    ) {
        let Some(mirror) = self.0.get_mut(&tensor) else { return };
        let mut held = Spans::default();
        mirror.lacking = Lacking::default();
        for elements in all {
            let MirroredElements { span, share, lacks, applied } = elements;
            if !lacks {
                held.insert(span.clone());
                continue;
            }
            let shard = mirror.shards.entry(share.start);
            shard.or_insert_with(|| Shard::zeros(master, share.len(), parts));
            mirror.lacking.spans.push((span.clone(), *applied));
        }
        let lacking: Spans = mirror.lacking.spans.iter().map(|(span, _)| span.clone()).collect();
        if !lacking.is_empty() {
            mirror.lacking.missing = vec![lacking; parts];
        }
        let used = |first: &usize| all.iter().any(|elements| elements.share.start == *first);
        mirror.shards.retain(|first, _| used(first));
        debug_assert!(held.iter().all(|span| mirror.held.contains(&span)), "a state that is gone");
        mirror.held = held;
    }

    /// Whether state of a variable is still to come from another mirror.
    pub(super) fn lacks(&self, tensor: TensorId) -> bool {
        let lacks = |mirror: &Mirror| !mirror.lacking.missing.iter().all(Spans::is_empty);
        self.0.get(&tensor).is_some_and(lacks)
    }

    /// Takes a part of these elements from another mirror; whether all that was lacking is here
    /// now.
    pub(super) fn take(
        &mut self,
        tensor: TensorId,
        part: usize,
        elements: &Range<usize>,
        bytes: &[u8],
    ) -> bool {
        let Some(Mirror { shards, held, lacking, applied, .. }) = self.0.get_mut(&tensor) else {
            return false;
        };
        let Some(missing) = lacking.missing.get_mut(part) else { return false };
        let shard = shards.range_mut(..=elements.start).next_back();
        let Some((first, shard)) = shard.filter(|_| missing.contains(elements)) else {
            return false;
        };
        let at = shard.bytes(*first, elements);
        shard.parts[part][at].copy_from_slice(bytes);
        missing.remove(elements.clone());
        if !lacking.missing.iter().all(Spans::is_empty) {
            return false;
        }
        for (span, round) in std::mem::take(lacking).spans {
            held.insert(span.clone());
            if let Some(round) = round {
                note(applied, round, span);
            }
        }
        true
    }

    /// Of these workers, elements that have no clocks yet have no rounds.
    pub(super) fn count_rounds(&mut self, tensor: TensorId, of: Dtype, workers: &[Rank]) {
        let Some(Mirror { shards, clocks, dtype, .. }) = self.0.get_mut(&tensor) else { return };
        *dtype = Some(of);
        let none: Vec<Clock> = workers.iter().map(|rank| Clock::new(*rank)).collect();
        for (first, shard) in shards {
            clocks.complete(*first..first + shard.len(), &none);
        }
    }

    /// The type of a variable's elements in the tensor, if it changes asynchronously.
    pub(super) fn dtype(&self, tensor: TensorId) -> Option<Dtype> {
        self.0.get(&tensor)?.dtype
    }

    /// The clocks of these elements of a variable, if it changes asynchronously.
    pub(super) fn clocks(
        &self,
        tensor: TensorId,
        elements: &Range<usize>,
    ) -> Vec<(Range<usize>, Vec<Clock>)> {
        let within = self.0.get(&tensor).map(|mirror| mirror.clocks.within(elements));
        let within = within.into_iter().flatten();
        within.map(|(part, clocks)| (part, clocks.to_vec())).collect()
    }

    /// Takes a snapshot of these elements: each part, one after the other; whether they are
    /// mirrored here, as so many bytes.
    pub(super) fn restore(
        &mut self,
        tensor: TensorId,
        elements: Range<usize>,
        clocks: Vec<Clock>,
        parts: &[u8],
    ) -> bool {
        let Some(mirror) = self.0.get_mut(&tensor) else { return false };
        let shard = mirror.shards.range_mut(..=elements.start).next_back();
        let Some((first, shard)) = shard else { return false };
        let bytes = shard.bytes(*first, &elements);
        let fits = |part: &AlignedBuf| bytes.end <= part.len();
        let is_whole = parts.len() == shard.parts.len() * bytes.len();
        if bytes.is_empty() || !is_whole || !shard.parts.iter().all(fits) {
            return false;
        }
        for (part, new) in shard.parts.iter_mut().zip(parts.chunks_exact(bytes.len())) {
            part[bytes.clone()].copy_from_slice(new);
        }
        mirror.clocks.set(elements, clocks);
        true
    }

    /// Drops all of a variable.
    pub(super) fn forget(&mut self, tensor: TensorId) {
        self.0.remove(&tensor);
    }

    /// The parts of these elements, if they are mirrored here in one stretch.
    pub(super) fn parts(&self, tensor: TensorId, elements: &Range<usize>) -> Option<Vec<&[u8]>> {
        let Mirror { shards, held, .. } = self.0.get(&tensor)?;
        let (first, shard) = shards.range(..=elements.start).next_back()?;
        let bytes = shard.bytes(*first, elements);
        let parts = shard.parts.iter().map(|part| part.get(bytes.clone()));
        parts.collect::<Option<Vec<_>>>().filter(|_| held.contains(elements))
    }

    /// The value of these elements as elements of `dtype`.
    pub(super) fn weights(
        &self,
        tensor: TensorId,
        elements: &Range<usize>,
        dtype: Dtype,
    ) -> Option<Vec<u8>> {
        let Mirror { shards, held, .. } = self.0.get(&tensor)?;
        if !held.contains(elements) {
            return None;
        }
        let mut out = vec![0; elements.len() * dtype.size()];
        let mut start = elements.start;
        while start < elements.end {
            let (first, shard) = shards.range(..=start).next_back()?;
            let end = elements.end.min(first + shard.len());
            if end <= start {
                return None;
            }
            let value = shard.parts.first()?.get(shard.bytes(*first, &(start..end)))?;
            let at = start - elements.start..end - elements.start;
            write(dtype, &mut out[at.start * dtype.size()..at.end * dtype.size()], value);
            start = end;
        }
        Some(out)
    }

    /// Applies a rule to the elements from `first` on, and writes the new value to `weights`;
    /// whether they are mirrored here.
    pub(super) fn apply(
        &mut self,
        (tensor, round): (TensorId, Round),
        first: usize,
        update: &Update,
        (dtype, gradient): (Dtype, &[u8]),
        weights: &mut [u8],
    ) -> bool {
        let elements = first..first + gradient.len() / dtype.size();
        let Some(Mirror { shards, held, applied, .. }) = self.0.get_mut(&tensor) else {
            return false;
        };
        if !held.contains(&elements) {
            return false;
        }
        let shard = shards.range_mut(..=first).next_back();
        let Some((start, shard)) = shard else { return false };
        let bytes = shard.bytes(*start, &elements);
        let master = shard.master;
        let parts = shard.parts.iter_mut().map(|part| part.get_mut(bytes.clone()));
        let parts = parts.collect::<Option<ArrayVec<&mut [u8], { 1 + MAX_SLOTS }>>>();
        let Some(mut parts) = parts else { return false };
        if dtype == master {
            sumpter_sum::update(update, master, &mut parts, (dtype, gradient), None);
            weights.copy_from_slice(parts[0]);
        } else {
            let out = Some((dtype, weights));
            sumpter_sum::update(update, master, &mut parts, (dtype, gradient), out);
        }
        note(applied, round, elements);
        true
    }

    /// The elements of a variable to which a round was applied, if it is the last one that was.
    pub(super) fn applied(&self, tensor: TensorId, round: Round) -> Spans {
        let applied = self.0.get(&tensor).and_then(|mirror| mirror.applied.as_ref());
        let of_round = applied.filter(|(known, _)| *known == round);
        of_round.map(|(_, spans)| spans.clone()).unwrap_or_default()
    }
}

impl Shard {
    fn zeros(master: Dtype, elements: usize, parts: usize) -> Shard {
        let part = |_| AlignedBuf::new(elements * master.size());
        Shard { master, parts: (0..parts).map(part).collect() }
    }

    /// How many elements it has.
    fn len(&self) -> usize {
        self.parts.first().map_or(0, |part| part.len() / self.master.size())
    }

    /// Where these elements of the variable are in each part; the shard's first is `first`.
    fn bytes(&self, first: usize, elements: &Range<usize>) -> Range<usize> {
        let size = self.master.size();
        (elements.start - first) * size..(elements.end - first) * size
    }
}

/// A round was applied to these elements.
fn note(applied: &mut Option<(Round, Spans)>, round: Round, elements: Range<usize>) {
    match applied {
        Some((known, spans)) if *known == round => spans.insert(elements),
        _ => *applied = Some((round, [elements].into_iter().collect())),
    }
}

/// Elements of the master type as elements of `dtype`.
fn write(dtype: Dtype, out: &mut [u8], value: &[u8]) {
    match dtype.accumulator() == dtype {
        true => out.copy_from_slice(value),
        false => sumpter_sum::narrow(dtype, out, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_types::Rule;

    const TENSOR: TensorId = TensorId(3);

    fn buffer(values: &[f32]) -> AlignedBuf {
        let mut buffer = AlignedBuf::new(4 * values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        buffer.copy_from_slice(&bytes);
        buffer
    }

    #[test]
    fn a_rule_is_applied_to_what_is_mirrored_and_to_nothing_else() {
        let mut mirrors = Mirrors::default();
        mirrors.insert(TENSOR, (10..13, 10), Dtype::F32, vec![buffer(&[1.0, 2.0, 3.0])]);
        let update =
            Update { step: -0.5, ..Update::new(Rule::Sgd { momentum: false, nesterov: false }) };
        let gradient = buffer(&[2.0, 4.0]);
        let mut weights = vec![0; 8];
        let mut apply = |tensor, first| {
            let (round, gradient) = (Round(4), (Dtype::F32, &gradient[..]));
            mirrors.apply((tensor, round), first, &update, gradient, &mut weights)
        };
        assert!(!apply(TensorId(4), 11) && !apply(TENSOR, 9) && !apply(TENSOR, 12));
        assert!(apply(TENSOR, 11));
        assert_eq!(weights, *buffer(&[1.0, 1.0]));
        assert_eq!(
            mirrors.weights(TENSOR, &(10..13), Dtype::F32).unwrap(),
            *buffer(&[1.0, 1.0, 1.0])
        );
        assert_eq!(
            mirrors.weights(TENSOR, &(10..12), Dtype::Bf16).unwrap(),
            [0x80, 0x3f, 0x80, 0x3f]
        );
        let applied: Vec<_> = mirrors.applied(TENSOR, Round(4)).iter().collect();
        assert_eq!(applied, std::iter::once(11..13).collect::<Vec<_>>());
        assert!(mirrors.applied(TENSOR, Round(3)).is_empty());
        mirrors.insert(TENSOR, (13..14, 13), Dtype::F32, vec![buffer(&[5.0])]);
        let both = mirrors.weights(TENSOR, &(12..14), Dtype::F32);
        assert_eq!(both.unwrap(), *buffer(&[1.0, 5.0]));
        assert_eq!(mirrors.weights(TENSOR, &(12..15), Dtype::F32), None);
        let (no_clocks, one) = (Vec::new, buffer(&[4.0]));
        assert!(!mirrors.restore(TENSOR, 11..11, no_clocks(), &[]), "of no elements");
        assert!(!mirrors.restore(TENSOR, 11..12, no_clocks(), &one[..3]));
        assert!(mirrors.restore(TENSOR, 11..12, no_clocks(), &one));
        mirrors.forget(TENSOR);
        assert_eq!(mirrors.parts(TENSOR, &(10..11)), None);
    }

    #[test]
    fn what_is_lacking_is_held_once_all_parts_of_it_have_come() {
        let mut mirrors = Mirrors::default();
        mirrors.begin(TENSOR);
        let of = |span: Range<usize>, lacks: bool| {
            let applied = lacks.then_some(Round(7));
            MirroredElements { span, share: 10..14, lacks, applied }
        };
        mirrors.assign(TENSOR, (Dtype::F32, 2), &[of(10..12, true), of(12..14, true)]);
        assert!(mirrors.lacks(TENSOR) && mirrors.held(TENSOR).unwrap().is_empty());
        assert!(!mirrors.take(TENSOR, 0, &(10..14), &buffer(&[1.0, 2.0, 3.0, 4.0])));
        assert!(!mirrors.take(TENSOR, 1, &(12..14), &buffer(&[7.0, 8.0])));
        assert!(mirrors.lacks(TENSOR));
        assert!(mirrors.take(TENSOR, 1, &(10..12), &buffer(&[5.0, 6.0])));
        assert!(!mirrors.lacks(TENSOR) && mirrors.held(TENSOR).unwrap().contains(&(10..14)));
        assert!(mirrors.applied(TENSOR, Round(7)).contains(&(10..14)));
        let parts = mirrors.parts(TENSOR, &(11..13)).unwrap();
        assert_eq!(parts, [&buffer(&[2.0, 3.0])[..], &buffer(&[6.0, 7.0])[..]]);
        // A share that is mirrored elsewhere is dropped, and of another the stretch that stays.
        let nines = || vec![buffer(&[9.0, 9.0]), buffer(&[9.0, 9.0])];
        mirrors.insert(TENSOR, (20..22, 20), Dtype::F32, nines());
        mirrors.insert(TENSOR, (10..14, 12), Dtype::F32, nines());
        let parts = mirrors.parts(TENSOR, &(11..13)).unwrap();
        assert_eq!(parts, [&buffer(&[2.0, 9.0])[..], &buffer(&[6.0, 9.0])[..]]);
        mirrors.assign(TENSOR, (Dtype::F32, 2), &[of(10..13, false)]);
        let held: Vec<_> = mirrors.held(TENSOR).unwrap().iter().collect();
        assert_eq!(held, std::iter::once(10..13).collect::<Vec<_>>());
        assert_eq!(mirrors.parts(TENSOR, &(20..21)), None);
        assert!(mirrors.parts(TENSOR, &(13..14)).is_none(), "it is stale");
    }
}
