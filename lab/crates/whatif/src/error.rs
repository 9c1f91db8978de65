//! What can be wrong with a question put to this crate. Messages name the field, the value and
//! what would have been accepted.

use sumpter_codec::CodecError;
use sumpter_plan::PlanError;

/// Why nothing was simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatifError {
    /// One value is out of its range: change it.
    #[error("{field} is {value}; expected {expected}")]
    Field {
        /// The field, with its place (`tensors[3].bytes`).
        field: String,
        /// The value as it was given.
        value: String,
        /// What is accepted instead.
        expected: String,
    },
    /// The cluster cannot be planned for.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The codec is none, or does not fit a tensor.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The request is not the JSON that [`answer_json`](crate::answer_json) reads.
    #[error("the what-if request is not valid: {0}")]
    Request(String),
}

impl WhatifError {
    pub(crate) fn field(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Field { field: field.into(), value: value.to_string(), expected: expected.into() }
    }
}

/// Checks that a number is in a range; `NaN` never is.
pub(crate) fn within(
    field: impl Into<String>,
    value: f64,
    accepted: std::ops::RangeInclusive<f64>,
    expected: &str,
) -> Result<(), WhatifError> {
    if accepted.contains(&value) {
        return Ok(());
    }
    Err(WhatifError::field(field, value, expected))
}
