//! The one place that chooses which compilation of the kernels runs.

use std::fmt;
use std::sync::OnceLock;

use crate::generic;
use crate::half::{Bf16, Halves, SoftF16};
use crate::kernel::Kernel;
use crate::rules;
#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2, avx512, avx512fp16};
use sumpter_types::{Action, Dtype, ReduceOp, Update};

/// Adds one contribution: `acc = op(acc, x)`, element by element.
///
/// `acc` holds elements of [`Dtype::accumulator`], `x` of `dtype`. Sums and products of integers
/// wrap. Where either side is a NaN the result is a NaN. Min and max take -0 for less than +0.
///
/// # Panics
/// If `acc` and `x` do not hold the same number of whole elements.
pub fn accumulate(op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
    InstructionSet::preferred_for(op, dtype).accumulate(op, dtype, acc, x);
}

/// Adds one contribution and rounds: `to = op(to, x)`, both elements of `dtype`.
///
/// Of two contributions in 16-bit floats this is the exact sum rounded once, like
/// [`accumulate_pair`] and rounding: `f32` has more than twice their precision and two bits, so
/// rounding to it first changes nothing (Figueroa, "When is double rounding innocuous?", 1995).
/// For other types it is [`accumulate`].
///
/// # Panics
/// If `to` and `x` do not hold the same number of whole elements.
pub fn reduce(op: ReduceOp, dtype: Dtype, to: &mut [u8], x: &[u8]) {
    InstructionSet::preferred_for(op, dtype).reduce(op, dtype, to, x);
}

/// Adds the first two contributions in 16-bit floats: `acc = op(x, y)`, as `f32`.
///
/// # Panics
/// If `dtype` is its own accumulator, or the three do not hold the same number of whole elements.
pub fn accumulate_pair(op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8], y: &[u8]) {
    InstructionSet::preferred().accumulate_pair(op, dtype, acc, x, y);
}

