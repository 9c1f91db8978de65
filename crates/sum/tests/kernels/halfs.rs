//! The 16-bit formats, exhaustively: all their values, and every place where rounding turns.

use sumpter_sum::InstructionSet;
use sumpter_types::{Dtype, ReduceOp};

use crate::HALFS;
use crate::elements::{assert_same, levels};
use crate::reference::{self, Format};

/// The larger of a value and itself, as `f32`.
fn widen(level: InstructionSet, dtype: Dtype, x: &[u8]) -> Vec<u8> {
    let mut wide = vec![0; 2 * x.len()];
    level.accumulate_pair(ReduceOp::Max, dtype, &mut wide, x, x);
    wide
}

/// Each value plus -0, which changes none, not even +0.
fn narrow(level: InstructionSet, dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let zeros: Vec<u8> = values.iter().flat_map(|_| 0x8000_u16.to_ne_bytes()).collect();
    let mut out = vec![0; zeros.len()];
    level.accumulate_last(ReduceOp::Sum, dtype, &mut out, &bytes, &zeros);
    out
}

#[test]
fn every_value_is_widened_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in HALFS {
        let expected = reference::widen(dtype, &all);
        for level in levels() {
            assert_same(Dtype::F32, &widen(level, dtype, &all), &expected, level);
        }
    }
}

#[test]
fn every_value_survives_widening_and_narrowing() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in HALFS {
        for level in levels() {
            let wide = widen(level, dtype, &all);
            let wide = wide.chunks(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap()));
            let narrowed = narrow(level, dtype, &wide.collect::<Vec<_>>());
            assert_same(dtype, &narrowed, &all, level);
        }
    }
}

/// Rounding is monotonic, so it is right everywhere if it is right on both sides of each value and
/// of each middle between two neighbors.
#[test]
fn every_turn_of_rounding_equals_the_reference() {
    for dtype in HALFS {
        let format = Format::of(dtype);
        let mut values = Vec::new();
        for bits in 0..format.infinity() {
            let (value, next) = (format.decode_finite(bits), format.decode_finite(bits + 1));
            for turn in [value, f64::midpoint(value, next), next] {
                let turn = turn as f32;
                values.extend([turn.next_down(), turn, turn.next_up()]);
            }
        }
        values.extend([f32::MAX, f32::INFINITY, f32::MIN_POSITIVE, f32::from_bits(1)]);
        values.extend(values.clone().into_iter().map(|x| -x));
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let expected = reference::narrow(dtype, &bytes);
        for level in levels() {
            assert_same(dtype, &narrow(level, dtype, &values), &expected, level);
        }
    }
}

#[test]
fn ties_go_to_the_even_neighbor() {
    let one = 1.0_f32;
    for (dtype, step, bits) in
        [(Dtype::F16, 2_f32.powi(-10), 0x3c00), (Dtype::Bf16, 2_f32.powi(-7), 0x3f80)]
    {
        let values = [one, one + 0.5 * step, one + step, one + 1.5 * step];
        let expected: Vec<u8> =
            [bits, bits, bits + 1, bits + 2_u16].into_iter().flat_map(u16::to_ne_bytes).collect();
        for level in levels() {
            assert_eq!(narrow(level, dtype, &values), expected, "{dtype:?} at {level:?}");
        }
    }
}

#[test]
fn what_is_too_large_becomes_infinity() {
    for (dtype, largest, too_large) in [
        (Dtype::F16, 65519.996, 65520.0),
        (Dtype::Bf16, f32::from_bits(0x7f7f_7fff), f32::from_bits(0x7f7f_8000)),
    ] {
        let infinity = Format::of(dtype).infinity();
        let expected: Vec<u8> =
            [infinity - 1, infinity, infinity].into_iter().flat_map(u16::to_ne_bytes).collect();
        for level in levels() {
            let result = narrow(level, dtype, &[largest, too_large, f32::INFINITY]);
            assert_eq!(result, expected, "{dtype:?} at {level:?}");
        }
    }
}

#[test]
fn every_kind_of_nan_is_narrowed_to_a_quiet_nan_of_its_sign() {
    let payloads = (0..23).map(|bit| 1_u32 << bit).chain([0x007f_ffff, 0x0000_2fff]);
    let nans: Vec<f32> = payloads
        .flat_map(|payload| [0x7f80_0000 | payload, 0xff80_0000 | payload])
        .map(f32::from_bits)
        .collect();
    for dtype in HALFS {
        let infinity = Format::of(dtype).infinity();
        let quiet = infinity | if dtype == Dtype::F16 { 0x200 } else { 0x40 };
        for level in levels() {
            let result = narrow(level, dtype, &nans);
            for (narrowed, nan) in result.chunks(2).zip(&nans) {
                let narrowed = u16::from_ne_bytes(narrowed.try_into().unwrap());
                let sign = ((nan.to_bits() >> 16) & 0x8000) as u16;
                assert_eq!(narrowed & 0x8000, sign, "{nan:?} at {level:?}");
                assert_eq!(narrowed & quiet, quiet, "{narrowed:#x} at {level:?}");
            }
        }
    }
}

#[test]
fn every_length_is_narrowed() {
    for dtype in HALFS {
        for count in 0..=600 {
            let values: Vec<f32> = (0..count).map(|i| 1.0 + i as f32 * 0.37).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let expected = reference::narrow(dtype, &bytes);
            for level in levels() {
                assert_same(dtype, &narrow(level, dtype, &values), &expected, level);
            }
        }
    }
}

/// The levels do not share this code, so their agreement on every `f32` there is says something.
#[test]
#[ignore = "minutes: every one of 2^32 values; run it with --release after a change to narrowing"]
fn every_f32_is_narrowed_alike_at_every_level() {
    let preferred = InstructionSet::preferred();
    for high in 0..=u16::MAX {
        let values: Vec<f32> = (0..=u16::MAX)
            .map(|low| f32::from_bits(u32::from(high) << 16 | u32::from(low)))
            .collect();
        for dtype in HALFS {
            let expected = narrow(preferred, dtype, &values);
            for level in levels() {
                assert_same(dtype, &narrow(level, dtype, &values), &expected, level);
            }
        }
    }
}
