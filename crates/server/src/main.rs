//! The stand-alone summation server and coordinator: `sumpter serve` and `sumpter coordinator`
//! for machines without Python.
//!
//! Options become settings of the one table in `sumpter-config`, so that this binary and the
//! Python command accept the same names, values and environment. Exit codes are also the same: 2
//! for wrong usage, 1 for a failure, each with one line on standard error.
#![forbid(unsafe_code)]

mod options;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sumpter_config::{Config, ConfigError};
use sumpter_node::NodeError;
use tracing_subscriber::EnvFilter;

use crate::options::{Command, Options};

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match run(&Options::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Config(error)) => report(&error, USAGE),
        Err(Failure::Node(error)) => report(&error, FAILURE),
        Err(Failure::Signals(error)) => report(&error, FAILURE),
    }
}

enum Failure {
    Config(ConfigError),
    Node(NodeError),
    Signals(std::io::Error),
}

fn run(command: &Command) -> Result<(), Failure> {
    let config = sumpter_config::load(&command.settings()).map_err(Failure::Config)?;
    start_log(&config);
    let stop = stop_flag().map_err(Failure::Signals)?;
    let mut told = false;
    // Once: the second signal needs no answer, see `stop_flag`.
    let mut interrupted = || stop.load(Ordering::Relaxed) && !std::mem::replace(&mut told, true);
    let done = match command {
        Command::Serve(_) => sumpter_node::serve(&config, &mut interrupted),
        Command::Coordinator(options) => {
            sumpter_node::run_coordinator(&options.listen, &config, &mut interrupted)
        }
    };
    done.map_err(Failure::Node)
}

/// Raised by SIGINT and SIGTERM, to leave in order; a second signal ends the process at once.
fn stop_flag() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Logs to standard error; standard output stays free for what a user asks for.
fn start_log(config: &Config) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&config.log))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

fn report(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let (red, plain) =
        if std::io::stderr().is_terminal() { ("\u{1b}[31m", "\u{1b}[0m") } else { ("", "") };
    eprintln!("{red}error: {error}{plain}");
    ExitCode::from(code)
}
