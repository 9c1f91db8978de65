//! What can go wrong, by what the caller must do about it.

use std::net::SocketAddr;
use std::path::PathBuf;

use sumpter_config::ConfigError;
use sumpter_coordinator::{CoordinatorError, JoinError};
use sumpter_membership::FatalKind;
use sumpter_metrics::EndpointError;

/// Why an operation on a tensor failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The ranks disagree about the tensor, or it makes no sense: correct the script.
    #[error("{0}")]
    Mismatch(String),
    /// A worker, a server or the coordinator is gone: start the job again.
    #[error("{0}")]
    PeerLost(String),
    /// A peer does not hold the token: correct the launch.
    #[error("{0}")]
    Auth(String),
    /// The session is over; nothing can be submitted.
    #[error("{0}")]
    Closed(String),
}

impl OpError {
    /// The same error with what it means for the operation at hand.
    pub(crate) fn about(&self, consequence: &str) -> OpError {
        let text = format!("{self}; {consequence}");
        match self {
            OpError::Mismatch(_) => OpError::Mismatch(text),
            OpError::PeerLost(_) => OpError::PeerLost(text),
            OpError::Auth(_) => OpError::Auth(text),
            OpError::Closed(_) => OpError::Closed(text),
        }
    }
}

/// Why a worker or server cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting is missing or out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was asked for cannot be had: ask for something else.
    #[error("{0}")]
    Refused(String),
    /// The token is absent or wrong.
    #[error("{0}")]
    Auth(String),
    /// The ranks disagree about a setting.
    #[error("{0}")]
    Mismatch(String),
    /// The job did not start: a rank is missing, the coordinator is not there, a version differs.
    #[error("{0}")]
    Start(String),
    /// Someone this process depends on is gone.
    #[error("{0}")]
    PeerLost(String),
    /// A lane's address cannot be used.
    #[error(
        "cannot listen on {address}: {source}; choose another with the setting `port` \
             (SUMPTER_PORT) or `interfaces` (SUMPTER_INTERFACES)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A timeline cannot be written.
    #[error("cannot write the timeline {}: {source}", path.display())]
    Timeline {
        /// Its file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// There is no trace.
    #[error(transparent)]
    Trace(#[from] sumpter_observe::TraceError),
    /// A trace cannot be written.
    #[error("cannot write the trace {}: {source}", path.display())]
    TraceFile {
        /// Its file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A bug: what must not end has ended.
    #[error("{0}")]
    Internal(String),
    /// The caller asked to stop waiting.
    #[error("interrupted")]
    Interrupted,
}

impl NodeError {
    pub(crate) fn fatal(kind: FatalKind, message: String) -> NodeError {
        match kind {
            FatalKind::Auth => NodeError::Auth(message),
            FatalKind::Mismatch => NodeError::Mismatch(message),
            FatalKind::PeerLost => NodeError::PeerLost(message),
            FatalKind::Version | FatalKind::Start | FatalKind::Protocol => {
                NodeError::Start(message)
            }
        }
    }

    pub(crate) fn io(what: &'static str) -> impl Fn(std::io::Error) -> NodeError {
        move |source| NodeError::Io { what, source }
    }
}

impl From<JoinError> for NodeError {
    fn from(error: JoinError) -> NodeError {
        let message = error.to_string();
        NodeError::fatal(error.kind(), message)
    }
}

impl From<EndpointError> for NodeError {
    fn from(error: EndpointError) -> NodeError {
        NodeError::Start(error.to_string())
    }
}

impl From<CoordinatorError> for NodeError {
    fn from(error: CoordinatorError) -> NodeError {
        NodeError::Start(error.to_string())
    }
}
