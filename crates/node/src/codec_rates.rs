//! How fast codecs are on this machine, measured once in a process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use sumpter_codec::{CodecError, Count, Scheme, Spec, Traffic, Trial, median_s};
use sumpter_plan::{Candidate, CodedTensor};
use sumpter_types::{CodecRates, Dtype, ReduceOp};

use crate::codecs::codecs;

/// Elements that a codec is tried on: with what it keeps of them they stay in a core's cache, and
/// one call is long beside what a clock takes.
const ELEMENTS: usize = 16 << 10;

/// How long each phase is repeated: a hundred times for the slowest codecs of the crate, and too
/// short to be noticed at the start of a job.
const PHASE_S: f64 = 0.001;

static MEASURED: Mutex<BTreeMap<String, CodecRates>> = Mutex::new(BTreeMap::new());

/// What one core of this machine encodes, decodes, and decodes and adds, on elements in its cache.
/// The first call for a codec takes a few milliseconds, others return what it found.
///
/// # Errors
/// If this process does not have the codec, or it fails.
pub fn codec_rates(spec: &Spec) -> Result<CodecRates, CodecError> {
    let name = spec.to_string();
    // Held while measuring: two measurements at once would disturb each other.
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(rates) = measured.get(&name) {
        return Ok(*rates);
    }
    let started = Instant::now();
    let mut clock = || started.elapsed().as_secs_f64();
    let rates = Trial::new(&codecs(), &sized(spec), ELEMENTS)?.rates(PHASE_S, &mut clock)?;
    measured.insert(name, rates);
    Ok(rates)
}

/// What deciding about a tensor needs to know of a codec: its bytes, and how fast it is here.
///
/// # Errors
/// As [`codec_rates`]; if the codec does not fit the tensor.
pub fn candidate(spec: &Spec, tensor: CodedTensor) -> Result<Candidate, CodecError> {
    let elements = tensor.bytes / tensor.dtype.size() as u64;
    let traffic = Traffic::of(&codecs(), spec, tensor.dtype, elements)?;
    Ok(Candidate {
        codec: spec.to_string(),
        contribution_bytes: traffic.contribution,
        answer_bytes: traffic.answer,
        encodes_sums: traffic.encodes_sums,
        decodes_sums: traffic.decodes_sums,
        rates: codec_rates(spec)?,
    })
}

/// Bytes of `float32` that one core of this machine adds in a second, in its cache; measured once.
pub fn addition_rate() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (mut acc, x) = (vec![0; 4 * ELEMENTS], vec![0; 4 * ELEMENTS]);
        let started = Instant::now();
        let mut clock = || started.elapsed().as_secs_f64();
        let Ok(seconds) = median_s(PHASE_S, &mut clock, &mut || {
            sumpter_sum::accumulate(ReduceOp::Sum, Dtype::F32, &mut acc, &x);
            Ok::<_, Infallible>(())
        });
        acc.len() as f64 / seconds
    })
}

/// A codec that keeps a number of a tensor's elements keeps at most those that it is tried on.
fn sized(spec: &Spec) -> Spec {
    let mut sized = spec.clone();
    if let Scheme::Topk { k: Count::Elements(k) } | Scheme::Randomk { k: Count::Elements(k), .. } =
        &mut sized.scheme
    {
        *k = (*k).min(ELEMENTS as u64);
    }
    sized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_has_rates_that_are_measured_once() {
        for name in codecs().names() {
            let text = match name {
                "topk" | "randomk" => format!("{name}:k=0.01"),
                name => name.to_owned(),
            };
            let spec: Spec = text.parse().unwrap();
            let rates = codec_rates(&spec).unwrap();
            for rate in [rates.encode, rates.decode, rates.add] {
                // A core is no faster than its cache, and no codec a thousand times slower.
                assert!((1e6..1e13).contains(&rate), "{name}: {rates:?}");
            }
            assert_eq!(codec_rates(&spec), Ok(rates), "{name}");
        }
    }

    #[test]
    fn a_candidate_has_the_bytes_of_its_tensor_and_the_rates_of_this_machine() {
        let spec: Spec = "int8:two_way=false".parse().unwrap();
        let tensor = CodedTensor { bytes: 8 << 10, dtype: Dtype::Bf16 };
        let candidate = candidate(&spec, tensor).unwrap();
        assert_eq!(candidate.codec, "int8:two_way=false");
        assert_eq!((candidate.contribution_bytes, candidate.answer_bytes), (4 * 1028, 8 << 10));
        assert_eq!((candidate.encodes_sums, candidate.decodes_sums), (false, false));
        assert_eq!(Ok(candidate.rates), codec_rates(&spec));
        let integers = CodedTensor { dtype: Dtype::I32, ..tensor };
        assert!(super::candidate(&spec, integers).is_err());
    }

    #[test]
    fn additions_have_a_rate_that_is_measured_once() {
        let rate = addition_rate();
        assert!((1e7..1e13).contains(&rate), "{rate}");
        assert_eq!(addition_rate(), rate);
    }

    #[test]
    fn a_number_of_elements_above_those_tried_keeps_them_all() {
        let spec: Spec = "topk:k=1000000".parse().unwrap();
        assert!(codec_rates(&spec).is_ok());
        assert_eq!(sized(&spec).to_string(), format!("topk:k={ELEMENTS}"));
        let part: Spec = "topk:k=0.25".parse().unwrap();
        assert_eq!(sized(&part), part);
    }

    #[test]
    fn a_codec_that_is_not_registered_is_refused() {
        let mut spec: Spec = "int8".parse().unwrap();
        let (name, arguments) = ("mine".to_owned(), BTreeMap::new());
        spec.scheme = Scheme::Custom { name, arguments };
        let error = codec_rates(&spec).unwrap_err();
        assert!(error.to_string().contains("mine"), "{error}");
    }
}
