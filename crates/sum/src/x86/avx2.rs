//! AVX2 with FMA and F16C.

use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

use super::kernels;
use crate::generic;
use crate::half::{Bf16, Half, Halves, NarrowTile, TILE, WideTile};
use crate::kernel::Kernel;
use crate::rules;
use sumpter_types::{Dtype, ReduceOp, Update};

kernels!("avx2,fma,f16c");

#[target_feature(enable = "avx2,fma,f16c")]
fn halves() -> Halves<F16c, Bf16> {
    Halves { f16: F16c(()), bf16: Bf16 }
}

/// Whether this processor has every feature the kernels here are compiled for.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// `binary16` by F16C.
#[derive(Clone, Copy)]
struct F16c(());

impl Half for F16c {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        let mut out = [0.0; TILE];
        for (out, x) in out.as_chunks_mut::<8>().0.iter_mut().zip(x.as_chunks::<16>().0) {
            // SAFETY: `self` exists only where F16C does; both arrays are as long as a register
            // and the accesses need no alignment.
            unsafe {
                let wide = _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast()));
                _mm256_storeu_ps(out.as_mut_ptr(), wide);
            }
        }
        out
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        let mut out = [0; 2 * TILE];
        for (out, x) in out.as_chunks_mut::<16>().0.iter_mut().zip(x.as_chunks::<8>().0) {
            // SAFETY: as in `widen`.
            unsafe {
                let wide = _mm256_loadu_ps(x.as_ptr());
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(out.as_mut_ptr().cast(), narrow);
            }
        }
        out
    }
}
