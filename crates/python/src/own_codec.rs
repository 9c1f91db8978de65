//! Codecs that users write in Python: one call with two arrays for each block.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};
use sumpter_codec::{Arguments, BLOCK, CodecError, CustomCodec, Key};

use crate::errors::{ConfigError, from_codec};

/// The most bytes of a block: twice what its elements take. More would be a mistake.
const MOST_BYTES: usize = 2 * BLOCK * size_of::<f32>();

/// Has codecs of this name be those that `make` returns; see the stub.
#[pyfunction]
pub fn register_codec(name: String, make: Py<PyAny>) -> PyResult<()> {
    let made: Mutex<BTreeMap<Arguments, Arc<PythonCodec>>> = Mutex::default();
    let codec = name.clone();
    let factory = move |arguments: &Arguments| {
        // Not held while Python runs, which may wait for who waits for it.
        let known = lock(&made).get(arguments).cloned();
        let own = match known {
            Some(own) => own,
            None => {
                let own = Python::attach(|py| {
                    PythonCodec::new(py, &make, arguments).map_err(|error| said(py, &error))
                });
                let own = own.map_err(|reason| CodecError::Unsupported {
                    codec: codec.clone(),
                    reason: format!("its maker raised {reason}"),
                })?;
                lock(&made).entry(arguments.clone()).or_insert(Arc::new(own)).clone()
            }
        };
        Ok(own as Arc<dyn CustomCodec>)
    };
    sumpter_node::register_codec(&name, Arc::new(factory)).map_err(from_codec)
}

/// Imports the modules that register codecs.
pub fn import_codecs(py: Python<'_>, modules: &[String]) -> PyResult<()> {
    for module in modules {
        if let Err(error) = PyModule::import(py, module.as_str()) {
            let text = format!("setting codecs: importing {module} raised {}", said(py, &error));
            let refused = ConfigError::new_err(text);
            refused.set_cause(py, Some(error));
            return Err(refused);
        }
    }
    Ok(())
}

/// A codec in Python, with certain arguments.
struct PythonCodec {
    codec: Py<PyAny>,
    /// Bytes of blocks of 1, 2, .. elements.
    lengths: Vec<usize>,
    /// Arrays for blocks of so many elements that no thread uses now.
    spare: Mutex<BTreeMap<usize, Vec<Arrays>>>,
}

/// What a call gets: elements, and bytes. Both are used again for the next block.
struct Arrays {
    x: (Py<PyAny>, PyBuffer<f32>),
    code: (Py<PyAny>, PyBuffer<u8>),
}

impl Arrays {
    fn new(py: Python<'_>, elements: usize, bytes: usize) -> PyResult<Arrays> {
        let zeros = |len: usize, dtype: &str| {
            PyModule::import(py, "numpy")?.call_method1("zeros", (len, dtype))
        };
        let (x, code) = (zeros(elements, "float32")?, zeros(bytes, "uint8")?);
        let buffers = (PyBuffer::get(&x)?, PyBuffer::get(&code)?);
        Ok(Arrays { x: (x.unbind(), buffers.0), code: (code.unbind(), buffers.1) })
    }
}

impl fmt::Debug for PythonCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PythonCodec").field("codec", &self.codec).finish_non_exhaustive()
    }
}

impl PythonCodec {
    fn new(py: Python<'_>, make: &Py<PyAny>, arguments: &Arguments) -> PyResult<PythonCodec> {
        let given = PyDict::new(py);
        for (key, value) in arguments {
            given.set_item(key, value)?;
        }
        let codec = make.call(py, (), Some(&given))?;
        let bytes = |elements: usize| {
            let bytes: usize = codec.call_method1(py, "block_bytes", (elements,))?.extract(py)?;
            match (1..=MOST_BYTES).contains(&bytes) {
                true => Ok(bytes),
                false => Err(ConfigError::new_err(format!(
                    "block_bytes({elements}) is {bytes}: give 1 to {MOST_BYTES}"
                ))),
            }
        };
        let lengths = (1..=BLOCK).map(bytes).collect::<PyResult<_>>()?;
        Ok(PythonCodec { codec, lengths, spare: Mutex::default() })
    }

    /// Runs one call with arrays of a block of so many elements.
    fn run(
        &self,
        method: &str,
        elements: usize,
        call: impl FnOnce(Python<'_>, &Arrays) -> PyResult<()>,
    ) -> Result<(), String> {
        Python::attach(|py| {
            let spare = lock(&self.spare).get_mut(&elements).and_then(Vec::pop);
            let arrays = spare.map_or_else(|| Arrays::new(py, elements, self.bytes(elements)), Ok);
            let done = arrays.and_then(|arrays| {
                call(py, &arrays)?;
                lock(&self.spare).entry(elements).or_default().push(arrays);
                Ok(())
            });
            done.map_err(|error| format!("{method}() raised {}", said(py, &error)))
        })
    }

    fn bytes(&self, elements: usize) -> usize {
        self.lengths[elements - 1]
    }
}

impl CustomCodec for PythonCodec {
    fn block_len(&self, elements: usize) -> usize {
        self.bytes(elements)
    }

    fn encode(&self, _: Key, _: u64, x: &[f32], out: &mut [u8]) -> Result<(), String> {
        // What is not written must be the same whatever was encoded before.
        out.fill(0);
        self.run("encode", x.len(), |py, Arrays { x: elements, code }| {
            elements.1.copy_from_slice(py, x)?;
            code.1.copy_from_slice(py, out)?;
            self.codec.call_method1(py, "encode", (elements.0.bind(py), code.0.bind(py)))?;
            code.1.copy_to_slice(py, out)
        })
    }

    fn decode(&self, _: Key, _: u64, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        out.fill(0.0);
        self.run("decode", out.len(), |py, Arrays { x: elements, code }| {
            code.1.copy_from_slice(py, bytes)?;
            elements.1.copy_from_slice(py, out)?;
            self.codec.call_method1(py, "decode", (code.0.bind(py), elements.0.bind(py)))?;
            elements.1.copy_to_slice(py, out)
        })
    }
}

/// What an exception says, as `ValueError: too large`.
fn said(py: Python<'_>, error: &PyErr) -> String {
    let kind = error.get_type(py);
    let name = kind.name().map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    format!("{name}: {}", error.value(py))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
