//! One operation of a worker: one round of one tensor, with its partitions' progress.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use sumpter_types::{
    CallNumber, Collective, Dtype, Epoch, ExactSum, GroupId, Rank, ReduceOp, Round, Staleness,
    TensorId, Update,
};
use sumpter_wire::{
    FrameKind, Header, MAX_MIRRORS, OrderEntry, PartitionSpec, Route, Tier, VariableSpec,
};

use super::order::OrderSpan;
use crate::coding::Coding;
use crate::spans::Spans;
use sumpter_endpoint::ConnId;

/// An operation's number in its client, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// A partition's place: which bytes of the memory, the lane that reduces them, and for which
/// workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane, by its connection.
    pub lane: ConnId,
    /// The partition's number in its tensor, the same on every rank; a tensor's places ascend by
    /// it. On a rank that takes part in some of the partitions only, it is not the index.
    pub number: u32,
    /// First byte in the operation's memory.
    pub offset: usize,
    /// First byte in the tensor; the same but where the memory holds only a part of it.
    pub origin: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whose contributions the lane adds; must have been defined, 0 is everyone.
    pub group: GroupId,
    /// How many workers' contributions are in the result: what an average divides by.
    pub contributors: u32,
    /// Nothing is added: this worker of the group has the result, the others get it.
    pub relay: Option<Rank>,
    /// What the partition is of a variable, in an update.
    pub variable: Option<VariablePlace>,
    /// Where the lane's subtotals go next, if its process does not know the tensor. The group there
    /// must have been defined.
    pub route: Option<Route>,
    /// Who keeps what the codes of sums leave out, if that is added to the next ones.
    pub carrier: Option<Carrier>,
}

/// Who keeps what the codes of a partition's sums leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// A member of the group.
    pub rank: Rank,
    /// How many contributions the lane adds: all members'.
    pub contributions: u32,
}

/// What a partition is of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariablePlace {
    /// Who mirrors it.
    pub mirrors: [Option<Rank>; MAX_MIRRORS],
    /// The number of the partition whose state it is a part of: its own, but in a round that is
    /// repaired.
    pub home: u32,
    /// First byte in that partition.
    pub offset: u32,
    /// How far the workers may run apart.
    pub staleness: Staleness,
    /// The second mirror gets the state from the first in this epoch.
    pub lacks: bool,
}

impl VariablePlace {
    /// Whether a worker mirrors the partition.
    #[must_use]
    pub fn is_mirror(&self, rank: Rank) -> bool {
        self.mirrors.contains(&Some(rank))
    }
}

impl Place {
    /// A place of a tensor that lies in the memory as a whole: bytes from `offset`.
    #[must_use]
    pub fn new(
        lane: ConnId,
        number: u32,
        (offset, bytes): (usize, usize),
        group: GroupId,
        contributors: u32,
    ) -> Place {
        Place {
            lane,
            number,
            offset,
            origin: offset,
            bytes,
            group,
            contributors,
            relay: None,
            variable: None,
            route: None,
            carrier: None,
        }
    }
}

/// Numbers from here on are of the partitions of a round that a change of epoch interrupted.
pub const REPAIRED: u32 = 1 << 31;

/// Where the partitions of a tensor are summed.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// First byte in the tensor of the memory of this worker's operations: of the part that it
    /// contributes and receives, in all epochs the same.
    pub start: usize,
    /// In every round.
    pub places: Arc<[Place]>,
    /// In these rounds, instead; their numbers are [`REPAIRED`] or more, all different.
    pub repaired: Vec<(Round, Arc<[Place]>)>,
    /// How contributions and sums are encoded, if they are: in the root tier, of an all-reduce that
    /// adds. All partitions begin with a block, and chunks are whole blocks
    /// ([`Coding::granularity`]).
    pub coding: Option<Arc<Coding>>,
}

impl From<Vec<Place>> for Layout {
    fn from(places: Vec<Place>) -> Layout {
        Layout::new(places)
    }
}

