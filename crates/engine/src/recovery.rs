//! Failover from one epoch to the next: which results each worker has and lacks, and the repairs.
//!
//! Lanes carry nothing from one epoch to the next. Each worker reports what it [has](Progress);
//! from what all have reported, each derives the same [`Repair`] of every round that was
//! interrupted:
//!
//! - what no worker has is reduced again: then no contribution to it has been overwritten, since a
//!   result replaces a contribution only as a whole chunk;
//! - what some worker has is relayed to those that lack it. A worker that no longer holds a result
//!   in its tensor has it in its [`Recovery`] until everyone has it: retained as it was received,
//!   or taken out of the lane in its own process;
//! - a round that no worker has a part of begins again like any other;
//! - a tensor that [has failed](has_failed) on some worker fails on all, and is not repaired;
//! - where workers may die, a broadcast or reduce is always done again: the worker with the result
//!   may fail before it is relayed, and the others do not wait for that. But a worker that sends
//!   and receives nothing is not done before all receivers have everything.
//!
//! A variable's new value can be made only where its old one is, in the workers that mirror it.
//! What of a round a mirror has is passed on by it; the rest is done again by all, from
//! contributions that none has let go of, since no worker is done with a round before its mirrors.
//! In each epoch the mirrors [fill](Recovery::fill) the lanes anew. Where workers may die, each
//! stretch of a variable has [two mirrors](crate::mirrors::mirrored_spans), on different machines
//! if machines pass on subtotals. One that has just become a mirror gets the state from the other
//! by way of the lane that is filled, and takes part in no round before.
//!
//! Of a variable that changes asynchronously nothing is repaired: each worker does its unfinished
//! round again as a whole, and the clocks that its mirrors have put into the lanes with the value
//! say what of it counted before.
//!
//! A worker may fail as well: then the others report, and what none of them has is reduced again
//! without it. So the stretches of one result may have different numbers of contributors, which
//! is known of each. Results travel as the lane made them, before they are divided for an average.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use sumpter_types::{Collective, JobId, Rank, ReduceOp, Round, Staleness, TensorId};

use crate::client::{Client, Event, Layout, OpId, Place, Request, RetainedChunk, Standing, Supply};
use crate::hub::{Hub, OpMemory};
use crate::lane::{Lane, Undelivered};
use crate::mirrors::MirroredSpan;
use crate::spans::Spans;
use sumpter_endpoint::Memory;
use sumpter_wire::Tier;

/// Where a worker stands between two epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// By tensor, in the order of the table.
    pub standings: Vec<Standing>,
    /// What it can pass on of rounds that others may not have finished.
    pub held: BTreeMap<ResultKey, Spans>,
    /// The variables that have a value, and the elements of each whose state it mirrors.
    pub mirrored: BTreeMap<TensorId, Spans>,
}

/// A round of a tensor, and how many workers contributed to what is held of its result.
pub type ResultKey = (TensorId, Round, u32);

/// What must be known of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairSpec {
    /// Bytes of the tensor.
    pub bytes: usize,
    /// What a round does.
    pub collective: Collective,
    /// The root of a broadcast or reduce.
    pub root: Rank,
    /// Who takes part and lives, ascending.
    pub members: Vec<Rank>,
    /// Whether workers may die without ending the job. Then they keep the results of all lanes but
    /// their own.
    pub workers_may_fail: bool,
    /// Who mirrors which bytes, in an update: all of the tensor, in ascending order.
    pub mirrors: Vec<MirroredSpan>,
    /// How far the workers may run apart, in an update.
    pub staleness: Staleness,
    /// Who contributes and receives which bytes, of a tensor that device groups have reduced: all
    /// of it, in ascending order; nothing if every member has all of it.
    pub shards: Vec<(Range<usize>, Vec<Rank>)>,
}

impl RepairSpec {
    /// Who contributes and receives these bytes, which no shard ends between.
    fn members_of(&self, span: &Range<usize>) -> &[Rank] {
        let has = |(bytes, _): &&(Range<usize>, Vec<Rank>)| {
            bytes.start <= span.start && span.end <= bytes.end
        };
        self.shards.iter().find(has).map_or(&self.members, |(_, holders)| holders)
    }

