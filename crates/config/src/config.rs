//! The settings of one process, checked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use sumpter_codec::{CodecError, Registry};
use sumpter_plan::{Architecture, Dealing};
use sumpter_wire::Token;

use crate::error::{ConfigError, Source};
use crate::local::{Colocated, Fabric, LocalLink};
use crate::machine::local_machine_id;

/// The settings of one process. Each field is a row of [`SETTINGS`](crate::SETTINGS), where its
/// meaning and its limits are; a `Config` from [`load`](crate::load) keeps them.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Config {
    pub coordinator: Option<String>,
    pub token: Option<Token>,
    pub token_file: Option<PathBuf>,
    pub job: String,
    pub machine: Option<String>,
    pub rank: u32,
    pub world_size: u32,
    pub local_rank: Option<u32>,
    pub local_size: Option<u32>,
    pub servers: u32,
    pub start_timeout_s: f64,
    pub peer_timeout_s: f64,
    pub server_timeout_s: f64,
    pub stall_warning_s: f64,
    pub stall_shutdown_s: f64,
    pub min_workers: u32,
    pub redo: bool,
    pub max_workers: u32,
    pub partition_bytes: u64,
    pub chunk_bytes: u64,
    /// None: as the plan's links have it, see `sumpter_plan::default_credit`.
    pub credit_bytes: Option<u64>,
    pub tuner: String,
    pub deterministic: bool,
    pub asynchronous: bool,
    pub record_order: Option<PathBuf>,
    pub replay_order: Option<PathBuf>,
    pub blocking_wait: bool,
    pub checksum: bool,
    /// The codec in canonical form; empty for none.
    pub compression: String,
    pub compression_min_bytes: u64,
    pub codecs: Vec<String>,
    pub architecture: Architecture,
    pub placement: Dealing,
    pub colocated: Colocated,
    pub local_link: LocalLink,
    pub fabric: Fabric,
    pub fabric_provider: Option<String>,
    pub fabric_device: Option<String>,
    pub bandwidth_gbps: Option<f64>,
    pub rack: Option<String>,
    pub trunk_gbps: Option<f64>,
    pub device_group: Option<String>,
    pub device_shards: bool,
    pub interfaces: Vec<String>,
    pub pin_lanes: bool,
    pub io_threads: u32,
    pub lanes: u32,
    pub port: u16,
    pub max_job_bytes: u64,
    pub max_bytes: Option<u64>,
    pub tenants: Option<PathBuf>,
    pub max_jobs: u32,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_ca: Option<PathBuf>,
    pub tls_data: bool,
    pub log: String,
    pub timeline: Option<PathBuf>,
    pub metrics_port: u16,
    pub metrics_address: Option<IpAddr>,
    pub trace_events: u32,
    /// Where the values came from, for messages.
    sources: BTreeMap<&'static str, Found>,
}

/// A value as it was found. The token's is left out.
#[derive(Clone, Debug)]
struct Found {
    source: Source,
    value: String,
}

impl Config {
    /// The job's token, from `token` or the file that `token_file` names; `None` if neither is
    /// given.
    ///
    /// # Errors
    /// [`ConfigError`] if the file cannot be read or holds no token.
    pub fn token(&self) -> Result<Option<Token>, ConfigError> {
        let Some(path) = &self.token_file else { return Ok(self.token.clone()) };
        let source = self.source("token_file");
        let text = std::fs::read_to_string(path).map_err(|reason| ConfigError::TokenFile {
            origin: source.clone(),
            path: path.clone(),
            reason,
        })?;
        let token = Token::new(&text);
        token.map(Some).map_err(|reason| ConfigError::Token {
            name: "token_file",
            origin: source,
            reason,
        })
    }

    /// The identity of the machine this process counts to: `machine`, or the boot id and network
    /// namespace.
    #[must_use]
    pub fn machine_id(&self) -> String {
        self.machine.clone().unwrap_or_else(local_machine_id)
    }

