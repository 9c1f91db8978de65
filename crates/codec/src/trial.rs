//! A codec on memory of its own, to be timed. The clock comes from outside.

use sumpter_types::{CodecRates, Dtype, ReduceOp};

use crate::block::blocks;
use crate::call::{At, Next, Previous};
use crate::codec::Codec;
use crate::error::CodecError;
use crate::lowrank::LowRank;
use crate::random::Key;
use crate::registry::Registry;
use crate::shared::{add_codes, decode_sum};
use crate::spec::{Scheme, Spec};

/// A phase of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Encoding, without a residual.
    Encode,
    /// Encoding with a residual, which is read and written.
    Feedback,
    /// Decoding to other memory.
    Decode,
    /// Adding to sums what is decoded; of codes that are added as they are, adding those.
    Add,
}

/// How often a phase is timed at least: the median of fewer says little.
const LEAST_RUNS: usize = 3;

/// Elements of `f32` and all memory that a codec needs for them.
pub struct Trial {
    feedback: bool,
    x: Vec<f32>,
    work: Work,
}

enum Work {
    Blocks(Box<BlockWork>),
    Matrix(Box<MatrixWork>),
}

impl Trial {
    /// A codec on so many elements, which are distributed as those of gradients are: near zero,
    /// with few large ones. `powersgd` takes them as a matrix that is nearly square.
    ///
    /// # Errors
    /// If the codec does not fit so many elements.
    pub fn new(registry: &Registry, spec: &Spec, elements: usize) -> Result<Trial, CodecError> {
        let x = gradients(elements);
        let work = match spec.scheme {
            Scheme::PowerSgd { rank, seed, .. } => {
                Work::Matrix(Box::new(MatrixWork::new(rank, seed, &x)?))
            }
            _ => Work::Blocks(Box::new(BlockWork::new(registry, spec, &x)?)),
        };
        let mut trial = Trial { feedback: spec.feedback, x, work };
        // What decodes and adds needs a code.
        trial.run(Phase::Encode)?;
        Ok(trial)
    }

    /// Does a phase once.
    ///
    /// # Errors
    /// What a registered codec reports.
    pub fn run(&mut self, phase: Phase) -> Result<(), CodecError> {
        match &mut self.work {
            Work::Blocks(work) => work.run(phase),
            Work::Matrix(work) => work.run(&self.x, phase),
        }
    }

    /// The bytes that the elements become.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        match &self.work {
            Work::Blocks(work) => work.code.len(),
            Work::Matrix(work) => work.factors.len(),
        }
    }

    /// Over the norm of the elements, that of what one round's code does not have of them.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn lost(&mut self) -> Result<f64, CodecError> {
        self.run(Phase::Encode)?;
        self.run(Phase::Decode)?;
        let decoded = match &self.work {
            Work::Blocks(work) => work.decoded()?,
            Work::Matrix(work) => work.out.clone(),
        };
        let squares =
            |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let lost = squares(&mut self.x.iter().zip(&decoded).map(|(x, y)| x - y));
        Ok((lost / squares(&mut self.x.iter().copied())).sqrt())
    }

    /// How fast the codec is, each phase by [`median_s`].
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn rates(
        &mut self,
        limit_s: f64,
        seconds: &mut dyn FnMut() -> f64,
    ) -> Result<CodecRates, CodecError> {
        let encode = if self.feedback { Phase::Feedback } else { Phase::Encode };
        let bytes = size_of_val(&self.x[..]) as f64;
        let mut rate = |phase| Ok(bytes / median_s(limit_s, seconds, &mut || self.run(phase))?);
        Ok(CodecRates {
            encode: rate(encode)?,
            decode: rate(Phase::Decode)?,
            add: rate(Phase::Add)?,
        })
    }
}

/// Seconds of a run in the middle of several, which take `limit_s` together or are three.
/// `seconds` is a clock that never goes back.
///
/// # Errors
/// Those of a run.
pub fn median_s<E>(
    limit_s: f64,
    seconds: &mut dyn FnMut() -> f64,
    run: &mut dyn FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    // The first run touches memory that is not mapped yet.
    run()?;
    let mut runs = Vec::new();
    let (started, mut before) = (seconds(), seconds());
    while runs.len() < LEAST_RUNS || before - started < limit_s {
        run()?;
        let now = seconds();
        runs.push(now - before);
        before = now;
    }
    runs.sort_by(f64::total_cmp);
    let mean = (before - started) / runs.len() as f64;
    // A clock that is coarser than most runs has them take no time.
    Ok(Some(runs[runs.len() / 2]).filter(|median| *median > 0.0).unwrap_or(mean))
}

/// A codec of blocks.
struct BlockWork {
    codec: Codec,
    x: Vec<u8>,
    maxima: Vec<u8>,
    code: Vec<u8>,
    /// What is kept, before a round and after.
    residual: [Vec<u8>; 2],
    velocity: [Vec<u8>; 2],
    out: Vec<u8>,
    acc: Vec<u8>,
}