impl Layout {
    /// A layout for all rounds.
    #[must_use]
    pub fn new(places: Vec<Place>) -> Layout {
        Layout { places: places.into(), ..Layout::default() }
    }

    /// The same, with contributions and sums encoded.
    #[must_use]
    pub fn coded(self, coding: Option<Arc<Coding>>) -> Layout {
        Layout { coding, ..self }
    }

    pub(crate) fn of(&self, round: Round) -> &Arc<[Place]> {
        let repaired = self.repaired.iter().find(|(repaired, _)| *repaired == round);
        repaired.map_or(&self.places, |(_, places)| places)
    }
}

/// What to do with a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The tensor, registered before.
    pub tensor: TensorId,
    /// Which of its sums.
    pub tier: Tier,
    /// What the round does.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// How contributions combine.
    pub op: ReduceOp,
    /// The root of a broadcast or reduce.
    pub root: Rank,
    /// Floats only: the result is divided by the number of contributors.
    pub average: bool,
    /// Higher goes first.
    pub priority: i32,
    /// How the contribution gets into the memory.
    pub supply: Supply,
    /// The call of the program to which the round belongs, if it counts them.
    pub call: Option<CallNumber>,
    /// The rule and its coefficients, in an update, or that they are to be
    /// [decided](super::Client::decide) when the norm of the gradient is known; the contribution
    /// and the result must not lie in the same memory then.
    pub update: Option<Update>,
    /// What earlier rounds have left out is multiplied by this before it is encoded, 1 unless the
    /// learning rate has changed: its last value over the present one.
    pub rescale: f32,
}

/// How the contribution to an operation gets into its memory, and how the result is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply {
    /// All of it is there when the operation is submitted.
    #[default]
    Whole,
    /// Range by range while the operation runs, as from a device: a partition is offered for
    /// admission once [`Client::supply`](super::Client::supply) has covered it, and each byte of
    /// the result is reported by one [`Event::Available`](super::Event::Available), whatever epochs
    /// the round takes. Both count from the first byte of the memory, which holds what this worker
    /// contributes of the tensor. Of a worker that holds nothing of it, the operation ends once
    /// an empty range was supplied.
    Ranges,
    /// Chunk by chunk while its partition is on the connection: nothing of it is looked at before
    /// [`Client::supply_chunks`](super::Client::supply_chunks), and each chunk of the result is
    /// reported by [`Event::Arrived`](super::Event::Arrived), or if there is none, that it is over
    /// by [`Event::PartitionDone`](super::Event::PartitionDone). The operation ends with its epoch.
    Chunks,
}

impl Request {
    /// What a result of so many contributors is divided by.
    pub(super) fn divisor(&self, contributors: u32) -> Option<u32> {
        // The lane divides the gradient of a variable, before it applies the rule.
        let divides = self.average && self.update.is_none();
        (divides && contributors > 1).then_some(contributors)
    }
}

#[derive(Debug)]
pub(super) struct Op<M> {
    pub request: Request,
    /// The only partition, if its rounds are counted apart from those of all others.
    pub alone: Option<u32>,
    pub round: Round,
    pub memory: M,
    pub places: Arc<[Place]>,
    /// How it is encoded where it is summed now.
    coding: Option<Arc<Coding>>,
    pub parts: Vec<Part>,
    /// Partitions not done.
    pub left: usize,
    /// What earlier epochs have completed of the result.
    pub done: Spans,
    /// What of the contribution is there, if it comes in ranges; `None` before the first of them.
    pub supplied: Option<Spans>,
    /// The norm of a gradient, if the update was deferred.
    norm: Option<Box<Norm>>,
    /// What of a variable was reported as final, if the contribution comes in ranges.
    announced: Spans,
    /// In which order the contribution is to change a variable asynchronously; of all elements, or
    /// nothing.
    pub follows: Vec<OrderSpan>,
    /// Frames in output queues that refer to the memory.
    pub queued: usize,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Behind an earlier round of the same tensor.
    Waiting,
    Active,
    /// Done or failed; kept only while frames refer to the memory.
    Finished,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// It waits for credit, or has had it.
    pub offered: bool,
    /// It belongs to its connection and waits for credit no longer.
    pub admitted: bool,
    /// Its beginning was put on the connection that there is now.
    pub announced: bool,
    /// The connection has it among what is ready or under way.
    pub ready: bool,
    /// Chunks of the contribution that may be looked at.
    pub supplied: u32,
    /// Chunks the lane in this process asked for before they were supplied, in order.
    pub asked: VecDeque<u32>,
    /// Chunks of the contribution handed to the connection.
    pub sent: u32,
    /// Chunks of the result received.
    pub have: u32,
    /// Bytes of the credit window that it holds: admitted, and not handed to the connection.
    pub credit: usize,
    /// The lane says that the contribution is not needed again, and in which order it has changed
    /// a variable asynchronously.
    pub settled: bool,
    pub order: Vec<OrderEntry>,
    pub done: bool,
    /// Whether the norm of its gradient is known.
    normed: bool,
}