    /// Whether others go on when a worker dies, in the job they are in or in the next.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.min_workers > 0
    }

    /// Whether workers may die without ending the job they are in.
    #[must_use]
    pub fn workers_may_fail(&self) -> bool {
        self.redo && self.is_elastic()
    }

    /// Where a coordinator or a server tells what it counts; `None` for nowhere.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        let address = self.metrics_address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        (self.metrics_port != 0).then(|| SocketAddr::new(address, self.metrics_port))
    }

    /// Where this worker tells what it counts: each worker of a machine needs a port of its own.
    /// `None` for nowhere, or beyond the last port.
    #[must_use]
    pub fn worker_metrics(&self) -> Option<SocketAddr> {
        let first = self.metrics()?;
        let port = u32::from(first.port()) + self.local_rank.unwrap_or(0);
        Some(SocketAddr::new(first.ip(), u16::try_from(port).ok()?))
    }

    /// `start_timeout_s` as a duration.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.start_timeout_s)
    }

    /// `peer_timeout_s` as a duration.
    #[must_use]
    pub fn peer_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.peer_timeout_s)
    }

    /// `server_timeout_s` as a duration.
    #[must_use]
    pub fn server_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.server_timeout_s)
    }

    /// Notes where a value came from. The token's value is left out.
    pub(crate) fn record(&mut self, name: &'static str, source: Source, value: &str) {
        let value = if name == "token" { "..." } else { value };
        self.sources.insert(name, Found { source, value: value.to_owned() });
    }

    /// A token and a token's file exclude each other, except that an argument of one kind
    /// replaces the other kind found in the environment.
    pub(crate) fn settle_token_sources(&mut self) -> Result<(), ConfigError> {
        if self.token.is_none() || self.token_file.is_none() {
            return Ok(());
        }
        match (self.source("token"), self.source("token_file")) {
            (Source::Argument, Source::Environment(_)) => self.token_file = None,
            (Source::Environment(_), Source::Argument) => self.token = None,
            _ => return Err(self.conflict("token", "token_file", "give one of them")),
        }
        Ok(())
    }

    /// Puts the codec of the setting `compression` into canonical form. Call it once more when the
    /// modules of the setting `codecs` have registered theirs: until then such a codec is left as
    /// it is.
    ///
    /// # Errors
    /// [`ConfigError::Compression`] if there is no such codec, or it does not take its arguments.
    pub fn settle_compression(&mut self, known: &Registry) -> Result<(), ConfigError> {
        if self.compression.is_empty() {
            return Ok(());
        }
        match known.select(&self.compression) {
            Ok(selection) => self.compression = selection.to_string(),
            Err(reason) => {
                let origin = self.source("compression");
                return Err(ConfigError::Compression { origin, reason });
            }
        }
        Ok(())
    }

    /// Settles what is known before any module is imported.
    pub(crate) fn settle_compression_early(&mut self, known: &Registry) -> Result<(), ConfigError> {
        if self.compression == "none" {
            self.compression.clear();
        }
        match self.settle_compression(known) {
            Err(ConfigError::Compression { reason: CodecError::Unknown { .. }, .. })
                if !self.codecs.is_empty() =>
            {
                Ok(())
            }
            settled => settled,
        }
    }

    pub(crate) fn check_pairs(&self) -> Result<(), ConfigError> {
        if self.rank >= self.world_size {
            return Err(self.conflict("rank", "world_size", "ranks count from 0"));
        }
        if let (Some(rank), Some(size)) = (self.local_rank, self.local_size)
            && rank >= size
        {
            return Err(self.conflict("local_rank", "local_size", "local ranks count from 0"));
        }
        if self.local_size.is_some_and(|size| size > self.world_size) {
            let reason = "a machine cannot have more workers than the job";
            return Err(self.conflict("local_size", "world_size", reason));
        }
        if self.max_workers > 0 && self.max_workers < self.min_workers {
            let reason = "the most workers cannot be fewer than the fewest";
            return Err(self.conflict("max_workers", "min_workers", reason));
        }
        if self.device_group.is_some() && self.workers_may_fail() {
            let reason = "a device group does not go on without one of its ranks; set redo=false, \
                          or give no device_group";
            return Err(self.conflict("device_group", "min_workers", reason));
        }
        if self.port > 0 && u32::from(self.port) + self.lanes.max(1) > 65_536 {
            let reason = "the last lane's port would be above 65535";
            return Err(self.conflict("port", "lanes", reason));
        }
        Ok(())
    }

    fn source(&self, name: &str) -> Source {
        self.sources.get(name).map_or(Source::Default, |found| found.source.clone())
    }

    pub(crate) fn conflict(&self, first: &str, second: &str, reason: &'static str) -> ConfigError {
        let describe = |name: &str| match self.sources.get(name) {
            Some(Found { source, value }) => format!("{name} = {value} ({source})"),
            None => name.to_owned(),
        };
        ConfigError::Conflict { first: describe(first), second: describe(second), reason }
    }
}
