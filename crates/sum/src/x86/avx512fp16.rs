//! AVX-512 with FP16, which adds `binary16` without converting it.

use std::arch::x86_64::{
    _mm512_add_ph, _mm512_castph_si512, _mm512_castsi512_ph, _mm512_loadu_si512,
    _mm512_storeu_si512,
};

use super::avx512::{self, Bf16Avx512, F16Avx512};
use super::kernels;
use crate::generic;
use crate::half::{Half, Halves, NarrowTile, TILE, WideTile};
use crate::kernel::Kernel;
use crate::rules;
use sumpter_types::{Dtype, ReduceOp, Update};

kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512fp16");

#[target_feature(enable = "avx512f,avx512fp16")]
fn halves() -> Halves<F16Native, Bf16Avx512> {
    let Halves { f16, bf16 } = avx512::halves();
    Halves { f16: F16Native(f16), bf16 }
}

/// Whether this processor has every feature the kernels here are compiled for.
pub(crate) fn is_supported() -> bool {
    avx512::is_supported() && is_x86_feature_detected!("avx512fp16")
}

/// `binary16` by AVX-512 with FP16.
#[derive(Clone, Copy)]
struct F16Native(F16Avx512);

impl Half for F16Native {
    #[inline(always)]
    fn widen(self, x: &NarrowTile) -> WideTile {
        self.0.widen(x)
    }

    #[inline(always)]
    fn narrow(self, x: &WideTile) -> NarrowTile {
        self.0.narrow(x)
    }

    #[inline(always)]
    fn add(self, x: &NarrowTile, y: &NarrowTile) -> NarrowTile {
        let mut out = [0; 2 * TILE];
        let inputs = x.as_chunks::<64>().0.iter().zip(y.as_chunks::<64>().0);
        for (out, (x, y)) in out.as_chunks_mut::<64>().0.iter_mut().zip(inputs) {
            // SAFETY: `self` exists only where AVX-512 with FP16 does; all arrays are as long as a
            // register and the accesses need no alignment.
            unsafe {
                let x = _mm512_castsi512_ph(_mm512_loadu_si512(x.as_ptr().cast()));
                let y = _mm512_castsi512_ph(_mm512_loadu_si512(y.as_ptr().cast()));
                let sum = _mm512_castph_si512(_mm512_add_ph(x, y));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), sum);
            }
        }
        out
    }
}
