//! `fp16` and `bf16`: two bytes an element, rounded to nearest, as `sumpter_sum` converts them.

use sumpter_types::Dtype;

use crate::block::{BLOCK, Block, Blocks, Context, Reason};

/// 16-bit floats of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half(pub Dtype);

impl Blocks for Half {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        2 * elements
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let mut wide = [0; 4 * BLOCK];
        for (wide, x) in wide.as_chunks_mut::<4>().0.iter_mut().zip(block.x) {
            *wide = x.to_ne_bytes();
        }
        block.context.set.narrow(self.0, out, &wide[..4 * block.x.len()]);
    }

    #[inline(always)]
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let mut wide = [0; 4 * BLOCK];
        context.set.widen(self.0, &mut wide[..4 * out.len()], bytes);
        for (out, wide) in out.iter_mut().zip(wide.as_chunks::<4>().0) {
            *out = f32::from_ne_bytes(*wide);
        }
        Ok(())
    }
}