/// Adds the last contribution in 16-bit floats and rounds: `out = op(acc, x)`, where `acc` holds
/// `f32`, `out` and `x` elements of `dtype`.
///
/// Rounds to nearest, ties to even; keeps subnormals; makes infinity of what is too large; a NaN
/// stays a NaN and is quiet.
///
/// # Panics
/// As [`accumulate_pair`].
pub fn accumulate_last(op: ReduceOp, dtype: Dtype, out: &mut [u8], acc: &[u8], x: &[u8]) {
    InstructionSet::preferred().accumulate_last(op, dtype, out, acc, x);
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

/// Widens 16-bit floats of `dtype`, or copies what is `f32` already: `out = x` as `f32`.
///
/// # Panics
/// If `dtype` is not `f32` or a 16-bit float, or the two do not hold the same number of whole
/// elements.
pub fn widen(dtype: Dtype, out: &mut [u8], x: &[u8]) {
    InstructionSet::preferred().widen(dtype, out, x);
}

/// Narrows to 16-bit floats of `dtype`: `out = x`, where `x` holds `f32`. Rounds as
/// [`accumulate_last`] does.
///
/// # Panics
/// If `dtype` is not a 16-bit float, or the two do not hold the same number of whole elements.
pub fn narrow(dtype: Dtype, out: &mut [u8], x: &[u8]) {
    InstructionSet::preferred().narrow(dtype, out, x);
}

/// Applies an update rule to a variable.
///
/// `parts` are the value and then each slot of the rule, in the order of
/// [`Rule::slots`](sumpter_types::Rule::slots), as elements of `master`: `f64`, or `f32` for all
/// other floats. The gradient's elements are of `master`, or if that is `f32` of any type of 32 or
/// 16 bits. The new value is written to `weights` as well, if given, as 16-bit floats.
///
/// Operations are in the order of `torch.optim` with `foreach=False`; a multiplication and an
/// addition that torch fuses (`add` with `alpha`, `addcmul`, `lerp`) are rounded once at every
/// level. Square roots are rounded correctly, which not all libraries that torch uses do.
///
/// A round that is [skipped](Action::Skip) changes no part, and only narrows the value.
///
/// # Panics
/// If types or lengths do not fit each other, or the round is not decided.
pub fn update(
    update: &Update,
    master: Dtype,
    parts: &mut [&mut [u8]],
    gradient: (Dtype, &[u8]),
    weights: Option<(Dtype, &mut [u8])>,
) {
    InstructionSet::preferred().update(update, master, parts, gradient, weights);
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
    Avx512Fp16,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// How 16-bit floats are converted without any processor features.
const HALVES: Halves<SoftF16, Bf16> = Halves { f16: SoftF16, bf16: Bf16 };

/// Calls a kernel as compiled for a level.
macro_rules! dispatch {
    ($set:expr, $module:ident::$kernel:ident($($argument:expr),*)) => {
        match $set.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level exists only if `Level::is_supported` found its features.
            Level::Avx512Fp16 => unsafe { avx512fp16::$kernel($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level exists only if `Level::is_supported` found its features.
            Level::Avx512 => unsafe { avx512::$kernel($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level exists only if `Level::is_supported` found its features.
            Level::Avx2 => unsafe { avx2::$kernel($($argument),*) },
            Level::Portable => $module::$kernel(HALVES, $($argument),*),
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

    /// The level's name: `avx512+fp16`, `avx512`, `avx2+f16c` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Fp16 => "avx512+fp16",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2+f16c",
            Level::Portable => "portable",
        }
    }

    /// The level that [`accumulate`] and [`reduce`] use for `op` on `dtype`: the preferred one, or
    /// a lower one that is faster there.
    #[must_use]
    pub fn preferred_for(op: ReduceOp, dtype: Dtype) -> InstructionSet {
        InstructionSet(Self::preferred().0.serving(op, dtype))
    }

    /// Runs a kernel of another crate as compiled for this level.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        dispatch!(self, generic::run(kernel))
    }

    /// [`accumulate`] at this level.
    ///
    /// # Panics
    /// As [`accumulate`].
    pub fn accumulate(self, op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
        assert_same_count(dtype, acc.len(), x.len());
        dispatch!(self, generic::accumulate(op, dtype, acc, x));
    }

    /// [`reduce`] at this level.
    ///
    /// # Panics
    /// As [`reduce`].
    pub fn reduce(self, op: ReduceOp, dtype: Dtype, to: &mut [u8], x: &[u8]) {
        assert_whole(dtype, to.len());
        assert_whole(dtype, x.len());
        assert!(to.len() == x.len(), "{} bytes do not fit {}", x.len(), to.len());
        dispatch!(self, generic::reduce(op, dtype, to, x));
    }

    /// [`accumulate_pair`] at this level.
    ///
    /// # Panics
    /// As [`accumulate_pair`].
    pub fn accumulate_pair(self, op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8], y: &[u8]) {
        assert_widens(dtype);
        assert_same_count(dtype, acc.len(), x.len());
        assert_same_count(dtype, acc.len(), y.len());
        dispatch!(self, generic::accumulate_pair(op, dtype, acc, x, y));
    }

    /// [`accumulate_last`] at this level.
    ///
    /// # Panics
    /// As [`accumulate_last`].
    pub fn accumulate_last(self, op: ReduceOp, dtype: Dtype, out: &mut [u8], acc: &[u8], x: &[u8]) {
        assert_widens(dtype);
        assert_same_count(dtype, acc.len(), out.len());
        assert_same_count(dtype, acc.len(), x.len());
        dispatch!(self, generic::accumulate_last(op, dtype, out, acc, x));
    }

    /// [`divide`] at this level.
    ///
    /// # Panics
    /// As [`divide`].
    pub fn divide(self, dtype: Dtype, x: &mut [u8], divisor: u32) {
        assert!(dtype.is_float(), "{} has no division: only floats have", dtype.name());
        assert_whole(dtype, x.len());
        dispatch!(self, generic::divide(dtype, x, divisor));
    }

    /// [`widen`] at this level.
    ///
    /// # Panics
    /// As [`widen`].
    pub fn widen(self, dtype: Dtype, out: &mut [u8], x: &[u8]) {
        assert!(fits_f32(dtype), "{} is not widened to float32", dtype.name());
        assert_same_count(dtype, out.len(), x.len());
        dispatch!(self, rules::widen(dtype, out, x));
    }

    /// [`narrow`] at this level.
    ///
    /// # Panics
    /// As [`narrow`].
    pub fn narrow(self, dtype: Dtype, out: &mut [u8], x: &[u8]) {
        assert_widens(dtype);
        assert_same_count(dtype, x.len(), out.len());
        dispatch!(self, rules::narrow(dtype, out, x));
    }

    /// [`update`] at this level.
    ///
    /// # Panics
    /// As [`update`].
    pub fn update(
        self,
        update: &Update,
        master: Dtype,
        parts: &mut [&mut [u8]],
        gradient: (Dtype, &[u8]),
        weights: Option<(Dtype, &mut [u8])>,
    ) {
        let name = master.name();
        assert!(matches!(master, Dtype::F32 | Dtype::F64), "no rule is applied in {name}");
        let (dtype, bytes) = (gradient.0, gradient.1.len());
        let fits = if master == Dtype::F32 { fits_f32(dtype) } else { dtype == master };
        assert!(fits, "a gradient of {} for a value of {name}", dtype.name());
        assert_whole(dtype, bytes);
        let value = bytes / dtype.size() * master.size();
        let expected = 1 + update.rule.slots().len();
        assert!(parts.len() == expected, "{} parts instead of {expected}", parts.len());
        for part in parts.iter() {
            assert!(part.len() == value, "{} bytes of a part instead of {value}", part.len());
        }
        if let Some((dtype, weights)) = &weights {
            assert_widens(*dtype);
            assert!(master == Dtype::F32, "{name} is not narrowed to {}", dtype.name());
            assert_same_count(*dtype, value, weights.len());
        }
        assert!(update.is_decided(), "a rule whose coefficients are not known");
        if update.action == Action::Skip {
            if let Some((dtype, weights)) = weights {
                self.narrow(dtype, weights, parts[0]);
            }
            return;
        }
        dispatch!(self, rules::update(update, master, parts, gradient, weights));
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
        Level::Avx512Fp16,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        Level::Portable,
    ];

    /// This level, or a lower one that is faster for `op` on `dtype`.
    ///
    /// What AVX2 has an instruction for needs nothing of AVX-512 but its width, and processors that
    /// have AVX-512 without FP16 gain nothing from that. The older ones lower their clock for it.
    /// Zen 4 adds no more with it, and every load of 512 bits that is not aligned takes two lines
    /// of cache: AVX2 takes as long where operands are aligned and in cache, and less elsewhere
    /// (`docs/measurements/kernels.md`).
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    fn serving(self, op: ReduceOp, dtype: Dtype) -> Level {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_one_avx2_instruction(op, dtype) => Level::Avx2,
            level => level,
        }
    }

    fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Fp16 => avx512fp16::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::is_supported(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::is_supported(),
            Level::Portable => true,
        }
    }
}

/// Whether AVX2 does `op` on `dtype` as it is. It has no products of 8 and 64 bits and no minimum
/// of 64, and the bits of floats, of which a maximum is made, it compares without masks.
#[cfg(target_arch = "x86_64")]
fn is_one_avx2_instruction(op: ReduceOp, dtype: Dtype) -> bool {
    match dtype {
        Dtype::F32 | Dtype::F64 => matches!(op, ReduceOp::Sum | ReduceOp::Product),
        Dtype::I8 | Dtype::U8 => op != ReduceOp::Product,
        Dtype::I32 => true,
        Dtype::I64 => op == ReduceOp::Sum,
        Dtype::F16 | Dtype::Bf16 => false,
    }
}

/// Whether every value of the type is one of `f32`.
fn fits_f32(dtype: Dtype) -> bool {
    dtype.is_float() && dtype != Dtype::F64
}

fn assert_widens(dtype: Dtype) {
    assert!(dtype.accumulator() != dtype, "{} is its own accumulator", dtype.name());
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