    /// Whether a member contributes and receives anything.
    fn takes_part(&self, rank: Rank) -> bool {
        self.shards.is_empty() || self.shards.iter().any(|(_, holders)| holders.contains(&rank))
    }
}

/// How an interrupted round of a tensor is completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The round.
    pub round: Round,
    /// What is done as in any round, and by which lane.
    pub sums: Vec<(Range<usize>, Vec<Rank>)>,
    /// What is passed on.
    pub relays: Vec<Relay>,
}

/// A part of a result that one worker has and others lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Bytes of the tensor.
    pub span: Range<usize>,
    /// Who has it.
    pub holder: Rank,
    /// How many workers contributed to it.
    pub contributors: u32,
    /// The holder and all who lack it, ascending.
    pub members: Vec<Rank>,
}

/// A part of a round can neither be passed on nor summed again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {span:?} of round {round} of tensor {tensor} are lost: rank {rank} has gone on")]
pub struct Unrecoverable {
    tensor: TensorId,
    round: Round,
    span: Range<usize>,
    rank: Rank,
}

/// The repairs of a tensor's interrupted rounds, from the progress of all workers. There are two
/// at most where each worker has all of the tensor: receivers of a broadcast may have gone on to
/// the next round. The holders of one shard may be several rounds ahead of those of another.
///
/// # Errors
/// [`Unrecoverable`] if the workers contradict what a worker must keep.
pub fn repairs(
    id: TensorId,
    tensor: &RepairSpec,
    progress: &BTreeMap<Rank, Progress>,
) -> Result<Vec<Repair>, Unrecoverable> {
    // Each worker does its own round again, and the lanes know what of it is in the variable.
    if !tensor.staleness.is_synchronous() {
        return Ok(Vec::new());
    }
    let stand = |rank: &Rank| {
        let standing = progress.get(rank).and_then(|p| p.standings.get(id.0 as usize));
        (*rank, standing.cloned().unwrap_or_default())
    };
    // One that holds no shard is ahead of all others.
    let takes_part = |rank: &&Rank| tensor.takes_part(**rank);
    let standings: Vec<(Rank, Standing)> =
        tensor.members.iter().filter(takes_part).map(stand).collect();
    let rounds = standings.iter().map(|(_, standing)| standing.round.0);
    let (first, last) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let all = (first..=last).map(|round| repair((id, Round(round)), tensor, &standings, progress));
    all.filter_map(Result::transpose).collect()
}

/// Whether a tensor has failed on any worker. Its rounds have ended wherever each worker stood, so
/// it is not repaired, and fails on all others.
#[must_use]
pub fn has_failed(id: TensorId, progress: &BTreeMap<Rank, Progress>) -> bool {
    let standing = |reported: &Progress| reported.standings.get(id.0 as usize).cloned();
    progress.values().filter_map(standing).any(|standing| standing.has_failed)
}

/// A worker, and what it holds of a round with so many contributors.
type Holder<'a> = (Rank, u32, &'a Spans);

impl Progress {
    /// What is held of a round, by the number of contributors.
    fn of(&self, id: TensorId, round: Round) -> impl Iterator<Item = (u32, &Spans)> {
        let held = self.held.range((id, round, 0)..=(id, round, u32::MAX));
        held.map(|((.., contributors), spans)| (*contributors, spans))
    }
}

