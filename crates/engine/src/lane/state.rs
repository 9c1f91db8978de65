//! A variable's partition in a lane: its value and the slots of its rule, between rounds.
//!
//! It is a copy: what the workers that mirror the partition have put here in this epoch. A round's
//! sum is applied to a chunk once all parts of the chunk are there; until then it waits.
//!
//! Of a variable that changes asynchronously it has vector clocks as well: which round of which
//! worker is in each stretch, so that each counts once, whatever is sent again.

use std::ops::Range;

use arrayvec::ArrayVec;
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{Dtype, MAX_SLOTS, Rank, Round, Update};
use sumpter_wire::{MAX_MIRRORS, Snapshot};

use crate::clocks::{Added, Clocks};
use crate::spans::Spans;

/// The value and the slots.
const PARTS: usize = 1 + MAX_SLOTS;

/// A chunk whose turn it is to be sent to a mirror: of which state, and the mirror's place in the
/// spec.
pub(super) type Due = (usize, u32, usize);

#[derive(Debug, Default)]
pub(super) struct State {
    parts: [Part; PARTS],
    /// The job's partitions whose rounds change it: the variable's own, and in an interrupted round
    /// others that are each a piece of it.
    pub users: Vec<usize>,
    /// Which rounds are in it, if it changes asynchronously.
    pub clocks: Clocks,
    /// By the index of a chunk: what its mirrors have of it, if it changes asynchronously.
    units: Vec<Unit>,
}

/// A chunk of a variable that changes asynchronously.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    /// How often it has changed here, modulo 2^32 but never 0 again: on the wire 0 is no version.
    version: u32,
    mirrors: [MirrorProgress; MAX_MIRRORS],
}

