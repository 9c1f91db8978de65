//! What `sumpter bench` measures in Rust: kernels by address, a server under load, ablations.

use std::slice;
use std::time::Instant;

use pyo3::prelude::*;
use serde_json::json;
use sumpter_bench::{BenchError, Calls, MemorySpec, Sample, ServerSpec, Variant};
use sumpter_types::{Dtype, ReduceOp, Rule};

use crate::errors::{ConfigError, from_bench};

/// Runs `body` without the GIL; a signal that arrives between its rounds is raised.
fn measured<T: Send>(
    py: Python<'_>,
    body: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, BenchError> + Send,
) -> PyResult<T> {
    let mut signal = None;
    let result = py.detach(|| {
        body(&mut || {
            signal = Python::attach(|py| py.check_signals()).err();
            signal.is_some()
        })
    });
    match (signal, result) {
        (Some(signal), _) => Err(signal),
        (None, result) => result.map_err(from_bench),
    }
}

/// One call of a kernel, on memory given by address.
enum Step {
    Reduce(ReduceOp, Dtype),
    Accumulate(Dtype),
    Pair(Dtype),
    Last(Dtype),
    Copy(Dtype),
    Checksum(Dtype),
}

impl Step {
    fn parse(kernel: &str, dtype: &str) -> PyResult<Step> {
        let unknown = |what: &str, name: &str| {
            ConfigError::new_err(format!("'{name}' is no {what} of the summation kernels"))
        };
        let dtype = Dtype::from_name(dtype).ok_or_else(|| unknown("dtype", dtype))?;
        let widens = dtype.accumulator() != dtype;
        Ok(match kernel {
            "accumulate" => Step::Accumulate(dtype),
            "pair" if widens => Step::Pair(dtype),
            "last" if widens => Step::Last(dtype),
            "copy" => Step::Copy(dtype),
            "checksum" => Step::Checksum(dtype),
            _ => {
                let op = ReduceOp::from_name(kernel).ok_or_else(|| unknown("kernel", kernel))?;
                Step::Reduce(op, dtype)
            }
        })
    }

    /// Bytes of `count` elements: those written to, those read from, those that are added to.
    fn bytes(&self, count: usize) -> [usize; 3] {
        let narrow = |dtype: &Dtype| count * dtype.size();
        let wide = |dtype: &Dtype| count * dtype.accumulator().size();
        match self {
            Step::Reduce(_, dtype) | Step::Copy(dtype) => [narrow(dtype), narrow(dtype), 0],
            Step::Checksum(dtype) => [size_of::<u32>(), narrow(dtype), 0],
            Step::Accumulate(dtype) => [wide(dtype), narrow(dtype), 0],
            Step::Pair(dtype) => [wide(dtype), narrow(dtype), narrow(dtype)],
            Step::Last(dtype) => [narrow(dtype), narrow(dtype), wide(dtype)],
        }
    }

    fn run(&self, to: &mut [u8], x: &[u8], other: &[u8]) {
        let sum = ReduceOp::Sum;
        match *self {
            Step::Reduce(op, dtype) => sumpter_sum::reduce(op, dtype, to, x),
            Step::Accumulate(dtype) => sumpter_sum::accumulate(sum, dtype, to, x),
            Step::Pair(dtype) => sumpter_sum::accumulate_pair(sum, dtype, to, other, x),
            Step::Last(dtype) => sumpter_sum::accumulate_last(sum, dtype, to, other, x),
            Step::Copy(_) => to.copy_from_slice(x),
            Step::Checksum(_) => to.copy_from_slice(&sumpter_wire::checksum(x).to_le_bytes()),
        }
    }
}

