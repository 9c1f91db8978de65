//! A declared tensor: what is the same in all its operations is checked and named once.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Sender, bounded};
use sumpter_engine::{CodecMemory, CodecMemoryError, OrderSpan};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, ReduceOp, Rule, Staleness, TensorSpec, Update};

use crate::cluster::shards::Held;
use crate::codecs::CodecState;
use crate::codecs::{self, canonical};
use crate::command::{Command, DeclarationId, Given, MirroredParts, Submission};
use crate::completion::{Callback, Completion, OnFailure, Promise};
use crate::error::OpError;
use crate::worker::decision::Deferred;
use crate::worker::deferred::DeferredRound;
use crate::worker::loops::{Loops, TensorPart, tensor_parts};
use crate::worker::staged::{Slices, Staged};
use crate::worker::staged_round::StagedRound;

/// What differs between the operations of one tensor.
#[derive(Debug)]
pub struct OpRequest {
    /// Free text for diagnosis: `group#sequence|signature`, or nothing.
    pub tag: String,
    /// Higher goes first.
    pub priority: i32,
    /// The rule and its coefficients, in an update.
    pub update: Option<Update>,
    /// In which order it changes a variable asynchronously, as [`Completion::order`] said in
    /// another run: of all elements, or nothing. Errors by the completion if it is of others.
    pub order: Vec<OrderSpan>,
    /// What earlier rounds have left out of a compressed tensor is multiplied by this, 1 unless the
    /// learning rate has changed: its last value over the present one.
    pub rescale: f32,
}

impl Default for OpRequest {
    fn default() -> OpRequest {
        let (tag, order) = (String::new(), Vec::new());
        OpRequest { tag, priority: 0, update: None, order, rescale: 1.0 }
    }
}

/// What only some operations have.
#[derive(Default)]
struct Extras {
    /// The contribution comes while the round lasts.
    staged: Option<Arc<Staged>>,
    /// What the update does is decided later.
    deferred: Option<Arc<Deferred>>,
    /// What the tensor has from now on, in place of a round.
    given: Option<Given>,
}

/// A tensor that a worker has declared.
#[derive(Debug)]
pub struct Tensor {
    spec: TensorSpec,
    /// What each rank of this rank's device group holds, if it is sharded.
    held: Option<Vec<Held>>,
    /// Its number in the event loop, or why all its operations fail.
    id: Result<DeclarationId, String>,
    loops: Arc<Loops>,
    /// Which event loops serve it, and the bytes of each; of a part that is all of it, all.
    parts: Vec<(u32, Range<usize>)>,
    notifier: Sender<Callback>,
}

impl Tensor {
    pub(crate) fn new(
        (spec, held): (TensorSpec, Option<Vec<Held>>),
        id: Result<DeclarationId, String>,
        loops: Arc<Loops>,
        notifier: Sender<Callback>,
    ) -> Tensor {
        let parts = tensor_parts(&spec, loops.count());
        let parts = parts.into_iter().map(|TensorPart { number, bytes, .. }| (number, bytes));
        let parts = parts.collect();
        Tensor { spec, held, id, loops, parts, notifier }
    }

    /// The loop that speaks for the tensor; of a variable the only one that serves it.
    fn first_loop(&self) -> u32 {
        self.parts[0].0
    }

    /// Of a sharded tensor: each rank of this rank's device group that takes part, and the bytes of
    /// the tensor that it contributes and receives. `None` of any other tensor.
    #[must_use]
    pub fn held(&self) -> Option<&[(Rank, Range<usize>)]> {
        self.held.as_deref()
    }

    /// What must be equal on every rank, in the form in which the coordinator compares.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Queues an operation on `memory`. Outcomes, errors included, come by the completion. A round
    /// of a variable needs an update by its rule, and of any other tensor none: an error otherwise.
    #[must_use]
    pub fn submit(&self, request: OpRequest, memory: TensorMemory) -> Arc<Completion> {
        self.queue(request, memory, Extras::default())
    }

    /// Gives a variable its parts from now on: the value and the slots of its rule, each as a whole
    /// and in elements of the type in which they are kept (`f64` for `f64`, else `f32`). The value
    /// may come alone, then the slots are zeros. All of its ranks must do so with the same bytes,
    /// while no round is under way. Done once the lanes have what this rank mirrors.
    #[must_use]
    pub fn set_state(&self, parts: Vec<Vec<u8>>) -> Arc<Completion> {
        if let Err(reason) = check_state(&self.spec, &parts) {
            let completion = Completion::new(self.notifier.clone());
            completion.finish(Err(OpError::Mismatch(reason)));
            return completion;
        }
        self.give(Given::State(parts))
    }

