//! What other threads ask of an event loop.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use sumpter_coordinator::Member;
use sumpter_membership::{ClusterView, MemberEvent};
use sumpter_observe::Recording;
use sumpter_transport::TensorMemory;
use sumpter_types::{Epoch, JobId, Rank, Stats, TensorSpec};

use crate::completion::Promise;
use crate::error::OpError;
use crate::timeline::Record;

/// An operation on its way to the engine.
#[derive(Debug)]
pub(crate) struct Submission {
    pub spec: TensorSpec,
    /// Free text for diagnosis: `group#sequence|signature`, or nothing.
    pub tag: String,
    pub average: bool,
    pub priority: i32,
    pub memory: TensorMemory,
    pub completion: Promise,
    pub since: Instant,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// The coordinator says something.
    Member(MemberEvent),
    /// The session with the coordinator is there.
    Joined(Arc<Member>),
    Submit(Submission),
    /// No more data: take part with zeros until all workers are out of data, then answer with the
    /// last one.
    OutOfData(Sender<Result<Rank, OpError>>),
    /// The training step, once it is this one or a later one, and when it was first seen.
    Step(u64, Sender<(u64, Instant)>),
    /// The user has trained on so many samples.
    Samples(u64),
    Stats(Sender<Stats>),
    /// The plan, once it is that of this epoch or a later one.
    Plan(Epoch, Sender<ClusterView>),
    /// Answer with what has been recorded of a run.
    Recordings(JobId, Sender<Vec<Recording>>),
    /// Tell of operations that are done from now on, or no longer.
    Timeline(Option<Sender<Record>>),
    /// Fail everything with this reason, now and from now on.
    Fail(OpError),
    /// Send what is to be sent, close what is open, then answer and end.
    Leave(Sender<()>),
}
