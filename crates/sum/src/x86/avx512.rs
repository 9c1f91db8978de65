//! AVX-512 (F, BW, DQ, VL: what every such server since 2017 has).

use std::arch::x86_64::{
    _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_mask_or_epi32, _mm512_set1_epi32, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_ps,
};

use super::kernels;
use crate::generic;
use crate::half::{Half, Halves, NarrowTile, TILE, WideTile};
use crate::kernel::Kernel;
use crate::rules;
use sumpter_types::{Dtype, ReduceOp, Update};

kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl");

#[target_feature(enable = "avx512f")]
pub(super) fn halves() -> Halves<F16Avx512, Bf16Avx512> {
    Halves { f16: F16Avx512(()), bf16: Bf16Avx512(()) }
}

/// Whether this processor has every feature the kernels here are compiled for.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// `binary16` by AVX-512.
#[derive(Clone, Copy)]
pub(super) struct F16Avx512(());

impl Half for F16Avx512 {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        let mut out = [0.0; TILE];
        for (out, x) in out.as_chunks_mut::<16>().0.iter_mut().zip(x.as_chunks::<32>().0) {
            // SAFETY: `self` exists only where AVX-512F does; both arrays are as long as a
            // register and the accesses need no alignment.
            unsafe {
                let wide = _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast()));
                _mm512_storeu_ps(out.as_mut_ptr(), wide);
            }
        }
        out
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        let mut out = [0; 2 * TILE];
        for (out, x) in out.as_chunks_mut::<32>().0.iter_mut().zip(x.as_chunks::<16>().0) {
            // SAFETY: as in `widen`.
            unsafe {
                let wide = _mm512_loadu_ps(x.as_ptr());
                let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), narrow);
            }
        }
        out
    }
}

/// `bfloat16` by AVX-512, as [`Bf16`](crate::half::Bf16) does it.
#[derive(Clone, Copy)]
pub(super) struct Bf16Avx512(());

impl Half for Bf16Avx512 {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        let mut out = [0.0; TILE];
        for (out, x) in out.as_chunks_mut::<16>().0.iter_mut().zip(x.as_chunks::<32>().0) {
            // SAFETY: as for `F16Avx512`.
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
                let wide = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
                _mm512_storeu_ps(out.as_mut_ptr(), wide);
            }
        }
        out
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        let mut out = [0; 2 * TILE];
        for (out, x) in out.as_chunks_mut::<32>().0.iter_mut().zip(x.as_chunks::<16>().0) {
            // SAFETY: as for `F16Avx512`.
            unsafe {
                let wide = _mm512_loadu_ps(x.as_ptr());
                let bits = _mm512_castps_si512(wide);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let ties_to_even = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                let rounded = _mm512_add_epi32(bits, ties_to_even);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
                let quiet = _mm512_set1_epi32(0x0040_0000);
                let rounded = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
                let narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), narrow);
            }
        }
        out
    }
}
