//! The kernels, written once. Each level of [`crate::InstructionSet`] compiles them for its own
//! processor features, so everything here must be inlined into the level's entry points: functions
//! marked so, not closures, because an intrinsic called from code that was compiled for fewer
//! features is a real call.
//!
//! Callers have checked that all slices hold the same number of whole elements.

use crate::dtype::{Dtype, ReduceOp};
use crate::element::{Element, Float};
use crate::half::{Bf16, Half, NarrowTile, TILE, WideTile};

/// A [`WideTile`] as bytes, because accumulators may lie anywhere.
type WideBytes = [u8; 4 * TILE];

/// `acc = op(acc, x)`, where `acc` holds accumulators of `dtype`.
#[inline(always)]
pub(crate) fn accumulate(f16: impl Half, op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
    match dtype {
        Dtype::F32 => reduce::<f32, 4>(op, acc, x),
        Dtype::F64 => reduce::<f64, 8>(op, acc, x),
        Dtype::F16 => reduce_half(f16, op, acc, x),
        Dtype::Bf16 => reduce_half(Bf16, op, acc, x),
        Dtype::I8 => reduce::<i8, 1>(op, acc, x),
        Dtype::U8 => reduce::<u8, 1>(op, acc, x),
        Dtype::I32 => reduce::<i32, 4>(op, acc, x),
        Dtype::I64 => reduce::<i64, 8>(op, acc, x),
    }
}

/// `acc = x`, where `acc` holds accumulators of `dtype`.
#[inline(always)]
pub(crate) fn widen(f16: impl Half, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
    match dtype {
        Dtype::F16 => widen_half(f16, acc, x),
        Dtype::Bf16 => widen_half(Bf16, acc, x),
        _ => acc.copy_from_slice(x),
    }
}

/// Rounds accumulators of `dtype` to elements at the front of their own buffer; returns the bytes
/// of the result.
#[inline(always)]
pub(crate) fn narrow_in_place(f16: impl Half, dtype: Dtype, acc: &mut [u8]) -> usize {
    match dtype {
        Dtype::F16 => narrow_half_in_place(f16, acc),
        Dtype::Bf16 => narrow_half_in_place(Bf16, acc),
        _ => acc.len(),
    }
}

/// `x = x / divisor` for floats; integers are left alone.
#[inline(always)]
pub(crate) fn divide(f16: impl Half, dtype: Dtype, x: &mut [u8], divisor: u32) {
    match dtype {
        Dtype::F32 => divide_each::<f32, 4>(x, divisor),
        Dtype::F64 => divide_each::<f64, 8>(x, divisor),
        Dtype::F16 => divide_half(f16, x, divisor),
        Dtype::Bf16 => divide_half(Bf16, x, divisor),
        Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::I64 => {}
    }
}

#[inline(always)]
fn reduce<E: Element<N>, const N: usize>(op: ReduceOp, acc: &mut [u8], x: &[u8]) {
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
fn reduce_half(half: impl Half, op: ReduceOp, acc: &mut [u8], x: &[u8]) {
    match op {
        ReduceOp::Sum => fold_half(half, acc, x, f32::sum),
        ReduceOp::Min => fold_half(half, acc, x, <f32 as Element<4>>::min),
        ReduceOp::Max => fold_half(half, acc, x, <f32 as Element<4>>::max),
        ReduceOp::Product => fold_half(half, acc, x, f32::product),
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
fn widen_half(half: impl Half, acc: &mut [u8], x: &[u8]) {
    let (acc_tiles, acc_tail) = acc.as_chunks_mut();
    let (x_tiles, x_tail) = x.as_chunks();
    for (acc, x) in acc_tiles.iter_mut().zip(x_tiles) {
        *acc = to_bytes(&half.widen(x));
    }
    if !x_tail.is_empty() {
        let acc_tile = to_bytes(&half.widen(&pad(x_tail)));
        acc_tail.copy_from_slice(&acc_tile[..acc_tail.len()]);
    }
}

/// Narrows a first tile by way of a copy; after that, runs that double in length, because the
/// results of a run as long as all before it end where its elements begin.
#[inline(always)]
fn narrow_half_in_place(half: impl Half, acc: &mut [u8]) -> usize {
    let count = acc.len() / 4;
    let mut done = count.min(TILE);
    let first = half.narrow(&from_bytes(&pad(&acc[..4 * done])));
    acc[..2 * done].copy_from_slice(&first[..2 * done]);
    while done < count {
        let run = done.min(count - done);
        let (below, above) = acc.split_at_mut(4 * done);
        narrow_half(half, &mut below[2 * done..][..2 * run], &above[..4 * run]);
        done += run;
    }
    2 * count
}

#[inline(always)]
fn narrow_half(half: impl Half, out: &mut [u8], acc: &[u8]) {
    let (out_tiles, out_tail) = out.as_chunks_mut();
    let (acc_tiles, acc_tail) = acc.as_chunks();
    for (out, acc) in out_tiles.iter_mut().zip(acc_tiles) {
        *out = half.narrow(&from_bytes(acc));
    }
    if !out_tail.is_empty() {
        let out_tile = half.narrow(&from_bytes(&pad(acc_tail)));
        out_tail.copy_from_slice(&out_tile[..out_tail.len()]);
    }
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
fn pad<const BYTES: usize>(tail: &[u8]) -> [u8; BYTES] {
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
