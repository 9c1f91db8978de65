//! The words of the control plane: what members tell, and what they are told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use sumpter_types::{Epoch, JobId, Rank, TensorId, TensorSpec};
use sumpter_wire::Token;

use crate::tenants::Quota;
use crate::tls::Tls;

/// A member's number with its coordinator: a new one for every session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A training process of one job.
    Worker {
        /// Its number in the job.
        rank: Rank,
        /// The workers of the job.
        world_size: u32,
        /// Its number on its machine.
        local_rank: u32,
        /// The workers on its machine.
        local_size: u32,
    },
    /// A summation service, for every job of the coordinator.
    Server,
}

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
    /// Data-plane addresses of this member's lanes, as others reach them.
    pub lanes: Vec<SocketAddr>,
    /// What the machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
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

/// How long an operation may wait; zero is for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallLimits {
    /// Until it is told whom it waits for.
    pub warning: Duration,
    /// Until the job fails.
    pub shutdown: Duration,
}

/// What jobs may take of a server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerMemory {
    /// All jobs together; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// One job that has no smaller quota.
    pub max_job_bytes: u64,
}

/// Who takes part in a run, the same for all. The servers and what was changed of the settings
/// change with the epoch; the workers stay, but for those that die.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The run's number.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// The plan's version.
    pub epoch: Epoch,
    /// All ranks of the start, in order.
    pub workers: Vec<WorkerView>,
    /// Those that have died; the others go on without them.
    pub gone: BTreeSet<Rank>,
    /// The servers, in an order that is the same for all.
    pub servers: Vec<ServerView>,
    /// The rank whose process also holds the coordinator, if one does.
    pub coordinator_rank: Option<Rank>,
    /// What the run's members prove to each other on the data plane. The coordinator's service
    /// puts it in; whoever is told of the view has it.
    pub key: Option<Token>,
    /// What the job may take of each server; put in likewise.
    pub quota: Quota,
    /// Settings that differ from those the workers began with, as texts by name.
    pub changes: BTreeMap<String, String>,
}

impl ClusterView {
    /// Machines with workers that live, and machines with servers only: the rule's n and k.
    #[must_use]
    pub fn machines(&self) -> (usize, usize) {
        let gpu: BTreeSet<&str> = self.living().map(|worker| worker.machine.as_str()).collect();
        let cpu: BTreeSet<&str> = self.servers.iter().map(|s| s.machine.as_str()).collect();
        (gpu.len(), cpu.difference(&gpu).count())
    }

    /// What the slowest machine's link carries each way, in Gb/s, if it is known of all; without
    /// end where there is one machine, which needs no link.
    #[must_use]
    pub fn slowest_gbps(&self) -> Option<f64> {
        if self.machines() == (1, 0) {
            return Some(f64::INFINITY);
        }
        let workers = self.living().map(|w| (w.machine.as_str(), w.bandwidth_gbps));
        let servers = self.servers.iter().map(|s| (s.machine.as_str(), s.bandwidth_gbps));
        // One process of a machine may know what the others do not.
        let mut machines: BTreeMap<&str, Option<f64>> = BTreeMap::new();
        for (machine, gbps) in workers.chain(servers) {
            let known = machines.entry(machine).or_default();
            *known = known.or(gbps);
        }
        let slower = |slowest: f64, gbps: Option<f64>| gbps.map(|gbps| slowest.min(gbps));
        machines.into_values().try_fold(f64::INFINITY, slower)
    }

    /// The workers that have not died, in the order of ranks.
    pub fn living(&self) -> impl Iterator<Item = &WorkerView> {
        self.workers.iter().filter(|worker| !self.gone.contains(&worker.rank))
    }
}

/// A worker as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its number in the job.
    pub rank: Rank,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// Addresses of its colocated lanes.
    pub lanes: Vec<SocketAddr>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
}

/// A server as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerView {
    /// Its number with the coordinator.
    pub member: MemberId,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// Addresses of its lanes.
    pub lanes: Vec<SocketAddr>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
}

/// What a member counts, who it waited for, and what it waits for now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Numbers by name.
    pub counters: BTreeMap<String, f64>,
    /// Who contributed last.
    pub late: Vec<Late>,
    /// Operations that were submitted and are not done, the oldest first.
    pub pending: Vec<PendingOp>,
    /// Of a worker: the operations of each tensor that it has begun, by the tensor's number.
    pub begun: Vec<u64>,
}

/// How often a rank came last.
#[derive(Clone, Debug, PartialEq)]
pub struct Late {
    /// The late rank.
    pub rank: Rank,
    /// How often it came last.
    pub count: u64,
    /// The seconds the others waited for it.
    pub seconds: f64,
}

