//! `Seat`: a process' place in an elastic job.

use std::collections::HashMap;

use pyo3::prelude::*;
use sumpter_coordinator::Seat as RustSeat;
use sumpter_node::NodeError;

use crate::errors::from_node;
use crate::functions::interruptible;
use crate::settings::load;

/// Generation, rank, world size, local rank, local size.
type Place = (u64, u32, u32, u32, u32);

/// A process' place in an elastic job, as long as it lives.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Seat {
    inner: RustSeat,
}

#[pymethods]
impl Seat {
    /// Prepares to ask for a place in the job of `settings`.
    #[new]
    fn new(py: Python<'_>, settings: HashMap<String, String>) -> PyResult<Seat> {
        let config = load(settings)?;
        let options = sumpter_node::seat_options(&config).map_err(|e| from_node(py, e))?;
        let inner = RustSeat::open(options).map_err(|e| from_node(py, NodeError::from(e)))?;
        Ok(Seat { inner })
    }

    /// Waits for a place in the next generation; `None` if the job's work is done.
    fn ask(&self, py: Python<'_>) -> PyResult<Option<Place>> {
        let seating = interruptible(py, |interrupted| {
            let asked = self.inner.ask(interrupted);
            asked.map_err(|error| error.map_or(NodeError::Interrupted, NodeError::from))
        })?;
        Ok(seating.map(|s| (s.generation, s.rank, s.world_size, s.local_rank, s.local_size)))
    }

    /// Processes of the generation that are gone.
    #[getter]
    fn lost(&self) -> u32 {
        self.inner.lost()
    }

    /// Processes that the next generation would take in.
    #[getter]
    fn newcomers(&self) -> u32 {
        self.inner.newcomers()
    }

    /// Gives the seat up.
    #[pyo3(signature = (*, done = false))]
    fn leave(&self, py: Python<'_>, done: bool) {
        py.detach(|| self.inner.leave(done));
    }
}

impl Seat {
    /// Whether the generation cannot be complete any more.
    pub fn is_broken(&self) -> bool {
        self.inner.lost() > 0
    }
}
