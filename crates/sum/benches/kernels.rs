//! Throughput of every kernel and update rule at every level this processor has, beside a plain
//! copy, in a core's own cache and out of all caches; sums also where operands begin within a
//! vector. Bytes are those read and written, in units of 10^9 a second.
//!
//! `cargo bench -p sumpter-sum -- sum/float16` runs a part.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use sumpter_sum::{AlignedBuf, InstructionSet, add_squares};
use sumpter_types::{Dtype, ExactSum, ReduceOp, Rule, Update};

/// Where the accumulators lie, and how many bytes of them: half of a small second-level cache, and
/// more than a last-level cache gives to one core.
const PLACES: [(&str, usize); 2] = [("in-cache", 96 << 10), ("out-of-cache", 64 << 20)];

/// Bytes that are an ordinary value, neither zero nor subnormal nor NaN, in every dtype, so that no
/// processor takes a slow or short path.
const ORDINARY: u8 = 0x3c;

fn kernels(criterion: &mut Criterion) {
    for (place, acc_bytes) in PLACES {
        let mut group = criterion.benchmark_group(place);
        group.sample_size(20);
        group.warm_up_time(Duration::from_millis(200));
        group.measurement_time(Duration::from_millis(500));
        copy(&mut group, acc_bytes);
        squares(&mut group, acc_bytes);
        for level in InstructionSet::supported() {
            for dtype in Dtype::ALL {
                accumulate(&mut group, level, dtype, acc_bytes);
                accumulate_off(&mut group, level, dtype, acc_bytes);
                if dtype.accumulator() != dtype {
                    halves(&mut group, level, dtype, acc_bytes);
                }
                if dtype.is_float() {
                    divide(&mut group, level, dtype, acc_bytes);
                }
            }
            for rule in Rule::ALL {
                update(&mut group, level, rule, acc_bytes);
            }
        }
        group.finish();
    }
}

fn copy(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize) {
    let (mut to, from) = (ordinary(bytes), ordinary(bytes));
    group.throughput(Throughput::BytesDecimal(2 * bytes as u64));
    group.bench_function("copy", |bencher| {
        bencher.iter(|| black_box(&mut *to).copy_from_slice(black_box(&from)));
    });
}

/// The exact norm of values whose exponents differ, as those of gradients do, and of equal ones,
/// which all go to one bin.
fn squares(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize) {
    let mut varied = AlignedBuf::new(bytes);
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    for place in varied.as_chunks_mut::<4>().0 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let uniform = (x >> 40) as f32 / (1 << 23) as f32 - 1.0;
        *place = (uniform * uniform * uniform).to_ne_bytes();
    }
    let equal = ordinary(bytes);
    group.throughput(Throughput::BytesDecimal(bytes as u64));
    for (name, values) in [("squares/varied", &varied), ("squares/equal", &equal)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut sum = ExactSum::default();
                add_squares(Dtype::F32, black_box(values), &mut sum);
                sum
            });
        });
    }
}

fn accumulate(
    group: &mut BenchmarkGroup<'_, WallTime>,
    level: InstructionSet,
    dtype: Dtype,
    acc_bytes: usize,
) {
    let (mut acc, x) = buffers(dtype, acc_bytes);
    group.throughput(Throughput::BytesDecimal((2 * acc.len() + x.len()) as u64));
    for op in ReduceOp::ALL {
        group.bench_function(id(op.name(), level, dtype), |bencher| {
            acc.fill(ORDINARY);
            bencher.iter(|| level.accumulate(op, dtype, black_box(&mut acc), black_box(&x)));
        });
    }
}

