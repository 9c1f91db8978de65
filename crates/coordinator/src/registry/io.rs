//! What goes into the registry and what comes out of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sumpter_config::Texts;
use sumpter_types::{Epoch, JobId, TensorId};

use crate::coordinator::Serves;
use crate::rejoin::Rejoin;
use crate::tenants::Tenants;
use crate::types::{FatalKind, MemberEvent, MemberId, Role, StallLimits, Stats};
use sumpter_types::TensorSpec;

pub(crate) use crate::types::ServerMemory as Memory;

/// How a registry behaves.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How long a server may take to get ready for a run.
    pub start_timeout: Duration,
    /// Silence after which a member counts as dead.
    pub peer_timeout: Duration,
    /// Silence after which a server counts as dead, if that is shorter.
    pub server_timeout: Duration,
    /// Which jobs may come, and how often.
    pub serves: Serves,
    /// The number of the process the coordinator runs in.
    pub process: u64,
    /// Which jobs it admits.
    pub tenants: Arc<Tenants>,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// A session proved itself and asks to join.
    Join(MemberId, Box<Join>),
    /// A member said something.
    Message(MemberId, Message),
    /// A member said what no member may say.
    Violation(MemberId, String),
    /// A member's stream ended, with what was noticed.
    Closed(MemberId, String),
    /// Time has passed.
    Tick,
    /// A person asks that a server be taken out of all runs.
    Drain(MemberId),
    /// The job of this name is to go on with these changes, which have been
    /// [looked at](super::Registry::changed).
    Tune(String, Texts),
    /// The coordinator is about to end.
    Stop,
}

/// What an applicant says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    pub job: String,
    pub role: Role,
    pub machine: String,
    pub host: String,
    pub lanes: Vec<SocketAddr>,
    pub bandwidth_gbps: Option<f64>,
    pub expected_servers: u32,
    pub start_timeout: Duration,
    pub peer_timeout: Duration,
    pub server_timeout: Duration,
    pub settings: BTreeMap<String, String>,
    /// The coordinator's address as the applicant was given it.
    pub coordinator: String,
    /// The number of the process it runs in.
    pub process: u64,
    /// Of a server: what jobs may take of it.
    pub memory: Memory,
    /// Of a member that was one before the coordinator was lost.
    pub rejoin: Option<Box<Rejoin>>,
    /// Of a worker: how long operations may wait.
    pub stalls: StallLimits,
}

/// What a member says.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Heartbeat(Option<Stats>),
    Declare(TensorSpec),
    /// A tensor cannot be used, for the reason given.
    Refuse {
        name: String,
        message: String,
    },
    /// It takes part with zeros from now on, until all workers do.
    OutOfData,
    /// A round has begun, which those that are out of data are to hear of.
    Began {
        tensor: TensorId,
        round: u64,
    },
    /// A server is ready for a run's epoch.
    JobReady(JobId, Epoch),
    /// What a suspended worker has.
    Progress(Epoch, Vec<u8>),
    /// A worker cannot reach a server in the plan of that epoch.
    Suspect {
        server: MemberId,
        reason: String,
        epoch: Epoch,
    },
    /// A server asks to be taken out of all runs.
    Drain,
    Leave,
}

/// What a member's session is to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Welcome {
        peer_timeout: Duration,
        /// How long the member may be silent.
        silence: Duration,
    },
    Refused(Refusal),
    HeartbeatSeen,
    LeaveSeen,
    Tell(MemberEvent),
    /// End the session; the member is gone already.
    Close,
}

/// Why an applicant is not a member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub kind: FatalKind,
    pub message: String,
    /// Asking again soon may succeed.
    pub retry: bool,
}
