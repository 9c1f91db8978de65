//! The trace of a run, made of what all its processes have recorded.

use std::path::Path;

use sumpter_config::Config;
use sumpter_coordinator::TraceOf;
use sumpter_observe::{
    self as observe, Activity, Clockwork, Recording, Role, Tightened, Trace, TraceError, align,
    build, tighten,
};
use sumpter_types::StatusReport;

use crate::error::NodeError;
use crate::join::access;

/// What was written to a trace's file.
#[derive(Clone, Debug)]
pub struct TraceSummary {
    /// The job's name.
    pub job: String,
    /// The last steps that are complete on every worker.
    pub steps: usize,
    /// What happened in them.
    pub slices: usize,
    /// The processes, and by how many seconds their times may be off.
    pub processes: Vec<(String, f64)>,
    /// Members that did not answer.
    pub missing: Vec<String>,
    /// What the data connections said of the clocks.
    pub clocks: Tightened,
}

/// Writes the last steps of a run to a file for Perfetto: of the job of this name, or of the only
/// one of the coordinator of these settings.
///
/// # Errors
/// [`NodeError`] without a coordinator that has such a run, without a complete step, or if the
/// file cannot be written.
pub fn trace(
    config: &Config,
    job: Option<&str>,
    steps: usize,
    path: &Path,
) -> Result<TraceSummary, NodeError> {
    let (coordinator, token, tls) = access(config)?;
    let traces = sumpter_coordinator::traces(coordinator, &token, tls.as_ref(), job)?;
    let members = traces.members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
    let (mut members, clockworks): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let clocks = tighten(&mut members, &clockworks);
    let run = format!("{}/{:016x}", traces.job, traces.run);
    let mut trace = build(&run, &members, &traces.tensors, steps)?;
    let job = Some(traces.job.as_str());
    match sumpter_coordinator::status(coordinator, &token, tls.as_ref(), job) {
        Ok(report) => trace.remarks = remarks(&report, &traces.job),
        // It may end with the run, of which everything is here.
        Err(error) => tracing::warn!("the trace does not say what was compressed: {error}"),
    }
    std::fs::write(path, observe::write(&trace))
        .map_err(|source| NodeError::TraceFile { path: path.to_owned(), source })?;
    Ok(TraceSummary {
        job: traces.job,
        steps: complete_steps(&trace),
        slices: trace.slices.len(),
        processes: trace.processes,
        missing: traces.missing,
        clocks,
    })
}

/// What `auto` has chosen in a job.
fn remarks(report: &StatusReport, job: &str) -> Vec<String> {
    let choices = report.jobs.iter().filter(|known| known.name == job);
    choices.flat_map(|job| &job.compression).map(ToString::to_string).collect()
}

fn complete_steps(trace: &Trace) -> usize {
    let steps = trace.slices.iter().filter(|slice| slice.activity == Activity::Step);
    steps.filter_map(|slice| slice.round).collect::<std::collections::BTreeSet<_>>().len()
}

/// A member's recordings, and its clock against the coordinator's while they were made.
fn member(of: TraceOf) -> Result<(observe::Member, Clockwork), TraceError> {
    let (process, role) = match of.rank {
        Some(rank) => (format!("rank {rank} on {}", of.host), Role::Worker(rank)),
        None => (format!("server {} on {}", of.member, of.host), Role::Server(of.member as u32)),
    };
    let decode = |piece: &Vec<u8>| {
        let read = Recording::decode(piece);
        read.map_err(|problem| TraceError::Recording { process: process.clone(), problem })
    };
    let recordings = of.pieces.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    let times = || recordings.iter().flat_map(|recording| &recording.events).map(|e| e.at_ns);
    let last = of.samples.iter().map(|sample| sample.heard_ns).max().unwrap_or(0);
    let window = (times().min().unwrap_or(last), times().max().unwrap_or(last));
    let clock = align(&of.samples, window)
        .map_err(|problem| TraceError::Clock { process: process.clone(), problem })?;
    let clockwork = Clockwork { samples: of.samples, window };
    Ok((observe::Member { process, role, clock, recordings }, clockwork))
}
