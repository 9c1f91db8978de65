//! Thousands of members of one coordinator, driven from Python phase by phase.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use sumpter_bench::{BenchError, Crowd, CrowdSpec, Load};

use crate::errors::{ConfigError, from_bench};

/// All members of a job, in this process. Each method is a phase: it returns when every member is
/// done.
#[pyclass]
pub struct Members(Mutex<Option<Crowd>>);

impl Members {
    /// Runs a phase without the GIL.
    fn phase<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Crowd) -> Result<T, BenchError> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let mut crowd = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            crowd.as_mut().map(body)
        });
        let left = || ConfigError::new_err("the members have left");
        result.ok_or_else(left)?.map_err(from_bench)
    }
}

#[pymethods]
impl Members {
    /// Has all join, and waits for the first plan.
    #[new]
    #[pyo3(signature = (
        *, coordinator, token, workers, servers, lanes, patience_s, peer_timeout_s
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        coordinator: String,
        token: String,
        workers: u32,
        servers: u32,
        lanes: u32,
        patience_s: f64,
        peer_timeout_s: f64,
    ) -> PyResult<Members> {
        let (patience, peer_timeout) = (seconds(patience_s)?, seconds(peer_timeout_s)?);
        let spec =
            CrowdSpec { coordinator, token, workers, servers, lanes, patience, peer_timeout };
        let crowd = py.detach(|| Crowd::join(spec)).map_err(from_bench)?;
        Ok(Members(Mutex::new(Some(crowd))))
    }

    /// Bytes of the message with the first plan.
    #[getter]
    fn plan_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.phase(py, |crowd| Ok(crowd.plan_bytes()))
    }

    /// Every worker declares so many tensors; the bytes of the table that each gets.
    fn declare(&self, py: Python<'_>, tensors: u32) -> PyResult<usize> {
        self.phase(py, |crowd| crowd.declare(tensors))
    }

    /// Heartbeats for so many seconds; while it waits, every operation waits for one rank.
    fn beat(&self, py: Python<'_>, duration_s: f64, waiting: bool) -> PyResult<()> {
        let duration = seconds(duration_s)?;
        let load = if waiting { Load::Waiting } else { Load::Training };
        self.phase(py, |crowd| crowd.beat(duration, load))
    }

    /// A server dies: seconds until all workers have the new plan, seconds until all were told to
    /// stop, bytes of the message with the plan. With `apart`, no two workers answer alike.
    fn change(&self, py: Python<'_>, apart: bool) -> PyResult<(f64, f64, usize)> {
        let change = self.phase(py, |crowd| crowd.change(apart))?;
        Ok((change.seconds, change.suspended_s, change.message_bytes))
    }

    /// All leave.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| {
            let crowd = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            crowd.into_iter().for_each(Crowd::leave);
        });
    }
}

/// Processor seconds in which one worker places tensors of these sizes on the lanes of a job.
#[pyfunction]
#[pyo3(signature = (*, workers, servers, lanes, tensors))]
pub fn placement_s(
    py: Python<'_>,
    workers: u32,
    servers: u32,
    lanes: u32,
    tensors: Vec<u64>,
) -> PyResult<f64> {
    let job = (workers, servers, lanes);
    py.detach(|| sumpter_bench::placement_s(job, &tensors)).map_err(from_bench)
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| ConfigError::new_err(format!("{seconds} s: {error}")))
}
