//! The values that are summed: small integers in `f32`, exact in any order of summation, which
//! differ from element to element so that no byte can land in a wrong place unnoticed.

use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, Update};

/// Elements until the values repeat. A prime, so that no power of two is a whole number of them.
const PERIOD: usize = 7;

/// Bytes compared or copied at once; a multiple of the period.
const BLOCK: usize = 4 * PERIOD * 1024;

/// `scale` times 1, 2, .. 7, 1, 2, ..; or values that [`update`](Pattern::update) has made of such.
#[derive(Debug)]
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new(scale: u32) -> Pattern {
        let value = |i: usize| (scale as f32 * (i % PERIOD + 1) as f32).to_ne_bytes();
        Pattern((0..BLOCK / 4).flat_map(value).collect())
    }

    /// Applies a rule to the pattern of a value and those of its slots, once.
    pub(crate) fn update(update: &Update, parts: &mut [Pattern], gradient: &Pattern) {
        let mut parts: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part.0[..]).collect();
        sumpter_sum::update(update, Dtype::F32, &mut parts, (Dtype::F32, &gradient.0), None);
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        for block in bytes.chunks_mut(BLOCK) {
            block.copy_from_slice(&self.0[..block.len()]);
        }
    }

    /// The offset of the first block that holds anything else.
    pub(crate) fn differs_at(&self, bytes: &[u8]) -> Option<usize> {
        let differs = |block: &[u8]| block != &self.0[..block.len()];
        bytes.chunks(BLOCK).position(differs).map(|block| block * BLOCK)
    }
}

/// A buffer that holds the pattern of `scale`.
pub(crate) fn patterned(bytes: usize, scale: u32) -> AlignedBuf {
    let mut buf = AlignedBuf::new(bytes);
    Pattern::new(scale).fill(&mut buf);
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_block_that_differs() {
        let mut bytes = patterned(3 * BLOCK + 40, 5);
        assert_eq!(Pattern::new(5).differs_at(&bytes), None);
        assert_eq!(Pattern::new(4).differs_at(&bytes), Some(0));
        bytes[2 * BLOCK + 9] ^= 1;
        assert_eq!(Pattern::new(5).differs_at(&bytes), Some(2 * BLOCK));
    }
}
