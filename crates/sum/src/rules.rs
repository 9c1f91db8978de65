//! Update rules, written once for every level, like the kernels of [`crate::generic`].
//!
//! The operations and their order are those of `torch.optim` with `foreach=False`. Where torch
//! fuses a multiplication and an addition on processors that can, these do so at every level, so
//! that no result depends on the machine. Each rule is one loop over the value and its slots, which
//! are arguments of a function of their own: so the compiler knows that they do not overlap, and
//! vectorizes the loop. Only 16-bit floats go through arrays of one tile.

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
    if master == Dtype::F64 {
        let gradient = gradient.as_chunks::<8>().0;
        return apply(update.rule, Coefficients::<f64>::of(update), parts, 0, gradient);
    }
    let coefficients = Coefficients::<f32>::of(update);
    if dtype == master && weights.is_none() {
        return apply(update.rule, coefficients, parts, 0, gradient.as_chunks::<4>().0);
    }
    let count = gradient.len() / dtype.size();
    for start in (0..count).step_by(TILE) {
        let gradient = widen_tile(halves, dtype, gradient, start, count);
        let end = count.min(start + TILE);
        apply(update.rule, coefficients, parts, start, &gradient[..end - start]);
        if let Some((dtype, weights)) = &mut weights {
            narrow_tile(halves, *dtype, weights, start, &load::<f32, 4>(parts[0], start, count));
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

/// An element of a gradient, of which `F` can be made.
trait Gradient<F>: Copy {
    fn get(self) -> F;
}

impl<F: Element<N>, const N: usize> Gradient<F> for [u8; N] {
    #[inline(always)]
    fn get(self) -> F {
        F::load(self)
    }
}

impl Gradient<f32> for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
}

/// A rule: for one element with value `w`, gradient `g` and the slots, the new value and slots. It
/// is applied to as many elements of each part as the gradient has, from `start` on.
macro_rules! rule {
    ($name:ident, |$c:ident, $w:ident, $g:ident, [$($slot:ident $at:tt),*]| $body:block) => {
        #[inline(always)]
        fn $name<F: Real<N>, const N: usize>(
            c: Coefficients<F>,
            parts: &mut [&mut [u8]],
            start: usize,
            gradient: &[impl Gradient<F>],
        ) {
            /// References that are arguments do not overlap.
            #[inline(always)]
            fn each<F: Real<N>, const N: usize>(
                $c: Coefficients<F>,
                value: &mut [[u8; N]],
                $($slot: &mut [[u8; N]],)*
                gradient: &[impl Gradient<F>],
            ) {
                let count = gradient.len();
                let value = &mut value[..count];
                $(let $slot = &mut $slot[..count];)*
                for i in 0..count {
                    let new = {
                        let ($w, $g) = $c.prepared(F::load(value[i]), gradient[i].get());
                        $(let $slot = F::load($slot[i]);)*
                        $body
                    };
                    value[i] = new.0.store();
                    $($slot[i] = new.1[$at].store();)*
                }
            }
            let [value, $($slot),*] = parts else { unreachable!("a part for each slot") };
            each(
                c,
                &mut value.as_chunks_mut().0[start..],
                $(&mut $slot.as_chunks_mut().0[start..],)*
                gradient,
            );
        }
    };
}

rule!(sgd, |c, w, g, []| { (g.fused(c.step, w), [F::ZERO; 0]) });
rule!(momentum, |c, w, g, [buffer 0]| {
    let buffer = g.fused(c.take, buffer * c.keep);
    (buffer.fused(c.step, w), [buffer])
});
rule!(nesterov, |c, w, g, [buffer 0]| {
    let buffer = g.fused(c.take, buffer * c.keep);
    (buffer.fused(c.keep, g).fused(c.step, w), [buffer])
});
rule!(adam, |c, w, g, [average 0, square 1]| {
    let (average, square) = (lerp(average, g, c.take), c.square(square, g));
    let denominator = square.root() / c.divisor + c.epsilon;
    (w + c.step * average / denominator, [average, square])
});
rule!(amsgrad, |c, w, g, [average 0, square 1, highest 2]| {
    let (average, square) = (lerp(average, g, c.take), c.square(square, g));
    let highest = Element::max(highest, square);
    let denominator = highest.root() / c.divisor + c.epsilon;
    (w + c.step * average / denominator, [average, square, highest])
});
rule!(rmsprop, |c, w, g, [square 0]| {
    let square = c.square(square, g);
    (w + c.step * g / (square.root() + c.epsilon), [square])
});
rule!(rmsprop_momentum, |c, w, g, [square 0, buffer 1]| {
    let square = c.square(square, g);
    let buffer = buffer * c.keep + g / (square.root() + c.epsilon);
    (buffer.fused(c.step, w), [square, buffer])
});
rule!(centered, |c, w, g, [square 0, mean 1]| {
    let (square, mean) = (c.square(square, g), lerp(mean, g, c.take_square));
    let deviation = (F::ZERO - mean).fused(mean, square).root() + c.epsilon;
    (w + c.step * g / deviation, [square, mean])
});
rule!(centered_momentum, |c, w, g, [square 0, mean 1, buffer 2]| {
    let (square, mean) = (c.square(square, g), lerp(mean, g, c.take_square));
    let deviation = (F::ZERO - mean).fused(mean, square).root() + c.epsilon;
    let buffer = buffer * c.keep + g / deviation;
    (buffer.fused(c.step, w), [square, mean, buffer])
});
rule!(adagrad, |c, w, g, [sum 0]| {
    let sum = g.fused(g, sum);
    (w + c.step * g / (sum.root() + c.epsilon), [sum])
});
rule!(lion, |c, w, g, [average 0]| {
    let direction = sign(g.fused(c.take, average * c.keep));
    let average = g.fused(c.take_square, average * c.keep_square);
    (direction.fused(c.step, w), [average])
});

/// Applies `rule` to as many elements of each part as `gradient` has, from `start` on.
#[inline(always)]
fn apply<F: Real<N>, const N: usize>(
    rule: Rule,
    c: Coefficients<F>,
    parts: &mut [&mut [u8]],
    start: usize,
    gradient: &[impl Gradient<F>],
) {
    match rule {
        Rule::Sgd { momentum: false, .. } => sgd(c, parts, start, gradient),
        Rule::Sgd { nesterov: false, .. } => momentum(c, parts, start, gradient),
        Rule::Sgd { .. } => nesterov(c, parts, start, gradient),
        Rule::Adam { amsgrad: false } => adam(c, parts, start, gradient),
        Rule::Adam { .. } => amsgrad(c, parts, start, gradient),
        Rule::RmsProp { centered: false, momentum: false } => rmsprop(c, parts, start, gradient),
        Rule::RmsProp { centered: false, .. } => rmsprop_momentum(c, parts, start, gradient),
        Rule::RmsProp { momentum: false, .. } => centered(c, parts, start, gradient),
        Rule::RmsProp { .. } => centered_momentum(c, parts, start, gradient),
        Rule::Adagrad => adagrad(c, parts, start, gradient),
        Rule::Lion => lion(c, parts, start, gradient),
    }
}
