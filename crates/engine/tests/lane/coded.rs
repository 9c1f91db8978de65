//! What a lane makes of contributions that are encoded, and what it refuses of them.

use sumpter_codec::{At, Codec, Key};
use sumpter_wire::{CodecId, CodingSpec, codec_id};

use super::*;

const ELEMENTS: usize = 1500;

fn coded(text: &str) -> PartitionSpec {
    let bytes = 4 * ELEMENTS as u32;
    let coding =
        CodingSpec { codec: codec_id(text), elements: ELEMENTS as u64, block: 0, carrier: None };
    let spec = PartitionSpec { chunk_bytes: 4096, dtype: Dtype::F32, ..spec(bytes) };
    PartitionSpec { coding: Some(coding), ..spec }
}

/// A codec is announced.
fn announce(text: &str) -> Vec<u8> {
    announce_as(codec_id(text), text)
}

fn announce_as(CodecId(id): CodecId, text: &str) -> Vec<u8> {
    let header = Header { tensor: TensorId(id), ..header(FrameKind::Codec, text.len()) };
    [&header.encode()[..], text.as_bytes()].concat()
}

fn start(text: &str) -> Vec<u8> {
    [announce(text), begin(&coded(text))].concat()
}

fn lane() -> (Lane, [ConnId; 2]) {
    let limits = LaneLimits { max_job_bytes: 100_000, ..LIMITS };
    let mut lane = Lane::new(limits);
    let conns = [0, 1].map(|rank| lane.open(peer(rank)).expect("fits").0);
    (lane, conns)
}

/// Frames that a lane sends to a connection.
fn frames(lane: &mut Lane, conn: ConnId) -> Vec<(FrameKind, Vec<u8>)> {
    let (mut bytes, mut out) = (&drain(lane, conn)[..], Vec::new());
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Header { kind, length, .. } = Header::decode(head).unwrap();
        let (payload, rest) = rest.split_at(length as usize);
        out.push((kind, payload.to_vec()));
        bytes = rest;
    }
    out
}

#[test]
fn contributions_are_decoded_and_added_and_the_sum_is_encoded() {
    for (text, value) in [("int8", 63.5_f32), ("topk:k=0.5,two_way=false", 63.5), ("bf16", 63.5)] {
        let codec = Codec::new(&text.parse().unwrap(), ELEMENTS as u64).unwrap();
        let codec = codec.without_memory();
        let (mut lane, conns) = lane();
        for conn in conns {
            feed(&mut lane, conn, &start(text)).unwrap();
            for (chunk, elements) in [(0, 1024), (1, ELEMENTS - 1024)] {
                let x: Vec<u8> = (0..elements).flat_map(|_| value.to_ne_bytes()).collect();
                let mut code = vec![0; codec.encoded_len(elements)];
                let at = At { block: u64::from(chunk), ..At::default() };
                let (previous, next) = Default::default();
                codec.encode(at, (Dtype::F32, &x), previous, next, &mut code).unwrap();
                feed(&mut lane, conn, &push(chunk, &code)).unwrap();
            }
        }
        for conn in conns {
            let mut sum = Vec::new();
            for (block, (kind, payload)) in (0..).zip(frames(&mut lane, conn)) {
                assert_eq!(kind, FrameKind::Result);
                if !codec.spec().two_way {
                    sum.extend(payload);
                    continue;
                }
                let elements = if block == 0 { 1024 } else { ELEMENTS - 1024 };
                let at = At { key: Key::of_sum(TensorId(5), Round(0)), block, ..At::default() };
                let mut out = vec![0; 4 * elements];
                codec.decode(at, &payload, (Dtype::F32, &mut out)).unwrap();
                sum.extend(out);
            }
            let sum: Vec<f32> = sum.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect();
            assert_eq!(sum.len(), ELEMENTS);
            let kept = sum.iter().filter(|x| **x == 2.0 * value).count();
            let expected = if text.starts_with("topk") { 512 + 238 } else { ELEMENTS };
            assert_eq!(kept, expected, "{text}");
        }
        let counted = 2 * 4 * ELEMENTS as u64;
        assert_eq!(lane.stats().summed_bytes, counted, "as elements, whatever their code");
    }
}