impl BlockWork {
    fn new(registry: &Registry, spec: &Spec, x: &[f32]) -> Result<BlockWork, CodecError> {
        let codec = registry.codec(spec, x.len() as u64)?;
        let shared = spec.scheme == Scheme::Int8 { shared: true };
        let x_bytes: Vec<u8> = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let zeros = vec![0; x_bytes.len()];
        let velocity = if spec.momentum.is_some() { zeros.clone() } else { Vec::new() };
        let mut maxima = vec![0; if shared { 4 * blocks(x.len()) } else { 0 }];
        if shared {
            let velocity = spec.momentum.map(|_| &velocity[..]);
            let previous = Previous { velocity, ..Previous::default() };
            codec.maxima((Dtype::F32, &x_bytes), previous, &mut maxima)?;
        }
        Ok(BlockWork {
            maxima,
            code: vec![0; codec.encoded_len(x.len())],
            residual: [zeros.clone(), zeros.clone()],
            velocity: [velocity.clone(), velocity],
            out: zeros.clone(),
            acc: zeros,
            x: x_bytes,
            codec,
        })
    }

    fn run(&mut self, phase: Phase) -> Result<(), CodecError> {
        let at = At { key: Key::default(), block: 0, maxima: &self.maxima };
        let feedback = match phase {
            Phase::Encode => false,
            Phase::Feedback => true,
            Phase::Decode => return self.codec.decode(at, &self.code, (Dtype::F32, &mut self.out)),
            Phase::Add if self.maxima.is_empty() => {
                return self.codec.decode_add(at, &self.code, &mut self.acc);
            }
            Phase::Add => return add_codes(&mut self.acc[..2 * self.code.len()], &self.code),
        };
        let ([before, after], [velocity, next_velocity]) = (&mut self.residual, &mut self.velocity);
        let momentum = !velocity.is_empty();
        let previous = Previous {
            residual: feedback.then_some(&before[..]),
            velocity: momentum.then_some(&velocity[..]),
            ..Previous::default()
        };
        let next = Next {
            residual: feedback.then_some(&mut after[..]),
            velocity: momentum.then_some(&mut next_velocity[..]),
        };
        let x = (Dtype::F32, &self.x[..]);
        self.codec.encode(at, x, previous, next, &mut self.code).map(drop)
    }

    fn decoded(&self) -> Result<Vec<f32>, CodecError> {
        let mut out = self.out.clone();
        if !self.maxima.is_empty() {
            // By way of the sums of codes, as a round does.
            let mut sums = vec![0; 2 * self.code.len()];
            add_codes(&mut sums, &self.code)?;
            decode_sum(&self.maxima, &sums, &mut out)?;
        }
        Ok(out.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect())
    }
}

/// PowerSGD.
struct MatrixWork {
    shape: LowRank,
    right: Vec<f32>,
    left: Vec<f32>,
    own: Vec<f32>,
    residual: Vec<f32>,
    out: Vec<f32>,
    /// What servers add: both factors.
    factors: Vec<u8>,
    acc: Vec<u8>,
}

impl MatrixWork {
    fn new(rank: u32, seed: u64, x: &[f32]) -> Result<MatrixWork, CodecError> {
        let columns = (1..=x.len().isqrt()).rev().find(|columns| x.len().is_multiple_of(*columns));
        let columns = columns.unwrap_or(1);
        let shape = LowRank::new(rank, seed, (x.len() / columns, columns))?;
        let mut right = vec![0.0; shape.right_len()];
        shape.refresh(Key::default(), &mut right)?;
        let factors = vec![0; 4 * (shape.left_len() + shape.right_len())];
        Ok(MatrixWork {
            left: vec![0.0; shape.left_len()],
            own: right.clone(),
            right,
            residual: vec![0.0; x.len()],
            out: vec![0.0; x.len()],
            acc: factors.clone(),
            factors,
            shape,
        })
    }

    fn run(&mut self, x: &[f32], phase: Phase) -> Result<(), CodecError> {
        match phase {
            Phase::Encode | Phase::Feedback => {
                self.shape.left(x, &self.right, &mut self.left)?;
                self.shape.orthonormalize(&mut self.left)?;
                self.shape.right(x, &self.left, &mut self.own)?;
                if phase == Phase::Feedback {
                    self.shape.residual(x, &self.left, &self.own, &mut self.residual)?;
                }
                Ok(())
            }
            Phase::Decode => self.shape.product(&self.left, &self.own, &mut self.out),
            Phase::Add => {
                let (acc, factors) = (&mut self.acc, &self.factors);
                sumpter_sum::accumulate(ReduceOp::Sum, Dtype::F32, acc, factors);
                Ok(())
            }
        }
    }
}

/// Cubes of numbers between -1 and 1.
fn gradients(count: usize) -> Vec<f32> {
    let uniform = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (0..count as u32).map(|i| uniform(i).powi(3)).collect()
}
