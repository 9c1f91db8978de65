//! The one place that chooses which compilation of the kernels runs.

use std::fmt;
use std::sync::OnceLock;

use crate::dtype::{Dtype, ReduceOp};
use crate::generic;
use crate::half::SoftF16;
#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2, avx512};

/// Adds one contribution: `acc = op(acc, x)`, element by element.
///
/// `acc` holds elements of [`Dtype::accumulator`], `x` of `dtype`. Sums and products of integers
/// wrap. Where either side is a NaN the result is a NaN. Min and max take -0 for less than +0.
///
/// # Panics
/// If `acc` and `x` do not hold the same number of whole elements.
pub fn accumulate(op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
    InstructionSet::preferred().accumulate(op, dtype, acc, x);
}

/// Takes the first contribution: `acc = x`, as elements of [`Dtype::accumulator`]. Exact.
///
/// # Panics
/// If `acc` and `x` do not hold the same number of whole elements.
pub fn widen(dtype: Dtype, acc: &mut [u8], x: &[u8]) {
    InstructionSet::preferred().widen(dtype, acc, x);
}

/// Turns accumulators into elements of `dtype`, which lie at the front of the same buffer; returns
/// their bytes. What follows them is unspecified.
///
/// Rounds to nearest, ties to even; keeps subnormals; makes infinity of what is too large; a NaN
/// stays a NaN and is quiet. A type that is its own accumulator is left as it is.
///
/// # Panics
/// If `acc` does not hold whole elements of [`Dtype::accumulator`].
pub fn narrow_in_place(dtype: Dtype, acc: &mut [u8]) -> usize {
    InstructionSet::preferred().narrow_in_place(dtype, acc)
}

/// Divides elements of `dtype`, a floating-point type, as IEEE 754 does: `x = x / divisor`.
///
/// The 16-bit types are divided in `f32` and rounded once more. The divisor is exact up to 2^24,
/// and rounded as `f32` where it is larger and the division is in `f32`.
///
/// # Panics
/// If `dtype` is an integer type, or `x` does not hold whole elements.
pub fn divide(dtype: Dtype, x: &mut [u8], divisor: u32) {
    InstructionSet::preferred().divide(dtype, x, divisor);
}

/// The name of the level in use: [`InstructionSet::name`] of the preferred one.
#[must_use]
pub fn instruction_set() -> &'static str {
    InstructionSet::preferred().name()
}

/// A level of processor features the kernels are compiled for.
///
/// Values exist only for levels that this processor has. All levels give the same results bit for
/// bit, NaN payloads aside; they differ in speed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstructionSet(Level);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// Calls a kernel as compiled for a level.
macro_rules! dispatch {
    ($set:expr, $kernel:ident($($argument:expr),*)) => {
        match $set.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level exists only if `Level::is_supported` found its features.
            Level::Avx512 => unsafe { avx512::$kernel($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level exists only if `Level::is_supported` found its features.
            Level::Avx2 => unsafe { avx2::$kernel($($argument),*) },
            Level::Portable => generic::$kernel(SoftF16, $($argument),*),
        }
    };
}

impl InstructionSet {
    /// The levels this processor has, the preferred one first. There is always at least one.
    pub fn supported() -> impl Iterator<Item = InstructionSet> {
        Level::ALL.iter().copied().filter(|level| level.is_supported()).map(InstructionSet)
    }

    /// The preferred level; detected once.
    #[must_use]
    pub fn preferred() -> InstructionSet {
        static PREFERRED: OnceLock<InstructionSet> = OnceLock::new();
        *PREFERRED.get_or_init(|| Self::supported().next().unwrap_or(Self(Level::Portable)))
    }

    /// The level's name: `avx512`, `avx2+f16c` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2+f16c",
            Level::Portable => "portable",
        }
    }

    /// [`accumulate`] at this level.
    ///
    /// # Panics
    /// As [`accumulate`].
    pub fn accumulate(self, op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
        assert_same_count(dtype, acc.len(), x.len());
        dispatch!(self, accumulate(op, dtype, acc, x));
    }

    /// [`widen`] at this level.
    ///
    /// # Panics
    /// As [`widen`].
    pub fn widen(self, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
        assert_same_count(dtype, acc.len(), x.len());
        dispatch!(self, widen(dtype, acc, x));
    }

    /// [`narrow_in_place`] at this level.
    ///
    /// # Panics
    /// As [`narrow_in_place`].
    pub fn narrow_in_place(self, dtype: Dtype, acc: &mut [u8]) -> usize {
        assert_whole(dtype.accumulator(), acc.len());
        dispatch!(self, narrow_in_place(dtype, acc))
    }

    /// [`divide`] at this level.
    ///
    /// # Panics
    /// As [`divide`].
    pub fn divide(self, dtype: Dtype, x: &mut [u8], divisor: u32) {
        assert!(dtype.is_float(), "{} has no division: only floats have", dtype.name());
        assert_whole(dtype, x.len());
        dispatch!(self, divide(dtype, x, divisor));
    }
}

impl fmt::Debug for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Level {
    /// From the preferred level to the one that is always there.
    const ALL: &[Level] = &[
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        Level::Portable,
    ];

    fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::is_supported(),
            Level::Portable => true,
        }
    }
}

fn assert_whole(dtype: Dtype, bytes: usize) {
    let size = dtype.size();
    assert!(
        bytes.is_multiple_of(size),
        "{bytes} bytes are no whole number of {} ({size})",
        dtype.name()
    );
}

fn assert_same_count(dtype: Dtype, acc_bytes: usize, x_bytes: usize) {
    assert_whole(dtype.accumulator(), acc_bytes);
    assert_whole(dtype, x_bytes);
    let (acc, x) = (acc_bytes / dtype.accumulator().size(), x_bytes / dtype.size());
    assert!(acc == x, "{x} elements of {} do not fit {acc} accumulators", dtype.name());
}
