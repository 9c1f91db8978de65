//! What a lane must know of a variable, to change it by the sum of a round, and what it reports.

use arrayvec::ArrayVec;
use sumpter_types::{Action, EXACT_WORDS, ExactSum, Rank, Rule, Staleness, Update};

use crate::frame::{FrameError, FrameKind, word};

/// Bytes that follow a partition's spec in the payload of a `Begin` frame of an update.
pub const UPDATE_BYTES: usize = COEFFICIENTS_AT + 8 * Update::COEFFICIENTS;

/// Where the coefficients begin in them.
const COEFFICIENTS_AT: usize = 28;

/// Bytes of the payload of an `Apply` frame that carries coefficients.
pub const APPLY_BYTES: usize = 8 * Update::COEFFICIENTS;

/// The longest payload of a `Norm` frame.
pub const MAX_NORM_BYTES: usize = 4 + 8 * EXACT_WORDS;

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

    /// The bytes of a spec and of what a round does.
    pub(crate) fn encode(&self, update: &Update) -> [u8; UPDATE_BYTES] {
        let mut out = [0; UPDATE_BYTES];
        (out[0], out[1]) = (self.rule.code(), update.action as u8);
        let [first, second] = self.mirrors.map(|rank| rank.map_or(NO_RANK, |rank| rank.0));
        let words = [self.divisor, first, second, self.home, self.offset, self.staleness.0];
        for (place, word) in out[4..COEFFICIENTS_AT].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[COEFFICIENTS_AT..].copy_from_slice(&coefficients(update));
        out
    }

    /// Reads a spec and what a round does, and checks that they make sense.
    pub(crate) fn decode(bytes: &[u8; UPDATE_BYTES]) -> Result<(VariableSpec, Update), FrameError> {
        let fault = |field, value: u64| FrameError::Spec { field, value };
        let rule = Rule::from_code(bytes[0]).ok_or(fault("rule", bytes[0].into()))?;
        let action = Action::from_code(bytes[1]).ok_or(fault("action", bytes[1].into()))?;
        let reserved = word(bytes, 0) >> 16;
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
        let update = Update { action, ..read(rule, &bytes[COEFFICIENTS_AT..])? };
        let (home, offset) = (word(bytes, 16), word(bytes, 20));
        let staleness = Staleness(word(bytes, 24));
        Ok((VariableSpec { rule, divisor, mirrors, home, offset, staleness }, update))
    }
}

/// A round's coefficients as bytes.
fn coefficients(update: &Update) -> [u8; APPLY_BYTES] {
    let mut out = [0; APPLY_BYTES];
    for (place, coefficient) in out.chunks_exact_mut(8).zip(update.coefficients()) {
        place.copy_from_slice(&coefficient.to_le_bytes());
    }
    out
}

/// Reads a round's coefficients, as many bytes as [`coefficients`] makes.
fn read(rule: Rule, bytes: &[u8]) -> Result<Update, FrameError> {
    let coefficients = std::array::from_fn(|index| f64::from_bits(long(bytes, 8 * index)));
    Update::from_coefficients(rule, coefficients).ok_or_else(|| {
        let wrong = coefficients.iter().find(|c| !c.is_finite());
        FrameError::Spec { field: "coefficients", value: wrong.map_or(0, |c| c.to_bits()) }
    })
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// The payload of an `Apply` frame: what a round does that began without.
#[must_use]
pub fn encode_apply(update: &Update) -> ArrayVec<u8, APPLY_BYTES> {
    match update.action {
        Action::Skip => ArrayVec::new(),
        Action::Apply | Action::Defer => coefficients(update).into(),
    }
}

/// Reads the payload of an `Apply` frame.
///
/// # Errors
/// [`FrameError::Length`], and [`FrameError::Spec`] for coefficients that a rule cannot have.
pub fn decode_apply(rule: Rule, bytes: &[u8]) -> Result<Update, FrameError> {
    match bytes.len() {
        0 => Ok(Update::skip(rule)),
        APPLY_BYTES => read(rule, bytes),
        length => Err(FrameError::Length {
            kind: FrameKind::Apply,
            length: length as u64,
            expected: "none, or a round's coefficients",
        }),
    }
}

/// The payload of a `Norm` frame.
#[must_use]
pub fn encode_norm(squares: &ExactSum) -> ArrayVec<u8, MAX_NORM_BYTES> {
    let (first, words) = squares.significant();
    let (infinite, nan) = squares.special();
    let mut out = ArrayVec::from_iter([first as u8, 0, u8::from(infinite) | u8::from(nan) << 1, 0]);
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    out
}

/// Reads the payload of a `Norm` frame.
///
/// # Errors
/// [`FrameError::Length`], and [`FrameError::Spec`] with the field at fault.
pub fn decode_norm(bytes: &[u8]) -> Result<ExactSum, FrameError> {
    let wrong_length = || FrameError::Length {
        kind: FrameKind::Norm,
        length: bytes.len() as u64,
        expected: "4, and 8 for each word",
    };
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong_length)?;
    if !rest.len().is_multiple_of(8) || bytes.len() > MAX_NORM_BYTES {
        return Err(wrong_length());
    }
    let fault = |field, value: u8| FrameError::Spec { field, value: value.into() };
    let [first, reserved, flags, more] = *head;
    if reserved != 0 || more != 0 {
        return Err(FrameError::Reserved(u64::from(reserved | more)));
    }
    if flags > 3 {
        return Err(fault("flags", flags));
    }
    let words: ArrayVec<u64, EXACT_WORDS> =
        (0..rest.len()).step_by(8).map(|at| long(rest, at)).collect();
    ExactSum::from_significant(first.into(), &words, (flags & 1 != 0, flags & 2 != 0))
        .ok_or_else(|| fault("first word", first))
}
