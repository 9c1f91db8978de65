//! The endpoints at which Prometheus scrapes this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sumpter_config::Config;
use sumpter_coordinator::Coordinator;
use sumpter_metrics::{Endpoint, Process, of_coordinator, of_process};
use sumpter_types::MemberId;

use crate::error::NodeError;
use crate::remote::Remote;
use crate::stats::total;
use crate::worker::loops::Loops;

/// Serves the metrics of a coordinator in this process, if the settings give a port.
///
/// # Errors
/// [`NodeError`] if it cannot listen there.
pub fn tell_of_coordinator(
    config: &Config,
    coordinator: &Coordinator,
) -> Result<Option<Endpoint>, NodeError> {
    let observe = coordinator.observer();
    start(config.metrics(), move || of_coordinator(&observe()))
}

/// A server's endpoint; its number changes with each session.
#[derive(Debug)]
pub(crate) struct OfServer {
    _endpoint: Option<Endpoint>,
    member: Arc<AtomicU64>,
}

impl OfServer {
    pub(crate) fn start(
        config: &Config,
        host: &str,
        lanes: Vec<Remote>,
    ) -> Result<OfServer, NodeError> {
        let member = Arc::new(AtomicU64::new(0));
        let (number, host) = (member.clone(), host.to_owned());
        let endpoint = start(config.metrics(), move || {
            // Members are counted from 1.
            let member = Some(number.load(Ordering::Relaxed)).filter(|member| *member > 0);
            let process = Process { member, host: host.clone(), ..Process::default() };
            of_process(&process, &total(&lanes))
        })?;
        Ok(OfServer { _endpoint: endpoint, member })
    }

    /// The server is a member of this number from now on.
    pub(crate) fn joined(&self, member: MemberId) {
        self.member.store(member.0, Ordering::Relaxed);
    }
}

/// A worker's endpoint.
pub(crate) fn tell_of_worker(
    config: &Config,
    host: &str,
    member: MemberId,
    loops: Arc<Loops>,
) -> Result<Option<Endpoint>, NodeError> {
    let process = Process {
        job: Some(config.job.clone()),
        rank: Some(config.rank),
        member: Some(member.0),
        host: host.to_owned(),
    };
    if config.metrics_port != 0 && config.worker_metrics().is_none() {
        return Err(NodeError::Start(format!(
            "metrics: there is no port for local rank {} above metrics_port {}; give a lower one",
            config.local_rank.unwrap_or(0),
            config.metrics_port
        )));
    }
    start(config.worker_metrics(), move || {
        let stats = total(loops.remotes());
        // Loops that have ended export nothing.
        if stats.counters.is_empty() { Vec::new() } else { of_process(&process, &stats) }
    })
}

fn start(
    address: Option<SocketAddr>,
    source: impl Fn() -> Vec<sumpter_metrics::Sample> + Send + Sync + 'static,
) -> Result<Option<Endpoint>, NodeError> {
    let Some(address) = address else { return Ok(None) };
    let endpoint = Endpoint::start(address, source)?;
    tracing::info!(target: "notice", "metrics at http://{}/metrics", endpoint.address());
    Ok(Some(endpoint))
}
