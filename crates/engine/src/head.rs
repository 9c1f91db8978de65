//! The first bytes of a frame to send, and how many bytes are chosen ahead.

use arrayvec::ArrayVec;
use sumpter_wire::{BEGIN_BYTES, CHECKED_HEADER_BYTES, Header};

/// Once so many bytes have been chosen to be sent next on a connection, no more are: about what a
/// connection takes at once. Half of it makes shorter writes, which cost a tenth more processor
/// time over loopback (`docs/measurements/server.md`). Whatever is chosen is not overtaken any
/// more.
pub(crate) const AHEAD_BYTES: usize = 256 << 10;

/// A header and, in the frame that begins a partition, what follows it.
pub(crate) type Head = ArrayVec<u8, { CHECKED_HEADER_BYTES + BEGIN_BYTES }>;

/// A header's bytes; `payload` is the payload's checksum on a connection that carries them.
pub(crate) fn head(header: &Header, payload: Option<u32>) -> Head {
    let mut head = Head::new();
    match payload {
        Some(payload) => head.extend(header.encode_checked(payload)),
        None => head.extend(header.encode()),
    }
    head
}
