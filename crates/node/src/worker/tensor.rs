//! A declared tensor: what is the same in all its operations is checked and named once.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, ReduceOp, TensorSpec};

use crate::command::{Command, DeclarationId, Submission};
use crate::completion::{Callback, Completion, Promise};
use crate::error::OpError;
use crate::remote::Remote;
use crate::worker::staged::{Slices, Staged, StagedRound};

/// What differs between the operations of one tensor.
#[derive(Debug, Default)]
pub struct OpRequest {
    /// Free text for diagnosis: `group#sequence|signature`, or nothing.
    pub tag: String,
    /// Higher goes first.
    pub priority: i32,
}

/// A tensor that a worker has declared.
#[derive(Debug)]
pub struct Tensor {
    spec: TensorSpec,
    /// Its number in the event loop, or why all its operations fail.
    id: Result<DeclarationId, String>,
    remote: Remote,
    notifier: Sender<Callback>,
}

impl Tensor {
    pub(crate) fn new(
        spec: TensorSpec,
        id: Result<DeclarationId, String>,
        remote: Remote,
        notifier: Sender<Callback>,
    ) -> Tensor {
        Tensor { spec, id, remote, notifier }
    }

    /// What must be equal on every rank, in the form in which the coordinator compares.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Queues an operation on `memory`. Outcomes, errors included, come by the completion.
    #[must_use]
    pub fn submit(&self, request: OpRequest, memory: TensorMemory) -> Arc<Completion> {
        self.queue(request, memory, None)
    }

    /// Queues an operation on `memory` whose contribution is supplied range by range.
    #[must_use]
    pub fn submit_staged(
        &self,
        request: OpRequest,
        memory: TensorMemory,
        slices: Slices,
    ) -> StagedRound {
        let staged = Arc::new(Staged::new(slices, self.notifier.clone()));
        let completion = self.queue(request, memory, Some(staged.clone()));
        StagedRound::new(self.spec.name.clone(), completion, staged, self.remote.clone())
    }

    fn queue(
        &self,
        request: OpRequest,
        memory: TensorMemory,
        staged: Option<Arc<Staged>>,
    ) -> Arc<Completion> {
        let completion = Completion::new(self.notifier.clone());
        let id = match &self.id {
            Ok(id) => *id,
            Err(reason) => {
                completion.finish(Err(OpError::Mismatch(reason.clone())));
                return completion;
            }
        };
        let submission = Submission {
            tag: request.tag,
            priority: request.priority,
            memory,
            completion: Promise::new(completion.clone()),
            staged,
            since: Instant::now(),
        };
        if !self.remote.send(Command::Submit(id, submission)) {
            completion.finish(Err(OpError::Closed("the session has been shut down".into())));
        }
        completion
    }
}

/// A spec in the form in which the coordinator compares: what its kind does not use is default.
pub(crate) fn normalized(mut spec: TensorSpec, world_size: usize) -> TensorSpec {
    if !spec.collective.has_op() {
        spec.op = ReduceOp::Sum;
    }
    if !spec.collective.has_root() {
        spec.root = Rank(0);
    }
    spec.ranks.sort_unstable();
    spec.ranks.dedup();
    if spec.ranks.len() == world_size {
        spec.ranks.clear();
    }
    spec
}

/// Whether this rank can take part in operations of a spec.
pub(crate) fn check(
    spec: &TensorSpec,
    average: bool,
    rank: Rank,
    world_size: usize,
) -> Result<(), String> {
    let name = &spec.name;
    let inside = |r: &Rank| spec.ranks.is_empty() || spec.ranks.contains(r);
    if let Some(bad) = spec.ranks.iter().find(|r| r.0 as usize >= world_size) {
        return Err(format!(
            "tensor '{name}': rank {bad} is not below the world size {world_size}"
        ));
    }
    if !inside(&rank) {
        return Err(format!("tensor '{name}': this is rank {rank}, not one of {:?}", spec.ranks));
    }
    if spec.collective.has_root() && (spec.root.0 as usize >= world_size || !inside(&spec.root)) {
        return Err(format!("tensor '{name}': root {} takes no part", spec.root));
    }
    if average && !spec.dtype.is_float() {
        let dtype = spec.dtype.name();
        return Err(format!("tensor '{name}': {dtype} has no average here; sum, then divide"));
    }
    if average && (spec.collective == Collective::Broadcast || spec.op != ReduceOp::Sum) {
        return Err(format!("tensor '{name}': only a sum can be averaged"));
    }
    if spec.elements().is_none() {
        return Err(format!("tensor '{name}': shape {:?} exceeds any memory", spec.shape));
    }
    Ok(())
}