/// The sum of the squares of a gradient.
#[derive(Debug, Default)]
struct Norm {
    sum: ExactSum,
    /// Partitions whose squares are not in it.
    left: usize,
    /// Whether it was reported, in this epoch or before.
    is_told: bool,
}

impl Part {
    /// A partition of which nothing has happened yet.
    pub(super) fn new(supply: Supply) -> Part {
        Part { supplied: if supply == Supply::Chunks { 0 } else { u32::MAX }, ..Part::default() }
    }
}

/// The index of the partition with a number: that number, where this rank takes part in all.
pub(super) fn find(places: &[Place], number: u32) -> Option<usize> {
    if places.get(number as usize).is_some_and(|place| place.number == number) {
        return Some(number as usize);
    }
    places.binary_search_by_key(&number, |place| place.number).ok()
}

impl<M> Op<M> {
    /// An operation that has not begun.
    pub(super) fn new(
        request: Request,
        round: Round,
        memory: M,
        (places, coding): (Arc<[Place]>, Option<Arc<Coding>>),
    ) -> Op<M> {
        let (done, supplied, announced, follows) = Default::default();
        let (parts, left, queued, stage) = (Vec::new(), 0, 0, Stage::Waiting);
        let deferred = request.update.is_some_and(|update| !update.is_decided());
        let norm = deferred.then(Box::default);
        let mut op = Op {
            request,
            alone: None,
            round,
            memory,
            places,
            coding,
            parts,
            left,
            done,
            supplied,
            norm,
            announced,
            follows,
            queued,
            stage,
        };
        op.begin_anew();
        op
    }

    /// Forgets what has happened to the partitions.
    pub(super) fn begin_anew(&mut self) {
        self.parts = vec![Part::new(self.request.supply); self.places.len()];
        self.left = self.parts.len();
        if let Some(norm) = &mut self.norm {
            (norm.sum, norm.left) = (ExactSum::default(), self.parts.len());
        }
    }

    /// Takes the norm of partition `part`; that of all, when it is known for the first time.
    pub(super) fn take_norm(&mut self, part: usize, squares: &ExactSum) -> Option<ExactSum> {
        let norm = self.norm.as_mut()?;
        if std::mem::replace(&mut self.parts[part].normed, true) {
            return None;
        }
        norm.sum.merge(squares);
        norm.left -= 1;
        let told = norm.left > 0 || std::mem::replace(&mut norm.is_told, true);
        (!told).then(|| norm.sum.clone())
    }

    /// Notes what has arrived; the rest begins anew elsewhere.
    pub(super) fn settle(&mut self, chunk_bytes: usize) {
        for (place, part) in self.places.iter().zip(&mut self.parts) {
            let have = place.bytes.min(part.have as usize * chunk_bytes);
            self.done.insert(place.origin..place.origin + have);
            part.credit = 0;
        }
    }

