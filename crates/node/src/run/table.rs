//! The tensors of a job: what this worker has declared, what the coordinator has numbered, and the
//! operations that wait for a number.
//!
//! A name and a spec are looked at when a tensor is declared and when it is numbered. An operation
//! only indexes: its declaration leads to the tensor's number, and that to the ready request.
//! Entries are never removed, as the job's own table is append-only.

use std::collections::HashMap;

use sumpter_engine::{Request, Supply};
use sumpter_types::{Collective, Rank, ReduceOp, Tag, TensorId, TensorSpec};
use sumpter_wire::Tier;

use crate::command::{DeclarationId, Submission};
use crate::error::OpError;
use crate::run::coding::TensorCoding;
use crate::worker::loops::ServedPart;

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
    /// By [`DeclarationId`].
    declarations: Vec<Declaration>,
    /// By the indices of `indices`.
    names: Vec<Name>,
    indices: HashMap<String, usize>,
    /// By [`TensorId`].
    tensors: Vec<Tensor>,
    /// Submissions in `names`.
    waiting: usize,
}

/// What this worker's operations on a tensor have in common.
#[derive(Debug)]
struct Declaration {
    spec: TensorSpec,
    average: bool,
    name: usize,
    /// Once the coordinator has numbered this spec, unless the name has failed since.
    tensor: Option<TensorId>,
}

#[derive(Debug)]
struct Name {
    state: State,
    declarations: Vec<DeclarationId>,
    /// In order of submission, whichever declaration they are of, since that is the order of
    /// rounds.
    waiting: Vec<(DeclarationId, Submission)>,
}

#[derive(Debug)]
enum State {
    /// Not numbered; if submissions wait, the coordinator has been asked.
    Unnumbered,
    /// Numbered; operations of another spec wait for the coordinator's verdict.
    Numbered(TensorId),
    Failed(String),
}

/// A tensor of the coordinator's table, as far as this event loop serves it.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// The part that this loop serves, as a tensor.
    pub spec: TensorSpec,
    /// Whether this loop speaks for it.
    pub speaks: bool,
    /// The size of this worker's memory for this loop's part: of what it contributes and receives.
    pub bytes: u64,
    /// The same of all parts.
    pub whole_bytes: u64,
    /// How this loop's part of it is compressed, if it is.
    pub coding: TensorCoding,
    /// Rounds begun.
    pub begun: u64,
    /// Rounds finished.
    pub finished: u64,
    /// As it was declared.
    declared: TensorSpec,
    name: usize,
    /// Of an operation of no priority whose result is not averaged. Its tier is where this worker
    /// contributes.
    request: Request,
}

impl Table {
    /// Takes the next declaration.
    pub(crate) fn declare(&mut self, id: DeclarationId, spec: TensorSpec, average: bool) {
        debug_assert_eq!(id.0 as usize, self.declarations.len(), "declared in order");
        let name = self.index(&spec.name);
        self.names[name].declarations.push(id);
        let numbered = match self.names[name].state {
            State::Numbered(tensor) => Some(tensor),
            State::Unnumbered | State::Failed(_) => None,
        };
        let tensor = numbered.filter(|tensor| self.tensors[tensor.0 as usize].declared == spec);
        self.declarations.push(Declaration { spec, average, name, tensor });
    }

    /// The number of a declared tensor.
    pub(crate) fn numbered(&self, id: DeclarationId) -> Option<TensorId> {
        self.declarations.get(id.0 as usize)?.tensor
    }

    /// The name of a declared tensor.
    pub(crate) fn declared_name(&self, id: DeclarationId) -> &str {
        &self.declarations[id.0 as usize].spec.name
    }

    /// Finds the tensor of a submission.
    pub(crate) fn find(&mut self, id: DeclarationId, submission: Submission) -> Lookup {
        let Declaration { spec, average, name, tensor } = &self.declarations[id.0 as usize];
        if let Some(tensor) = tensor {
            let request = Request {
                average: *average,
                priority: submission.priority,
                call: Tag::parse(&submission.tag).map(|tag| tag.number),
                ..self.tensors[tensor.0 as usize].request
            };
            return Lookup::Ready(submission, request);
        }
        let name = &mut self.names[*name];
        if let State::Failed(message) = &name.state {
            return Lookup::Failed(submission, OpError::Mismatch(message.clone()));
        }
        let asked = |(id, _): &(DeclarationId, _)| self.declarations[id.0 as usize].spec == *spec;
        let is_asked = name.waiting.iter().any(asked);
        name.waiting.push((id, submission));
        self.waiting += 1;
        if is_asked { Lookup::Waiting } else { Lookup::Declare(spec.clone()) }
    }

