//! `Tensor`: what the Python fronts declare once and submit rounds of.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyTuple};
use sumpter_node::{CodecMemory, CodecState, OpRequest, OrderSpan, Slices, Tensor as RustTensor};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, Rule, Update};

use crate::errors::{ConfigError, from_op};
use crate::handle::{Decision, Handle, call};
use crate::staged::Supply;

/// A declared tensor.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Tensor {
    inner: Arc<RustTensor>,
    rank: Rank,
    /// The bytes of the tensor that are in this rank's memory.
    own: Range<usize>,
    /// Whether this rank needs memory to send from and to receive into.
    sends: bool,
    receives: bool,
    /// Rounds begun so far, and the priority of the last one.
    rounds: AtomicU64,
    priority: AtomicI32,
}

#[pymethods]
impl Tensor {
    /// Queues one operation on memory given by address; see the stub for the arguments.
    #[pyo3(signature = (
        send, receive, priority, tag, keep, update=None, order=None, rescale=1.0
    ))]
    #[allow(clippy::too_many_arguments)] // One argument a field of the Python signature.
    fn submit(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
        update: Option<[f64; Update::COEFFICIENTS]>,
        order: Option<Vec<(usize, usize, u32, u32)>>,
        rescale: f32,
    ) -> PyResult<Handle> {
        let update = self.update(update, send == receive)?;
        self.check_rescale(rescale)?;
        let memory = self.memory(send, receive, keep)?;
        self.note(priority);
        let request = OpRequest { tag, priority, update, order: spans(order), rescale };
        Ok(Handle::new(self.inner.submit(request, memory)))
    }

    /// Queues one operation whose contribution is supplied while it runs; see the stub.
    #[pyo3(signature = (
        send, receive, priority, tag, keep, slice_bytes, on_slice, update=None, order=None,
        rescale=1.0
    ))]
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
        update: Option<[f64; Update::COEFFICIENTS]>,
        order: Option<Vec<(usize, usize, u32, u32)>>,
        rescale: f32,
    ) -> PyResult<(Handle, Supply)> {
        let update = self.update(update, send == receive)?;
        self.check_rescale(rescale)?;
        let memory = self.memory(send, receive, keep)?;
        self.note(priority);
        let request = OpRequest { tag, priority, update, order: spans(order), rescale };
        let round = self.inner.submit_staged(request, memory, slices(slice_bytes, on_slice));
        Ok((Handle::new(round.completion().clone()), Supply::new(round, self.own.len())))
    }

    /// Queues one round of a variable of which it is decided later what it does; see the stub.
    fn submit_deferred(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
    ) -> PyResult<(Handle, Decision)> {
        let rule = self.rule_to_defer()?;
        self.check_apart(send == receive)?;
        let memory = self.memory(send, receive, keep)?;
        self.note(priority);
        let request = OpRequest { tag, priority, ..OpRequest::default() };
        let round = self.inner.submit_deferred(request, rule, memory);
        Ok((Handle::new(round.completion().clone()), Decision::new(round)))
    }

    /// Queues one round as `submit_deferred` does, whose gradient is supplied while it runs.
    #[allow(clippy::too_many_arguments)]
    fn submit_staged_deferred(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
        slice_bytes: NonZero<usize>,
        on_slice: Py<PyAny>,
    ) -> PyResult<(Handle, Supply, Decision)> {
        let rule = self.rule_to_defer()?;
        self.check_apart(send == receive)?;
        let memory = self.memory(send, receive, keep)?;
        self.note(priority);
        let request = OpRequest { tag, priority, ..OpRequest::default() };
        let slices = slices(slice_bytes, on_slice);
        let (round, deferred) = self.inner.submit_staged_deferred(request, rule, memory, slices);
        let handle = Handle::new(round.completion().clone());
        Ok((handle, Supply::new(round, self.own.len()), Decision::new(deferred)))
    }

    /// Counts a round that begins, or one of a single rank, for which nothing is to be done.
    fn note(&self, priority: i32) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.priority.store(priority, Ordering::Relaxed);
    }

    /// How many rounds have begun.
    #[getter]
    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// The priority of the last round; 0 before the first.
    #[getter]
    fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Gives a variable its value and perhaps its slots; see the stub.
    fn set_state(&self, py: Python<'_>, parts: Vec<PyBuffer<u8>>) -> PyResult<Handle> {
        let parts = parts.iter().map(|part| part.to_vec(py)).collect::<PyResult<_>>()?;
        Ok(Handle::new(self.inner.set_state(parts)))
    }

    /// What the codec keeps from round to round, residual and momentum, and where its random
    /// numbers go on; see the stub.
    #[allow(clippy::type_complexity)] // Three parts, each of which may lack.
    fn codec_memory(
        &self,
        py: Python<'_>,
    ) -> PyResult<(Option<Py<PyByteArray>>, Option<Py<PyByteArray>>, Option<(u32, u32)>)> {
        let CodecState { memory, draws } =
            py.detach(|| self.inner.codec_memory()).map_err(from_op)?;
        let bytes = |part: Vec<u8>| PyByteArray::new(py, &part).unbind();
        let draws = draws.map(|draws| (draws.tensor.0, draws.round.0));
        Ok((memory.residual.map(bytes), memory.velocity.map(bytes), draws))
    }

    /// Has the codec go on from what another run has kept; see the stub.
    fn set_codec_memory(
        &self,
        py: Python<'_>,
        residual: Option<PyBuffer<u8>>,
        velocity: Option<PyBuffer<u8>>,
    ) -> PyResult<Handle> {
        let copy = |part: Option<PyBuffer<u8>>| part.map(|part| part.to_vec(py)).transpose();
        let memory = CodecMemory { residual: copy(residual)?, velocity: copy(velocity)? };
        Ok(Handle::new(self.inner.set_codec_memory(memory)))
    }

    /// This rank cannot take part in the rounds: they fail on all ranks; see the stub.
    fn refuse(&self, reason: &str) {
        self.inner.refuse(reason);
    }

    /// What this rank mirrors of a variable; see the stub.
    fn mirrored(&self, py: Python<'_>) -> Vec<(usize, usize, Vec<Py<PyBytes>>)> {
        let mirrored = py.detach(|| self.inner.mirrored());
        let bytes = |part: Vec<u8>| PyBytes::new(py, &part).unbind();
        mirrored
            .into_iter()
            .map(|(elements, parts)| {
                (elements.start, elements.end, parts.into_iter().map(bytes).collect())
            })
            .collect()
    }

    /// Whether there is nothing to do: no elements.
    #[getter]
    fn is_empty(&self) -> bool {
        self.inner.spec().shape.contains(&0)
    }

    /// What this rank holds of a sharded tensor: first byte and size; see the stub.
    #[getter]
    fn shard(&self) -> Option<(usize, usize)> {
        self.inner.held().map(|_| (self.own.start, self.own.len()))
    }

    /// What each rank of this rank's device group holds: rank, first byte and size; see the stub.
    #[getter]
    fn shards(&self) -> Option<Vec<(u32, usize, usize)>> {
        let held = self.inner.held()?.iter();
        Some(held.map(|(rank, bytes)| (rank.0, bytes.start, bytes.len())).collect())
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

    /// The codec by which it travels, with its arguments; empty for none.
    #[getter]
    fn compression(&self) -> &str {
        &self.inner.spec().compression
    }
}

