//! What a codec makes of gradients: bytes on the links, and the cores' time.

use sumpter_codec::{CodecError, Registry, Spec, Traffic};
use sumpter_types::{CodecRates, Dtype};

use crate::WhatifError;
use crate::error::within;

/// A codec of the runtime, and how fast it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Codec {
    spec: Spec,
    rates: CodecRates,
    cores: f64,
    least_bytes: u64,
}

/// What a byte of a gradient is on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coding {
    /// Bytes of a contribution on a link.
    pub contribution: f64,
    /// Bytes of an answer.
    pub answer: f64,
    /// What a worker takes to encode it.
    pub encode_s: f64,
    /// What a server takes to decode and add one contribution; none where it is plain, and then
    /// adding it takes what the profile says.
    pub add_s: Option<f64>,
    /// What a server takes to encode the answer.
    pub answer_s: f64,
    /// What a worker takes to decode it.
    pub decode_s: f64,
}

impl Coding {
    /// Without a codec.
    pub const PLAIN: Self = Self {
        contribution: 1.0,
        answer: 1.0,
        encode_s: 0.0,
        add_s: None,
        answer_s: 0.0,
        decode_s: 0.0,
    };

    /// The same bytes by a codec that takes no time.
    #[must_use]
    pub fn free(&self) -> Self {
        let add_s = self.add_s.map(|_| 0.0);
        Self { encode_s: 0.0, add_s, answer_s: 0.0, decode_s: 0.0, ..*self }
    }

    /// Whether a worker's cores have something to do.
    pub fn works(&self) -> bool {
        self.encode_s + self.decode_s > 0.0
    }
}

impl Codec {
    /// A codec as in `topk:k=0.01`, with its rates on one core and the cores of each machine that
    /// code. Tensors of fewer than `least_bytes` travel as they are.
    ///
    /// # Errors
    /// What is no codec of the runtime, rates or cores that are no positive numbers.
    pub fn new(
        codec: &str,
        rates: CodecRates,
        cores: f64,
        least_bytes: u64,
    ) -> Result<Self, WhatifError> {
        let spec = Registry::new().parse(codec).map_err(refused)?;
        for (field, value) in [
            ("codec rate, encode", rates.encode),
            ("codec rate, decode", rates.decode),
            ("codec rate, decode and add", rates.add),
        ] {
            let expected = "a number of bytes per second above 0";
            within(field, value, f64::MIN_POSITIVE..=f64::INFINITY, expected)?;
        }
        within("codec cores", cores, f64::MIN_POSITIVE..=f64::MAX, "a number above 0")?;
        Ok(Self { spec, rates, cores, least_bytes })
    }

    /// What becomes of a tensor.
    ///
    /// # Errors
    /// A tensor that the codec does not fit: fewer elements than it keeps.
    pub(crate) fn coding(&self, bytes: u64, dtype: Dtype) -> Result<Coding, WhatifError> {
        if bytes < self.least_bytes || !dtype.is_float() {
            return Ok(Coding::PLAIN);
        }
        let size = dtype.size() as u64;
        let elements = bytes / size;
        let traffic =
            Traffic::of(&Registry::new(), &self.spec, dtype, elements).map_err(refused)?;
        let each = |count: u64| count as f64 / bytes as f64;
        // Rates are of `float32`.
        let seconds = |rate: f64| 4.0 / size as f64 / (rate * self.cores);
        Ok(Coding {
            contribution: each(traffic.contribution),
            answer: each(traffic.answer),
            encode_s: seconds(self.rates.encode),
            add_s: Some(seconds(self.rates.add)),
            answer_s: if traffic.encodes_sums { seconds(self.rates.encode) } else { 0.0 },
            decode_s: if traffic.decodes_sums { seconds(self.rates.decode) } else { 0.0 },
        })
    }
}

fn refused(error: CodecError) -> WhatifError {
    WhatifError::Codec(error)
}
