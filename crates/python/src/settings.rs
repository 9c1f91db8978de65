//! The settings of a process, and its log.

use std::collections::HashMap;
use std::io::IsTerminal;

use pyo3::PyResult;
use sumpter_config::Config;

use crate::errors::from_config;

/// Loads the settings, with these values first.
pub fn load(settings: HashMap<String, String>) -> PyResult<Config> {
    let overrides: Vec<_> = settings.into_iter().collect();
    let config = sumpter_config::load(&overrides).map_err(from_config)?;
    init_log(&config.log);
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
