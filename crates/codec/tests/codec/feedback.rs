//! Residuals, momentum, and what becomes of NaNs.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_codec::{
    At, BLOCK, Codec, CodecError, Encoded, Key, Next, Norm, Previous, Scheme, Spec,
};
use sumpter_types::{Dtype, Round};

use crate::inputs::{KEY, SPECS, assert_same, at, bytes, codec, encode, finite, floats, levels};

/// A round: the code, what it decodes to, the next residual and momentum, and what was skipped.
struct Done {
    code: Vec<u8>,
    decoded: Vec<f32>,
    residual: Vec<f32>,
    velocity: Vec<f32>,
    encoded: Encoded,
}

fn round(codec: &Codec, x: &[f32], residual: &[f32], velocity: &[f32], rescale: f32) -> Done {
    numbered(codec, KEY.round, x, residual, velocity, rescale)
}

fn numbered(
    codec: &Codec,
    number: Round,
    x: &[f32],
    residual: &[f32],
    velocity: &[f32],
    rescale: f32,
) -> Done {
    let at = At { key: Key { round: number, ..KEY }, ..At::default() };
    let (residual, velocity) = (bytes(residual), bytes(velocity));
    let mut code = vec![0; codec.encoded_len(x.len())];
    let (mut after, mut moved) = (vec![0xa5; residual.len()], vec![0xa5; velocity.len()]);
    let momentum = codec.spec().momentum.is_some();
    let previous = Previous {
        residual: Some(&residual),
        rescale,
        velocity: momentum.then_some(&velocity[..]),
    };
    let next = Next { residual: Some(&mut after), velocity: momentum.then_some(&mut moved[..]) };
    let elements = (Dtype::F32, &bytes(x)[..]);
    let encoded = codec.encode(at, elements, previous, next, &mut code).unwrap();
    let mut decoded = vec![0xa5; 4 * x.len()];
    codec.decode(at, &code, (Dtype::F32, &mut decoded)).unwrap();
    let (decoded, residual, velocity) = (floats(&decoded), floats(&after), floats(&moved));
    Done { code, decoded, residual, velocity, encoded }
}

fn with(spec: &str, argument: &str) -> String {
    format!("{spec}{}{argument}", if spec.contains(':') { "," } else { ":" })
}

/// Whether what is taken from an element and what is left of it is exact in `f32`.
fn is_exact(spec: &Spec) -> bool {
    matches!(
        spec.scheme,
        Scheme::Fp16
            | Scheme::Bf16
            | Scheme::Fp8 { .. }
            | Scheme::Topk { .. }
            | Scheme::Randomk { scaling: false, .. }
    )
}

/// The distance to the next `f32`.
fn ulp(x: f32) -> f32 {
    f32::from_bits(x.abs().to_bits() + 1) - x.abs()
}

/// Two of as many elements.
fn pair() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    let moderate = |x: f32| if x.abs() > 1e30 || (x != 0.0 && x.abs() < 1e-30) { 1.0 } else { x };
    let bounded = move |x: Vec<f32>| x.into_iter().map(moderate).collect::<Vec<_>>();
    select(vec![1, 9, 1000, 1024, 1030])
        .prop_flat_map(move |len| (finite(len).prop_map(bounded), finite(len).prop_map(bounded)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_decoded_and_what_is_left_make_the_whole(
        spec in select(&SPECS[..]), (x, residual) in pair(), rescale in select(vec![1.0, 0.5, 3.0]),
    ) {
        let codec = codec(spec, x.len());
        let whole: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| x + rescale * r).collect();
        let of_whole = encode(&codec, 0, &whole);
        for codec in levels(&codec) {
            let done = round(&codec, &x, &residual, &[], rescale);
            prop_assert_eq!(&done.code, &of_whole, "{}: not the code of x + r * e", spec);
            let parts = done.decoded.iter().zip(&done.residual);
            for (whole, (&decoded, &left)) in whole.iter().zip(parts) {
                if !decoded.is_finite() {
                    prop_assert_eq!(left, 0.0);
                    continue;
                }
                prop_assert_eq!(left.to_bits(), (whole - decoded).to_bits());
                let sum = decoded + left;
                let tolerance = match is_exact(codec.spec()) {
                    true => 0.0,
                    false => ulp(whole.abs().max(decoded.abs())),
                };
                prop_assert!((sum - whole).abs() <= tolerance, "{spec}: {sum} of {whole}");
            }
        }
    }

    #[test]
    fn momentum_is_nesterovs(spec in select(&SPECS[..]), (x, velocity) in pair()) {
        let codec = codec(&with(spec, "momentum=0.75"), x.len());
        let moved: Vec<f32> = velocity.iter().zip(&x).map(|(v, x)| 0.75 * v + x).collect();
        let ahead: Vec<f32> = moved.iter().zip(&x).map(|(v, x)| x + 0.75 * v + 0.0).collect();
        let expected = encode(&self::codec(spec, x.len()), 0, &ahead);
        for codec in levels(&codec) {
            let done = round(&codec, &x, &vec![0.0; x.len()], &velocity, 1.0);
            prop_assert_eq!(&done.code, &expected);
            assert_same(&done.velocity, &moved, spec);
        }
    }
}

