//! `topk` and `randomk`: some elements of a block, with their positions or at positions that all
//! ranks draw alike.

use crate::block::{BLOCK, Block, Blocks, Context, Reason, pack_bits};
use crate::random::Stream;

/// How many elements of a block are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// A part of it, above 0 and below 1.
    Ratio(f64),
    /// So many of so many elements of the tensor.
    Elements { kept: u64, of: u64 },
}

impl Kept {
    #[inline(always)]
    fn of(self, elements: usize) -> usize {
        let kept = match self {
            Kept::Ratio(ratio) => (ratio * elements as f64).ceil() as usize,
            Kept::Elements { kept, of } => {
                let share = u128::from(kept) * elements as u128;
                share.div_ceil(u128::from(of.max(1))) as usize
            }
        };
        kept.clamp(1.min(elements), elements)
    }
}

/// The largest elements, with their positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topk(pub Kept);

/// Bytes of an element's position in its block.
const POSITION_BYTES: usize = size_of::<u16>();

impl Topk {
    /// Marks the `kept` largest magnitudes, of equal ones the first.
    ///
    /// Bits of magnitudes grow with them, so the bits of the last one that is kept are found one by
    /// one, from the highest: each takes one pass that counts. A NaN is the largest of all.
    #[inline(always)]
    fn mark(block: Block<'_>, kept: usize, marks: &mut [u8; BLOCK]) {
        // Behind the last element nothing is counted.
        let mut magnitudes = [-1_i32; BLOCK];
        for (magnitude, x) in magnitudes.iter_mut().zip(block.x) {
            *magnitude = (x.to_bits() & !(1 << 31)) as i32;
        }
        let highest = (u32::BITS - block.largest.leading_zeros()).min(u32::BITS - 1);
        let (mut least, mut marked) = (0_i32, block.x.len());
        for bit in (0..highest).rev() {
            if marked == kept {
                break;
            }
            let tried = least | 1 << bit;
            let reached = count(&magnitudes, |magnitude| magnitude >= tried);
            if reached >= kept {
                (least, marked) = (tried, reached);
            }
        }
        // If more than are wanted have the last magnitude that is kept, the first of those are.
        let all = marked == kept;
        for (mark, magnitude) in marks.iter_mut().zip(&magnitudes) {
            *mark = u8::from(if all { *magnitude >= least } else { *magnitude > least });
        }
        if !all {
            let mut missing = kept - count(&magnitudes, |magnitude| magnitude > least);
            for (mark, magnitude) in marks.iter_mut().zip(&magnitudes) {
                if missing == 0 {
                    break;
                }
                if *magnitude == least {
                    *mark = 1;
                    missing -= 1;
                }
            }
        }
    }

    /// Position and value of each element, in order.
    #[inline(always)]
    fn entries(bytes: &[u8], elements: usize) -> Result<Entries<'_>, &'static str> {
        let kept = bytes.len() / (POSITION_BYTES + size_of::<f32>());
        let (positions, values) = bytes.split_at(kept * POSITION_BYTES);
        let positions = positions.as_chunks().0;
        let mut next = 0;
        for position in positions {
            let position = usize::from(u16::from_le_bytes(*position));
            if position < next {
                return Err("its positions do not ascend");
            }
            next = position + 1;
        }
        if next > elements {
            return Err("a position is beyond its end");
        }
        Ok(Entries { positions, values: values.as_chunks().0 })
    }
}

struct Entries<'a> {
    positions: &'a [[u8; POSITION_BYTES]],
    values: &'a [[u8; 4]],
}

impl Entries<'_> {
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (usize, f32)> {
        let pairs = self.positions.iter().zip(self.values);
        pairs.map(|(at, x)| (usize::from(u16::from_le_bytes(*at)), f32::from_le_bytes(*x)))
    }
}

#[inline(always)]
fn count(magnitudes: &[i32; BLOCK], counts: impl Fn(i32) -> bool) -> usize {
    let mut count = 0_i32;
    for magnitude in magnitudes {
        count = count.wrapping_add(i32::from(counts(*magnitude)));
    }
    count as usize
}

