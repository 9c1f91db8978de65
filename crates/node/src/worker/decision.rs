//! The decision about a round whose coefficients are known once the norm of its gradient is.
//!
//! It may come before the client has the operation, which may have to wait for the number of its
//! tensor: it is kept until then.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam_channel::Sender;
use sumpter_engine::OpId;
use sumpter_types::{ExactSum, Update};

use crate::completion::{Callback, Completion};

/// What caller and event loop share of a deferred round.
#[derive(Debug)]
pub(crate) struct Deferred {
    state: Mutex<State>,
    pub squares: OnceLock<ExactSum>,
    pub norm: Arc<Completion>,
}

#[derive(Debug)]
enum State {
    /// The client does not have the operation yet; what was decided until then.
    Early(Option<Update>),
    Begun(OpId),
}

impl Deferred {
    pub(crate) fn new(notifier: Sender<Callback>) -> Deferred {
        let norm = Completion::new(notifier);
        Deferred { state: Mutex::new(State::Early(None)), squares: OnceLock::new(), norm }
    }

    /// The client has the operation from now on. Returns what was decided before.
    pub(crate) fn begin(&self, id: OpId) -> Option<Update> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Begun(id)) {
            State::Early(update) => update,
            State::Begun(_) => None,
        }
    }

    /// The operation that a decision is for; `None` if it is kept until there is one.
    pub(crate) fn decide(&self, update: Update) -> Option<OpId> {
        match &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Begun(id) => Some(*id),
            State::Early(decided) => {
                decided.get_or_insert(update);
                None
            }
        }
    }

    /// The norm is known.
    pub(crate) fn report(&self, squares: ExactSum) {
        self.squares.get_or_init(|| squares);
        self.norm.finish(Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;
    use sumpter_types::Rule;

    use super::*;

    #[test]
    fn what_is_decided_before_the_operation_is_there_is_kept_and_the_first_counts() {
        let deferred = Deferred::new(unbounded().0);
        assert_eq!(deferred.decide(Update::skip(Rule::Lion)), None);
        assert_eq!(deferred.decide(Update::new(Rule::Lion)), None);
        assert_eq!(deferred.begin(OpId(3)), Some(Update::skip(Rule::Lion)));
        assert_eq!(deferred.decide(Update::new(Rule::Lion)), Some(OpId(3)));
    }

    #[test]
    fn the_norm_is_known_once() {
        let deferred = Deferred::new(unbounded().0);
        assert!(deferred.norm.poll().is_none());
        let mut squares = ExactSum::default();
        squares.add(4.0);
        deferred.report(squares);
        deferred.report(ExactSum::default());
        assert!(matches!(deferred.norm.poll(), Some(Ok(()))));
        assert_eq!(deferred.squares.get().map(ExactSum::to_f64), Some(4.0));
    }
}
