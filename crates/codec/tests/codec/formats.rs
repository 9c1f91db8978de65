//! Bytes and values of each format.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_codec::{BLOCK, Codec, Count, Fp8Format, Next, Partition, Previous, Scheme};
use sumpter_types::Dtype;

use crate::definitions;
use crate::inputs::{
    KEY, SPECS, assert_same, at, bytes, codec, decode, decode_add, elements, encode,
    finite_elements, floats, levels,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn elements_decode_to_what_the_definition_says(
        spec in select(&SPECS[..]), x in elements(), first in select(vec![0, 1, 1 << 40]),
    ) {
        let codec = codec(spec, x.len());
        let expected = definitions::decoded(codec.spec(), x.len(), KEY, first, &x);
        for codec in levels(&codec) {
            let code = encode(&codec, first, &x);
            assert_same(&decode(&codec, first, &code, x.len()), &expected, spec);
        }
    }

    #[test]
    fn all_levels_write_the_same_bytes(spec in select(&SPECS[2..]), x in elements()) {
        let codec = codec(spec, x.len());
        let expected = encode(&codec, 9, &x);
        for codec in levels(&codec) {
            prop_assert_eq!(&encode(&codec, 9, &x), &expected, "{} at another level", spec);
        }
    }

    #[test]
    fn adding_is_decoding_and_then_adding(spec in select(&SPECS[..]), x in elements()) {
        let codec = codec(spec, x.len());
        let code = encode(&codec, 2, &x);
        let acc: Vec<f32> = (0..x.len()).map(|i| 0.5 + i as f32).collect();
        let decoded = decode(&codec, 2, &code, x.len());
        let expected: Vec<f32> = acc.iter().zip(&decoded).map(|(acc, x)| acc + x).collect();
        for codec in levels(&codec) {
            assert_same(&decode_add(&codec, 2, &code, &acc), &expected, spec);
        }
    }

    /// Whatever partitions and chunks are: so tuning them changes no result.
    #[test]
    fn cuts_between_blocks_change_no_byte(
        spec in select(&SPECS[..]), x in elements(), cut in 0..4_usize, first in 0..3_u64,
    ) {
        let codec = codec(spec, x.len());
        let whole = encode(&codec, first, &x);
        let (start, end) = x.split_at(x.len().min(cut * BLOCK));
        let mut parts = encode(&codec, first, start);
        parts.extend(encode(&codec, first + cut as u64, end));
        prop_assert_eq!(&parts, &whole);
        let (code, rest) = whole.split_at(codec.encoded_len(start.len()));
        let mut decoded = decode(&codec, first, code, start.len());
        decoded.extend(decode(&codec, first + cut as u64, rest, end.len()));
        assert_same(&decoded, &decode(&codec, first, &whole, x.len()), spec);
    }

    #[test]
    fn what_is_lost_is_bounded(spec in select(&SPECS[..]), x in finite_elements()) {
        let codec = codec(spec, x.len());
        let y = decode(&codec, 0, &encode(&codec, 0, &x), x.len());
        for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
            assert_bounded(&codec, x, y);
        }
    }

    #[test]
    fn elements_of_all_floating_point_types_are_encoded_as_f32(
        spec in select(&SPECS[..]), x in finite_elements(),
    ) {
        let codec = codec(spec, x.len());
        let wide: Vec<u8> = x.iter().flat_map(|x| f64::from(*x).to_ne_bytes()).collect();
        prop_assert_eq!(encode_as(&codec, Dtype::F64, &wide), encode(&codec, 0, &x));
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let mut narrow = vec![0; 2 * x.len()];
            sumpter_sum::narrow(dtype, &mut narrow, &bytes(&x));
            let mut rounded = vec![0; 4 * x.len()];
            sumpter_sum::widen(dtype, &mut rounded, &narrow);
            let rounded = encode(&codec, 0, &floats(&rounded));
            prop_assert_eq!(encode_as(&codec, dtype, &narrow), rounded);
        }
    }

    #[test]
    fn codes_decode_to_all_floating_point_types(spec in select(&SPECS[..]), x in elements()) {
        let codec = codec(spec, x.len());
        let code = encode(&codec, 0, &x);
        let expected = decode(&codec, 0, &code, x.len());
        let mut wide = vec![0; 8 * x.len()];
        codec.decode(at(0), &code, (Dtype::F64, &mut wide)).unwrap();
        let wide = wide.as_chunks().0.iter().map(|x| f64::from_ne_bytes(*x) as f32);
        assert_same(&wide.collect::<Vec<_>>(), &expected, spec);
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let (mut narrow, mut rounded) = (vec![0; 2 * x.len()], vec![0; 2 * x.len()]);
            codec.decode(at(0), &code, (dtype, &mut narrow)).unwrap();
            sumpter_sum::narrow(dtype, &mut rounded, &bytes(&expected));
            let widened = |narrow: &[u8]| {
                let mut wide = vec![0; 2 * narrow.len()];
                sumpter_sum::widen(dtype, &mut wide, narrow);
                floats(&wide)
            };
            assert_same(&widened(&narrow), &widened(&rounded), spec);
        }
    }
}

