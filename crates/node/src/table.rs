//! Names of tensors, and the operations that wait until the coordinator has numbered them.

use std::collections::HashMap;

use sumpter_engine::Request;
use sumpter_types::{Collective, Rank, ReduceOp, TensorId, TensorSpec};
use sumpter_wire::Tier;

use crate::command::Submission;
use crate::error::OpError;

/// What became of a submission.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The tensor is known: submit this.
    Ready(Submission, Request),
    /// The coordinator must be asked.
    Declare(TensorSpec),
    /// It waits for an answer that was asked for already.
    Waiting,
    /// The name cannot be used.
    Failed(Submission, OpError),
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    names: HashMap<String, Name>,
    /// By number.
    specs: Vec<TensorSpec>,
}

#[derive(Debug)]
enum Name {
    /// Asked for; the answer is on its way.
    Asked(Vec<Submission>),
    /// Numbered; operations of another shape wait for the coordinator's verdict.
    Known {
        id: TensorId,
        spec: TensorSpec,
        /// Whom this worker's contributions go to.
        tier: Tier,
        disputed: Vec<Submission>,
    },
    Failed(String),
}

impl Table {
    /// Finds the tensor of a submission.
    pub(crate) fn find(&mut self, submission: Submission) -> Lookup {
        match self.names.get_mut(&submission.spec.name) {
            None => {
                let spec = submission.spec.clone();
                self.names.insert(spec.name.clone(), Name::Asked(vec![submission]));
                Lookup::Declare(spec)
            }
            Some(Name::Asked(waiting)) => {
                let known = waiting.iter().any(|w| w.spec == submission.spec);
                let spec = submission.spec.clone();
                waiting.push(submission);
                if known { Lookup::Waiting } else { Lookup::Declare(spec) }
            }
            Some(Name::Known { id, spec, tier, disputed }) => {
                if *spec == submission.spec {
                    let request = request((*id, *tier), &submission);
                    return Lookup::Ready(submission, request);
                }
                let spec = submission.spec.clone();
                disputed.push(submission);
                Lookup::Declare(spec)
            }
            Some(Name::Failed(message)) => {
                let error = OpError::Mismatch(message.clone());
                Lookup::Failed(submission, error)
            }
        }
    }

    /// A new entry of the coordinator's table. Returns the submissions that waited for it.
    pub(crate) fn enter(&mut self, id: TensorId, spec: TensorSpec, tier: Tier) -> Vec<Submission> {
        debug_assert_eq!(id.0 as usize, self.specs.len(), "numbers are given in order");
        self.specs.push(spec.clone());
        let name = spec.name.clone();
        let known = Name::Known { id, spec, tier, disputed: Vec::new() };
        match self.names.insert(name, known) {
            Some(Name::Asked(waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// What a number stands for.
    pub(crate) fn spec(&self, id: TensorId) -> Option<&TensorSpec> {
        self.specs.get(id.0 as usize)
    }

    /// Whom this worker's contributions to a tensor go to from now on.
    pub(crate) fn move_to(&mut self, tensor: TensorId, to: Tier) {
        let name = self.specs.get(tensor.0 as usize).and_then(|s| self.names.get_mut(&s.name));
        if let Some(Name::Known { id, tier, .. }) = name
            && *id == tensor
        {
            *tier = to;
        }
    }

    /// A name turned out unusable. Returns its number, if it had one, and what waited.
    pub(crate) fn fail(
        &mut self,
        name: &str,
        message: &str,
    ) -> (Option<TensorId>, Vec<Submission>) {
        match self.names.insert(name.to_owned(), Name::Failed(message.to_owned())) {
            Some(Name::Asked(waiting)) => (None, waiting),
            Some(Name::Known { id, disputed, .. }) => (Some(id), disputed),
            Some(Name::Failed(_)) | None => (None, Vec::new()),
        }
    }

    /// Everything that waits for the coordinator.
    pub(crate) fn take_waiting(&mut self) -> Vec<Submission> {
        let waiting = self.names.values_mut().flat_map(|name| match name {
            Name::Asked(waiting) | Name::Known { disputed: waiting, .. } => std::mem::take(waiting),
            Name::Failed(_) => Vec::new(),
        });
        waiting.collect()
    }

    /// Names that wait for the coordinator, with tag and age.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Submission> {
        self.names.values().flat_map(|name| match name {
            Name::Asked(waiting) | Name::Known { disputed: waiting, .. } => waiting.as_slice(),
            Name::Failed(_) => &[],
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.specs.len()
    }
}

fn request((tensor, tier): (TensorId, Tier), submission: &Submission) -> Request {
    let spec = &submission.spec;
    let op = if spec.collective == Collective::Barrier { ReduceOp::Max } else { spec.op };
    let collective = spec.collective.on_wire();
    Request {
        tensor,
        tier,
        collective,
        dtype: spec.dtype,
        op,
        root: spec.root,
        average: submission.average,
        priority: submission.priority,
        streamed: false,
    }
}

/// The members of a tensor's rounds at the start.
pub(crate) fn members(spec: &TensorSpec, world_size: u32) -> Vec<Rank> {
    match spec.ranks.is_empty() {
        true => (0..world_size).map(Rank).collect(),
        false => spec.ranks.clone(),
    }
}
