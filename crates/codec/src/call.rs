//! What a call of a codec is about, besides elements and bytes.

use crate::random::Key;

/// Which elements of which contribution a call is about: from the first of a block to the end of a
/// block, or of the tensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct At<'a> {
    /// The contribution.
    pub key: Key,
    /// The number of the first block: its first element's number in the tensor, over
    /// [`BLOCK`](crate::BLOCK).
    pub block: u64,
    /// For `int8:scale=shared`, and empty for all others: the largest magnitude of each block in
    /// any rank, as `f32` in the machine's order.
    pub maxima: &'a [u8],
}

/// What is kept from round to round, before this one; `f32` in the machine's order.
#[derive(Clone, Copy, Debug)]
pub struct Previous<'a> {
    /// What earlier rounds left out of the elements.
    pub residual: Option<&'a [u8]>,
    /// What the residual is multiplied by, 1 if not given: the learning rate with which it was
    /// made, over the present one.
    pub rescale: f32,
    /// The momentum of the elements; needed if the spec has a factor of momentum.
    pub velocity: Option<&'a [u8]>,
}

impl Default for Previous<'_> {
    fn default() -> Self {
        Previous { residual: None, rescale: 1.0, velocity: None }
    }
}

/// Where what is kept goes after this round; needed for what was given before.
#[derive(Debug, Default)]
pub struct Next<'a> {
    /// For the residual.
    pub residual: Option<&'a mut [u8]>,
    /// For the momentum.
    pub velocity: Option<&'a mut [u8]>,
}

/// What became of the elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Blocks that had a NaN or an infinity and so contribute zeros; by `nan=skip` alone.
    pub skipped: usize,
}