/// What a mirror has of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct MirrorProgress {
    /// The version that was sent last, and the one that it has.
    sent: u32,
    has: u32,
    /// It is the turn of the chunk on the mirror's connection.
    queued: bool,
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
        let parts = bytes.map(|bytes| &mut bytes[stretch.clone()]);
        let mut parts: ArrayVec<&mut [u8], PARTS> = parts.collect();
        sumpter_sum::update(update, master, &mut parts, gradient, weights);
    }

    /// Changes a stretch that is [covered](Self::covers), of chunk `unit`, by one worker's round,
    /// as far as that is not in it yet. The gradient's bytes are those of the stretch.
    pub(super) fn add(
        &mut self,
        (update, master): (&Update, Dtype),
        (unit, stretch): (u32, &Range<usize>),
        from: (Rank, Round),
        (dtype, gradient): (Dtype, &[u8]),
    ) -> Vec<Added> {
        let added = self.clocks.advance(stretch, from);
        let fresh: Vec<_> = added.iter().filter(|a| a.is_fresh).map(|a| &a.stretch).collect();
        for part in &fresh {
            let place = |at: usize| (at - stretch.start) / master.size() * dtype.size();
            let gradient = (dtype, &gradient[place(part.start)..place(part.end)]);
            self.apply(update, master, part, gradient, None);
        }
        if !fresh.is_empty() {
            let version = &mut self.unit(unit).version;
            *version = version.wrapping_add(1).max(1);
        }
        added
    }

    /// How often a chunk has changed.
    pub(super) fn version(&self, unit: u32) -> u32 {
        self.units.get(unit as usize).map_or(0, |unit| unit.version)
    }

    /// Whether a mirror, by its place in the spec, has this version of a chunk.
    pub(super) fn is_mirrored(&self, unit: u32, mirror: usize, version: u32) -> bool {
        let unit = self.units.get(unit as usize).copied().unwrap_or_default();
        unit.mirrors[mirror].has.wrapping_sub(version).cast_signed() >= 0
    }

    /// Whether a chunk is to be sent to a mirror, and waits for its turn from now on: it has
    /// changed, and the mirror has what was sent before.
    pub(super) fn queue(&mut self, unit: u32, mirror: usize) -> bool {
        let Unit { version, mirrors } = self.unit(unit);
        let MirrorProgress { sent, has, queued } = &mut mirrors[mirror];
        let due = !*queued && *sent == *has && *has != *version;
        *queued |= due;
        due
    }

    /// The turn of a chunk: what the mirror gets, without the bytes of the parts, in stretches of
    /// the same clocks; and the version, which the last of them has. Until it has that one, the
    /// mirror has a part of it.
    pub(super) fn send(
        &mut self,
        (unit, stretch): (u32, &Range<usize>),
        mirror: usize,
    ) -> (Vec<Snapshot>, u32) {
        let within = self.clocks.within(stretch);
        let snapshots = within.map(|(part, clocks)| {
            let (offset, len) = (part.start as u32, part.len() as u32);
            Snapshot { offset, len, clocks: clocks.to_vec() }
        });
        let snapshots = snapshots.collect();
        let Unit { version, mirrors } = self.unit(unit);
        mirrors[mirror].queued = false;
        mirrors[mirror].sent = *version;
        (snapshots, *version)
    }

    /// A mirror has a version of a chunk; whether it is the one that was sent.
    pub(super) fn mirrored(&mut self, unit: u32, mirror: usize, version: u32) -> bool {
        let MirrorProgress { sent, has, .. } = &mut self.unit(unit).mirrors[mirror];
        let due = *sent == version && *has != version;
        *has = if due { version } else { *has };
        due
    }

    /// The connection of a mirror is made anew: what it was sent, it may not have. Returns the
    /// chunks that are sent on the new one.
    pub(super) fn send_again(&mut self, mirror: usize) -> Vec<u32> {
        for unit in &mut self.units {
            let progress = &mut unit.mirrors[mirror];
            (progress.sent, progress.queued) = (progress.has, false);
        }
        (0..self.units.len() as u32).filter(|unit| self.queue(*unit, mirror)).collect()
    }

    /// A stretch that is [covered](Self::covers), of the value and of each of `slots` slots: there
    /// may be parts that the rule does not have, of any length.
    pub(super) fn parts(
        &self,
        slots: usize,
        stretch: &Range<usize>,
    ) -> impl Iterator<Item = &[u8]> {
        let bytes = self.parts[..=slots].iter().filter_map(|part| part.bytes.as_ref());
        bytes.map(|bytes| &bytes[stretch.clone()])
    }

    fn unit(&mut self, unit: u32) -> &mut Unit {
        let unit = unit as usize;
        if self.units.len() <= unit {
            self.units.resize(unit + 1, Unit::default());
        }
        &mut self.units[unit]
    }

    /// Gives every buffer back: the job has ended.
    pub(super) fn give_back(&mut self, pool: &mut BufferPool) {
        self.parts.iter_mut().filter_map(|part| part.bytes.take()).for_each(|b| pool.give(b));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_chunk_are_compared_across_their_end() {
        let mut state = State::default();
        *state.unit(3) = Unit { version: u32::MAX, ..Unit::default() };
        state.clocks.set(0..4, Vec::new());
        state.fill(0, 4, (0, &[0; 4]), &mut BufferPool::new(0));
        assert!(state.queue(3, 0));
        assert_eq!(state.send((3, &(0..4)), 0).1, u32::MAX);
        assert!(state.mirrored(3, 0, u32::MAX) && !state.mirrored(3, 0, u32::MAX));
        let update = Update::new(sumpter_types::Rule::Adagrad);
        let (from, gradient) = ((Rank(0), Round(0)), (Dtype::F32, &[0; 4][..]));
        state.fill(1, 4, (0, &[0; 4]), &mut BufferPool::new(0));
        state.add((&update, Dtype::F32), (3, &(0..4)), from, gradient);
        assert_eq!(state.version(3), 1, "0 is no version");
        assert!(state.is_mirrored(3, 0, u32::MAX) && !state.is_mirrored(3, 0, 1));
        assert!(state.queue(3, 0));
        assert_eq!(state.send((3, &(0..4)), 0).1, 1);
        assert!(!state.mirrored(3, 0, 0) && state.mirrored(3, 0, 1));
        assert!(state.is_mirrored(3, 0, 1) && !state.queue(3, 0));
    }
}
