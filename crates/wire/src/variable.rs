//! What a lane must know of a variable, to change it by a round's sum.

use sumpter_types::{Rank, Rule, Staleness, Update};

use crate::frame::{FrameError, word};

/// Bytes that follow a partition's spec in the payload of a `Begin` frame of an update.
pub const UPDATE_BYTES: usize = COEFFICIENTS_AT + 8 * Update::COEFFICIENTS;

/// Where the coefficients begin in them.
const COEFFICIENTS_AT: usize = 28;

/// Workers that may mirror a partition.
pub const MAX_MIRRORS: usize = 2;

/// The place of no mirror, where a rank would be.
const NO_RANK: u32 = u32::MAX;

/// What a lane must know of a variable's partition; the same from every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VariableSpec {
    /// How the value changes.
    pub rule: Rule,
    /// What the sum is divided by before; 1 if it is not.
    pub divisor: u32,
    /// Workers that receive the gradient in place of the value, and apply the rule themselves. A
    /// round is over when all of them have it.
    pub mirrors: [Option<Rank>; MAX_MIRRORS],
    /// The partition whose state this one's is a part of: itself, but in a round that is repaired.
    pub home: u32,
    /// First byte in that partition.
    pub offset: u32,
    /// How far the workers may run apart.
    pub staleness: Staleness,
}

impl VariableSpec {
    /// Whether a worker mirrors the partition.
    #[must_use]
    pub fn is_mirror(&self, rank: Rank) -> bool {
        self.mirrors.contains(&Some(rank))
    }

    /// How many workers mirror the partition.
    #[must_use]
    pub fn mirror_count(&self) -> usize {
        self.mirrors.iter().flatten().count()
    }

    /// The bytes of a spec and a round's coefficients.
    pub(crate) fn encode(&self, coefficients: &[f64; Update::COEFFICIENTS]) -> [u8; UPDATE_BYTES] {
        let mut out = [0; UPDATE_BYTES];
        out[0] = self.rule.code();
        let [first, second] = self.mirrors.map(|rank| rank.map_or(NO_RANK, |rank| rank.0));
        let words = [self.divisor, first, second, self.home, self.offset, self.staleness.0];
        for (place, word) in out[4..COEFFICIENTS_AT].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, coefficient) in out[COEFFICIENTS_AT..].chunks_exact_mut(8).zip(coefficients) {
            place.copy_from_slice(&coefficient.to_le_bytes());
        }
        out
    }

    /// Reads a spec and a round's coefficients, and checks that they make sense.
    pub(crate) fn decode(
        bytes: &[u8; UPDATE_BYTES],
    ) -> Result<(VariableSpec, [f64; Update::COEFFICIENTS]), FrameError> {
        let fault = |field, value: u64| FrameError::Spec { field, value };
        let rule = Rule::from_code(bytes[0]).ok_or(fault("rule", bytes[0].into()))?;
        let reserved = word(bytes, 0) >> 8;
        if reserved != 0 {
            return Err(FrameError::Reserved(reserved.into()));
        }
        let divisor = word(bytes, 4);
        if divisor == 0 {
            return Err(fault("divisor", 0));
        }
        let rank = |at| Some(word(bytes, at)).filter(|rank| *rank != NO_RANK).map(Rank);
        let mirrors = [rank(8), rank(12)];
        if mirrors[1].is_some() && (mirrors[0] == mirrors[1] || mirrors[0].is_none()) {
            return Err(fault("mirrors", word(bytes, 12).into()));
        }
        let coefficients = std::array::from_fn(|index| {
            let at = COEFFICIENTS_AT + 8 * index;
            f64::from_bits(u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32)
        });
        if Update::from_coefficients(rule, coefficients).is_none() {
            let wrong = coefficients.iter().find(|c| !c.is_finite());
            return Err(fault("coefficients", wrong.map_or(0, |c| c.to_bits())));
        }
        let (home, offset) = (word(bytes, 16), word(bytes, 20));
        let staleness = Staleness(word(bytes, 24));
        let spec = VariableSpec { rule, divisor, mirrors, home, offset, staleness };
        Ok((spec, coefficients))
    }
}
