//! Calls from programs that XLA has compiled for the CPU, by its foreign function interface.
//!
//! A program starts each array's rounds where the array is there, and waits for all of them where
//! the results are needed: what does not need them is computed meanwhile. The structures are those
//! of XLA's FFI, version 0, as its documentation describes them; nothing of XLA is linked.
//!
//! Every structure begins with its size, so that later versions may add fields at its end.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What XLA looks for in a capsule.
const CAPSULE_NAME: &std::ffi::CStr = c"xla._CUSTOM_CALL_TARGET";

/// The stage in which a call is carried out.
const EXECUTE: c_int = 3;

/// An extension that asks for the version of a handler.
const METADATA: c_int = 1;

/// The code of errors that have none of their own.
const INTERNAL: c_int = 13;

/// The minor versions of the interface that are known to have the fields used here where they are.
const MINORS: std::ops::RangeInclusive<c_int> = 1..=3;

/// The minor version of the process's XLA, which takes only handlers that know its own.
static MINOR: AtomicI32 = AtomicI32::new(0);

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: c_int,
    next: *mut Extension,
}

#[repr(C)]
struct Version {
    struct_size: usize,
    extension: *mut Extension,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
    traits: u32,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

/// An error of XLA's.
#[repr(C)]
pub struct XlaError {
    _opaque: [u8; 0],
}

/// What XLA waits for.
#[repr(C)]
struct Future {
    _opaque: [u8; 0],
}

#[repr(C)]
struct CreateError {
    struct_size: usize,
    extension: *mut Extension,
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct CreateFuture {
    struct_size: usize,
    extension: *mut Extension,
    future: *mut Future,
}

#[repr(C)]
struct FutureError {
    struct_size: usize,
    extension: *mut Extension,
    future: *mut Future,
    error: *mut XlaError,
}

type Unused = *const c_void;
type SetAvailable = unsafe extern "C" fn(*mut CreateFuture) -> *mut XlaError;
type SetError = unsafe extern "C" fn(*mut FutureError) -> *mut XlaError;

/// XLA's own functions.
#[repr(C)]
struct Api {
    struct_size: usize,
    extension: *mut Extension,
    version: Version,
    internal: Unused,
    create_error: unsafe extern "C" fn(*mut CreateError) -> *mut XlaError,
    // Messages and ends of errors, registration, streams, types, contexts, state, device memory,
    // and the pool of threads.
    _others: [Unused; 12],
    create_future: Option<unsafe extern "C" fn(*mut CreateFuture) -> *mut XlaError>,
    set_available: Option<SetAvailable>,
    set_error: Option<SetError>,
}

/// Arguments or results.
#[repr(C)]
struct Values {
    struct_size: usize,
    extension: *mut Extension,
    len: i64,
    kinds: *const c_int,
    values: *const *const c_void,
}

#[repr(C)]
struct Attributes {
    struct_size: usize,
    extension: *mut Extension,
    len: i64,
    kinds: *const c_int,
    names: *const *const c_void,
    values: *const *const c_void,
}

#[repr(C)]
struct Text {
    start: *const u8,
    len: usize,
}

#[repr(C)]
struct Buffer {
    struct_size: usize,
    extension: *mut Extension,
    dtype: c_int,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

/// A token has no memory, and orders calls.
const TOKEN: c_int = 17;

/// One call of a handler.
#[repr(C)]
pub struct CallFrame {
    struct_size: usize,
    extension: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: c_int,
    arguments: Values,
    results: Values,
    attributes: Attributes,
    future: *mut Future,
}

impl CallFrame {
    /// Answers a question about the handler; whether it was one.
    fn answers(&self) -> bool {
        let mut extension = self.extension;
        while !extension.is_null() {
            // SAFETY: XLA passes a list of extensions, whose kinds say which structures they are.
            unsafe {
                if (*extension).kind == METADATA {
                    let metadata = (*extension.cast::<MetadataExtension>()).metadata;
                    (*metadata).version.major = 0;
                    (*metadata).version.minor = MINOR.load(Ordering::Relaxed);
                    (*metadata).traits = 0;
                    return true;
                }
                extension = (*extension).next;
            }
        }
        self.stage != EXECUTE
    }

