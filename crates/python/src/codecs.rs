//! Codecs as texts, and `LowRank`, with which fronts sum matrices by their factors.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use sumpter_codec::{CodecError, Draws, Key, LowRank as RustLowRank, Scheme, Spec};
use sumpter_plan::CodedTensor;
use sumpter_types::{Dtype, Rank, Round, TensorId};

use crate::errors::{ConfigError, from_codec};

/// A codec with its arguments in canonical order; see the stub.
#[pyfunction]
#[pyo3(signature = (text, *, keeps = true, draws = None))]
pub fn codec(text: &str, keeps: bool, draws: Option<(u32, u32)>) -> PyResult<String> {
    let mut selection = sumpter_node::codecs().select(text).map_err(from_codec)?;
    if let Some((tensor, round)) = draws {
        let draws = Draws { tensor: TensorId(tensor), round: Round(round) };
        let drawing = selection.specs_mut().iter_mut().filter(|spec| spec.scheme.draws());
        drawing.for_each(|spec| spec.draws = Some(draws));
    }
    for spec in selection.specs_mut().iter_mut().filter(|_| !keeps) {
        if spec.momentum.is_some() {
            return Err(ConfigError::new_err(format!(
                "codec {spec}: momentum is kept from round to round of a tensor, and this one has \
                 no name: give it one, or no momentum"
            )));
        }
        (spec.feedback, spec.sum_feedback) = (false, false);
    }
    Ok(selection.to_string())
}

/// Whether a codec, or one of those to choose from, keeps a residual, and momentum, and draws
/// random numbers; see the stub.
#[pyfunction]
pub fn codec_keeps(text: &str) -> PyResult<(bool, bool, bool)> {
    let selection = sumpter_node::codecs().select(text).map_err(from_codec)?;
    let any = |keeps: fn(&Spec) -> bool| selection.specs().iter().any(keeps);
    let draws = any(|spec| spec.scheme.draws());
    Ok((any(|spec| spec.feedback), any(|spec| spec.momentum.is_some()), draws))
}

/// The names of all codecs.
#[pyfunction]
pub fn codecs() -> Vec<String> {
    sumpter_node::codecs().names().map(str::to_owned).collect()
}

/// Elements of a tensor by which codecs are compared.
const COMPARED_ELEMENTS: u64 = 1 << 20;

/// How fast a codec is on this machine, and by how much its code is smaller; see the stub.
#[pyfunction]
pub fn codec_rates(py: Python<'_>, codec: &str) -> PyResult<(f64, f64, f64, f64)> {
    let measured = py.detach(|| {
        let spec = sumpter_node::codecs().parse(codec)?;
        let bytes = COMPARED_ELEMENTS * Dtype::F32.size() as u64;
        sumpter_node::candidate(&spec, CodedTensor { bytes, dtype: Dtype::F32 })
            .map(|one| (one.rates, bytes as f64 / one.contribution_bytes as f64))
    });
    let (rates, smaller) = measured.map_err(from_codec)?;
    Ok((rates.encode, rates.decode, rates.add, smaller))
}

/// A matrix as the product of two narrow ones; see the stub.
#[pyclass(module = "sumpter._native", frozen)]
pub struct LowRank {
    inner: RustLowRank,
    start: u32,
}

#[pymethods]
impl LowRank {
    /// By a codec `powersgd`; see the stub.
    #[new]
    fn new(codec: &str, rows: usize, columns: usize) -> PyResult<LowRank> {
        let spec = sumpter_node::codecs().parse(codec).map_err(from_codec)?;
        let Scheme::PowerSgd { rank, start, seed } = spec.scheme else {
            return Err(ConfigError::new_err(format!("codec {spec} has no factors")));
        };
        let inner = RustLowRank::new(rank, seed, (rows, columns)).map_err(from_codec)?;
        Ok(LowRank { inner, start })
    }

    /// Rounds before the first that is summed by factors.
    #[getter]
    fn start(&self) -> u32 {
        self.start
    }

    /// Elements of the left factor.
    #[getter]
    fn left_len(&self) -> usize {
        self.inner.left_len()
    }

    /// Elements of the right factor.
    #[getter]
    fn right_len(&self) -> usize {
        self.inner.right_len()
    }

    /// Makes the right factor fit to begin a round with.
    fn refresh(
        &self,
        py: Python<'_>,
        tensor: u32,
        round: u32,
        right: PyBuffer<f32>,
    ) -> PyResult<()> {
        let key = Key { tensor: TensorId(tensor), round: Round(round), rank: Rank(0) };
        let right = Floats::writable(&right)?;
        // SAFETY: as of `Floats`.
        py.detach(|| self.inner.refresh(key, unsafe { right.mutable() })).map_err(from_codec)
    }

