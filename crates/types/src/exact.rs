//! An exact sum of floating-point numbers that are not negative: no order of addition, and no way
//! to cut the numbers into parts, changes it.
//!
//! It is a fixed-point number that is wide enough for every finite `f64`, as in Kulisch's
//! accumulator (Kulisch and Miranker, "Computer Arithmetic in Theory and Practice", 1981). Norms of
//! gradients are kept so: whatever lanes a plan gives the parts of a tensor to, the norm has the
//! same bits.

/// Words of 64 bits: 2098 bits reach from the smallest subnormal number to the largest finite one,
/// and the others are for the carries of 2^78 numbers.
pub const EXACT_WORDS: usize = 34;

/// The exponent of the last bit.
const LOWEST: i32 = -1074;

/// Bits of a significand, the leading one included.
const SIGNIFICAND: u32 = 53;

/// An exact sum of numbers from 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactSum {
    /// The least significant one first.
    words: [u64; EXACT_WORDS],
    /// Whether an infinity was added, and whether a NaN was.
    infinite: bool,
    nan: bool,
}

impl Default for ExactSum {
    fn default() -> ExactSum {
        ExactSum { words: [0; EXACT_WORDS], infinite: false, nan: false }
    }
}

impl ExactSum {
    /// Adds a number; a negative one counts as not a number.
    pub fn add(&mut self, x: f64) {
        if x.is_nan() || x < 0.0 {
            self.nan = true;
        } else if x.is_infinite() {
            self.infinite = true;
        } else {
            // -0 has a sign as well.
            let exponent = (x.to_bits() >> 52) as usize & 2047;
            let fraction = x.to_bits() & ((1 << 52) - 1);
            let leading = u64::from(exponent > 0) << 52;
            self.add_scaled(fraction | leading, exponent);
        }
    }

    /// Adds `significands` that have the biased exponent of an `f64` in common, as a sum. Exponent
    /// 2047, of what is not finite, is not for this.
    pub fn add_scaled(&mut self, significands: u64, exponent: usize) {
        debug_assert!(exponent < 2047);
        // Subnormal numbers have the last bit of those with exponent 1.
        let shift = exponent.max(1) - 1;
        let (word, bit) = (shift / 64, shift % 64);
        let wide = u128::from(significands) << bit;
        self.carry(word, wide as u64);
        self.carry(word + 1, (wide >> 64) as u64);
    }

    /// Notes what is not finite among the numbers added.
    pub fn add_special(&mut self, infinite: bool, nan: bool) {
        self.infinite |= infinite;
        self.nan |= nan;
    }

    /// Adds all that was added to another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        self.add_special(other.infinite, other.nan);
        let mut carry = false;
        for (word, more) in self.words.iter_mut().zip(other.words) {
            let (sum, first) = word.overflowing_add(more);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            (*word, carry) = (sum, first || second);
        }
    }

    /// The sum, rounded once to the nearest `f64`, ties to even; NaN if a NaN was added.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        if self.nan {
            return f64::NAN;
        }
        let top = self.words.iter().rposition(|word| *word != 0);
        let Some(top) = top.filter(|_| !self.infinite) else {
            return if self.infinite { f64::INFINITY } else { 0.0 };
        };
        let word = |at: Option<usize>| at.map_or(0, |at| self.words[at]);
        // The leading 128 bits, whose first is not 0, and whether there is more behind them.
        let zeros = self.words[top].leading_zeros();
        let next = (u128::from(self.words[top]) << 64) | u128::from(word(top.checked_sub(1)));
        let behind = word(top.checked_sub(2));
        let more = if zeros == 0 { 0 } else { behind >> (64 - zeros) };
        let leading = (next << zeros) | u128::from(more);
        let lost = behind << zeros != 0
            || self.words[..top.saturating_sub(2)].iter().any(|word| *word != 0);
        let highest = 64 * top as i32 + 63 - zeros as i32 + LOWEST;
        // A subnormal number has fewer bits.
        let kept = (highest - LOWEST + 1).clamp(1, SIGNIFICAND as i32) as u32;
        let (significand, rest) = (leading >> (128 - kept), leading << kept);
        let half = 1_u128 << 127;
        let up = rest > half || (rest == half && (lost || significand & 1 == 1));
        let significand = significand as u64 + u64::from(up);
        scale(significand, highest - kept as i32 + 1)
    }

    /// Whether all that was added was finite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        !self.infinite && !self.nan
    }

    /// What was added that is not finite: infinities, NaNs.
    #[must_use]
    pub fn special(&self) -> (bool, bool) {
        (self.infinite, self.nan)
    }

    /// The words from the first that is not 0 to the last one, and the index of the first.
    #[must_use]
    pub fn significant(&self) -> (usize, &[u64]) {
        let first = self.words.iter().position(|word| *word != 0).unwrap_or(0);
        let end = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        (first, &self.words[first..end])
    }

    /// The sum that has these words from the index `first` on, and zeros elsewhere; `None` if they
    /// are too many.
    #[must_use]
    pub fn from_significant(
        first: usize,
        words: &[u64],
        (infinite, nan): (bool, bool),
    ) -> Option<ExactSum> {
        let mut sum = ExactSum { infinite, nan, ..ExactSum::default() };
        sum.words.get_mut(first..first.checked_add(words.len())?)?.copy_from_slice(words);
        Some(sum)
    }

    fn carry(&mut self, from: usize, x: u64) {
        let mut x = x;
        for word in &mut self.words[from.min(EXACT_WORDS)..] {
            let (sum, over) = word.overflowing_add(x);
            *word = sum;
            if !over {
                return;
            }
            x = 1;
        }
    }
}

