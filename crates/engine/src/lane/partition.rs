//! One partition in a lane: the two rounds that may be alive, their chunks, and who sent what.
//!
//! Invariants:
//! - A child's chunks are taken in order, each once; `Child::received` counts them.
//! - Two slots suffice: a child begins round r only when r-1 is complete for it, and r-1 is
//!   complete only when every member has begun it, hence has all of r-2. So when round r starts,
//!   slot r-2 is not needed any more.
//! - Only the receivers of a broadcast can be done with round r before others have begun it; their
//!   beginning of r+1 waits in `early` until r is complete.
//! - A *resident* child shares the lane's process: its contribution lies in memory that the lane
//!   may read at any time, so it is taken last, when a chunk's sum is about to leave (in rank
//!   order, when its turn comes), and sending, receiving and copying it are saved.
//! - A finished chunk's accumulator is not touched until every receiver has acknowledged the
//!   partition, in a hub whose workers may die those of other machines as well, or until its slot
//!   starts another round.
//! - In a *hub* (the machine tier) a chunk that has all contributions of the machine is a subtotal:
//!   its accumulator is lent to the hub's client, and the chunk is finished when it came back, with
//!   the total if the machine receives one. A machine without the root of a broadcast contributes
//!   nothing: an empty accumulator is lent once all its workers have begun, so that the root is not
//!   done before all others have begun. On a machine without the root of a reduce nothing is
//!   received, and nothing of the round is left once it is complete.
//! - In an *update* a finished chunk's sum is applied to the variable's [`State`], in the order of
//!   chunks, and each child receives the new value, but a mirror the gradient. The contributions
//!   are added in the order of ranks whatever the setting says, so that a round that is interrupted
//!   gives the same bytes when it is done again. What the round does may be [decided](Decision)
//!   once the gradient is summed; until then its chunks wait.
//! - A variable that changes *asynchronously* has a partition for each worker (the worker tier),
//!   which all use the one state: a chunk changes it when it arrives, unless the state's clocks say
//!   that it has; and the worker gets the value as it is when no other is too far behind. Where an
//!   order log is replayed, both wait for their turn.

use std::ops::Range;
use std::sync::Arc;

use sumpter_codec::{Codec, Key};
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{CallNumber, Collective, ExactSum, Rank, Round, TensorId, Update};
use sumpter_wire::{OrderEntry, PartitionSpec, Tier, checksum};

use super::accumulate::{Addition, Chunk, Code, is_ordered};
use super::beside::Resident;
use super::decision::Decision;
use super::order::{CatchUp, RoundStart, entries, turns};
use super::outcome::{Acknowledged, Beginning, ChunkPlace, Expect, Listener, Progress, Serial};
use super::slot::{Child, Slot};
use super::state::State;
use crate::coding::Coder;
use sumpter_endpoint::{Now, Violation};

#[derive(Debug)]
pub(super) struct Partition {
    pub spec: PartitionSpec,
    pub(super) tensor: TensorId,
    pub(super) tier: Tier,
    /// What contributions are encoded with, if they are.
    pub(super) codec: Option<Codec>,
    pub(super) members: Arc<[Rank]>,
    pub(super) contributors: usize,
    receivers: usize,
    /// The child in this process, once it has begun a round.
    pub(super) resident: Option<Resident>,
    pub(super) slots: [Slot; 2],
    early: Vec<(usize, Listener)>,
    /// Where its variable's state is in the job.
    pub state: Option<usize>,
}

impl Partition {
    pub(super) fn new(
        spec: PartitionSpec,
        members: Arc<[Rank]>,
        (tensor, tier): (TensorId, Tier),
        codec: Option<Codec>,
    ) -> Partition {
        let contributes = |r: &&Rank| spec.collective.contributes(**r, spec.root);
        let receives = |r: &&Rank| spec.collective.receives(**r, spec.root);
        let contributors = members.iter().filter(contributes).count();
        let receivers = members.iter().filter(receives).count();
        let (resident, slots, early) = Default::default();
        Partition {
            spec,
            tensor,
            tier,
            codec,
            members,
            contributors,
            receivers,
            resident,
            slots,
            early,
            state: None,
        }
    }

