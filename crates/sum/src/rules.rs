//! Update rules, written once for every level, like the kernels of [`crate::generic`].
//!
//! The operations and their order are those of `torch.optim` with `foreach=False`. Where torch
//! fuses a multiplication and an addition on processors that can, these do so at every level, so
//! that no result depends on the machine. What is computed goes through arrays of one tile: a loop
//! over the value and several slots then needs no proof that they do not overlap.

use std::ops::{Add, Div, Mul, Sub};

use crate::element::{Element, Float};
use crate::generic::pad;
use crate::half::{Half, Halves, NarrowTile, TILE, WideTile};
use sumpter_types::{Dtype, Rule, Update};

/// A tile of elements.
type Tile<F> = [F; TILE];

/// A floating-point element with the arithmetic of update rules.
trait Real<const N: usize>:
    Float<N>
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    fn from_f64(x: f64) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fused(self, factor: Self, addend: Self) -> Self;
    fn root(self) -> Self;
}

macro_rules! real {
    ($type:ty, $n:literal) => {
        impl Real<$n> for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn fused(self, factor: Self, addend: Self) -> Self {
                self.mul_add(factor, addend)
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}

real!(f32, 4);
real!(f64, 8);

/// Applies a rule to a value and its slots, which are `parts` of elements of `master`, and writes
/// the new value to `weights` as well, as 16-bit floats.
#[inline(always)]
pub(crate) fn update(
    halves: Halves<impl Half, impl Half>,
    update: &Update,
    master: Dtype,
    parts: &mut [&mut [u8]],
    (dtype, gradient): (Dtype, &[u8]),
    mut weights: Option<(Dtype, &mut [u8])>,
) {
    let count = gradient.len() / dtype.size();
    if master == Dtype::F64 {
        let coefficients = Coefficients::<f64>::of(update);
        for start in (0..count).step_by(TILE) {
            let gradient = load::<f64, 8>(gradient, start, count);
            apply(update.rule, coefficients, parts, (start, count), &gradient);
        }
        return;
    }
    let coefficients = Coefficients::<f32>::of(update);
    for start in (0..count).step_by(TILE) {
        let gradient = widen_tile(halves, dtype, gradient, start, count);
        let value = apply(update.rule, coefficients, parts, (start, count), &gradient);
        if let Some((dtype, weights)) = &mut weights {
            narrow_tile(halves, *dtype, weights, start, &value);
        }
    }
}

/// `out = x` as `f32`, where `x` holds elements of `dtype`.
#[inline(always)]
pub(crate) fn widen(halves: Halves<impl Half, impl Half>, dtype: Dtype, out: &mut [u8], x: &[u8]) {
    let count = x.len() / dtype.size();
    for start in (0..count).step_by(TILE) {
        let tile = widen_tile(halves, dtype, x, start, count);
        store(out, start, count, &tile);
    }
}

/// `out = x` as 16-bit floats of `dtype`, where `x` holds `f32`.
#[inline(always)]
pub(crate) fn narrow(halves: Halves<impl Half, impl Half>, dtype: Dtype, out: &mut [u8], x: &[u8]) {
    let count = x.len() / 4;
    for start in (0..count).step_by(TILE) {
        narrow_tile(halves, dtype, out, start, &load::<f32, 4>(x, start, count));
    }
}

#[inline(always)]
fn widen_tile(
    halves: Halves<impl Half, impl Half>,
    dtype: Dtype,
    x: &[u8],
    start: usize,
    count: usize,
) -> WideTile {
    match dtype {
        Dtype::F16 => halves.f16.widen(&narrow_bytes(x, start)),
        Dtype::Bf16 => halves.bf16.widen(&narrow_bytes(x, start)),
        _ => load::<f32, 4>(x, start, count),
    }
}

#[inline(always)]
fn narrow_tile(
    halves: Halves<impl Half, impl Half>,
    dtype: Dtype,
    out: &mut [u8],
    start: usize,
    tile: &WideTile,
) {
    let bytes = match dtype {
        Dtype::F16 => halves.f16.narrow(tile),
        _ => halves.bf16.narrow(tile),
    };
    let out = &mut out[2 * start..];
    let len = out.len().min(bytes.len());
    out[..len].copy_from_slice(&bytes[..len]);
}

#[inline(always)]
fn narrow_bytes(x: &[u8], start: usize) -> NarrowTile {
    let x = &x[2 * start..];
    match x.first_chunk() {
        Some(tile) => *tile,
        None => pad(x),
    }
}

/// Elements `start` and following of those before `end`; zeros behind them.
#[inline(always)]
fn load<F: Real<N>, const N: usize>(x: &[u8], start: usize, end: usize) -> Tile<F> {
    let mut out = [F::ZERO; TILE];
    let x = &x[N * start..N * end];
    for (out, x) in out.iter_mut().zip(x.as_chunks().0) {
        *out = F::load(*x);
    }
    out
}

#[inline(always)]
fn store<F: Real<N>, const N: usize>(out: &mut [u8], start: usize, end: usize, tile: &Tile<F>) {
    let out = &mut out[N * start..N * end];
    for (out, x) in out.as_chunks_mut().0.iter_mut().zip(tile) {
        *out = x.store();
    }
}

/// An [`Update`]'s coefficients in the precision of the value.
#[derive(Clone, Copy)]
struct Coefficients<F> {
    scales: bool,
    scale: F,
    decays: bool,
    decay: F,
    shrinks: bool,
    shrink: F,
    keep: F,
    take: F,
    keep_square: F,
    take_square: F,
    divisor: F,
    epsilon: F,
    step: F,
}

impl<F> Coefficients<F> {
    #[inline(always)]
    fn of<const N: usize>(update: &Update) -> Coefficients<F>
    where
        F: Real<N>,
    {
        Coefficients {
            scales: update.scale != 1.0,
            scale: F::from_f64(update.scale),
            decays: update.decay != 0.0,
            decay: F::from_f64(update.decay),
            shrinks: update.shrink != 1.0,
            shrink: F::from_f64(update.shrink),
            keep: F::from_f64(update.keep),
            take: F::from_f64(update.take),
            keep_square: F::from_f64(update.keep_square),
            take_square: F::from_f64(update.take_square),
            divisor: F::from_f64(update.divisor),
            epsilon: F::from_f64(update.epsilon),
            step: F::from_f64(update.step),
        }
    }

    /// The value and the gradient that the rule proper is about.
    #[inline(always)]
    fn prepared<const N: usize>(&self, w: F, g: F) -> (F, F)
    where
        F: Real<N>,
    {
        let g = if self.scales { g * self.scale } else { g };
        let g = if self.decays { w.fused(self.decay, g) } else { g };
        (if self.shrinks { w * self.shrink } else { w }, g)
    }

    /// The second average: of the gradient's square.
    #[inline(always)]
    fn square<const N: usize>(&self, average: F, g: F) -> F
    where
        F: Real<N>,
    {
        (self.take_square * g).fused(g, average * self.keep_square)
    }
}

/// `from + weight * (to - from)`, from whichever end is nearer, as `torch.lerp`.
#[inline(always)]
fn lerp<F: Real<N>, const N: usize>(from: F, to: F, weight: F) -> F {
    let near = weight + weight < F::ONE;
    let (base, weight) = if near { (from, weight) } else { (to, weight - F::ONE) };
    weight.fused(to - from, base)
}

/// -1, 0 or 1; 0 for a NaN.
#[inline(always)]
fn sign<F: Real<N>, const N: usize>(x: F) -> F {
    let positive = if x > F::ZERO { F::ONE } else { F::ZERO };
    let negative = if x < F::ZERO { F::ONE } else { F::ZERO };
    positive - negative
}

/// A rule for one element with `S` slots.
trait Step<F, const S: usize>: Copy {
    fn step(self, w: F, g: F, slots: [F; S]) -> (F, [F; S]);
}

macro_rules! rule {
    ($name:ident, $slots:literal, |$c:ident, $w:ident, $g:ident, $s:pat_param| $body:block) => {
        #[derive(Clone, Copy)]
        struct $name<F, const N: usize>(Coefficients<F>);

        impl<F: Real<N>, const N: usize> Step<F, $slots> for $name<F, N> {
            #[inline(always)]
            fn step(self, $w: F, $g: F, $s: [F; $slots]) -> (F, [F; $slots]) {
                let $c = self.0;
                let ($w, $g) = $c.prepared($w, $g);
                $body
            }
        }
    };
}

rule!(Sgd, 0, |c, w, g, []| { (g.fused(c.step, w), []) });
rule!(Momentum, 1, |c, w, g, [buffer]| {
    let buffer = g.fused(c.take, buffer * c.keep);
    (buffer.fused(c.step, w), [buffer])
});
rule!(Nesterov, 1, |c, w, g, [buffer]| {
    let buffer = g.fused(c.take, buffer * c.keep);
    (buffer.fused(c.keep, g).fused(c.step, w), [buffer])
});
rule!(Adam, 2, |c, w, g, [average, square]| {
    let (average, square) = (lerp(average, g, c.take), c.square(square, g));
    let denominator = square.root() / c.divisor + c.epsilon;
    (w + c.step * average / denominator, [average, square])
});
rule!(AmsGrad, 3, |c, w, g, [average, square, highest]| {
    let (average, square) = (lerp(average, g, c.take), c.square(square, g));
    let highest = Element::max(highest, square);
    let denominator = highest.root() / c.divisor + c.epsilon;
    (w + c.step * average / denominator, [average, square, highest])
});
rule!(RmsProp, 1, |c, w, g, [square]| {
    let square = c.square(square, g);
    (w + c.step * g / (square.root() + c.epsilon), [square])
});
rule!(RmsPropMomentum, 2, |c, w, g, [square, buffer]| {
    let square = c.square(square, g);
    let buffer = buffer * c.keep + g / (square.root() + c.epsilon);
    (buffer.fused(c.step, w), [square, buffer])
});
rule!(Centered, 2, |c, w, g, [square, mean]| {
    let (square, mean) = (c.square(square, g), lerp(mean, g, c.take_square));
    let deviation = (F::ZERO - mean).fused(mean, square).root() + c.epsilon;
    (w + c.step * g / deviation, [square, mean])
});
rule!(CenteredMomentum, 3, |c, w, g, [square, mean, buffer]| {
    let (square, mean) = (c.square(square, g), lerp(mean, g, c.take_square));
    let deviation = (F::ZERO - mean).fused(mean, square).root() + c.epsilon;
    let buffer = buffer * c.keep + g / deviation;
    (buffer.fused(c.step, w), [square, mean, buffer])
});
rule!(Adagrad, 1, |c, w, g, [sum]| {
    let sum = g.fused(g, sum);
    (w + c.step * g / (sum.root() + c.epsilon), [sum])
});
rule!(Lion, 1, |c, w, g, [average]| {
    let direction = sign(g.fused(c.take, average * c.keep));
    let average = g.fused(c.take_square, average * c.keep_square);
    (direction.fused(c.step, w), [average])
});

/// Applies `rule` to a tile from `start` on, of the `count` elements of each part; returns the new
/// value's.
#[inline(always)]
fn apply<F: Real<N>, const N: usize>(
    rule: Rule,
    c: Coefficients<F>,
    parts: &mut [&mut [u8]],
    at: (usize, usize),
    gradient: &Tile<F>,
) -> Tile<F> {
    match rule {
        Rule::Sgd { momentum: false, .. } => sweep(Sgd(c), parts, at, gradient),
        Rule::Sgd { nesterov: false, .. } => sweep(Momentum(c), parts, at, gradient),
        Rule::Sgd { .. } => sweep(Nesterov(c), parts, at, gradient),
        Rule::Adam { amsgrad: false } => sweep(Adam(c), parts, at, gradient),
        Rule::Adam { .. } => sweep(AmsGrad(c), parts, at, gradient),
        Rule::RmsProp { centered: false, momentum: false } => {
            sweep(RmsProp(c), parts, at, gradient)
        }
        Rule::RmsProp { centered: false, .. } => sweep(RmsPropMomentum(c), parts, at, gradient),
        Rule::RmsProp { momentum: false, .. } => sweep(Centered(c), parts, at, gradient),
        Rule::RmsProp { .. } => sweep(CenteredMomentum(c), parts, at, gradient),
        Rule::Adagrad => sweep(Adagrad(c), parts, at, gradient),
        Rule::Lion => sweep(Lion(c), parts, at, gradient),
    }
}

#[inline(always)]
fn sweep<F: Real<N>, const N: usize, const S: usize>(
    rule: impl Step<F, S>,
    parts: &mut [&mut [u8]],
    (start, count): (usize, usize),
    gradient: &Tile<F>,
) -> Tile<F> {
    let end = count.min(start + TILE);
    let mut value = load::<F, N>(parts[0], start, end);
    let mut slots = [[F::ZERO; TILE]; S];
    for (slot, part) in slots.iter_mut().zip(&parts[1..]) {
        *slot = load::<F, N>(part, start, end);
    }
    for i in 0..TILE {
        let mut at = [F::ZERO; S];
        for (at, slot) in at.iter_mut().zip(&slots) {
            *at = slot[i];
        }
        (value[i], at) = rule.step(value[i], gradient[i], at);
        for (at, slot) in at.iter().zip(&mut slots) {
            slot[i] = *at;
        }
    }
    store(parts[0], start, end, &value);
    for (slot, part) in slots.iter().zip(&mut parts[1..]) {
        store(part, start, end, slot);
    }
    value
}
