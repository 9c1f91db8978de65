//! Rounds of variables whose coefficients are decided once the norm of the gradient is known, as
//! their callers have them.

use std::sync::Arc;

use sumpter_types::{ExactSum, Rule, Update};

use crate::command::Command;
use crate::completion::Completion;
use crate::remote::Remote;
use crate::worker::decision::Deferred;

/// A round that waits for its caller's decision.
#[derive(Debug)]
pub struct DeferredRound {
    completion: Arc<Completion>,
    deferred: Arc<Deferred>,
    rule: Rule,
    remote: Remote,
}

impl DeferredRound {
    pub(crate) fn new(
        completion: Arc<Completion>,
        deferred: Arc<Deferred>,
        rule: Rule,
        remote: Remote,
    ) -> DeferredRound {
        let (norm, outcome) = (deferred.norm.clone(), completion.clone());
        // A round that fails has no norm.
        completion.on_done(move || norm.finish(outcome.poll().unwrap_or(Ok(()))));
        DeferredRound { completion, deferred, rule, remote }
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
        self.remote.send(Command::Decide(self.deferred.clone(), update));
    }
}
