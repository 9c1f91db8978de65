//! Checksums of frames, on connections whose client asked for them.
//!
//! There a header has a tail of 4 bytes with a checksum of its own, so that nothing is done on
//! the word of a header that was damaged: neither are bytes waited for that will never come, nor
//! is a payload put where it does not belong. The header's last word is the payload's checksum.

use crate::frame::{FrameError, HEADER_BYTES, Header};

/// Bytes of a header on a connection with checksums.
pub const CHECKED_HEADER_BYTES: usize = HEADER_BYTES + 4;

/// Where the checksum of the payload is.
const PAYLOAD_AT: usize = HEADER_BYTES - 4;

/// The CRC-32C (Castagnoli) of some bytes; 0 of none.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

impl Header {
    /// The header's bytes on a connection with checksums, given that of the payload.
    #[must_use]
    pub fn encode_checked(&self, payload: u32) -> [u8; CHECKED_HEADER_BYTES] {
        let mut out = [0; CHECKED_HEADER_BYTES];
        out[..HEADER_BYTES].copy_from_slice(&self.encode());
        out[PAYLOAD_AT..HEADER_BYTES].copy_from_slice(&payload.to_le_bytes());
        let own = checksum(&out[..HEADER_BYTES]);
        out[HEADER_BYTES..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// Reads a header on a connection with checksums, and that of its payload.
    ///
    /// # Errors
    /// [`FrameError::CorruptHeader`], and those of [`decode`](Self::decode).
    pub fn decode_checked(bytes: &[u8; CHECKED_HEADER_BYTES]) -> Result<(Header, u32), FrameError> {
        let (header, own) = bytes.split_at(HEADER_BYTES);
        if checksum(header).to_le_bytes() != own {
            return Err(FrameError::CorruptHeader);
        }
        let mut plain = [0; HEADER_BYTES];
        plain[..PAYLOAD_AT].copy_from_slice(&header[..PAYLOAD_AT]);
        let mut payload = [0; 4];
        payload.copy_from_slice(&header[PAYLOAD_AT..]);
        Ok((Header::decode(&plain)?, u32::from_le_bytes(payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standards() {
        // RFC 3720, appendix B.4, and the check value of the catalogues of CRCs.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(b""), 0);
    }
}