    /// A new entry of the coordinator's table; the part that this loop serves, of which this
    /// worker's memory has so many `bytes`, and how it is compressed. Returns the submissions that
    /// waited for it.
    pub(crate) fn enter(
        &mut self,
        id: TensorId,
        declared: TensorSpec,
        ServedPart { spec, speaks, .. }: ServedPart,
        tier: Tier,
        bytes: u64,
        coding: TensorCoding,
    ) -> Vec<(DeclarationId, Submission)> {
        debug_assert_eq!(id.0 as usize, self.tensors.len(), "numbers are given in order");
        let name = self.index(&declared.name);
        for declaration in &self.names[name].declarations {
            let declaration = &mut self.declarations[declaration.0 as usize];
            declaration.tensor = (declaration.spec == declared).then_some(id);
        }
        let request = request(id, tier, &spec);
        let whole_bytes = match spec == declared {
            true => bytes,
            false => declared.elements().unwrap_or(0) * declared.dtype.size() as u64,
        };
        let (begun, finished) = (0, 0);
        self.tensors.push(Tensor {
            spec,
            speaks,
            bytes,
            whole_bytes,
            coding,
            begun,
            finished,
            declared,
            name,
            request,
        });
        self.names[name].state = State::Numbered(id);
        self.take_waiting_of(name)
    }

    /// What a number stands for.
    pub(crate) fn tensor(&self, id: TensorId) -> Option<&Tensor> {
        self.tensors.get(id.0 as usize)
    }

    /// As [`tensor`](Self::tensor), of a number that the coordinator has given.
    pub(crate) fn known_mut(&mut self, id: TensorId) -> &mut Tensor {
        &mut self.tensors[id.0 as usize]
    }

    /// All tensors, in the order of their numbers.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Whether this loop speaks for a tensor.
    pub(crate) fn speaks(&self, id: TensorId) -> bool {
        self.tensor(id).is_some_and(|tensor| tensor.speaks)
    }

    /// Whether this loop serves any of a tensor.
    pub(crate) fn serves(&self, id: TensorId) -> bool {
        self.tensor(id).is_some_and(|tensor| tensor.speaks || tensor.spec.elements() != Some(0))
    }

    pub(crate) fn spec(&self, id: TensorId) -> Option<&TensorSpec> {
        self.tensor(id).map(|tensor| &tensor.spec)
    }

    /// The request for a round of a tensor that this worker need not have declared, unless its
    /// name has failed.
    pub(crate) fn request(&self, id: TensorId) -> Option<Request> {
        let tensor = self.tensor(id)?;
        match self.names[tensor.name].state {
            State::Numbered(numbered) if numbered == id => Some(tensor.request),
            _ => None,
        }
    }

    /// The lanes that receive this worker's contributions to a tensor from now on.
    pub(crate) fn move_to(&mut self, tensor: TensorId, to: Tier) {
        if let Some(tensor) = self.tensors.get_mut(tensor.0 as usize) {
            tensor.request.tier = to;
        }
    }

    /// A name turned out unusable. Returns its number, if it had one, and what waited.
    pub(crate) fn fail(
        &mut self,
        name: &str,
        message: &str,
    ) -> (Option<TensorId>, Vec<(DeclarationId, Submission)>) {
        let index = self.index(name);
        let name = &mut self.names[index];
        let before = std::mem::replace(&mut name.state, State::Failed(message.to_owned()));
        for declaration in &name.declarations {
            self.declarations[declaration.0 as usize].tensor = None;
        }
        let waiting = self.take_waiting_of(index);
        match before {
            State::Numbered(id) => (Some(id), waiting),
            State::Unnumbered | State::Failed(_) => (None, waiting),
        }
    }

    /// Everything that waits for the coordinator, with the tensors' names.
    pub(crate) fn take_waiting(&mut self) -> Vec<(String, Submission)> {
        let all = (0..self.names.len()).flat_map(|name| self.take_waiting_of(name));
        let all: Vec<_> = all.collect();
        let named = |(id, submission): (DeclarationId, _)| {
            (self.declarations[id.0 as usize].spec.name.clone(), submission)
        };
        all.into_iter().map(named).collect()
    }

    /// What waits for the coordinator, with the tensors as they were declared.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&TensorSpec, &Submission)> {
        let names = if self.waiting == 0 { &[] } else { self.names.as_slice() };
        let waiting = names.iter().flat_map(|name| &name.waiting);
        waiting.map(|(id, submission)| (&self.declarations[id.0 as usize].spec, submission))
    }

    /// How many operations wait for the coordinator.
    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    fn take_waiting_of(&mut self, name: usize) -> Vec<(DeclarationId, Submission)> {
        let waiting = std::mem::take(&mut self.names[name].waiting);
        self.waiting -= waiting.len();
        waiting
    }

    /// The index of a name, new or not.
    fn index(&mut self, name: &str) -> usize {
        if let Some(index) = self.indices.get(name) {
            return *index;
        }
        let index = self.names.len();
        self.indices.insert(name.to_owned(), index);
        let (declarations, waiting) = (Vec::new(), Vec::new());
        self.names.push(Name { state: State::Unnumbered, declarations, waiting });
        index
    }
}

fn request(tensor: TensorId, tier: Tier, spec: &TensorSpec) -> Request {
    let op = if spec.collective == Collective::Barrier { ReduceOp::Max } else { spec.op };
    Request {
        tensor,
        tier,
        collective: spec.collective.on_wire(),
        dtype: spec.dtype,
        op,
        root: spec.root,
        average: false,
        priority: 0,
        supply: Supply::Whole,
        call: None,
        update: None,
        rescale: 1.0,
    }
}

