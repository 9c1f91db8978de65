//! Placed writes by libfabric, which is looked for when a process first needs it.

mod ablation;
mod endpoint;
mod ffi;
mod library;
mod signals;

pub use ablation::{Ablated, AblatedEndpoint, LeftOut};
pub use endpoint::LibfabricEndpoint;
pub use library::{Choice, Provider, Unavailable, device_memory_providers, providers, version};
