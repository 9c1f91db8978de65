//! `dithering`: a norm, and for each element a sign and one of few levels, rounded at random.

use crate::block::{BLOCK, Block, Blocks, Context, Reason, lane_sum, read_scale, write_scale};
use crate::random::Stream;
use crate::spec::{Norm, Partition, code_bits};

/// Levels, what they are parts of, and where the random numbers begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dithering {
    pub levels: u8,
    pub partition: Partition,
    pub norm: Norm,
    pub seed: u64,
}

/// Random numbers have so many bits, as an `f32` has.
const RANDOM_BITS: u32 = 24;

impl Dithering {
    #[inline(always)]
    fn norm(&self, block: Block<'_>) -> f32 {
        if !block.is_finite() {
            return f32::NAN;
        }
        match self.norm {
            Norm::Max => f32::from_bits(block.largest),
            // Squares of f32 are exact in f64, and their sums do not overflow; the norm of large
            // elements does, in f32.
            Norm::L2 => {
                let sum = lane_sum(block.x, block.x, |x, y| f64::from(x) * f64::from(y));
                (sum.sqrt() as f32).min(f32::MAX)
            }
        }
    }

    #[inline(always)]
    fn write_codes(&self, block: Block<'_>, norm: f32, codes: &mut [u8; BLOCK]) {
        let mut words = [0; BLOCK];
        let Context { key, number, .. } = block.context;
        Stream::of_rank(self.seed, key).fill(number, block.x.len(), &mut words);
        let sign_bit = code_bits(self.levels) as u32 - 1;
        let draws = block.x.iter().zip(&words);
        let codes = codes.iter_mut().zip(draws);
        match self.partition {
            Partition::Linear => {
                let levels = f32::from(self.levels);
                for (code, (x, word)) in codes {
                    let place = linear(x.abs() / norm * levels);
                    *code = drawn(place, *x, *word, sign_bit);
                }
            }
            Partition::Natural => {
                // Levels are powers of two, the lowest of them 1.
                let highest = power_of_two(i32::from(self.levels) - 1);
                for (code, (x, word)) in codes {
                    let place = natural(x.abs() / norm * highest);
                    *code = drawn(place, *x, *word, sign_bit);
                }
            }
        }
    }

    #[inline(always)]
    fn read_codes(&self, codes: &[u8; BLOCK], norm: f32, out: &mut [f32]) {
        let sign_bit = code_bits(self.levels) as u32 - 1;
        let mask = (1 << sign_bit) - 1;
        match self.partition {
            Partition::Linear => {
                let levels = f32::from(self.levels);
                for (out, code) in out.iter_mut().zip(codes) {
                    let level = i32::from(*code) & mask;
                    *out = signed(level as f32 / levels * norm, *code, sign_bit);
                }
            }
            Partition::Natural => {
                let levels = i32::from(self.levels);
                for (out, code) in out.iter_mut().zip(codes) {
                    let level = i32::from(*code) & mask;
                    let power = power_of_two(level.wrapping_sub(levels));
                    let part = if level == 0 { 0.0 } else { power };
                    *out = signed(part * norm, *code, sign_bit);
                }
            }
        }
    }
}

/// The level at or below a magnitude, and 2^24 times where it is on the way to the next.
type Place = (u32, f32);

const ONE: f32 = (1 << RANDOM_BITS) as f32;

/// For levels 0, 1, 2, 3, ...
#[inline(always)]
fn linear(y: f32) -> Place {
    // Beside 2^23 an f32 has steps of 1.
    const SHIFT: f32 = 8_388_608.0;
    let nearest = (y + SHIFT) - SHIFT;
    let below = if nearest > y { nearest - 1.0 } else { nearest };
    let level = (below + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits());
    (level, (y - below) * ONE)
}

/// For levels 0, 1, 2, 4, ...
#[inline(always)]
fn natural(y: f32) -> Place {
    let exponent = (y.to_bits() >> 23).wrapping_sub(127);
    // From one power to the next the mantissa says where.
    let mantissa = (y.to_bits() & ((1 << 23) - 1)) << 1;
    let above_one = y >= 1.0;
    let level = if above_one { exponent.wrapping_add(1) } else { 0 };
    (level, if above_one { mantissa as i32 as f32 } else { y * ONE })
}

#[inline(always)]
fn drawn((level, place): Place, x: f32, word: u32, sign_bit: u32) -> u8 {
    let random = (word >> (u32::BITS - RANDOM_BITS)) as i32 as f32;
    let level = level.wrapping_add(u32::from(random < place));
    (level | (x.to_bits() >> 31).wrapping_shl(sign_bit)) as u8
}

#[inline(always)]
fn signed(magnitude: f32, code: u8, sign_bit: u32) -> f32 {
    f32::from_bits(magnitude.to_bits() ^ u32::from(code).wrapping_shr(sign_bit) << 31)
}

/// For exponents of normal numbers.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Packs codes of `bits` bits, the first in the lowest ones.
#[inline(always)]
fn pack(bits: usize, codes: &[u8; BLOCK], out: &mut [u8]) {
    match bits {
        2 => {
            for (out, [a, b, c, d]) in out.iter_mut().zip(codes.as_chunks::<4>().0) {
                *out = a | b << 2 | c << 4 | d << 6;
            }
        }
        4 => {
            for (out, [a, b]) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
                *out = a | b << 4;
            }
        }
        _ => out.copy_from_slice(&codes[..out.len()]),
    }
}

#[inline(always)]
fn unpack(bits: usize, bytes: &[u8], codes: &mut [u8; BLOCK]) {
    match bits {
        2 => {
            for (codes, byte) in codes.as_chunks_mut::<4>().0.iter_mut().zip(bytes) {
                *codes = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
            }
        }
        4 => {
            for (codes, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *codes = [byte & 15, byte >> 4];
            }
        }
        _ => codes[..bytes.len()].copy_from_slice(bytes),
    }
}

impl Blocks for Dithering {
    #[inline(always)]
    fn len(&self, elements: usize) -> usize {
        let bytes = (elements * code_bits(self.levels)).div_ceil(8);
        if elements == 0 { 0 } else { 4 + bytes }
    }

    #[inline(always)]
    fn encode(&self, block: Block<'_>, out: &mut [u8]) {
        let norm = self.norm(block);
        let out = write_scale(out, norm);
        // A norm of zero is that of zeros.
        if norm > 0.0 {
            let mut codes = [0; BLOCK];
            self.write_codes(block, norm, &mut codes);
            pack(code_bits(self.levels), &codes, out);
        } else {
            out.fill(0);
        }
    }

    #[inline(always)]
    fn decode(&self, _: Context, bytes: &[u8], out: &mut [f32]) -> Result<(), Reason> {
        let (norm, bytes) = read_scale(bytes)?;
        let mut codes = [0; BLOCK];
        let bits = code_bits(self.levels);
        unpack(bits, bytes, &mut codes);
        self.read_codes(&codes, norm, out);
        let level_mask = (1 << (bits - 1)) - 1;
        let highest = codes.iter().fold(0, |highest: u8, code| highest.max(code & level_mask));
        if highest > self.levels {
            return Err("a level is above the highest".into());
        }
        if codes[out.len()..].iter().any(|code| *code != 0) {
            return Err("bits behind its last element are set".into());
        }
        Ok(())
    }
}
