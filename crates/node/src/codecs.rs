//! The codecs of this process, and which tensors they can compress.

use std::sync::{LazyLock, PoisonError, RwLock};

use sumpter_codec::{AUTO, BLOCK, CodecError, Draws, Factory, Registry, Selection};
use sumpter_engine::{CodecMemory, Coding};
use sumpter_types::{Collective, Rank, ReduceOp, TensorSpec};

static CODECS: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

/// What the codec of a tensor keeps from round to round, and where its random numbers go on, if it
/// draws any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecState {
    /// Residual and momentum.
    pub memory: CodecMemory,
    /// What the random numbers of the next round are for.
    pub draws: Option<Draws>,
}

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

/// How a tensor is compressed, if it is.
pub(crate) fn selection_of(spec: &TensorSpec) -> Result<Option<Selection>, CodecError> {
    let text = &spec.compression;
    (!text.is_empty()).then(|| codecs().select(text)).transpose()
}

/// The bytes of a block that is encoded on its own, if a tensor is compressed, or may be.
pub(crate) fn block_bytes(spec: &TensorSpec) -> Option<u64> {
    (!spec.compression.is_empty()).then(|| (BLOCK * spec.dtype.size()) as u64)
}

/// The codec of a tensor with its arguments in canonical order, and with what its random numbers
/// are for. What none of the codecs is, is left as it is.
pub(crate) fn canonical(name: &str, text: String) -> String {
    if text.is_empty() {
        return text;
    }
    let Ok(mut selection) = codecs().select(&text) else { return text };
    for spec in selection.specs_mut().iter_mut().filter(|spec| spec.scheme.draws()) {
        spec.draws = spec.draws.or(Some(Draws::of(name)));
    }
    selection.to_string()
}

/// Whether a tensor can be compressed as it asks for.
///
/// # Errors
/// In words, with the tensor, this rank and the codec.
pub(crate) fn check(spec: &TensorSpec, rank: Rank) -> Result<(), String> {
    let (name, text) = (&spec.name, &spec.compression);
    let refused = |why: &dyn std::fmt::Display| format!("tensor '{name}', rank {rank}: {why}");
    let selection = match selection_of(spec) {
        Ok(None) => return Ok(()),
        Ok(Some(selection)) => selection,
        Err(error) => return Err(refused(&error)),
    };
    if !spec.dtype.is_float() {
        let name = match &selection {
            Selection::Codec(codec) => codec.scheme.name(),
            Selection::Auto(_) => AUTO,
        };
        let (codec, dtype) = (name.to_owned(), spec.dtype.name());
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
    match selection {
        // Those that do not fit are not chosen.
        Selection::Auto(_) => Ok(()),
        Selection::Codec(codec) => {
            let made = Coding::new(&codecs(), &codec, elements, 0..elements);
            made.map(|_| ()).map_err(|error| refused(&error))
        }
    }
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
