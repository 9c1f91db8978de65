//! `onebit`: the mean magnitude of a block, and a bit for each element that is less than zero.

use crate::block::{
    BLOCK, Block, Blocks, Context, Reason, lane_sum, pack_bits, read_scale, write_scale,
};

/// Signs, times the mean magnitude if `scaling`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Onebit {
    pub scaling: bool,
}

impl Blocks for Onebit {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        if elements == 0 { 0 } else { 4 + elements.div_ceil(8) }
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let scale = if !block.is_finite() {
            f32::NAN
        } else if self.scaling {
            let sum = lane_sum(block.x, block.x, |x, _| f64::from(x.abs()));
            (sum / block.x.len() as f64) as f32
        } else {
            // Of zeros a sign would be something out of nothing.
            f32::from(u8::from(block.largest > 0))
        };
        let mut negative = [0; BLOCK];
        for (negative, x) in negative.iter_mut().zip(block.x) {
            *negative = u8::from(*x < 0.0);
        }
        pack_bits(&negative, write_scale(out, scale));
    }

    #[inline(always)]
    fn decode(&self, _: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let (scale, signs) = read_scale(bytes)?;
        let bits = scale.to_bits();
        let (rows, tail) = out.as_chunks_mut::<8>();
        for (row, signs) in rows.iter_mut().zip(signs) {
            for (i, out) in row.iter_mut().enumerate() {
                let sign = u32::from(*signs).wrapping_shr(i as u32) & 1;
                *out = f32::from_bits(bits ^ sign << 31);
            }
        }
        let Some(last) = signs.last().filter(|_| !tail.is_empty()) else { return Ok(()) };
        for (i, out) in tail.iter_mut().enumerate() {
            *out = f32::from_bits(bits ^ (u32::from(*last >> i) & 1) << 31);
        }
        if *last >> tail.len() != 0 {
            return Err("bits behind its last element are set".into());
        }
        Ok(())
    }
}
