//! Scalars of JSON and TOML, read loosely and checked here, so that a message can name the field.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::PlanError;

/// A scalar before its type is checked.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Loose {
    Integer(i64),
    Number(f64),
    Text(String),
    Other(IgnoredAny),
}

impl Loose {
    pub(super) fn count<T: TryFrom<i64>>(
        &self,
        field: &str,
        expected: &str,
    ) -> Result<T, PlanError> {
        let whole = match self {
            Self::Integer(value) => Some(*value),
            // 2^53: up to here a float that looks whole is what was written.
            Self::Number(value)
                if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 =>
            {
                Some(*value as i64)
            }
            _ => None,
        };
        let count = whole.and_then(|value| T::try_from(value).ok());
        count.ok_or_else(|| PlanError::field(field, self, expected))
    }

    pub(super) fn number(&self, field: &str, expected: &str) -> Result<f64, PlanError> {
        match self {
            Self::Integer(value) => Ok(*value as f64),
            Self::Number(value) => Ok(*value),
            _ => Err(PlanError::field(field, self, expected)),
        }
    }

    pub(super) fn text(self, field: &str, expected: &str) -> Result<String, PlanError> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(PlanError::field(field, other, expected)),
        }
    }
}

impl fmt::Display for Loose {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(out),
            Self::Number(value) => value.fmt(out),
            Self::Text(text) => write!(out, "{text:?}"),
            Self::Other(_) => out.write_str("not a single number or text"),
        }
    }
}

/// A number that must be given and lie within a range.
pub(super) fn within(
    value: Option<&Loose>,
    field: &str,
    range: &std::ops::RangeInclusive<f64>,
    expected: &str,
) -> Result<f64, PlanError> {
    let value = value.ok_or_else(|| PlanError::field(field, "missing", expected))?;
    let number = value.number(field, expected)?;
    if range.contains(&number) {
        return Ok(number);
    }
    Err(PlanError::field(field, number, expected))
}
