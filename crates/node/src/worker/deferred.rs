//! Rounds of variables whose coefficients are decided once the norm of the gradient is known, as
//! their callers have them.

use std::sync::Arc;

use sumpter_types::{ExactSum, Rule, Update};

use crate::command::Command;
use crate::completion::Completion;
use crate::worker::decision::Deferred;
use crate::worker::loops::Loops;

/// A round that waits for its caller's decision.
#[derive(Debug)]
pub struct DeferredRound {
    completion: Arc<Completion>,
    deferred: Arc<Deferred>,
    rule: Rule,
    /// The event loops, and the one that serves the variable.
    loops: (Arc<Loops>, u32),
}

impl DeferredRound {
    pub(crate) fn new(
        completion: Arc<Completion>,
        deferred: Arc<Deferred>,
        rule: Rule,
        loops: (Arc<Loops>, u32),
    ) -> DeferredRound {
        let (norm, outcome) = (deferred.norm.clone(), completion.clone());
        // A round that fails has no norm.
        completion.on_done(move || norm.finish(outcome.poll().unwrap_or(Ok(()))));
        DeferredRound { completion, deferred, rule, loops }
    }

    /// What the end of the round is waited for by.
    #[must_use]
    pub fn completion(&self) -> &Arc<Completion> {
        &self.completion
    }

    /// What the norm is waited for by.
    #[must_use]
    pub fn norm(&self) -> &Arc<Completion> {
        &self.deferred.norm
    }

    /// The sum of the squares of the gradient, rounded once, when it is known: infinity or NaN if
    /// the gradient is not finite.
    #[must_use]
    pub fn squares(&self) -> Option<f64> {
        self.deferred.squares.get().map(ExactSum::to_f64)
    }

    /// The variable's rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Says what the round does; all ranks must say the same. Only the first time counts.
    pub fn decide(&self, update: Update) {
        let (loops, number) = &self.loops;
        loops.send(*number, Command::Decide(self.deferred.clone(), update));
    }
}