fn repair(
    (id, round): (TensorId, Round),
    tensor: &RepairSpec,
    standings: &[(Rank, Standing)],
    progress: &BTreeMap<Rank, Progress>,
) -> Result<Option<Repair>, Unrecoverable> {
    let RepairSpec { bytes, collective, root, members, workers_may_fail, mirrors, .. } = tensor;
    let holders: Vec<Holder<'_>> = members
        .iter()
        .filter_map(|rank| Some((*rank, progress.get(rank)?)))
        .flat_map(|(rank, reported)| reported.of(id, round).map(move |(n, spans)| (rank, n, spans)))
        .collect();
    let (nothing, everything) = (Spans::default(), Spans::whole(*bytes));
    let has = |(rank, standing): &(Rank, Standing)| -> (Rank, Spans) {
        match &standing.begun {
            _ if standing.round > round => (*rank, everything.clone()),
            Some(done) if standing.round == round => (*rank, done.clone()),
            _ => (*rank, nothing.clone()),
        }
    };
    let receivers: Vec<(Rank, Spans)> =
        standings.iter().filter(|(rank, _)| collective.receives(*rank, *root)).map(has).collect();
    if holders.is_empty() && receivers.iter().all(|(_, has)| has.is_empty()) {
        return Ok(None);
    }
    let gone_on = |rank: &Rank| standings.iter().any(|(r, s)| r == rank && s.round > round);
    let missed = |members: &[Rank]| {
        let contributes = |rank: &&Rank| collective.contributes(**rank, *root);
        members.iter().filter(contributes).copied().find(gone_on)
    };
    let passes_on = *collective == Collective::AllReduce || !workers_may_fail;
    let mut out = Repair { round, sums: Vec::new(), relays: Vec::new() };
    let spans = cuts(tensor, &receivers, &holders);
    for (index, span) in spans.into_iter().enumerate() {
        let members = tensor.members_of(&span);
        let lacks = |(rank, has): &(Rank, Spans)| (!has.contains(&span)).then_some(*rank);
        let here = receivers.iter().filter(|(rank, _)| members.contains(rank));
        let lacking: BTreeSet<Rank> = here.filter_map(lacks).collect();
        let unmirrored =
            *collective == Collective::Update && mirror_of(&span, mirrors, &receivers).is_none();
        // A value that no mirror has is made again, though some worker may have it.
        if lacking.is_empty() && !unmirrored {
            continue;
        }
        // Workers that hold what it lacks have not begun the round: a broadcast, whose root waits.
        let able = |(rank, _, has): &&Holder<'_>| {
            passes_on && has.contains(&span) && !lacking.contains(rank)
        };
        let able: Vec<_> = holders.iter().filter(able).map(|(rank, n, _)| (*rank, *n)).collect();
        let able = match mirror_of(&span, mirrors, &receivers) {
            Some(mirror) => vec![(mirror, members.len() as u32)],
            None => able,
        };
        if let Some((holder, contributors)) = able.get(index % able.len().max(1)).copied() {
            let members: BTreeSet<Rank> = lacking.into_iter().chain([holder]).collect();
            let members = members.into_iter().collect();
            out.relays.push(Relay { span, holder, contributors, members });
        } else if let Some(rank) = missed(members) {
            return Err(Unrecoverable { tensor: id, round, span, rank });
        } else if *collective == Collective::Broadcast {
            let members = lacking.into_iter().chain([*root]).collect::<BTreeSet<_>>();
            out.sums.push((span, members.into_iter().collect()));
        } else {
            out.sums.push((span, members.to_vec()));
        }
    }
    out.merge();
    Ok(Some(out))
}

/// The rounds of an all-reduce whose results every worker holds on to, though another one passes
/// them on: that one may die first.
pub fn retained_rounds(
    id: TensorId,
    tensor: &RepairSpec,
    repairs: &[Repair],
) -> Vec<(TensorId, Round)> {
    let retains = tensor.workers_may_fail && tensor.collective == Collective::AllReduce;
    repairs.iter().filter(|_| retains).map(|repair| (id, repair.round)).collect()
}

/// The first round of a tensor whose subtotals a hub passes on in this epoch; `layout` is what it
/// passes on and `standing` its own worker's.
#[must_use]
pub fn first_passed_on(layout: &Layout, repairs: &[Repair], standing: &Standing) -> Round {
    // Repairs reach up to the round at which any holder of a shard is. So where none is passed on
    // from here, all rounds up to the last one are over or relayed for this hub's shard.
    match (layout.repaired.first(), repairs.last()) {
        (Some((round, _)), _) => *round,
        (None, Some(repair)) => repair.round.next(),
        (None, None) => standing.round,
    }
}