    /// What the codec of a compressed tensor keeps from round to round, as `f32`s of all elements;
    /// nothing before it has encoded here.
    ///
    /// # Errors
    /// While a round is under way, or if the session is over.
    pub fn codec_memory(&self) -> Result<CodecState, OpError> {
        let Ok(id) = &self.id else { return Ok(CodecState::default()) };
        let closed = || OpError::Closed("the session has been shut down".into());
        let of_part = |number: u32| {
            let (answer, memory) = bounded(1);
            let asked = self.loops.send(number, Command::CodecMemory(*id, answer));
            let answered = asked.then(|| memory.recv().ok()).flatten();
            answered.ok_or_else(closed)?
        };
        let of_parts = self.parts.iter().map(|(number, _)| of_part(*number));
        let of_parts = of_parts.collect::<Result<Vec<_>, _>>()?;
        let joined = |of: fn(&CodecMemory) -> &Option<Vec<u8>>| {
            of_parts.iter().any(|part| of(&part.memory).is_some()).then(|| {
                // A part that was not encoded yet has left nothing out.
                let zeros = |bytes: &Range<usize>| vec![0; self.kept_bytes(bytes).len()];
                let parts = self.parts.iter().zip(&of_parts);
                let parts = parts.map(|((_, bytes), part)| match of(&part.memory) {
                    Some(part) => part.clone(),
                    None => zeros(bytes),
                });
                parts.collect::<Vec<_>>().concat()
            })
        };
        let (residual, velocity) = (joined(|of| &of.residual), joined(|of| &of.velocity));
        let memory = CodecMemory { residual, velocity };
        Ok(CodecState { memory, draws: of_parts.first().and_then(|part| part.draws) })
    }

    /// The next round of a compressed tensor goes on from what [`codec_memory`](Self::codec_memory)
    /// returned, here or in another run; what its codec does not keep is not used. Fails while a
    /// round is under way. It concerns this rank alone.
    #[must_use]
    pub fn set_codec_memory(&self, memory: CodecMemory) -> Arc<Completion> {
        let expected = self.spec.elements().unwrap_or(0) as usize * size_of::<f32>();
        let given = [("residual", &memory.residual), ("momentum", &memory.velocity)];
        let wrong = given.into_iter().find_map(|(what, part)| {
            let bytes = part.as_ref().map_or(expected, Vec::len);
            let length = CodecMemoryError::Length { what, bytes, expected };
            (bytes != expected).then(|| format!("tensor '{}': {length}", self.spec.name))
        });
        if let Some(reason) = wrong {
            let completion = Completion::new(self.notifier.clone());
            completion.finish(Err(OpError::Mismatch(reason)));
            return completion;
        }
        self.give(Given::Memory(memory))
    }

    /// The range in what a codec keeps of these bytes of the tensor.
    fn kept_bytes(&self, bytes: &Range<usize>) -> Range<usize> {
        let kept = |at: usize| at / self.spec.dtype.size() * size_of::<f32>();
        kept(bytes.start)..kept(bytes.end)
    }

    fn give(&self, given: Given) -> Arc<Completion> {
        let extras = Extras { given: Some(given), ..Extras::default() };
        self.queue(OpRequest::default(), TensorMemory::zeros(0), extras)
    }

    /// This rank cannot take part in the tensor's rounds, for this reason: those under way and all
    /// later ones fail with it on every rank.
    pub fn refuse(&self, reason: &str) {
        let message = format!("tensor '{}': {reason}", self.spec.name);
        self.loops.send_first(Command::Refuse(self.spec.name.clone(), message));
    }

