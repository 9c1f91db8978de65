//! `int8`: a scale and a signed byte for each element, or bytes alone where ranks share the scale.

use crate::block::{Block, Blocks, Context, Reason, nearest, read_scale, write_scale};

/// The largest code; -128 is not used, so that codes are symmetric.
const LARGEST: f32 = 127.0;

/// The largest scale: 127 times the one above it may be infinite.
const LARGEST_SCALE: f32 = f32::from_bits((f32::MAX / LARGEST).to_bits() - 1);

/// Codes with the block's own scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8;

/// Codes with a scale that all ranks know, so that codes can be added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedInt8;

/// What a code of 1 stands for, where this is the largest magnitude.
#[inline(always)]
pub(crate) fn shared_scale(largest: f32) -> f32 {
    if largest.is_finite() {
        // Normal, so that its inverse is finite: smaller elements round to 0.
        (largest.abs() / LARGEST).clamp(f32::MIN_POSITIVE, LARGEST_SCALE)
    } else {
        f32::NAN
    }
}

#[inline(always)]
fn write_codes(x: &[f32], scale: f32, out: &mut [u8]) {
    if scale.is_nan() {
        out.fill(0);
        return;
    }
    let inverse = 1.0 / scale;
    for (out, x) in out.iter_mut().zip(x) {
        // Before the conversion, because beyond 2^22 that is no rounding.
        let quotient = x * inverse;
        let quotient = if quotient < LARGEST { quotient } else { LARGEST };
        let quotient = if quotient > -LARGEST { quotient } else { -LARGEST };
        *out = nearest(quotient) as u8;
    }
}

#[inline(always)]
fn read_codes(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32::from(*code as i8) * scale;
    }
}

impl Blocks for Int8 {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        if elements == 0 { 0 } else { 4 + elements }
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let scale = shared_scale(f32::from_bits(block.largest));
        write_codes(block.x, scale, write_scale(out, scale));
    }

    #[inline(always)]
    fn decode(&self, _: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let (scale, codes) = read_scale(bytes)?;
        read_codes(codes, scale, out);
        Ok(())
    }
}

impl Blocks for SharedInt8 {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        elements
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let finite = if block.is_finite() { block.context.maximum } else { f32::NAN };
        write_codes(block.x, shared_scale(finite), out);
    }

    #[inline(always)]
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        read_codes(bytes, shared_scale(context.maximum), out);
        Ok(())
    }
}