/// Runs `steps` in order, `repeats` times, and returns the seconds it took. A step is (kernel,
/// dtype, address written to, address read from, address of what is added to if it is elsewhere,
/// elements); all must be valid, and what is written apart from the rest.
#[pyfunction]
pub fn bench_steps(
    py: Python<'_>,
    steps: Vec<(String, String, usize, usize, usize, usize)>,
    repeats: usize,
) -> PyResult<f64> {
    let mut calls = Vec::new();
    for (kernel, dtype, to, x, other, count) in &steps {
        let step = Step::parse(kernel, dtype)?;
        let [to_bytes, x_bytes, other_bytes] = step.bytes(*count);
        let apart = |from: usize, bytes: usize| {
            bytes == 0 || (from != 0 && (to + to_bytes <= from || from + bytes <= *to))
        };
        if *to == 0 || !apart(*x, x_bytes) || !apart(*other, other_bytes) {
            return Err(ConfigError::new_err(format!("{kernel}: null or overlapping memory")));
        }
        calls.push((step, (*to, to_bytes), (*x, x_bytes), (*other, other_bytes)));
    }
    Ok(py.detach(|| {
        let started = Instant::now();
        for _ in 0..repeats {
            for &(ref step, (to, to_bytes), x, other) in &calls {
                // SAFETY: the caller vouches for the ranges; what is written was seen not to
                // overlap the others.
                let (to, x, other) = unsafe {
                    (
                        slice::from_raw_parts_mut(to as *mut u8, to_bytes),
                        bytes_at(x),
                        bytes_at(other),
                    )
                };
                step.run(to, x, other);
            }
        }
        started.elapsed().as_secs_f64()
    }))
}

/// # Safety
/// Unless it is empty, the range must be readable memory that is not written meanwhile.
unsafe fn bytes_at<'a>((address, bytes): (usize, usize)) -> &'a [u8] {
    match bytes {
        0 => &[],
        // SAFETY: the caller vouches for it.
        _ => unsafe { slice::from_raw_parts(address as *const u8, bytes) },
    }
}

/// Measures a server under load, also with these update rules; a list of samples as JSON, whose
/// variants with a rule have its name.
#[pyfunction]
#[pyo3(signature = (
    *, workers, lanes, tensors, partition_bytes, chunk_bytes, credit_bytes, rounds, rules
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub fn bench_server(
    py: Python<'_>,
    workers: usize,
    lanes: usize,
    tensors: Vec<usize>,
    partition_bytes: usize,
    chunk_bytes: usize,
    credit_bytes: usize,
    rounds: usize,
    rules: Vec<String>,
) -> PyResult<String> {
    let rule = |name: &String| {
        let unknown = || ConfigError::new_err(format!("'{name}' is no update rule"));
        Rule::from_name(name).ok_or_else(unknown)
    };
    let rules = rules.iter().map(rule).collect::<PyResult<_>>()?;
    let spec = ServerSpec {
        workers,
        lanes,
        tensors,
        partition_bytes,
        chunk_bytes,
        credit_bytes,
        rounds,
        rules,
    };
    let samples = measured(py, |stop| sumpter_bench::server(&spec, stop))?;
    let samples: Vec<_> = samples.iter().map(sample_json).collect();
    Ok(json!(samples).to_string())
}

fn sample_json(sample: &Sample) -> serde_json::Value {
    let calls = |c: &Calls| json!({"reads": c.reads, "writes": c.writes, "waits": c.waits});
    let variant = match sample.variant {
        Variant::Sum => "sum",
        Variant::Ordered => "ordered",
        Variant::Relay => "relay",
        Variant::Raw => "raw",
        Variant::Bare => "bare",
        Variant::Update(rule) => rule.name(),
    };
    json!({
        "variant": variant,
        "seconds": sample.seconds,
        "server_cpu_s": sample.server_cpu_s,
        "worker_cpu_s": sample.worker_cpu_s,
        "server_calls": calls(&sample.server_calls),
        "worker_calls": calls(&sample.worker_calls),
    })
}

/// Seconds of a codec's phases, in the order of [`sumpter_bench::CodecRound`].
type CodecSeconds = (f64, f64, f64, f64, f64);

/// A codec on so many elements in cache: the bytes they become, the part of their norm that is
/// lost, and by round the seconds of encoding, the same with a residual, decoding, adding, copying.
#[pyfunction]
#[pyo3(signature = (codec, *, elements, rounds))]
pub fn bench_codec(
    py: Python<'_>,
    codec: &str,
    elements: usize,
    rounds: usize,
) -> PyResult<(usize, f64, Vec<CodecSeconds>)> {
    let sample = measured(py, |stop| sumpter_bench::codec(codec, elements, rounds, stop))?;
    let row =
        |r: &sumpter_bench::CodecRound| (r.encode_s, r.feedback_s, r.decode_s, r.add_s, r.copy_s);
    Ok((sample.encoded_bytes, sample.lost, sample.rounds.iter().map(row).collect()))
}