    fn buffers(values: &Values) -> impl Iterator<Item = &Buffer> {
        let len = usize::try_from(values.len).unwrap_or(0);
        // SAFETY: XLA passes so many values, all of them buffers, which outlive the call.
        let all = (0..len).map(|index| unsafe { &*(*values.values.add(index)).cast::<Buffer>() });
        all.filter(|buffer| buffer.dtype != TOKEN)
    }

    /// The text of the only attribute.
    fn text(&self) -> &[u8] {
        // SAFETY: this crate's lowering gives each call one attribute, a text.
        unsafe {
            let text = &*(*self.attributes.values).cast::<Text>();
            if text.len == 0 { &[] } else { slice::from_raw_parts(text.start, text.len) }
        }
    }

    fn api(&self) -> &'static Api {
        // SAFETY: XLA's table of functions lasts as long as the process.
        unsafe { &*self.api }
    }
}

impl Api {
    fn error(&self, message: &str) -> *mut XlaError {
        let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
        let mut arguments = CreateError {
            struct_size: size_of::<CreateError>(),
            extension: null_mut(),
            message: text.as_ptr(),
            code: INTERNAL,
        };
        // SAFETY: XLA copies the message.
        unsafe { (self.create_error)(&raw mut arguments) }
    }

    /// Something for XLA to wait for, if this version of it can.
    fn future(&'static self) -> Option<Waiting> {
        // In the table of jaxlib 0.4.37 and older they are elsewhere.
        if self.struct_size < offset_of!(Api, set_error) + size_of::<Unused>() {
            return None;
        }
        let (set_available, set_error) = (self.set_available?, self.set_error?);
        let mut arguments = CreateFuture {
            struct_size: size_of::<CreateFuture>(),
            extension: null_mut(),
            future: null_mut(),
        };
        // SAFETY: the table is long enough to have the function.
        let error = unsafe { (self.create_future?)(&raw mut arguments) };
        let future = arguments.future;
        let is_made = error.is_null() && !future.is_null();
        is_made.then_some(Waiting { api: self, set_available, set_error, future })
    }
}

/// What XLA waits for in a program; once set, nothing of the call may be touched any more.
#[pyclass(module = "sumpter._native", frozen)]
pub struct XlaPromise {
    waiting: Mutex<Option<Waiting>>,
}

struct Waiting {
    api: &'static Api,
    set_available: SetAvailable,
    set_error: SetError,
    future: *mut Future,
}

// SAFETY: XLA's futures may be set from any thread.
unsafe impl Send for Waiting {}

impl XlaPromise {
    fn take(&self) -> PyResult<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take().ok_or_else(|| PyRuntimeError::new_err("the call has ended already"))
    }
}

#[pymethods]
impl XlaPromise {
    /// The results are in the program's memory.
    fn set(&self, py: Python<'_>) -> PyResult<()> {
        let Waiting { set_available, future, .. } = self.take()?;
        let set = SendPointer(future);
        // The rest of the program may run in this thread.
        py.detach(move || {
            let set = set;
            let mut arguments = CreateFuture {
                struct_size: size_of::<CreateFuture>(),
                extension: null_mut(),
                future: set.0,
            };
            // SAFETY: a future that XLA has made, and that is set once.
            unsafe { set_available(&raw mut arguments) };
        });
        Ok(())
    }

