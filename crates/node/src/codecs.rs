//! The codecs of this process, and which tensors they can compress.

use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use sumpter_codec::{BLOCK, CodecError, Factory, Registry, Spec};
use sumpter_engine::Coding;
use sumpter_types::{Collective, Rank, ReduceOp, TensorSpec};

static CODECS: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

/// The codecs that tensors of this process can be compressed by.
pub fn codecs() -> Registry {
    CODECS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds a codec, which may fail to encode, for the workers and lanes that begin after that.
///
/// # Errors
/// If the name is taken, or none.
pub fn register_codec(name: &str, factory: Factory) -> Result<(), CodecError> {
    let mut codecs = CODECS.write().unwrap_or_else(PoisonError::into_inner);
    codecs.register_one_way(name, factory)
}

/// The codec of a tensor, if it is compressed.
pub(crate) fn codec_of(spec: &TensorSpec) -> Result<Option<Spec>, CodecError> {
    let text = &spec.compression;
    (!text.is_empty()).then(|| codecs().parse(text)).transpose()
}

/// The bytes of a block that is encoded on its own, if a tensor is compressed.
pub(crate) fn block_bytes(spec: &TensorSpec) -> Option<u64> {
    (!spec.compression.is_empty()).then(|| (BLOCK * spec.dtype.size()) as u64)
}

/// A codec with its arguments in canonical order. What none of the codecs is, is left as it is.
pub(crate) fn canonical(text: String) -> String {
    match text.is_empty() {
        true => text,
        false => codecs().parse(&text).map_or(text, |spec| spec.to_string()),
    }
}

/// Whether a tensor can be compressed as it asks for.
///
/// # Errors
/// In words, with the tensor, this rank and the codec.
pub(crate) fn check(spec: &TensorSpec, rank: Rank) -> Result<(), String> {
    let (name, text) = (&spec.name, &spec.compression);
    let refused = |why: &dyn std::fmt::Display| format!("tensor '{name}', rank {rank}: {why}");
    let codec = match codec_of(spec) {
        Ok(None) => return Ok(()),
        Ok(Some(codec)) => codec,
        Err(error) => return Err(refused(&error)),
    };
    if !spec.dtype.is_float() {
        let (codec, dtype) = (codec.scheme.name().to_owned(), spec.dtype.name());
        return Err(refused(&CodecError::Dtype { codec, dtype }));
    }
    if spec.collective != Collective::AllReduce || spec.op != ReduceOp::Sum {
        let (collective, op) = (spec.collective.name(), spec.op.name());
        let what = match spec.collective.has_op() {
            true => format!("{collective} {op}"),
            false => collective.to_owned(),
        };
        return Err(refused(&format!(
            "codec {text} compresses sums of an all_reduce, not a {what}: leave this one \
             uncompressed"
        )));
    }
    if spec.sharded {
        return Err(refused(&format!(
            "codec {text} cannot compress what a device group reduces first: leave this one \
             uncompressed, or unset device_group"
        )));
    }
    let elements = spec.elements().unwrap_or(0);
    match Coding::new(&codecs(), &codec, elements, 0..elements) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(&error)),
    }
}

/// How these elements of a tensor are compressed, if they are: they begin with a block.
///
/// # Errors
/// As [`check`] and [`check_chunks`].
pub(crate) fn coding(
    spec: &TensorSpec,
    served: Range<u64>,
    chunk_bytes: u64,
    rank: Rank,
) -> Result<Option<Arc<Coding>>, String> {
    check(spec, rank)?;
    check_chunks(spec, chunk_bytes, rank)?;
    let (name, elements) = (&spec.name, spec.elements().unwrap_or(0));
    let made = codec_of(spec).and_then(|codec| {
        codec.map(|codec| Coding::new(&codecs(), &codec, elements, served)).transpose()
    });
    made.map(|coding| coding.map(Arc::new))
        .map_err(|error| format!("tensor '{name}', rank {rank}: {error}"))
}

/// Whether chunks of so many bytes cut no block of a tensor.
///
/// # Errors
/// In words, with the tensor, this rank and the codec.
pub(crate) fn check_chunks(spec: &TensorSpec, chunk_bytes: u64, rank: Rank) -> Result<(), String> {
    match block_bytes(spec) {
        Some(block) if !chunk_bytes.is_multiple_of(block) => Err(format!(
            "tensor '{}', rank {rank}: codec {} encodes blocks of {block} bytes, and chunk_bytes \
             is {chunk_bytes}: give a multiple of {block}",
            spec.name, spec.compression
        )),
        _ => Ok(()),
    }
}
