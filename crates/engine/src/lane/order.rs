//! When one worker's contribution changes a variable asynchronously, and when the worker gets the
//! value: as soon as the bound on staleness allows it, or as an order log says.
//!
//! The *position* of a contribution is the number of rounds that are in the stretch before it. An
//! order log has the position and how many rounds were in the answer, of every stretch; that says
//! which bytes every worker gets. It says nothing of chunks and partitions: these may be others
//! when the log is replayed.

use std::ops::Range;

use sumpter_sum::{self as sum, BufferPool};
use sumpter_types::{Rank, Round, Update};
use sumpter_wire::{OrderEntry, PartitionSpec};

use super::accumulate::Chunk;
use super::state::State;
use crate::clocks::{position_of, rounds_in};
use crate::spans::Spans;

/// What an order log says of a stretch of the state, in one worker's round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub stretch: Range<usize>,
    /// How many rounds are in it before the contribution.
    pub position: u32,
    /// How many are in the value that the worker gets.
    pub answer: u32,
}

/// An order that is about bytes of a partition, for the state: of this the partition's part begins
/// at `offset`, and has `widening` times the bytes.
pub(super) fn turns(order: &[OrderEntry], offset: usize, widening: usize) -> Vec<Turn> {
    let mut start = offset * widening;
    let turn = |OrderEntry { end, position, answer }: &OrderEntry| {
        let end = (offset + *end as usize) * widening;
        let stretch = std::mem::replace(&mut start, end)..end;
        Turn { stretch, position: *position, answer: *answer }
    };
    order.iter().map(turn).collect()
}

/// What a child says of a round when it begins it.
#[derive(Debug)]
pub(super) struct RoundStart {
    pub round: Round,
    /// What it does, in an update.
    pub update: Option<Update>,
    /// If a log is replayed.
    pub order: Vec<OrderEntry>,
}

impl RoundStart {
    /// Of a round that is no update.
    pub(super) fn plain(round: Round) -> RoundStart {
        RoundStart { round, update: None, order: Vec::new() }
    }
}

/// What may be done for a chunk of one worker's round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatchUp {
    /// The worker gets the value.
    Answers,
    /// And its contribution is added before.
    All,
}

/// A stretch with more rounds than an order log allows: it is of another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub position: u32,
    pub rounds: u32,
}

/// What has become of a chunk of one worker's round.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// What of the state has the contribution, and at which position.
    added: Vec<(Range<usize>, u32)>,
    /// Of what the worker gets the value, and how many rounds are in it.
    answered: Vec<(Range<usize>, u32)>,
}

/// One worker's round.
pub(super) struct OwnRound<'a> {
    pub from: (Rank, Round),
    pub update: &'a Update,
    /// How many rounds all others must have contributed before the worker gets the value, if it
    /// waits for them.
    pub awaited: Option<u32>,
    /// In place of that, if a log is replayed.
    pub order: &'a [Turn],
}

impl Missed {
    /// That a turn is past, if it is.
    fn check(position: u32, rounds: u32) -> Result<(), Missed> {
        match rounds.wrapping_sub(position).cast_signed() > 0 {
            true => Err(Missed { position, rounds }),
            false => Ok(()),
        }
    }

    /// What is wrong, in words.
    pub(super) fn reason(&self, rank: Rank, round: Round) -> String {
        let Missed { position, rounds } = self;
        format!(
            "the order log of rank {rank} has position {position} in round {round}, where {rounds} \
             rounds are in the variable already: the logs of the ranks are not of one run, or a \
             server was lost while they were replayed"
        )
    }
}

impl Turns {
    pub(super) fn clear(&mut self) {
        self.added.clear();
        self.answered.clear();
    }

    /// When the stretches of a chunk had their turns: ends, positions and answers, once all are
    /// known.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, u32, u32)> {
        let sorted = |list: &[(Range<usize>, u32)]| {
            let mut list = list.to_vec();
            list.sort_unstable_by_key(|(stretch, _)| stretch.start);
            list
        };
        let mut answered = sorted(&self.answered).into_iter().peekable();
        let mut out = Vec::new();
        for (stretch, position) in sorted(&self.added) {
            while let Some((of, answer)) = answered.peek().cloned() {
                out.push((of.end.min(stretch.end), position, answer));
                if of.end <= stretch.end {
                    answered.next();
                }
                if of.end >= stretch.end {
                    break;
                }
            }
        }
        out.into_iter()
    }
}

