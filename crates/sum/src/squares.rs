//! The exact sum of the squares of a gradient, for its norm.

use sumpter_types::{Dtype, ExactSum};

use crate::dispatch::widen;

/// Numbers that are added to the bins before these are emptied: 2^11 significands of 53 bits fill
/// 64 bits.
const BLOCK: usize = 1 << 11;

/// Exponents of an `f64`.
const EXPONENTS: usize = 1 << 11;

/// Adds the squares of elements of `dtype`, a floating-point type, to `sum`.
///
/// The square of a 16-bit float or an `f32` is exact as an `f64`; that of an `f64` is rounded to
/// one. The sum of them is exact, so neither order nor blocks matter: significands are added in a
/// bin for each exponent, as in Neal's large superaccumulator ("Fast exact summation using small
/// and large superaccumulators", arXiv:1505.05571).
///
/// # Panics
/// If the type is none of floats, or the bytes are no whole elements.
pub fn add_squares(dtype: Dtype, bytes: &[u8], sum: &mut ExactSum) {
    let name = dtype.name();
    assert!(dtype.is_float(), "a norm of {name}");
    assert!(bytes.len().is_multiple_of(dtype.size()), "{} bytes of {name}", bytes.len());
    let mut bins = Bins { bins: [0; EXPONENTS] };
    let mut wide = [0; 4 * BLOCK];
    for block in bytes.chunks(dtype.size() * BLOCK) {
        match dtype {
            Dtype::F64 => bins.add(block.as_chunks().0.iter().map(|x| f64::from_ne_bytes(*x))),
            Dtype::F32 => bins.add(floats(block)),
            _ => {
                let wide = &mut wide[..block.len() / dtype.size() * 4];
                widen(dtype, wide, block);
                bins.add(floats(wide));
            }
        }
        bins.empty(sum);
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_ne_bytes(*x)))
}

struct Bins {
    bins: [u64; EXPONENTS],
}

impl Bins {
    /// Adds the squares of at most [`BLOCK`] numbers.
    fn add(&mut self, numbers: impl Iterator<Item = f64>) {
        for x in numbers {
            let bits = (x * x).to_bits();
            // The sign is 0, or it is a NaN.
            let exponent = (bits >> 52) as usize % EXPONENTS;
            let leading = u64::from(exponent > 0) << 52;
            // What is not finite is in the last bin: a NaN has a fraction.
            self.bins[exponent] += (bits & ((1 << 52) - 1)) | leading;
        }
    }

    fn empty(&mut self, sum: &mut ExactSum) {
        let special = std::mem::take(&mut self.bins[EXPONENTS - 1]);
        if special > 0 {
            sum.add_special(true, !special.is_multiple_of(1 << 52));
        }
        for (exponent, bin) in self.bins.iter_mut().enumerate().filter(|(_, bin)| **bin > 0) {
            sum.add_scaled(std::mem::take(bin), exponent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(dtype: Dtype, bytes: &[u8]) -> ExactSum {
        let mut sum = ExactSum::default();
        add_squares(dtype, bytes, &mut sum);
        sum
    }

    fn plain(numbers: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        numbers.iter().for_each(|x| sum.add(x * x));
        sum
    }

    #[test]
    fn it_is_what_adding_one_after_the_other_exactly_gives() {
        for count in [0, 1, 7, BLOCK - 1, BLOCK, 3 * BLOCK + 5] {
            let values: Vec<f64> =
                (0..count).map(|i| (i as f64 - 40.3) * [1.0, 1e-20, 3e12, 1e-44][i % 4]).collect();
            let f64s: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            assert_eq!(squares(Dtype::F64, &f64s), plain(&values));
            let narrow: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let exact: Vec<f64> = narrow.iter().map(|x| f64::from(*x)).collect();
            let f32s: Vec<u8> = narrow.iter().flat_map(|x| x.to_ne_bytes()).collect();
            assert_eq!(squares(Dtype::F32, &f32s), plain(&exact));
            // A bfloat16 is the first half of an f32.
            let half: Vec<u32> = narrow.iter().map(|x| x.to_bits() >> 16).collect();
            let exact: Vec<f64> =
                half.iter().map(|bits| f64::from(f32::from_bits(bits << 16))).collect();
            let bf16s: Vec<u8> =
                half.iter().flat_map(|bits| (*bits as u16).to_ne_bytes()).collect();
            assert_eq!(squares(Dtype::Bf16, &bf16s), plain(&exact));
        }
        // 1.5 and -3.
        let half: Vec<u8> = [0x3e00_u16, 0xc200].iter().flat_map(|x| x.to_ne_bytes()).collect();
        assert_eq!(squares(Dtype::F16, &half).to_f64(), 11.25);
    }

    #[test]
    fn infinities_and_nans_are_told_apart() {
        let of = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            squares(Dtype::F32, &bytes).special()
        };
        assert_eq!(of(&[1.0, f32::MAX]), (false, false));
        assert_eq!(of(&[1.0, f32::NEG_INFINITY]), (true, false));
        assert!(of(&[f32::NAN, -1.0]).1 && of(&[f32::INFINITY, f32::NAN]).1);
        let large = 1e200_f64.to_ne_bytes();
        assert_eq!(squares(Dtype::F64, &large).special(), (true, false));
    }
}