#[test]
fn what_is_no_code_fails_the_tensor_on_all_ranks() {
    let (mut lane, [a, b]) = lane();
    feed(&mut lane, a, &start("onebit")).unwrap();
    feed(&mut lane, b, &start("onebit")).unwrap();
    // The scale of a block is not negative.
    let mut code = vec![0; 132];
    code[..4].copy_from_slice(&(-1.0_f32).to_le_bytes());
    feed(&mut lane, b, &push(0, &code)).unwrap();
    for conn in [a, b] {
        let said = frames(&mut lane, conn);
        let [(FrameKind::Error, reason)] = &said[..] else { panic!("{said:?}") };
        let reason = String::from_utf8_lossy(reason);
        assert!(reason.starts_with("rank 1: codec onebit: block 0 is malformed: "), "{reason}");
    }
    // What was on its way is read and dropped; the connection goes on with other tensors.
    feed(&mut lane, a, &push(0, &[0; 132])).unwrap();
    feed(&mut lane, b, &[push(1, &[0; 64]), of_tensor(6, 0, begin(&spec(3)))].concat()).unwrap();
}

#[test]
fn a_codec_that_the_lane_does_not_have_is_refused_by_name() {
    for (text, reason) in [
        ("zip", "a lane has no such codec: no codec is called 'zip': give one of fp16, bf16,"),
        ("topk:k=2000", "codec topk: k=2000: give 1 to 1500"),
        ("powersgd", "codec powersgd works on whole matrices"),
    ] {
        let (mut lane, [a, _]) = lane();
        feed(&mut lane, a, &start(text)).unwrap();
        let said = frames(&mut lane, a);
        let [(FrameKind::Error, found)] = &said[..] else { panic!("{said:?}") };
        assert!(String::from_utf8_lossy(found).starts_with(reason), "{said:?}");
    }
}

#[test]
fn ranks_that_encode_differently_are_told_so() {
    let (mut lane, [a, b]) = lane();
    feed(&mut lane, a, &start("int8")).unwrap();
    feed(&mut lane, b, &start("fp8")).unwrap();
    let said = frames(&mut lane, b);
    let [(FrameKind::Error, reason)] = &said[..] else { panic!("{said:?}") };
    assert!(String::from_utf8_lossy(reason).starts_with("rank 1 declared"), "{said:?}");
}

#[test]
fn hostile_codecs_and_codes_close_the_connection() {
    let refused = |bytes: &[u8]| {
        let (mut lane, [a, _]) = lane();
        refusal(feed(&mut lane, a, bytes))
    };
    let unknown = refused(&begin(&coded("int8")));
    assert!(unknown.contains("was not announced"), "{unknown}");
    let other = refused(&announce_as(codec_id("int8"), "fp8"));
    assert!(other.contains("is another"), "{other}");
    let whole = coded("int8");
    let within = PartitionSpec { chunk_bytes: 4092, ..whole };
    let beyond = CodingSpec { block: 1, ..whole.coding.unwrap() };
    let beyond = PartitionSpec { coding: Some(beyond), ..whole };
    let overflow = CodingSpec { block: u64::MAX, ..whole.coding.unwrap() };
    let overflow = PartitionSpec { coding: Some(overflow), ..whole };
    for spec in [within, beyond, overflow] {
        let text = refused(&[announce("int8"), begin(&spec)].concat());
        assert!(text.contains("no codec encodes"), "{text}");
    }
    let plain = refused(&[start("int8"), push(0, &[0; 4096])].concat());
    assert!(plain.contains("chunk 0 has 4096 bytes, expected 1028"), "{plain}");
    let many: Vec<u8> =
        (0..17_000).flat_map(|seed| announce(&format!("dithering:seed={seed}"))).collect();
    let many = refused(&many);
    assert!(many.contains("more than 16384 codecs"), "{many}");
    let integers = PartitionSpec { dtype: Dtype::I32, ..whole };
    let integers = refused(&[announce("int8"), begin(&integers)].concat());
    assert!(integers.contains("dtype"), "{integers}");
}
