//! The codecs of this process, and which tensors they can compress.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use sumpter_codec::{AUTO, BLOCK, CodecError, Registry, Selection, Spec};
use sumpter_engine::Coding;
use sumpter_plan::CodedTensor;
use sumpter_types::{Collective, Rank, ReduceOp, TensorSpec};

use crate::cluster::compression::Verdict;

/// The codecs that tensors of this process can be compressed by.
pub fn codecs() -> &'static Registry {
    static CODECS: LazyLock<Registry> = LazyLock::new(Registry::new);
    &CODECS
}

/// How a tensor is compressed, if it is.
fn selection_of(spec: &TensorSpec) -> Result<Option<Selection>, CodecError> {
    let text = &spec.compression;
    (!text.is_empty()).then(|| codecs().select(text)).transpose()
}

/// The bytes of a block that is encoded on its own, if a tensor is compressed, or may be.
pub(crate) fn block_bytes(spec: &TensorSpec) -> Option<u64> {
    (!spec.compression.is_empty()).then(|| (BLOCK * spec.dtype.size()) as u64)
}

/// A codec with its arguments in canonical order. What none of the codecs is, is left as it is.
pub(crate) fn canonical(text: String) -> String {
    match text.is_empty() {
        true => text,
        false => codecs().select(&text).map_or(text, |selection| selection.to_string()),
    }
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
            let made = Coding::new(codecs(), &codec, elements, 0..elements);
            made.map(|_| ()).map_err(|error| refused(&error))
        }
    }
}

/// How what is served here of a tensor is compressed.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorCoding {
    /// In this epoch, if it is.
    pub now: Option<Arc<Coding>>,
    /// If that is chosen for each epoch, from what.
    auto: Option<Auto>,
}

/// A choice of codecs.
#[derive(Clone, Debug)]
struct Auto {
    candidates: Vec<Spec>,
    /// The whole tensor: all event loops choose alike.
    tensor: CodedTensor,
    served: Range<u64>,
    /// The last one.
    verdict: Option<Verdict>,
}

impl TensorCoding {
    /// Of these elements of a tensor, which begin with a block.
    ///
    /// # Errors
    /// As [`check`] and [`check_chunks`].
    pub(crate) fn new(
        spec: &TensorSpec,
        served: Range<u64>,
        chunk_bytes: u64,
        rank: Rank,
    ) -> Result<TensorCoding, String> {
        check(spec, rank)?;
        check_chunks(spec, chunk_bytes, rank)?;
        let (name, elements) = (&spec.name, spec.elements().unwrap_or(0));
        let made = selection_of(spec).and_then(|selection| {
            Ok(match selection {
                None => TensorCoding::default(),
                Some(Selection::Auto(candidates)) => {
                    let bytes = elements * spec.dtype.size() as u64;
                    let tensor = CodedTensor { bytes, dtype: spec.dtype };
                    let auto = Auto { candidates, tensor, served, verdict: None };
                    TensorCoding { now: None, auto: Some(auto) }
                }
                Some(Selection::Codec(codec)) => {
                    let coding = Coding::new(codecs(), &codec, elements, served)?;
                    TensorCoding { now: Some(Arc::new(coding)), auto: None }
                }
            })
        });
        made.map_err(|error| format!("tensor '{name}', rank {rank}: {error}"))
    }

    /// What there is to choose from, if that is chosen, for which tensor.
    pub(crate) fn choice(&self) -> Option<(CodedTensor, &[Spec])> {
        self.auto.as_ref().map(|auto| (auto.tensor, auto.candidates.as_slice()))
    }

    /// What was chosen, and the tensor's bytes.
    pub(crate) fn verdict(&self) -> Option<(&Verdict, u64)> {
        let auto = self.auto.as_ref()?;
        auto.verdict.as_ref().map(|verdict| (verdict, auto.tensor.bytes))
    }

    /// From now on it is compressed as was chosen. Returns whether that is another codec, or none,
    /// instead of the last choice.
    pub(crate) fn choose(&mut self, verdict: Verdict) -> bool {
        let Some(auto) = &mut self.auto else { return false };
        let codec = verdict.codec();
        let is_other = auto.verdict.as_ref().is_some_and(|last| last.codec() != codec);
        let spec = auto.candidates.iter().find(|spec| Some(spec.to_string().as_str()) == codec);
        let elements = auto.tensor.bytes / auto.tensor.dtype.size() as u64;
        self.now = spec.and_then(|spec| {
            Coding::new(codecs(), spec, elements, auto.served.clone()).map(Arc::new).ok()
        });
        debug_assert_eq!(self.now.is_some(), codec.is_some(), "a codec that fits was chosen");
        auto.verdict = Some(verdict);
        is_other
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