/// The first mirror of a stretch, if it has the round's result.
fn mirror_of(
    span: &Range<usize>,
    mirrors: &[MirroredSpan],
    receivers: &[(Rank, Spans)],
) -> Option<Rank> {
    let within = |of: &&MirroredSpan| of.span.start <= span.start && span.end <= of.span.end;
    let first = mirrors.iter().find(within)?.mirrors[0]?;
    let has_it = receivers.iter().any(|(rank, has)| *rank == first && has.contains(span));
    has_it.then_some(first)
}

/// The tensor in stretches, each of which a worker has or lacks as a whole, mirrors or not, and
/// holds as part of its shard or not.
fn cuts(
    RepairSpec { bytes, mirrors, shards, .. }: &RepairSpec,
    receivers: &[(Rank, Spans)],
    holders: &[Holder<'_>],
) -> Vec<Range<usize>> {
    let sets = receivers.iter().map(|(_, s)| s).chain(holders.iter().map(|(.., s)| *s));
    let ends = sets.flat_map(|spans| spans.iter().flat_map(|s| [s.start, s.end]));
    let ends = ends.chain(mirrors.iter().flat_map(|of| [of.span.start, of.span.end]));
    let ends = ends.chain(shards.iter().flat_map(|(held, _)| [held.start, held.end]));
    let at: BTreeSet<usize> = ends.chain([0, *bytes]).filter(|at| at <= bytes).collect();
    let at: Vec<usize> = at.into_iter().collect();
    at.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

impl Repair {
    /// Joins neighbours that are treated alike.
    fn merge(&mut self) {
        self.sums.dedup_by(|next, before| {
            let joins = before.0.end == next.0.start && before.1 == next.1;
            before.0.end = if joins { next.0.end } else { before.0.end };
            joins
        });
        self.relays.dedup_by(|next, before| {
            let what = |relay: &Relay| (relay.holder, relay.contributors, relay.members.clone());
            let joins = what(before) == what(next) && before.span.end == next.span.start;
            before.span.end = if joins { next.span.end } else { before.span.end };
            joins
        });
    }
}

/// Results that others may lack, from one epoch to the next.
#[derive(Debug, Default)]
struct ResultStore(BTreeMap<(TensorId, Round), Vec<RetainedChunk>>);

impl ResultStore {
    fn insert(&mut self, kept: RetainedChunk) {
        let all = self.0.entry((kept.tensor, kept.round)).or_default();
        if !all.iter().any(|known| known.covers(&kept)) {
            all.push(kept);
        }
    }

    fn spans(&self) -> BTreeMap<ResultKey, Spans> {
        let mut out: BTreeMap<ResultKey, Spans> = BTreeMap::new();
        for kept in self.0.values().flatten() {
            let key = (kept.tensor, kept.round, kept.contributors);
            out.entry(key).or_default().insert(kept.span());
        }
        out
    }

    /// A copy of a stretch; nothing if not all of it is here.
    fn read(&self, key: (TensorId, Round), span: &Range<usize>) -> Option<Vec<u8>> {
        let mut out = vec![0; span.len()];
        let mut found = Spans::default();
        for kept in self.0.get(&key)? {
            let (start, end) = (kept.origin.max(span.start), kept.span().end.min(span.end));
            if start < end {
                let bytes = &kept.bytes[start - kept.origin..end - kept.origin];
                out[start - span.start..end - span.start].copy_from_slice(bytes);
                found.insert(start..end);
            }
        }
        found.contains(span).then_some(out)
    }
}

/// A worker's part in changes of epoch: what it holds for others, and what it passes on.
#[derive(Debug, Default)]
pub struct Recovery {
    store: ResultStore,
    relays: HashMap<OpId, (TensorId, Round)>,
    /// What puts parts of variables into lanes, and gets parts from there.
    fills: HashMap<OpId, Fill>,
    /// What of those has ended, and still has its memory.
    filled: HashMap<OpId, Fill>,
    /// Why lanes have refused parts of variables.
    refusals: HashMap<TensorId, String>,
    /// Rounds that others pass on, and may die before they have.
    retained: BTreeSet<(TensorId, Round)>,
}

/// An operation on a part of a variable.
#[derive(Clone, Debug)]
struct Fill {
    tensor: TensorId,
    part: usize,
    /// Elements that come from another mirror, and where in the memory.
    lacking: Vec<(Range<usize>, Range<usize>)>,
}

impl Recovery {
    /// Stops everything of a job, here and in the lane beside the client, and tells where this
    /// worker stands with `tensors` tensors. The lane's connections are the driver's to close.
    pub fn suspend<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        hub: &mut Hub,
        (lane, job): (&mut Lane, JobId),
        tensors: usize,
    ) -> Progress {
        for Undelivered { of, len, bytes } in lane.take_undelivered(job) {
            // Of a tensor that is not this worker's, the others keep what they need.
            if let Some((origin, contributors)) = client.origin(of) {
                let (tensor, round) = (of.tensor, of.round);
                self.store.insert(RetainedChunk {
                    tensor,
                    round,
                    origin,
                    bytes,
                    len,
                    contributors,
                });
            }
        }
        client.suspend().into_iter().for_each(|kept| self.store.insert(kept));
        self.store.0.values().flatten().for_each(|kept| client.restore(kept));
        hub.suspend();
        self.relays.clear();
        self.fills.clear();
        self.filled.clear();
        self.retained.clear();
        let ids = (0..tensors as u32).map(TensorId);
        let standings = ids.clone().map(|id| client.standing(id)).collect();
        let mirrored = ids.filter_map(|id| Some((id, client.mirrored_elements(id)?.clone())));
        Progress { standings, held: self.store.spans(), mirrored: mirrored.collect() }
    }

    /// Passes on the relays that this worker holds; forgets what no worker lacks. `places` are
    /// where the relays of a tensor go, with offsets as in the tensor; their groups must be
    /// defined.
    ///
    /// `retained` are rounds of all-reduces that others pass on and may die before they have: what
    /// is here of them is held until the next round is finished, to which everyone contributes
    /// that has all of this one.
    pub fn resume<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        relays: Vec<(Request, Round, Vec<Place>)>,
        retained: BTreeSet<(TensorId, Round)>,
    ) {
        let wanted: BTreeSet<_> = relays.iter().map(|(r, round, _)| (r.tensor, *round)).collect();
        self.store.0.retain(|key, _| wanted.contains(key) || retained.contains(key));
        self.retained = retained;
        for (request, round, mut places) in relays {
            let mut bytes = Vec::new();
            for place in &mut places {
                let span = place.origin..place.origin + place.bytes;
                place.offset = bytes.len();
                // Neither has changed since it was reported.
                let held = match request.collective {
                    Collective::Update => {
                        let size = request.dtype.size();
                        let elements = span.start / size..span.end / size;
                        client.mirrored_weights(request.tensor, &elements, request.dtype)
                    }
                    _ => self.store.read((request.tensor, round), &span),
                };
                bytes.extend(held.expect("a result that was kept"));
            }
            let id = client.relay(request, round, places, OpMemory::Results(bytes));
            self.relays.insert(id, (request.tensor, round));
        }
    }

    /// Puts what this worker is the first to mirror of a variable into the lanes that sum its
    /// gradients in this epoch, from where another mirror gets what it lacks. `request` is that of
    /// its rounds, which are laid out; the variable has so many `parts`, and this worker has all of
    /// what it puts there.
    pub fn fill<M: Memory>(
        &mut self,
        client: &mut Client<OpMemory<M>>,
        rank: Rank,
        request: &Request,
        parts: usize,
    ) {
        // A mirror passes on what its machine contributes, so it knows these lanes.
        let layouts = [Tier::Root, Tier::Worker].map(|tier| client.layout(request.tensor, tier));
        let layout = layouts.into_iter().flatten().next().cloned().unwrap_or_default();
        let Request { tensor, dtype, .. } = *request;
        let (size, master) = (dtype.size(), dtype.accumulator());
        let elements = |place: &Place| place.origin / size..(place.origin + place.bytes) / size;
        for (part, tier) in Tier::PARTS.into_iter().enumerate().take(parts) {
            let (mut bytes, mut places, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
            for place in layout.places.iter() {
                let Some(variable) = place.variable else { continue };
                let [first, second] = variable.mirrors;
                let is_first = first == Some(rank);
                let is_second = variable.lacks && second == Some(rank);
                if !is_first && !is_second {
                    continue;
                }
                let elements = elements(place);
                let at = bytes.len()..bytes.len() + elements.len() * master.size();
                if is_first {
                    // Of a variable that has failed nothing is mirrored any more.
                    let Some(held) = client.mirrored(tensor, &elements) else { return };
                    bytes.extend_from_slice(held[part]);
                } else {
                    bytes.resize(at.end, 0);
                    lacking.push((elements, at.clone()));
                }
                let members: BTreeSet<Rank> =
                    first.into_iter().chain(second.filter(|_| variable.lacks)).collect();
                let members: Vec<Rank> = members.into_iter().collect();
                let group = client.define_group(&members);
                let place = Place::new(place.lane, place.number, (at.start, at.len()), group, 1);
                places.push(Place { relay: first, ..place });
            }
            if places.is_empty() {
                return;
            }
            if client.next_round(tensor, tier).is_none() {
                client.register(tensor, tier, places);
            }
            let request = Request {
                tensor,
                tier,
                collective: Collective::Broadcast,
                dtype: master,
                op: ReduceOp::Sum,
                root: rank,
                average: false,
                priority: i32::MAX,
                supply: Supply::Whole,
                call: None,
                update: None,
                rescale: 1.0,
            };
            let id = client.submit(request, OpMemory::Results(bytes));
            self.fills.insert(id, Fill { tensor, part, lacking });
        }
    }

    /// Whether all that this worker puts of a variable into lanes is there.
    #[must_use]
    pub fn is_filled(&self, tensor: TensorId) -> bool {
        !self.fills.values().chain(self.filled.values()).any(|fill| fill.tensor == tensor)
    }

    /// Why a lane has refused a part of a variable, if one has since this was asked last.
    pub fn take_refusal(&mut self, tensor: TensorId) -> Option<String> {
        self.refusals.remove(&tensor)
    }

    /// Takes the client's events that are about relays and fills; all others are returned.
    pub fn on_event<M: Memory>(
        &mut self,
        event: Event<OpMemory<M>>,
        client: &mut Client<OpMemory<M>>,
    ) -> Option<Event<OpMemory<M>>> {
        match event {
            Event::Finished(id, outcome) if self.fills.contains_key(&id) => {
                let fill = self.fills.remove(&id)?;
                if let Err(reason) = outcome {
                    self.refusals.insert(fill.tensor, reason);
                } else if !fill.lacking.is_empty() {
                    self.filled.insert(id, fill);
                }
                None
            }
            Event::Released(id, OpMemory::Results(bytes)) if self.filled.contains_key(&id) => {
                let Fill { tensor, part, lacking } = self.filled.remove(&id)?;
                for (elements, at) in lacking {
                    client.take_mirrored(tensor, part, &elements, &bytes[at]);
                }
                None
            }
            Event::Finished(id, _) if self.relays.contains_key(&id) => {
                if let Some(key) = self.relays.remove(&id)
                    && !self.retained.contains(&key)
                {
                    self.store.0.remove(&key);
                }
                None
            }
            Event::Finished(..) => {
                let over = |(tensor, round): &(TensorId, Round)| {
                    client.first_unfinished(*tensor).is_some_and(|first| first > round.next())
                };
                for key in self.retained.extract_if(.., over) {
                    self.store.0.remove(&key);
                }
                Some(event)
            }
            other => Some(other),
        }
    }

    /// Bytes of results that are held for others.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.store.0.values().flatten().map(|kept| kept.len).sum()
    }
}
