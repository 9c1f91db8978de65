//! How fast a codec is.

/// Bytes of `float32` elements that one core handles in a second. Elements of another type take as
/// long as so many of `float32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecRates {
    /// Encoding, with the residual and the momentum that the codec's arguments ask for.
    pub encode: f64,
    /// Decoding to other memory.
    pub decode: f64,
    /// Decoding and adding to a sum; of codes that are added as they are, adding those.
    pub add: f64,
}

impl CodecRates {
    /// A codec that takes no time.
    pub const FREE: Self =
        Self { encode: f64::INFINITY, decode: f64::INFINITY, add: f64::INFINITY };
}
