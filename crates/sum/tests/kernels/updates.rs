//! Update rules at every level, against one element at a time from their definitions.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_types::{Action, Dtype, Rule, Update};

use crate::elements::{Placed, assert_same, levels};
use crate::{HALFS, reference};

/// The definitions of `torch.optim`, with the operations that it fuses, on one element.
macro_rules! define {
    ($name:ident, $type:ty) => {
        fn $name(u: &Update, w: $type, g: $type, slots: &mut [$type]) -> $type {
            let c = |x: f64| x as $type;
            let lerp = |from: $type, to: $type, weight: $type| {
                if weight < 0.5 {
                    weight.mul_add(to - from, from)
                } else {
                    (weight - 1.0).mul_add(to - from, to)
                }
            };
            let square =
                |old: $type, g: $type| (c(u.take_square) * g).mul_add(g, old * c(u.keep_square));
            let g = if u.scale == 1.0 { g } else { g * c(u.scale) };
            let g = if u.decay == 0.0 { g } else { c(u.decay).mul_add(w, g) };
            let w = if u.shrink == 1.0 { w } else { w * c(u.shrink) };
            let (step, epsilon) = (c(u.step), c(u.epsilon));
            match u.rule {
                Rule::Sgd { momentum: false, .. } => step.mul_add(g, w),
                Rule::Sgd { nesterov, .. } => {
                    slots[0] = c(u.take).mul_add(g, slots[0] * c(u.keep));
                    let g = if nesterov { c(u.keep).mul_add(slots[0], g) } else { slots[0] };
                    step.mul_add(g, w)
                }
                Rule::Adam { amsgrad } => {
                    slots[0] = lerp(slots[0], g, c(u.take));
                    slots[1] = square(slots[1], g);
                    let mut second = slots[1];
                    if amsgrad {
                        let either_nan = slots[2].is_nan() || second.is_nan();
                        second = if either_nan { <$type>::NAN } else { second.max(slots[2]) };
                        slots[2] = second;
                    }
                    w + step * slots[0] / (second.sqrt() / c(u.divisor) + epsilon)
                }
                Rule::RmsProp { centered, momentum } => {
                    slots[0] = square(slots[0], g);
                    let mut average = slots[0];
                    if centered {
                        slots[1] = lerp(slots[1], g, c(u.take_square));
                        average = (-slots[1]).mul_add(slots[1], average);
                    }
                    let denominator = average.sqrt() + epsilon;
                    if momentum {
                        let buffer = slots.last_mut().unwrap();
                        *buffer = *buffer * c(u.keep) + g / denominator;
                        return step.mul_add(*buffer, w);
                    }
                    w + step * g / denominator
                }
                Rule::Adagrad => {
                    slots[0] = g.mul_add(g, slots[0]);
                    w + step * g / (slots[0].sqrt() + epsilon)
                }
                Rule::Lion => {
                    let direction = c(u.take).mul_add(g, slots[0] * c(u.keep));
                    slots[0] = c(u.take_square).mul_add(g, slots[0] * c(u.keep_square));
                    let sign = if direction > 0.0 {
                        1.0
                    } else if direction < 0.0 {
                        -1.0
                    } else {
                        0.0
                    };
                    step.mul_add(sign, w)
                }
            }
        }
    };
}

define!(step_f32, f32);
define!(step_f64, f64);

/// A rule for parts of `master`, and a gradient; all values are what training has.
#[derive(Clone, Debug)]
struct Case {
    update: Update,
    master: Dtype,
    gradient_dtype: Dtype,
    parts: Vec<Vec<f64>>,
    gradient: Vec<f64>,
    offset: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let types = vec![
        (Dtype::F32, Dtype::F32),
        (Dtype::F32, Dtype::F16),
        (Dtype::F32, Dtype::Bf16),
        (Dtype::F64, Dtype::F64),
    ];
    let coefficients = (
        select(vec![1.0, 0.25, -1.0]),
        select(vec![0.0, 0.01]),
        select(vec![1.0, 0.999]),
        select(vec![0.9, 0.0, 0.5]),
        select(vec![0.1, 1.0, 0.5, 0.7]),
        (select(vec![0.999, 0.9]), select(vec![0.001, 0.1, 0.6])),
        (select(vec![1.0, 0.0316]), select(vec![1e-8, 1e-3]), select(vec![-0.1, -1e-3, 0.7])),
    );
    (select(Rule::ALL.to_vec()), select(types), coefficients, 0..400_usize, 0..9_usize)
        .prop_flat_map(|(rule, (master, gradient_dtype), coefficients, count, offset)| {
            let (scale, decay, shrink, keep, take, squares, rest) = coefficients;
            let ((keep_square, take_square), (divisor, epsilon, step)) = (squares, rest);
            let update = Update {
                action: Action::Apply,
                rule,
                scale,
                decay,
                shrink,
                keep,
                take,
                keep_square,
                take_square,
                divisor,
                epsilon,
                step,
            };
            let values = || prop::collection::vec(-4.0..4.0_f64, count);
            (prop::collection::vec(values(), 1 + rule.slots().len()), values()).prop_map(
                move |(mut parts, gradient)| {
                    // Averages of squares are none below 0.
                    let squares = match rule {
                        Rule::Adam { .. } => 2..parts.len(),
                        Rule::RmsProp { .. } | Rule::Adagrad => 1..2,
                        Rule::Sgd { .. } | Rule::Lion => 0..0,
                    };
                    parts[squares].iter_mut().flatten().for_each(|x| *x = x.abs());
                    Case { update, master, gradient_dtype, parts, gradient, offset }
                },
            )
        })
}

