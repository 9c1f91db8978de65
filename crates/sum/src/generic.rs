//! The kernels, written once. Each level of [`crate::InstructionSet`] compiles them for its own
//! processor features, so everything here must be inlined into the level's entry points: functions
//! marked so, not closures, because an intrinsic called from code that was compiled for fewer
//! features is a real call.
//!
//! Callers have checked that all slices hold the same number of whole elements.

use crate::element::{Element, Float};
use crate::half::{Half, Halves, NarrowTile, TILE, WideTile};
use crate::kernel::Kernel;
use sumpter_types::{Dtype, ReduceOp};

/// A [`WideTile`] as bytes, because accumulators may lie anywhere.
type WideBytes = [u8; 4 * TILE];

/// Calls a loop over 16-bit floats with the operator on their values.
macro_rules! by_op {
    ($op:expr, $of:ident($($argument:expr),*)) => {
        match $op {
            ReduceOp::Sum => $of($($argument,)* f32::sum),
            ReduceOp::Min => $of($($argument,)* <f32 as Element<4>>::min),
            ReduceOp::Max => $of($($argument,)* <f32 as Element<4>>::max),
            ReduceOp::Product => $of($($argument,)* f32::product),
        }
    };
}

/// A kernel of another crate, which converts no 16-bit floats.
#[inline(always)]
pub(crate) fn run<K: Kernel>(_: Halves<impl Half, impl Half>, kernel: K) -> K::Output {
    kernel.run()
}

/// `acc = op(acc, x)`, where `acc` holds accumulators of `dtype`.
#[inline(always)]
pub(crate) fn accumulate(
    halves: Halves<impl Half, impl Half>,
    op: ReduceOp,
    dtype: Dtype,
    acc: &mut [u8],
    x: &[u8],
) {
    match dtype {
        Dtype::F32 => fold_each::<f32, 4>(op, acc, x),
        Dtype::F64 => fold_each::<f64, 8>(op, acc, x),
        Dtype::F16 => by_op!(op, fold_half(halves.f16, acc, x)),
        Dtype::Bf16 => by_op!(op, fold_half(halves.bf16, acc, x)),
        Dtype::I8 => fold_each::<i8, 1>(op, acc, x),
        Dtype::U8 => fold_each::<u8, 1>(op, acc, x),
        Dtype::I32 => fold_each::<i32, 4>(op, acc, x),
        Dtype::I64 => fold_each::<i64, 8>(op, acc, x),
    }
}

/// `to = op(to, x)`, rounded to `dtype`.
#[inline(always)]
pub(crate) fn reduce(
    halves: Halves<impl Half, impl Half>,
    op: ReduceOp,
    dtype: Dtype,
    to: &mut [u8],
    x: &[u8],
) {
    match dtype {
        Dtype::F16 => reduce_half(halves.f16, op, to, x),
        Dtype::Bf16 => reduce_half(halves.bf16, op, to, x),
        _ => accumulate(halves, op, dtype, to, x),
    }
}

/// `acc = op(x, y)` for 16-bit floats, where `acc` holds accumulators of `dtype`.
#[inline(always)]
pub(crate) fn accumulate_pair(
    halves: Halves<impl Half, impl Half>,
    op: ReduceOp,
    dtype: Dtype,
    acc: &mut [u8],
    x: &[u8],
    y: &[u8],
) {
    match dtype {
        Dtype::F16 => by_op!(op, pair_half(halves.f16, acc, x, y)),
        _ => by_op!(op, pair_half(halves.bf16, acc, x, y)),
    }
}

/// `out = op(acc, x)` for 16-bit floats, rounded to `dtype`, where `acc` holds accumulators of it.
#[inline(always)]
pub(crate) fn accumulate_last(
    halves: Halves<impl Half, impl Half>,
    op: ReduceOp,
    dtype: Dtype,
    out: &mut [u8],
    acc: &[u8],
    x: &[u8],
) {
    match dtype {
        Dtype::F16 => by_op!(op, last_half(halves.f16, out, acc, x)),
        _ => by_op!(op, last_half(halves.bf16, out, acc, x)),
    }
}

/// `x = x / divisor` for floats; integers are left alone.
#[inline(always)]
pub(crate) fn divide(
    halves: Halves<impl Half, impl Half>,
    dtype: Dtype,
    x: &mut [u8],
    divisor: u32,
) {
    match dtype {
        Dtype::F32 => divide_each::<f32, 4>(x, divisor),
        Dtype::F64 => divide_each::<f64, 8>(x, divisor),
        Dtype::F16 => divide_half(halves.f16, x, divisor),
        Dtype::Bf16 => divide_half(halves.bf16, x, divisor),
        Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::I64 => {}
    }
}

#[inline(always)]
fn fold_each<E: Element<N>, const N: usize>(op: ReduceOp, acc: &mut [u8], x: &[u8]) {
    match op {
        ReduceOp::Sum => fold(acc, x, E::sum),
        ReduceOp::Min => fold(acc, x, E::min),
        ReduceOp::Max => fold(acc, x, E::max),
        ReduceOp::Product => fold(acc, x, E::product),
    }
}

#[inline(always)]
fn fold<E: Element<N>, const N: usize>(acc: &mut [u8], x: &[u8], op: impl Fn(E, E) -> E) {
    for (acc, x) in acc.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
        *acc = op(E::load(*acc), E::load(*x)).store();
    }
}

#[inline(always)]
fn divide_each<E: Float<N>, const N: usize>(x: &mut [u8], divisor: u32) {
    let divisor = E::from_divisor(divisor);
    for x in x.as_chunks_mut().0 {
        *x = E::load(*x).divide(divisor).store();
    }
}

