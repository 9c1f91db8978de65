//! Arrays of a framework as memory, by the C functions that its array type offers.
//!
//! DLPack calls them the exchange API: one call says where an array lies and what it looks like,
//! where Python needs one for each attribute. Layouts are those of `dlpack.h`, version 1.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Where a type has its exchange API, and the name of the capsule that holds it.
const ATTRIBUTE: &str = "__dlpack_c_exchange_api__";
const CAPSULE: &CStr = c"dlpack_exchange_api";

/// The version of the layouts below.
const MAJOR_VERSION: u32 = 1;

/// The device type of memory that this process may read and write.
const CPU: i32 = 1;

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: ElementType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct ExchangeApi {
    major: u32,
    minor: u32,
    _previous: *const c_void,
    _allocate: *const c_void,
    _to_owned: *const c_void,
    _from_owned: *const c_void,
    view: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    _stream: *const c_void,
}

/// An element type as DLPack numbers it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// An array in host memory, whose elements lie in order and without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Flat {
    pub address: usize,
    pub dtype: ElementType,
    pub elements: usize,
}

/// What the arrays of a type and of its subclasses are seen through.
pub struct Exchange {
    of: Py<PyAny>,
    api: NonNull<ExchangeApi>,
}

// SAFETY: the framework's table is constant and lives as long as the process; its functions are
// called by threads that are attached to the interpreter.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// That of the arrays of type `of`; `None` if it has none, or one of another version.
    pub fn of(of: &Bound<'_, PyAny>) -> PyResult<Option<Exchange>> {
        let Some(capsule) = of.getattr_opt(ATTRIBUTE)? else { return Ok(None) };
        let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
        let api = capsule.pointer_checked(Some(CAPSULE))?.cast::<ExchangeApi>();
        // SAFETY: a capsule of this name points to the table, which begins with its version in
        // all versions.
        let offers = unsafe {
            let table = api.as_ptr();
            (*table).major == MAJOR_VERSION && (*table).view.is_some()
        };
        Ok(offers.then(|| Exchange { of: of.clone().unbind(), api }))
    }

    /// The array's memory, if it lies in the host's as described; `None` of any other object.
    pub fn flat(&self, array: &Bound<'_, PyAny>) -> PyResult<Option<Flat>> {
        let py = array.py();
        let of = self.of.bind(py);
        if !array.get_type().is(of) && !array.is_instance(of)? {
            return Ok(None);
        }
        // SAFETY: `of` has checked the version and that there is this function.
        let view = unsafe { self.api.as_ref() }.view.expect("checked in `of`");
        let mut seen = DLTensor {
            data: std::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            dtype: ElementType { code: 0, bits: 0, lanes: 0 },
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the object is an instance of the type whose function this is, the thread is
        // attached to the interpreter, and the struct is laid out as the version says.
        if unsafe { view(array.as_ptr().cast(), &raw mut seen) } != 0 {
            // It cannot be seen so, such as a sparse one: others say what is wrong with it, if
            // anything.
            drop(PyErr::take(py));
            return Ok(None);
        }
        if seen.device_type != CPU || seen.data.is_null() {
            return Ok(None);
        }
        // SAFETY: shape and strides have `ndim` entries and live as long as the array is not
        // changed, which no thread may do while it is reduced.
        let shape = unsafe { extents(seen.shape, seen.ndim) };
        let elements = shape.iter().try_fold(1_i64, |all, extent| all.checked_mul(*extent));
        let Some(elements) = elements.and_then(|all| usize::try_from(all).ok()) else {
            return Ok(None);
        };
        // Without strides, the elements lie in order.
        let has_strides = elements > 0 && !seen.strides.is_null();
        // SAFETY: as above.
        if has_strides && !is_dense(shape, unsafe { extents(seen.strides, seen.ndim) }) {
            return Ok(None);
        }
        let address = seen.data as usize + seen.byte_offset as usize;
        Ok((elements > 0).then_some(Flat { address, dtype: seen.dtype, elements }))
    }
}

/// The `count` numbers at an address, which may be null if there are none.
///
/// # Safety
/// They must be there, and stay for the lifetime that the caller chooses.
unsafe fn extents<'a>(first: *const i64, count: i32) -> &'a [i64] {
    match usize::try_from(count) {
        // SAFETY: promised by the caller.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// Whether elements, of which there are some, lie in order and without gaps; a dimension of one
/// element may have any stride.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(extent, stride)| {
        let fits = *extent == 1 || *stride == expected;
        expected *= extent;
        fits
    })
}
