//! `int8:scale=shared`: sums of coded integers.

use proptest::prelude::*;
use sumpter_codec::{
    At, Codec, CodecError, MAX_SHARED_RANKS, Next, Previous, SHARED_SUM_BYTES, add_codes, blocks,
    decode_sum,
};
use sumpter_types::{Dtype, ReduceOp};

use crate::inputs::{KEY, assert_same, bytes, codec, finite, floats, levels};

fn maxima(codec: &Codec, x: &[f32], residual: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; 4 * blocks(x.len())];
    let residual = bytes(residual);
    let previous = Previous { residual: Some(&residual), ..Previous::default() };
    codec.maxima((Dtype::F32, &bytes(x)), previous, &mut out).unwrap();
    out
}

/// The code and the next residual.
fn encode(codec: &Codec, maxima: &[u8], x: &[f32], residual: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut code = vec![0; codec.encoded_len(x.len())];
    let (before, mut after) = (bytes(residual), vec![0; 4 * x.len()]);
    let previous = Previous { residual: Some(&before), ..Previous::default() };
    let next = Next { residual: Some(&mut after), velocity: None };
    let at = At { key: KEY, block: 0, maxima };
    codec.encode(at, (Dtype::F32, &bytes(x)), previous, next, &mut code).unwrap();
    (code, floats(&after))
}

/// What several ranks' elements and residuals become: the sum, and the next residuals.
fn summed(codec: &Codec, ranks: &[(Vec<f32>, Vec<f32>)]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let len = ranks[0].0.len();
    let mut all = vec![0; 4 * blocks(len)];
    for (x, residual) in ranks {
        sumpter_sum::accumulate(ReduceOp::Max, Dtype::F32, &mut all, &maxima(codec, x, residual));
    }
    let mut sums = vec![0; SHARED_SUM_BYTES * len];
    let mut left = Vec::new();
    for (x, residual) in ranks {
        let (code, after) = encode(codec, &all, x, residual);
        add_codes(&mut sums, &code).unwrap();
        left.push(after);
    }
    let mut out = vec![0; 4 * len];
    decode_sum(&all, &sums, &mut out).unwrap();
    (floats(&out), left)
}

fn ranks() -> impl Strategy<Value = Vec<(Vec<f32>, Vec<f32>)>> {
    let moderate = |x: Vec<f32>| -> Vec<f32> {
        x.into_iter().map(|x| if x.abs() > 1e30 { 1.0 } else { x }).collect()
    };
    prop_oneof![Just(1_usize), Just(1024), Just(1500)].prop_flat_map(move |len| {
        let elements = || finite(len).prop_map(moderate);
        prop::collection::vec((elements(), elements()), 1..5)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sums_of_codes_are_what_was_given_but_for_what_is_left(ranks in ranks()) {
        let len = ranks[0].0.len();
        for codec in levels(&codec("int8:scale=shared", len)) {
            let (sum, left) = summed(&codec, &ranks);
            for i in 0..len {
                let given = |(x, r): &(Vec<f32>, Vec<f32>)| f64::from(x[i]) + f64::from(r[i]);
                let given: Vec<f64> = ranks.iter().map(given).collect();
                let left: f64 = left.iter().map(|left| f64::from(left[i])).sum();
                let largest = given.iter().fold(1e-38, |largest: f64, x| largest.max(x.abs()));
                let lost = given.iter().sum::<f64>() - f64::from(sum[i]) - left;
                let block = (i / 1024) * 1024..len.min((i / 1024 + 1) * 1024);
                let scale = ranks.iter().flat_map(|(x, r)| block.clone().map(|i| x[i] + r[i]));
                let scale = scale.fold(largest as f32, |largest, x| largest.max(x.abs()));
                prop_assert!(lost.abs() <= f64::from(scale) * 2e-6, "{lost} of {given:?}");
            }
        }
    }
}

#[test]
fn as_many_ranks_as_fit_add_up_without_wrapping() {
    let codec = codec("int8:scale=shared", 10);
    let rank = (vec![-3.0; 10], vec![0.0; 10]);
    let count = MAX_SHARED_RANKS as usize;
    let (sum, _) = summed(&codec, &vec![rank; count]);
    assert_same(&sum, &[-127.0 * count as f32 * (3.0_f32 / 127.0); 10], "258 ranks");
}

#[test]
fn a_nan_in_any_rank_makes_the_block_nan_in_the_sum() {
    for wrong in [f32::NAN, f32::INFINITY] {
        let codec = codec("int8:scale=shared", 1030);
        let mut x = vec![1.0; 1030];
        x[7] = wrong;
        let ranks = [(x, vec![0.0; 1030]), (vec![1.0; 1030], vec![0.0; 1030])];
        let (sum, left) = summed(&codec, &ranks);
        assert!(sum[..1024].iter().all(|x| x.is_nan()));
        assert_same(&sum[1024..], &[2.0; 6], "the next block");
        assert!(left.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_rank_that_skips_a_block_does_not_raise_its_scale() {
    let codec = codec("int8:scale=shared,nan=skip", 8);
    let ranks = [(vec![f32::NAN; 8], vec![0.5; 8]), (vec![1.0; 8], vec![0.0; 8])];
    let (sum, left) = summed(&codec, &ranks);
    assert_same(&sum, &[1.0; 8], "the other rank's");
    assert_same(&left[0], &[0.5; 8], "the residual");
}

#[test]
fn maxima_are_needed_by_this_codec_alone() {
    let codec = codec("int8:scale=shared", 2000);
    let at = At { key: KEY, block: 0, maxima: &[0; 4] };
    let error = codec.decode_add(at, &[0; 2000], &mut [0; 8000]).unwrap_err();
    assert_eq!(error.to_string(), "codec int8: 4 bytes of maxima instead of 8");
    let fp8 = self::codec("fp8", 8);
    let error = fp8.decode_add(at, &[0; 12], &mut [0; 32]).unwrap_err();
    assert_eq!(error.to_string(), "codec fp8: 4 bytes of maxima instead of 0");
    let error = add_codes(&mut [0; 3], &[0; 2]).unwrap_err();
    assert!(matches!(error, CodecError::Length { bytes: 3, expected: 4, .. }));
    assert!(decode_sum(&[0; 4], &[0; 4], &mut [0; 4]).is_err());
    assert!(decode_sum(&[0; 8], &[0; 4], &mut [0; 8]).is_err());
}