/// What of a stretch is not in a list.
fn left(stretch: &Range<usize>, list: &[(Range<usize>, u32)]) -> Spans {
    let mut left = Spans::default();
    left.insert(stretch.clone());
    list.iter().for_each(|(known, _)| left.remove(known.clone()));
    left
}

/// Whether a list of parts of a stretch has all of it.
fn is_whole(stretch: &Range<usize>, list: &[(Range<usize>, u32)]) -> bool {
    list.iter().map(|(part, _)| part.len()).sum::<usize>() == stretch.len()
}

/// The turns that are about a stretch.
fn turns_in<'a>(order: &'a [Turn], stretch: &Range<usize>) -> impl Iterator<Item = &'a Turn> {
    let first = order.partition_point(|turn| turn.stretch.end <= stretch.start);
    let end = stretch.end;
    order[first..].iter().take_while(move |turn| turn.stretch.start < end)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// What has happened to a chunk of one worker's round.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// The variable has changed now, in this chunk.
    pub changed: Option<u32>,
    pub missed: Option<Missed>,
    /// All of the value that the worker gets has been taken.
    pub is_answered: bool,
}

impl Chunk {
    /// Does what is due of one worker's contribution, which is here: see
    /// [`add_to`](Self::add_to), unless only answers are asked for, and [`answer`](Self::answer).
    pub(super) fn settle_own(
        &mut self,
        spec: &PartitionSpec,
        own: &OwnRound<'_>,
        (state, (unit, stretch)): (&mut State, (u32, &Range<usize>)),
        (pool, what): (&mut BufferPool, CatchUp),
    ) -> Settled {
        let adds = what == CatchUp::All;
        let added = adds.then(|| self.add_to(spec, own, (state, unit, stretch)));
        let added = added.unwrap_or(Ok(false));
        let changed = matches!(added, Ok(true)).then_some(unit);
        let answered = self.answer(spec, own, (state, unit, stretch), pool);
        let missed = added.err().or(answered.err());
        Settled { changed, missed, is_answered: answered == Ok(true) }
    }

    /// Changes a stretch of a variable, chunk `unit`, by one worker's contribution, as far as all
    /// of the stretch is there and its turn has come; whether it does so now.
    fn add_to(
        &mut self,
        spec: &PartitionSpec,
        own: &OwnRound<'_>,
        (state, unit, stretch): (&mut State, u32, &Range<usize>),
    ) -> Result<bool, Missed> {
        let update = own.update;
        let is_here = state.covers(update.rule.slots().len(), stretch);
        if !is_here || !state.clocks.covers(stretch) {
            return Ok(false);
        }
        let due = self.due(own, state, stretch)?;
        if due.is_empty() {
            return Ok(false);
        }
        let (dtype, master) = (spec.dtype, spec.dtype.accumulator());
        let gradient = self.sum.as_ref().expect("a counted contribution has a sum");
        let gradient = &gradient[..stretch.len() / master.size() * dtype.size()];
        let place = |at: usize| (at - stretch.start) / master.size() * dtype.size();
        for part in due {
            let gradient = (dtype, &gradient[place(part.start)..place(part.end)]);
            let added = state.add((update, master), (unit, &part), own.from, gradient);
            self.turns.added.extend(added.into_iter().map(|added| (added.stretch, added.position)));
        }
        Ok(true)
    }

    /// What of a stretch is to be changed now.
    fn due(
        &self,
        own: &OwnRound<'_>,
        state: &State,
        stretch: &Range<usize>,
    ) -> Result<Vec<Range<usize>>, Missed> {
        if own.order.is_empty() {
            let is_new = self.turns.added.is_empty();
            return Ok(is_new.then(|| stretch.clone()).into_iter().collect());
        }
        let mut due = Vec::new();
        for turn in turns_in(own.order, stretch) {
            for part in left(&overlap(&turn.stretch, stretch), &self.turns.added).iter() {
                for (part, clocks) in state.clocks.within(&part) {
                    let rounds = rounds_in(clocks);
                    // What is done again in a new epoch may be in it.
                    if rounds == turn.position || position_of(clocks, own.from).is_some() {
                        due.push(part);
                    } else {
                        Missed::check(turn.position, rounds)?;
                    }
                }
            }
        }
        Ok(due)
    }

