//! Which networks libfabric has on this machine.

use pyo3::prelude::*;
use sumpter_fabric::{Choice, Shape, device_memory_providers, providers, version};

/// A network: its provider, its device, bits a second if it says, and whether its hardware writes
/// to memory itself.
type Network = (String, String, Option<u64>, bool);

/// The version of libfabric, the networks of `provider` and `device` (any by default), the best
/// first, and why there is none, if so; and the bytes that a connection registers at each end.
#[pyfunction]
#[pyo3(signature = (provider = None, device = None))]
pub fn fabric_networks(
    py: Python<'_>,
    provider: Option<String>,
    device: Option<String>,
) -> (Option<String>, Vec<Network>, Option<String>, usize) {
    let registered = Shape::default().registered_bytes();
    py.detach(|| match providers(&Choice { provider, device }) {
        Ok(found) => {
            let networks = found.into_iter().map(|p| (p.name, p.device, p.speed, p.is_rdma));
            (version().ok(), networks.collect(), None, registered)
        }
        Err(reason) => (version().ok(), Vec::new(), Some(reason.to_string()), registered),
    })
}

/// The providers of libfabric's that say that they can register memory of accelerators.
#[pyfunction]
pub fn fabric_device_memory(py: Python<'_>) -> Vec<String> {
    py.detach(|| {
        let found = device_memory_providers(&Choice::default()).unwrap_or_default();
        let mut names: Vec<String> = found.into_iter().map(|provider| provider.name).collect();
        names.dedup();
        names
    })
}
