//! How a tensor is compressed from one epoch to the next.

use std::ops::Range;
use std::sync::Arc;

use sumpter_codec::{Selection, Spec};
use sumpter_engine::Coding;
use sumpter_plan::CodedTensor;
use sumpter_types::{Rank, TensorSpec};

use crate::cluster::compression::Verdict;
use crate::codecs::{check, check_chunks, codecs, selection_of};

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
    /// The same for any tensor: without what random numbers are for.
    plain: Vec<Spec>,
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
                    let any = |spec: &Spec| Spec { draws: None, ..spec.clone() };
                    let plain = candidates.iter().map(any).collect();
                    let auto = Auto { candidates, plain, tensor, served, verdict: None };
                    TensorCoding { now: None, auto: Some(auto) }
                }
                Some(Selection::Codec(codec)) => {
                    let coding = Coding::new(&codecs(), &codec, elements, served)?;
                    TensorCoding { now: Some(Arc::new(coding)), auto: None }
                }
            })
        });
        made.map_err(|error| format!("tensor '{name}', rank {rank}: {error}"))
    }

    /// What there is to choose from, if that is chosen, for which tensor.
    pub(crate) fn choice(&self) -> Option<(CodedTensor, &[Spec])> {
        self.auto.as_ref().map(|auto| (auto.tensor, auto.plain.as_slice()))
    }

    /// What a residual can be kept by: the codec of this epoch, or of those to choose from the
    /// first that has one.
    pub(crate) fn keeper(&self) -> Option<Arc<Coding>> {
        self.now.clone().or_else(|| {
            let auto = self.auto.as_ref()?;
            let keeps = |spec: &&Spec| spec.feedback || spec.momentum.is_some();
            let spec = auto.candidates.iter().find(keeps)?;
            let elements = auto.tensor.bytes / auto.tensor.dtype.size() as u64;
            Coding::new(&codecs(), spec, elements, auto.served.clone()).map(Arc::new).ok()
        })
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
        let mut pairs = auto.plain.iter().zip(&auto.candidates);
        let spec = pairs.find(|(plain, _)| Some(plain.to_string().as_str()) == codec);
        let spec = spec.map(|(_, spec)| spec);
        let elements = auto.tensor.bytes / auto.tensor.dtype.size() as u64;
        self.now = spec.and_then(|spec| {
            Coding::new(&codecs(), spec, elements, auto.served.clone()).map(Arc::new).ok()
        });
        debug_assert_eq!(self.now.is_some(), codec.is_some(), "a codec that fits was chosen");
        auto.verdict = Some(verdict);
        is_other
    }
}
