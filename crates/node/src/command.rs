//! What other threads ask of an event loop.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crossbeam_channel::Sender;
use sumpter_coordinator::Member;
use sumpter_engine::{CodecMemory, OrderSpan};
use sumpter_membership::{ClusterView, MemberEvent};
use sumpter_observe::Recording;
use sumpter_transport::TensorMemory;
use sumpter_types::{Epoch, JobId, Rank, Stats, TensorSpec, Update};

use crate::codecs::CodecState;
use crate::completion::Promise;
use crate::error::OpError;
use crate::worker::decision::Deferred;
use crate::worker::staged::StagedShare;
use crate::worker::timeline::Record;

/// A declaration's number in its worker, in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeclarationId(pub u32);

/// Elements of a variable and their parts, the value and then the slots, as bytes of the type in
/// which they are kept.
pub type MirroredParts = (Range<usize>, Vec<Vec<u8>>);

/// An operation on its way to the engine.
#[derive(Debug)]
pub(crate) struct Submission {
    /// Free text for diagnosis: `group#sequence|signature`, or nothing.
    pub tag: String,
    pub priority: i32,
    pub memory: TensorMemory,
    pub completion: Promise,
    /// If its contribution comes while it runs.
    pub staged: Option<StagedShare>,
    /// If it is decided later what its update does.
    pub deferred: Option<Arc<Deferred>>,
    /// The rule and its coefficients, in an update.
    pub update: Option<Update>,
    /// What residuals of a compressed tensor are multiplied by.
    pub rescale: f32,
    /// In which order it changes a variable asynchronously; nothing: as it comes.
    pub order: Vec<OrderSpan>,
    /// No round: the tensor has this from now on.
    pub given: Option<Given>,
    pub since: Instant,
}

/// What a tensor has from now on.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    /// A variable: its value, and perhaps its slots.
    State(Vec<Vec<u8>>),
    /// A compressed tensor: what its codec has kept.
    Memory(CodecMemory),
}

impl Given {
    /// What a loop gets that serves a part of a tensor, these bytes of what is kept; one loop
    /// serves all of a variable.
    pub(crate) fn part(&self, bytes: &Range<usize>) -> Given {
        let part = |of: &Option<Vec<u8>>| of.as_ref().map(|of| of[bytes.clone()].to_vec());
        match self {
            Given::State(parts) => Given::State(parts.clone()),
            Given::Memory(CodecMemory { residual, velocity }) => {
                Given::Memory(CodecMemory { residual: part(residual), velocity: part(velocity) })
            }
        }
    }
}

/// What is sent once it is as late as this.
#[derive(Debug)]
pub(crate) enum Subscription {
    /// The plan.
    Plan(Epoch, Sender<ClusterView>),
    /// The training step, and when it was first seen.
    Step(u64, Sender<(u64, Instant)>),
}

#[derive(Debug)]
pub(crate) enum Command {
    /// The coordinator says something.
    Member(MemberEvent),
    /// The session with the coordinator is there.
    Joined(Arc<Member>),
    /// The same, of the server to which this lane belongs, and which keeps it.
    Serves(Weak<Member>),
    /// What operations on a tensor have in common; the last is whether they average.
    Declare(DeclarationId, TensorSpec, bool),
    Submit(DeclarationId, Submission),
    /// Answer with what is mirrored here of a variable.
    Mirrored(DeclarationId, Sender<Vec<MirroredParts>>),
    /// Answer with what the codec of a compressed tensor has kept here.
    CodecMemory(DeclarationId, Sender<Result<CodecState, OpError>>),
    /// What a round does that was begun without saying so.
    Decide(Arc<Deferred>, Update),
    /// These bytes of this loop's part of a contribution are in the memory now.
    Supply(StagedShare, Range<usize>),
    /// This worker cannot contribute to the rounds of a name, for this reason: all fail.
    Refuse(String, String),
    /// No more data: take part with zeros until all workers are out of data, then answer with the
    /// last one.
    OutOfData(Sender<Result<Rank, OpError>>),
    Subscribe(Subscription),
    /// Another loop of this worker cannot go on, for this reason.
    Fail(OpError),
    /// Another loop of this worker has stored what it has counted, and reached this training step.
    Reached(u64),
    /// The user has trained on so many samples.
    Samples(u64),
    Stats(Sender<Stats>),
    /// Answer with what has been recorded of a run.
    Recordings(JobId, Sender<Vec<Recording>>),
    /// Tell of operations that are done from now on, or no longer.
    Timeline(Option<Sender<Record>>),
    /// Fail what is under way, send what is to be sent, close what is open, then answer and end.
    Leave(Sender<()>),
}