    /// Goes on in other places.
    pub(super) fn move_to(&mut self, tier: Tier, layout: &Layout) {
        self.request.tier = tier;
        let places = layout.of(self.round).clone();
        // A part of a variable that is updated again has its new value only then.
        for place in places.iter().filter(|place| place.variable.is_some()) {
            self.done.remove(place.origin..place.origin + place.bytes);
        }
        (self.places, self.coding) = (places, layout.coding.clone());
        self.begin_anew();
    }

    /// How partition `part` is encoded, if it is.
    pub(super) fn coding(&self, part: usize) -> Option<&Arc<Coding>> {
        self.coding.as_ref().filter(|_| self.places[part].relay.is_none())
    }

    /// Whether the result of partition `part` comes encoded.
    pub(super) fn decodes(&self, part: usize) -> bool {
        self.coding(part).is_some_and(|coding| coding.codec().spec().two_way)
    }

    /// Bytes on the connection of so many bytes of this worker's contribution to a partition.
    pub(super) fn sent_len(&self, part: usize, bytes: usize) -> usize {
        let dtype = self.request.dtype;
        self.coding(part).map_or(bytes, |coding| coding.coder().len(dtype, bytes))
    }

    /// The same of its result, for `rank`.
    pub(super) fn received_len(&self, part: usize, bytes: usize, rank: Rank) -> usize {
        let dtype = self.request.dtype;
        let Some(coding) = self.coding(part) else { return bytes };
        match self.carries(part, rank) {
            Some(contributions) => coding.coder().carried_len(dtype, bytes, contributions),
            None => coding.coder().sum_len(dtype, bytes),
        }
    }

    /// Of how many contributions the sums of partition `part` are, if `rank` gets them in place of
    /// their codes.
    pub(super) fn carries(&self, part: usize, rank: Rank) -> Option<u32> {
        let carrier = self.coding(part).and(self.places[part].carrier);
        carrier.filter(|carrier| carrier.rank == rank).map(|carrier| carrier.contributions)
    }

    /// These bytes of a variable are final.
    pub(super) fn announce(&mut self, bytes: Range<usize>) {
        self.announced.insert(bytes);
    }

    /// What is here of a variable, and final since it will not be made again, but was not
    /// [announced](Self::announce).
    pub(super) fn unannounced(&self) -> Spans {
        if self.request.supply != Supply::Ranges || self.request.update.is_none() {
            return Spans::default();
        }
        let mut left = self.done.clone();
        self.announced.iter().for_each(|bytes| left.remove(bytes));
        left
    }

    /// Whether partition `part` can be offered for admission, and has not been yet; from now on
    /// it has.
    pub(super) fn offer(&mut self, part: usize, rank: Rank) -> bool {
        let ready = !self.parts[part].offered && self.unsupplied(part, rank) == 0;
        self.parts[part].offered |= ready;
        ready
    }

    /// Bytes of the contribution to partition `part` that are to come in ranges and are not there.
    pub(super) fn unsupplied(&self, part: usize, rank: Rank) -> usize {
        if self.request.supply != Supply::Ranges || !self.contributes(part, rank) {
            return 0;
        }
        let Place { offset, bytes, .. } = self.places[part];
        let there = |supplied: &Spans| supplied.overlap(&(offset..offset + bytes));
        bytes - self.supplied.as_ref().map_or(0, there)
    }

    /// Whether nothing was supplied of a contribution that comes in ranges.
    pub(super) fn awaits_supply(&self, rank: Rank) -> bool {
        let Request { supply, collective, root, .. } = self.request;
        supply == Supply::Ranges && collective.contributes(rank, root) && self.supplied.is_none()
    }

    /// Whether partition `part` of an operation that is supplied in chunks is begun: where `rank`
    /// only receives, once there is room.
    pub(super) fn begins(&self, part: usize, rank: Rank) -> bool {
        self.contributes(part, rank) || self.parts[part].supplied > 0
    }