#[inline(always)]
fn fold_half(half: impl Half, acc: &mut [u8], x: &[u8], op: impl Fn(f32, f32) -> f32) {
    let (acc_tiles, acc_tail) = acc.as_chunks_mut();
    let (x_tiles, x_tail) = x.as_chunks();
    for (acc, x) in acc_tiles.iter_mut().zip(x_tiles) {
        fold_tile(half, acc, x, &op);
    }
    if !x_tail.is_empty() {
        let mut acc_tile = pad(acc_tail);
        fold_tile(half, &mut acc_tile, &pad(x_tail), &op);
        acc_tail.copy_from_slice(&acc_tile[..acc_tail.len()]);
    }
}

#[inline(always)]
fn fold_tile(half: impl Half, acc: &mut WideBytes, x: &NarrowTile, op: impl Fn(f32, f32) -> f32) {
    for (acc, x) in acc.as_chunks_mut().0.iter_mut().zip(half.widen(x)) {
        *acc = op(f32::load(*acc), x).store();
    }
}

#[inline(always)]
fn reduce_half(half: impl Half, op: ReduceOp, to: &mut [u8], x: &[u8]) {
    let (to_tiles, to_tail) = to.as_chunks_mut();
    let (x_tiles, x_tail) = x.as_chunks();
    for (to, x) in to_tiles.iter_mut().zip(x_tiles) {
        *to = reduce_tile(half, op, to, x);
    }
    if !x_tail.is_empty() {
        let tile = reduce_tile(half, op, &pad(to_tail), &pad(x_tail));
        to_tail.copy_from_slice(&tile[..to_tail.len()]);
    }
}

#[inline(always)]
fn reduce_tile(half: impl Half, op: ReduceOp, x: &NarrowTile, y: &NarrowTile) -> NarrowTile {
    if op == ReduceOp::Sum {
        return half.add(x, y);
    }
    let (x, y) = (half.widen(x), half.widen(y));
    half.narrow(&by_op!(op, combine(x, y)))
}

#[inline(always)]
fn pair_half(half: impl Half, acc: &mut [u8], x: &[u8], y: &[u8], op: impl Fn(f32, f32) -> f32) {
    let (acc_tiles, acc_tail) = acc.as_chunks_mut();
    let ((x_tiles, x_tail), (y_tiles, y_tail)) = (x.as_chunks(), y.as_chunks());
    for ((acc, x), y) in acc_tiles.iter_mut().zip(x_tiles).zip(y_tiles) {
        *acc = pair_tile(half, x, y, &op);
    }
    if !x_tail.is_empty() {
        let tile = pair_tile(half, &pad(x_tail), &pad(y_tail), &op);
        acc_tail.copy_from_slice(&tile[..acc_tail.len()]);
    }
}

#[inline(always)]
fn pair_tile(
    half: impl Half,
    x: &NarrowTile,
    y: &NarrowTile,
    op: impl Fn(f32, f32) -> f32,
) -> WideBytes {
    to_bytes(&combine(half.widen(x), half.widen(y), op))
}

#[inline(always)]
fn last_half(half: impl Half, out: &mut [u8], acc: &[u8], x: &[u8], op: impl Fn(f32, f32) -> f32) {
    let (out_tiles, out_tail) = out.as_chunks_mut();
    let ((acc_tiles, acc_tail), (x_tiles, x_tail)) = (acc.as_chunks(), x.as_chunks());
    for ((out, acc), x) in out_tiles.iter_mut().zip(acc_tiles).zip(x_tiles) {
        *out = last_tile(half, acc, x, &op);
    }
    if !x_tail.is_empty() {
        let tile = last_tile(half, &pad(acc_tail), &pad(x_tail), &op);
        out_tail.copy_from_slice(&tile[..out_tail.len()]);
    }
}

#[inline(always)]
fn last_tile(
    half: impl Half,
    acc: &WideBytes,
    x: &NarrowTile,
    op: impl Fn(f32, f32) -> f32,
) -> NarrowTile {
    half.narrow(&combine(from_bytes(acc), half.widen(x), op))
}

#[inline(always)]
fn combine(mut x: WideTile, y: WideTile, op: impl Fn(f32, f32) -> f32) -> WideTile {
    for (x, y) in x.iter_mut().zip(y) {
        *x = op(*x, y);
    }
    x
}

#[inline(always)]
fn divide_half(half: impl Half, x: &mut [u8], divisor: u32) {
    let divisor = f32::from_divisor(divisor);
    let (tiles, tail) = x.as_chunks_mut();
    for x in tiles {
        *x = divide_tile(half, x, divisor);
    }
    if !tail.is_empty() {
        let tile = divide_tile(half, &pad(tail), divisor);
        tail.copy_from_slice(&tile[..tail.len()]);
    }
}

#[inline(always)]
fn divide_tile(half: impl Half, x: &NarrowTile, divisor: f32) -> NarrowTile {
    let mut quotients = half.widen(x);
    for x in &mut quotients {
        *x = x.divide(divisor);
    }
    half.narrow(&quotients)
}

/// The last elements as a whole tile, so that they take the same path as all others.
#[inline(always)]
pub(crate) fn pad<const BYTES: usize>(tail: &[u8]) -> [u8; BYTES] {
    let mut tile = [0; BYTES];
    tile[..tail.len()].copy_from_slice(tail);
    tile
}

#[inline(always)]
fn to_bytes(x: &WideTile) -> WideBytes {
    let mut out = [0; 4 * TILE];
    for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
        *out = x.store();
    }
    out
}

#[inline(always)]
fn from_bytes(x: &WideBytes) -> WideTile {
    let mut out = [0.0; TILE];
    for (out, x) in out.iter_mut().zip(x.as_chunks().0) {
        *out = f32::load(*x);
    }
    out
}
