//! A codec of a user: called once for each block.

use std::fmt::Debug;
use std::sync::Arc;

use crate::block::{Block, Blocks, Context, Reason};
use crate::random::Key;

/// A codec of a user.
///
/// It is called once for each block of up to [`BLOCK`](crate::BLOCK) elements; only a tensor's last
/// block has fewer. All ranks must write and read the same bytes, so it may depend on its
/// arguments and on what it is given, and on nothing else: no clock, no random numbers of its own,
/// no state. Error feedback, momentum and the treatment of NaNs are done for it.
pub trait CustomCodec: Debug + Send + Sync {
    /// Bytes of a block of so many elements, at least 1.
    fn block_len(&self, elements: usize) -> usize;

    /// Writes all of `out`, which has [`block_len`](CustomCodec::block_len) bytes.
    ///
    /// # Errors
    /// Why it could not. The tensor has no rounds any more then.
    fn encode(&self, key: Key, block: u64, x: &[f32], out: &mut [u8]) -> Result<(), String>;

    /// Reads as many bytes, which may be any at all, and writes all of `out`.
    ///
    /// # Errors
    /// What is wrong with bytes that `encode` does not write.
    fn decode(&self, key: Key, block: u64, bytes: &[u8], out: &mut [f32]) -> Result<(), String>;
}

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
        if self.try_encode(block, out).is_err() {
            out.fill(0);
        }
    }

    #[inline(always)]
    fn try_encode(&self, block: Block<'_>, out: &mut [u8]) -> Result<(), Reason> {
        let Context { key, number, .. } = block.context;
        Ok(self.0.encode(key, number, block.x, out)?)
    }

    #[inline(always)]
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        Ok(self.0.decode(context.key, context.number, bytes, out)?)
    }
}
