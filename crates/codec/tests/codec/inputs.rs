//! Codecs and elements to try them on.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_codec::{At, Codec, Key, Next, Previous};
use sumpter_sum::InstructionSet;
use sumpter_types::{Dtype, Rank, Round, TensorId};

/// Every codec of blocks, with every argument that changes what it does.
pub const SPECS: [&str; 24] = [
    "fp16",
    "bf16",
    "int8",
    "fp8",
    "fp8:format=e5m2",
    "onebit",
    "onebit:scaling=false",
    "topk:k=0.01",
    "topk:k=0.3",
    "topk:k=1",
    "topk:k=7",
    "randomk:k=0.02,seed=5",
    "randomk:k=0.3",
    "randomk:k=0.999,scaling=true",
    "randomk:k=7",
    "dithering:bits=2",
    "dithering:bits=4,seed=3",
    "dithering:bits=8,normalize=l2",
    "dithering:k=5,normalize=l2",
    "dithering:bits=2,partition=natural",
    "dithering:bits=4,partition=natural,normalize=l2",
    "dithering:bits=8,partition=natural",
    "dithering:k=3,partition=natural",
    "dithering:k=100",
];

pub const KEY: Key = Key { tensor: TensorId(3), round: Round(17), rank: Rank(2) };

/// Lengths at which loops, bytes of bits and blocks end.
const LENGTHS: [usize; 18] =
    [1, 2, 3, 7, 8, 9, 15, 17, 33, 255, 256, 257, 1000, 1023, 1024, 1025, 2049, 3100];

pub fn codec(spec: &str, elements: usize) -> Codec {
    Codec::new(&spec.parse().unwrap(), elements.max(8) as u64).unwrap()
}

pub fn at(block: u64) -> At<'static> {
    At { key: KEY, block, maxima: &[] }
}

pub fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()
}

pub fn encode(codec: &Codec, block: u64, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; codec.encoded_len(x.len())];
    let x = (Dtype::F32, &bytes(x)[..]);
    codec.encode(at(block), x, Previous::default(), Next::default(), &mut out).unwrap();
    out
}

pub fn decode(codec: &Codec, block: u64, code: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0xa5; 4 * elements];
    codec.decode(at(block), code, (Dtype::F32, &mut out)).unwrap();
    floats(&out)
}

pub fn decode_add(codec: &Codec, block: u64, code: &[u8], acc: &[f32]) -> Vec<f32> {
    let mut acc = bytes(acc);
    codec.decode_add(at(block), code, &mut acc).unwrap();
    floats(&acc)
}

/// The codec as compiled for each level of this processor.
pub fn levels(codec: &Codec) -> impl Iterator<Item = Codec> {
    InstructionSet::supported().map(|set| codec.clone().with_instruction_set(set))
}

/// Elements as gradients have them, and of any other kind.
pub fn elements() -> impl Strategy<Value = Vec<f32>> {
    select(&LENGTHS[..]).prop_flat_map(|len| {
        let any_bits = any::<u32>().prop_map(f32::from_bits);
        prop_oneof![
            finite(len),
            prop::collection::vec(prop_oneof![any_bits, select(special())], len),
            prop::collection::vec(prop_oneof![9 => -1.0..1.0_f32, 1 => select(special())], len),
        ]
    })
}

/// Elements without NaN and infinity.
pub fn finite(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let small = -120..120_i32;
    let gradients = (prop::collection::vec(-1.0..1.0_f32, len), small)
        .prop_map(|(x, exponent)| x.iter().map(|x| x * x * x * 2_f32.powi(exponent)).collect());
    let finite = special().into_iter().filter(|x| x.is_finite()).collect::<Vec<_>>();
    prop_oneof![
        4 => gradients,
        1 => select(finite.clone()).prop_map(move |x| vec![x; len]),
        1 => prop::collection::vec(select(finite), len),
        1 => prop::collection::vec(select(vec![0.0, -0.0, 1.0, -1.0, 2.0]), len),
    ]
}

pub fn finite_elements() -> impl Strategy<Value = Vec<f32>> {
    select(&LENGTHS[..]).prop_flat_map(finite)
}

fn special() -> Vec<f32> {
    let smallest = f32::from_bits(1);
    let positive = [
        0.0,
        smallest,
        f32::MIN_POSITIVE - smallest,
        f32::MIN_POSITIVE,
        1e-30,
        0.5,
        1.0,
        1.75,
        1.750_000_1,
        127.0,
        65504.0,
        65520.0,
        1e30,
        1.75 * 2_f32.powi(127),
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    positive.iter().flat_map(|x| [*x, -*x]).collect()
}

/// Equal bit for bit, or both NaN.
#[track_caller]
pub fn assert_same(result: &[f32], expected: &[f32], what: &str) {
    assert_eq!(result.len(), expected.len(), "{what}");
    for (i, (x, y)) in result.iter().zip(expected).enumerate() {
        let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(same, "{what}: element {i} is {x:e}, expected {y:e}");
    }
}
