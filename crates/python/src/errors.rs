//! Rust errors as a small tree of Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use sumpter_codec::CodecError;
use sumpter_config::ConfigError as RustConfigError;
use sumpter_node::{NodeError, OpError};
use sumpter_plan::PlanError;

create_exception!(sumpter, SumpterError, PyRuntimeError, "The base of all errors Sumpter raises.");
create_exception!(
    sumpter,
    MismatchError,
    SumpterError,
    "The ranks disagree about a tensor or a setting."
);
create_exception!(
    sumpter,
    PeerLostError,
    SumpterError,
    "A worker, a server or the coordinator died or left."
);
create_exception!(sumpter, AuthError, SumpterError, "The job's token is absent or wrong.");
create_exception!(
    sumpter,
    StartError,
    SumpterError,
    "The job could not start: a rank, the coordinator or a port is missing."
);
create_exception!(sumpter, ConfigError, SumpterError, "A setting or argument is out of range.");
create_exception!(sumpter, DeadlineError, SumpterError, "A wait with a time limit ran out.");
create_exception!(sumpter, ClosedError, SumpterError, "The session has been shut down.");

/// The exception of an error about a codec.
pub fn from_codec(error: CodecError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

/// The exception of an operation's error.
pub fn from_op(error: OpError) -> PyErr {
    let text = error.to_string();
    match error {
        OpError::Mismatch(_) => MismatchError::new_err(text),
        OpError::PeerLost(_) => PeerLostError::new_err(text),
        OpError::Auth(_) => AuthError::new_err(text),
        OpError::Closed(_) => ClosedError::new_err(text),
    }
}

/// The exception of a worker's or server's error; a pending Ctrl-C comes first.
pub fn from_node(py: Python<'_>, error: NodeError) -> PyErr {
    if let Err(signal) = py.check_signals() {
        return signal;
    }
    let text = error.to_string();
    match error {
        NodeError::Config(_) | NodeError::Refused(_) => ConfigError::new_err(text),
        NodeError::Auth(_) => AuthError::new_err(text),
        NodeError::Mismatch(_) => MismatchError::new_err(text),
        NodeError::PeerLost(_) => PeerLostError::new_err(text),
        NodeError::Start(_)
        | NodeError::Listen { .. }
        | NodeError::Io { .. }
        | NodeError::Trace(_) => StartError::new_err(text),
        // OSError makes the subclass of the number.
        NodeError::Timeline { path, source } | NodeError::TraceFile { path, source } => {
            PyOSError::new_err((source.raw_os_error().unwrap_or_default(), text, path))
        }
        NodeError::Interrupted | NodeError::Internal(_) => SumpterError::new_err(text),
    }
}

/// The exception of a setting's error.
pub fn from_config(error: RustConfigError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

/// The exception of a planning error.
pub fn from_plan(error: PlanError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

/// Adds the exceptions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("SumpterError", py.get_type::<SumpterError>())?;
    module.add("MismatchError", py.get_type::<MismatchError>())?;
    module.add("PeerLostError", py.get_type::<PeerLostError>())?;
    module.add("AuthError", py.get_type::<AuthError>())?;
    module.add("StartError", py.get_type::<StartError>())?;
    module.add("ConfigError", py.get_type::<ConfigError>())?;
    module.add("DeadlineError", py.get_type::<DeadlineError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())
}