    /// Takes the value that the worker gets, once its contribution is in the variable and all
    /// others have contributed as many rounds as are awaited; whether all of it has been taken. It
    /// is taken at the first moment, so that the order of contributions says what is in it.
    fn answer(
        &mut self,
        spec: &PartitionSpec,
        own: &OwnRound<'_>,
        (state, unit, stretch): (&State, u32, &Range<usize>),
        pool: &mut BufferPool,
    ) -> Result<bool, Missed> {
        if is_whole(stretch, &self.turns.answered) {
            return Ok(true);
        }
        let now = match own.order {
            [] => {
                let is_added = is_whole(stretch, &self.turns.added);
                let is_due = own.awaited.is_none_or(|rounds| state.clocks.has_all(stretch, rounds));
                if !is_added || !is_due {
                    return Ok(false);
                }
                let within = state.clocks.within(stretch);
                within.map(|(part, clocks)| (part, rounds_in(clocks))).collect()
            }
            order => self.answers(order, state, stretch)?,
        };
        let (dtype, master) = (spec.dtype, spec.dtype.accumulator());
        let len = stretch.len() / master.size() * dtype.size();
        for (part, _) in &now {
            let value = state.value(part.clone()).expect("a changed value is there");
            let place = |at: usize| (at - stretch.start) / master.size() * dtype.size();
            let weights = self.weights.get_or_insert_with(|| pool.take(len));
            let weights = &mut weights[place(part.start)..place(part.end)];
            if dtype == master {
                weights.copy_from_slice(value);
            } else {
                sum::narrow(dtype, weights, value);
            }
            self.version = state.version(unit);
        }
        self.turns.answered.extend(now);
        Ok(is_whole(stretch, &self.turns.answered))
    }

    /// What of a stretch the worker gets now, as an order log says.
    fn answers(
        &self,
        order: &[Turn],
        state: &State,
        stretch: &Range<usize>,
    ) -> Result<Vec<(Range<usize>, u32)>, Missed> {
        let mut now = Vec::new();
        for Turn { stretch: of, answer, .. } in turns_in(order, stretch) {
            let of = overlap(of, stretch);
            for (added, _) in &self.turns.added {
                for part in left(&overlap(added, &of), &self.turns.answered).iter() {
                    for (part, clocks) in state.clocks.within(&part) {
                        let rounds = rounds_in(clocks);
                        if rounds == *answer {
                            now.push((part, rounds));
                        } else {
                            Missed::check(*answer, rounds)?;
                        }
                    }
                }
            }
        }
        Ok(now)
    }
}

/// The order of a worker's round in a partition, from that of its chunks: `bytes` makes a place in
/// the state one in the partition.
pub(super) fn entries<'a>(
    chunks: impl Iterator<Item = &'a Chunk>,
    bytes: impl Fn(usize) -> u32,
) -> Vec<OrderEntry> {
    let mut out: Vec<OrderEntry> = Vec::new();
    for (end, position, answer) in chunks.flat_map(|chunk| chunk.turns.known()) {
        let entry = OrderEntry { end: bytes(end), position, answer };
        match out.last_mut() {
            Some(last) if (last.position, last.answer) == (position, answer) => {
                last.end = entry.end
            }
            _ => out.push(entry),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_told_with_their_position_and_their_answer() {
        let turns = Turns {
            added: vec![(50..100, 2), (0..50, 1)],
            answered: vec![(0..20, 4), (70..100, 5), (20..70, 3)],
        };
        let known: Vec<_> = turns.known().collect();
        assert_eq!(known, [(20, 1, 4), (50, 1, 3), (70, 2, 3), (100, 2, 5)]);
        let mut chunk = Chunk { turns, ..Chunk::default() };
        let of = |chunk: &Chunk| entries([chunk].into_iter(), |at| at as u32 / 2);
        assert_eq!(of(&chunk)[0], OrderEntry { end: 10, position: 1, answer: 4 });
        chunk.turns = Turns { added: vec![(0..50, 1), (50..90, 1)], answered: vec![(0..90, 2)] };
        assert_eq!(of(&chunk), [OrderEntry { end: 45, position: 1, answer: 2 }]);
    }

    #[test]
    fn a_turn_is_past_when_more_rounds_are_in() {
        assert_eq!(Missed::check(5, 5), Ok(()));
        assert_eq!(Missed::check(5, 4), Ok(()));
        assert_eq!(Missed::check(u32::MAX, 2), Err(Missed { position: u32::MAX, rounds: 2 }));
        assert_eq!(Missed::check(2, u32::MAX), Ok(()), "positions are counted modulo 2^32");
    }
}
