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

use crate::command::Command;
use crate::completion::{Callback, Completion};
use crate::remote::Remote;

/// How the result of a staged round is passed on.
pub struct Slices {
    /// Bytes of a slice; the last one may be shorter.
    pub bytes: usize,
    /// Called once for each slice, by its number, from the notifying thread.
    pub on_final: Box<dyn Fn(usize) + Send + Sync>,
}

/// A round whose contribution is supplied by its caller.
#[derive(Debug)]
pub struct StagedRound {
    name: String,
    completion: Arc<Completion>,
    staged: Arc<Staged>,
    remote: Remote,
}

impl StagedRound {
    pub(crate) fn new(
        name: String,
        completion: Arc<Completion>,
        staged: Arc<Staged>,
        remote: Remote,
    ) -> StagedRound {
        StagedRound { name, completion, staged, remote }
    }

    /// What the end of the round is waited for by.
    #[must_use]
    pub fn completion(&self) -> &Arc<Completion> {
        &self.completion
    }

    /// These bytes of the contribution are in the memory now, and must not change any more.
    pub fn supply(&self, bytes: Range<usize>) {
        self.remote.send(Command::Supply(self.staged.clone(), bytes));
    }

    /// The rest of the contribution will never come, for this reason: the rounds of the tensor fail
    /// on all ranks.
    pub fn refuse(&self, reason: &str) {
        let message = format!("tensor '{}': {reason}", self.name);
        self.remote.send(Command::Refuse(self.name.clone(), message));
    }
}

/// What caller and event loop share of a staged round.
pub(crate) struct Staged {
    state: Mutex<State>,
    slices: Arc<Slices>,
    notifier: Sender<Callback>,
}

enum State {
    /// The client does not have the operation yet; what was supplied until then.
    Early(Vec<Range<usize>>),
    Begun(OpId),
}

impl Staged {
    pub(crate) fn new(slices: Slices, notifier: Sender<Callback>) -> Staged {
        Staged { state: Mutex::new(State::Early(Vec::new())), slices: Arc::new(slices), notifier }
    }

    /// The client has the operation from now on. Returns what was supplied before.
    pub(crate) fn begin(&self, id: OpId) -> Vec<Range<usize>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Begun(id)) {
            State::Early(ranges) => ranges,
            State::Begun(_) => Vec::new(),
        }
    }

    /// The operation that a range is for; `None` if it is kept until there is one.
    pub(crate) fn supply(&self, bytes: Range<usize>) -> Option<OpId> {
        match &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Begun(id) => Some(*id),
            State::Early(ranges) => {
                ranges.push(bytes);
                None
            }
        }
    }
}

/// What is not final yet of a staged round's result.
#[derive(Debug)]
pub(crate) struct Unfinished {
    staged: Arc<Staged>,
    /// Bytes of each slice.
    left: Vec<usize>,
}

impl Unfinished {
    /// Of a result of so many bytes.
    pub(crate) fn new(staged: Arc<Staged>, bytes: usize) -> Unfinished {
        let size = staged.slices.bytes;
        let left = (0..bytes).step_by(size).map(|start| size.min(bytes - start)).collect();
        Unfinished { staged, left }
    }

    /// These bytes are final, of which none was before.
    pub(crate) fn shrink(&mut self, bytes: Range<usize>) {
        let Staged { slices, notifier, .. } = &*self.staged;
        let mut start = bytes.start;
        while start < bytes.end {
            let slice = start / slices.bytes;
            let end = bytes.end.min((slice + 1) * slices.bytes);
            self.left[slice] -= end - start;
            if self.left[slice] == 0 {
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

    fn staged(bytes: usize) -> (Arc<Staged>, Receiver<Callback>, Arc<Mutex<Vec<usize>>>) {
        let (notifier, callbacks) = unbounded::<Callback>();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        let on_final = Box::new(move |slice| into.lock().unwrap().push(slice));
        (Arc::new(Staged::new(Slices { bytes, on_final }, notifier)), callbacks, seen)
    }

    #[test]
    fn what_is_supplied_before_the_operation_is_there_is_kept() {
        let (staged, ..) = staged(16);
        assert_eq!(staged.supply(16..32), None);
        assert_eq!(staged.supply(0..16), None);
        assert_eq!(staged.begin(OpId(7)), [16..32, 0..16]);
        assert_eq!(staged.supply(32..40), Some(OpId(7)));
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
        ) {
            let (staged, callbacks, seen) = staged(size);
            let mut unfinished = Unfinished::new(staged, bytes);
            let (mut is_final, mut expected) = (vec![false; bytes], Vec::new());
            for range in ranges {
                is_final[range.clone()].fill(true);
                unfinished.shrink(range);
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
