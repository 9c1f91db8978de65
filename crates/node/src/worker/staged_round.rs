//! Rounds whose contribution comes in ranges while they run, as their callers have them.

use std::ops::Range;
use std::sync::Arc;

use crate::command::Command;
use crate::completion::Completion;
use crate::worker::loops::Loops;
use crate::worker::staged::{Gate, Staged};

/// A round whose contribution is supplied by its caller.
#[derive(Debug)]
pub struct StagedRound {
    name: String,
    completion: Arc<Completion>,
    staged: Arc<Staged>,
    loops: Arc<Loops>,
}

impl StagedRound {
    pub(crate) fn new(
        name: String,
        completion: Arc<Completion>,
        staged: Arc<Staged>,
        loops: Arc<Loops>,
    ) -> StagedRound {
        StagedRound { name, completion, staged, loops }
    }

    /// What the end of the round is waited for by.
    #[must_use]
    pub fn completion(&self) -> &Arc<Completion> {
        &self.completion
    }

    /// These bytes of the contribution are in the memory now, and must not change any more.
    pub fn supply(&self, bytes: Range<usize>) {
        for (number, share, within) in self.staged.of_parts(&bytes) {
            self.loops.send(number, Command::Supply(share, within));
        }
    }

    /// Has `gate` opened by the event loop when a slice of the result is final, or never will be.
    /// Returns whether it will be: not if the slice is final, or the round has failed.
    #[must_use]
    pub fn hold(&self, slice: usize, gate: Gate) -> bool {
        self.staged.hold(slice, gate)
    }

    /// Leaves it to the caller to open the gate of a slice. Returns whether it was still shut.
    #[must_use]
    pub fn release(&self, slice: usize) -> bool {
        self.staged.release(slice)
    }

    /// The rest of the contribution will never come, for this reason: the rounds of the tensor fail
    /// on all ranks.
    pub fn refuse(&self, reason: &str) {
        let message = format!("tensor '{}': {reason}", self.name);
        self.loops.send_first(Command::Refuse(self.name.clone(), message));
    }
}
