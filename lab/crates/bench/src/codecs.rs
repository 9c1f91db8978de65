//! Codecs on memory in cache: how long encoding, decoding and adding takes, beside a copy.

use std::time::Instant;

use sumpter_codec::{CodecError, Phase, Registry, Trial};

use crate::error::BenchError;

/// What a codec does to so many elements of `f32`.
pub struct CodecSample {
    /// Bytes that the elements become.
    pub encoded_bytes: usize,
    /// Seconds of one repeat of each phase, by round.
    pub rounds: Vec<CodecRound>,
    /// Over the norm of the elements, that of what decoding them misses.
    pub lost: f64,
}

/// Seconds of one repeat of each phase.
#[derive(Clone, Copy, Default)]
pub struct CodecRound {
    /// Encoding, without error feedback.
    pub encode_s: f64,
    /// Encoding with a residual, which is read and written.
    pub feedback_s: f64,
    /// Decoding to other memory.
    pub decode_s: f64,
    /// Adding to sums what is decoded; of codes that are added as they are, adding those.
    pub add_s: f64,
    /// Copying the elements.
    pub copy_s: f64,
}

/// How long a phase is repeated at least, for a clock's and a call's cost to vanish.
const TURN_S: f64 = 0.002;

/// Measures a codec on so many elements, which are distributed as those of gradients are: near
/// zero, with few large ones.
///
/// # Errors
/// If the codec does not fit so many elements, or it is not one of blocks or matrices.
pub fn codec(
    spec: &str,
    elements: usize,
    rounds: usize,
    stop: &mut dyn FnMut() -> bool,
) -> Result<CodecSample, BenchError> {
    let wrong = |error: CodecError| BenchError::Argument(error.to_string());
    let registry = Registry::new();
    let spec = registry.parse(spec).map_err(wrong)?;
    let mut trial = Trial::new(&registry, &spec, elements).map_err(wrong)?;
    let (from, mut to) = (vec![1_u8; 4 * elements], vec![0_u8; 4 * elements]);
    let mut samples = Vec::new();
    let mut repeats = [0; 5];
    for round in 0..=rounds {
        if stop() {
            return Err(BenchError::Interrupted);
        }
        let mut seconds = [0.0; 5];
        for (phase, seconds) in seconds.iter_mut().enumerate() {
            let mut run = || match phase {
                0 => trial.run(Phase::Encode),
                1 => trial.run(Phase::Feedback),
                2 => trial.run(Phase::Decode),
                3 => trial.run(Phase::Add),
                _ => {
                    std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
                    Ok(())
                }
            };
            // The first round only finds out how often to repeat.
            if round == 0 {
                repeats[phase] = calibrate(&mut run).map_err(wrong)?;
                continue;
            }
            *seconds = timed(repeats[phase], &mut run).map_err(wrong)? / repeats[phase] as f64;
        }
        let [encode_s, feedback_s, decode_s, add_s, copy_s] = seconds;
        if round > 0 {
            samples.push(CodecRound { encode_s, feedback_s, decode_s, add_s, copy_s });
        }
    }
    let lost = trial.lost().map_err(wrong)?;
    Ok(CodecSample { encoded_bytes: trial.encoded_bytes(), rounds: samples, lost })
}

fn timed(
    repeats: usize,
    run: &mut dyn FnMut() -> Result<(), CodecError>,
) -> Result<f64, CodecError> {
    let started = Instant::now();
    for _ in 0..repeats {
        run()?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn calibrate(run: &mut dyn FnMut() -> Result<(), CodecError>) -> Result<usize, CodecError> {
    let mut repeats = 1;
    loop {
        let seconds = timed(repeats, run)?;
        if seconds >= TURN_S {
            return Ok(repeats);
        }
        repeats *= 2;
    }
}