    /// Gives every buffer back: the partition's job has ended.
    pub(super) fn give_back(&mut self, pool: &mut BufferPool) {
        for chunk in self.slots.iter_mut().flat_map(|slot| &mut slot.chunks) {
            chunk.clear(pool);
            chunk.sum.take().into_iter().for_each(|sum| pool.give(sum));
        }
    }

    /// Gives back what waits for its turn in the order of ranks: the tensor has failed.
    pub(super) fn give_back_held(&mut self, pool: &mut BufferPool) {
        let chunks = self.slots.iter_mut().flat_map(|slot| &mut slot.chunks);
        let held = chunks.flat_map(|chunk| chunk.held.iter_mut().filter_map(Option::take));
        held.for_each(|bytes| pool.give(bytes));
    }

    /// Bytes of the pool's that wait for their turn.
    pub(super) fn held_bytes(&self) -> usize {
        let chunks = self.slots.iter().flat_map(|slot| &slot.chunks);
        chunks.flat_map(|chunk| chunk.held.iter().flatten()).map(|bytes| bytes.capacity()).sum()
    }

    /// Whether the next contribution to a chunk is the first of the partition to be added to
    /// another.
    pub(super) fn adding_begins(&self, place: ChunkPlace) -> bool {
        let chunk = self.slots[place.slot].chunks.get(place.chunk as usize);
        chunk.is_some_and(|chunk| {
            let held = chunk.held.iter().flatten().count();
            place.chunk == 0 && chunk.summed + held + usize::from(chunk.resident) == 1
        })
    }

    pub(super) fn tier(&self) -> Tier {
        self.tier
    }

    pub(super) fn members(&self) -> &Arc<[Rank]> {
        &self.members
    }

    pub(super) fn round(&self, slot: usize) -> Option<Round> {
        self.slots[slot].round
    }

    pub(super) fn finished(&self, slot: usize) -> u32 {
        self.slots[slot].finished
    }

    /// Whether a round has been begun whose chunks are not all summed.
    pub(super) fn is_waiting(&self) -> bool {
        let waits = |slot: &Slot| slot.begun > 0 && (slot.finished as usize) < slot.chunks.len();
        self.slots.iter().any(|slot| slot.round.is_some() && waits(slot))
    }

    pub(super) fn is_complete(&self, slot: usize) -> bool {
        self.slots[slot].complete(&self.spec, self.members.len())
    }

    /// Whether a result is here, that of a broadcast, for which a receiver has not asked yet, one
    /// that `may`.
    pub(super) fn is_expected(&self, may: impl Fn(Rank) -> bool) -> bool {
        let finished = |slot: &&Slot| slot.round.is_some() && slot.finished == self.spec.chunks();
        self.slots.iter().filter(finished).any(|slot| {
            let members = slot.children.iter().zip(&*self.members);
            members.filter(|(child, _)| child.begun.is_none()).any(|(_, rank)| may(*rank))
        })
    }

    /// How `child` began the round in `slot`; results go over no other connection.
    pub(super) fn listener(&self, slot: usize, child: usize) -> Option<Listener> {
        self.slots[slot].children[child].begun
    }

