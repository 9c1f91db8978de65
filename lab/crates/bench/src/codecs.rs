//! Codecs on memory in cache: how long encoding, decoding and adding takes, beside a copy.

use std::time::Instant;

use sumpter_codec::{
    At, Codec, CodecError, Key, LowRank, Next, Previous, Scheme, Spec, add_codes, blocks,
    decode_sum,
};
use sumpter_types::{Dtype, ReduceOp};

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
    let spec: Spec = spec.parse().map_err(wrong)?;
    let x = gradients(elements);
    let mut phases: Box<dyn Phases> = match spec.scheme {
        Scheme::PowerSgd { rank, seed } => Box::new(Matrix::new(rank, seed, &x).map_err(wrong)?),
        _ => Box::new(Blocks::new(&spec, &x).map_err(wrong)?),
    };
    let (from, mut to) = (bytes(&x), vec![0; 4 * elements]);
    let mut samples = Vec::new();
    let mut repeats = [0; 5];
    for round in 0..=rounds {
        if stop() {
            return Err(BenchError::Interrupted);
        }
        let mut seconds = [0.0; 5];
        for (phase, seconds) in seconds.iter_mut().enumerate() {
            let mut run = || match phase {
                0 => phases.encode(),
                1 => phases.feedback(),
                2 => phases.decode(),
                3 => phases.add(),
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
    phases.encode().and_then(|()| phases.decode()).map_err(wrong)?;
    let decoded = phases.decoded();
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let lost = squares(&mut x.iter().zip(&decoded).map(|(x, y)| x - y));
    let lost = (lost / squares(&mut x.iter().copied())).sqrt();
    Ok(CodecSample { encoded_bytes: phases.encoded_bytes(), rounds: samples, lost })
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

/// What is measured, on memory of its own.
trait Phases {
    fn encode(&mut self) -> Result<(), CodecError>;
    fn feedback(&mut self) -> Result<(), CodecError>;
    fn decode(&mut self) -> Result<(), CodecError>;
    fn add(&mut self) -> Result<(), CodecError>;
    fn encoded_bytes(&self) -> usize;
    fn decoded(&self) -> Vec<f32>;
}

/// A codec of blocks.
struct Blocks {
    codec: Codec,
    x: Vec<u8>,
    maxima: Vec<u8>,
    code: Vec<u8>,
    residual: Vec<u8>,
    next: Vec<u8>,
    out: Vec<u8>,
    acc: Vec<u8>,
}

impl Blocks {
    fn new(spec: &Spec, x: &[f32]) -> Result<Blocks, CodecError> {
        let codec = Codec::new(spec, x.len() as u64)?;
        let shared = spec.scheme == Scheme::Int8 { shared: true };
        let x_bytes = bytes(x);
        let mut maxima = vec![0; if shared { 4 * blocks(x.len()) } else { 0 }];
        if shared {
            codec.maxima((Dtype::F32, &x_bytes), Previous::default(), &mut maxima)?;
        }
        let code = vec![0; codec.encoded_len(x.len())];
        let zeros = vec![0; x_bytes.len()];
        Ok(Blocks {
            codec,
            maxima,
            code,
            residual: zeros.clone(),
            next: zeros.clone(),
            out: zeros.clone(),
            acc: zeros,
            x: x_bytes,
        })
    }

    fn run(&mut self, feedback: bool) -> Result<(), CodecError> {
        let at = At { key: Key::default(), block: 0, maxima: &self.maxima };
        let x = (Dtype::F32, &self.x[..]);
        let previous =
            Previous { residual: feedback.then_some(&self.residual[..]), ..Previous::default() };
        let next = Next { residual: feedback.then_some(&mut self.next[..]), velocity: None };
        self.codec.encode(at, x, previous, next, &mut self.code).map(drop)
    }
}

impl Phases for Blocks {
    fn encode(&mut self) -> Result<(), CodecError> {
        self.run(false)
    }

    fn feedback(&mut self) -> Result<(), CodecError> {
        self.run(true)
    }

    fn decode(&mut self) -> Result<(), CodecError> {
        let at = At { key: Key::default(), block: 0, maxima: &self.maxima };
        self.codec.decode(at, &self.code, (Dtype::F32, &mut self.out))
    }

    fn add(&mut self) -> Result<(), CodecError> {
        if !self.maxima.is_empty() {
            return add_codes(&mut self.acc[..2 * self.code.len()], &self.code);
        }
        let at = At { key: Key::default(), block: 0, maxima: &self.maxima };
        self.codec.decode_add(at, &self.code, &mut self.acc)
    }

    fn encoded_bytes(&self) -> usize {
        self.code.len()
    }

    fn decoded(&self) -> Vec<f32> {
        if self.maxima.is_empty() {
            return floats(&self.out);
        }
        // By way of the sums of codes, as a round does.
        let (mut sums, mut out) = (vec![0; 2 * self.code.len()], vec![0; self.x.len()]);
        let added = add_codes(&mut sums, &self.code);
        match added.and_then(|()| decode_sum(&self.maxima, &sums, &mut out)) {
            Ok(()) => floats(&out),
            Err(_) => vec![f32::NAN; self.x.len() / 4],
        }
    }
}

/// PowerSGD, on a matrix that is nearly square.
struct Matrix {
    shape: LowRank,
    x: Vec<f32>,
    right: Vec<f32>,
    left: Vec<f32>,
    own: Vec<f32>,
    residual: Vec<f32>,
    out: Vec<f32>,
    /// What servers add: both factors.
    factors: Vec<u8>,
    acc: Vec<u8>,
}

impl Matrix {
    fn new(rank: u32, seed: u64, x: &[f32]) -> Result<Matrix, CodecError> {
        let columns = (1..=x.len().isqrt()).rev().find(|columns| x.len().is_multiple_of(*columns));
        let columns = columns.unwrap_or(1);
        let shape = LowRank::new(rank, seed, (x.len() / columns, columns))?;
        let mut right = vec![0.0; shape.right_len()];
        shape.refresh(Key::default(), &mut right)?;
        let zeros = vec![0.0; x.len()];
        Ok(Matrix {
            left: vec![0.0; shape.left_len()],
            own: right.clone(),
            right,
            residual: zeros.clone(),
            out: zeros,
            factors: vec![0; 4 * (shape.left_len() + shape.right_len())],
            acc: vec![0; 4 * (shape.left_len() + shape.right_len())],
            x: x.to_vec(),
            shape,
        })
    }
}

impl Phases for Matrix {
    fn encode(&mut self) -> Result<(), CodecError> {
        self.shape.left(&self.x, &self.right, &mut self.left)?;
        self.shape.orthonormalize(&mut self.left)?;
        self.shape.right(&self.x, &self.left, &mut self.own)
    }

    fn feedback(&mut self) -> Result<(), CodecError> {
        self.encode()?;
        self.shape.residual(&self.x, &self.left, &self.own, &mut self.residual)
    }

    fn decode(&mut self) -> Result<(), CodecError> {
        self.shape.product(&self.left, &self.own, &mut self.out)
    }

    fn add(&mut self) -> Result<(), CodecError> {
        sumpter_sum::accumulate(ReduceOp::Sum, Dtype::F32, &mut self.acc, &self.factors);
        Ok(())
    }

    fn encoded_bytes(&self) -> usize {
        4 * (self.shape.left_len() + self.shape.right_len())
    }

    fn decoded(&self) -> Vec<f32> {
        self.out.clone()
    }
}

/// Cubes of numbers between -1 and 1.
fn gradients(count: usize) -> Vec<f32> {
    let uniform = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (0..count as u32).map(|i| uniform(i).powi(3)).collect()
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()
}
