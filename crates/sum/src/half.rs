//! Conversions between the 16-bit floats and `f32`, a tile at a time.
//!
//! Every implementation agrees bit for bit on everything but NaN payloads: widening is exact,
//! narrowing rounds to nearest with ties to even, subnormals are kept, and a NaN stays a NaN and is
//! quiet once narrowed.

/// Elements in a tile. Long enough that the compiler vectorizes loops over it instead of unrolling
/// them, short enough that a widened tile stays in the nearest cache: 32 are too few, 256 too many.
pub(crate) const TILE: usize = 128;

/// A tile of 16-bit floats, as bytes because they may lie anywhere.
pub(crate) type NarrowTile = [u8; 2 * TILE];
/// The same tile in `f32`.
pub(crate) type WideTile = [f32; TILE];

/// One way of converting one 16-bit format.
///
/// A value of an implementation that needs processor features is the proof that they are there.
pub(crate) trait Half: Copy {
    fn widen(self, x: &NarrowTile) -> WideTile;
    fn narrow(self, x: &WideTile) -> NarrowTile;

    /// `x + y`, rounded.
    #[inline(always)]
    fn add(self, x: &NarrowTile, y: &NarrowTile) -> NarrowTile {
        let (mut sum, y) = (self.widen(x), self.widen(y));
        for (sum, y) in sum.iter_mut().zip(y) {
            *sum += y;
        }
        self.narrow(&sum)
    }
}

/// How a level of processor features converts each format.
#[derive(Clone, Copy)]
pub(crate) struct Halves<F16, Bf16> {
    pub f16: F16,
    pub bf16: Bf16,
}

/// `bfloat16`: the upper half of an `f32`. Integer arithmetic everywhere, because the processor's
/// own narrowing instruction flushes subnormals.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

/// `binary16` by integer arithmetic, for processors that cannot convert it.
#[derive(Clone, Copy)]
pub(crate) struct SoftF16;

impl Half for Bf16 {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        widen_each(x, widen_bf16)
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        narrow_each(x, narrow_bf16)
    }
}

impl Half for SoftF16 {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        widen_each(x, widen_f16)
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        narrow_each(x, narrow_f16)
    }
}

#[inline(always)]
fn widen_each(x: &NarrowTile, widen: impl Fn(u16) -> f32) -> WideTile {
    let mut out = [0.0; TILE];
    for (out, x) in out.iter_mut().zip(x.as_chunks().0) {
        *out = widen(u16::from_ne_bytes(*x));
    }
    out
}

#[inline(always)]
fn narrow_each(x: &WideTile, narrow: impl Fn(f32) -> u16) -> NarrowTile {
    let mut out = [0; 2 * TILE];
    for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
        *out = narrow(*x).to_ne_bytes();
    }
    out
}

#[inline(always)]
fn widen_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

#[inline(always)]
fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let ties_to_even = 0x7fff + ((bits >> 16) & 1);
    let rounded = bits.wrapping_add(ties_to_even);
    let quiet = bits | 0x0040_0000;
    ((if x.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// Bits by which an `f32` has more mantissa than a `binary16`.
const MANTISSA_SHIFT: u32 = 13;
/// What the exponent of an `f32` has more as its bias, in place.
const REBIAS: u32 = (127 - 15) << 23;
/// The exponent of the smallest normal `binary16`, 2^-14, as an `f32`.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
/// The first power of two that is too large for a `binary16`, 2^16, as an `f32`.
const TOO_LARGE: u32 = (127 + 16) << 23;

/// All cases are computed and one selected, so that a loop has no branch.
#[inline(always)]
fn widen_f16(x: u16) -> f32 {
    let sign = u32::from(x & 0x8000) << 16;
    let shifted = u32::from(x & 0x7fff) << MANTISSA_SHIFT;
    let normal = shifted + REBIAS;
    // Infinity and NaN need the largest exponent, which is as far again.
    let special = shifted + 2 * REBIAS;
    // As the mantissa of 2^-14 a subnormal is 2^-14 too large; the subtraction is exact.
    let subnormal = f32::from_bits(shifted + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let magnitude = if x & 0x7c00 == 0 {
        subnormal.to_bits()
    } else if x & 0x7c00 == 0x7c00 {
        special
    } else {
        normal
    };
    f32::from_bits(sign | magnitude)
}

#[inline(always)]
fn narrow_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let special = if x.is_nan() { 0x7e00 | (magnitude >> MANTISSA_SHIFT) & 0x3ff } else { 0x7c00 };
    // Beside 0.5 an f32 has steps of 2^-24, the smallest binary16: the addition does the rounding.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let ties_to_even = 0xfff + ((magnitude >> MANTISSA_SHIFT) & 1);
    let normal = magnitude.wrapping_add(ties_to_even).wrapping_sub(REBIAS) >> MANTISSA_SHIFT;
    let narrowed = if magnitude >= TOO_LARGE {
        special
    } else if magnitude < SMALLEST_NORMAL {
        subnormal
    } else {
        normal
    };
    (sign | narrowed) as u16
}
