//! How a caller learns that its operation is done.

use std::fmt;
use std::time::{Duration, Instant};

use sumpter_engine::OrderSpan;

use crate::channel::{self, Sender};
use crate::error::OpError;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What runs when an operation is done.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

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
    callbacks: Vec<Callback>,
    order: Vec<OrderSpan>,
}

impl Completion {
    pub(crate) fn new(notifier: Sender<Callback>) -> Arc<Completion> {
        Arc::new(Completion { state: Mutex::default(), done: Condvar::new(), notifier })
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

    pub(crate) fn finish(&self, outcome: Result<(), OpError>) {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
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

/// The duty to finish an operation: dropping it unfinished, in a panic too, fails the operation.
#[derive(Debug)]
pub(crate) struct Promise(Arc<Completion>);

impl Promise {
    pub(crate) fn new(completion: Arc<Completion>) -> Promise {
        Promise(completion)
    }

    /// For an operation without a waiter.
    pub(crate) fn unwatched() -> Promise {
        Promise(Completion::new(channel::unbounded().0))
    }

    pub(crate) fn finish(&self, outcome: Result<(), OpError>) {
        self.0.finish(outcome);
    }

    /// The order in which the operation has changed a variable, before it is finished.
    pub(crate) fn ordered(&self, order: Vec<OrderSpan>) {
        self.0.lock().order = order;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let reason = "the session has been shut down, or its event loop has failed".to_owned();
        self.0.finish(Err(OpError::Closed(reason)));
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("outcome", &self.poll()).finish_non_exhaustive()
    }
}
