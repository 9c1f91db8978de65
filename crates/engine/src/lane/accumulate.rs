//! A chunk in a lane: how contributions are added to its sum, and how a variable changes by it.

use std::ops::Range;

use sumpter_sum::{self as sum, AlignedBuf, BufferPool};
use sumpter_types::Update;
use sumpter_wire::PartitionSpec;

use super::order::Turns;
use super::state::State;

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
    /// asynchronously, as it is when the worker gets it.
    pub weights: Option<AlignedBuf>,
    /// When it changed a variable asynchronously; and how often that had changed when the worker
    /// got the last of its value.
    pub turns: Turns,
    pub version: u32,
    /// Of the finished value, and of a variable's gradient, once a receiver asked for it.
    pub checksums: [Option<u32>; 2],
}

impl Chunk {
    /// Takes one contribution of another process: the first one's buffer becomes the sum, without a
    /// copy.
    pub(super) fn add(
        &mut self,
        spec: &PartitionSpec,
        contributors: usize,
        bytes: AlignedBuf,
        pool: &mut BufferPool,
    ) {
        if self.summed > 0 {
            self.sum_up(spec, contributors, &bytes, pool);
            pool.give(bytes);
        } else if let Some(old) = self.sum.replace(bytes) {
            pool.give(old);
        }
        self.summed += 1;
    }

    /// Takes the held contributions of these children, one after the other for each element, as
    /// [`add`](Self::add) would.
    pub(super) fn add_run(
        &mut self,
        spec: &PartitionSpec,
        contributors: usize,
        run: Range<usize>,
        pool: &mut BufferPool,
    ) {
        let mut left = run;
        while !left.is_empty() {
            let alike = self.added_alike(spec, contributors).min(left.len());
            if alike < 2 {
                let bytes = self.held[left.start].take().expect("a run is held");
                self.add(spec, contributors, bytes, pool);
                left.start += 1;
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
    pub(super) fn sum_up(
        &mut self,
        spec: &PartitionSpec,
        contributors: usize,
        bytes: &[u8],
        pool: &mut BufferPool,
    ) {
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
