//! How the contributions to a partition are compressed, in a `Begin` frame.

use std::fmt;

use sumpter_types::Rank;

/// Bytes of a [`CodingSpec`], which may follow a partition's spec.
pub const CODING_BYTES: usize = 24;

/// The longest text that says what a codec is, in bytes.
pub const MAX_CODEC_BYTES: usize = 1024;

/// Names a codec with its arguments on a connection: a hash of its canonical text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodecId(pub u32);

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// What a lane must know to decode the contributions to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodingSpec {
    /// The codec, announced before on the connection.
    pub codec: CodecId,
    /// Elements of the whole tensor.
    pub elements: u64,
    /// The number of the partition's first block in it.
    pub block: u64,
    /// The worker that gets the sum itself, or all codes that are in it, and keeps what its code
    /// leaves out; the others get the code once this worker has the sum.
    pub carrier: Option<Rank>,
}

/// The id of a codec: an FNV-1a hash of its canonical text, so that all agree without asking. A
/// lane refuses two codecs of one id.
#[must_use]
pub fn codec_id(text: &str) -> CodecId {
    CodecId(text.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)))
}
