//! A codec for one tensor: checks of lengths, and the choice of the loop.

use std::sync::Arc;

use sumpter_sum::InstructionSet;
use sumpter_types::{Dtype, ReduceOp};

use crate::block::{BLOCK, Blocks, Reason, blocks};
use crate::call::{At, Encoded, Next, Previous};
use crate::error::CodecError;
use crate::formats::{
    Custom, CustomCodec, Dithering, Fp8, Half, Int8, Kept, Onebit, Randomk, SharedInt8, Topk,
};
use crate::random::Key;
use crate::run::{Add, Decode, Encode, Maxima};
use crate::spec::{Count, Draws, NanPolicy, Scheme, Spec};

/// A codec for one tensor; cheap to clone.
#[derive(Clone, Debug)]
pub struct Codec {
    spec: Spec,
    set: InstructionSet,
    format: Format,
}

#[derive(Clone, Debug)]
enum Format {
    Half(Half),
    Int8(Int8),
    SharedInt8(SharedInt8),
    Fp8(Fp8),
    Onebit(Onebit),
    Topk(Topk),
    Randomk(Randomk),
    Dithering(Dithering),
    Custom(Custom),
}

/// The one place that chooses a format: once for a run of blocks.
macro_rules! with_format {
    ($codec:expr, $format:ident => $body:expr) => {
        match &$codec.format {
            Format::Half($format) => $body,
            Format::Int8($format) => $body,
            Format::SharedInt8($format) => $body,
            Format::Fp8($format) => $body,
            Format::Onebit($format) => $body,
            Format::Topk($format) => $body,
            Format::Randomk($format) => $body,
            Format::Dithering($format) => $body,
            Format::Custom($format) => $body,
        }
    };
}

impl Codec {
    /// A codec of this crate for a tensor of so many elements.
    ///
    /// # Errors
    /// If more elements would be kept than there are, the codec works on whole matrices, or it is a
    /// registered one: those are made by their [`Registry`](crate::Registry).
    pub fn new(spec: &Spec, elements: u64) -> Result<Codec, CodecError> {
        let kept = |count: Count| match count {
            Count::Ratio(ratio) => Ok(Kept::Ratio(ratio)),
            Count::Elements(kept) if (1..=elements).contains(&kept) => {
                Ok(Kept::Elements { kept, of: elements })
            }
            Count::Elements(kept) => Err(CodecError::Argument {
                codec: spec.scheme.name().to_owned(),
                key: "k".to_owned(),
                value: kept.to_string(),
                expected: format!("1 to {elements}, or a part as 0.01, to this tensor"),
            }),
        };
        let format = match spec.scheme {
            Scheme::Fp16 => Format::Half(Half(Dtype::F16)),
            Scheme::Bf16 => Format::Half(Half(Dtype::Bf16)),
            Scheme::Int8 { shared: false } => Format::Int8(Int8),
            Scheme::Int8 { shared: true } => Format::SharedInt8(SharedInt8),
            Scheme::Fp8 { format } => Format::Fp8(Fp8::new(format)),
            Scheme::Onebit { scaling } => Format::Onebit(Onebit { scaling }),
            Scheme::Topk { k } => Format::Topk(Topk(kept(k)?)),
            Scheme::Randomk { k, scaling, seed } => {
                Format::Randomk(Randomk { kept: kept(k)?, scaling, seed })
            }
            Scheme::Dithering { levels, partition, norm, seed } => {
                Format::Dithering(Dithering { levels, partition, norm, seed })
            }
            Scheme::PowerSgd { .. } => {
                return Err(CodecError::WholeMatrix { codec: spec.scheme.name().to_owned() });
            }
            Scheme::Custom { ref name, .. } => {
                let known = "a name that was registered".to_owned();
                return Err(CodecError::Unknown { name: name.clone(), known });
            }
        };
        Ok(Codec { spec: spec.clone(), set: InstructionSet::preferred(), format })
    }

    pub(crate) fn custom(spec: &Spec, codec: Arc<dyn CustomCodec>) -> Codec {
        let format = Format::Custom(Custom(codec));
        Codec { spec: spec.clone(), set: InstructionSet::preferred(), format }
    }

    /// The same codec at a level of processor features, to compare them.
    #[must_use]
    pub fn with_instruction_set(self, set: InstructionSet) -> Codec {
        Codec { set, ..self }
    }

