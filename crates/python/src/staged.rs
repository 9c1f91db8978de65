//! Staged rounds: what a device's streams wait for, and what they set off, without Python.
//!
//! A thread of Python may be stuck in a call of the device's driver, with or without the
//! interpreter, behind a thread that waits for a stream. What such a stream waits for must come
//! about without both: a gate is opened by the event loop, and what has arrived in host memory is
//! supplied by the driver's own thread.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use sumpter_node::StagedRound;

use crate::errors::ConfigError;
use crate::handle::duration;

/// In place of a result that there is not: no number in any floating-point format.
const ALL_ONES: u8 = 0xFF;

/// The contribution to an operation that was submitted before it was there.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Supply {
    round: Arc<StagedRound>,
    /// Bytes of the tensor.
    bytes: usize,
}

impl Supply {
    pub fn new(round: StagedRound, bytes: usize) -> Supply {
        Supply { round: Arc::new(round), bytes }
    }

    fn range(&self, start: usize, size: usize) -> PyResult<Range<usize>> {
        match start.checked_add(size).filter(|end| *end <= self.bytes) {
            Some(end) => Ok(start..end),
            None => {
                let text = format!("{size} bytes from {start} on of a tensor of {}", self.bytes);
                Err(ConfigError::new_err(text))
            }
        }
    }
}

#[pymethods]
impl Supply {
    /// `size` bytes from `start` on are in the memory.
    fn supply(&self, start: usize, size: usize) -> PyResult<()> {
        self.round.supply(self.range(start, size)?);
        Ok(())
    }

    /// What supplies these bytes when it happens.
    fn arrival(&self, start: usize, size: usize) -> PyResult<Arrival> {
        let bytes = self.range(start, size)?;
        Ok(Arrival::of(Some((self.round.clone(), bytes))))
    }

    /// The rest will never come: the tensor's rounds fail on all ranks.
    fn refuse(&self, reason: &str) {
        self.round.refuse(reason);
    }

    /// Has a gate opened when a slice is final, or never will be; see the stub.
    fn hold(
        &self,
        slice: usize,
        memory: (usize, usize),
        gate: (usize, u32),
        watch: PyRef<'_, GateWatch>,
    ) -> bool {
        let ((start, size), (word, value)) = (memory, gate);
        let failed = watch.failed.clone();
        let open = move |is_final: bool| {
            if !is_final {
                failed.fetch_add(1, Ordering::Release);
                // SAFETY: the caller promises (see the stub) that the slice's host memory stays
                // until the gate was opened; of a round that has failed nothing else writes to it.
                unsafe { (start as *mut u8).write_bytes(ALL_ONES, size) };
            }
            // SAFETY: as above, of an aligned word that only gates write.
            let word = unsafe { AtomicU32::from_ptr(word as *mut u32) };
            word.store(value, Ordering::Release);
        };
        self.round.hold(slice, Box::new(open))
    }

    /// Leaves it to the caller to open the gate of a slice. Whether it was still shut.
    fn release(&self, slice: usize) -> bool {
        self.round.release(slice)
    }
}

/// How many gates were opened because rounds had failed.
#[pyclass(module = "sumpter._native", frozen)]
pub struct GateWatch {
    failed: Arc<AtomicU64>,
}

#[pymethods]
impl GateWatch {
    #[new]
    fn new() -> GateWatch {
        GateWatch { failed: Arc::default() }
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }
}

/// A point in a device's stream; see the stub.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Arrival {
    point: Arc<Point>,
}

struct Point {
    state: Mutex<PointState>,
    changed: Condvar,
}

struct PointState {
    /// What is supplied then.
    supplies: Option<(Arc<StagedRound>, Range<usize>)>,
    is_over: bool,
}

impl Arrival {
    fn of(supplies: Option<(Arc<StagedRound>, Range<usize>)>) -> Arrival {
        let state = Mutex::new(PointState { supplies, is_over: false });
        Arrival { point: Arc::new(Point { state, changed: Condvar::new() }) }
    }
}

#[pymethods]
impl Arrival {
    #[new]
    fn new() -> Arrival {
        Arrival::of(None)
    }

    /// The stream has come so far; only the first call does anything.
    fn happen(&self) {
        self.point.happen();
    }

    /// It never will: releases the threads that wait.
    fn give_up(&self) {
        self.point.end(|_| ());
    }

    /// Waits until one of both; returns whether it is so.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = duration(timeout_s)?;
        Ok(py.detach(|| self.point.wait_until(Instant::now() + timeout)))
    }

    /// The addresses of a C function, and of what it is to be called with once: this happens then.
    fn host_function(&self) -> (usize, usize) {
        let given = Arc::into_raw(self.point.clone());
        (happen as *const () as usize, given as usize)
    }

    /// The function will not be called.
    fn take_back(&self, given: usize) -> PyResult<()> {
        if given != Arc::as_ptr(&self.point) as usize {
            return Err(ConfigError::new_err("this is not what host_function() has given"));
        }
        // SAFETY: it comes from `into_raw`, and the caller promises that it is given back once.
        drop(unsafe { Arc::from_raw(given as *const Point) });
        Ok(())
    }
}

impl Point {
    fn happen(&self) {
        self.end(|supplies| {
            if let Some((round, bytes)) = supplies {
                round.supply(bytes);
            }
        });
    }

    fn end(&self, act: impl FnOnce(Option<(Arc<StagedRound>, Range<usize>)>)) {
        let mut state = self.lock();
        if !state.is_over {
            state.is_over = true;
            // Supplied before anyone learns that it can be.
            act(state.supplies.take());
            self.changed.notify_all();
        }
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.is_over);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    fn lock(&self) -> MutexGuard<'_, PointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a driver's thread calls. It needs no interpreter, and must not call the driver.
extern "C" fn happen(given: *mut c_void) {
    // SAFETY: the driver calls this once with what `host_function` has given.
    let point = unsafe { Arc::from_raw(given as *const Point) };
    point.happen();
}
