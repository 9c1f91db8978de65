//! What workers and servers do alike before they join: listen, and say who they are.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, UnixListener};
use sumpter_config::{Config, ConfigError, LocalLink, TlsFiles};
use sumpter_coordinator::{JoinOptions, SeatOptions, Tls};
use sumpter_membership::{LaneView, ServerMemory, StallLimits};
use sumpter_transport::{TlsConfig, listen, unix_listen};
use sumpter_types::{Bandwidth, BandwidthSource, DeviceGroup, Rack, Role};
use sumpter_wire::Token;

use crate::cluster::interfaces::{Interface, Interfaces};
use crate::cluster::paths::Sources;
use crate::error::NodeError;
use crate::fabric::{PlacedNetwork, placed_network};
use crate::speeds::speeds;

/// Where a lane can be reached, and where its process connects from.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// One for each network interface.
    pub tcp: Vec<TcpListener>,
    /// For the other processes of this machine.
    pub unix: Option<UnixListener>,
    /// How other members reach the lane.
    pub view: LaneView,
    pub sources: Sources,
    /// What connections over TCP are encrypted with, if they are.
    pub tls: Option<TlsConfig>,
    /// Where bytes are placed in peers' memory, if they are.
    pub network: Option<PlacedNetwork>,
}

/// Back-off while the coordinator's name is unknown, initial and maximal. No event announces names.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The interval of the message that says what is waited for.
const NOTICE_EVERY: Duration = Duration::from_secs(3);

