//! How a caller learns that its operation is done.

use std::fmt;
use std::time::{Duration, Instant};

use sumpter_engine::OrderSpan;

use crate::channel::{self, Sender};
use crate::error::OpError;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What runs when an operation is done.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// What the thread that ends an operation does before anyone learns that it has failed.
pub(crate) type OnFailure = Box<dyn FnOnce() + Send>;

/// The end of an operation, waited for by one side and announced by the other.
pub struct Completion {
    state: Mutex<State>,
    done: Condvar,
    /// The thread that runs callbacks: never the event loop, which must not wait for anyone.
    notifier: Sender<Callback>,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<(), OpError>>,
    /// Parts that are not done, of an operation with several.
    left: usize,
    /// Why the first part to fail did, until all are done.
    failure: Option<OpError>,
    callbacks: Vec<Callback>,
    on_failure: Option<OnFailure>,
    order: Vec<OrderSpan>,
}

impl Completion {
    pub(crate) fn new(notifier: Sender<Callback>) -> Arc<Completion> {
        Completion::with(notifier, None)
    }

    pub(crate) fn with(
        notifier: Sender<Callback>,
        on_failure: Option<OnFailure>,
    ) -> Arc<Completion> {
        let state = Mutex::new(State { on_failure, ..State::default() });
        Arc::new(Completion { state, done: Condvar::new(), notifier })
    }

    /// The outcome, if the operation is done.
    #[must_use]
    pub fn poll(&self) -> Option<Result<(), OpError>> {
        self.lock().outcome.clone()
    }

    /// In which order the operation has changed a variable asynchronously, once it is done.
    #[must_use]
    pub fn order(&self) -> Vec<OrderSpan> {
        self.lock().order.clone()
    }

    /// Waits for the outcome, at most until `deadline`.
    #[must_use]
    pub fn wait_until(&self, deadline: Instant) -> Option<Result<(), OpError>> {
        let mut state = self.lock();
        loop {
            if state.outcome.is_some() {
                return state.outcome.clone();
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let left = left.min(Duration::from_secs(3600));
            state = match self.done.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Runs `callback` on the notifying thread once the operation is done, or soon if it is.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        let callback: Callback = Box::new(callback);
        let mut state = self.lock();
        if state.outcome.is_none() {
            state.callbacks.push(callback);
            return;
        }
        drop(state);
        self.notify(callback);
    }

    /// One of the parts is done. Returns the outcome of all if it was the last one.
    fn end_part(&self, outcome: Result<(), OpError>) -> Option<Result<(), OpError>> {
        let mut state = self.lock();
        state.left = state.left.saturating_sub(1);
        let failure = state.failure.take().or(outcome.err());
        if state.left > 0 {
            state.failure = failure;
            return None;
        }
        Some(failure.map_or(Ok(()), Err))
    }

    pub(crate) fn finish(&self, outcome: Result<(), OpError>) {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
        }
        if let Some(act) = state.on_failure.take().filter(|_| outcome.is_err()) {
            act();
        }
        state.outcome = Some(outcome);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.done.notify_all();
        for callback in callbacks {
            self.notify(callback);
        }
    }

    fn notify(&self, callback: Callback) {
        if let Err(lost) = self.notifier.send(callback) {
            // The notifying thread ends last; should it be gone, no waiter is left.
            (lost.0)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The duty to finish an operation, or one of its parts: dropping it unfinished, in a panic too,
/// fails the operation.
#[derive(Debug)]
pub(crate) struct Promise(Option<Arc<Completion>>);

/// The end of an operation, announced when this is dropped.
#[derive(Debug)]
pub(crate) struct End {
    completion: Arc<Completion>,
    outcome: Result<(), OpError>,
}

impl Promise {
    pub(crate) fn new(completion: Arc<Completion>) -> Promise {
        Promise(Some(completion))
    }

    /// Of an operation with so many parts, which is done when all of them are.
    pub(crate) fn of_parts(completion: &Arc<Completion>, parts: usize) -> Vec<Promise> {
        completion.lock().left = parts;
        (0..parts).map(|_| Promise::new(completion.clone())).collect()
    }

    /// For an operation without a waiter.
    pub(crate) fn unwatched() -> Promise {
        Promise::new(Completion::new(channel::unbounded().0))
    }

    pub(crate) fn finish(self, outcome: Result<(), OpError>) {
        drop(self.end(outcome));
    }

    /// As [`finish`](Self::finish); if that ends the operation, only once the end is dropped.
    pub(crate) fn end(mut self, outcome: Result<(), OpError>) -> Option<End> {
        self.0.take().and_then(|completion| End::of(completion, outcome))
    }

    /// The order in which the operation has changed a variable, before it is finished.
    pub(crate) fn ordered(&self, order: Vec<OrderSpan>) {
        if let Some(completion) = &self.0 {
            completion.lock().order = order;
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(completion) = self.0.take() {
            let reason = "the session has been shut down, or its event loop has failed".to_owned();
            drop(End::of(completion, Err(OpError::Closed(reason))));
        }
    }
}

impl End {
    /// The end, if this was the last part.
    fn of(completion: Arc<Completion>, outcome: Result<(), OpError>) -> Option<End> {
        let outcome = completion.end_part(outcome)?;
        Some(End { completion, outcome })
    }

    pub(crate) fn is_failure(&self) -> bool {
        self.outcome.is_err()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.completion.finish(self.outcome.clone());
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("outcome", &self.poll()).finish_non_exhaustive()
    }
}
