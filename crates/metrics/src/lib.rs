//! What a coordinator, a server or a worker counts, for Prometheus.
//!
//! [`FAMILIES`] is the one table of metrics: the endpoint, the documentation and the checks of the
//! dashboard and the alerts follow it. Numbers come from the reports that members send to their
//! coordinator anyway; nothing is counted for a scrape. An [`Endpoint`] answers on a thread of its
//! own.
#![forbid(unsafe_code)]

mod endpoint;
mod families;
mod optimum;
mod samples;
mod text;

pub use endpoint::{Endpoint, EndpointError};
pub use families::{Counts, FAMILIES, Family, Metric};
pub use samples::{Process, Sample, of_coordinator, of_process};
pub use text::encode;
