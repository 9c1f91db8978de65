//! Codecs of users.

use std::sync::Arc;

use sumpter_codec::{
    Arguments, Codec, CodecError, CustomCodec, Key, Next, Previous, Registry, Scheme,
};
use sumpter_types::Dtype;

use crate::inputs::{at, bytes, decode, decode_add, encode, floats};

/// The upper bytes of each element, as many as the argument says.
#[derive(Debug)]
struct Truncated {
    bytes: usize,
}

impl CustomCodec for Truncated {
    fn block_len(&self, elements: usize) -> usize {
        self.bytes * elements
    }

    fn encode(&self, _: Key, _: u64, x: &[f32], out: &mut [u8]) -> Result<(), String> {
        if x.first() == Some(&-1.0) {
            return Err("it begins with -1".to_owned());
        }
        for (out, x) in out.chunks_mut(self.bytes).zip(x) {
            out.copy_from_slice(&x.to_be_bytes()[..self.bytes]);
        }
        Ok(())
    }

    fn decode(&self, _: Key, _: u64, code: &[u8], out: &mut [f32]) -> Result<(), String> {
        for (out, code) in out.iter_mut().zip(code.chunks(self.bytes)) {
            let mut whole = [0; 4];
            whole[..self.bytes].copy_from_slice(code);
            *out = f32::from_be_bytes(whole);
            if out.is_nan() {
                return Err("an element is no number".to_owned());
            }
        }
        Ok(())
    }
}

fn truncated(arguments: &Arguments) -> Result<Arc<dyn CustomCodec>, CodecError> {
    if let Some(key) = arguments.keys().find(|key| *key != "bytes") {
        let (codec, known) = ("truncated".to_owned(), "bytes".to_owned());
        return Err(CodecError::UnknownArgument { codec, key: key.clone(), known });
    }
    let bytes = arguments.get("bytes").map_or(Some(2), |bytes| bytes.parse().ok());
    Ok(Arc::new(Truncated { bytes: bytes.filter(|bytes| (1..=4).contains(bytes)).unwrap_or(2) }))
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.register("truncated", Arc::new(truncated)).unwrap();
    registry
}

fn codec(text: &str) -> Codec {
    registry().codec(&registry().parse(text).unwrap(), 2000).unwrap()
}

#[test]
fn a_registered_codec_encodes_adds_and_keeps_what_is_left() {
    let codec = codec("truncated:bytes=2,momentum=0.5");
    assert_eq!(codec.name(), "truncated");
    assert_eq!(codec.encoded_len(2000), 4000);
    let x: Vec<f32> = (0..2000).map(|i| i as f32 / 7.0).collect();
    let (zeros, mut left, mut moved) = (vec![0; 8000], vec![0; 8000], vec![0; 8000]);
    let mut code = vec![0; 4000];
    let previous =
        Previous { residual: Some(&zeros), velocity: Some(&zeros), ..Previous::default() };
    let next = Next { residual: Some(&mut left), velocity: Some(&mut moved) };
    codec.encode(at(0), (Dtype::F32, &bytes(&x)), previous, next, &mut code).unwrap();
    let decoded = decode(&codec, 0, &code, 2000);
    for (i, left) in floats(&left).into_iter().enumerate() {
        let whole = x[i] + 0.5 * x[i];
        assert_eq!(decoded[i], f32::from_bits(whole.to_bits() & 0xffff_0000));
        assert_eq!(left, whole - decoded[i]);
    }
    let sums = decode_add(&codec, 0, &code, &vec![1.0; 2000]);
    assert!(sums.iter().zip(&decoded).all(|(sum, x)| *sum == 1.0 + x));
}

#[test]
fn what_a_registered_codec_refuses_is_an_error_with_its_name() {
    let codec = codec("truncated");
    let mut code = encode(&codec, 0, &vec![1.0; 2000]);
    code[3000..3002].fill(0xff);
    let error = codec.decode(at(4), &code, (Dtype::F32, &mut vec![0; 8000])).unwrap_err();
    let expected = "codec truncated: block 5 is malformed: an element is no number";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn specs_of_registered_codecs_are_read_and_written() {
    let registry = registry();
    let spec = registry.parse("truncated:bytes=3,nan=skip").unwrap();
    assert_eq!(spec.to_string(), "truncated:bytes=3,nan=skip");
    assert_eq!(registry.parse(&spec.to_string()).unwrap(), spec);
    assert!(matches!(&spec.scheme, Scheme::Custom { arguments, .. } if arguments.len() == 1));
    assert_eq!(registry.parse("int8").unwrap(), "int8".parse().unwrap());
    let error = registry.parse("truncated:bits=3").unwrap_err().to_string();
    assert_eq!(error, "codec truncated takes no argument 'bits': give bytes");
    let error = registry.parse("gzip").unwrap_err().to_string();
    assert!(error.ends_with("dithering, powersgd, truncated"), "{error}");
    assert!(Codec::new(&spec, 100).unwrap_err().to_string().contains("'truncated'"));
}

#[test]
fn names_are_registered_once() {
    let mut registry = registry();
    for name in ["truncated", "int8", "", "A", "a:b"] {
        assert!(registry.register(name, Arc::new(truncated)).is_err(), "'{name}'");
    }
    assert!(registry.register("other_1", Arc::new(truncated)).is_ok());
}

#[test]
fn a_registered_codec_that_cannot_encode_says_so() {
    let mut x = vec![1.0; 2000];
    x[1024] = -1.0;
    let (x, mut code) = (bytes(&x), vec![0; 4000]);
    let (previous, next) = (Previous::default(), Next::default());
    let failed = codec("truncated").encode(at(4), (Dtype::F32, &x), previous, next, &mut code);
    let expected = "codec truncated: block 5 cannot be encoded: it begins with -1";
    assert_eq!(failed.unwrap_err().to_string(), expected);
}

#[test]
fn sums_of_a_codec_that_may_fail_are_sent_as_they_are() {
    let mut registry = Registry::new();
    registry.register_one_way("truncated", Arc::new(truncated)).unwrap();
    let spec = registry.parse("truncated:ef=false").unwrap();
    assert!(!spec.two_way);
    assert_eq!(registry.parse(&spec.to_string()).unwrap(), spec);
    for asked in ["two_way=true", "two_way = true", "sum_ef=true"] {
        let error = registry.parse(&format!("truncated:{asked}")).unwrap_err().to_string();
        let expected = "codec truncated cannot be used here: its sums come back as they are: leave \
                        out two_way and sum_ef";
        assert_eq!(error, expected);
    }
}
