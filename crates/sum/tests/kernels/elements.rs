//! Elements to try the kernels on, where they lie, and when two results count as the same.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_sum::{AlignedBuf, InstructionSet};
use sumpter_types::Dtype;

use crate::reference;

/// Accumulators and a contribution of the same number of elements, and how far from an aligned
/// address each begins.
#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: Dtype,
    pub acc: Vec<u8>,
    pub x: Vec<u8>,
    pub acc_offset: usize,
    pub x_offset: usize,
}

/// Cases of any of `dtypes`, with up to a few tiles of elements.
pub fn case(dtypes: &'static [Dtype]) -> impl Strategy<Value = Case> {
    (select(dtypes), 0..300_usize, 0..9_usize, 0..9_usize).prop_flat_map(
        |(dtype, count, acc_offset, x_offset)| {
            (elements(dtype.accumulator(), count), elements(dtype, count))
                .prop_map(move |(acc, x)| Case { dtype, acc, x, acc_offset, x_offset })
        },
    )
}

/// Half of the elements are anything at all, the other half the values that kernels get wrong.
fn elements(dtype: Dtype, count: usize) -> impl Strategy<Value = Vec<u8>> {
    let element = prop_oneof![any::<u64>(), select(special(dtype))];
    prop::collection::vec(element, count).prop_map(move |elements| {
        elements.into_iter().flat_map(|bits| truncated(dtype, bits)).collect()
    })
}

/// The low bytes of `bits`, as many as an element has.
fn truncated(dtype: Dtype, bits: u64) -> Vec<u8> {
    match dtype.size() {
        1 => (bits as u8).to_ne_bytes().to_vec(),
        2 => (bits as u16).to_ne_bytes().to_vec(),
        4 => (bits as u32).to_ne_bytes().to_vec(),
        _ => bits.to_ne_bytes().to_vec(),
    }
}

fn special(dtype: Dtype) -> Vec<u64> {
    let positive: Vec<u64> = match dtype {
        Dtype::F16 => special_float(5, 10),
        Dtype::Bf16 => special_float(8, 7),
        // Of f32 also what lies at the edges of binary16: 65504, 65520 and around, 2^-14, 2^-24
        // and its half; and ties of both 16-bit formats.
        Dtype::F32 => {
            let edges = [65504.0, 65519.996, 65520.0, 65536.0, 6.103_515_6e-5, 5.96e-8, 2.98e-8];
            let ties = [11, 8]
                .map(|bits| 2_f32.powi(-bits))
                .into_iter()
                .flat_map(|half| [1.0 + half, 1.0 + 3.0 * half]);
            let edges = edges.into_iter().chain(ties).map(|x: f32| u64::from(x.to_bits()));
            special_float(8, 23).into_iter().chain(edges).collect()
        }
        Dtype::F64 => special_float(11, 52),
        Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::I64 => {
            let smallest = 1 << (8 * dtype.size() - 1);
            vec![0, 1, 2, smallest, smallest - 1, smallest + 1, u64::MAX]
        }
    };
    let sign = 1 << (8 * dtype.size() - 1);
    positive.iter().copied().chain(positive.iter().map(|bits| bits ^ sign)).collect()
}

fn special_float(exponent_bits: u32, mantissa_bits: u32) -> Vec<u64> {
    let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    let one = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits;
    let smallest_normal = 1 << mantissa_bits;
    let quiet_nan = infinity | (1 << (mantissa_bits - 1));
    let (zero, smallest, largest, signaling_nan) = (0, 1, infinity - 1, infinity + 1);
    vec![
        zero,
        smallest,
        smallest_normal - 1,
        smallest_normal,
        one,
        one + 1,
        largest,
        infinity,
        signaling_nan,
        quiet_nan,
    ]
}

/// Bytes at a chosen distance from an aligned address, between guards.
pub struct Placed {
    memory: AlignedBuf,
    bytes: Range<usize>,
}

const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;

impl Placed {
    pub fn new(bytes: &[u8], offset: usize) -> Placed {
        let start = GUARD_BYTES + offset;
        let mut memory = AlignedBuf::new(start + bytes.len() + GUARD_BYTES);
        memory.fill(GUARD);
        memory[start..][..bytes.len()].copy_from_slice(bytes);
        Placed { memory, bytes: start..start + bytes.len() }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.memory[self.bytes.clone()]
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.bytes.clone()]
    }

    /// The bytes, after a look that nothing around them was written.
    pub fn unguarded(&self) -> &[u8] {
        let around = self.memory[..self.bytes.start].iter().chain(&self.memory[self.bytes.end..]);
        assert!(around.copied().all(|byte| byte == GUARD), "bytes around the buffer were written");
        self.as_bytes()
    }
}

/// Every level that this processor has.
pub fn levels() -> impl Iterator<Item = InstructionSet> {
    InstructionSet::supported()
}

/// Equal bit for bit, or both NaN.
#[track_caller]
pub fn assert_same(dtype: Dtype, result: &[u8], expected: &[u8], level: InstructionSet) {
    assert_eq!(result.len(), expected.len(), "lengths at {level:?}");
    let pairs = result.chunks(dtype.size()).zip(expected.chunks(dtype.size()));
    for (i, (result, expected)) in pairs.enumerate() {
        let same = result == expected
            || (reference::is_nan(dtype, result) && reference::is_nan(dtype, expected));
        assert!(same, "element {i} at {level:?}: {result:02x?}, expected {expected:02x?}");
    }
}