/// `significand * 2^exponent`, where the significand has at most 53 bits, or is 2^53; infinity if
/// that is too large.
fn scale(significand: u64, exponent: i32) -> f64 {
    let (significand, exponent) = match significand >> SIGNIFICAND {
        0 => (significand, exponent),
        _ => (significand >> 1, exponent + 1),
    };
    if significand >> (SIGNIFICAND - 1) == 0 {
        debug_assert_eq!(exponent, LOWEST);
        return f64::from_bits(significand);
    }
    let biased = exponent - LOWEST + 1;
    if biased >= 2047 {
        return f64::INFINITY;
    }
    f64::from_bits((biased as u64) << 52 | (significand & ((1 << 52) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(numbers: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        numbers.iter().for_each(|x| sum.add(*x));
        sum
    }

    #[test]
    fn one_number_comes_out_as_it_went_in() {
        let tiny = f64::from_bits(1);
        let below = f64::from_bits((1 << 52) - 1);
        assert_eq!(sum(&[-0.0]).to_f64().to_bits(), 0);
        for x in [0.0, 1.0, 0.1, tiny, below, 3.0 * tiny, f64::MIN_POSITIVE, f64::MAX, 1e300] {
            assert_eq!(sum(&[x]).to_f64().to_bits(), x.to_bits(), "{x:e}");
        }
    }

    #[test]
    fn it_is_rounded_once_to_nearest_and_ties_to_even() {
        let one = 1.0_f64;
        let half = f64::EPSILON / 2.0;
        assert_eq!(sum(&[one, half]).to_f64(), 1.0);
        assert_eq!(sum(&[one, half, 1e-300]).to_f64(), 1.0 + f64::EPSILON);
        assert_eq!(sum(&[one + f64::EPSILON, half]).to_f64(), 1.0 + 2.0 * f64::EPSILON);
        // A carry through all bits of the significand.
        assert_eq!(sum(&[2.0 - f64::EPSILON, half]).to_f64(), 2.0);
        // Below all that addition one after the other would have kept.
        let many = vec![1e-17; 1 << 10];
        assert!(many.iter().fold(1.0, |a, b| a + b) == 1.0);
        let mut numbers = vec![1.0];
        numbers.extend(many);
        assert_eq!(sum(&numbers).to_f64(), 1.0 + 1e-17 * 1024.0);
        assert_eq!(sum(&[f64::MAX, f64::MAX]).to_f64(), f64::INFINITY);
    }

    #[test]
    fn no_order_and_no_cut_changes_it() {
        let mut x = 88_172_645_463_325_252_u64;
        let mut numbers = Vec::new();
        for _ in 0..5000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let number = f64::from_bits(x >> 1);
            numbers.push(if number.is_finite() { number } else { 1.0 });
        }
        let whole = sum(&numbers);
        let (left, right) = numbers.split_at(1234);
        let mut parts = sum(right);
        parts.merge(&sum(left));
        assert_eq!(parts, whole);
        numbers.reverse();
        assert_eq!(sum(&numbers), whole);
        let (first, words) = whole.significant();
        let again = ExactSum::from_significant(first, words, whole.special());
        assert_eq!(again, Some(whole));
        assert_eq!(ExactSum::from_significant(30, &[1; 5], (false, false)), None);
        assert_eq!(ExactSum::from_significant(usize::MAX, &[1], (false, false)), None);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert_eq!(sum(&[1.0, f64::INFINITY]).to_f64(), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NAN]).to_f64().is_nan());
        assert!(!sum(&[f64::NAN]).is_finite() && sum(&[1.0]).is_finite());
    }
}
