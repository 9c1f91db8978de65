//! Whether this process places bytes in its peers' memory (RDMA), and in which network.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use sumpter_config::{Config, Fabric};
use sumpter_fabric::{Choice, providers};

use crate::error::NodeError;

/// A network in which bytes can be placed.
#[derive(Clone, Debug)]
pub(crate) struct PlacedNetwork {
    pub choice: Choice,
    /// Whether a connection without it is refused.
    pub is_required: bool,
}

/// libfabric loads its providers, and these ask their drivers, when it is asked for the first time:
/// 0.14 s without hardware, and some seconds with much of it. A driver that hangs never answers.
const PROVIDERS_LIMIT: Duration = Duration::from_secs(10);

/// Whether libfabric has something for a choice.
///
/// # Errors
/// In words, why not.
fn found(choice: &Choice) -> Result<(), String> {
    let (sender, answer) = channel();
    let asked = choice.clone();
    // Left behind if it never ends.
    let ask = move || drop(sender.send(providers(&asked)));
    let asking = std::thread::Builder::new().name("sumpter-fabric".to_owned()).spawn(ask);
    asking.map_err(|error| error.to_string())?;
    match answer.recv_timeout(PROVIDERS_LIMIT) {
        Ok(providers) => providers.map(drop).map_err(|reason| reason.to_string()),
        Err(RecvTimeoutError::Timeout) => Err(format!(
            "libfabric has not said in {} s which networks there are, so a driver may hang \
             (`fi_info` shows the same)",
            PROVIDERS_LIMIT.as_secs()
        )),
        Err(RecvTimeoutError::Disconnected) => Err("libfabric panicked".to_owned()),
    }
}

/// What `fabric` comes to on this machine.
///
/// # Errors
/// [`NodeError`] if it demands what is not here, or what `tls_data` forbids.
pub(crate) fn placed_network(config: &Config) -> Result<Option<PlacedNetwork>, NodeError> {
    let Config { fabric_provider: provider, fabric_device: device, .. } = config;
    let is_required = config.fabric == Fabric::Libfabric;
    let is_named = provider.is_some() || device.is_some();
    if config.fabric == Fabric::Tcp || !(is_required || is_named) {
        return Ok(None);
    }
    if config.tls()?.is_some() && config.tls_data {
        if is_required {
            return Err(NodeError::Refused(
                "fabric = libfabric sends tensors unencrypted, which tls_data = true forbids: set \
                 tls_data = false (the control plane stays encrypted), or fabric = tcp"
                    .to_owned(),
            ));
        }
        tracing::info!("tensors go over TCP with TLS: libfabric would not encrypt them");
        return Ok(None);
    }
    let choice = Choice { provider: provider.clone(), device: device.clone() };
    match found(&choice) {
        Ok(_) => Ok(Some(PlacedNetwork { choice, is_required })),
        Err(reason) if is_required => Err(NodeError::Refused(format!(
            "fabric = libfabric cannot be had: {reason}; or set fabric = auto"
        ))),
        Err(reason) => {
            tracing::warn!(%reason, "tensors go over TCP");
            Ok(None)
        }
    }
}
