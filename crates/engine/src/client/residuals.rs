//! What encoding has left out of this worker's contributions, for the next round (error feedback),
//! and the momentum of its gradients.
//!
//! A round is encoded from what the one before has left, as often as it must be, always to the same
//! bytes; what it leaves is kept apart until the round is over. It is noted when elements are first
//! sent: after a cut they may be sent once more while their result is already overwriting them.
//!
//! What a worker has left out of elements that it does not encode any more, since another worker of
//! its machine is their hub or they are not encoded at all, goes with its next contribution as it
//! is. With the first one that another codec encodes, which keeps nothing, it goes as well.

use std::ops::Range;

use foldhash::HashMap;
use sumpter_codec::{At, CodecError, Next, Previous};
use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, TensorId};

use crate::coding::Coding;
use crate::spans::Spans;

/// What a codec keeps of a tensor from round to round, as `f32`s of the elements that are summed
/// here; nothing stands for zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecMemory {
    /// What earlier rounds have left out, with error feedback.
    pub residual: Option<Vec<u8>>,
    /// The momentum.
    pub velocity: Option<Vec<u8>>,
}

/// Why what a codec keeps cannot be read or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecMemoryError {
    /// Wait: it belongs to no round then.
    #[error(
        "a round is under way: wait for it before you read or set what its codec keeps from round \
         to round"
    )]
    UnderWay,
    /// Correct the caller: it is of another tensor.
    #[error("its codec keeps a {what} of {expected} bytes (float32), and {bytes} were given")]
    Length {
        /// Of what.
        what: &'static str,
        /// Bytes that were given.
        bytes: usize,
        /// Bytes that it has.
        expected: usize,
    },
}

/// All residuals of a worker.
#[derive(Debug, Default)]
pub(super) struct Residuals {
    tensors: HashMap<TensorId, Kept>,
    /// Blocks that were left out since they were not finite: all, and of each tensor since that
    /// was asked for.
    skipped: u64,
    lately_skipped: HashMap<TensorId, u64>,
}

/// What is kept of a tensor from round to round.
#[derive(Debug)]
struct Kept {
    now: State,
    /// After the round under way, of the elements that were encoded, and that went as they are.
    next: State,
    encoded: Spans,
    flushed: Spans,
    /// Elements whose residual may not be zero.
    held: Spans,
}

impl Kept {
    fn new(coding: &Coding) -> Kept {
        let (now, next) = (State::zeros(coding), State::zeros(coding));
        let (encoded, flushed, held) = Default::default();
        Kept { now, next, encoded, flushed, held }
    }
}

/// The bytes of the `f32`s of elements.
fn kept_bytes(dtype: Dtype, origin: usize, len: usize) -> Range<usize> {
    let kept = |bytes: usize| bytes / dtype.size() * size_of::<f32>();
    kept(origin)..kept(origin) + kept(len)
}

