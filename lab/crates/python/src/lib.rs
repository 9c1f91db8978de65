//! `sumpter_lab._native`: what the laboratory needs of Rust, without algorithms.
//!
//! Errors are the product's exceptions, which `sumpter._native` defines.
//! `lab/python/sumpter_lab/_native.pyi` describes the module; a test compares the two.

mod bench;
mod errors;
mod scale;
mod whatif;

use pyo3::prelude::*;

/// Everything Python sees.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    bench::register(module)?;
    module.add_class::<scale::Members>()?;
    module.add_function(wrap_pyfunction!(scale::placement_s, module)?)?;
    module.add_function(wrap_pyfunction!(whatif::whatif_machines, module)?)?;
    module.add_function(wrap_pyfunction!(whatif::whatif, module)?)
}
