//! A chunk in a lane: how contributions are added to its sum, and how a variable changes by it.

use std::ops::Range;

use sumpter_codec::{CodecError, Key};
use sumpter_sum::{self as sum, AlignedBuf, BufferPool};
use sumpter_types::{Dtype, ReduceOp, Update};
use sumpter_wire::PartitionSpec;

use super::order::Turns;
use super::state::State;
use crate::coding::{Coder, sum_bytes};

/// What is done to a sum several times is done block by block, so that a block's sum stays in the
/// first-level cache meanwhile: half of the smallest such cache (32 KiB) holds a wide sum and one
/// operand. A multiple of every element.
const RUN_BLOCK_BYTES: usize = 4 << 10;

#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The sum so far; from the round before until the first contribution of this one.
    pub sum: Option<AlignedBuf>,
    /// Contributions of others in the sum.
    pub summed: usize,
    /// The resident child's contribution has been asked for, and is in the sum.
    pub asked: bool,
    pub resident: bool,
    /// Whether the sum, of a variable's gradients, has been divided.
    pub divided: bool,
    /// Contributions that wait for their turn, by child; only in deterministic partitions.
    pub held: Vec<Option<AlignedBuf>>,
    /// The new value of a variable: of 16-bit floats, narrowed; of one that changes
    /// asynchronously, as it is when the worker gets it. Or the code of the sum, where a worker
    /// gets the sum itself.
    pub weights: Option<AlignedBuf>,
    /// The codes that are in the sum, one behind the other in the order in which they were added,
    /// where [the carrier gets them](Code::carried).
    pub codes: Option<AlignedBuf>,
    /// When it changed a variable asynchronously; and how often that had changed when the worker
    /// got the last of its value.
    pub turns: Turns,
    pub version: u32,
    /// Of the finished value, and of a variable's gradient, once a receiver asked for it.
    pub checksums: [Option<u32>; 2],
}

/// How contributions to a chunk are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addition<'a> {
    pub spec: &'a PartitionSpec,
    pub contributors: usize,
    /// Where they are encoded.
    pub code: Option<Code<'a>>,
}

/// What the code of a chunk is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code<'a> {
    pub coder: Coder<'a>,
    /// Of the round's sum: what ranks draw alike is all that is needed to decode.
    pub key: Key,
    /// First byte of the chunk in its partition, and its bytes, as elements.
    pub offset: usize,
    pub len: usize,
    /// Whether the carrier of the sum gets the codes that it was added from.
    pub carried: bool,
}

impl Chunk {
    /// Gives every buffer back but the sum.
    pub(super) fn clear(&mut self, pool: &mut BufferPool) {
        let held = self.held.iter_mut().filter_map(Option::take);
        let all = held.chain(self.weights.take()).chain(self.codes.take());
        all.for_each(|buffer| pool.give(buffer));
    }

    /// Takes one contribution of another process: the first one's buffer becomes the sum, without a
    /// copy, unless it is a code.
    ///
    /// # Errors
    /// If it is no code of the codec's; it counts all the same.
    pub(super) fn add(
        &mut self,
        how: Addition<'_>,
        bytes: AlignedBuf,
        pool: &mut BufferPool,
    ) -> Result<(), CodecError> {
        let added = match how.code {
            Some(code) => self.add_code(how, code, bytes, pool),
            None => {
                if self.summed > 0 {
                    self.sum_up(how, &bytes, pool);
                    pool.give(bytes);
                } else if let Some(old) = self.sum.replace(bytes) {
                    pool.give(old);
                }
                Ok(())
            }
        };
        self.summed += 1;
        added
    }

