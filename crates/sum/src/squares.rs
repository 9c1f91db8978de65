//! The exact sum of the squares of a gradient, for its norm.

use sumpter_types::{Dtype, ExactSum};

use crate::dispatch::widen;

/// `f64`s that are added before the bins are emptied: 2^11 significands of 53 bits fill 64 bits.
const BLOCK: usize = 1 << 11;

/// Exponents of an `f64`.
const EXPONENTS: usize = 1 << 11;

/// `f32`s whose squares are added before the bins are emptied: 2^16 of 48 bits fill 64 bits.
const NARROW_BLOCK: usize = 1 << 16;

/// Exponents of an `f32`; the last one is of what is not finite.
const NARROW_EXPONENTS: usize = 1 << 8;

/// 16-bit floats that are widened at a time.
const WIDENED: usize = 1 << 11;

/// Adds the squares of elements of `dtype`, a floating-point type, to `sum`.
///
/// The square of a 16-bit float or an `f32` is exact; that of an `f64` is rounded to one. The sum
/// of them is exact, so neither order nor blocks matter: integers are added in a bin for each
/// exponent, as in Neal's large superaccumulator ("Fast exact summation using small and large
/// superaccumulators", arXiv:1505.05571).
///
/// # Panics
/// If the type is none of floats, or the bytes are no whole elements.
pub fn add_squares(dtype: Dtype, bytes: &[u8], sum: &mut ExactSum) {
    let name = dtype.name();
    assert!(dtype.is_float(), "a norm of {name}");
    assert!(bytes.len().is_multiple_of(dtype.size()), "{} bytes of {name}", bytes.len());
    match dtype {
        Dtype::F64 => bytes.chunks(8 * BLOCK).for_each(|block| add_f64s(block, sum)),
        Dtype::F32 => bytes.chunks(4 * NARROW_BLOCK).for_each(|block| add_f32s(block, sum)),
        _ => {
            let mut wide = [0; 4 * WIDENED];
            for block in bytes.chunks(2 * WIDENED) {
                let wide = &mut wide[..2 * block.len()];
                widen(dtype, wide, block);
                add_f32s(wide, sum);
            }
        }
    }
}

/// Adds the squares of at most [`NARROW_BLOCK`] `f32`s: those of their significands, as integers.
fn add_f32s(bytes: &[u8], sum: &mut ExactSum) {
    // Two of each, so that equal neighbours do not wait for each other's sum.
    let mut bins = [[0_u64; NARROW_EXPONENTS]; 2];
    let add = |bins: &mut [u64; NARROW_EXPONENTS], x: [u8; 4]| {
        let bits = u32::from_ne_bytes(x);
        let exponent = (bits >> 23) as usize % NARROW_EXPONENTS;
        let significand = u64::from(bits & ((1 << 23) - 1) | u32::from(exponent > 0) << 23);
        bins[exponent] += significand * significand;
    };
    let numbers = bytes.as_chunks::<4>().0;
    let (pairs, odd) = numbers.as_chunks::<2>();
    for [x, y] in pairs {
        add(&mut bins[0], *x);
        add(&mut bins[1], *y);
    }
    odd.iter().for_each(|x| add(&mut bins[0], *x));
    for half in &mut bins {
        if std::mem::take(&mut half[NARROW_EXPONENTS - 1]) > 0 {
            let nan = numbers.iter().any(|x| f32::from_ne_bytes(*x).is_nan());
            let infinite = numbers.iter().any(|x| f32::from_ne_bytes(*x).is_infinite());
            sum.add_special(infinite, nan);
        }
        for (exponent, bin) in half.iter().enumerate().filter(|(_, bin)| **bin > 0) {
            // A significand counts in units of 2^(exponent - 150), its square in those squared; in
            // terms of an f64, whose units are 2^(exponent - 1075):
            sum.add_scaled(*bin, 2 * exponent.max(1) + 775);
        }
    }
}

/// Adds the squares of at most [`BLOCK`] `f64`s.
fn add_f64s(bytes: &[u8], sum: &mut ExactSum) {
    let mut bins = [0_u64; EXPONENTS];
    for x in bytes.as_chunks::<8>().0 {
        let x = f64::from_ne_bytes(*x);
        let square = x * x;
        if !square.is_finite() {
            sum.add(square);
            continue;
        }
        let bits = square.to_bits();
        let exponent = (bits >> 52) as usize % EXPONENTS;
        bins[exponent] += (bits & ((1 << 52) - 1)) | u64::from(exponent > 0) << 52;
    }
    for (exponent, bin) in bins.iter().enumerate().filter(|(_, bin)| **bin > 0) {
        sum.add_scaled(*bin, exponent);
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
        for count in [0, 1, 7, BLOCK - 1, BLOCK, NARROW_BLOCK + 5] {
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
        assert_eq!(of(&[f32::NAN, -1.0]), (false, true));
        assert_eq!(of(&[f32::INFINITY, 0.0, f32::NAN]), (true, true));
        let large = 1e200_f64.to_ne_bytes();
        assert_eq!(squares(Dtype::F64, &large).special(), (true, false));
    }
}