/// In `f32`, for each element that is served here.
#[derive(Debug, Default)]
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

    /// What was kept before; zeros stand for what lacks, and what the codec does not keep is left.
    ///
    /// # Errors
    /// If it is of another length.
    fn of(coding: &Coding, memory: &CodecMemory) -> Result<State, CodecMemoryError> {
        let mut state = State::zeros(coding);
        let parts = [
            ("residual", &mut state.residual, &memory.residual),
            ("momentum", &mut state.velocity, &memory.velocity),
        ];
        for (what, part, given) in parts {
            let (Some(part), Some(given)) = (part, given) else { continue };
            let (bytes, expected) = (given.len(), part.len());
            if bytes != expected {
                return Err(CodecMemoryError::Length { what, bytes, expected });
            }
            part.copy_from_slice(given);
        }
        Ok(state)
    }

    /// Where what is encoded leaves the rest: `within` this state the first time, and then in
    /// `unused`.
    fn left_by<'a>(
        &'a mut self,
        within: Range<usize>,
        is_first: bool,
        unused: &'a mut State,
    ) -> Next<'a> {
        if is_first {
            let part = |part: &'a mut Option<AlignedBuf>| {
                part.as_mut().map(|part| &mut part[within.clone()])
            };
            return Next { residual: part(&mut self.residual), velocity: part(&mut self.velocity) };
        }
        let buffer =
            |part: &Option<AlignedBuf>| part.as_ref().map(|_| AlignedBuf::new(within.len()));
        *unused = State { residual: buffer(&self.residual), velocity: buffer(&self.velocity) };
        let State { residual, velocity } = unused;
        Next { residual: residual.as_deref_mut(), velocity: velocity.as_deref_mut() }
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
            let kept = self.tensors.entry(tensor).or_insert_with(|| Kept::new(coding));
            let within = kept_bytes(dtype, origin, elements.len());
            let is_first = !kept.encoded.contains(&within);
            kept.encoded.insert(within.clone());
            kept.flushed.remove(within.clone());
            let previous = Previous {
                residual: kept.now.residual.as_ref().map(|part| &part[within.clone()]),
                rescale,
                velocity: kept.now.velocity.as_ref().map(|part| &part[within.clone()]),
            };
            let mut unused = State::default();
            let next = kept.next.left_by(within, is_first, &mut unused);
            let mut encoded = codec.encode(at, x, previous, next, out)?;
            encoded.skipped *= usize::from(is_first);
            encoded
        } else if self.holds(tensor, dtype, origin, elements.len()) {
            // Another codec has left it out.
            let mut whole = AlignedBuf::new(elements.len());
            self.flush(Source { tensor, dtype, origin, elements, rescale }, &mut whole);
            codec.encode(at, (dtype, &whole), Previous::default(), Next::default(), out)?
        } else {
            codec.encode(at, x, Previous::default(), Next::default(), out)?
        };
        if encoded.skipped > 0 {
            self.skipped += encoded.skipped as u64;
            *self.lately_skipped.entry(tensor).or_default() += encoded.skipped as u64;
        }
        Ok(())
    }

    /// Whether earlier rounds have left something out of elements of a tensor.
    pub(super) fn holds(&self, tensor: TensorId, dtype: Dtype, origin: usize, len: usize) -> bool {
        let kept = self.tensors.get(&tensor);
        kept.is_some_and(|kept| kept.held.overlap(&kept_bytes(dtype, origin, len)) > 0)
    }

    /// Adds what earlier rounds have left out to elements that are sent as they are. Should they be
    /// encoded here again, their momentum begins anew: this one would be of rounds long past.
    pub(super) fn flush(
        &mut self,
        Source { tensor, dtype, origin, elements, rescale }: Source<'_>,
        out: &mut [u8],
    ) {
        let Some(kept) = self.tensors.get_mut(&tensor) else {
            return out.copy_from_slice(elements);
        };
        let within = kept_bytes(dtype, origin, elements.len());
        let is_first = !kept.flushed.contains(&within);
        kept.flushed.insert(within.clone());
        kept.encoded.remove(within.clone());
        let (now, mut unused) = (&kept.now.residual, State::default());
        let residual = now.as_ref().map(|part| &part[within.clone()]);
        let next = kept.next.left_by(within, is_first, &mut unused);
        if let Some(velocity) = next.velocity {
            velocity.fill(0);
        }
        match residual.zip(next.residual) {
            Some((residual, next)) => {
                sumpter_codec::add_residual((dtype, elements), (residual, rescale), next, out);
            }
            None => out.copy_from_slice(elements),
        }
    }

    /// Adds to what is left of elements what the code of their sum leaves out: `sum` decodes to
    /// `decoded`, both of `f32`. What is not finite is not kept.
    pub(super) fn carry(
        &mut self,
        coding: &Coding,
        (tensor, dtype, origin): (TensorId, Dtype, usize),
        sum: &[u8],
        decoded: &[u8],
    ) {
        let kept = self.tensors.entry(tensor).or_insert_with(|| Kept::new(coding));
        let Kept { now, next, encoded, flushed, .. } = kept;
        let (Some(now), Some(next)) = (&now.residual, &mut next.residual) else { return };
        let start = kept_bytes(dtype, origin, 0).start;
        let within = start..start + sum.len();
        let next = &mut next[within.clone()];
        if !encoded.contains(&within) {
            next.copy_from_slice(&now[within.clone()]);
            encoded.insert(within.clone());
            flushed.remove(within);
        }
        let pairs = sum.as_chunks().0.iter().zip(decoded.as_chunks().0);
        for (left, (sum, decoded)) in next.as_chunks_mut().0.iter_mut().zip(pairs) {
            let lost = f32::from_ne_bytes(*sum) - f32::from_ne_bytes(*decoded);
            let all = f32::from_ne_bytes(*left) + lost;
            *left = if all.is_finite() { all.to_ne_bytes() } else { *left };
        }
    }

    /// Elements of the round under way are summed anew in another epoch: what was encoded of them,
    /// or went as it is, counts no more.
    pub(super) fn begin_anew(&mut self, tensor: TensorId, dtype: Dtype, origin: usize, len: usize) {
        if let Some(kept) = self.tensors.get_mut(&tensor) {
            let within = kept_bytes(dtype, origin, len);
            kept.encoded.remove(within.clone());
            kept.flushed.remove(within);
        }
    }

    /// A round of a tensor is over: the next one begins with what it has left. Elements that were
    /// not contributed here keep what they had.
    pub(super) fn commit(&mut self, tensor: TensorId) {
        let Some(kept) = self.tensors.get_mut(&tensor) else { return };
        let Kept { now, next, encoded, flushed, held } = kept;
        let len = now.parts().next().map_or(0, |part| part.len());
        let mut untouched = Spans::whole(len);
        encoded.iter().chain(flushed.iter()).for_each(|span| untouched.remove(span));
        for (now, next) in now.parts().zip(next.parts()) {
            for Range { start, end } in untouched.iter() {
                next[start..end].copy_from_slice(&now[start..end]);
            }
        }
        std::mem::swap(now, next);
        encoded.iter().for_each(|span| held.insert(span));
        flushed.iter().for_each(|span| held.remove(span));
        (*encoded, *flushed) = Default::default();
    }

    /// What earlier rounds have left out of a tensor that is served here, in `f32`.
    pub(super) fn residual(&self, tensor: TensorId) -> Option<&[u8]> {
        self.tensors.get(&tensor)?.now.residual.as_deref()
    }

    /// What is kept of a tensor, between its rounds.
    pub(super) fn memory(&self, tensor: TensorId) -> CodecMemory {
        let Some(Kept { now, .. }) = self.tensors.get(&tensor) else {
            return CodecMemory::default();
        };
        let copy = |part: &Option<AlignedBuf>| part.as_ref().map(|part| part.to_vec());
        CodecMemory { residual: copy(&now.residual), velocity: copy(&now.velocity) }
    }

    /// This was kept of a tensor before its next round.
    ///
    /// # Errors
    /// If it is of another length; nothing has changed then.
    pub(super) fn set(
        &mut self,
        tensor: TensorId,
        coding: &Coding,
        memory: &CodecMemory,
    ) -> Result<(), CodecMemoryError> {
        let now = State::of(coding, memory)?;
        let held = now.residual.as_ref().map_or(0, |residual| residual.len());
        let held = Spans::whole(if memory.residual.is_some() { held } else { 0 });
        self.tensors.insert(tensor, Kept { now, held, ..Kept::new(coding) });
        Ok(())
    }

    /// Blocks that were left out since they were not finite.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Those of one tensor, since this was last called.
    pub(super) fn take_skipped(&mut self, tensor: TensorId) -> u64 {
        self.lately_skipped.remove(&tensor).unwrap_or_default()
    }

    /// A tensor has failed.
    pub(super) fn forget(&mut self, tensor: TensorId) {
        self.tensors.remove(&tensor);
    }
}