impl Blocks for Topk {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        self.0.of(elements) * (POSITION_BYTES + size_of::<f32>())
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let kept = self.0.of(block.x.len());
        let mut marks = [0; BLOCK];
        Topk::mark(block, kept, &mut marks);
        let mut bits = [0; BLOCK / 8];
        pack_bits(&marks, &mut bits);
        let (positions, values) = out.split_at_mut(kept * POSITION_BYTES);
        let positions = positions.as_chunks_mut().0.iter_mut();
        let mut places = positions.zip(values.as_chunks_mut().0);
        for (word, bits) in bits.as_chunks().0.iter().enumerate() {
            let mut left = u64::from_le_bytes(*bits);
            while left != 0 {
                let at = 64 * word + left.trailing_zeros() as usize;
                left &= left - 1;
                let Some((position, value)) = places.next() else { return };
                *position = (at as u16).to_le_bytes();
                let x = block.x[at];
                *value = if x.is_nan() { f32::NAN } else { x }.to_le_bytes();
            }
        }
    }

    #[inline(always)]
    fn decode(&self, _: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let entries = Topk::entries(bytes, out.len())?;
        out.fill(0.0);
        entries.iter().for_each(|(at, x)| out[at] = x);
        Ok(())
    }

    #[inline(always)]
    fn decode_add(
        &self,
        _: Context,
        bytes: &[u8],
        acc: &mut [[u8; 4]],
        _: &mut [f32],
    ) -> Result<(), Reason> {
        for (at, x) in Topk::entries(bytes, acc.len())?.iter() {
            acc[at] = (f32::from_ne_bytes(acc[at]) + x).to_ne_bytes();
        }
        Ok(())
    }
}

/// An element of each of as many stretches of a block, at positions that all ranks draw alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Randomk {
    pub kept: Kept,
    pub scaling: bool,
    pub seed: u64,
}

/// The elements that were drawn in a block.
struct Drawn {
    words: [u32; BLOCK],
    kept: usize,
    elements: usize,
}

impl Randomk {
    #[inline(always)]
    fn draw(&self, context: Context, elements: usize) -> Drawn {
        let kept = self.kept.of(elements);
        let mut words = [0; BLOCK];
        Stream::of_all(self.seed, context.key).fill(context.number, kept, &mut words);
        Drawn { words, kept, elements }
    }
}

impl Drawn {
    /// The position in each stretch, and the stretch's length. Stretch `i` of `k` in `n` elements
    /// begins at `floor(i * n / k)`.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let kept = self.kept.max(1);
        let (least, rest) = (self.elements / kept, self.elements % kept);
        let (mut start, mut carried) = (0, 0);
        self.words[..self.kept].iter().map(move |word| {
            carried += rest;
            let longer = carried >= kept;
            carried -= if longer { kept } else { 0 };
            let (begin, length) = (start, least + usize::from(longer));
            start += length;
            (begin + ((u64::from(*word) * length as u64) >> 32) as usize, length)
        })
    }
}

impl Blocks for Randomk {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        self.kept.of(elements) * size_of::<f32>()
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let drawn = self.draw(block.context, block.x.len());
        for (out, (at, length)) in out.as_chunks_mut().0.iter_mut().zip(drawn.iter()) {
            let factor = if self.scaling { length as f32 } else { 1.0 };
            // What is wrong anywhere must show, though few elements travel.
            let value = if block.is_finite() { block.x[at] * factor } else { f32::NAN };
            *out = value.to_le_bytes();
        }
    }

    #[inline(always)]
    fn decode(&self, context: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let drawn = self.draw(context, out.len());
        out.fill(0.0);
        for (x, (at, _)) in bytes.as_chunks().0.iter().zip(drawn.iter()) {
            out[at] = f32::from_le_bytes(*x);
        }
        Ok(())
    }

    #[inline(always)]
    fn decode_add(
        &self,
        context: Context,
        bytes: &[u8],
        acc: &mut [[u8; 4]],
        _: &mut [f32],
    ) -> Result<(), Reason> {
        let drawn = self.draw(context, acc.len());
        for (x, (at, _)) in bytes.as_chunks().0.iter().zip(drawn.iter()) {
            acc[at] = (f32::from_ne_bytes(acc[at]) + f32::from_le_bytes(*x)).to_ne_bytes();
        }
        Ok(())
    }
}
