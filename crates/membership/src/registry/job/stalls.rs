//! The straggler that operations wait for, from the workers' reports, and when to warn of it.
//!
//! An operation waits for the ranks that have not begun its round; if there are none, for a lane,
//! which its worker names. A rank that has not begun but still moves, with other tensors, is slow
//! and nothing more, and so is a large transfer: a wait counts from when the last sign came.

use std::collections::BTreeMap;
use std::time::Duration;

use sumpter_types::{Collective, PendingOp, Rank, StallStatus, Stats, TensorSpec};

use crate::registry::agreement::tensors::TensorTable;
use crate::registry::io::StallLimits;
use crate::registry::words::list;

/// Characters of a worker's own words in a line; an address and a host's name need a third of it.
const WORDS_LIMIT: usize = 300;

/// What a worker last said, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub rank: Rank,
    pub host: &'a str,
    /// What it waits for.
    pub pending: &'a [PendingOp],
    /// The operations it has begun, by tensor.
    pub begun: &'a [u64],
    /// How long this has been the same.
    pub still: Duration,
    /// How long it has sent nothing, if that is longer than it should be.
    pub silent: Option<Duration>,
}

/// An operation that waits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stall {
    pub tensor: String,
    pub round: u64,
    pub waited: Duration,
    /// The ranks that have not begun the round.
    pub missing: Vec<Rank>,
    /// The rank or tensor that it waits for: `for rank 2 (host gpu3) on 'w'`, or `on 'w'`.
    subject: String,
    /// What is known of it.
    details: String,
}

impl Stall {
    /// The one line.
    pub fn message(&self) -> String {
        let Stall { subject, details, waited, .. } = self;
        format!("waiting {subject} since {}: {details}", whole_seconds(*waited))
    }

    pub fn status(&self) -> StallStatus {
        StallStatus {
            message: self.message(),
            tensor: self.tensor.clone(),
            round: self.round,
            seconds: self.waited.as_secs_f64(),
            ranks: self.missing.iter().map(|rank| rank.0).collect(),
        }
    }
}

/// Whether a worker has begun or finished an operation between two reports, or part of one.
pub(crate) fn has_moved(before: &Stats, now: &Stats) -> bool {
    fn left(stats: &Stats) -> BTreeMap<(&str, u64), u64> {
        stats.pending.iter().map(|op| ((op.name.as_str(), op.round), op.left_bytes)).collect()
    }
    let (then, left) = (left(before), left(now));
    // More than before means that something is to be sent again.
    before.begun != now.begun
        || !then.keys().eq(left.keys())
        || left.iter().any(|(op, bytes)| *bytes < then[op])
}

/// Whether a rank waits for the root of a round first of all.
fn needs_root_first(spec: &TensorSpec, waiter: Rank) -> bool {
    spec.collective == Collective::Broadcast && waiter != spec.root
}