#[cfg(test)]
mod tests {
    use sumpter_codec::{Key, Registry};
    use sumpter_types::{Rank, Round};

    use super::*;

    const TENSOR: TensorId = TensorId(0);
    const LEN: usize = 16;

    fn bytes(values: [f32; LEN]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn source(dtype: Dtype, elements: &[u8]) -> Source<'_> {
        Source { tensor: TENSOR, dtype, origin: 0, elements, rescale: 1.0 }
    }

    /// A quarter of the elements of each round goes at once.
    fn coding(codec: &str) -> Coding {
        let elements = LEN as u64;
        Coding::new(&Registry::new(), &codec.parse().unwrap(), elements, 0..elements).unwrap()
    }

    fn encode(residuals: &mut Residuals, coding: &Coding, round: u32, elements: &[u8]) -> Vec<u8> {
        let key = Key { tensor: TENSOR, round: Round(round), rank: Rank(0) };
        let at = coding.coder().at(key, Dtype::F32, 0);
        let mut code = AlignedBuf::new(coding.coder().len(Dtype::F32, elements.len()));
        residuals.encode(coding, at, source(Dtype::F32, elements), &mut code).unwrap();
        code.to_vec()
    }

    /// What is left of `residuals` when the elements of a round, sent in this way, are sent again
    /// after a cut: as they are, or `overwritten` by what has come of their result.
    fn left(
        coding: &Coding,
        send: impl Fn(&mut Residuals, &[u8]) -> Vec<u8>,
        contribution: &[u8],
        overwritten: Option<&[u8]>,
    ) -> CodecMemory {
        let mut residuals = Residuals::default();
        encode(&mut residuals, coding, 0, &bytes(std::array::from_fn(|at| at as f32)));
        residuals.commit(TENSOR);
        let sent = send(&mut residuals, contribution);
        let again = send(&mut residuals, overwritten.unwrap_or(contribution));
        assert_eq!(again == sent, overwritten.is_none(), "always the same bytes");
        residuals.commit(TENSOR);
        residuals.memory(TENSOR)
    }

