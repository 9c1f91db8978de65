//! `fp8`: a power of two for each block, and eight bits of floating point for each element.
//!
//! The power of two brings the block's largest magnitude into the highest two exponents of the
//! format, so nothing overflows, and multiplying by it is exact: only the eight bits round.

use crate::block::{Block, Blocks, Context, Reason, read_scale, write_scale};
use crate::spec::Fp8Format;

/// A format of eight bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8 {
    /// Bits of mantissa that an `f32` has more.
    shift: u32,
    /// Just below half of the last bit of mantissa, in place.
    below_half: u32,
    /// By which the exponent of an `f32` is larger, in place.
    rebias: u32,
    /// Beside this an `f32` has steps of the format's smallest value.
    ruler: f32,
    /// The smallest normal value.
    smallest_normal: f32,
    /// The largest value's exponent.
    largest_exponent: i32,
    /// The largest value.
    largest: f32,
    /// Magnitudes from here on are not finite: NaN, or if there is one, infinity first.
    special: u32,
    has_infinity: bool,
}

const MANTISSA: u32 = (1 << 23) - 1;

impl Fp8 {
    pub(crate) fn new(format: Fp8Format) -> Fp8 {
        match format {
            // 448 = 1.75 * 2^8; normal from 2^-6, steps of 2^-9.
            Fp8Format::E4m3 => Fp8 {
                shift: 20,
                below_half: (1 << 19) - 1,
                rebias: (127 - 7) << 23,
                ruler: 16384.0,
                smallest_normal: 0.015625,
                largest_exponent: 8,
                largest: 448.0,
                special: 0x7f,
                has_infinity: false,
            },
            // 57344 = 1.75 * 2^15; normal from 2^-14, steps of 2^-16.
            Fp8Format::E5m2 => Fp8 {
                shift: 21,
                below_half: (1 << 20) - 1,
                rebias: (127 - 15) << 23,
                ruler: 128.0,
                smallest_normal: 6.103_515_6e-5,
                largest_exponent: 15,
                largest: 57344.0,
                special: 0x7c,
                has_infinity: true,
            },
        }
    }

    /// The power of two that the block's largest magnitude is divided by.
    #[inline(always)]
    fn scale(&self, largest: u32) -> f32 {
        let above = i32::from(largest & MANTISSA > self.largest.to_bits() & MANTISSA);
        let exponent = (largest >> 23) as i32 - 127 - self.largest_exponent + above;
        // Normal, so that its inverse is finite, and such that the largest value times it is.
        let exponent = exponent.clamp(-126, 127 - self.largest_exponent);
        f32::from_bits(((exponent + 127) as u32) << 23)
    }

    #[inline(always)]
    fn narrow(&self, x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) & 0x80;
        let magnitude = (x.to_bits() & 0x7fff_ffff).min(self.largest.to_bits());
        let subnormal = (f32::from_bits(magnitude) + self.ruler).to_bits();
        let subnormal = subnormal.wrapping_sub(self.ruler.to_bits());
        let odd = magnitude.wrapping_shr(self.shift) & 1;
        let rounded = magnitude.wrapping_add(self.below_half).wrapping_add(odd);
        let normal = rounded.wrapping_sub(self.rebias).wrapping_shr(self.shift);
        let is_subnormal = f32::from_bits(magnitude) < self.smallest_normal;
        (sign | if is_subnormal { subnormal } else { normal }) as u8
    }

    #[inline(always)]
    fn widen(&self, code: u8) -> f32 {
        let sign = u32::from(code & 0x80) << 24;
        let magnitude = u32::from(code & 0x7f);
        let shifted = magnitude.wrapping_shl(self.shift);
        let normal = shifted.wrapping_add(self.rebias);
        // As the mantissa of the smallest normal value a subnormal is that much too large.
        let unit = self.smallest_normal;
        let subnormal = (f32::from_bits(shifted.wrapping_add(unit.to_bits())) - unit).to_bits();
        let finite = if shifted <= MANTISSA { subnormal } else { normal };
        let infinity = self.has_infinity & (magnitude == self.special);
        let special = if infinity { f32::INFINITY } else { f32::NAN }.to_bits();
        f32::from_bits(sign | if magnitude >= self.special { special } else { finite })
    }
}

impl Blocks for Fp8 {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        if elements == 0 { 0 } else { 4 + elements }
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        if !block.is_finite() {
            write_scale(out, f32::NAN).fill(0);
            return;
        }
        let format = *self;
        let scale = format.scale(block.largest);
        let inverse = 1.0 / scale;
        for (out, x) in write_scale(out, scale).iter_mut().zip(block.x) {
            *out = format.narrow(x * inverse);
        }
    }

    #[inline(always)]
    fn decode(&self, _: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let format = *self;
        let (scale, codes) = read_scale(bytes)?;
        for (out, code) in out.iter_mut().zip(codes) {
            *out = format.widen(*code) * scale;
        }
        Ok(())
    }
}