fn encode_as(codec: &Codec, dtype: Dtype, x: &[u8]) -> Vec<u8> {
    let mut out = vec![0; codec.encoded_len(x.len() / dtype.size())];
    codec.encode(at(0), (dtype, x), Previous::default(), Next::default(), &mut out).unwrap();
    out
}

/// The bounds that the page of the decision states.
fn assert_bounded(codec: &Codec, x: &[f32], y: &[f32]) {
    let largest = f64::from(x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())));
    let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    for (x, y) in x.iter().zip(y) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let bound = match codec.spec().scheme {
            Scheme::Fp16 if x.abs() >= 65520.0 => f64::INFINITY,
            Scheme::Fp16 => (x.abs() / 2048.0).max(2_f64.powi(-25)),
            Scheme::Bf16 if x.abs() >= 1.996_f64 * 2_f64.powi(127) => f64::INFINITY,
            Scheme::Bf16 => (x.abs() / 256.0).max(2_f64.powi(-134)),
            Scheme::Int8 { .. } => 0.50003 * (largest / 127.0).max(f64::from(f32::MIN_POSITIVE)),
            Scheme::Fp8 { format } => {
                let (part, step) = match format {
                    Fp8Format::E4m3 => (16.0, 2_f64.powi(-17)),
                    Fp8Format::E5m2 => (8.0, 2_f64.powi(-31)),
                };
                let top = if largest > 1.7 * 2_f64.powi(127) { 4.0 } else { 1.0 };
                (top * x.abs() / part).max(largest * step).max(2_f64.powi(-136))
            }
            Scheme::Onebit { scaling } => x.abs() + if scaling { largest } else { 1.0 },
            Scheme::Topk { .. } | Scheme::Randomk { scaling: false, .. } => x.abs(),
            Scheme::Randomk { .. } if x.abs() > 1e38 => f64::INFINITY,
            Scheme::Randomk { .. } => 1.01 * x.abs(),
            Scheme::Dithering { levels, partition, norm: of, .. } => {
                let top = if of == sumpter_codec::Norm::Max { largest } else { norm };
                match partition {
                    Partition::Linear => top / f64::from(levels),
                    Partition::Natural => x.abs().max(top * 2_f64.powi(1 - i32::from(levels))),
                }
            }
            _ => unreachable!("codecs of blocks"),
        };
        // And the rounding of the product with the scale.
        let bound = bound * (1.0 + 1e-6) + x.abs() * 1e-6 + 2_f64.powi(-148);
        assert!((x - y).abs() <= bound, "{}: {x:e} became {y:e}", codec.spec());
    }
}