    /// What a chunk that is finished is for a child: its sum, or of a variable the new value, but
    /// for a mirror the gradient. `None` if it is not finished.
    pub(super) fn value<'a>(
        &'a self,
        place: ChunkPlace,
        gradient: bool,
        state: Option<&'a State>,
    ) -> Option<&'a [u8]> {
        let slot = &self.slots[place.slot];
        let chunk = slot.chunks.get(place.chunk as usize)?;
        let len = self.value_len(place.chunk, gradient);
        if place.chunk >= slot.finished {
            return None;
        }
        if self.codec.is_some() {
            let code = chunk.weights.as_ref().filter(|_| !gradient);
            return code.or(chunk.sum.as_ref())?.get(..len);
        }
        match (&chunk.weights, state.filter(|_| self.spec.variable.is_some() && !gradient)) {
            (Some(weights), Some(_)) => weights.get(..len),
            (None, Some(state)) => state.value(self.stretch(place.chunk)),
            (_, None) => chunk.sum.as_ref()?.get(..len),
        }
    }

    /// The checksum of that, made once for all who receive it; 0 if it is not finished.
    pub(super) fn checksum(
        &mut self,
        place: ChunkPlace,
        gradient: bool,
        state: Option<&State>,
    ) -> u32 {
        let known = self.slots[place.slot].chunks.get(place.chunk as usize);
        if let Some(known) = known.and_then(|chunk| chunk.checksums[usize::from(gradient)]) {
            return known;
        }
        let Some(value) = self.value(place, gradient, state) else { return 0 };
        let made = checksum(value);
        let chunk = &mut self.slots[place.slot].chunks[place.chunk as usize];
        chunk.checksums[usize::from(gradient)] = Some(made);
        made
    }

    /// Bytes of a variable's value that a chunk is about.
    pub(super) fn stretch(&self, chunk: u32) -> Range<usize> {
        let spec = &self.spec;
        let offset = spec.variable.map_or(0, |variable| variable.offset as usize);
        let start = offset + chunk as usize * spec.chunk_bytes as usize;
        let widening = spec.dtype.accumulator().size() / spec.dtype.size();
        start * widening..(start + spec.chunk_len(chunk) as usize) * widening
    }

    /// Whether a rank is to receive the gradient in place of a variable's value.
    pub(super) fn is_mirror(&self, rank: Rank) -> bool {
        let mirrors = self.spec.variable.is_some_and(|variable| variable.is_mirror(rank));
        self.tier == Tier::Root && (mirrors || self.carrier() == Some(rank))
    }

    /// Whether a rank is done with an update only when the lane says that the mirrors have it. One
    /// that is the only mirror knows.
    pub(super) fn awaits_mirrors(&self, rank: Rank) -> bool {
        let mirrors = self.spec.variable.map_or(0, |variable| variable.mirror_count());
        !self.is_mirror(rank) || mirrors > 1
    }

    /// What the round in `slot` does, of a variable; to be decided unless all members have said it.
    pub(super) fn update(&self, slot: usize) -> Option<Update> {
        let rule = self.spec.variable?.rule;
        Some(self.slots[slot].decision.update().unwrap_or(Update::defer(rule)))
    }

    /// The call in which the round in `slot` was begun, if a child has said it.
    pub(super) fn call(&self, slot: usize) -> Option<CallNumber> {
        self.slots[slot].call
    }

    /// What the round in `slot` does to a variable.
    pub(super) fn decision(&self, slot: usize) -> &Decision {
        &self.slots[slot].decision
    }

    /// The norm that a child waits for in the round in `slot`, once it is known.
    pub(super) fn norm_for(&self, slot: usize, child: usize) -> Option<&ExactSum> {
        let decision = &self.slots[slot].decision;
        decision.squares(self.spec.chunks()).filter(|_| decision.is_awaited_by(child))
    }

    /// In a hub: the norm of the round in `slot`, if it is this one.
    pub(super) fn take_norm(&mut self, slot: usize, round: Round, squares: &ExactSum) -> bool {
        let chunks = self.spec.chunks();
        let slot = &mut self.slots[slot];
        let due = slot.round == Some(round);
        if due {
            slot.decision.set_squares(squares.clone(), chunks);
        }
        due
    }

    /// A child says what a round does that it began without saying so; whether that is news, or a
    /// text if others have said something else.
    pub(super) fn decide(
        &mut self,
        child: usize,
        round: Round,
        update: Update,
    ) -> Result<Result<bool, String>, Violation> {
        let rank = self.members[child];
        let slot = &mut self.slots[(round.0 & 1) as usize];
        if slot.round.is_some_and(|later| later > round) {
            return Ok(Ok(false));
        }
        if slot.round != Some(round) || slot.children[child].begun.is_none() {
            return Err(Violation::state(format!(
                "rank {rank} decided about round {round}, which it has not begun"
            )));
        }
        Ok(slot.decision.say(child, update).map(|()| true))
    }

    /// In a hub: all mirrors have the round in `slot`, if it is this one.
    pub(super) fn settle_total(&mut self, slot: usize, round: Round) -> bool {
        let slot = &mut self.slots[slot];
        let due = slot.round == Some(round);
        slot.settled |= due;
        due
    }

    /// In the tier where each worker has its own: the mirrors have what the worker got in `slot`,
    /// which is known only now.
    pub(super) fn settle_own(&mut self, slot: usize, state: &State) -> bool {
        let Some(variable) = self.spec.variable.filter(|_| self.tier == Tier::Worker) else {
            return false;
        };
        let slot = &mut self.slots[slot];
        let got_all = slot.round.is_some() && slot.finished == self.spec.chunks();
        if !got_all || slot.settled {
            return false;
        }
        let mirrors = 0..variable.mirror_count();
        let has = |(unit, chunk): (u32, &Chunk)| {
            mirrors.clone().all(|mirror| state.is_mirrored(unit, mirror, chunk.version))
        };
        slot.settled = !mirrors.is_empty() && (0..).zip(&slot.chunks).all(has);
        slot.settled
    }

    /// In the tier where each worker has its own: whether the worker gets, or has got, this value
    /// of a chunk in a round under way, which it began over a connection.
    pub(super) fn has_answered(&self, chunk: u32, over: Serial, value: &[u8]) -> bool {
        let answers = |slot: &Slot| {
            let child = slot.children.first().filter(|_| slot.round.is_some() && !slot.settled);
            let begun = child.is_some_and(|c| c.begun.is_some_and(|begun| begun.over == over));
            let answer = slot.chunks.get(chunk as usize).and_then(|chunk| chunk.weights.as_ref());
            let is_value = answer.is_some_and(|answer| **answer == *value);
            begun && chunk < slot.finished && is_value
        };
        self.tier == Tier::Worker && self.slots.iter().any(answers)
    }

    /// Whether the round in `slot` is an update that all mirrors have.
    pub(super) fn is_mirrored(&self, slot: usize) -> bool {
        if self.tier != Tier::Root {
            return self.slots[slot].settled;
        }
        let mirrors = self.spec.variable.map_or(0, |variable| variable.mirror_count());
        let mirrors = mirrors + usize::from(self.carrier().is_some());
        mirrors > 0 && self.slots[slot].mirrored == mirrors
    }

    /// When the chunks of the round in `slot` changed a variable asynchronously, and what its
    /// worker got; once it has all of it.
    pub(super) fn order(&self, slot: usize) -> Vec<OrderEntry> {
        let offset = self.spec.variable.map_or(0, |variable| variable.offset);
        let widening = self.spec.dtype.accumulator().size() / self.spec.dtype.size();
        entries(self.slots[slot].chunks.iter(), |at| (at / widening) as u32 - offset)
    }

    /// The round in `slot` follows this order from now on.
    fn follow(&mut self, slot: usize, order: &[OrderEntry]) {
        let offset = self.spec.variable.map_or(0, |variable| variable.offset) as usize;
        let widening = self.spec.dtype.accumulator().size() / self.spec.dtype.size();
        self.slots[slot].order = turns(order, offset, widening);
    }

    /// Whether chunks of a live round wait for their turn in a replayed order.
    pub(super) fn follows_order(&self) -> bool {
        self.slots.iter().any(|slot| !slot.order.is_empty())
    }

    /// `child` takes part in `round`, or does again after its connection was made anew.
    pub(super) fn begin(
        &mut self,
        child: usize,
        over: Listener,
        RoundStart { round, update, order }: &RoundStart,
        pool: &mut BufferPool,
    ) -> Result<Beginning, Violation> {
        let (round, at) = (*round, (round.0 & 1) as usize);
        if self.slots[at].round != Some(round) {
            if self.is_early(child, round) {
                self.early.retain(|(c, _)| *c != child);
                self.early.push((child, over));
                return Ok(Beginning::Early);
            }
            self.start(at, round, pool)?;
            self.follow(at, order);
        }
        let slot = &mut self.slots[at];
        if slot.children[child].begun.is_some_and(|known| known.over == over.over) {
            let rank = self.members[child];
            return Err(Violation::state(format!(
                "rank {rank} began round {round} twice over one connection"
            )));
        }
        let agreed = slot.agree_on_call(over.call);
        let agreed = agreed.and_then(|()| update.map_or(Ok(()), |u| slot.decision.say(child, u)));
        if let Err(difference) = agreed {
            return Ok(Beginning::Differs(difference));
        }
        if slot.children[child].begun.replace(over).is_some() {
            return Ok(Beginning::In { slot: at, completes: false, wants_total: false });
        }
        slot.begun += 1;
        let completes = slot.complete(&self.spec, self.members.len());
        let wants_total = self.contributors == 0 && slot.begun == self.members.len();
        Ok(Beginning::In { slot: at, completes, wants_total })
    }

    /// Lets those who were early for the round after the one in `slot` begin it; a text if they
    /// begin it in different calls.
    pub(super) fn admit_early(&mut self, slot: usize, pool: &mut BufferPool) -> Option<String> {
        let (next, mut dispute) = (self.slots[slot].round.map(Round::next), None);
        for (child, over) in std::mem::take(&mut self.early) {
            let next = RoundStart::plain(next.expect("a live round"));
            match self.begin(child, over, &next, pool) {
                Ok(Beginning::Differs(how)) => {
                    // It is to get the error like all who have begun the round.
                    self.slots[1 - slot].children[child].begun = Some(over);
                    dispute = Some(format!("rank {}: {how}", self.members[child]));
                }
                begun => {
                    let (completes, wants_total) = (false, false);
                    let expected = Beginning::In { slot: 1 - slot, completes, wants_total };
                    debug_assert_eq!(begun, Ok(expected));
                }
            }
        }
        dispute
    }

    fn is_early(&self, child: usize, round: Round) -> bool {
        let previous = &self.slots[1 - (round.0 & 1) as usize];
        previous.round.is_some_and(|r| r.next() == round)
            && !previous.complete(&self.spec, self.members.len())
            && previous.children[child].begun.is_some()
            && !self.spec.collective.contributes(self.members[child], self.spec.root)
    }

    fn start(&mut self, at: usize, round: Round, pool: &mut BufferPool) -> Result<(), Violation> {
        let previous = &self.slots[1 - at];
        let fresh = self.slots.iter().all(|s| s.round.is_none());
        let follows = previous.round.is_some_and(|r| r.next() == round)
            && previous.complete(&self.spec, self.members.len());
        if !fresh && !follows {
            let known = self.slots.iter().filter_map(|s| s.round).max();
            return Err(Violation::state(format!(
                "round {round} was begun out of turn; the latest is {known:?}"
            )));
        }
        let (chunks, members) = (self.spec.chunks() as usize, self.members.len());
        let slot = &mut self.slots[at];
        slot.round = Some(round);
        slot.children.clear();
        slot.children.resize(members, Child::default());
        slot.chunks.resize_with(chunks, Chunk::default);
        for chunk in &mut slot.chunks {
            (chunk.summed, chunk.asked, chunk.resident) = (0, false, false);
            chunk.turns.clear();
            (chunk.divided, chunk.version) = (false, 0);
            chunk.checksums = [None; 2];
            chunk.clear(pool);
        }
        (slot.finished, slot.begun, slot.acknowledged) = (0, 0, 0);
        (slot.all_in, slot.last_in) = (0, None);
        (slot.mirrored, slot.settled) = (0, false);
        slot.call = None;
        slot.decision.clear(members);
        slot.order.clear();
        Ok(())
    }

    /// Whether the lane wants this chunk from this child now.
    pub(super) fn expect(
        &self,
        child: usize,
        round: Round,
        chunk: u32,
    ) -> Result<(ChunkPlace, Expect), Violation> {
        let slot = (round.0 & 1) as usize;
        let place = ChunkPlace { slot, chunk };
        let rank = self.members[child];
        let state = &self.slots[slot];
        if state.round != Some(round) || state.children[child].begun.is_none() {
            return Err(Violation::state(format!(
                "rank {rank} sent a chunk of round {round}, which it has not begun"
            )));
        }
        if !self.spec.collective.contributes(rank, self.spec.root) {
            return Err(Violation::state(format!("rank {rank} contributes nothing to this round")));
        }
        match state.children[child].received {
            received if chunk < received => Ok((place, Expect::Duplicate)),
            received if chunk == received && chunk < self.spec.chunks() => {
                Ok((place, Expect::Fresh))
            }
            received => Err(Violation::state(format!(
                "rank {rank} sent chunk {chunk} of {}, expected chunk {received}",
                self.spec.chunks()
            ))),
        }
    }

    /// Takes a whole chunk that [`expect`](Self::expect) called fresh.
    pub(super) fn contribute(
        &mut self,
        child: usize,
        place: ChunkPlace,
        bytes: AlignedBuf,
        (pool, state): (&mut BufferPool, Option<&mut State>),
        now: Now,
    ) -> Progress {
        let (spec, contributors) = (self.spec, self.contributors);
        let (how, slot, members) = self.adding(place);
        slot.children[child].received += 1;
        let all_in = slot.children[child].received == spec.chunks();
        let chunk = &mut slot.chunks[place.chunk as usize];
        let mut held = 0;
        if is_ordered(&spec) && contributors > 1 {
            held = bytes.capacity();
            chunk.held.resize_with(members.len(), || None);
            chunk.held[child] = Some(bytes);
        } else if let Err(error) = chunk.add(how, bytes, pool) {
            return Progress::malformed(members[child], &error);
        }
        let mut progress = self.settle(place, pool, state, CatchUp::All);
        progress.held = held;
        if all_in {
            progress.late = self.all_in(child, place.slot, now);
        }
        progress
    }

    /// `rank` holds all of a round's result. A worker that lost its connection says it again.
    pub(super) fn acknowledge(
        &mut self,
        rank: Rank,
        round: Round,
    ) -> Result<Acknowledged, Violation> {
        let at = (round.0 & 1) as usize;
        let is_mirror = self.is_mirror(rank);
        let slot = &mut self.slots[at];
        if slot.round.is_some_and(|later| later > round) {
            return Ok(Acknowledged::default());
        }
        let child = self.members.binary_search(&rank).ok();
        let child = child.and_then(|child| slot.children.get_mut(child)).filter(|child| {
            let receives = self.spec.collective.receives(rank, self.spec.root);
            receives && child.begun.is_some()
        });
        let due = slot.round == Some(round) && slot.finished == self.spec.chunks();
        let Some(child) = child.filter(|_| due) else {
            return Err(Violation::state(format!(
                "rank {rank} acknowledged round {round}, which it cannot have received"
            )));
        };
        if std::mem::replace(&mut child.acknowledged, true) {
            return Ok(Acknowledged::default());
        }
        slot.acknowledged += 1;
        slot.mirrored += usize::from(is_mirror);
        let by_all = slot.acknowledged == self.receivers;
        Ok(Acknowledged { by_all, by_mirrors: is_mirror && self.is_mirrored(at) })
    }

    /// The result of the round in `slot` is not needed any more: its accumulators go back to the
    /// pool, where the next chunk finds them while they are in cache.
    pub(super) fn free(&mut self, slot: usize, pool: &mut BufferPool) {
        let chunks = self.slots[slot].chunks.iter_mut();
        let buffers = chunks.flat_map(|chunk| [chunk.sum.take(), chunk.weights.take()]);
        buffers.flatten().for_each(|buffer| pool.give(buffer));
    }

    /// Takes the results out that some receiver may not have, as elements: round, chunk and
    /// bytes.
    pub(super) fn take_undelivered(&mut self) -> Vec<(Round, u32, AlignedBuf)> {
        let mut out = Vec::new();
        // Of a variable, its mirrors have what is needed.
        if self.spec.variable.is_some() || self.tier.part().is_some() {
            return out;
        }
        let carried = self.carrier().is_some();
        for slot in &mut self.slots {
            let Some(round) = slot.round else { continue };
            if carried && slot.mirrored == 0 {
                // Nobody has it; it is summed again.
                continue;
            }
            let finished = slot.chunks.iter_mut().zip(0..slot.finished);
            let result = |chunk: &mut Chunk| match carried {
                true => chunk.weights.take(),
                false => chunk.sum.take(),
            };
            out.extend(finished.filter_map(|(c, index)| Some((round, index, result(c)?))));
        }
        if self.codec.is_some() {
            for (round, chunk, sum) in &mut out {
                self.decode(*round, *chunk, sum);
            }
        }
        out
    }

    /// Whether a hub's client receives the totals, hence acknowledges them.
    pub(super) fn receives_totals(&self) -> bool {
        let root_is_here = self.members.binary_search(&self.spec.root).is_ok();
        match self.spec.collective {
            Collective::AllReduce | Collective::Barrier | Collective::Update => true,
            Collective::Broadcast => !root_is_here,
            Collective::Reduce | Collective::ReduceScatter => root_is_here,
        }
    }

    /// Whether other machines receive the totals as well: they may need them from here.
    pub(super) fn shares_totals(&self) -> bool {
        self.receives_totals() && self.spec.collective.on_wire() != Collective::Reduce
    }

    /// Whether no member receives a result.
    pub(super) fn is_without_receivers(&self) -> bool {
        self.receivers == 0
    }

    /// Whether every receiver has acknowledged the round in `slot`.
    pub(super) fn is_released(&self, slot: usize) -> bool {
        self.slots[slot].acknowledged == self.receivers
    }

    /// How contributions to a chunk are added, with what they are added to and by whom.
    pub(super) fn adding(&mut self, place: ChunkPlace) -> (Addition<'_>, &mut Slot, &[Rank]) {
        let Partition { spec, tensor, codec, members, contributors, slots, .. } = self;
        let slot = &mut slots[place.slot];
        let (code, len) = (codec.as_ref().zip(spec.coding), spec.chunk_len(place.chunk) as usize);
        let code = code.zip(slot.round).map(|((codec, coding), round)| {
            let coder = Coder { codec, first: coding.block };
            let carried = coding.carrier.is_some()
                && coder.carries_codes(spec.dtype, len, *contributors as u32);
            let (key, offset) = (Key::of_sum(*tensor, round), place.chunk * spec.chunk_bytes);
            Code { coder, key, offset: offset as usize, len, carried }
        });
        (Addition { spec, contributors: *contributors, code }, slot, members)
    }

    /// Applies the sums that waited for the variable's state, or for what the round does, as far as
    /// both are here now, and answers a worker that waited for others.
    pub(super) fn catch_up(
        &mut self,
        pool: &mut BufferPool,
        state: &mut State,
        what: CatchUp,
    ) -> Vec<(usize, Progress)> {
        let mut out = Vec::new();
        for at in 0..2 {
            for chunk in self.slots[at].finished.. {
                let slot = &self.slots[at];
                let Some(known) = slot.chunks.get(chunk as usize) else { break };
                if slot.round.is_none() || !known.is_summed(self.contributors) {
                    break;
                }
                let place = ChunkPlace { slot: at, chunk };
                let progress = self.settle(place, pool, Some(state), what);
                // Of a round of one worker, chunks change the variable in any order.
                if progress.finished.is_none() && self.tier != Tier::Worker {
                    break;
                }
                out.push((at, progress));
            }
        }
        out
    }

    /// Who takes part in a round that is not complete, as slots and children.
    pub(super) fn waiting(&self) -> Vec<(usize, usize)> {
        let open = (0..2).filter(|slot| self.slots[*slot].round.is_some());
        let open = open.filter(|slot| !self.is_complete(*slot));
        open.flat_map(|slot| (0..self.members.len()).map(move |child| (slot, child))).collect()
    }

    /// Lends the accumulator of a subtotal that is to be passed on: one with any bytes if no member
    /// of this machine contributes.
    pub(super) fn lend(&mut self, place: ChunkPlace, pool: &mut BufferPool) -> AlignedBuf {
        let sum = self.slots[place.slot].chunks[place.chunk as usize].sum.take();
        debug_assert!(sum.is_some() || self.contributors == 0, "a subtotal is lent once");
        sum.unwrap_or_else(|| pool.take(self.spec.chunk_len(place.chunk) as usize))
    }

    /// Takes the total of a chunk whose subtotal was lent.
    pub(super) fn take_total(
        &mut self,
        place: ChunkPlace,
        round: Round,
        total: AlignedBuf,
    ) -> Result<Progress, Violation> {
        let slot = &mut self.slots[place.slot];
        let chunk = slot.chunks.get_mut(place.chunk as usize);
        let Some(chunk) = chunk.filter(|c| {
            let due = slot.round == Some(round) && slot.finished == place.chunk;
            due && c.sum.is_none() && total.len() >= self.spec.chunk_len(place.chunk) as usize
        }) else {
            return Err(Violation::state("a total came back that was not waited for"));
        };
        chunk.sum = Some(total);
        slot.finished += 1;
        let complete = slot.complete(&self.spec, self.members.len());
        Ok(Progress { finished: Some(place.chunk), complete, ..Progress::default() })
    }

    /// Adds to a chunk what waits for its turn, and finishes it once all is in.
    pub(super) fn settle(
        &mut self,
        place: ChunkPlace,
        pool: &mut BufferPool,
        state: Option<&mut State>,
        what: CatchUp,
    ) -> Progress {
        let (spec, contributors, tier) = (self.spec, self.contributors, self.tier);
        let (stretch, resident) = (self.stretch(place.chunk), self.resident);
        let (how, slot, members) = self.adding(place);
        let chunk = &mut slot.chunks[place.chunk as usize];
        let turn = resident.and_then(|r| r.turn);
        let here = resident.is_some_and(|r| slot.children[r.child].begun.is_some());
        let mut progress = Progress::default();
        loop {
            if chunk.is_summed(contributors) {
                if tier.is_aggregate() {
                    progress.subtotal = Some(place.chunk);
                    return progress;
                }
                chunk.finish(how, pool);
                let own = (tier == Tier::Worker).then(|| members[0]);
                let of = (&spec, contributors, own);
                let state = (state, stretch, what);
                if !slot.take_effect(place.chunk, of, state, pool, &mut progress) {
                    return progress;
                }
                slot.finished += 1;
                progress.finished = Some(place.chunk);
                progress.complete = slot.complete(&spec, members.len());
                return progress;
            }
            if turn == Some(chunk.summed) && !chunk.resident {
                if here && !std::mem::replace(&mut chunk.asked, true) {
                    progress.asked = Some(place.chunk);
                }
                return progress;
            }
            // In rank order, leaving out the resident child, whose turn is counted above.
            let resident = resident.map_or(usize::MAX, |r| r.child);
            let next = chunk.summed + usize::from(chunk.summed >= resident);
            let run = chunk.held.iter().skip(next).take_while(|held| held.is_some()).count();
            // Up to the resident child's turn.
            let before = turn.filter(|_| !chunk.resident).map_or(run, |turn| turn - chunk.summed);
            let run = run.min(before);
            if run == 0 {
                return progress;
            }
            let held = &chunk.held[next..next + run];
            progress.released += held.iter().flatten().map(AlignedBuf::capacity).sum::<usize>();
            if let Err((child, error)) = chunk.add_run(how, next..next + run, pool) {
                return Progress::malformed(members[child], &error);
            }
        }
    }

    /// The first in the order of ranks whose contribution to a chunk is not here.
    pub(super) fn awaited(&self, place: ChunkPlace) -> Option<Rank> {
        let slot = &self.slots[place.slot];
        let members = slot.children.iter().zip(&*self.members);
        let mut late = members.filter(|(child, _)| child.received <= place.chunk);
        late.find(|(_, rank)| self.spec.collective.contributes(**rank, self.spec.root))
            .map(|(_, rank)| *rank)
    }

    /// All of a child's contribution is here. Returns who was last and how late, if all are in.
    pub(super) fn all_in(&mut self, child: usize, slot: usize, now: Now) -> Option<(Rank, Now)> {
        let slot = &mut self.slots[slot];
        slot.all_in += 1;
        let before = slot.last_in.replace(now)?;
        let last = slot.all_in == self.contributors;
        last.then(|| (self.members[child], now.saturating_sub(before)))
    }
}