/// The network interfaces of this process; `None` when interrupted.
///
/// A coordinator whose name is unknown, or to which no way leads, is waited for as one that does
/// not answer is, for `start_timeout_s`: cluster managers make the name of a process known when it
/// starts.
///
/// # Errors
/// [`NodeError::Start`] if one that was asked for cannot be used, or none leads to the coordinator.
pub(crate) fn interfaces(
    config: &Config,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<Interfaces>, NodeError> {
    let coordinator = coordinator(config)?;
    // What needs no network is checked before the wait for it.
    token(config)?;
    let find = || Interfaces::find(coordinator, &config.interfaces);
    let found = match config.interfaces.as_slice() {
        [] => patiently(find, coordinator, config.start_timeout(), interrupted)?,
        _ => {
            Some(find().map_err(|error| NodeError::Start(format!("setting interfaces: {error}")))?)
        }
    };
    let warnings = found.iter().flat_map(Interfaces::warnings);
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    Ok(found)
}

/// Asks for the way to the coordinator until there is one, or `limit` has passed.
fn patiently<T>(
    find: impl Fn() -> std::io::Result<T>,
    coordinator: &str,
    limit: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<Option<T>, NodeError> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut next_notice = NOTICE_EVERY;
    loop {
        let error = match find() {
            Ok(found) => return Ok(Some(found)),
            Err(error) => error,
        };
        let waited = begun.elapsed();
        let seconds = waited.as_secs();
        if waited >= limit {
            return Err(NodeError::Start(format!(
                "no way to the coordinator at {coordinator} in {seconds} s: {error}; is the name \
                 right, and is this machine on a network?"
            )));
        }
        if waited >= next_notice {
            tracing::warn!("waiting for the coordinator at {coordinator} for {seconds} s: {error}");
            next_notice = waited + NOTICE_EVERY;
        }
        if interrupted() {
            return Ok(None);
        }
        sleep(pause.min(limit.saturating_sub(waited)));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The listeners of the process's lane with this number, at the `own` interfaces that it belongs to
/// and at all others.
pub(crate) fn lane_listeners(
    config: &Config,
    interfaces: &Interfaces,
    (lane, own): (u16, &[usize]),
    tls: Option<TlsConfig>,
) -> Result<Listeners, NodeError> {
    let port = match config.port {
        0 => 0,
        first => first.checked_add(lane).ok_or_else(|| {
            NodeError::Start(format!("lane {lane} would need a port above 65535 (port {first})"))
        })?,
    };
    let others = (0..interfaces.all.len()).filter(|number| !own.contains(number));
    let order = own.iter().copied().chain(others);
    let used: Vec<_> = order.map(|number| interfaces.all[number].clone()).collect();
    let (mut tcp, mut addresses) = (Vec::new(), Vec::new());
    for Interface { address: ip, .. } in &used {
        let bind: IpAddr = match ip {
            ip if interfaces.are_chosen => *ip,
            // A coordinator on loopback means that all is on this machine: listen nowhere else.
            ip if ip.is_loopback() => *ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let address = SocketAddr::new(bind, port);
        let failed = |source| NodeError::Listen { address, source };
        let listener = listen(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        addresses.push(SocketAddr::new(*ip, bound.port()));
        tcp.push(listener);
    }
    let bandwidth = interfaces.bandwidth(own);
    let view = LaneView { addresses, own: own.len() as u32, bandwidth };
    let address = view.address();
    let unix = match config.local_link {
        LocalLink::Tcp => None,
        LocalLink::Shm => unix_listen(address)
            .inspect_err(|error| tracing::debug!(%address, %error, "no shared memory here"))
            .ok(),
    };
    let sources = match interfaces.are_chosen {
        true => Sources { interfaces: used, own: own.len() },
        false => Sources::default(),
    };
    let network = placed_network(config)?;
    Ok(Listeners { tcp, unix, view, sources, tls, network })
}

/// What a process encrypts its data connections with, if it does.
///
/// # Errors
/// [`NodeError`] if one of the files cannot be used.
pub(crate) fn data_tls(config: &Config) -> Result<Option<TlsConfig>, NodeError> {
    let files = config.tls()?.filter(|_| config.tls_data);
    let load = |files: TlsFiles| TlsConfig::new(&files.cert, &files.key, &files.ca);
    files.map(load).transpose().map_err(|error| NodeError::Start(error.to_string()))
}

/// What this process says when it asks for a seat in an elastic job.
///
/// # Errors
/// [`NodeError`] if there is no coordinator or no token.
pub fn seat_options(config: &Config) -> Result<SeatOptions, NodeError> {
    Ok(SeatOptions {
        coordinator: coordinator(config)?.to_owned(),
        token: token(config)?,
        tls: tls(config)?,
        job: config.job.clone(),
        min_workers: config.min_workers,
        max_workers: config.max_workers,
        rank: config.rank,
        expected: config.world_size,
        host: sumpter_config::host_name(),
        machine: config.machine_id(),
        start_timeout: config.start_timeout(),
        peer_timeout: config.peer_timeout(),
    })
}

fn token(config: &Config) -> Result<Token, NodeError> {
    config.token()?.ok_or_else(|| {
        NodeError::Auth(
            "no job token: set SUMPTER_TOKEN or SUMPTER_TOKEN_FILE to the same secret for every \
             process of the job (sumpter run makes one by itself)"
                .to_owned(),
        )
    })
}

/// What this process reports to the coordinator about itself.
pub(crate) fn join_options(
    config: &Config,
    role: Role,
    (lanes, interfaces): (Vec<LaneView>, &Interfaces),
) -> Result<JoinOptions, NodeError> {
    let tls = tls(config)?;
    let bandwidth = bandwidth(config, interfaces);
    let equal = [
        ("partition_bytes", config.partition_bytes.to_string()),
        ("chunk_bytes", config.chunk_bytes.to_string()),
        ("credit_bytes", config.credit_text()),
        ("io_threads", config.io_threads.to_string()),
        ("tuner", config.tuner.clone()),
        ("deterministic", config.deterministic.to_string()),
        ("checksum", config.checksum.to_string()),
        ("compression", config.compression.clone()),
        ("compression_min_bytes", config.compression_min_bytes.to_string()),
        ("min_workers", config.min_workers.to_string()),
        ("redo", config.redo.to_string()),
        ("architecture", config.architecture.word().to_owned()),
        ("placement", config.placement.word().to_owned()),
        ("tls_data", (config.tls_data && tls.is_some()).to_string()),
    ];
    Ok(JoinOptions {
        coordinator: coordinator(config)?.to_owned(),
        token: token(config)?,
        tls,
        job: config.job.clone(),
        role,
        machine: config.machine_id(),
        host: sumpter_config::host_name(),
        lanes,
        bandwidth,
        rack: rack(config),
        device_group: device_group(config),
        speeds: speeds(config),
        expected_servers: config.servers,
        start_timeout: config.start_timeout(),
        peer_timeout: config.peer_timeout(),
        server_timeout: config.server_timeout(),
        settings: BTreeMap::from(equal.map(|(k, v)| (k.to_owned(), v))),
        memory: ServerMemory { max_bytes: config.max_bytes, max_job_bytes: config.max_job_bytes },
        stalls: StallLimits {
            warning: Duration::from_secs_f64(config.stall_warning_s),
            shutdown: Duration::from_secs_f64(config.stall_shutdown_s),
        },
    })
}

/// What this machine's interfaces carry together: as the settings say, or else the system.
fn bandwidth(config: &Config, interfaces: &Interfaces) -> Option<Bandwidth> {
    let set = config.bandwidth_gbps;
    let set = set.map(|gbps| Bandwidth { gbps, source: BandwidthSource::Configured });
    let measured = || {
        let each = interfaces.mbit()?;
        let gbps = each.iter().map(|mbit| f64::from(*mbit)).sum::<f64>() / 1e3;
        let names: Vec<_> = interfaces.all.iter().map(|one| one.name.as_str()).collect();
        tracing::info!("the system reports {gbps} Gb/s of {}: the plan follows", names.join(", "));
        Some(Bandwidth { gbps, source: BandwidthSource::Interface })
    };
    set.or_else(measured)
}

/// Where this machine is, as the settings say.
fn rack(config: &Config) -> Option<Rack> {
    let Config { rack, trunk_gbps, .. } = config;
    if let (None, Some(gbps)) = (rack, trunk_gbps) {
        tracing::warn!(
            "trunk_gbps = {gbps} has no effect: it is of the uplink of a rack, and no rack is \
             named for this machine (rack, or SUMPTER_RACK)"
        );
    }
    rack.clone().map(|name| Rack { name, trunk_gbps: *trunk_gbps })
}

/// The device group of this rank, as the settings say.
fn device_group(config: &Config) -> Option<DeviceGroup> {
    let Config { device_group, device_shards: holds, .. } = config;
    if device_group.is_none() && !holds {
        tracing::warn!(
            "device_shards = false has no effect: this rank is in no device group (device_group, \
             or SUMPTER_DEVICE_GROUP)"
        );
    }
    device_group.clone().map(|name| DeviceGroup { name, holds: *holds })
}

/// What sessions with the coordinator are encrypted with, if they are.
pub(crate) fn tls(config: &Config) -> Result<Option<Tls>, ConfigError> {
    let files = config.tls()?;
    Ok(files.map(|TlsFiles { cert, key, ca }| Tls { cert, key, ca }))
}

fn coordinator(config: &Config) -> Result<&str, NodeError> {
    config.coordinator.as_deref().ok_or_else(|| {
        NodeError::Start(
            "no coordinator: set SUMPTER_COORDINATOR to HOST:PORT of `sumpter coordinator`, or \
             start the job with `sumpter run` or torchrun"
                .to_owned(),
        )
    })
}

/// Where the coordinator is, and what it asks for.
pub(crate) fn access(config: &Config) -> Result<(&str, Token, Option<Tls>), NodeError> {
    let token = config.token()?;
    let token =
        token.ok_or_else(|| NodeError::Auth("no job token: set SUMPTER_TOKEN".to_owned()))?;
    let coordinator = config.coordinator.as_deref();
    let coordinator = coordinator.ok_or_else(|| {
        NodeError::Start(
            "no coordinator given: set SUMPTER_COORDINATOR, or give --coordinator".to_owned(),
        )
    })?;
    Ok((coordinator, token, tls(config)?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Error, ErrorKind};

    use super::*;

    fn unknown() -> Error {
        Error::new(ErrorKind::NotFound, "Name or service not known")
    }

    #[test]
    fn a_coordinator_whose_name_appears_late_is_waited_for() {
        let tries = Cell::new(0);
        let find = || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(unknown()) } else { Ok("eth0") }
        };
        let found = patiently(find, "coordinator:7700", Duration::from_secs(60), &mut || false);
        assert_eq!(found.unwrap(), Some("eth0"));
        assert_eq!(tries.get(), 3);
    }

    #[test]
    fn a_name_that_never_appears_is_named_with_what_the_system_says() {
        let find = || Err::<(), _>(unknown());
        let found = patiently(find, "coordinator:7700", Duration::ZERO, &mut || false);
        let message = found.unwrap_err().to_string();
        assert!(message.contains("coordinator:7700") && message.contains("not known"), "{message}");
    }

    #[test]
    fn the_wait_for_a_name_can_be_interrupted() {
        let find = || Err::<(), _>(unknown());
        let found = patiently(find, "coordinator:7700", Duration::from_secs(60), &mut || true);
        assert_eq!(found.unwrap(), None);
    }
}
