//! A variable's partition in a lane: its value and the slots of its rule, between rounds.
//!
//! It is a copy: what the workers that mirror the partition have put here in this epoch. A round's
//! sum is applied to a chunk once all parts of the chunk are there; until then it waits.

use std::ops::Range;

use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{Dtype, MAX_SLOTS, Update};

use crate::spans::Spans;

/// The value and the slots.
const PARTS: usize = 1 + MAX_SLOTS;

#[derive(Debug, Default)]
pub(super) struct State {
    parts: [Part; PARTS],
    /// The job's partitions whose rounds change it: the variable's own, and in an interrupted round
    /// others that are each a piece of it.
    pub users: Vec<usize>,
}

#[derive(Debug, Default)]
struct Part {
    bytes: Option<AlignedBuf>,
    /// Which bytes a mirror has put here.
    filled: Spans,
}

impl State {
    /// Takes a chunk of a part that has `len` bytes in all.
    pub(super) fn fill(
        &mut self,
        part: usize,
        len: usize,
        (start, bytes): (usize, &[u8]),
        pool: &mut BufferPool,
    ) {
        let Part { bytes: known, filled } = &mut self.parts[part];
        let all = known.get_or_insert_with(|| pool.take(len));
        all[start..start + bytes.len()].copy_from_slice(bytes);
        filled.insert(start..start + bytes.len());
    }

    /// Whether a stretch of the value is here, and of each of `slots` slots.
    pub(super) fn covers(&self, slots: usize, stretch: &Range<usize>) -> bool {
        self.parts[..=slots].iter().all(|part| part.filled.contains(stretch))
    }

    /// A stretch of the value.
    pub(super) fn value(&self, stretch: Range<usize>) -> Option<&[u8]> {
        self.parts[0].bytes.as_ref()?.get(stretch)
    }

    /// Changes a stretch that is [covered](Self::covers) by a gradient.
    pub(super) fn apply(
        &mut self,
        update: &Update,
        master: Dtype,
        stretch: &Range<usize>,
        gradient: (Dtype, &[u8]),
        weights: Option<(Dtype, &mut [u8])>,
    ) {
        let parts = self.parts[..=update.rule.slots().len()].iter_mut();
        let bytes = parts.filter_map(|part| part.bytes.as_mut());
        let mut parts: Vec<&mut [u8]> = bytes.map(|bytes| &mut bytes[stretch.clone()]).collect();
        sumpter_sum::update(update, master, &mut parts, gradient, weights);
    }

    /// Gives every buffer back: the job has ended.
    pub(super) fn give_back(&mut self, pool: &mut BufferPool) {
        self.parts.iter_mut().filter_map(|part| part.bytes.take()).for_each(|b| pool.give(b));
    }
}
