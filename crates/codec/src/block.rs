//! A block, what a format does with one, and the loops that formats share.
//!
//! Loops are over arrays of a fixed number of lanes, so that compilers vectorize them and the
//! order of additions does not depend on how wide registers are.

use std::borrow::Cow;
use std::ops::AddAssign;

use sumpter_sum::InstructionSet;

use crate::random::Key;

/// Elements in a block, whatever a tensor's partitions are: so those can be tuned without changing
/// a bit of any result. As `f32` they and their code fit into the nearest cache.
pub const BLOCK: usize = 1024;

/// The number of blocks of so many elements.
#[must_use]
pub fn blocks(elements: usize) -> usize {
    elements.div_ceil(BLOCK)
}

/// Lanes of a sum: the order of additions is that of [`lane_sum`] on every machine.
const SUM_LANES: usize = 16;

/// The bits of infinity: above them are NaNs, below them what is finite.
pub(crate) const INFINITY: u32 = 0x7f80_0000;

const SIGN: u32 = 1 << 31;

/// What a format knows of a block besides its elements or bytes.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub set: InstructionSet,
    pub key: Key,
    /// The block's number in its tensor.
    pub number: u64,
    /// The largest magnitude in any rank, where ranks share a scale.
    pub maximum: f32,
}

/// A block to be encoded.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub x: &'a [f32],
    /// The bits of the largest magnitude.
    pub largest: u32,
    pub context: Context,
}

impl Block<'_> {
    #[inline(always)]
    pub(crate) fn is_finite(&self) -> bool {
        self.largest < INFINITY
    }
}

/// What is wrong with a block.
pub(crate) type Reason = Cow<'static, str>;

/// A format of blocks.
///
/// Everything is inlined into a loop over blocks that is compiled for each level.
pub(crate) trait Blocks {
    /// Bytes of a block of so many elements; 0 of 0.
    fn len(&self, elements: usize) -> usize;

    /// Writes as many bytes as `len` says.
    fn encode(&self, block: Block<'_>, out: &mut [u8]);

    /// Reads as many bytes as `len` says; an error if no encoder writes them.
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason>;

    /// As `encode`, of a format that may fail.
    #[inline(always)]
    fn try_encode(&self, block: Block<'_>, out: &mut [u8]) -> Result<(), Reason> {
        self.encode(block, out);
        Ok(())
    }

    /// Adds what the bytes decode to. `scratch` is as long as `acc`.
    #[inline(always)]
    fn decode_add(
        &self,
        context: Context,
        bytes: &[u8],
        acc: &mut [[u8; 4]],
        scratch: &mut [f32],
    ) -> Result<(), Reason> {
        self.decode(context, bytes, scratch)?;
        add(acc, scratch);
        Ok(())
    }
}

#[inline(always)]
pub(crate) fn add(acc: &mut [[u8; 4]], x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = (f32::from_ne_bytes(*acc) + x).to_ne_bytes();
    }
}

/// The bits of the largest magnitude; those of a NaN if there is one.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> u32 {
    // Integers of 31 bits, of which every processor has a maximum.
    let mut largest = 0;
    for x in x {
        let magnitude = (x.to_bits() & !SIGN) as i32;
        largest = if magnitude > largest { magnitude } else { largest };
    }
    largest as u32
}

/// The sum of a term of each pair of elements: lane `i % 16` adds those of pairs `i` in their
/// order, then the upper half of the lanes is added to the lower one until one is left.
#[inline(always)]
pub(crate) fn lane_sum<T: Copy + Default + AddAssign>(
    x: &[f32],
    y: &[f32],
    term: impl Fn(f32, f32) -> T,
) -> T {
    let mut lanes = [T::default(); SUM_LANES];
    let ((x_rows, x_tail), (y_rows, y_tail)) =
        (x.as_chunks::<SUM_LANES>(), y.as_chunks::<SUM_LANES>());
    for (x, y) in x_rows.iter().zip(y_rows) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += term(*x, *y);
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(x_tail.iter().zip(y_tail)) {
        *lane += term(*x, *y);
    }
    let mut half = SUM_LANES / 2;
    while half > 0 {
        for i in 0..half {
            let upper = lanes[i + half];
            lanes[i] += upper;
        }
        half /= 2;
    }
    lanes[0]
}

/// Packs flags of 0 or 1, eight to a byte, the first in the lowest bit.
#[inline(always)]
pub(crate) fn pack_bits(flags: &[u8; BLOCK], out: &mut [u8]) {
    // Each of the eight bytes is shifted to its own place in the highest byte of the product.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    for (out, flags) in out.iter_mut().zip(flags.as_chunks::<8>().0) {
        *out = (u64::from_le_bytes(*flags).wrapping_mul(GATHER) >> 56) as u8;
    }
}

/// The scale that stands at the beginning of a block.
#[inline(always)]
pub(crate) fn read_scale(bytes: &[u8]) -> Result<(f32, &[u8]), Reason> {
    let Some((scale, rest)) = bytes.split_first_chunk() else {
        return Err("it has no scale".into());
    };
    let scale = f32::from_le_bytes(*scale);
    if scale.is_nan() || (scale.is_sign_positive() && scale.is_finite()) {
        return Ok((scale, rest));
    }
    Err("its scale is negative or infinite".into())
}

/// Writes a scale, and returns what is behind it.
#[inline(always)]
pub(crate) fn write_scale(out: &mut [u8], scale: f32) -> &mut [u8] {
    let (bytes, rest) = out.split_at_mut(size_of::<f32>());
    bytes.copy_from_slice(&scale.to_le_bytes());
    rest
}

/// Rounds to the nearest integer, ties to even, for magnitudes up to 2^22.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    // Between 2^23 and 2^24 the steps of an f32 are 1: the addition does the rounding.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_the_nearest_ones() {
        for i in -2000..2000 {
            let x = i as f32 / 8.0;
            assert_eq!(nearest(x), x.round_ties_even() as i32, "{x}");
        }
    }

    #[test]
    fn bits_are_packed_from_the_lowest() {
        let mut flags = [0; BLOCK];
        for i in [0, 3, 9, 1023] {
            flags[i] = 1;
        }
        let mut out = [0; BLOCK / 8];
        pack_bits(&flags, &mut out);
        assert_eq!(out[..2], [0b1001, 0b10]);
        assert_eq!(out[127], 0x80);
        assert!(out[2..127].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_largest_magnitude_is_that_of_a_nan_before_infinity() {
        for len in [0, 1, 31, 32, 33, 100] {
            let mut x = vec![-1.0_f32; len];
            assert_eq!(largest(&x), if len == 0 { 0 } else { 1_f32.to_bits() });
            if let Some(last) = x.last_mut() {
                *last = f32::NEG_INFINITY;
                assert_eq!(largest(&x), INFINITY);
                x[0] = -f32::NAN;
                assert!(largest(&x) > INFINITY);
            }
        }
    }
}