    /// `left = matrix * right`.
    fn left(
        &self,
        py: Python<'_>,
        matrix: PyBuffer<f32>,
        right: PyBuffer<f32>,
        left: PyBuffer<f32>,
    ) -> PyResult<()> {
        self.run(py, [&matrix, &right], &left, |[matrix, right], left| {
            self.inner.left(matrix, right, left)
        })
    }

    /// Makes the columns of the left factor orthogonal and of length 1.
    fn orthonormalize(&self, py: Python<'_>, left: PyBuffer<f32>) -> PyResult<()> {
        self.run(py, [], &left, |[], left| self.inner.orthonormalize(left))
    }

    /// `right = transpose(matrix) * left`.
    fn right(
        &self,
        py: Python<'_>,
        matrix: PyBuffer<f32>,
        left: PyBuffer<f32>,
        right: PyBuffer<f32>,
    ) -> PyResult<()> {
        self.run(py, [&matrix, &left], &right, |[matrix, left], right| {
            self.inner.right(matrix, left, right)
        })
    }

    /// `matrix = left * transpose(right)`.
    fn product(
        &self,
        py: Python<'_>,
        left: PyBuffer<f32>,
        right: PyBuffer<f32>,
        matrix: PyBuffer<f32>,
    ) -> PyResult<()> {
        self.run(py, [&left, &right], &matrix, |[left, right], matrix| {
            self.inner.product(left, right, matrix)
        })
    }

    /// `residual = matrix - left * transpose(right)`.
    fn residual(
        &self,
        py: Python<'_>,
        matrix: PyBuffer<f32>,
        left: PyBuffer<f32>,
        right: PyBuffer<f32>,
        residual: PyBuffer<f32>,
    ) -> PyResult<()> {
        self.run(py, [&matrix, &left, &right], &residual, |[matrix, left, right], residual| {
            self.inner.residual(matrix, left, right, residual)
        })
    }
}

impl LowRank {
    /// Runs what reads some arrays and writes another, without the interpreter's lock.
    fn run<const N: usize>(
        &self,
        py: Python<'_>,
        read: [&PyBuffer<f32>; N],
        written: &PyBuffer<f32>,
        compute: impl FnOnce([&[f32]; N], &mut [f32]) -> Result<(), CodecError> + Send,
    ) -> PyResult<()> {
        let written = Floats::writable(written)?;
        let mut arrays = [Floats { address: 0, len: 0 }; N];
        for (array, buffer) in arrays.iter_mut().zip(read) {
            *array = Floats::of(buffer)?;
            if array.overlaps(written) {
                return Err(ConfigError::new_err("what is read and what is written overlap"));
            }
        }
        // SAFETY: as of `Floats`; no array that is read overlaps the one that is written.
        let compute = || unsafe { compute(arrays.map(|array| array.slice()), written.mutable()) };
        py.detach(compute).map_err(from_codec)
    }
}

/// The memory of an array of `f32`, which its buffer keeps. The caller of a method promises (see
/// the stub) that no other thread writes to its arrays meanwhile, nor reads what is written.
#[derive(Clone, Copy)]
struct Floats {
    address: usize,
    len: usize,
}

impl Floats {
    fn of(buffer: &PyBuffer<f32>) -> PyResult<Floats> {
        if !buffer.is_c_contiguous() {
            return Err(ConfigError::new_err("expected a contiguous array"));
        }
        Ok(Floats { address: buffer.buf_ptr() as usize, len: buffer.item_count() })
    }

    fn writable(buffer: &PyBuffer<f32>) -> PyResult<Floats> {
        if buffer.readonly() {
            return Err(ConfigError::new_err("expected an array that can be written to"));
        }
        Floats::of(buffer)
    }

    fn overlaps(self, other: Floats) -> bool {
        let end = |of: Floats| of.address + size_of::<f32>() * of.len;
        self.len > 0 && other.len > 0 && self.address < end(other) && other.address < end(self)
    }

    /// # Safety
    /// The buffer must be alive, and nothing must write to it meanwhile.
    unsafe fn slice<'a>(self) -> &'a [f32] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: a buffer of `f32` that the caller keeps alive and unchanged.
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.len) }
    }

    /// # Safety
    /// The buffer must be alive and writable, and nothing else must use it meanwhile.
    unsafe fn mutable<'a>(self) -> &'a mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: a buffer of `f32` that the caller keeps alive and does not use otherwise.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.len) }
    }
}