    /// What this rank mirrors of a variable; nothing before it has a value.
    #[must_use]
    pub fn mirrored(&self) -> Vec<MirroredParts> {
        let (answer, mirrored) = bounded(1);
        match &self.id {
            Ok(id) if self.loops.send(self.first_loop(), Command::Mirrored(*id, answer)) => {
                mirrored.recv().unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Queues an operation on `memory` whose contribution is supplied range by range.
    #[must_use]
    pub fn submit_staged(
        &self,
        request: OpRequest,
        memory: TensorMemory,
        slices: Slices,
    ) -> StagedRound {
        let staged = self.staged(&memory, slices);
        let extras = Extras { staged: Some(staged.clone()), ..Extras::default() };
        let completion = self.queue(request, memory, extras);
        self.staged_round(completion, staged)
    }

    /// Queues a round of a variable by `rule`, of which it is decided what it does once the norm
    /// of its gradient is known.
    #[must_use]
    pub fn submit_deferred(
        &self,
        request: OpRequest,
        rule: Rule,
        memory: TensorMemory,
    ) -> DeferredRound {
        let deferred = Arc::new(Deferred::new(self.notifier.clone()));
        let extras = Extras { deferred: Some(deferred.clone()), ..Extras::default() };
        let request = OpRequest { update: Some(Update::defer(rule)), ..request };
        let completion = self.queue(request, memory, extras);
        self.deferred_round(completion, deferred, rule)
    }

    /// Queues a round as [`submit_deferred`](Self::submit_deferred) does, whose gradient is
    /// supplied range by range.
    #[must_use]
    pub fn submit_staged_deferred(
        &self,
        request: OpRequest,
        rule: Rule,
        memory: TensorMemory,
        slices: Slices,
    ) -> (StagedRound, DeferredRound) {
        let staged = self.staged(&memory, slices);
        let deferred = Arc::new(Deferred::new(self.notifier.clone()));
        let extras = Extras {
            staged: Some(staged.clone()),
            deferred: Some(deferred.clone()),
            ..Extras::default()
        };
        let request = OpRequest { update: Some(Update::defer(rule)), ..request };
        let completion = self.queue(request, memory, extras);
        let deferred = self.deferred_round(completion.clone(), deferred, rule);
        (self.staged_round(completion, staged), deferred)
    }

    fn staged(&self, memory: &TensorMemory, slices: Slices) -> Arc<Staged> {
        let parts = match self.parts.as_slice() {
            // Of a tensor that device groups have reduced, the memory has a shard.
            [(number, _)] => vec![(*number, 0..memory.bytes())],
            parts => parts.to_vec(),
        };
        Arc::new(Staged::new(slices, parts, self.notifier.clone()))
    }

    fn staged_round(&self, completion: Arc<Completion>, staged: Arc<Staged>) -> StagedRound {
        StagedRound::new(self.spec.name.clone(), completion, staged, self.loops.clone())
    }

    fn deferred_round(
        &self,
        completion: Arc<Completion>,
        deferred: Arc<Deferred>,
        rule: Rule,
    ) -> DeferredRound {
        let loops = (self.loops.clone(), self.first_loop());
        DeferredRound::new(completion, deferred, rule, loops)
    }

    fn queue(
        &self,
        request: OpRequest,
        memory: TensorMemory,
        Extras { staged, deferred, given }: Extras,
    ) -> Arc<Completion> {
        let on_failure =
            staged.clone().map(|staged| -> OnFailure { Box::new(move || staged.fail()) });
        let completion = Completion::with(self.notifier.clone(), on_failure);
        let rule = request.update.map(|update| update.rule);
        let checked = match given {
            Some(_) => Ok(()),
            None => check_update(&self.spec, rule)
                .and_then(|()| check_order(&self.spec, &request.order)),
        };
        let id = match self.id.clone().and_then(|id| checked.map(|()| id)) {
            Ok(id) => id,
            Err(reason) => {
                completion.finish(Err(OpError::Mismatch(reason)));
                return completion;
            }
        };
        let submission = |memory, completion, staged, given| Submission {
            tag: request.tag.clone(),
            priority: request.priority,
            memory,
            completion,
            staged,
            deferred: deferred.clone(),
            update: request.update,
            rescale: request.rescale,
            order: request.order.clone(),
            given,
            since: Instant::now(),
        };
        let mut shares = staged.iter().flat_map(|staged| staged.shares());
        if let [(number, _)] = self.parts.as_slice() {
            let promise = Promise::new(completion.clone());
            let submission = submission(memory, promise, shares.next(), given);
            if !self.loops.send(*number, Command::Submit(id, submission)) {
                completion.finish(Err(OpError::Closed("the session has been shut down".into())));
            }
            return completion;
        }
        let ranges: Vec<_> = self.parts.iter().map(|(_, bytes)| bytes.clone()).collect();
        let promises = Promise::of_parts(&completion, self.parts.len());
        let memories = match given {
            Some(_) => ranges.iter().map(|_| TensorMemory::zeros(0)).collect(),
            None => memory.split(&ranges),
        };
        let parts = self.parts.iter().zip(memories).zip(promises);
        let _in_order = self.loops.in_order();
        for (((number, bytes), memory), promise) in parts {
            let given = given.as_ref().map(|given| given.part(&self.kept_bytes(bytes)));
            // A loop that has ended breaks the promise.
            let submission = submission(memory, promise, shares.next(), given);
            self.loops.send(*number, Command::Submit(id, submission));
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
    if spec.collective != Collective::Update {
        spec.rule = None;
        spec.staleness = Staleness::SYNCHRONOUS;
    }
    spec.compression = canonical(&spec.name, spec.compression);
    spec.ranks.sort_unstable();
    spec.ranks.dedup();
    if spec.ranks.len() == world_size {
        spec.ranks.clear();
    }
    spec
}

/// Whether a round can have an update by `rule`, or none.
fn check_update(spec: &TensorSpec, rule: Option<Rule>) -> Result<(), String> {
    let name = &spec.name;
    match (spec.rule, rule) {
        (None, None) => Ok(()),
        (Some(declared), None) => Err(format!(
            "variable '{name}': a round needs the coefficients of its rule, {}",
            declared.name()
        )),
        (None, Some(_)) => Err(format!("tensor '{name}' has no update rule")),
        (Some(declared), Some(given)) if declared == given => Ok(()),
        (Some(declared), Some(given)) => {
            Err(format!("variable '{name}': its rule is {}, not {}", declared.name(), given.name()))
        }
    }
}

/// Whether these can be the parts of a variable.
fn check_state(spec: &TensorSpec, parts: &[Vec<u8>]) -> Result<(), String> {
    let name = &spec.name;
    let Some(rule) = spec.rule else {
        return Err(format!("tensor '{name}' is no variable: it has no update rule"));
    };
    let (slots, bytes) = (rule.slots(), spec.dtype.accumulator().size());
    let bytes = spec.elements().unwrap_or(0) as usize * bytes;
    if parts.len() != 1 && parts.len() != 1 + slots.len() {
        let (rule, got) = (rule.name(), parts.len());
        return Err(format!(
            "variable '{name}': {rule} has a value and {} slots {slots:?}, not {got} parts",
            slots.len()
        ));
    }
    match parts.iter().find(|part| part.len() != bytes) {
        None => Ok(()),
        Some(part) => {
            let got = part.len();
            Err(format!("variable '{name}': a part has {got} bytes instead of {bytes}"))
        }
    }
}

/// Whether a round of a spec can follow an order.
fn check_order(spec: &TensorSpec, order: &[OrderSpan]) -> Result<(), String> {
    let name = &spec.name;
    if order.is_empty() {
        return Ok(());
    }
    if spec.staleness.is_synchronous() || spec.rule.is_none() {
        return Err(format!("tensor '{name}' has no order: it does not change asynchronously"));
    }
    let elements = spec.elements().unwrap_or(0) as usize;
    let mut next = 0;
    for span in order {
        let OrderSpan { elements: Range { start, end }, .. } = *span;
        if start != next || end <= start || end > elements {
            return Err(format!(
                "variable '{name}': an order of elements {start} to {end} of {elements}, where \
                 {next} is the next"
            ));
        }
        next = end;
    }
    if next < elements {
        return Err(format!("variable '{name}': an order of {next} of its {elements} elements"));
    }
    Ok(())
}

/// Whether this rank can take part in operations of a spec.
pub(crate) fn check(
    spec: &TensorSpec,
    average: bool,
    rank: Rank,
    world_size: usize,
    workers_may_fail: bool,
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
    if spec.sharded && spec.collective != Collective::AllReduce {
        let collective = spec.collective.name();
        return Err(format!(
            "tensor '{name}': only an all_reduce can be sharded, not a {collective}"
        ));
    }
    if spec.collective == Collective::Update {
        if spec.rule.is_none() {
            return Err(format!("variable '{name}': there is no update rule"));
        }
        if !spec.dtype.is_float() {
            let dtype = spec.dtype.name();
            return Err(format!("variable '{name}': {dtype} has no update rule; only floats have"));
        }
        if workers_may_fail && !spec.staleness.is_synchronous() {
            return Err(format!(
                "variable '{name}': in an elastic job (min_workers) variables cannot change \
                 asynchronously; train with staleness=0"
            ));
        }
    }
    if spec.elements().is_none() {
        return Err(format!("tensor '{name}': shape {:?} exceeds any memory", spec.shape));
    }
    codecs::check(spec, rank)
}