/// Tall and wide aggregation: bytes of contributions a second of each, by round.
#[pyfunction]
#[pyo3(signature = (*, threads, contributions, bytes, chunk_bytes, buffer_bytes, rounds))]
pub fn bench_aggregation(
    py: Python<'_>,
    threads: usize,
    contributions: usize,
    bytes: usize,
    chunk_bytes: usize,
    buffer_bytes: usize,
    rounds: usize,
) -> PyResult<Vec<(f64, f64)>> {
    let spec = MemorySpec { threads, contributions, bytes, chunk_bytes, rounds };
    let samples = measured(py, |stop| sumpter_bench::aggregation(&spec, buffer_bytes, stop))?;
    Ok(samples.iter().map(|s| (s.tall_bytes_per_s, s.wide_bytes_per_s)).collect())
}

/// Key-to-lane and worker-to-lane: bytes of contributions a second of each, by round.
#[pyfunction]
#[pyo3(signature = (*, threads, contributions, bytes, chunk_bytes, rounds))]
pub fn bench_affinity(
    py: Python<'_>,
    threads: usize,
    contributions: usize,
    bytes: usize,
    chunk_bytes: usize,
    rounds: usize,
) -> PyResult<Vec<(f64, f64)>> {
    let spec = MemorySpec { threads, contributions, bytes, chunk_bytes, rounds };
    let samples = measured(py, |stop| sumpter_bench::affinity(&spec, stop))?;
    let pair = |s: &sumpter_bench::AffinitySample| {
        (s.key_to_lane_bytes_per_s, s.worker_to_lane_bytes_per_s)
    };
    Ok(samples.iter().map(pair).collect())
}

/// Buffers off a page: offset, bytes a second of the kernel alone, and of receiving and adding.
#[pyfunction]
#[pyo3(signature = (*, offsets, chunk_bytes, chunks, rounds))]
pub fn bench_alignment(
    py: Python<'_>,
    offsets: Vec<usize>,
    chunk_bytes: usize,
    chunks: usize,
    rounds: usize,
) -> PyResult<Vec<(usize, f64, f64)>> {
    let run = |stop: &mut dyn FnMut() -> bool| {
        sumpter_bench::alignment(&offsets, chunk_bytes, chunks, rounds, stop)
    };
    let samples = measured(py, run)?;
    let row = |s: &sumpter_bench::AlignmentSample| {
        (s.offset_bytes, s.kernel_bytes_per_s, s.receive_bytes_per_s)
    };
    Ok(samples.iter().map(row).collect())
}

/// Several connections: their number, the seconds there and back, the processor time.
#[pyfunction]
#[pyo3(signature = (*, counts, bytes, chunk_bytes, rounds))]
pub fn bench_connections(
    py: Python<'_>,
    counts: Vec<usize>,
    bytes: usize,
    chunk_bytes: usize,
    rounds: usize,
) -> PyResult<Vec<(usize, f64, f64)>> {
    let run = |stop: &mut dyn FnMut() -> bool| {
        sumpter_bench::connections(&counts, bytes, chunk_bytes, rounds, stop)
    };
    let samples = measured(py, run)?;
    Ok(samples.iter().map(|s| (s.connections, s.seconds, s.cpu_s)).collect())
}

/// The data path with one rule more at each step: the step, the seconds there and back, the
/// processor time.
#[pyfunction]
#[pyo3(signature = (*, provider, bytes, chunk_bytes, rounds))]
pub fn bench_datapath(
    py: Python<'_>,
    provider: Option<&str>,
    bytes: usize,
    chunk_bytes: usize,
    rounds: usize,
) -> PyResult<Vec<(&'static str, f64, f64)>> {
    let run = |stop: &mut dyn FnMut() -> bool| {
        sumpter_bench::datapath(provider, bytes, chunk_bytes, rounds, stop)
    };
    let samples = measured(py, run)?;
    Ok(samples.iter().map(|s| (s.rung, s.seconds, s.cpu_s)).collect())
}

/// Adds the functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bench_steps, module)?)?;
    module.add_function(wrap_pyfunction!(bench_server, module)?)?;
    module.add_function(wrap_pyfunction!(bench_codec, module)?)?;
    module.add_function(wrap_pyfunction!(bench_aggregation, module)?)?;
    module.add_function(wrap_pyfunction!(bench_affinity, module)?)?;
    module.add_function(wrap_pyfunction!(bench_alignment, module)?)?;
    module.add_function(wrap_pyfunction!(bench_connections, module)?)?;
    module.add_function(wrap_pyfunction!(bench_datapath, module)?)
}
