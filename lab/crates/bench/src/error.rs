//! Why a benchmark gave no figures.

use std::io;

use sumpter_endpoint::LinkError;

/// Why a benchmark gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An argument is out of its range: give another.
    #[error("{0}")]
    Argument(String),
    /// The operating system refused something the benchmark needs.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A connection of the benchmark broke.
    #[error("a connection of the benchmark broke: {0}")]
    Link(#[from] LinkError),
    /// A result was not what it must be: no figure of this run can be trusted.
    #[error("wrong result: {0}")]
    Wrong(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn io(doing: &'static str) -> impl Fn(io::Error) -> BenchError {
        move |source| BenchError::Io { doing, source }
    }
}
