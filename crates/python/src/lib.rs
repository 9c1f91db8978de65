//! `sumpter._native`: the whole surface between Rust and Python.
//!
//! No algorithms here: arguments in, errors mapped, the GIL released while waiting.
//! `python/sumpter/_native.pyi` describes it; a test compares the two.

mod calls;
mod codecs;
mod dlpack;
mod errors;
mod fabric;
mod functions;
mod handle;
mod own_codec;
mod seat;
mod settings;
mod staged;
mod tensor;
mod trace;
mod worker;
mod xla;

use pyo3::prelude::*;

/// Everything Python sees.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("WIRE_VERSION", sumpter_wire::PROTOCOL_VERSION)?;
    errors::register(module)?;
    module.add_class::<worker::Worker>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<staged::Supply>()?;
    module.add_class::<staged::Arrival>()?;
    module.add_class::<staged::GateWatch>()?;
    module.add_class::<handle::Decision>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<calls::Calls>()?;
    module.add_class::<codecs::LowRank>()?;
    module.add_class::<functions::Coordinator>()?;
    module.add_class::<seat::Seat>()?;
    module.add_class::<xla::XlaPromise>()?;
    module.add_function(wrap_pyfunction!(functions::serve, module)?)?;
    module.add_function(wrap_pyfunction!(functions::run_coordinator, module)?)?;
    module.add_function(wrap_pyfunction!(functions::plan, module)?)?;
    module.add_function(wrap_pyfunction!(functions::status, module)?)?;
    module.add_function(wrap_pyfunction!(functions::drain, module)?)?;
    module.add_function(wrap_pyfunction!(functions::tune, module)?)?;
    module.add_function(wrap_pyfunction!(trace::trace, module)?)?;
    module.add_function(wrap_pyfunction!(trace::read_trace, module)?)?;
    module.add_function(wrap_pyfunction!(functions::default_credit, module)?)?;
    module.add_function(wrap_pyfunction!(functions::cut_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(functions::settings, module)?)?;
    module.add_function(wrap_pyfunction!(functions::metrics, module)?)?;
    module.add_function(wrap_pyfunction!(functions::check_environment, module)?)?;
    module.add_function(wrap_pyfunction!(functions::machine_id, module)?)?;
    module.add_function(wrap_pyfunction!(fabric::fabric_networks, module)?)?;
    module.add_function(wrap_pyfunction!(fabric::fabric_device_memory, module)?)?;
    module.add_function(wrap_pyfunction!(functions::generate_token, module)?)?;
    module.add_function(wrap_pyfunction!(codecs::codec, module)?)?;
    module.add_function(wrap_pyfunction!(codecs::codecs, module)?)?;
    module.add_function(wrap_pyfunction!(codecs::codec_keeps, module)?)?;
    module.add_function(wrap_pyfunction!(own_codec::register_codec, module)?)?;
    module.add_function(wrap_pyfunction!(codecs::codec_rates, module)?)?;
    module.add_function(wrap_pyfunction!(functions::update_rules, module)?)?;
    module.add_function(wrap_pyfunction!(functions::update_coefficients, module)?)?;
    module.add_function(wrap_pyfunction!(xla::xla_handlers, module)?)?;
    module.add_function(wrap_pyfunction!(functions::instruction_set, module)?)
}
