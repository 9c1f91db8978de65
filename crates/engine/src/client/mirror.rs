//! The variables that a worker mirrors: the value and the slots of a share of each, on which it
//! applies the same rule to the same gradients as the lane.
//!
//! What workers mirror is what a job keeps; the state in a lane is a copy of it. A mirror receives
//! the gradient in place of the new value, so that it costs no bytes on the network.
//!
//! Of a variable that changes asynchronously it receives snapshots, with the clocks that say which
//! rounds of which workers are in them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, Rank, Round, TensorId, Update};
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
    /// The last round that was applied, and to which elements.
    applied: Option<(Round, Spans)>,
    /// Which rounds are in it, by element, if it changes asynchronously.
    clocks: Clocks,
    /// The type of the tensor, if it changes asynchronously.
    dtype: Option<Dtype>,
}

/// A stretch of a variable: its parts, as elements of the master type.
#[derive(Debug)]
struct Shard {
    master: Dtype,
    parts: Vec<AlignedBuf>,
}

impl Mirrors {
    /// Takes the parts of a stretch of a variable that begins at element `first`.
    pub(super) fn insert(
        &mut self,
        tensor: TensorId,
        first: usize,
        master: Dtype,
        parts: Vec<AlignedBuf>,
    ) {
        self.0.entry(tensor).or_default().shards.insert(first, Shard { master, parts });
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
        let (first, shard) = self.0.get(&tensor)?.shards.range(..=elements.start).next_back()?;
        let bytes = shard.bytes(*first, elements);
        shard.parts.iter().map(|part| part.get(bytes.clone())).collect()
    }

    /// The value of these elements as elements of `dtype`.
    pub(super) fn weights(
        &self,
        tensor: TensorId,
        elements: &Range<usize>,
        dtype: Dtype,
    ) -> Option<Vec<u8>> {
        let mut out = vec![0; elements.len() * dtype.size()];
        let mut start = elements.start;
        while start < elements.end {
            let (first, shard) = self.0.get(&tensor)?.shards.range(..=start).next_back()?;
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
        let Some(Mirror { shards, applied, .. }) = self.0.get_mut(&tensor) else { return false };
        let shard = shards.range_mut(..=first).next_back();
        let Some((start, shard)) = shard else { return false };
        let bytes = shard.bytes(*start, &elements);
        let master = shard.master;
        let parts = shard.parts.iter_mut().map(|part| part.get_mut(bytes.clone()));
        let Some(mut parts) = parts.collect::<Option<Vec<&mut [u8]>>>() else { return false };
        if dtype == master {
            sumpter_sum::update(update, master, &mut parts, (dtype, gradient), None);
            weights.copy_from_slice(parts[0]);
        } else {
            let out = Some((dtype, weights));
            sumpter_sum::update(update, master, &mut parts, (dtype, gradient), out);
        }
        match applied {
            Some((known, spans)) if *known == round => spans.insert(elements),
            _ => *applied = Some((round, [elements].into_iter().collect())),
        }
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
        mirrors.insert(TENSOR, 10, Dtype::F32, vec![buffer(&[1.0, 2.0, 3.0])]);
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
        mirrors.insert(TENSOR, 13, Dtype::F32, vec![buffer(&[5.0])]);
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
}