/// Values as elements of `dtype`.
fn encode(dtype: Dtype, values: &[f64]) -> Vec<u8> {
    match dtype {
        Dtype::F64 => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
        _ => reference::narrow(dtype, &encode(Dtype::F32, values)),
    }
}

fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F64 => bytes.as_chunks().0.iter().map(|x| f64::from_ne_bytes(*x)).collect(),
        Dtype::F32 => {
            bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_ne_bytes(*x))).collect()
        }
        _ => decode(Dtype::F32, &reference::widen(dtype, bytes)),
    }
}

/// The parts after one step.
fn expected(case: &Case) -> Vec<Vec<u8>> {
    let Case { update, master, gradient_dtype, parts, gradient, .. } = case;
    let parts: Vec<_> = parts.iter().map(|p| decode(*master, &encode(*master, p))).collect();
    let gradient = decode(*gradient_dtype, &encode(*gradient_dtype, gradient));
    let mut out = parts.clone();
    for i in 0..gradient.len() {
        if *master == Dtype::F64 {
            let mut slots: Vec<f64> = parts[1..].iter().map(|part| part[i]).collect();
            out[0][i] = step_f64(update, parts[0][i], gradient[i], &mut slots);
            slots.iter().zip(&mut out[1..]).for_each(|(x, part)| part[i] = *x);
        } else {
            let mut slots: Vec<f32> = parts[1..].iter().map(|part| part[i] as f32).collect();
            let w = step_f32(update, parts[0][i] as f32, gradient[i] as f32, &mut slots);
            out[0][i] = f64::from(w);
            slots.iter().zip(&mut out[1..]).for_each(|(x, part)| part[i] = f64::from(*x));
        }
    }
    out.iter().map(|part| encode(*master, part)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_update_equals_the_reference(case in cases()) {
        let (master, dtype) = (case.master, case.gradient_dtype);
        let expected = expected(&case);
        let gradient = Placed::new(&encode(dtype, &case.gradient), case.offset);
        for level in levels() {
            let parts = case.parts.iter().zip(0..);
            let mut placed: Vec<_> = parts
                .map(|(part, at)| Placed::new(&encode(master, part), (case.offset + at) % 9))
                .collect();
            let mut parts: Vec<&mut [u8]> = placed.iter_mut().map(|p| p.bytes()).collect();
            level.update(&case.update, master, &mut parts, (dtype, gradient.as_bytes()), None);
            for (part, expected) in placed.iter().zip(&expected) {
                assert_same(master, part.unguarded(), expected, level);
            }
        }
    }

    #[test]
    fn weights_are_the_new_value_rounded(case in cases(), to in select(HALFS.to_vec())) {
        prop_assume!(case.master == Dtype::F32);
        let weights = reference::narrow(to, &expected(&case)[0]);
        let gradient = encode(case.gradient_dtype, &case.gradient);
        for level in levels() {
            let mut parts: Vec<_> = case.parts.iter().map(|p| encode(Dtype::F32, p)).collect();
            let mut parts: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
            let mut placed = Placed::new(&vec![0; weights.len()], case.offset);
            let from = (case.gradient_dtype, &gradient[..]);
            let out = Some((to, placed.bytes()));
            level.update(&case.update, Dtype::F32, &mut parts, from, out);
            assert_same(to, placed.unguarded(), &weights, level);
            let mut again = Placed::new(&weights, case.offset);
            level.narrow(to, again.bytes(), parts[0]);
            assert_same(to, again.unguarded(), &weights, level);
            let mut wide = Placed::new(parts[0], case.offset);
            level.widen(to, wide.bytes(), &weights);
            assert_same(Dtype::F32, wide.unguarded(), &reference::widen(to, &weights), level);
        }
    }
}

#[test]
#[should_panic(expected = "2 parts instead of 3")]
fn a_slot_that_is_missing_is_named() {
    let (mut value, mut slot) = ([0; 8], [0; 8]);
    let update = Update::new(Rule::Adam { amsgrad: false });
    let gradient = (Dtype::F32, &[0; 8][..]);
    sumpter_sum::update(&update, Dtype::F32, &mut [&mut value, &mut slot], gradient, None);
}

#[test]
fn a_round_that_is_skipped_only_narrows_the_value() {
    let rule = Rule::Adam { amsgrad: false };
    let floats = |x: f32| [x, -x, 3.0 * x].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
    let mut parts = [floats(1.25), floats(0.5), floats(f32::NAN)];
    let before = parts.clone();
    // bfloat16s: an infinity, 1 and -2.
    let gradient: Vec<u8> =
        [0x7f80_u16, 0x3f80, 0xc000].iter().flat_map(|x| x.to_ne_bytes()).collect();
    let mut weights = [0; 6];
    let mut slices: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
    let out = Some((Dtype::Bf16, &mut weights[..]));
    sumpter_sum::update(
        &Update::skip(rule),
        Dtype::F32,
        &mut slices,
        (Dtype::Bf16, &gradient),
        out,
    );
    assert_eq!(parts, before);
    let expected: Vec<u8> =
        [0x3fa0_u16, 0xbfa0, 0x4070].iter().flat_map(|x| x.to_ne_bytes()).collect();
    assert_eq!(weights, expected[..]);
}
