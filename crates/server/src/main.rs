//! The stand-alone summation server and coordinator: `sumpter serve` and `sumpter coordinator`
//! for machines without Python.
//!
//! Options become settings of the one table in `sumpter-config`, so that this binary and the
//! Python command accept the same names, values and environment. Exit codes are also the same: 2
//! for wrong usage, 1 for a failure, each with one line on standard error, and 128 plus its number
//! after a signal, so that a cluster manager can tell a server that was evicted from one whose work
//! is done.
#![forbid(unsafe_code)]

mod health;
mod options;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sumpter_config::{Config, ConfigError};
use sumpter_node::NodeError;
use tracing_subscriber::EnvFilter;

use crate::health::HealthError;
use crate::options::{Command, Options};

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match run(&Options::parse().command) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(128 + signal),
        Err(Failure::Config(error)) => report(&error, USAGE),
        Err(Failure::Node(error)) => report(&error, FAILURE),
        Err(Failure::Signals(error)) => report(&error, FAILURE),
        Err(Failure::Health(error @ HealthError::NoPort)) => report(&error, USAGE),
        Err(Failure::Health(error)) => report(&error, FAILURE),
    }
}

enum Failure {
    Config(ConfigError),
    Node(NodeError),
    Signals(std::io::Error),
    Health(HealthError),
}

/// Runs a role until its work is done, or until a signal, which is the answer.
fn run(command: &Command) -> Result<Option<u8>, Failure> {
    let config = sumpter_config::load(&command.settings()).map_err(Failure::Config)?;
    start_log(&config);
    let stop = Stop::on_signals().map_err(Failure::Signals)?;
    let mut told = false;
    // Once: the second signal needs no answer, see `Stop`.
    let mut interrupted = || stop.signal().is_some() && !std::mem::replace(&mut told, true);
    let done = match command {
        Command::Serve(_) if !config.codecs.is_empty() => Err(NodeError::Refused(format!(
            "setting codecs ({}): this server has no Python to import modules: run `sumpter serve` \
             of the Python package, or unset codecs",
            config.codecs.join(",")
        ))),
        Command::Serve(_) => sumpter_node::serve(&config, &mut interrupted),
        Command::Coordinator(options) => {
            sumpter_node::run_coordinator(&options.listen, &config, &mut interrupted)
        }
        Command::Health(_) => {
            return health::check(config.metrics()).map(|()| None).map_err(Failure::Health);
        }
    };
    done.map_err(Failure::Node)?;
    Ok(stop.signal())
}

/// Raised by SIGINT and SIGTERM, to leave in order; a second signal ends the process at once.
struct Stop(Arc<AtomicUsize>);

impl Stop {
    fn on_signals() -> std::io::Result<Stop> {
        let raised = Arc::new(AtomicBool::new(false));
        let number = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&raised))?;
            flag::register(signal, Arc::clone(&raised))?;
            flag::register_usize(signal, Arc::clone(&number), signal.unsigned_abs() as usize)?;
        }
        Ok(Stop(number))
    }

    /// The signal that has come.
    fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }
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
