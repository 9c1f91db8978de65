//! Loops over the blocks of a run, compiled for each format and level.

use sumpter_sum::{InstructionSet, Kernel};
use sumpter_types::Dtype;

use crate::block::{BLOCK, Block, Blocks, Context, INFINITY, Reason, largest};
use crate::call::{At, Next, Previous};

/// A block as `f32`s.
type Wide = [f32; BLOCK];

/// Bytes of a block's `f32`s.
const WIDE_BYTES: usize = BLOCK * size_of::<f32>();

/// The number of the malformed block, and what is wrong with it.
type Failed = (u64, Reason);

#[inline(always)]
fn context(set: InstructionSet, at: At<'_>, index: usize) -> Context {
    let maximum = at.maxima.as_chunks().0.get(index).map_or(0.0, |x| f32::from_ne_bytes(*x));
    Context { set, key: at.key, number: at.block + index as u64, maximum }
}

/// Elements of any floating-point type, or those of a part of them, as `f32`.
#[inline(always)]
fn load(set: InstructionSet, dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => load_f32(bytes, out),
        Dtype::F64 => {
            for (out, x) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f64::from_ne_bytes(*x) as f32;
            }
        }
        _ => {
            let mut wide = [0; WIDE_BYTES];
            let wide = &mut wide[..size_of_val(out)];
            set.widen(dtype, wide, bytes);
            load_f32(wide, out);
        }
    }
}

#[inline(always)]
fn load_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = f32::from_ne_bytes(*x);
    }
}

#[inline(always)]
fn store_f32(x: &[f32], out: &mut [u8]) {
    for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
        *out = x.to_ne_bytes();
    }
}

#[inline(always)]
fn store(set: InstructionSet, dtype: Dtype, x: &[f32], out: &mut [u8]) {
    match dtype {
        Dtype::F32 => store_f32(x, out),
        Dtype::F64 => {
            for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
                *out = f64::from(*x).to_ne_bytes();
            }
        }
        _ => {
            let mut wide = [0; WIDE_BYTES];
            let wide = &mut wide[..size_of_val(x)];
            store_f32(x, wide);
            set.narrow(dtype, out, wide);
        }
    }
}

/// Zero in place of what is no number: what is kept must not poison later rounds.
#[inline(always)]
fn finite(x: f32) -> f32 {
    if x.abs() < f32::INFINITY { x } else { 0.0 }
}

/// What one block is encoded of.
struct Source<'a> {
    set: InstructionSet,
    x: (Dtype, &'a [u8]),
    previous: Previous<'a>,
    momentum: f32,
}

/// The part of a block of something of `size` bytes an element.
#[inline(always)]
fn part(bytes: &[u8], size: usize, index: usize) -> &[u8] {
    let start = index * BLOCK * size;
    &bytes[start..bytes.len().min(start + BLOCK * size)]
}

#[inline(always)]
fn part_mut(bytes: &mut [u8], size: usize, index: usize) -> &mut [u8] {
    let start = index * BLOCK * size;
    let end = bytes.len().min(start + BLOCK * size);
    &mut bytes[start..end]
}

impl Source<'_> {
    #[inline(always)]
    fn elements(&self) -> usize {
        self.x.1.len() / self.x.0.size()
    }

    /// Block `index` with momentum and residual, in `y`; the new momentum goes to `velocity`.
    /// Returns the bits of the largest magnitude.
    #[inline(always)]
    fn prepare(&self, index: usize, y: &mut [f32], velocity: Option<&mut [u8]>) -> u32 {
        let (dtype, x) = self.x;
        load(self.set, dtype, part(x, dtype.size(), index), y);
        if let Some(before) = self.previous.velocity {
            let before = part(before, size_of::<f32>(), index).as_chunks().0;
            let factor = self.momentum;
            if let Some(after) = velocity {
                let after = after.as_chunks_mut().0.iter_mut();
                for ((y, before), after) in y.iter_mut().zip(before).zip(after) {
                    let new = factor * f32::from_ne_bytes(*before) + *y;
                    *after = finite(new).to_ne_bytes();
                    *y += factor * new;
                }
            } else {
                for (y, before) in y.iter_mut().zip(before) {
                    *y += factor * (factor * f32::from_ne_bytes(*before) + *y);
                }
            }
        }
        if let Some(before) = self.previous.residual {
            let before = part(before, size_of::<f32>(), index).as_chunks().0;
            let factor = self.previous.rescale;
            for (y, before) in y.iter_mut().zip(before) {
                *y += factor * f32::from_ne_bytes(*before);
            }
        }
        largest(y)
    }

    /// The residual before this round, as it would be added.
    #[inline(always)]
    fn keep(&self, index: usize, next: &mut Next<'_>) {
        let size = size_of::<f32>();
        if let (Some(before), Some(after)) = (self.previous.residual, &mut next.residual) {
            let factor = self.previous.rescale;
            let before = part(before, size, index).as_chunks().0;
            let after = part_mut(after, size, index).as_chunks_mut().0;
            for (after, before) in after.iter_mut().zip(before) {
                *after = finite(factor * f32::from_ne_bytes(*before)).to_ne_bytes();
            }
        }
        if let (Some(before), Some(after)) = (self.previous.velocity, &mut next.velocity) {
            part_mut(after, size, index).copy_from_slice(part(before, size, index));
        }
    }
}

