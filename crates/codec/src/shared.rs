//! `int8:scale=shared`: sums of coded integers, without decoding them.
//!
//! A round first takes the largest magnitude of each block over all ranks ([`Codec::maxima`]); all
//! encode with it, the codes are added as 16-bit integers, and the sum is the answer.
//!
//! [`Codec::maxima`]: crate::Codec::maxima

use sumpter_sum::{InstructionSet, Kernel};

use crate::block::{BLOCK, blocks};
use crate::error::CodecError;
use crate::formats::shared_scale;

/// Bytes of a sum of codes.
pub const SHARED_SUM_BYTES: usize = size_of::<i16>();

/// The most ranks whose codes can be added: 258 times 127 is the last that 16 bits hold.
pub const MAX_SHARED_RANKS: u32 = i16::MAX as u32 / 127;

const NAME: &str = "int8";

/// Adds a contribution's codes to sums of codes, two bytes for each, little-endian. Sums wrap
/// beyond [`MAX_SHARED_RANKS`] contributions.
///
/// # Errors
/// If lengths do not fit each other.
pub fn add_codes(sums: &mut [u8], codes: &[u8]) -> Result<(), CodecError> {
    check("sums", sums.len(), codes.len() * SHARED_SUM_BYTES)?;
    InstructionSet::preferred().run(Add { sums, codes });
    Ok(())
}

/// What sums of codes stand for, as `f32` in the machine's order; `maxima` holds the largest
/// magnitude of each block as [`Codec::maxima`](crate::Codec::maxima) writes it.
///
/// # Errors
/// If lengths do not fit each other.
pub fn decode_sum(maxima: &[u8], sums: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    let elements = sums.len() / SHARED_SUM_BYTES;
    check("sums", sums.len(), elements * SHARED_SUM_BYTES)?;
    check("output", out.len(), elements * size_of::<f32>())?;
    check("maxima", maxima.len(), blocks(elements) * size_of::<f32>())?;
    InstructionSet::preferred().run(Decode { maxima, sums, out });
    Ok(())
}

fn check(what: &'static str, bytes: usize, expected: usize) -> Result<(), CodecError> {
    let wrong = || CodecError::Length { codec: NAME.to_owned(), what, bytes, expected };
    if bytes == expected { Ok(()) } else { Err(wrong()) }
}

struct Add<'a> {
    sums: &'a mut [u8],
    codes: &'a [u8],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (sum, code) in self.sums.as_chunks_mut().0.iter_mut().zip(self.codes) {
            *sum = i16::from_le_bytes(*sum).wrapping_add(i16::from(*code as i8)).to_le_bytes();
        }
    }
}

struct Decode<'a> {
    maxima: &'a [u8],
    sums: &'a [u8],
    out: &'a mut [u8],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let blocks = self.sums.chunks(BLOCK * SHARED_SUM_BYTES);
        let maxima = self.maxima.as_chunks().0.iter();
        let places = self.out.chunks_mut(BLOCK * size_of::<f32>());
        for ((out, sums), maximum) in places.zip(blocks).zip(maxima) {
            let scale = shared_scale(f32::from_ne_bytes(*maximum));
            for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(sums.as_chunks().0) {
                *out = (f32::from(i16::from_le_bytes(*sum)) * scale).to_ne_bytes();
            }
        }
    }
}