    #[test]
    fn momentum_begins_anew_where_elements_were_encoded_elsewhere_meanwhile() {
        for codec in ["topk:k=0.25,momentum=0.5", "int8:momentum=0.5,ef=false"] {
            let coding = coding(codec);
            let mut residuals = Residuals::default();
            let elements = bytes([1.0; LEN]);
            let first = encode(&mut residuals, &coding, 0, &elements);
            residuals.commit(TENSOR);
            let moving = encode(&mut residuals, &coding, 1, &elements);
            assert_ne!(moving, first, "{codec}: there is no momentum");
            residuals.commit(TENSOR);
            // Another hub has them now.
            residuals.flush(source(Dtype::F32, &elements), &mut bytes([0.0; LEN]));
            for _ in 0..3 {
                residuals.commit(TENSOR);
            }
            let kept = residuals.memory(TENSOR);
            assert_eq!(kept.velocity, Some(bytes([0.0; LEN])), "{codec}");
            assert_eq!(encode(&mut residuals, &coding, 6, &elements), first, "{codec}");
        }
    }

    #[test]
    fn what_is_sent_again_while_its_result_overwrites_it_leaves_what_it_left_first() {
        let coding = coding("topk:k=0.25,momentum=0.5");
        let encoded =
            |residuals: &mut Residuals, elements: &[u8]| encode(residuals, &coding, 1, elements);
        let (ours, others) = (bytes([1.0; LEN]), bytes([100.0; LEN]));
        let kept = left(&coding, encoded, &ours, None);
        assert!(kept.residual.is_some() && kept.velocity.is_some());
        assert_eq!(left(&coding, encoded, &ours, Some(&others)), kept);
        // As it is in fewer bits, which leaves what rounding takes.
        let narrow = |values: &[u8]| {
            let mut out = vec![0; LEN * Dtype::Bf16.size()];
            sumpter_sum::narrow(Dtype::Bf16, &mut out, values);
            out
        };
        let as_it_is = |residuals: &mut Residuals, elements: &[u8]| {
            let mut out = vec![0; elements.len()];
            residuals.flush(source(Dtype::Bf16, elements), &mut out);
            out
        };
        let (ours, others) = (narrow(&bytes([1024.0; LEN])), narrow(&others));
        let kept = left(&coding, as_it_is, &ours, None);
        assert_ne!(kept.residual, Some(bytes([0.0; LEN])));
        assert_eq!(left(&coding, as_it_is, &ours, Some(&others)), kept);
    }

    #[test]
    fn what_another_epoch_sums_anew_leaves_what_is_left_there() {
        let coding = coding("topk:k=0.25");
        let mut residuals = Residuals::default();
        encode(&mut residuals, &coding, 0, &bytes(std::array::from_fn(|at| at as f32)));
        residuals.begin_anew(TENSOR, Dtype::F32, 0, 4 * LEN);
        encode(&mut residuals, &coding, 0, &bytes([0.0; LEN]));
        residuals.commit(TENSOR);
        assert_eq!(residuals.memory(TENSOR).residual, Some(bytes([0.0; LEN])));
    }
}