impl Tensor {
    /// A tensor of the worker of this rank.
    pub fn new(inner: Arc<RustTensor>, rank: Rank) -> Tensor {
        let spec = inner.spec();
        let bytes = spec.elements().unwrap_or(0) as usize * spec.dtype.size();
        let held = inner.held().into_iter().flatten().find(|(member, _)| *member == rank);
        let own = held.map_or(0..bytes, |(_, bytes)| bytes.clone());
        let needs = |role: fn(Collective, Rank, Rank) -> bool| {
            !own.is_empty()
                && spec.collective != Collective::Barrier
                && role(spec.collective, rank, spec.root)
        };
        Tensor {
            rank,
            sends: needs(Collective::contributes),
            receives: needs(Collective::receives),
            own,
            inner,
            rounds: AtomicU64::new(0),
            priority: AtomicI32::new(0),
        }
    }

    /// Queues one operation without an update, as `submit` does.
    pub fn begin(
        &self,
        send: usize,
        receive: usize,
        priority: i32,
        tag: String,
        keep: Py<PyAny>,
    ) -> PyResult<Handle> {
        self.submit(send, receive, priority, tag, keep, None, None, 1.0)
    }

    /// A round's update, of a variable; nothing of any other tensor.
    fn update(
        &self,
        coefficients: Option<[f64; Update::COEFFICIENTS]>,
        in_place: bool,
    ) -> PyResult<Option<Update>> {
        let (spec, wrong) = (self.inner.spec(), ConfigError::new_err::<String>);
        let name = &spec.name;
        match (spec.rule, coefficients) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(wrong(format!("tensor '{name}' has no update rule"))),
            (Some(_), None) => {
                Err(wrong(format!("variable '{name}': an update needs coefficients")))
            }
            (Some(rule), Some(coefficients)) => {
                self.check_apart(in_place)?;
                let update = Update::from_coefficients(rule, coefficients);
                let wrong = || {
                    wrong(format!(
                        "variable '{name}': coefficients {coefficients:?} are not all finite"
                    ))
                };
                Ok(Some(update.ok_or_else(wrong)?))
            }
        }
    }

    /// The rule of a round that is decided later.
    fn rule_to_defer(&self) -> PyResult<Rule> {
        let name = &self.inner.spec().name;
        let lacks = || ConfigError::new_err(format!("tensor '{name}' has no update rule to defer"));
        self.inner.spec().rule.ok_or_else(lacks)
    }

    /// A variable's value must not come into the memory of its gradient.
    fn check_apart(&self, in_place: bool) -> PyResult<()> {
        let name = &self.inner.spec().name;
        match in_place && !self.own.is_empty() {
            true => Err(ConfigError::new_err(format!(
                "variable '{name}': the gradient and the value must not lie in the same memory"
            ))),
            false => Ok(()),
        }
    }

    /// Residuals can be multiplied by any number; momentum and errors would be lost with others.
    fn check_rescale(&self, rescale: f32) -> PyResult<()> {
        let name = &self.inner.spec().name;
        match rescale.is_finite() {
            true => Ok(()),
            false => {
                let text = format!("tensor '{name}': residuals cannot be multiplied by {rescale}");
                Err(ConfigError::new_err(text))
            }
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
        Ok(unsafe { TensorMemory::new(contribution, result, self.own.len(), Box::new(keep)) })
    }

    fn lacks_address(&self, send: usize) -> PyErr {
        let what = if self.sends && send == 0 { "send from" } else { "receive into" };
        let (name, rank) = (&self.inner.spec().name, self.rank);
        ConfigError::new_err(format!("tensor '{name}': rank {rank} needs an address to {what}"))
    }
}

/// In which order a round is to change a variable, if that is given.
fn spans(order: Option<Vec<(usize, usize, u32, u32)>>) -> Vec<OrderSpan> {
    let span =
        |(start, end, position, answer)| OrderSpan { elements: start..end, position, answer };
    order.unwrap_or_default().into_iter().map(span).collect()
}

/// Slices of a result, each of which is announced by a call of `on_slice`.
fn slices(bytes: NonZero<usize>, on_slice: Py<PyAny>) -> Slices {
    let on_final = Box::new(move |slice: usize| {
        call(&on_slice, (slice,));
    });
    Slices { bytes: bytes.get(), on_final }
}