pub(crate) struct Encode<'a, B> {
    pub format: &'a B,
    pub set: InstructionSet,
    pub at: At<'a>,
    pub x: (Dtype, &'a [u8]),
    pub previous: Previous<'a>,
    pub next: Next<'a>,
    pub momentum: f32,
    pub skip: bool,
    pub out: &'a mut [u8],
}

impl<B: Blocks> Kernel for Encode<'_, B> {
    /// How many blocks were skipped.
    type Output = Result<usize, Failed>;

    #[inline(always)]
    fn run(self) -> Result<usize, Failed> {
        let Encode { format, set, at, x, previous, mut next, momentum, skip, mut out } = self;
        let source = Source { set, x, previous, momentum };
        let elements = source.elements();
        let (mut y, mut decoded): (Wide, Wide) = ([0.0; BLOCK], [0.0; BLOCK]);
        let mut skipped = 0;
        for index in 0..elements.div_ceil(BLOCK) {
            let count = BLOCK.min(elements - index * BLOCK);
            let (y, decoded) = (&mut y[..count], &mut decoded[..count]);
            let velocity = next.velocity.as_deref_mut();
            let velocity = velocity.map(|bytes| part_mut(bytes, size_of::<f32>(), index));
            let largest = source.prepare(index, y, velocity);
            let (code, rest) = out.split_at_mut(format.len(count));
            out = rest;
            let context = context(set, at, index);
            let failed = |reason| (context.number, reason);
            if skip && largest >= INFINITY {
                y.fill(0.0);
                format.try_encode(Block { x: y, largest: 0, context }, code).map_err(failed)?;
                source.keep(index, &mut next);
                skipped += 1;
                continue;
            }
            format.try_encode(Block { x: y, largest, context }, code).map_err(failed)?;
            if let Some(residual) = &mut next.residual {
                format.decode(context, code, decoded).map_err(failed)?;
                let residual = part_mut(residual, size_of::<f32>(), index).as_chunks_mut().0;
                for ((residual, y), decoded) in residual.iter_mut().zip(y).zip(decoded) {
                    *residual = finite(*y - *decoded).to_ne_bytes();
                }
            }
        }
        Ok(skipped)
    }
}

pub(crate) struct Maxima<'a> {
    pub set: InstructionSet,
    pub x: (Dtype, &'a [u8]),
    pub previous: Previous<'a>,
    pub momentum: f32,
    pub skip: bool,
    pub out: &'a mut [u8],
}

impl Kernel for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Maxima { set, x, previous, momentum, skip, out } = self;
        let source = Source { set, x, previous, momentum };
        let elements = source.elements();
        let mut y: Wide = [0.0; BLOCK];
        for (index, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let count = BLOCK.min(elements - index * BLOCK);
            let bits = source.prepare(index, &mut y[..count], None);
            let skipped = skip && bits >= INFINITY;
            *out = f32::from_bits(if skipped { 0 } else { bits }).to_ne_bytes();
        }
    }
}

pub(crate) struct Decode<'a, B> {
    pub format: &'a B,
    pub set: InstructionSet,
    pub at: At<'a>,
    pub bytes: &'a [u8],
    pub out: (Dtype, &'a mut [u8]),
}

impl<B: Blocks> Kernel for Decode<'_, B> {
    type Output = Result<(), Failed>;

    #[inline(always)]
    fn run(self) -> Result<(), Failed> {
        let Decode { format, set, at, mut bytes, out: (dtype, out) } = self;
        let mut y: Wide = [0.0; BLOCK];
        for (index, out) in out.chunks_mut(BLOCK * dtype.size()).enumerate() {
            let y = &mut y[..out.len() / dtype.size()];
            let (code, rest) = bytes.split_at(format.len(y.len()));
            bytes = rest;
            let context = context(set, at, index);
            format.decode(context, code, y).map_err(|reason| (context.number, reason))?;
            store(set, dtype, y, out);
        }
        Ok(())
    }
}

pub(crate) struct Add<'a, B> {
    pub format: &'a B,
    pub set: InstructionSet,
    pub at: At<'a>,
    pub bytes: &'a [u8],
    pub acc: &'a mut [u8],
}

impl<B: Blocks> Kernel for Add<'_, B> {
    type Output = Result<(), Failed>;

    #[inline(always)]
    fn run(self) -> Result<(), Failed> {
        let Add { format, set, at, mut bytes, acc } = self;
        let mut y: Wide = [0.0; BLOCK];
        for (index, acc) in acc.chunks_mut(WIDE_BYTES).enumerate() {
            let acc = acc.as_chunks_mut().0;
            let scratch = &mut y[..acc.len()];
            let (code, rest) = bytes.split_at(format.len(acc.len()));
            bytes = rest;
            let context = context(set, at, index);
            let added = format.decode_add(context, code, acc, scratch);
            added.map_err(|reason| (context.number, reason))?;
        }
        Ok(())
    }
}
