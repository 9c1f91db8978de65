//! A codec of a user: called once for each block.

use std::sync::Arc;

use crate::block::{Block, Blocks, Context};
use crate::registry::CustomCodec;

/// A shared codec of a [`Registry`](crate::Registry).
#[derive(Clone, Debug)]
pub(crate) struct Custom(pub Arc<dyn CustomCodec>);

impl Blocks for Custom {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        if elements == 0 { 0 } else { self.0.block_len(elements) }
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        self.0.encode(block.context.key, block.context.number, block.x, out);
    }

    #[inline(always)]
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), &'static str> {
        self.0.decode(context.key, context.number, bytes, out)
    }
}
