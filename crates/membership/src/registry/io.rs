//! What goes into the registry and what comes out of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sumpter_config::Texts;
use sumpter_types::{
    Bandwidth, DeviceGroup, Epoch, JobId, MemberId, Rack, Rank, Role, Speeds, Stats, TensorId,
    TensorSpec,
};

use crate::event::{FatalKind, MemberEvent};
use crate::rejoin::Rejoin;
use crate::tenants::Tenants;
use crate::view::LaneView;

/// Which jobs a coordinator takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Any number, each as often as its workers come together.
    ManyJobs,
    /// The job of the first worker, as often as its workers come together. The servers are told
    /// that it is over when the coordinator stops.
    OneJob,
    /// One run of the first worker's job. The servers are told that it is over when it is.
    OneRun,
}

/// What jobs may take of a server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerMemory {
    /// All jobs together; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// One job that has no smaller quota.
    pub max_job_bytes: u64,
}

/// How long an operation may wait; zero is for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallLimits {
    /// Until the stall warning names what it waits for.
    pub warning: Duration,
    /// Until the job fails.
    pub shutdown: Duration,
}

/// How a registry behaves.
#[derive(Clone, Debug)]
pub struct Options {
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
pub enum Input {
    /// A session proved itself and asks to join.
    Join(MemberId, Box<Join>),
    /// A member said something.
    Message(MemberId, Message),
    /// A member sent something else than a message, such as a piece of a trace: it lives.
    Alive(MemberId),
    /// A member said what no member may say.
    Violation(MemberId, String),
    /// A member's stream ended, with what was noticed.
    Closed(MemberId, String),
    /// Time has passed.
    Tick,
    /// A person asks that a server be taken out of all runs.
    Drain(MemberId),
    /// The job of this name is to go on with these changes, which have been
    /// [checked](super::Registry::changed).
    Tune(String, Texts),
    /// The coordinator is about to end.
    Stop,
}

/// What an applicant says of itself.
#[derive(Clone, Debug)]
pub struct Join {
    /// The job's name; without meaning for a server.
    pub job: String,
    /// Worker or server.
    pub role: Role,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// A name a person recognizes.
    pub host: String,
    /// Its lanes as others reach them.
    pub lanes: Vec<LaneView>,
    /// What its machine's link carries each way, if it is known.
    pub bandwidth: Option<Bandwidth>,
    /// Where its machine is, if that is known.
    pub rack: Option<Rack>,
    /// The device group of a worker, if it has one.
    pub device_group: Option<DeviceGroup>,
    /// How fast it is.
    pub speeds: Speeds,
    /// Servers its job waits for; the largest of its workers' numbers counts.
    pub expected_servers: u32,
    /// How long its job waits for members; the longest of its workers' numbers counts.
    pub start_timeout: Duration,
    /// Silence after which a process counts as dead.
    pub peer_timeout: Duration,
    /// Silence after which a server counts as dead, if that is shorter.
    pub server_timeout: Duration,
    /// Settings that must be equal on all workers of a job.
    pub settings: BTreeMap<String, String>,
    /// The coordinator's address as the applicant was given it.
    pub coordinator: String,
    /// The number of the process it runs in.
    pub process: u64,
    /// Of a server: what jobs may take of it.
    pub memory: ServerMemory,
    /// Of a member that was one before the coordinator was lost.
    pub rejoin: Option<Box<Rejoin>>,
    /// Of a worker: how long operations may wait.
    pub stalls: StallLimits,
}

/// What a member says.
#[derive(Clone, Debug)]
pub enum Message {
    /// It lives, and this is its newest report.
    Heartbeat(Option<Stats>),
    /// It declares tensors, and will declare others once these are judged.
    Declare(Vec<TensorSpec>),
    /// A tensor cannot be used, for the reason given.
    Refuse {
        /// The tensor's name.
        name: String,
        /// Why, in words.
        message: String,
    },
    /// It takes part with zeros from now on, until all workers do.
    OutOfData,
    /// A round has begun, which those that are out of data must learn of.
    Began {
        /// The tensor.
        tensor: TensorId,
        /// The round, from 0 for each tensor.
        round: u64,
    },
    /// A server is ready for a run's epoch.
    JobReady(JobId, Epoch),
    /// What a suspended worker has.
    Progress(Epoch, Vec<u8>),
    /// A member cannot reach a server in a plan of a run, or is a server that cannot reach a worker
    /// and names itself.
    Suspect {
        /// The server.
        server: MemberId,
        /// What was noticed.
        reason: String,
        /// The run, and the epoch of its plan.
        plan: (JobId, Epoch),
    },
    /// A server asks to be taken out of all runs.
    Drain,
    /// It has finished.
    Leave,
}

/// What a member's session is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is a member now.
    Welcome {
        /// Silence after which a process counts as dead.
        peer_timeout: Duration,
        /// How long the member may be silent.
        silence: Duration,
    },
    /// It is not a member.
    Refused(Refusal),
    /// Its heartbeat is acknowledged.
    HeartbeatSeen,
    /// Its leave is acknowledged.
    LeaveSeen,
    /// What it declared last is judged: it has been notified of all that is wrong with it.
    Declared,
    /// It is notified.
    Tell(MemberEvent),
    /// It is notified of what others are as well, which is held once.
    Announce(Arc<MemberEvent>),
    /// End the session; the member is gone already.
    Close,
}

/// Why an applicant is not a member.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The class of the reason.
    pub kind: FatalKind,
    /// The reason, in words.
    pub message: String,
    /// Asking again soon may succeed.
    pub retry: bool,
}

/// A change of a running job's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneRequest {
    /// The job; empty for the only one there is.
    pub job: String,
    /// By name, as texts; what is not named stays.
    pub settings: Texts,
    /// First everything as at the start.
    pub reset: bool,
    /// Only if the plan is still that of this epoch; 0 for any.
    pub epoch: u32,
}

/// The settings a job goes on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneReport {
    /// The job.
    pub job: String,
    /// The epoch from which they hold.
    pub epoch: u32,
    /// All that may change, as texts by name.
    pub settings: Texts,
}

/// The members of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunMembers {
    /// The job's name.
    pub job: String,
    /// The run's number.
    pub run: JobId,
    /// Its workers and servers.
    pub members: Vec<RunMember>,
    /// The names of its tensors, by number.
    pub tensors: Vec<String>,
}

/// A member of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunMember {
    /// Its number with the coordinator.
    pub member: MemberId,
    /// Of a worker, its rank.
    pub rank: Option<Rank>,
    /// A name a person recognizes.
    pub host: String,
}
