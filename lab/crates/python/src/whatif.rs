//! The what-if simulation: JSON in, JSON out, without the GIL.

use pyo3::prelude::*;

use crate::errors::from_whatif;

/// What an iteration would take on each of some clusters.
#[pyfunction]
pub fn whatif(py: Python<'_>, request_json: &str) -> PyResult<String> {
    py.detach(|| sumpter_whatif::answer_json(request_json)).map_err(from_whatif)
}

/// What a machine list has, as JSON.
#[pyfunction]
pub fn whatif_machines(toml: &str, local_reduction: &str) -> PyResult<String> {
    sumpter_whatif::machines_json(toml, local_reduction).map_err(from_whatif)
}
