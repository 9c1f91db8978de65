//! Traces: asked for through the coordinator, and read back from their files.

use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use serde_json::json;
use sumpter_observe::Tightened;

use crate::errors::{StartError, from_node};
use crate::settings::load;

/// Writes the last steps of a run to a file for Perfetto. What was written, as JSON.
#[pyfunction]
pub fn trace(
    py: Python<'_>,
    settings: HashMap<String, String>,
    job: Option<&str>,
    steps: usize,
    path: PathBuf,
) -> PyResult<String> {
    let config = load(settings)?;
    let summary = py.detach(|| sumpter_node::trace(&config, job, steps, &path));
    let summary = summary.map_err(|e| from_node(py, e))?;
    let (before_s, contradicted) = match summary.clocks {
        Tightened::From(before_ns) => (Some(before_ns / 1e9), None),
        Tightened::Contradicted(by) => (None, Some(by)),
    };
    Ok(json!({
        "job": summary.job,
        "steps": summary.steps,
        "slices": summary.slices,
        "clock_error_s": summary.processes.into_iter().collect::<HashMap<_, _>>(),
        "heartbeats_error_s": before_s,
        "contradicted_by": contradicted,
        "missing": summary.missing,
    })
    .to_string())
}

/// What is in a file of `trace`, given as bytes, as JSON.
#[pyfunction]
pub fn read_trace(py: Python<'_>, bytes: &[u8]) -> PyResult<String> {
    let read = || {
        let trace = sumpter_observe::read(bytes)?;
        let name = |process: usize| trace.processes[process].0.clone();
        let slice = |s: &sumpter_observe::Slice| {
            json!({
                "process": name(s.process),
                "track": s.track,
                "activity": s.activity.name(),
                "begin_s": s.begin_ns as f64 / 1e9,
                "end_s": s.end_ns as f64 / 1e9,
                "tensor": s.tensor,
                "round": s.round,
                "bytes": s.bytes,
                "peer": s.peer,
                "partition": s.partition,
                "tier": s.tier,
                "flows": s.flows,
            })
        };
        let slices: Vec<_> = trace.slices.iter().map(slice).collect();
        let clocks: HashMap<_, _> = trace.processes.iter().cloned().collect();
        Ok(json!({
            "run": trace.run,
            "slices": slices,
            "clock_error_s": clocks,
            "remarks": trace.remarks,
        }))
    };
    let read: Result<_, sumpter_observe::TraceError> = py.detach(read);
    read.map(|json| json.to_string()).map_err(|e| StartError::new_err(e.to_string()))
}
