//! What encoding has left out of this worker's contributions, for the next round (error feedback),
//! and the momentum of its gradients.
//!
//! A round is encoded from what the one before has left, as often as it must be, always to the same
//! bytes; what it leaves is kept apart until the round is over.

use std::ops::Range;

use foldhash::HashMap;
use sumpter_codec::{At, CodecError, Next, Previous};
use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, TensorId};

use crate::coding::Coding;
use crate::spans::Spans;

/// All residuals of a worker.
#[derive(Debug, Default)]
pub(super) struct Residuals {
    tensors: HashMap<TensorId, Kept>,
    /// Blocks that were left out since they were not finite.
    skipped: u64,
}

/// What is kept of a tensor from round to round.
#[derive(Debug)]
struct Kept {
    now: State,
    /// After the round under way, of the elements in `written`.
    next: State,
    written: Spans,
}

/// In `f32`, for each element that is served here.
#[derive(Debug)]
struct State {
    residual: Option<AlignedBuf>,
    velocity: Option<AlignedBuf>,
}

impl State {
    fn zeros(coding: &Coding) -> State {
        let spec = coding.codec().spec();
        let zeros = || AlignedBuf::new(coding.served_len() * size_of::<f32>());
        State { residual: spec.feedback.then(zeros), velocity: spec.momentum.map(|_| zeros()) }
    }

    fn parts(&mut self) -> impl Iterator<Item = &mut AlignedBuf> {
        self.residual.iter_mut().chain(&mut self.velocity)
    }
}

/// What is encoded: elements of a contribution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub tensor: TensorId,
    pub dtype: Dtype,
    /// First byte in the tensor.
    pub origin: usize,
    pub elements: &'a [u8],
    /// What residuals are multiplied by.
    pub rescale: f32,
}

impl Residuals {
    /// Encodes elements of the round under way.
    ///
    /// # Errors
    /// If the codec does not encode such elements.
    pub(super) fn encode(
        &mut self,
        coding: &Coding,
        at: At<'_>,
        Source { tensor, dtype, origin, elements, rescale }: Source<'_>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let codec = coding.codec();
        let remembers = codec.spec().feedback || codec.spec().momentum.is_some();
        let x = (dtype, elements);
        let encoded = if remembers {
            let kept = self.tensors.entry(tensor);
            let kept = kept.or_insert_with(|| {
                let (now, next) = (State::zeros(coding), State::zeros(coding));
                Kept { now, next, written: Spans::default() }
            });
            let kept_bytes = |bytes: usize| bytes / dtype.size() * size_of::<f32>();
            let (start, len) = (kept_bytes(origin), kept_bytes(elements.len()));
            let within = start..start + len;
            kept.written.insert(within.clone());
            let previous = Previous {
                residual: kept.now.residual.as_ref().map(|part| &part[within.clone()]),
                rescale,
                velocity: kept.now.velocity.as_ref().map(|part| &part[within.clone()]),
            };
            let next = Next {
                residual: kept.next.residual.as_mut().map(|part| &mut part[within.clone()]),
                velocity: kept.next.velocity.as_mut().map(|part| &mut part[within.clone()]),
            };
            codec.encode(at, x, previous, next, out)?
        } else {
            codec.encode(at, x, Previous::default(), Next::default(), out)?
        };
        self.skipped += encoded.skipped as u64;
        Ok(())
    }

    /// A round of a tensor is over: the next one begins with what it has left. Elements that were
    /// not encoded here keep what they had.
    pub(super) fn commit(&mut self, tensor: TensorId) {
        let Some(Kept { now, next, written }) = self.tensors.get_mut(&tensor) else { return };
        let len = now.parts().next().map_or(0, |part| part.len());
        let mut unwritten: Spans = [0..len].into_iter().collect();
        written.iter().for_each(|span| unwritten.remove(span));
        for (now, next) in now.parts().zip(next.parts()) {
            for Range { start, end } in unwritten.iter() {
                next[start..end].copy_from_slice(&now[start..end]);
            }
        }
        std::mem::swap(now, next);
        *written = Spans::default();
    }

    /// What earlier rounds have left out of a tensor that is served here, in `f32`.
    pub(super) fn residual(&self, tensor: TensorId) -> Option<&[u8]> {
        self.tensors.get(&tensor)?.now.residual.as_deref()
    }

    /// Blocks that were left out since they were not finite.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A tensor has failed.
    pub(super) fn forget(&mut self, tensor: TensorId) {
        self.tensors.remove(&tensor);
    }
}
