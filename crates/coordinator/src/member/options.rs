//! What a member needs to join.

use std::collections::BTreeMap;
use std::time::Duration;

use sumpter_membership::{LaneView, ServerMemory, StallLimits};
use sumpter_types::{Bandwidth, DeviceGroup, Rack, Role, Speeds};
use sumpter_wire::Token;

use crate::tls::Tls;

/// What a member needs to join.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The coordinator's `HOST:PORT`.
    pub coordinator: String,
    /// The secret both ends prove to hold.
    pub token: Token,
    /// What the session is encrypted with, if it is.
    pub tls: Option<Tls>,
    /// The job's name; without meaning for a server.
    pub job: String,
    /// Worker or server.
    pub role: Role,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// A name a person recognizes.
    pub host: String,
    /// This member's lanes, as others reach them.
    pub lanes: Vec<LaneView>,
    /// What the machine's link carries each way, if it is known.
    pub bandwidth: Option<Bandwidth>,
    /// Where the machine is, if that is known.
    pub rack: Option<Rack>,
    /// The device group of a worker, if it has one.
    pub device_group: Option<DeviceGroup>,
    /// How fast it is.
    pub speeds: Speeds,
    /// Servers a worker's job waits for; the largest of its workers' numbers counts.
    pub expected_servers: u32,
    /// How long to wait for the coordinator, and then for the job's other members; the longest
    /// of a job's workers' numbers counts.
    pub start_timeout: Duration,
    /// Silence after which a process counts as dead; the shorter of this and the coordinator's
    /// own number counts.
    pub peer_timeout: Duration,
    /// Silence after which a server counts as dead, if that is shorter; of no meaning for a
    /// worker.
    pub server_timeout: Duration,
    /// Settings that must be equal on all workers of a job.
    pub settings: BTreeMap<String, String>,
    /// Of a server: what jobs may take of it.
    pub memory: ServerMemory,
    /// Of a worker: how long operations may wait; those of the lowest rank count.
    pub stalls: StallLimits,
}
