//! Rounds whose contribution comes in ranges while they run, as from the memory of a device, and
//! whose result is passed on slice by slice.
//!
//! Ranges are supplied from any thread. The event loop keeps those that come before the client has
//! the operation, which may have to wait for the number of its tensor. A callback learns of each
//! slice of the result once all of it is final, before the operation is done.
//!
//! A stream of the device may wait for a slice behind a gate. The event loop opens it in the moment
//! in which the slice is final, or the round has failed. A callback would come too late: the
//! notifying thread runs Python and calls the device's driver, and can be stuck behind a thread
//! that waits for that very stream.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Lets the streams go on that wait for a slice, which is final, or never will be if this is called
/// with false. It must return at once.
pub type Gate = Box<dyn FnOnce(bool) + Send>;

/// What caller and event loops share of a staged round.
pub(crate) struct Staged {
    /// One behind the other.
    parts: Vec<StagedPart>,
    slices: Arc<Slices>,
    progress: Mutex<Progress>,
    notifier: Sender<Callback>,
}

/// How far the result is.
struct Progress {
    slices: Vec<Slice>,
    has_failed: bool,
}

struct Slice {
    /// Bytes that are not final.
    left: usize,
    gate: Option<Gate>,
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
        let slice = |start| Slice { left: size.min(bytes - start), gate: None };
        let all = (0..bytes).step_by(size).map(slice).collect();
        let progress = Mutex::new(Progress { slices: all, has_failed: false });
        Staged { parts, slices: Arc::new(slices), progress, notifier }
    }

    /// Has a gate opened when a slice is final, or never will be. Returns whether it will be: not
    /// if the slice is final, the round has failed, or there is no such slice.
    pub(crate) fn hold(&self, slice: usize, gate: Gate) -> bool {
        let mut progress = self.progress();
        let has_failed = progress.has_failed;
        match progress.slices.get_mut(slice) {
            Some(slice) if slice.left > 0 && !has_failed => {
                slice.gate = Some(gate);
                true
            }
            _ => false,
        }
    }

    /// Leaves it to the caller to open the gate of a slice. Returns whether it was still shut.
    pub(crate) fn release(&self, slice: usize) -> bool {
        self.progress().slices.get_mut(slice).is_some_and(|slice| slice.gate.take().is_some())
    }

    /// The round has failed: slices that are not final never will be.
    pub(crate) fn fail(&self) {
        let mut progress = self.progress();
        progress.has_failed = true;
        for gate in progress.slices.iter_mut().filter_map(|slice| slice.gate.take()) {
            gate(false);
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Staged { slices, notifier, .. } = &*self.staged;
        let mut progress = self.staged.progress();
        let first = self.part().bytes.start;
        let (mut start, last) = (first + bytes.start, first + bytes.end);
        while start < last {
            let number = start / slices.bytes;
            let end = last.min((number + 1) * slices.bytes);
            let slice = &mut progress.slices[number];
            slice.left -= end - start;
            if slice.left == 0 {
                if let Some(gate) = slice.gate.take() {
                    gate(true);
                }
                let slices = slices.clone();
                let callback: Callback = Box::new(move || (slices.on_final)(number));
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
    type Opened = Arc<Mutex<Vec<(usize, bool)>>>;

    /// Gates of these slices, and each that was opened with whether its slice was final.
    fn shut(staged: &Staged, slices: impl IntoIterator<Item = usize>) -> Opened {
        let opened = Opened::default();
        for slice in slices {
            let into = opened.clone();
            let gate = Box::new(move |is_final| into.lock().unwrap().push((slice, is_final)));
            assert!(staged.hold(slice, gate), "slice {slice} is not final");
        }
        opened
    }

    #[test]
    fn a_gate_opens_with_its_slice_and_the_others_when_the_round_fails() {
        let (parts, callbacks, _) = staged(&[64], 16);
        let round = &parts[0].staged;
        parts[0].shrink(0..16);
        assert!(!round.hold(0, Box::new(|_| panic!("final before"))));
        assert!(!round.hold(4, Box::new(|_| panic!("no such slice"))));
        let opened = shut(round, 1..4);
        parts[0].shrink(16..24);
        assert_eq!(*opened.lock().unwrap(), []);
        parts[0].shrink(24..32);
        assert_eq!(*opened.lock().unwrap(), [(1, true)], "before any callback has run");
        assert_eq!(callbacks.len(), 2);
        assert!(round.release(2) && !round.release(2) && !round.release(1));
        round.fail();
        assert_eq!(*opened.lock().unwrap(), [(1, true), (3, false)], "2 is the caller's");
        assert!(!round.hold(2, Box::new(|_| panic!("the round has failed"))));
    }

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