/// A round in which a worker passes on what it has of a result; lanes compare it with the others'
/// rounds of the tensor.
pub(crate) fn relay_request(tensor: TensorId, spec: &TensorSpec) -> Request {
    Request { priority: i32::MAX, ..request(tensor, Tier::Root, spec) }
}

/// The members of a tensor's rounds at the start.
pub(crate) fn members(spec: &TensorSpec, world_size: u32) -> Vec<Rank> {
    match spec.ranks.is_empty() {
        true => (0..world_size).map(Rank).collect(),
        false => spec.ranks.clone(),
    }
}

/// Whether a rank is one of them.
pub(crate) fn is_member(spec: &TensorSpec, rank: Rank) -> bool {
    spec.ranks.is_empty() || spec.ranks.contains(&rank)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sumpter_transport::TensorMemory;
    use sumpter_types::{Dtype, Staleness};

    use super::*;
    use crate::completion::Promise;

    fn spec(name: &str, len: u64) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape: vec![len],
            collective: Collective::AllReduce,
            op: ReduceOp::Sum,
            root: Rank(0),
            ranks: Vec::new(),
            rule: None,
            staleness: Staleness::default(),
            sharded: false,
            compression: String::new(),
        }
    }

    /// The coordinator has numbered `x`, which this loop serves as a whole.
    fn enter(table: &mut Table) -> Vec<(DeclarationId, Submission)> {
        let part = ServedPart { spec: spec("x", 4), speaks: true, start: 0 };
        table.enter(TensorId(0), spec("x", 4), part, Tier::Root, 16, TensorCoding::default())
    }

    fn submission(priority: i32) -> Submission {
        Submission {
            tag: String::new(),
            priority,
            memory: TensorMemory::zeros(1),
            completion: Promise::unwatched(),
            staged: None,
            deferred: None,
            update: None,
            rescale: 1.0,
            order: Vec::new(),
            given: None,
            since: Instant::now(),
        }
    }

    const SUM: DeclarationId = DeclarationId(0);
    const MEAN: DeclarationId = DeclarationId(1);
    const OTHER: DeclarationId = DeclarationId(2);

    fn table() -> Table {
        let mut table = Table::default();
        table.declare(SUM, spec("x", 4), false);
        table.declare(MEAN, spec("x", 4), true);
        table.declare(OTHER, spec("x", 5), false);
        table
    }

    #[test]
    fn submissions_of_all_declarations_of_a_name_wait_in_one_order() {
        let mut table = table();
        assert!(matches!(table.find(MEAN, submission(0)), Lookup::Declare(_)));
        assert!(matches!(table.find(SUM, submission(1)), Lookup::Waiting));
        assert!(matches!(table.find(OTHER, submission(2)), Lookup::Declare(_)));
        assert_eq!((table.waiting_len(), table.waiting().count()), (3, 3));
        let waiting = enter(&mut table);
        assert_eq!(waiting.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [MEAN, SUM, OTHER]);
        assert_eq!(table.waiting_len(), 0);
        let Lookup::Ready(_, request) = table.find(MEAN, submission(7)) else { panic!() };
        assert_eq!((request.average, request.priority), (true, 7));
    }

    #[test]
    fn another_spec_of_a_known_name_waits_for_the_verdict_and_fails_all() {
        let mut table = table();
        assert!(enter(&mut table).is_empty());
        assert!(matches!(table.find(SUM, submission(0)), Lookup::Ready(..)));
        assert!(matches!(table.find(OTHER, submission(0)), Lookup::Declare(_)));
        assert!(matches!(table.find(OTHER, submission(0)), Lookup::Waiting));
        let (id, waiting) = table.fail("x", "they differ");
        assert_eq!((id, waiting.len()), (Some(TensorId(0)), 2));
        for declaration in [SUM, MEAN, OTHER] {
            assert!(matches!(table.find(declaration, submission(0)), Lookup::Failed(..)));
        }
        assert!(table.request(TensorId(0)).is_none());
    }

    #[test]
    fn a_declaration_of_a_known_tensor_is_ready_and_follows_its_tier() {
        let mut table = Table::default();
        enter(&mut table);
        table.declare(SUM, spec("x", 4), false);
        table.move_to(TensorId(0), Tier::Machine);
        let Lookup::Ready(_, request) = table.find(SUM, submission(0)) else { panic!() };
        assert_eq!(request.tier, Tier::Machine);
    }

    #[test]
    fn a_relay_of_a_tensor_reduces_as_its_rounds_do() {
        for collective in Collective::ALL {
            let spec = TensorSpec { collective, ..spec("x", 4) };
            let (round, relay) =
                (request(TensorId(3), Tier::Root, &spec), relay_request(TensorId(3), &spec));
            assert_eq!(relay, Request { priority: i32::MAX, ..round });
        }
        let barrier = TensorSpec { collective: Collective::Barrier, ..spec("end", 1) };
        assert_eq!(relay_request(TensorId(0), &barrier).op, ReduceOp::Max);
    }
}