    /// What the codec was made of.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The codec's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.spec.scheme.name()
    }

    /// Whether the server may add encoded contributions as they are: vectors of `f32`.
    #[must_use]
    pub fn sums_encoded(&self) -> bool {
        matches!(self.format, Format::Randomk(_))
    }

    /// Whether what a sum leaves out is added to the next one.
    #[must_use]
    pub fn feeds_back_sums(&self) -> bool {
        self.spec.sum_feedback && !self.sums_encoded()
    }

    /// The same codec for what has no past: without error feedback and momentum.
    #[must_use]
    pub fn without_memory(self) -> Codec {
        let spec = Spec { feedback: false, sum_feedback: false, momentum: None, ..self.spec };
        Codec { spec, ..self }
    }

    /// Bytes of so many elements, of which only the last block may be shorter than [`BLOCK`].
    #[must_use]
    pub fn encoded_len(&self, elements: usize) -> usize {
        let (whole, rest) = (elements / BLOCK, elements % BLOCK);
        with_format!(self, format => whole * format.len(BLOCK) + format.len(rest))
    }

    /// Encodes elements of `x.0`, a floating-point type, as many bytes as
    /// [`encoded_len`](Codec::encoded_len) says. `f64` is rounded to `f32` first.
    ///
    /// With `v` the momentum, `e` the residual, `m` its factor and `r` the factor of the residual:
    /// `v' = m * v + x`, `y = r * e + (x + m * v')`, and `e' = y - decode(encode(y))`. Neither
    /// momentum nor residual is ever a NaN or an infinity: where it would be, it is 0.
    ///
    /// # Errors
    /// If lengths do not fit each other, or the type is none of floats: nothing is written then. If
    /// a registered codec fails: blocks before that one have been written.
    pub fn encode(
        &self,
        at: At<'_>,
        x: (Dtype, &[u8]),
        previous: Previous<'_>,
        next: Next<'_>,
        out: &mut [u8],
    ) -> Result<Encoded, CodecError> {
        let at = self.drawing(at);
        let elements = self.check_input(at, x, previous)?;
        let kept = elements * size_of::<f32>();
        let pairs = [
            ("the next residual", next.residual.as_deref(), previous.residual),
            ("the next momentum", next.velocity.as_deref(), previous.velocity),
        ];
        for (what, next, before) in pairs {
            self.check(what, next.map_or(0, <[u8]>::len), before.map_or(0, |_| kept))?;
        }
        self.check("output", out.len(), self.encoded_len(elements))?;
        if let (Format::Half(half), true) = (&self.format, self.is_plain(previous)) {
            if x.0 == half.0 {
                out.copy_from_slice(x.1);
                return Ok(Encoded::default());
            }
            if x.0 == Dtype::F32 {
                self.set.narrow(half.0, out, x.1);
                return Ok(Encoded::default());
            }
        }
        let (set, skip) = (self.set, self.spec.nan == NanPolicy::Skip);
        let momentum = self.spec.momentum.unwrap_or(0.0);
        let skipped = with_format!(self, format => {
            set.run(Encode { format, set, at, x, previous, next, momentum, skip, out })
        });
        let failed = |(block, reason): (u64, Reason)| CodecError::Failed {
            codec: self.name().to_owned(),
            block,
            reason: reason.into_owned(),
        };
        Ok(Encoded { skipped: skipped.map_err(failed)? })
    }

    /// What random numbers are for that go on from an earlier job.
    fn drawing<'a>(&self, at: At<'a>) -> At<'a> {
        let Some(draws) = self.spec.draws else { return at };
        let Draws { tensor, round } = draws.after(at.key.round);
        At { key: Key { tensor, round, ..at.key }, ..at }
    }

    /// The largest magnitude of each block of what [`encode`](Codec::encode) would encode, as
    /// `f32` in the machine's order; a NaN if there is one.
    ///
    /// # Errors
    /// As [`encode`](Codec::encode).
    pub fn maxima(
        &self,
        x: (Dtype, &[u8]),
        previous: Previous<'_>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let elements = self.check_elements(x, previous)?;
        self.check("maxima", out.len(), blocks(elements) * size_of::<f32>())?;
        let (set, momentum) = (self.set, self.spec.momentum.unwrap_or(0.0));
        let skip = self.spec.nan == NanPolicy::Skip;
        set.run(Maxima { set, x, previous, momentum, skip, out });
        Ok(())
    }

    /// Decodes to elements of `out.0`, a floating-point type; 16-bit ones are rounded.
    ///
    /// # Errors
    /// If lengths do not fit each other, or the bytes are not what an encoder writes; `out` then
    /// holds whatever was decoded before.
    pub fn decode(
        &self,
        at: At<'_>,
        bytes: &[u8],
        out: (Dtype, &mut [u8]),
    ) -> Result<(), CodecError> {
        let at = self.drawing(at);
        let elements = self.elements(out.0, "output", out.1.len())?;
        self.check_encoded(at, bytes, elements)?;
        if let Format::Half(half) = &self.format {
            if out.0 == half.0 {
                out.1.copy_from_slice(bytes);
                return Ok(());
            }
            if out.0 == Dtype::F32 {
                self.set.widen(half.0, out.1, bytes);
                return Ok(());
            }
        }
        let set = self.set;
        let decoded = with_format!(self, format => {
            set.run(Decode { format, set, at, bytes, out })
        });
        decoded.map_err(|(block, reason)| self.malformed(block, reason))
    }

    /// Adds what `bytes` decode to, to accumulators of `f32`.
    ///
    /// # Errors
    /// As [`decode`](Codec::decode); blocks before the malformed one have been added then.
    pub fn decode_add(&self, at: At<'_>, bytes: &[u8], acc: &mut [u8]) -> Result<(), CodecError> {
        let at = self.drawing(at);
        let elements = self.elements(Dtype::F32, "accumulators", acc.len())?;
        self.check_encoded(at, bytes, elements)?;
        if let Format::Half(half) = &self.format {
            self.set.accumulate(ReduceOp::Sum, half.0, acc, bytes);
            return Ok(());
        }
        let set = self.set;
        let added = with_format!(self, format => set.run(Add { format, set, at, bytes, acc }));
        added.map_err(|(block, reason)| self.malformed(block, reason))
    }

    /// Whether elements are encoded as they are.
    fn is_plain(&self, previous: Previous<'_>) -> bool {
        let kept = previous.residual.is_some() || previous.velocity.is_some();
        self.spec.nan == NanPolicy::Pass && !kept
    }

    fn check_input(
        &self,
        at: At<'_>,
        x: (Dtype, &[u8]),
        previous: Previous<'_>,
    ) -> Result<usize, CodecError> {
        let elements = self.check_elements(x, previous)?;
        self.check_maxima(at, elements)?;
        Ok(elements)
    }

    fn check_elements(
        &self,
        x: (Dtype, &[u8]),
        previous: Previous<'_>,
    ) -> Result<usize, CodecError> {
        let elements = self.elements(x.0, "input", x.1.len())?;
        let kept = elements * size_of::<f32>();
        if let Some(residual) = previous.residual {
            self.check("residual", residual.len(), kept)?;
        }
        let needed = self.spec.momentum.map_or(0, |_| kept);
        self.check("momentum", previous.velocity.map_or(0, <[u8]>::len), needed)?;
        Ok(elements)
    }

    fn check_encoded(&self, at: At<'_>, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        self.check("code", bytes.len(), self.encoded_len(elements))?;
        self.check_maxima(at, elements)
    }

    fn check_maxima(&self, at: At<'_>, elements: usize) -> Result<(), CodecError> {
        let needed = match self.format {
            Format::SharedInt8(_) => blocks(elements) * size_of::<f32>(),
            _ => 0,
        };
        self.check("maxima", at.maxima.len(), needed)
    }

    fn elements(
        &self,
        dtype: Dtype,
        what: &'static str,
        bytes: usize,
    ) -> Result<usize, CodecError> {
        if !dtype.is_float() {
            let codec = self.name().to_owned();
            return Err(CodecError::Dtype { codec, dtype: dtype.name() });
        }
        let elements = bytes / dtype.size();
        self.check(what, bytes, elements * dtype.size())?;
        Ok(elements)
    }

    fn check(&self, what: &'static str, bytes: usize, expected: usize) -> Result<(), CodecError> {
        if bytes == expected {
            return Ok(());
        }
        Err(CodecError::Length { codec: self.name().to_owned(), what, bytes, expected })
    }

    fn malformed(&self, block: u64, reason: Reason) -> CodecError {
        let (codec, reason) = (self.name().to_owned(), reason.into_owned());
        CodecError::Malformed { codec, block, reason }
    }
}
