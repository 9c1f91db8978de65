//! Rounds whose contribution comes in ranges while they run, as from the memory of a device, and
//! whose result is passed on slice by slice.
//!
//! Ranges are supplied from any thread. The event loop keeps those that come before the client has
//! the operation, which may have to wait for the number of its tensor. A callback learns of each
//! slice of the result once all of it is final, before the operation is done.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;
use sumpter_engine::OpId;

use crate::completion::Callback;

/// How the result of a staged round is passed on.
pub struct Slices {
    /// Bytes of a slice; the last one may be shorter.
    pub bytes: usize,
    /// Called once for each slice, by its number, from the notifying thread.
    pub on_final: Box<dyn Fn(usize) + Send + Sync>,
}

/// What caller and event loops share of a staged round.
pub(crate) struct Staged {
    /// One behind the other.
    parts: Vec<StagedPart>,
    slices: Arc<Slices>,
    /// Bytes of each slice that are not final.
    left: Mutex<Vec<usize>>,
    notifier: Sender<Callback>,
}

/// A part of a staged round.
struct StagedPart {
    /// The event loop that serves it.
    number: u32,
    /// The part's bytes in the memory.
    bytes: Range<usize>,
    state: Mutex<State>,
}

/// A part of a staged round, as its event loop has it.
#[derive(Clone, Debug)]
pub(crate) struct StagedShare {
    staged: Arc<Staged>,
    part: usize,
}

/// The number of an event loop, its part, and bytes of that.
type Supplied = (u32, StagedShare, Range<usize>);

enum State {
    /// The client does not have the operation yet; what was supplied until then.
    Early(Vec<Range<usize>>),
    Begun(OpId),
}

impl Staged {
    /// Of these parts: the loop and the bytes of each.
    pub(crate) fn new(
        slices: Slices,
        parts: impl IntoIterator<Item = (u32, Range<usize>)>,
        notifier: Sender<Callback>,
    ) -> Staged {
        let part = |(number, bytes)| {
            let state = Mutex::new(State::Early(Vec::new()));
            StagedPart { number, bytes, state }
        };
        let parts: Vec<_> = parts.into_iter().map(part).collect();
        let (bytes, size) = (parts.last().map_or(0, |last| last.bytes.end), slices.bytes);
        let left = (0..bytes).step_by(size).map(|start| size.min(bytes - start)).collect();
        Staged { parts, slices: Arc::new(slices), left: Mutex::new(left), notifier }
    }

    /// Each of the parts, for its event loop.
    pub(crate) fn shares(self: &Arc<Self>) -> impl Iterator<Item = StagedShare> {
        (0..self.parts.len()).map(|part| StagedShare { staged: self.clone(), part })
    }

    /// What of a range of the memory is whose: each part with the number of its event loop, and the
    /// bytes within the part.
    pub(crate) fn of_parts(self: &Arc<Self>, bytes: &Range<usize>) -> Vec<Supplied> {
        let mut supplied = Vec::new();
        for (share, StagedPart { number, bytes: own, .. }) in self.shares().zip(&self.parts) {
            let (start, end) = (bytes.start.max(own.start), bytes.end.min(own.end));
            // That a rank which contributes nothing has nothing is said as well.
            if start < end || self.parts.len() == 1 {
                supplied.push((*number, share, start - own.start..end.max(start) - own.start));
            }
        }
        supplied
    }
}

impl StagedShare {
    fn part(&self) -> &StagedPart {
        &self.staged.parts[self.part]
    }

    /// The client has the operation from now on. Returns what was supplied before.
    pub(crate) fn begin(&self, id: OpId) -> Vec<Range<usize>> {
        let mut state = self.part().state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Begun(id)) {
            State::Early(ranges) => ranges,
            State::Begun(_) => Vec::new(),
        }
    }

    /// The operation that a range of the part is for; `None` if it is kept until there is one.
    pub(crate) fn supply(&self, bytes: Range<usize>) -> Option<OpId> {
        match &mut *self.part().state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Begun(id) => Some(*id),
            State::Early(ranges) => {
                ranges.push(bytes);
                None
            }
        }
    }

    /// These bytes of the part are final, of which none was before.
    pub(crate) fn shrink(&self, bytes: Range<usize>) {
        let Staged { slices, left, notifier, .. } = &*self.staged;
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.part().bytes.start;
        let (mut start, last) = (first + bytes.start, first + bytes.end);
        while start < last {
            let slice = start / slices.bytes;
            let end = last.min((slice + 1) * slices.bytes);
            left[slice] -= end - start;
            if left[slice] == 0 {
                let slices = slices.clone();
                let callback: Callback = Box::new(move || (slices.on_final)(slice));
                if let Err(lost) = notifier.send(callback) {
                    (lost.0)();
                }
            }
            start = end;
        }
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").field("slice_bytes", &self.slices.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use proptest::prelude::*;

    use super::*;

    type Seen = Arc<Mutex<Vec<usize>>>;

    /// A round in parts that end there, with slices of so many bytes; and the slices reported.
    fn staged(ends: &[usize], bytes: usize) -> (Vec<StagedShare>, Receiver<Callback>, Seen) {
        let (notifier, callbacks) = unbounded::<Callback>();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        let on_final = Box::new(move |slice| into.lock().unwrap().push(slice));
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let parts = starts.zip(ends).map(|(start, end)| start..*end);
        let staged = Staged::new(Slices { bytes, on_final }, (0..).zip(parts), notifier);
        (Arc::new(staged).shares().collect(), callbacks, seen)
    }

    #[test]
    fn what_is_supplied_before_the_operation_is_there_is_kept() {
        let (parts, ..) = staged(&[64, 128], 16);
        assert_eq!(parts[0].supply(16..32), None);
        assert_eq!(parts[0].supply(0..16), None);
        assert_eq!(parts[0].begin(OpId(7)), [16..32, 0..16]);
        assert_eq!(parts[0].supply(32..40), Some(OpId(7)));
        assert_eq!(parts[1].supply(0..8), None, "its loop does not have it yet");
    }

    /// So many bytes, in ranges of any order.
    fn ranges() -> impl Strategy<Value = (usize, Vec<Range<usize>>)> {
        prop::collection::btree_set(1usize..40, 1..8).prop_flat_map(|ends| {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let ranges: Vec<_> = starts.zip(&ends).map(|(start, end)| start..*end).collect();
            (Just(*ends.last().expect("one at least")), Just(ranges).prop_shuffle())
        })
    }

    proptest! {
        #[test]
        fn each_slice_is_reported_once_when_its_last_byte_is_final(
            size in 1usize..9,
            (bytes, ranges) in ranges(),
            cut in 0usize..40,
        ) {
            let cut = cut % bytes;
            let (parts, callbacks, seen) = staged(&[cut, bytes], size);
            let (mut is_final, mut expected) = (vec![false; bytes], Vec::new());
            for range in ranges {
                is_final[range.clone()].fill(true);
                parts[0].shrink(range.start.min(cut)..range.end.min(cut));
                parts[1].shrink(range.start.max(cut) - cut..range.end.max(cut) - cut);
                for (slice, all) in is_final.chunks(size).enumerate() {
                    if all.iter().all(|byte| *byte) && !expected.contains(&slice) {
                        expected.push(slice);
                    }
                }
                callbacks.try_iter().for_each(|callback| callback());
                prop_assert_eq!(&*seen.lock().unwrap(), &expected);
            }
        }
    }
}
