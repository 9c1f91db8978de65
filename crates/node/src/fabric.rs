//! Whether this process places bytes in its peers' memory (RDMA), and in which network.

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
    match providers(&choice) {
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
