//! `Tensor`: what the Python fronts declare once and submit rounds of.

use std::num::NonZero;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sumpter_node::{OpRequest, Slices, Tensor as RustTensor};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank};

use crate::errors::ConfigError;
use crate::handle::{Handle, Supply, call};

/// A declared tensor.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Tensor {
    inner: Arc<RustTensor>,
    rank: Rank,
    bytes: usize,
    /// Whether this rank needs memory to send from and to receive into.
    sends: bool,
    receives: bool,
}

#[pymethods]
impl Tensor {
    /// Queues one operation on memory given by address; see the stub for the arguments.
    fn submit(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
    ) -> PyResult<Handle> {
        let memory = self.memory(send, receive, keep)?;
        Ok(Handle::new(self.inner.submit(OpRequest { tag, priority }, memory)))
    }

    /// Queues one operation whose contribution is supplied while it runs; see the stub.
    #[allow(clippy::too_many_arguments)]
    fn submit_staged(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
        slice_bytes: NonZero<usize>,
        on_slice: Py<PyAny>,
    ) -> PyResult<(Handle, Supply)> {
        let memory = self.memory(send, receive, keep)?;
        let on_final = Box::new(move |slice: usize| {
            call(&on_slice, (slice,));
        });
        let slices = Slices { bytes: slice_bytes.get(), on_final };
        let round = self.inner.submit_staged(OpRequest { tag, priority }, memory, slices);
        Ok((Handle::new(round.completion().clone()), Supply::new(round, self.bytes)))
    }

    /// Whether there is nothing to do: no elements.
    #[getter]
    fn is_empty(&self) -> bool {
        self.inner.spec().shape.contains(&0)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.spec().name
    }

    #[getter]
    fn collective(&self) -> &'static str {
        self.inner.spec().collective.name()
    }

    #[getter]
    fn shape(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(PyTuple::new(py, &self.inner.spec().shape)?.into_any().unbind())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.inner.spec().dtype.name()
    }

    #[getter]
    fn op(&self) -> &'static str {
        self.inner.spec().op.name()
    }
}

impl Tensor {
    /// A tensor of the worker of this rank.
    pub fn new(inner: Arc<RustTensor>, rank: Rank) -> Tensor {
        let spec = inner.spec();
        let elements = spec.elements().unwrap_or(0) as usize;
        let needs = |role: fn(Collective, Rank, Rank) -> bool| {
            elements > 0
                && spec.collective != Collective::Barrier
                && role(spec.collective, rank, spec.root)
        };
        Tensor {
            rank,
            bytes: elements * spec.dtype.size(),
            sends: needs(Collective::contributes),
            receives: needs(Collective::receives),
            inner,
        }
    }

    fn memory(&self, send: usize, receive: usize, keep: Py<PyAny>) -> PyResult<TensorMemory> {
        if self.inner.spec().collective == Collective::Barrier {
            return Ok(TensorMemory::zeros(1));
        }
        if (self.sends && send == 0) || (self.receives && receive == 0) {
            return Err(self.lacks_address(send));
        }
        let (contribution, result) = (send as *const u8, receive as *mut u8);
        // SAFETY: the caller promises (see the stub) that the addresses are contiguous memory of
        // this shape and dtype, which `keep` holds until the operation is done, and that nothing
        // else writes to what it has supplied.
        Ok(unsafe { TensorMemory::new(contribution, result, self.bytes, Box::new(keep)) })
    }

    fn lacks_address(&self, send: usize) -> PyErr {
        let what = if self.sends && send == 0 { "send from" } else { "receive into" };
        let (name, rank) = (&self.inner.spec().name, self.rank);
        ConfigError::new_err(format!("tensor '{name}': rank {rank} needs an address to {what}"))
    }
}
