//! The command line, and how it becomes settings.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Sums gradients for Sumpter jobs on a machine without Python.
#[derive(Debug, Parser)]
#[command(name = "sumpter-server", version, arg_required_else_help = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sum gradients on this machine, for one job or for all of a shared coordinator.
    #[command(
        after_help = "Example: sumpter-server serve --join 10.0.0.1:7700 --token-file job.token"
    )]
    Serve(Serve),
    /// Run a coordinator, where the workers and servers of jobs find each other.
    #[command(after_help = "Example: sumpter-server coordinator --listen 0.0.0.0:7700 \
                      --token-file job.token")]
    Coordinator(Coordinator),
    /// Tell whether a coordinator or server on this machine answers at its metrics port, by the
    /// exit code; the health check of containers.
    #[command(after_help = "Example: sumpter-server health --metrics-port 9464")]
    Health(Health),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The job's coordinator [default: SUMPTER_COORDINATOR]
    #[arg(long, value_name = "HOST:PORT")]
    join: Option<String>,
    /// Summing threads [default: one per core]
    #[arg(long, value_name = "N")]
    lanes: Option<String>,
    /// Port of the first lane; lane i listens on PORT+i [default: any free ports]
    #[arg(long)]
    port: Option<String>,
    /// Network interfaces, or their addresses, that workers reach this machine by, with commas
    /// between [default: the one that leads to the coordinator]
    #[arg(long, value_name = "NAME,..")]
    interfaces: Option<String>,
    /// Tell Prometheus what is counted at `http://127.0.0.1:PORT/metrics`; for other addresses
    /// --set metrics_address=IP [default: SUMPTER_METRICS_PORT, or not at all]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub struct Coordinator {
    /// Where workers and servers find the coordinator
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: String,
    /// The jobs to admit, each with a token and quotas of its own (docs/user/tenants.md);
    /// --token is then the servers' alone
    #[arg(long, value_name = "FILE")]
    tenants: Option<String>,
    /// As of `serve`
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub struct Health {
    /// The metrics port of the process [default: SUMPTER_METRICS_PORT]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<String>,
    /// Any setting by its name, such as metrics_address=10.0.0.1; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
struct Common {
    /// The job's token; anyone on this machine can read it in `ps`: prefer the environment
    /// variable SUMPTER_TOKEN or --token-file
    #[arg(long)]
    token: Option<String>,
    /// File that holds the job's token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Any setting by its name, such as max_job_bytes=8GiB; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

impl Command {
    /// The options as names and texts of settings, which the settings table checks.
    pub fn settings(&self) -> Vec<(String, String)> {
        let (mut settings, common): (Vec<_>, _) = match self {
            Self::Serve(options) => (options.settings(), &options.common),
            Self::Coordinator(options) => {
                let tenants = given("tenants", options.tenants.as_ref());
                let metrics = given("metrics_port", options.metrics_port.as_ref());
                (tenants.into_iter().chain(metrics).collect(), &options.common)
            }
            Self::Health(options) => {
                let port = given("metrics_port", options.metrics_port.as_ref());
                return port.into_iter().chain(options.set.iter().cloned()).collect();
            }
        };
        let file = common.token_file.as_ref().map(|path| path.to_string_lossy().into_owned());
        settings.extend(given("token", common.token.as_ref()));
        settings.extend(given("token_file", file.as_ref()));
        settings.extend(common.set.iter().cloned());
        settings
    }
}

impl Serve {
    fn settings(&self) -> Vec<(String, String)> {
        [
            ("coordinator", &self.join),
            ("lanes", &self.lanes),
            ("port", &self.port),
            ("interfaces", &self.interfaces),
            ("metrics_port", &self.metrics_port),
        ]
        .into_iter()
        .filter_map(|(name, value)| given(name, value.as_ref()))
        .collect()
    }
}

fn given(name: &str, value: Option<&String>) -> Option<(String, String)> {
    value.map(|value| (name.to_owned(), value.clone()))
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Options;

    fn settings(line: &str) -> Result<Vec<(String, String)>, clap::Error> {
        Options::try_parse_from(line.split_whitespace()).map(|options| options.command.settings())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn every_option_of_serve_becomes_a_setting_that_the_table_knows() {
        let line = "sumpter-server serve --join a:1 --lanes 2 --port 7000 --interfaces eth0,eth1 \
                    --metrics-port 9464 --token-file t --set log=info";
        let names: Vec<String> =
            settings(line).unwrap().into_iter().map(|(name, _)| name).collect();
        let expected =
            ["coordinator", "lanes", "port", "interfaces", "metrics_port", "token_file", "log"];
        assert_eq!(names, expected);
        let known = |name: &String| sumpter_config::SETTINGS.iter().any(|row| row.name == name);
        assert!(names.iter().all(known));
    }

    #[test]
    fn health_asks_where_serve_would_answer() {
        let line = "sumpter-server health --metrics-port 9464 --set metrics_address=10.0.0.1";
        let pairs = [("metrics_port", "9464"), ("metrics_address", "10.0.0.1")];
        let expected = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(line).unwrap(), expected);
    }

    #[test]
    fn a_setting_without_a_value_and_two_tokens_are_refused() {
        assert!(settings("sumpter-server serve --set log").is_err());
        assert!(settings("sumpter-server serve --token a --token-file b").is_err());
        assert!(settings("sumpter-server coordinator").is_err());
    }
}
