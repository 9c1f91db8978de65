//! Every decoder of the data plane: any bytes are decoded to what encodes back, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sumpter_types::Rule;
use sumpter_wire::{
    BEGIN_BYTES, Begin, CHECKED_HEADER_BYTES, FrameKind, HEADER_BYTES, Header, MAX_BEGIN_BYTES,
    Snapshot, checksum, decode_apply, decode_group, decode_norm, decode_order, encode_apply,
    encode_group, encode_norm, encode_order,
};

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::decode(bytes)
    {
        assert_eq!(header.encode(), *bytes);
    }
    if let Some(mut bytes) = data.first_chunk::<CHECKED_HEADER_BYTES>().copied() {
        // A fuzzer does not guess a checksum, so it is made right.
        let own = checksum(&bytes[..HEADER_BYTES]);
        bytes[HEADER_BYTES..].copy_from_slice(&own.to_le_bytes());
        if let Ok((header, payload)) = Header::decode_checked(&bytes) {
            assert_eq!(header.encode_checked(payload), bytes);
        }
    }
    for length in [BEGIN_BYTES, MAX_BEGIN_BYTES] {
        if let Some(bytes) = data.get(..length)
            && let Ok(begin) = Begin::decode(bytes)
        {
            assert_eq!(&begin.encode()[..], bytes);
            let spec = begin.spec;
            assert!(spec.chunks() >= 1 && spec.chunk_len(spec.chunks() - 1) >= 1);
            assert_eq!(spec.variable.is_some(), length == MAX_BEGIN_BYTES);
        }
    }
    if let Ok(order) = decode_order(FrameKind::Done, data) {
        assert_eq!(encode_order(&order), data);
    }
    if let Ok((snapshot, parts)) = Snapshot::decode(data) {
        assert_eq!([&snapshot.encode(), parts].concat(), data);
    }
    if let Ok(update) = decode_apply(Rule::Lion, data) {
        assert_eq!(&encode_apply(&update)[..], data);
    }
    if let Ok(squares) = decode_norm(data) {
        assert_eq!(decode_norm(&encode_norm(&squares)), Ok(squares.clone()));
        assert!(squares.to_f64() >= 0.0 || !squares.is_finite());
    }
    if let Ok(ranks) = decode_group(data) {
        assert_eq!(encode_group(&ranks), data);
    }
});
