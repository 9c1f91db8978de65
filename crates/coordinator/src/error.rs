//! Why a coordinator cannot run and why a member cannot join, in words a person can act on.

use std::io;
use std::time::Duration;

use sumpter_membership::FatalKind;

/// Why a coordinator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// Something else listens there.
    #[error(
        "cannot listen on {address}: the address is in use, perhaps by another coordinator; \
         give another port, or port 0 for any free one"
    )]
    AddressInUse {
        /// Where it was to listen.
        address: String,
    },
    /// The address is not one of this machine, or none at all.
    #[error("cannot listen on {address}: {reason}; give HOST:PORT with an address of this machine")]
    Listen {
        /// Where it was to listen.
        address: String,
        /// What the operating system says.
        reason: io::Error,
    },
    /// A certificate or key that cannot be used.
    #[error("cannot use the settings tls_cert, tls_key and tls_ca: {reason}")]
    Tls {
        /// What is wrong with them.
        reason: String,
    },
    /// The operating system refuses a thread or an event loop.
    #[error("cannot run a coordinator: {reason}")]
    System {
        /// What the operating system says.
        #[from]
        reason: io::Error,
    },
}

/// Why a process is not a member.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The coordinator's address makes no sense.
    #[error("{coordinator:?} is no coordinator's address ({reason}); give HOST:PORT")]
    Address {
        /// What was given.
        coordinator: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing answers.
    #[error(
        "no coordinator answered at {coordinator} in {:.1} s: {reason}; is it running, and is the \
         address right?",
        waited.as_secs_f64()
    )]
    Unreachable {
        /// Where it was expected.
        coordinator: String,
        /// For how long.
        waited: Duration,
        /// What happened at the last try.
        reason: String,
    },
    /// Something else answers.
    #[error("what listens at {coordinator} is not a Sumpter coordinator: {reason}")]
    NotACoordinator {
        /// Where it listens.
        coordinator: String,
        /// What it did.
        reason: String,
    },
    /// The coordinator refused this member's proof.
    #[error(
        "token refused by the coordinator at {coordinator}: the tokens differ; give every process \
         of the job the same token"
    )]
    TokenRefused {
        /// Where it listens.
        coordinator: String,
    },
    /// The coordinator's own proof is wrong.
    #[error(
        "the coordinator at {coordinator} could not show that it holds the token: it is not this \
         job's coordinator"
    )]
    CoordinatorUnproven {
        /// Where it listens.
        coordinator: String,
    },
    /// The two ends speak different versions.
    #[error(
        "the coordinator at {coordinator} speaks protocol version {theirs}, this process \
         version {ours}; install the same Sumpter everywhere"
    )]
    Version {
        /// Where it listens.
        coordinator: String,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The coordinator does not want this member.
    #[error("refused by the coordinator at {coordinator}: {message}")]
    Refused {
        /// Where it listens.
        coordinator: String,
        /// The class of the reason.
        kind: FatalKind,
        /// The reason, in words.
        message: String,
    },
    /// A certificate or key that cannot be used.
    #[error("cannot use the settings tls_cert, tls_key and tls_ca: {reason}")]
    Tls {
        /// What is wrong with them.
        reason: String,
    },
    /// The operating system refuses a thread, an event loop or random numbers.
    #[error("cannot run a member's session: {reason}")]
    System {
        /// What the operating system says.
        #[from]
        reason: io::Error,
    },
}

impl JoinError {
    /// The class of the error, by what the caller must do about it.
    #[must_use]
    pub fn kind(&self) -> FatalKind {
        match self {
            JoinError::TokenRefused { .. } | JoinError::CoordinatorUnproven { .. } => {
                FatalKind::Auth
            }
            JoinError::Version { .. } => FatalKind::Version,
            JoinError::Refused { kind, .. } => *kind,
            JoinError::NotACoordinator { .. }
            | JoinError::Address { .. }
            | JoinError::Tls { .. }
            | JoinError::Unreachable { .. }
            | JoinError::System { .. } => FatalKind::Start,
        }
    }
}

/// The innermost error, which says what happened; the outer ones say in which layer.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