/// Whether residuals are bounded: a code has more of the elements than it lacks.
fn keeps_enough(spec: &str) -> bool {
    match spec.parse::<Spec>().unwrap().scheme {
        Scheme::Dithering { levels, norm, .. } => norm == Norm::Max && levels > 3,
        Scheme::Randomk { scaling, .. } => !scaling,
        Scheme::Onebit { scaling } => scaling,
        _ => true,
    }
}

/// Over many rounds nothing is lost: what was decoded, and the last residual, are what was given.
#[test]
fn decoded_rounds_and_the_last_residual_are_the_sum_of_all_elements() {
    const LEN: usize = 1500;
    for spec in SPECS.iter().filter(|spec| keeps_enough(spec)) {
        let codec = codec(spec, LEN);
        let (mut residual, mut given, mut got) =
            (vec![0.0; LEN], vec![0.0_f64; LEN], vec![0.0_f64; LEN]);
        for number in 0..200 {
            let x: Vec<f32> =
                (0..LEN).map(|i| ((i * 37 + number * 101) % 251) as f32 / 125.0 - 1.0).collect();
            let done = numbered(&codec, Round(number as u32), &x, &residual, &[], 1.0);
            for i in 0..LEN {
                given[i] += f64::from(x[i]);
                got[i] += f64::from(done.decoded[i]);
            }
            residual = done.residual;
        }
        for i in 0..LEN {
            let left = given[i] - got[i] - f64::from(residual[i]);
            assert!(left.abs() < 200.0 * 1e-4, "{spec}: {left} of element {i} was lost");
        }
    }
}

/// With error feedback even a sign for each element gets there; without, biased codecs do not.
#[test]
fn error_feedback_lets_biased_codecs_converge() {
    const LEN: usize = 1024;
    let target: Vec<f32> = (0..LEN).map(|i| ((i * 29 % 97) as f32 / 48.0 - 1.0).powi(3)).collect();
    for spec in ["onebit", "topk:k=0.05", "randomk:k=0.05", "dithering:bits=4", "int8", "fp8"] {
        let distance = |feedback: bool| {
            let codec = codec(spec, LEN);
            let (mut w, mut residual) = (vec![0.0_f32; LEN], vec![0.0; LEN]);
            for number in 0..2000 {
                let x: Vec<f32> = w.iter().zip(&target).map(|(w, t)| 0.01 * (w - t)).collect();
                let done = numbered(&codec, Round(number), &x, &residual, &[], 1.0);
                w.iter_mut().zip(done.decoded).for_each(|(w, x)| *w -= x);
                if feedback {
                    residual = done.residual;
                }
            }
            let squares = w.iter().zip(&target).map(|(w, t)| f64::from(w - t).powi(2));
            (squares.sum::<f64>() / LEN as f64).sqrt()
        };
        assert!(distance(true) < 0.02, "{spec}: {} from the target", distance(true));
    }
}

