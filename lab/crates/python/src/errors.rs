//! The product's exceptions, as this module raises them.

use pyo3::import_exception;
use pyo3::prelude::*;
use sumpter_bench::BenchError;
use sumpter_whatif::WhatifError;

import_exception!(sumpter._native, ConfigError);
import_exception!(sumpter._native, SumpterError);

/// The exception of a benchmark's error.
pub fn from_bench(error: BenchError) -> PyErr {
    let text = error.to_string();
    match error {
        BenchError::Argument(_) => ConfigError::new_err(text),
        _ => SumpterError::new_err(text),
    }
}

/// The exception of a what-if question's error.
pub fn from_whatif(error: WhatifError) -> PyErr {
    ConfigError::new_err(error.to_string())
}
