//! What a coordinator notifies its members of.

use bytes::Bytes;

use sumpter_types::{Epoch, JobId, Rank, TensorId, TensorSpec};

use crate::view::ClusterView;

/// A message to a member.
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
    /// New entries of the tensor table. Every worker gets all entries in the order of their ids,
    /// perhaps before it has declared the tensors itself.
    Tensors {
        /// The number of the first tensor; those of the others follow it.
        first: TensorId,
        /// What was declared, in normal form.
        specs: Vec<TensorSpec>,
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
    /// Another worker is out of data and takes part with zeros in the rounds it is notified of.
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
    /// answer with its progress.
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
        /// rank; the same for all. Equal answers are held once.
        progress: Vec<(Rank, Bytes)>,
    },
    /// The straggler that operations wait for, or the end of the stall (to the lowest rank).
    Stalled {
        /// In one line.
        message: String,
        /// Whether the wait is over.
        over: bool,
    },
    /// A trace of a run is requested from this member: answer with
    /// its recordings.
    TraceAsked {
        /// The request's number.
        request: u64,
        /// The run.
        job: JobId,
    },
    /// An operator drains this server (to servers). It asks for that itself where the coordinator
    /// is lost meanwhile, since the next one does not know.
    Draining,
    /// No run uses this server any more: it may leave (to servers that drain).
    Drained,
    /// The coordinator had no heartbeat of this server for too long and no longer counts on it
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