#[test]
fn a_round_that_is_repeated_gives_the_same_bytes_and_residual() {
    let x: Vec<f32> = (0..3000).map(|i| (i as f32).sin()).collect();
    let before: Vec<f32> = x.iter().map(|x| x * 0.1).collect();
    for spec in SPECS {
        let codec = codec(&with(spec, "momentum=0.9"), x.len());
        let (one, other) =
            (round(&codec, &x, &before, &before, 1.0), round(&codec, &x, &before, &before, 1.0));
        assert_eq!(one.code, other.code);
        assert_same(&one.residual, &other.residual, spec);
        assert_same(&one.velocity, &other.velocity, spec);
    }
}

#[test]
fn what_is_not_finite_is_passed_on_and_then_forgotten() {
    let before = vec![0.25; 1200];
    for spec in SPECS {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let codec = codec(&with(spec, "momentum=0.5"), 1200);
            let mut x = vec![1.0; 1200];
            x[3] = wrong;
            let done = round(&codec, &x, &before, &before, 1.0);
            assert_eq!(done.encoded, Encoded { skipped: 0 });
            let decoded = &done.decoded;
            assert!(decoded[..BLOCK].iter().any(|x| !x.is_finite()), "{spec} hides {wrong}");
            assert!(decoded[BLOCK..].iter().all(|x| x.is_finite()), "{spec}: another block");
            assert!(done.residual.iter().chain(&done.velocity).all(|x| x.is_finite()), "{spec}");
            let next = round(&codec, &vec![1.0; 1200], &done.residual, &done.velocity, 1.0);
            let decoded = &next.decoded;
            assert!(decoded.iter().all(|x| x.is_finite()), "{spec} remembers {wrong}");
        }
    }
}

#[test]
fn a_skipped_block_is_zero_and_changes_nothing_that_is_kept() {
    let before: Vec<f32> = (0..1200).map(|i| i as f32 / 64.0).collect();
    for spec in SPECS {
        let codec = codec(&with(spec, "momentum=0.5,nan=skip"), 1200);
        let mut x = vec![1.0; 1200];
        x[1023] = f32::INFINITY;
        let done = round(&codec, &x, &before, &before, 2.0);
        assert_eq!(done.encoded, Encoded { skipped: 1 });
        let decoded = &done.decoded;
        assert!(decoded[..BLOCK].iter().all(|x| *x == 0.0), "{spec}");
        assert!(decoded[BLOCK..].iter().any(|x| *x != 0.0), "{spec}");
        let doubled: Vec<f32> = before.iter().map(|x| 2.0 * x).collect();
        assert_same(&done.residual[..BLOCK], &doubled[..BLOCK], spec);
        assert_same(&done.velocity[..BLOCK], &before[..BLOCK], spec);
    }
}

#[test]
fn memory_that_does_not_fit_is_refused_by_name() {
    let codec = codec("int8:momentum=0.9", 100);
    let (x, short) = (vec![0; 400], vec![0; 396]);
    let mut out = vec![0; 104];
    let mut encode = |previous, next, bytes: usize| {
        codec.encode(at(0), (Dtype::F32, &x), previous, next, &mut out[..bytes]).unwrap_err()
    };
    let velocity = Some(&x[..]);
    let none = Previous::default();
    let long = Previous { residual: Some(&short), velocity, ..none };
    let lacking = Previous { velocity, ..none };
    for (previous, bytes, message) in [
        (none, 104, "codec int8: 0 bytes of momentum instead of 400"),
        (long, 104, "codec int8: 396 bytes of residual instead of 400"),
        (lacking, 104, "codec int8: 0 bytes of the next momentum instead of 400"),
    ] {
        assert_eq!(encode(previous, Next::default(), bytes).to_string(), message);
    }
    let mut moved = vec![0; 400];
    let next = Next { residual: None, velocity: Some(&mut moved) };
    let error = encode(lacking, next, 103);
    assert_eq!(error.to_string(), "codec int8: 103 bytes of output instead of 104");
    let integers = (Dtype::I32, &x[..]);
    let error = codec.encode(at(0), integers, none, Next::default(), &mut out).unwrap_err();
    assert_eq!(error, CodecError::Dtype { codec: "int8".to_owned(), dtype: "int32" });
}
