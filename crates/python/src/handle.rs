//! `Handle`: what an operation is waited for by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use sumpter_node::{Completion, DeferredRound, OrderSpan};
use sumpter_types::Update;

use crate::errors::{ConfigError, DeadlineError, from_op};

/// How often a wait looks for Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// An operation under way.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Handle {
    completion: Arc<Completion>,
}

impl Handle {
    pub fn new(completion: Arc<Completion>) -> Handle {
        Handle { completion }
    }
}

#[pymethods]
impl Handle {
    /// Whether the operation is done, well or not.
    fn poll(&self) -> bool {
        self.completion.poll().is_some()
    }

    /// Waits until the operation is done; raises its error, or `DeadlineError`.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        wait(py, &self.completion, timeout_s)
    }

    /// When the round changed a variable asynchronously; see the stub.
    fn order(&self) -> Vec<(usize, usize, u32, u32)> {
        let span = |span: OrderSpan| {
            let OrderSpan { elements, position, answer } = span;
            (elements.start, elements.end, position, answer)
        };
        self.completion.order().into_iter().map(span).collect()
    }

    /// Calls `callback()` once from a Rust thread when the operation is done, soon if it is.
    fn on_done(&self, callback: Py<PyAny>) {
        self.completion.on_done(move || call(&callback, ()));
    }
}

fn wait(py: Python<'_>, completion: &Completion, timeout_s: Option<f64>) -> PyResult<()> {
    if let Some(outcome) = completion.poll() {
        return outcome.map_err(from_op);
    }
    let limit = timeout_s.map(duration).transpose()?;
    let start = Instant::now();
    loop {
        let left = limit.map(|l| l.saturating_sub(start.elapsed()));
        let slice = left.map_or(SLICE, |l| l.min(SLICE));
        let outcome = py.detach(|| completion.wait_until(Instant::now() + slice));
        if let Some(outcome) = outcome {
            return outcome.map_err(from_op);
        }
        py.check_signals()?;
        if left.is_some_and(|l| l.is_zero()) {
            let seconds = timeout_s.unwrap_or_default();
            let text = format!("not done within {seconds:.2} s; some rank has not contributed");
            return Err(DeadlineError::new_err(text));
        }
    }
}

/// A number of seconds that Python has given.
pub fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_finite() && seconds >= 0.0 {
        return Ok(Duration::from_secs_f64(seconds.min(1e9)));
    }
    let text = format!("timeout_s is {seconds}, expected 0 or more seconds");
    Err(ConfigError::new_err(text))
}

/// Calls a function from a Rust thread. What it raises goes to `sys.unraisablehook`.
pub fn call(function: &Py<PyAny>, args: impl for<'py> PyCallArgs<'py>) {
    // During interpreter shutdown it can no longer run.
    Python::try_attach(|py| {
        if let Err(error) = function.call1(py, args) {
            error.write_unraisable(py, None);
        }
    });
}

/// What a round of a variable does that was submitted before it was decided.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Decision {
    round: DeferredRound,
}

impl Decision {
    pub fn new(round: DeferredRound) -> Decision {
        Decision { round }
    }
}

#[pymethods]
impl Decision {
    /// Waits for the norm of the gradient: the sum of its squares.
    #[pyo3(signature = (timeout_s=None))]
    fn squares(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<f64> {
        wait(py, self.round.norm(), timeout_s)?;
        // A round that was decided without its norm may end first.
        let unknown = || ConfigError::new_err("the round is over, and its norm is not known");
        self.round.squares().ok_or_else(unknown)
    }

    /// Says what the round does; without an update, nothing.
    #[pyo3(signature = (update=None))]
    fn decide(&self, update: Option<[f64; Update::COEFFICIENTS]>) -> PyResult<()> {
        let rule = self.round.rule();
        let decided = match update {
            None => Update::skip(rule),
            Some(coefficients) => {
                Update::from_coefficients(rule, coefficients).ok_or_else(|| {
                    ConfigError::new_err(format!(
                        "coefficients {coefficients:?} are not all finite"
                    ))
                })?
            }
        };
        self.round.decide(decided);
        Ok(())
    }
}
