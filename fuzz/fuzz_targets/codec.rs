//! Codecs: any bytes are decoded or refused, at every level alike; what is encoded is decoded; any
//! text is a codec or refused, and is written as it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sumpter_codec::{At, Codec, Next, Previous, Spec, blocks};
use sumpter_sum::InstructionSet;
use sumpter_types::Dtype;

const SPECS: [&str; 14] = [
    "fp16",
    "bf16",
    "int8",
    "int8:scale=shared",
    "fp8",
    "fp8:format=e5m2",
    "onebit",
    "topk:k=0.01",
    "topk:k=7",
    "randomk:k=0.1,scaling=true",
    "dithering:bits=2",
    "dithering:k=5,normalize=l2",
    "dithering:bits=8,partition=natural",
    "dithering:bits=4,nan=skip",
];

const MOST_ELEMENTS: usize = 2100;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        parse(text);
    }
    let [which, low, high, rest @ ..] = data else { return };
    let elements = usize::from(u16::from_le_bytes([*low, *high])) % MOST_ELEMENTS;
    let spec = SPECS[usize::from(*which) % SPECS.len()];
    let codec = Codec::new(&spec.parse().unwrap(), MOST_ELEMENTS as u64).unwrap();
    decode(&codec, elements, rest);
    encode(&codec, rest);
});

fn parse(text: &str) {
    if let Ok(spec) = text.parse::<Spec>() {
        assert_eq!(spec.to_string().parse::<Spec>().as_ref(), Ok(&spec));
        let _ = Codec::new(&spec, 1000);
    }
}

/// The first bytes of `data`, or all and zeros behind them.
fn filled(data: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = data[..data.len().min(len)].to_vec();
    bytes.resize(len, 0);
    bytes
}

fn maxima(codec: &Codec, data: &[u8], elements: usize) -> Vec<u8> {
    let shared = codec.spec().to_string().contains("shared");
    if shared { filled(data, 4 * blocks(elements)) } else { Vec::new() }
}

fn decode(codec: &Codec, elements: usize, data: &[u8]) {
    let mut out = vec![0; 4 * elements];
    let maxima = maxima(codec, data, elements);
    let at = At { maxima: &maxima, ..At::default() };
    let _ = codec.decode(at, data, (Dtype::F32, &mut out));
    let code = filled(data, codec.encoded_len(elements));
    let results = InstructionSet::supported().map(|set| {
        let codec = codec.clone().with_instruction_set(set);
        let decoded = codec.decode(at, &code, (Dtype::F32, &mut out));
        assert_eq!(codec.decode_add(at, &code, &mut out), decoded);
        decoded
    });
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|result| *result == results[0]));
}

fn encode(codec: &Codec, data: &[u8]) {
    let elements = (data.len() / 4).min(MOST_ELEMENTS);
    let x = &data[..4 * elements];
    let maxima = maxima(codec, data, elements);
    let at = At { maxima: &maxima, ..At::default() };
    let mut code = vec![0; codec.encoded_len(elements)];
    let mut left = vec![0; x.len()];
    let previous = Previous { residual: Some(x), ..Previous::default() };
    let next = Next { residual: Some(&mut left), velocity: None };
    codec.encode(at, (Dtype::F32, x), previous, next, &mut code).unwrap();
    codec.decode_add(at, &code, &mut left).unwrap();
}