#[test]
fn lengths_are_those_that_the_decision_states() {
    let length = |spec, elements| codec(spec, 10_000).encoded_len(elements);
    for spec in SPECS {
        assert_eq!(length(spec, 0), 0);
    }
    for (spec, of_block, of_one) in [
        ("fp16", 2048, 2),
        ("bf16", 2048, 2),
        ("int8", 1028, 5),
        ("int8:scale=shared", 1024, 1),
        ("fp8", 1028, 5),
        ("onebit", 132, 5),
        ("topk:k=0.01", 66, 6),
        ("topk:k=100", 66, 6),
        ("randomk:k=0.01", 44, 4),
        ("dithering:bits=2", 260, 5),
        ("dithering:bits=4", 516, 5),
        ("dithering:k=8", 1028, 5),
    ] {
        assert_eq!(length(spec, 1024), of_block, "{spec}");
        assert_eq!(length(spec, 1), of_one, "{spec}");
        assert_eq!(length(spec, 3 * 1024 + 1), 3 * of_block + of_one, "{spec}");
    }
}

#[test]
fn bytes_are_those_that_the_decision_states() {
    let x = [1.0, -2.0, 0.0, 0.5, -0.25, 4.0, -4.0, 1.0, -1.0];
    let code = |spec| encode(&codec(spec, x.len()), 0, &x);
    let with = |scale: f32, rest: &[u8]| [&scale.to_le_bytes()[..], rest].concat();
    let codes = [32, 192, 0, 16, 248, 127, 129, 32, 224];
    assert_eq!(code("int8"), with(4.0 / 127.0, &codes));
    // The largest is 4 = 256 / 64: 1.0 is 64 = 2^6 of 2^-6.
    let codes = [0x68, 0xf0, 0, 0x60, 0xd8, 0x78, 0xf8, 0x68, 0xe8];
    assert_eq!(code("fp8"), with(1.0 / 64.0, &codes));
    let mean = (13.75_f64 / 9.0) as f32;
    assert_eq!(code("onebit"), with(mean, &[0b0101_0010, 1]));
    let kept = [&[5, 0, 6, 0][..], &4_f32.to_le_bytes(), &(-4_f32).to_le_bytes()].concat();
    assert_eq!(code("topk:k=2"), kept);
    // At levels 0, 1/2 and 1 nothing is left to chance; signs are above levels.
    let exact = encode(&codec("dithering:k=2", 8), 0, &[2.0, -1.0, 0.0, -2.0, 1.0]);
    assert_eq!(exact, with(2.0, &[0x92, 0xa0, 0x01]));
    assert_eq!(encode(&codec("fp16", 8), 0, &[1.0]), [0, 0x3c]);
    assert_eq!(encode(&codec("bf16", 8), 0, &[1.0]), [0x80, 0x3f]);
}

#[test]
fn of_equal_magnitudes_the_first_are_kept() {
    let codec = codec("topk:k=0.01", 2000);
    let y = decode(&codec, 0, &encode(&codec, 0, &[-3.0; 2000]), 2000);
    let kept = |y: &[f32]| y.iter().take_while(|y| **y == -3.0).count();
    assert_eq!((kept(&y), kept(&y[1024..])), (11, 10));
    assert_eq!(y.iter().filter(|y| **y != 0.0).count(), 21);
}

#[test]
fn a_number_of_elements_is_dealt_to_blocks_by_their_lengths() {
    for (k, tensor, block, expected) in
        [(1, 100_000, 1024, 1), (1000, 100_000, 1024, 11), (500, 1000, 1000, 500), (8, 8, 8, 8)]
    {
        let codec = Codec::new(&format!("topk:k={k}").parse().unwrap(), tensor).unwrap();
        assert_eq!(codec.encoded_len(block), 6 * expected);
        assert_eq!(definitions::kept(Count::Elements(k), tensor as usize, block), expected);
    }
}
