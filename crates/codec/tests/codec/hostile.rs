//! Bytes that no encoder writes.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_codec::CodecError;
use sumpter_types::Dtype;

use crate::inputs::{SPECS, at, codec, levels};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes_are_decoded_or_refused_by_name(
        spec in select(&SPECS[..]),
        elements in select(vec![0, 1, 7, 8, 1000, 1024, 1030]),
        seed in any::<u64>(),
        sparse in any::<bool>(),
    ) {
        let codec = codec(spec, elements);
        let mut state = seed | 1;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let byte = (state >> 40) as u8;
            if sparse && !byte.is_multiple_of(4) { 0 } else { byte }
        };
        let code: Vec<u8> = (0..codec.encoded_len(elements)).map(|_| byte()).collect();
        let mut first = None;
        for codec in levels(&codec) {
            let mut out = vec![0; 4 * elements];
            let decoded = codec.decode(at(5), &code, (Dtype::F32, &mut out));
            let added = codec.decode_add(at(5), &code, &mut out);
            prop_assert_eq!(&decoded, &added);
            if let Err(error) = &decoded {
                let begins = format!("codec {}: block ", codec.name());
                prop_assert!(error.to_string().starts_with(&begins), "{error}");
            }
            prop_assert_eq!(first.get_or_insert(decoded.clone()), &decoded);
        }
    }

    #[test]
    fn other_lengths_are_refused(spec in select(&SPECS[..]), bytes in 0..3000_usize) {
        let codec = codec(spec, 1100);
        let expected = codec.encoded_len(1100);
        prop_assume!(bytes != expected);
        let mut out = vec![0; 4400];
        let error = codec.decode_add(at(0), &vec![0; bytes], &mut out).unwrap_err();
        let name = codec.name().to_owned();
        prop_assert_eq!(error, CodecError::Length { codec: name, what: "code", bytes, expected });
    }
}

#[test]
fn what_is_wrong_with_a_block_is_said() {
    let scaled = |scale: f32, rest: &[u8]| [&scale.to_le_bytes()[..], rest].concat();
    let kept = |positions: [u16; 2]| {
        let positions = positions.map(u16::to_le_bytes).concat();
        [&positions[..], &[0; 8]].concat()
    };
    let negative = "its scale is negative or infinite";
    for (spec, code, reason) in [
        ("int8", scaled(-1.0, &[0; 8]), negative),
        ("int8", scaled(f32::INFINITY, &[0; 8]), negative),
        ("fp8", scaled(-0.0, &[0; 8]), negative),
        ("onebit", scaled(f32::NEG_INFINITY, &[0]), negative),
        ("dithering:bits=8", scaled(-2.0, &[0; 8]), negative),
        ("dithering:k=5", scaled(1.0, &[0, 0, 0, 0x60]), "a level is above the highest"),
        ("topk:k=0.25", kept([3, 3]), "its positions do not ascend"),
        ("topk:k=0.25", kept([4, 1]), "its positions do not ascend"),
        ("topk:k=0.25", kept([4, 8]), "a position is beyond its end"),
        ("topk:k=0.25", kept([4, u16::MAX]), "a position is beyond its end"),
    ] {
        let codec = codec(spec, 8);
        let error = codec.decode(at(7), &code, (Dtype::F32, &mut [0; 32])).unwrap_err();
        let expected = format!("codec {}: block 7 is malformed: {reason}", codec.name());
        assert_eq!(error.to_string(), expected);
    }
    for (spec, code) in [
        ("onebit", scaled(1.0, &[0b1000_0000])),
        ("dithering:bits=2", scaled(1.0, &[0, 0b1100_0000])),
    ] {
        let codec = codec(spec, 7);
        let error = codec.decode(at(0), &code, (Dtype::F32, &mut [0; 28])).unwrap_err();
        let expected = "block 0 is malformed: bits behind its last element are set";
        assert_eq!(error.to_string(), format!("codec {}: {expected}", codec.name()));
    }
}

#[test]
fn the_block_that_is_malformed_is_named() {
    let codec = codec("int8", 3000);
    let mut code = vec![0; codec.encoded_len(3000)];
    code[2 * 1028 + 3] = 0x80;
    let mut acc = vec![0; 12_000];
    let error = codec.decode_add(at(100), &code, &mut acc).unwrap_err();
    assert!(matches!(error, CodecError::Malformed { block: 102, .. }), "{error}");
}