/// The ranks for which `waiter` waits in a round of a tensor, since they have not begun it, and how
/// many have. For a broadcast that is the root; once it has begun, any other, for the workers of a
/// machine receive it together.
fn missing(
    reports: &[Report<'_>],
    (index, spec): (usize, &TensorSpec),
    round: u64,
    waiter: Rank,
) -> (Vec<usize>, usize) {
    // The ranks of a spec are in order.
    let takes_part = |rank| spec.ranks.is_empty() || spec.ranks.binary_search(&rank).is_ok();
    let begun = |report: &Report<'_>| report.begun.get(index).is_some_and(|n| *n > round);
    let root_begun = reports.iter().any(|report| report.rank == spec.root && begun(report));
    let root_only = needs_root_first(spec, waiter) && !root_begun;
    let needed = |rank| if root_only { rank == spec.root } else { takes_part(rank) };
    let all = (0..reports.len()).filter(|i| needed(reports[*i].rank));
    let (there, missing): (Vec<_>, Vec<_>) = all.partition(|i| begun(&reports[*i]));
    (missing, there.len())
}

/// Those who wait for the same.
struct Waiters<'a> {
    /// How long the first of them has waited.
    oldest: Duration,
    /// The one that knows best why, and its operation.
    witness: (usize, &'a PendingOp),
}

/// The operation that has waited longest, if it has waited for `limit`.
pub(crate) fn find(reports: &[Report<'_>], table: &TensorTable, limit: Duration) -> Option<Stall> {
    let mut waits: BTreeMap<(usize, u64, bool), Waiters<'_>> = BTreeMap::new();
    for (rank, report) in reports.iter().enumerate() {
        for op in report.pending.iter().filter(|op| age(op) >= limit) {
            let Some((index, spec)) = table.find(&op.name) else { continue };
            let key = (index, op.round, needs_root_first(spec, report.rank));
            let first = Waiters { oldest: age(op), witness: (rank, op) };
            let wait = waits.entry(key).or_insert(first);
            wait.oldest = wait.oldest.max(age(op));
            let best = wait.witness.1;
            if (op.suspicion, op.since_ms) > (best.suspicion, best.since_ms) {
                wait.witness = (rank, op);
            }
        }
    }
    let stalls = waits.into_values().filter_map(|wait| judge(reports, table, &wait));
    let long = stalls.filter(|stall| stall.waited >= limit);
    // Of those that are equally long, the tensor that was declared first.
    long.rev().max_by_key(|stall| stall.waited)
}

/// What a wait is about, and since when.
fn judge(reports: &[Report<'_>], table: &TensorTable, wait: &Waiters<'_>) -> Option<Stall> {
    let Waiters { oldest, witness: (waiter, op) } = *wait;
    let waiter = &reports[waiter];
    let (missing, there) = missing(reports, table.find(&op.name)?, op.round, waiter.rank);
    let ranks: Vec<_> = missing.iter().map(|i| &reports[*i]).collect();
    let (waited, subject, details) = match ranks.iter().map(|report| report.still).max() {
        Some(still) => {
            let subject = format!("for {} on '{}'", names(&ranks), op.name);
            (oldest.min(still), subject, about_ranks(&ranks, there))
        }
        None => {
            let waited = age(op).min(waiter.still);
            (waited, format!("on '{}'", op.name), about_lane(waiter, op, there))
        }
    };
    let missing = ranks.iter().map(|report| report.rank).collect();
    Some(Stall { tensor: op.name.clone(), round: op.round, waited, missing, subject, details })
}

fn age(op: &PendingOp) -> Duration {
    Duration::from_millis(op.since_ms)
}

fn names(reports: &[&Report<'_>]) -> String {
    list(reports.iter().map(|report| format!("rank {} (host {})", report.rank, report.host)))
}

fn about_ranks(missing: &[&Report<'_>], there: usize) -> String {
    let they_have = if missing.len() == 1 { "it has" } else { "they have" };
    let others = match there {
        1 => "1 other has".to_owned(),
        _ => format!("{there} others have"),
    };
    let mut text = format!("{they_have} not begun this round; {others}");
    let first = missing[0];
    if let Some((rank, silence)) = missing.iter().find_map(|r| Some((r.rank, r.silent?))) {
        text += &format!("; rank {rank} has been silent for {}", whole_seconds(silence));
    } else if let Some(op) = first.pending.first() {
        let (name, since) = (printable(&op.name), whole_seconds(age(op)));
        text += &format!("; rank {} itself waits on '{name}' since {since}", first.rank);
    }
    text
}

fn about_lane(waiter: &Report<'_>, op: &PendingOp, there: usize) -> String {
    let what = match op.waits_for.as_str() {
        "" => "the result".to_owned(),
        text => printable(text),
    };
    format!(
        "all {there} ranks have begun this round; rank {} (host {}) waits for {what}",
        waiter.rank, waiter.host
    )
}

/// A worker's words, fit for one line of a log that others read.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(WORDS_LIMIT).collect()
}

/// `12 s`: a fraction is of no interest here.
fn whole_seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{seconds} s"),
    }
}

/// Announces the stalls of a run.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    announced: Option<Announced>,
}

/// What a run must do about a stall.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Lines for the logs; mostly none.
    Lines(Vec<Line>),
    /// The job has waited for too long, with the reason in words.
    Over(String),
}

#[derive(Debug)]
struct Announced {
    tensor: String,
    round: u64,
    subject: String,
    since: Duration,
    /// When it is announced again.
    next: Duration,
}

/// A line for the logs.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub message: String,
    pub over: bool,
}

impl StallWatch {
    /// What is to be done now about the longest stall.
    pub fn judge(&mut self, now: Duration, limits: StallLimits, stall: Option<Stall>) -> Verdict {
        let StallLimits { warning, shutdown } = limits;
        if let Some(stall) = &stall
            && !shutdown.is_zero()
            && stall.waited >= shutdown
        {
            let (message, limit) = (stall.message(), shutdown.as_secs_f64());
            return Verdict::Over(format!(
                "{message}; the job ends because stall_shutdown_s is {limit}"
            ));
        }
        let due = stall.filter(|stall| !warning.is_zero() && stall.waited >= warning);
        Verdict::Lines(self.lines(now, due.as_ref()))
    }

    /// What is to be announced now: the end of a wait, and one that has begun or that has lasted
    /// twice as long as when it was last announced.
    pub fn lines(&mut self, now: Duration, stall: Option<&Stall>) -> Vec<Line> {
        let mut lines = Vec::new();
        let same = |announced: &Announced| {
            stall.is_some_and(|s| s.tensor == announced.tensor && s.round == announced.round)
        };
        if let Some(ended) = self.announced.take_if(|announced| !same(announced)) {
            let lasted = whole_seconds(now.saturating_sub(ended.since));
            let message = format!("no longer waiting {}: that took {lasted}", ended.subject);
            lines.push(Line { message, over: true });
        }
        let Some(stall) = stall else { return lines };
        if self.announced.as_ref().is_none_or(|announced| announced.next <= now) {
            let since = match &self.announced {
                Some(announced) => announced.since,
                None => now.saturating_sub(stall.waited),
            };
            self.announced = Some(Announced {
                tensor: stall.tensor.clone(),
                round: stall.round,
                subject: stall.subject.clone(),
                since,
                next: now + now.saturating_sub(since).max(stall.waited),
            });
            lines.push(Line { message: stall.message(), over: false });
        }
        lines
    }
}

/// The operation that has waited longest beyond the smaller of the limits.
pub(crate) fn longest(
    reports: &[Report<'_>],
    table: &TensorTable,
    limits: StallLimits,
) -> Option<Stall> {
    let limits = [limits.warning, limits.shutdown].into_iter();
    find(reports, table, limits.filter(|limit| !limit.is_zero()).min()?)
}

#[cfg(test)]
#[path = "stalls/tests.rs"]
mod tests;