    /// What the lane must know of partition `part`.
    pub(super) fn spec(&self, part: usize, chunk_bytes: u32, deterministic: bool) -> PartitionSpec {
        let request = &self.request;
        let (collective, root) = self.does(part);
        let Place { variable, contributors, route, origin, carrier, .. } = self.places[part];
        let carrier = carrier.map(|carrier| carrier.rank);
        let variable = request.update.zip(variable).map(|(update, place)| VariableSpec {
            rule: update.rule,
            divisor: if request.average { contributors } else { 1 },
            mirrors: place.mirrors,
            home: place.home,
            offset: place.offset,
            staleness: place.staleness,
        });
        PartitionSpec {
            bytes: self.places[part].bytes as u32,
            chunk_bytes,
            group: self.places[part].group,
            root,
            collective,
            dtype: request.dtype,
            op: request.op,
            deterministic,
            variable,
            route,
            coding: self.coding(part).map(|coding| coding.spec(request.dtype, origin, carrier)),
        }
    }

    /// Whether `rank` mirrors partition `part`: it receives the gradient, and makes the value.
    /// Within its machine it passes the value on.
    pub(super) fn mirrors(&self, part: usize, rank: Rank) -> bool {
        let mirrors = self.places[part].variable.is_some_and(|variable| variable.is_mirror(rank));
        mirrors && self.tier(part) == Tier::Root
    }

    /// Whether all is here that makes partition `part` done for `rank`: the result, and of a
    /// variable that others mirror, the lane's word that they have it.
    pub(super) fn is_complete(&self, part: usize, rank: Rank, chunk_bytes: u32) -> bool {
        let (place, state) = (&self.places[part], &self.parts[part]);
        let received = state.have == place.bytes.div_ceil(chunk_bytes as usize) as u32;
        let mirrored = place.variable.is_none_or(|variable| {
            let mut mirrors = variable.mirrors.into_iter().flatten();
            let alone = self.mirrors(part, rank) && mirrors.clone().all(|mirror| mirror == rank);
            mirrors.next().is_none() || alone || state.settled
        });
        received && mirrored
    }

    /// What is done with partition `part`, and the worker that differs from the others.
    pub(super) fn does(&self, part: usize) -> (Collective, Rank) {
        match self.places[part].relay {
            Some(holder) => (Collective::Broadcast, holder),
            None => (self.request.collective, self.request.root),
        }
    }

    /// Whether `rank` sends data of partition `part`.
    pub(super) fn contributes(&self, part: usize, rank: Rank) -> bool {
        let (collective, root) = self.does(part);
        collective.contributes(rank, root)
    }

    /// Whether `rank` receives data of partition `part`.
    pub(super) fn receives(&self, part: usize, rank: Rank) -> bool {
        let (collective, root) = self.does(part);
        collective.receives(rank, root)
    }

    /// What a result of partition `part` is divided by.
    pub(super) fn divisor(&self, part: usize) -> Option<u32> {
        self.request.divisor(self.places[part].contributors)
    }

    /// The sum of partition `part` that a frame is about.
    pub(super) fn tier(&self, part: usize) -> Tier {
        match self.places[part].relay {
            // One mirror gives a part of a variable to another.
            Some(_) if self.request.tier.part().is_none() => Tier::Relay,
            _ => self.request.tier,
        }
    }

    /// Whether a gradient that changes a variable goes to the lane of partition `part`, in whose
    /// rounds its mirrors take part once they have its state.
    pub(super) fn changes_variable(&self, part: usize) -> bool {
        self.places[part].variable.is_some() && self.tier(part) == Tier::Root
    }

    /// The header of a frame about partition `part`.
    pub(super) fn header(&self, kind: FrameKind, part: usize, epoch: Epoch) -> Header {
        let header = Header::new(kind, epoch, self.request.tensor);
        let (tier, partition) = (self.tier(part), self.places[part].number);
        Header { tier, partition, round: self.round, ..header }
    }

    /// Byte range of a chunk in the memory: offset and length.
    pub(super) fn range(&self, part: usize, chunk: u32, chunk_bytes: u32) -> (usize, usize) {
        let place = &self.places[part];
        let start = chunk as usize * chunk_bytes as usize;
        (place.offset + start, place.bytes.saturating_sub(start).min(chunk_bytes as usize))
    }
}
