//! Why there is no trace.

/// Why a trace cannot be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The bytes are no trace of Sumpter, or not all of one.
    #[error("{field}: {problem}")]
    File {
        /// Where in the file.
        field: String,
        /// What is wrong, and what was expected.
        problem: String,
    },
    /// A process sent what cannot be understood.
    #[error("{process} sent a recording that cannot be read: {problem}")]
    Recording {
        /// Who.
        process: String,
        /// What is wrong.
        problem: String,
    },
    /// A process's clock cannot be compared with the others'.
    #[error("the clock of {process} cannot be aligned: {problem}")]
    Clock {
        /// Whose.
        process: String,
        /// Why.
        problem: String,
    },
    /// No step is complete.
    #[error("{0}")]
    Empty(String),
}
