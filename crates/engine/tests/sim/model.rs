//! What a round must give, computed plainly: values are small integers, exact in every dtype.

use half::{bf16, f16};
use sumpter_types::{Action, Dtype, ExactSum, ReduceOp, Rule, Update};

/// The value a worker contributes to an element.
pub fn contribution(op: ReduceOp, tensor: u32, round: u32, rank: u32, element: usize) -> i64 {
    let mut x = (u64::from(tensor) << 40) ^ (u64::from(round) << 24) ^ u64::from(rank) << 50;
    x = (x ^ element as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    let value = (x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as i64;
    if op == ReduceOp::Product { value % 4 } else { value % 9 }
}

/// The reduction of several contributions.
pub fn reduce(op: ReduceOp, values: impl Iterator<Item = i64>) -> i64 {
    values
        .reduce(|a, b| match op {
            ReduceOp::Sum => a + b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Product => a * b,
        })
        .expect("a contributor")
}

/// The bytes of values in a dtype. `u8` wraps, as its sums do.
pub fn encode(dtype: Dtype, values: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values {
        match dtype {
            Dtype::F32 => out.extend_from_slice(&(value as f32).to_ne_bytes()),
            Dtype::F64 => out.extend_from_slice(&value.to_ne_bytes()),
            // From `f32`, which all of these are: not all conversions from `f64` round correctly.
            Dtype::F16 => out.extend_from_slice(&f16::from_f32(value as f32).to_ne_bytes()),
            Dtype::Bf16 => out.extend_from_slice(&bf16::from_f32(value as f32).to_ne_bytes()),
            Dtype::I8 => out.extend_from_slice(&(value as i64 as i8).to_ne_bytes()),
            Dtype::U8 => out.push(value as i64 as u8),
            Dtype::I32 => out.extend_from_slice(&(value as i32).to_ne_bytes()),
            Dtype::I64 => out.extend_from_slice(&(value as i64).to_ne_bytes()),
        }
    }
    out
}

/// Values that are exact when the minimum of unsigned numbers is asked for.
pub fn as_stored(dtype: Dtype, value: i64) -> i64 {
    if dtype == Dtype::U8 { i64::from(value as u8) } else { value }
}

/// A value whose sums depend on the order of addition.
pub fn roughen(value: i64, element: usize) -> f32 {
    (value as f32 + 0.1) * [1.0, 1.0e4, 1.0e-3][element % 3] * [1.0, 3.0e3][(value & 1) as usize]
}

/// Whether two `f32` differ by rounding only.
pub fn is_close(got: &[u8], expected: &[u8]) -> bool {
    let read = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    let (a, b) = (read(got), read(expected));
    // Few addends of at most 3e8 each, so a few units of the last place of 1e9.
    (a - b).abs() <= 1e-6 * a.abs().max(1.0e9 * 1e-1)
}

/// The value of a variable's element before its first round.
pub fn initial(tensor: u32, element: usize) -> f64 {
    ((7 * tensor as usize + element) % 13) as f64 / 4.0
}

/// What a rule is applied with in a round.
pub fn update(rule: Rule, round: u32) -> Update {
    Update {
        scale: [1.0, 0.5][round as usize % 2],
        decay: 0.125,
        keep: 0.875,
        take: 0.125,
        keep_square: 0.75,
        take_square: 0.25,
        epsilon: 0.5,
        step: -1.0 / f64::from(1 << (round % 4)),
        ..Update::new(rule)
    }
}

/// What a delta is added with.
pub fn addition() -> Update {
    Update { step: 1.0, ..Update::new(Rule::Sgd { momentum: false, nesterov: false }) }
}

/// The rounds of one worker are a digit of the sum of all deltas: fewer than this.
const DIGIT: i64 = 8;

/// What each round of a worker adds to an element of a variable that changes asynchronously.
pub fn delta(rank: u32, element: usize) -> i64 {
    DIGIT.pow(rank) * [1, -1, 2][element % 3]
}

/// How many rounds of each of `workers` workers are in the value of an element; `None` if it is no
/// sum of their deltas.
pub fn rounds(value: f64, (tensor, element): (u32, usize), workers: usize) -> Option<Vec<u32>> {
    let sum = (value - initial(tensor, element)) / delta(0, element) as f64;
    if sum.fract() != 0.0 || sum < 0.0 {
        return None;
    }
    let mut left = sum as i64;
    let digits = (0..workers).map(|_| {
        let digit = left % DIGIT;
        left /= DIGIT;
        digit as u32
    });
    let digits = digits.collect();
    (left == 0).then_some(digits)
}

/// The elements of the bytes of a variable.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let values = bytes.chunks_exact(dtype.size());
    match dtype {
        Dtype::F32 => values.map(|b| f32::from_ne_bytes(b.try_into().unwrap()).into()).collect(),
        Dtype::F64 => values.map(|b| f64::from_ne_bytes(b.try_into().unwrap())).collect(),
        other => panic!("the values of {} are not exact", other.name()),
    }
}

/// What is decided about a round when the squares of its gradient are known: one in three is
/// skipped, and the norm scales the others.
pub fn decided(rule: Rule, round: u32, squares: &ExactSum) -> Update {
    let norm = squares.to_f64();
    match norm.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 {
        bits if bits % 3 == 0 => Update::skip(rule),
        _ => Update { scale: 1.0 / (1.0 + norm.sqrt()), ..update(rule, round) },
    }
}

/// The sum of the squares of a gradient, one after the other.
pub fn squares(dtype: Dtype, gradient: &[u8]) -> ExactSum {
    let mut sum = ExactSum::default();
    for bytes in gradient.chunks_exact(dtype.size()) {
        let x = match *bytes {
            [a, b] if dtype == Dtype::F16 => f16::from_ne_bytes([a, b]).to_f64(),
            [a, b] => bf16::from_ne_bytes([a, b]).to_f64(),
            [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
            _ => f64::from_ne_bytes(bytes.try_into().expect("a float")),
        };
        sum.add(x * x);
    }
    sum
}

/// A variable's parts in the type they are kept in, before the first round.
pub fn parts(rule: Rule, dtype: Dtype, (tensor, elements): (u32, usize)) -> Vec<Vec<u8>> {
    let master = dtype.accumulator();
    let value = encode(master, (0..elements).map(|element| initial(tensor, element)));
    let slots = rule.slots().iter().map(|_| vec![0; value.len()]);
    std::iter::once(value.clone()).chain(slots).collect()
}

/// Applies a rule to all of a variable; returns the new value in the type of the tensor.
pub fn apply(update: &Update, dtype: Dtype, parts: &mut [Vec<u8>], gradient: &[u8]) -> Vec<u8> {
    let master = dtype.accumulator();
    if update.action == Action::Skip {
        let wide = |x: &[u8]| f64::from(f32::from_ne_bytes(x.try_into().expect("a float")));
        return match master == dtype {
            true => parts[0].clone(),
            false => encode(dtype, parts[0].chunks_exact(4).map(wide)),
        };
    }
    let mut parts: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
    if master == dtype {
        sumpter_sum::update(update, master, &mut parts, (dtype, gradient), None);
        return parts[0].to_vec();
    }
    let mut weights = vec![0; gradient.len()];
    let out = Some((dtype, &mut weights[..]));
    sumpter_sum::update(update, master, &mut parts, (dtype, gradient), out);
    weights
}
