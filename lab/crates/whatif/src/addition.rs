//! How long the addition of two vectors takes, from a table of measurements (NetAI'20's
//! `AddEst`).

use crate::WhatifError;
use crate::error::within;

/// A table of bytes and seconds, linear between its points and constant outside them.
///
/// ```
/// use sumpter_whatif::Addition;
///
/// let addition = Addition::new(vec![(100.0, 1.0), (200.0, 3.0)])?;
/// assert_eq!(addition.seconds(150.0), 2.0);
/// assert_eq!(addition.seconds(1.0), 1.0);
/// assert_eq!(addition.seconds(1e9), 3.0);
/// # Ok::<(), sumpter_whatif::WhatifError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Addition {
    points: Vec<(f64, f64)>,
}

impl Addition {
    /// A table of (bytes of one vector, seconds).
    ///
    /// # Errors
    /// No point, sizes that do not increase, a size or a time that is negative or not finite.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, WhatifError> {
        if points.is_empty() {
            return Err(WhatifError::field("add", "empty", "at least one [bytes, seconds]"));
        }
        let mut least = 0.0;
        for (index, &(bytes, seconds)) in points.iter().enumerate() {
            let expected = "a finite number, larger than the one before and not negative";
            within(format!("add[{index}] bytes"), bytes, least..=f64::MAX, expected)?;
            let expected = "a finite number of seconds that is not negative";
            within(format!("add[{index}] seconds"), seconds, 0.0..=f64::MAX, expected)?;
            least = bytes.next_up();
        }
        Ok(Self { points })
    }

    /// Seconds to add one vector of `bytes` to another.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        let after = self.points.partition_point(|&(size, _)| size <= bytes);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (None, Some(&(_, seconds))) | (Some((_, seconds)), None) => seconds,
            (Some((size, seconds)), Some(&(next_size, next_seconds))) => {
                seconds + (next_seconds - seconds) * (bytes - size) / (next_size - size)
            }
            // A table has a point.
            (None, None) => 0.0,
        }
    }
}