    /// The call has failed, for this reason.
    fn fail(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        let Waiting { api, set_error, future, .. } = self.take()?;
        let (set, error) = (SendPointer(future), SendPointer(api.error(message)));
        py.detach(move || {
            let (set, error) = (set, error);
            let mut arguments = FutureError {
                struct_size: size_of::<FutureError>(),
                extension: null_mut(),
                future: set.0,
                error: error.0,
            };
            // SAFETY: as above; the error is XLA's from now on.
            unsafe { set_error(&raw mut arguments) };
        });
        Ok(())
    }
}

struct SendPointer<T>(*mut T);

// SAFETY: what XLA makes may be handed from thread to thread.
unsafe impl<T> Send for SendPointer<T> {}

/// What Python does in a call: `start(text, address) -> number` and
/// `finish(text, numbers, addresses, promise)`.
struct Hooks {
    start: Py<PyAny>,
    finish: Py<PyAny>,
}

static HOOKS: Mutex<Option<Hooks>> = Mutex::new(None);

fn hook(py: Python<'_>, of: impl Fn(&Hooks) -> &Py<PyAny>) -> PyResult<Py<PyAny>> {
    let hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    let hooks = hooks.as_ref().ok_or_else(|| {
        PyRuntimeError::new_err("a compiled program calls sumpter.jax, which is not imported")
    })?;
    Ok(of(hooks).clone_ref(py))
}

/// Sets what calls do, and returns the handlers that start rounds and wait for them, as XLA's
/// capsules; see the stub.
#[pyfunction]
pub fn xla_handlers(
    py: Python<'_>,
    version: (c_int, c_int),
    start: Py<PyAny>,
    finish: Py<PyAny>,
) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
    let (major, minor) = version;
    if major != 0 || !MINORS.contains(&minor) {
        return Ok(None);
    }
    MINOR.store(minor, Ordering::Relaxed);
    *HOOKS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Hooks { start, finish });
    let capsule = |handler: Handler| {
        // SAFETY: the function lasts as long as the process, and the name is static.
        unsafe {
            let made = ffi::PyCapsule_New(handler as *mut c_void, CAPSULE_NAME.as_ptr(), None);
            Bound::from_owned_ptr_or_err(py, made).map(Bound::unbind)
        }
    };
    Ok(Some((capsule(start_call)?, capsule(finish_call)?)))
}

type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut XlaError;

/// Starts the rounds of one array. Its only result is their number, in eight bytes.
unsafe extern "C" fn start_call(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: XLA passes a call frame that outlives the call.
    let frame = unsafe { &mut *frame };
    carry_out(frame, |frame| {
        let data = |values| CallFrame::buffers(values).next().map(|buffer| buffer.data);
        let (array, number) = (data(&frame.arguments), data(&frame.results));
        let array = array.map_or(0, |data| data as usize);
        let started: u64 = Python::attach(|py| {
            let text = PyBytes::new(py, frame.text());
            hook(py, |hooks| &hooks.start)?.call1(py, (text, array))?.extract(py)
        })?;
        if let Some(number) = number {
            // SAFETY: the lowering declares a result of eight bytes.
            unsafe { number.cast::<u64>().write_unaligned(started) };
        }
        Ok(())
    })
}

/// Waits for rounds, whose numbers are its arguments; the results are those of the arrays.
unsafe extern "C" fn finish_call(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: as above.
    let frame = unsafe { &mut *frame };
    carry_out(frame, |frame| {
        // SAFETY: arguments are the results of `start_call`.
        let number = |buffer: &Buffer| unsafe { buffer.data.cast::<u64>().read_unaligned() };
        let numbers: Vec<u64> = CallFrame::buffers(&frame.arguments).map(number).collect();
        let results: Vec<usize> =
            CallFrame::buffers(&frame.results).map(|buffer| buffer.data as usize).collect();
        let waiting = frame.api().future();
        let future = waiting.as_ref().map(|waiting| waiting.future);
        Python::attach(|py| {
            let text = PyBytes::new(py, frame.text());
            let promise = waiting
                .map(|waiting| Py::new(py, XlaPromise { waiting: Mutex::new(Some(waiting)) }))
                .transpose()?;
            hook(py, |hooks| &hooks.finish)?.call1(py, (text, numbers, results, promise))
        })?;
        if let Some(future) = future {
            frame.future = future;
        }
        Ok(())
    })
}

/// Answers, or calls; errors and panics become XLA's errors.
fn carry_out(
    frame: &mut CallFrame,
    call: impl FnOnce(&mut CallFrame) -> PyResult<()>,
) -> *mut XlaError {
    if frame.answers() {
        return null_mut();
    }
    let api = frame.api();
    match catch_unwind(AssertUnwindSafe(|| call(frame))) {
        Ok(Ok(())) => null_mut(),
        Ok(Err(error)) => api.error(&error.to_string()),
        Err(_) => api.error("sumpter panicked: see the program's output"),
    }
}