/// Sums where both operands begin 16 bytes after a multiple of 64, as a tensor in a bucket may.
fn accumulate_off(
    group: &mut BenchmarkGroup<'_, WallTime>,
    level: InstructionSet,
    dtype: Dtype,
    acc_bytes: usize,
) {
    const OFF: usize = 16;
    let (mut acc, x) = buffers(dtype, acc_bytes);
    let (acc, x) = (&mut acc[OFF..], &x[OFF..]);
    // As many elements of each, however large those are.
    let count = (acc.len() / dtype.accumulator().size()).min(x.len() / dtype.size());
    let acc = &mut acc[..count * dtype.accumulator().size()];
    let x = &x[..count * dtype.size()];
    group.throughput(Throughput::BytesDecimal((2 * acc.len() + x.len()) as u64));
    group.bench_function(id("sum-16-off", level, dtype), |bencher| {
        acc.fill(ORDINARY);
        let acc = &mut *acc;
        bencher.iter(|| {
            level.accumulate(ReduceOp::Sum, dtype, black_box(&mut *acc), black_box(x));
        });
    });
}

/// What 16-bit floats have beside: the first two contributions, the last one, two and no more.
fn halves(
    group: &mut BenchmarkGroup<'_, WallTime>,
    level: InstructionSet,
    dtype: Dtype,
    acc_bytes: usize,
) {
    let (mut acc, x) = buffers(dtype, acc_bytes);
    let (mut to, op) = (ordinary(x.len()), ReduceOp::Sum);
    group.throughput(Throughput::BytesDecimal((acc.len() + 2 * x.len()) as u64));
    group.bench_function(id("pair", level, dtype), |bencher| {
        let y = ordinary(x.len());
        let acc = &mut acc;
        bencher.iter(|| level.accumulate_pair(op, dtype, black_box(acc), black_box(&x), &y));
    });
    acc.fill(ORDINARY);
    group.bench_function(id("last", level, dtype), |bencher| {
        let to = &mut to;
        bencher.iter(|| level.accumulate_last(op, dtype, black_box(to), black_box(&acc), &x));
    });
    group.throughput(Throughput::BytesDecimal(3 * x.len() as u64));
    group.bench_function(id("reduce", level, dtype), |bencher| {
        to.fill(ORDINARY);
        bencher.iter(|| level.reduce(op, dtype, black_box(&mut to), black_box(&x)));
    });
}

fn divide(
    group: &mut BenchmarkGroup<'_, WallTime>,
    level: InstructionSet,
    dtype: Dtype,
    acc_bytes: usize,
) {
    let (_, mut x) = buffers(dtype, acc_bytes);
    group.throughput(Throughput::BytesDecimal(2 * x.len() as u64));
    group.bench_function(id("divide", level, dtype), |bencher| {
        // Dividing by one keeps the values ordinary however often it is done.
        bencher.iter(|| level.divide(dtype, black_box(&mut x), black_box(1)));
    });
}

/// A rule on a value and its slots in `f32`, all of `acc_bytes`; bytes are those of the parts, read
/// and written, and of the gradient.
fn update(
    group: &mut BenchmarkGroup<'_, WallTime>,
    level: InstructionSet,
    rule: Rule,
    acc_bytes: usize,
) {
    let mut parts: Vec<_> = (0..=rule.slots().len()).map(|_| ordinary(acc_bytes)).collect();
    let gradient = ordinary(acc_bytes);
    // Nothing changes much, however often it is done.
    let update = Update {
        keep: 0.5,
        take: 0.5,
        keep_square: 0.5,
        take_square: 0.5,
        epsilon: 1.0,
        step: -1e-9,
        ..Update::new(rule)
    };
    group.throughput(Throughput::BytesDecimal(((2 * parts.len() + 1) * acc_bytes) as u64));
    group.bench_function(id(rule.name(), level, Dtype::F32), |bencher| {
        bencher.iter(|| {
            let mut parts: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
            let gradient = (Dtype::F32, black_box(&gradient[..]));
            level.update(&update, Dtype::F32, black_box(&mut parts), gradient, None);
        });
    });
}

fn id(kernel: &str, level: InstructionSet, dtype: Dtype) -> String {
    format!("{kernel}/{}/{}", dtype.name(), level.name())
}

fn buffers(dtype: Dtype, acc_bytes: usize) -> (AlignedBuf, AlignedBuf) {
    let count = acc_bytes / dtype.accumulator().size();
    (ordinary(acc_bytes), ordinary(count * dtype.size()))
}

fn ordinary(bytes: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(bytes);
    buf.fill(ORDINARY);
    buf
}

criterion_group!(benches, kernels);
criterion_main!(benches);
