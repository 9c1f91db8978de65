//! What goes wrong, with the codec's name and what to do.

/// Why a codec cannot be had, or cannot read or write something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Reconfigure: there is no such codec.
    #[error("no codec is called '{name}': give one of {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// All names.
        known: String,
    },
    /// Reconfigure: the codec does not take this argument.
    #[error("codec {codec} takes no argument '{key}': give {known}")]
    UnknownArgument {
        /// The codec.
        codec: String,
        /// The argument's name.
        key: String,
        /// What the codec takes.
        known: String,
    },
    /// Reconfigure: an argument's value is out of range.
    #[error("codec {codec}: {key}={value}: give {expected}")]
    Argument {
        /// The codec.
        codec: String,
        /// The argument's name.
        key: String,
        /// Its value.
        value: String,
        /// What it could be.
        expected: String,
    },
    /// Reconfigure: only floating-point tensors can be compressed.
    #[error(
        "codec {codec} compresses floating-point tensors, not {dtype}: leave this one uncompressed"
    )]
    Dtype {
        /// The codec.
        codec: String,
        /// The tensor's element type.
        dtype: &'static str,
    },
    /// Reconfigure: the codec works on matrices, not on blocks.
    #[error("codec {codec} works on whole matrices: leave tensors of one dimension uncompressed")]
    WholeMatrix {
        /// The codec.
        codec: String,
    },
    /// Reconfigure: the codec is not one for what was asked.
    #[error("codec {codec} cannot be used here: {reason}")]
    Unsupported {
        /// The codec.
        codec: String,
        /// Why not.
        reason: String,
    },
    /// Correct the caller: lengths do not fit each other.
    #[error("codec {codec}: {bytes} bytes of {what} instead of {expected}")]
    Length {
        /// The codec.
        codec: String,
        /// What is too long or too short.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it should be.
        expected: usize,
    },
    /// Correct the codec: a registered one could not encode.
    #[error("codec {codec}: block {block} cannot be encoded: {reason}")]
    Failed {
        /// The codec.
        codec: String,
        /// The block's number in the tensor.
        block: u64,
        /// What it says.
        reason: String,
    },
    /// Close the connection: a peer sent what no encoder writes.
    #[error("codec {codec}: block {block} is malformed: {reason}")]
    Malformed {
        /// The codec.
        codec: String,
        /// The block's number in the tensor.
        block: u64,
        /// What is wrong with it.
        reason: String,
    },
}
