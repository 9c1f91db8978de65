//! What other crates compile for every level.

/// A computation that is compiled for every level; see
/// [`InstructionSet::run`](crate::InstructionSet::run).
pub trait Kernel {
    /// What it returns.
    type Output;

    /// Computes. This and all that it calls must be `#[inline(always)]`: only what is inlined is
    /// compiled for a level. Without fused multiplications and in a fixed order of additions, all
    /// levels give the same bits.
    fn run(self) -> Self::Output;
}
