//! The settings of a process, and its log.

use std::collections::HashMap;
use std::io::IsTerminal;

use pyo3::{PyResult, Python};
use sumpter_config::Config;

use crate::errors::from_config;
use crate::own_codec::import_codecs;

/// Loads the settings, with these values first.
pub fn load(settings: HashMap<String, String>) -> PyResult<Config> {
    let overrides: Vec<_> = settings.into_iter().collect();
    let known = sumpter_node::codecs();
    let config = sumpter_config::load_knowing(&overrides, &known).map_err(from_config)?;
    init_log(&config.log);
    Ok(config)
}

/// The same for a process that sums: it imports the modules of the setting `codecs`, and its codec
/// must be one that it has then.
pub fn load_with_codecs(py: Python<'_>, settings: HashMap<String, String>) -> PyResult<Config> {
    let mut config = load(settings)?;
    import_codecs(py, &config.codecs)?;
    config.settle_compression(&sumpter_node::codecs()).map_err(from_config)?;
    Ok(config)
}

/// Sends log lines of at least this level to standard error; the first call counts.
fn init_log(level: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second call finds a subscriber in place, which is what is wanted.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .try_init();
}