/// An operation that was submitted and is not done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingOp {
    /// The tensor's name.
    pub name: String,
    /// `group#sequence|signature`, from which the coordinator tells when ranks wait for
    /// different things; any text without a bar means nothing to it.
    pub tag: String,
    /// How long it has been waiting.
    pub since_ms: u64,
    /// Its number among the tensor's operations, from 0.
    pub round: u64,
    /// The lane whose part is not done, and how it stands, in words; empty for a young operation.
    pub waits_for: String,
    /// How likely it is that the operation waits because of that lane.
    pub suspicion: Suspicion,
    /// Bytes that are still to come or, if none come to this worker, to go; 0 for a young
    /// operation.
    pub left_bytes: u64,
}

/// How likely it is that an operation waits because of the lane it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspicion {
    /// There is a connection within the machine, or no lane is named.
    #[default]
    Near,
    /// There is a connection over the network.
    Away,
    /// There is no connection.
    NotConnected,
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberEvent {
    /// The job has not started: some of its members are missing. Comes every few seconds.
    Waiting {
        /// What is missing, in words.
        missing: Vec<String>,
        /// Since the job's first worker joined.
        seconds: f64,
    },
    /// The run starts (to workers).
    Started(ClusterView),
    /// A new entry of the tensor table. Every worker gets all entries in the order of their ids,
    /// perhaps before it has declared the tensor itself.
    Tensor {
        /// The tensor's number.
        id: TensorId,
        /// What was declared, in normal form.
        spec: TensorSpec,
    },
    /// A tensor that cannot be used: the ranks disagree, or the declaration makes no sense.
    TensorError {
        /// The tensor's name.
        name: String,
        /// Why, in words.
        message: String,
    },
    /// A worker died: the run is over.
    WorkerLost {
        /// The worker.
        rank: Rank,
        /// Where it ran.
        host: String,
        /// How it was noticed.
        reason: String,
    },
    /// A worker has finished.
    WorkerLeft {
        /// The worker.
        rank: Rank,
    },
    /// Another worker is out of data and takes part with zeros in what it is told of.
    OutOfData {
        /// The worker.
        rank: Rank,
    },
    /// All workers were out of data: each takes part as before.
    AllOutOfData {
        /// The last worker to run out.
        last: Rank,
    },
    /// A round of a tensor has begun (to workers that are out of data).
    Began {
        /// The tensor.
        tensor: TensorId,
        /// The round, from 0 for each tensor.
        round: u64,
    },
    /// The plan of the run changes (to workers): stop, close the run's data connections, and
    /// answer with [`Member::progress`](crate::Member::progress).
    Suspend {
        /// The epoch to answer for; an answer for an older one counts for nothing.
        epoch: Epoch,
        /// Why, in words; empty if only settings change.
        reason: String,
    },
    /// All workers have stopped, and the servers of the new plan are ready (to workers).
    Resume {
        /// The same run and the same workers, those that have left included, in a new epoch.
        view: ClusterView,
        /// What each worker that is here answered to the newest [`Suspend`](Self::Suspend), by
        /// rank; the same for all.
        progress: Vec<(Rank, Vec<u8>)>,
    },
    /// Whom everybody waits for, or that this is over (to the lowest rank that is here).
    Stalled {
        /// In one line.
        message: String,
        /// Whether the wait is over.
        over: bool,
    },
    /// Somebody wants to see what this member has recorded of a run: answer with
    /// [`Member::send_trace`](crate::Member::send_trace).
    TraceAsked {
        /// The request's number.
        request: u64,
        /// The run.
        job: JobId,
    },
    /// No run uses this server any more: it may leave (to servers that drain).
    Drained,
    /// The coordinator heard nothing from this server for too long and no longer counts on it
    /// (to servers). It may join anew.
    GivenUp {
        /// What was noticed, in words.
        message: String,
    },
    /// A run starts, or goes on in a new epoch (to servers). Whatever was known of the run before
    /// is void. The workers are told only once every server's handler has returned from this
    /// event.
    JobStarted(ClusterView),
    /// A run is over and its state can be dropped (to servers).
    JobEnded {
        /// The run.
        job: JobId,
    },
    /// The coordinator's only run is over (to servers).
    Finished,
    /// The coordinator is gone. To members of a run that outlives it this comes only if it has
    /// not come back within the start time-out: until then they work on, and what they say to it is
    /// put off.
    CoordinatorLost {
        /// What was noticed, in words.
        message: String,
    },
    /// This member cannot go on.
    Fatal {
        /// The class of the error.
        kind: FatalKind,
        /// Why, in words.
        message: String,
    },
}

/// The class of an error, by what the caller must do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalKind {
    /// The tokens differ.
    Auth,
    /// The protocol versions differ.
    Version,
    /// The job could not start.
    Start,
    /// The ranks disagree about a setting.
    Mismatch,
    /// A member of the job died.
    PeerLost,
    /// A peer said what it must not say.
    Protocol,
}
