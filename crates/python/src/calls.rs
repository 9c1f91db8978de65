//! `Calls`: numbers the collectives of a process group, and begins those that come again.
//!
//! What a training step begins is the same in every step. With cold caches, each attribute that
//! Python reads and each function that it calls takes about a microsecond, so a call that was made
//! before is begun in one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString};

use crate::dlpack::{ElementType, Exchange};
use crate::handle::Handle;
use crate::tensor::Tensor;

/// The number of a reduction, element type and number of elements.
type Key = (i64, ElementType, usize);

/// A call that has begun: its round, if there is one, its label and its number.
type Begun = (Option<Handle>, Py<PyString>, u64);

/// Reductions in place of arrays that look alike.
struct Known {
    /// Has the iterator of the tensors for the next rounds, which begins anew when ranks agree so.
    /// `None` if no other rank takes part.
    cycle: Option<Py<PyAny>>,
    /// The call as messages show it, and as it is compared with those of other ranks.
    label: Py<PyString>,
    /// What its tags end with.
    signature: String,
}

/// The calls of a process group.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Calls {
    /// What tags begin with.
    prefix: String,
    exchange: Option<Exchange>,
    count: AtomicU64,
    known: Mutex<HashMap<Key, Arc<Known>>>,
}

#[pymethods]
impl Calls {
    /// Of the group `label`, on arrays of the type `kind`; see the stub.
    #[new]
    fn new(label: &str, kind: &Bound<'_, PyAny>) -> PyResult<Calls> {
        let (prefix, exchange) = (format!("{label}#"), Exchange::of(kind)?);
        Ok(Calls { prefix, exchange, count: AtomicU64::new(0), known: Mutex::default() })
    }

    /// How many calls have been numbered.
    #[getter]
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Numbers a call that `reduce` does not begin.
    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on, `reduce` begins calls such as the one that is about to be made; see the stub.
    fn learn(
        &self,
        like: &Bound<'_, PyAny>,
        elements: usize,
        op: i64,
        cycle: Option<Py<PyAny>>,
        label: Py<PyString>,
        signature: &str,
    ) -> PyResult<()> {
        let flat = self.exchange.as_ref().map(|exchange| exchange.flat(like)).transpose()?;
        if let Some(flat) = flat.flatten() {
            let known = Arc::new(Known { cycle, label, signature: format!("|{signature}") });
            self.lock().insert((op, flat.dtype, elements), known);
        }
        Ok(())
    }

    /// Forgets what was learned.
    fn forget(&self) {
        // Dropped without the lock: what Python does then may come here again.
        let known = std::mem::take(&mut *self.lock());
        drop(known);
    }

    /// Begins a reduction of an array into itself, if one such was learned; see the stub.
    fn reduce(&self, array: &Bound<'_, PyAny>, op: i64, priority: i32) -> PyResult<Option<Begun>> {
        let py = array.py();
        let Some(exchange) = &self.exchange else { return Ok(None) };
        let Some(flat) = exchange.flat(array)? else { return Ok(None) };
        let known = self.lock().get(&(op, flat.dtype, flat.elements)).cloned();
        let Some(known) = known else { return Ok(None) };
        // The memory of a tensor that is the negative of what lies there looks like any other.
        if array.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
            return Ok(None);
        }
        let Some(cycle) = &known.cycle else {
            return Ok(Some((None, known.label.clone_ref(py), self.next())));
        };
        let tensor = next_of(cycle.bind(py))?;
        // What is kept is the memory, even if the caller's tensor gets another meanwhile.
        let memory = array.call_method0(intern!(py, "untyped_storage"))?.unbind();
        let number = self.next();
        let tag = [&self.prefix, &*number.to_string(), &known.signature].concat();
        let address = flat.address;
        let round = tensor.get().begin(address, address, priority, tag, memory)?;
        Ok(Some((Some(round), known.label.clone_ref(py), number)))
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tensor whose turn it is.
fn next_of<'py>(cycle: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Tensor>> {
    let py = cycle.py();
    let turns = cycle.getattr(intern!(py, "turns"))?.cast_into::<PyIterator>()?;
    let declared = turns.into_iter().next().expect("turns have no end")?;
    Ok(declared.getattr(intern!(py, "native"))?.cast_into::<Tensor>()?)
}