    /// Decodes a contribution and adds it to the sum, which is of `f32`, or of codes where these
    /// can be added as they are.
    pub(super) fn add_code(
        &mut self,
        Addition { spec, contributors, .. }: Addition<'_>,
        Code { coder, key, offset, len, carried }: Code<'_>,
        bytes: AlignedBuf,
        pool: &mut BufferPool,
    ) -> Result<(), CodecError> {
        let (dtype, before) = (spec.dtype, self.summed + usize::from(self.resident));
        let is_first = before == 0;
        if carried {
            let all = self.codes.get_or_insert_with(|| pool.take(contributors * bytes.len()));
            all[before * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
        }
        if coder.codec.sums_encoded() {
            if is_first {
                self.sum.replace(bytes).into_iter().for_each(|old| pool.give(old));
                return Ok(());
            }
            let sum = self.sum.as_mut().expect("a counted contribution has a sum");
            sum::reduce(ReduceOp::Sum, Dtype::F32, sum, &bytes);
            pool.give(bytes);
            return Ok(());
        }
        let at = coder.at(key, dtype, offset);
        let added = if is_first {
            let mut acc = pool.take(sum_bytes(dtype, len));
            let decoded = coder.codec.decode(at, &bytes, (Dtype::F32, &mut acc));
            self.sum.replace(acc).into_iter().for_each(|old| pool.give(old));
            decoded
        } else {
            let sum = self.sum.as_mut().expect("a counted contribution has a sum");
            coder.codec.decode_add(at, &bytes, sum)
        };
        pool.give(bytes);
        added
    }

    /// All contributions are in the sum: makes of it what is sent, where they are encoded.
    pub(super) fn finish(&mut self, how: Addition<'_>, pool: &mut BufferPool) {
        if let Some(Code { coder, key, offset, len, .. }) = how.code
            && let Some(sum) = self.sum.take()
        {
            let of = ((key, offset), (how.spec.dtype, len));
            if how.spec.coding.is_some_and(|coding| coding.carrier.is_some()) {
                self.weights = Some(coder.encode_sum(of, &sum, pool));
                self.sum = Some(match self.codes.take() {
                    Some(codes) => {
                        pool.give(sum);
                        codes
                    }
                    None => sum,
                });
            } else {
                self.sum = Some(coder.finish(of, sum, pool));
            }
        }
    }

    /// Takes the held contributions of these children, one after the other for each element, as
    /// [`add`](Self::add) would.
    ///
    /// # Errors
    /// Whose contribution is no code of the codec's, and why.
    pub(super) fn add_run(
        &mut self,
        how: Addition<'_>,
        run: Range<usize>,
        pool: &mut BufferPool,
    ) -> Result<(), (usize, CodecError)> {
        let Addition { spec, contributors, code } = how;
        let mut left = run;
        while !left.is_empty() {
            let alike = self.added_alike(spec, contributors).min(left.len());
            if alike < 2 || code.is_some() {
                let child = left.start;
                let bytes = self.held[child].take().expect("a run is held");
                left.start += 1;
                self.add(how, bytes, pool).map_err(|error| (child, error))?;
                continue;
            }
            let Chunk { sum, held, .. } = self;
            let sum = sum.as_mut().expect("a counted contribution has a sum");
            let held = &mut held[left.start..left.start + alike];
            let widens = widens(spec, contributors);
            let wide = if widens { spec.dtype.accumulator().size() / spec.dtype.size() } else { 1 };
            let len = held[0].as_ref().map_or(0, |bytes| bytes.len());
            for start in (0..len).step_by(RUN_BLOCK_BYTES) {
                let end = len.min(start + RUN_BLOCK_BYTES);
                let sum = &mut sum[start * wide..end * wide];
                for bytes in held.iter().flatten() {
                    let bytes = &bytes[start..end];
                    if widens {
                        sum::accumulate(spec.op, spec.dtype, sum, bytes);
                    } else {
                        sum::reduce(spec.op, spec.dtype, sum, bytes);
                    }
                }
            }
            held.iter_mut().filter_map(Option::take).for_each(|bytes| pool.give(bytes));
            self.summed += alike;
            left.start += alike;
        }
        Ok(())
    }

    /// How many of the next contributions are added to the sum in the form that it has now.
    fn added_alike(&self, spec: &PartitionSpec, contributors: usize) -> usize {
        match self.summed + usize::from(self.resident) {
            0 => 0,
            summed if !widens(spec, contributors) => contributors - summed,
            // The second makes the sum wide, the last one narrow again.
            1 => 0,
            summed => contributors - 1 - summed,
        }
    }

    /// Whether all contributions are in the sum.
    pub(super) fn is_summed(&self, contributors: usize) -> bool {
        self.summed + usize::from(self.resident) == contributors
    }

    /// Makes the gradient of a variable of the sum, which is complete and has `len` bytes; once.
    pub(super) fn divide(&mut self, spec: &PartitionSpec, len: usize) {
        let divisor = spec.variable.map_or(1, |variable| variable.divisor);
        if !std::mem::replace(&mut self.divided, true) && divisor > 1 {
            let sum = self.sum.as_mut().expect("a counted contribution has a sum");
            sum::divide(spec.dtype, &mut sum[..len], divisor);
        }
    }

    /// Changes a stretch of a variable by its gradient, if all of it is there.
    pub(super) fn apply(
        &mut self,
        spec: &PartitionSpec,
        update: &Update,
        (state, stretch): (&mut State, Range<usize>),
        pool: &mut BufferPool,
    ) -> bool {
        if !state.covers(update.rule.slots().len(), &stretch) {
            return false;
        }
        let (dtype, master) = (spec.dtype, spec.dtype.accumulator());
        let len = stretch.len() / master.size() * dtype.size();
        let gradient = self.sum.as_ref().expect("a counted contribution has a sum");
        let gradient = &gradient[..len];
        self.weights = (dtype != master).then(|| pool.take(len));
        let weights = self.weights.as_mut().map(|weights| (dtype, &mut weights[..]));
        state.apply(update, master, &stretch, (dtype, gradient), weights);
        true
    }

    /// Adds the last contribution, where [nothing is narrowed](widens) then, and writes the sum
    /// over it.
    pub(super) fn complete_in_place(&mut self, spec: &PartitionSpec, bytes: &mut [u8]) {
        let sum = self.sum.as_mut().expect("a counted contribution has a sum");
        let blocks = sum.chunks_mut(RUN_BLOCK_BYTES).zip(bytes.chunks_mut(RUN_BLOCK_BYTES));
        for (sum, bytes) in blocks {
            sum::reduce(spec.op, spec.dtype, sum, bytes);
            bytes.copy_from_slice(sum);
        }
    }

    /// Adds a contribution that is not the first.
    pub(super) fn sum_up(&mut self, how: Addition<'_>, bytes: &[u8], pool: &mut BufferPool) {
        let Addition { spec, contributors, .. } = how;
        let (op, dtype) = (spec.op, spec.dtype);
        let sum = self.sum.as_mut().expect("a counted contribution has a sum");
        let next = match self.summed + usize::from(self.resident) {
            _ if !widens(spec, contributors) => return sum::reduce(op, dtype, sum, bytes),
            1 => {
                let wide = bytes.len() / dtype.size() * dtype.accumulator().size();
                let mut acc = pool.take(wide);
                sum::accumulate_pair(op, dtype, &mut acc, sum, bytes);
                acc
            }
            before if before + 1 == contributors => {
                let mut out = pool.take(bytes.len());
                sum::accumulate_last(op, dtype, &mut out, sum, bytes);
                out
            }
            _ => return sum::accumulate(op, dtype, sum, bytes),
        };
        pool.give(std::mem::replace(sum, next));
    }
}

/// Of more than two contributions in 16-bit floats the sum is held in `f32` until the last.
pub(super) fn widens(spec: &PartitionSpec, contributors: usize) -> bool {
    contributors > 2 && spec.dtype.accumulator() != spec.dtype
}

/// Whether contributions are added in the order of ranks.
pub(super) fn is_ordered(spec: &PartitionSpec) -> bool {
    spec.deterministic || spec.variable.is_some()
}
