//! Calls that ranks cannot match, found in what they report of their operations.
//!
//! Collectives of one group are numbered on every rank. Two ranks that wait in the same group at
//! the same number with different signatures can never meet: the program calls different
//! collectives. Their [tags](Tag) carry what is needed to see that. (Ranks that begin one round in
//! different calls are found by the lane that sums it.)
//!
//! Invariant: once a call has failed on one rank, every operation of it that any rank reports,
//! then or later, is refused. No rank waits in a call that another has given up.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use sumpter_types::{PendingOp, Rank, RefusedOp, Tag};

use crate::registry::words::list;

/// Younger operations are not compared: most are done before anyone could look.
const WORTH_A_LOOK_MS: u64 = 1000;

/// Calls that are remembered for ranks which come later; a program that fails as often in one run
/// goes on because it ignores the errors.
const MAX_CALLS: usize = 4096;

/// Rounds whose signature is remembered: those in which ranks wait now.
const MAX_ROUNDS: usize = 4096;

/// What the signatures of calls after a failed one end with, before its number.
const AFTER: &str = ", after call #";

/// What a rank reports of its operations.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'a> {
    pub rank: Rank,
    /// Those that it waits for.
    pub pending: &'a [PendingOp],
    /// The last ones that failed on it because ranks disagree.
    pub refused: &'a [RefusedOp],
}

/// A tensor that becomes unusable because of a call.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unmatched {
    pub tensor: String,
    /// Why, in words for every rank.
    pub message: String,
    /// Whether its call has failed just now, and not before this rank came to it.
    pub is_new: bool,
}

/// The calls that have failed.
#[derive(Debug, Default)]
pub(crate) struct FailedCalls {
    /// By `group#number`.
    calls: BTreeMap<String, Failed>,
    /// The oldest first.
    order: VecDeque<String>,
    alike: Alike,
}

/// The signature with which ranks wait in a round, by the round's position. A rank that waits there
/// with the same need not be compared with the others: all have been, and were found alike.
#[derive(Debug, Default)]
struct Alike {
    signatures: HashMap<String, String>,
    /// The positions, the oldest first.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Failed {
    /// The round in which ranks differ, as in a tag.
    position: String,
    /// What was called there.
    called: BTreeMap<Rank, String>,
    /// Why it failed, if not because calls differ.
    reason: String,
}

impl FailedCalls {
    /// Looks at the calls of a rank, which has just reported, beside those of all ranks, which
    /// `all` gives. These are looked at only if a call fails or might: of `n` ranks that wait for
    /// the same, each report costs one look, not `n`.
    ///
    /// Returns the tensors that are refused from now on. `refusal` says why a tensor is refused
    /// already.
    pub fn compare<'a>(
        &mut self,
        own: &Calls<'a>,
        all: impl Fn() -> Vec<Calls<'a>>,
        refusal: impl Fn(&str) -> Option<String>,
    ) -> Vec<Unmatched> {
        let rank = own.rank;
        let mut new = BTreeSet::new();
        for op in own.refused {
            let Some(tag) = Tag::parse(&op.tag) else { continue };
            if self.add(&tag, || refusal(&op.name)) {
                new.insert(tag.call);
            }
            self.note(rank, &tag);
        }
        let unlike: Vec<Tag<'a>> = waits(own).filter(|tag| !self.alike.has(tag)).collect();
        if !unlike.is_empty() {
            let differing = differing(&unlike, rank, &all());
            for tag in &differing {
                if self.add(tag, || None) {
                    new.insert(tag.call);
                }
            }
            let position = |tag: &Tag<'a>| tag.position;
            let differing: BTreeSet<&str> = differing.iter().map(position).collect();
            let alike = unlike.iter().filter(|tag| !differing.contains(tag.position));
            alike.for_each(|tag| self.alike.keep(tag));
        }
        let ranks = if new.is_empty() { vec![*own] } else { all() };
        let affected: Vec<(&str, &str)> = ranks
            .iter()
            .flat_map(|calls| calls.pending.iter().map(|op| (calls.rank, op)))
            .filter_map(|(of, op)| {
                let tag = Tag::parse(&op.tag)?;
                let is_due = new.contains(tag.call) || of == rank;
                (is_due && self.note(of, &tag)).then_some((tag.call, op.name.as_str()))
            })
            .collect();
        let unmatched = affected.into_iter().filter(|(_, name)| refusal(name).is_none());
        let unmatched =
            unmatched.map(|(call, name)| (name, (self.calls[call].message(), new.contains(call))));
        // A tensor of two calls is refused once.
        let unmatched: BTreeMap<&str, (String, bool)> = unmatched.collect();
        let unmatched = unmatched.into_iter();
        unmatched
            .map(|(name, (message, is_new))| Unmatched { tensor: name.to_owned(), message, is_new })
            .collect()
    }

    /// Remembers a call as failed; whether that is new.
    fn add(&mut self, tag: &Tag<'_>, reason: impl FnOnce() -> Option<String>) -> bool {
        if self.calls.contains_key(tag.call) {
            return false;
        }
        if self.order.len() == MAX_CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.calls.remove(&oldest);
        }
        let reason = reason().unwrap_or_else(|| "it has failed on another rank".to_owned());
        let (position, called) = (tag.position.to_owned(), BTreeMap::new());
        self.calls.insert(tag.call.to_owned(), Failed { position, called, reason });
        self.order.push_back(tag.call.to_owned());
        true
    }

    /// Whether an operation belongs to a call that has failed; what its rank has called is kept
    /// for the message.
    fn note(&mut self, rank: Rank, tag: &Tag<'_>) -> bool {
        let Some(failed) = self.calls.get_mut(tag.call) else { return false };
        if failed.position == tag.position {
            failed.called.entry(rank).or_insert_with(|| tag.signature.to_owned());
        }
        true
    }
}

impl Failed {
    fn message(&self) -> String {
        let what = match self.position.rsplit_once('#') {
            Some((group, number)) => format!("collective #{number} of group '{group}'"),
            None => format!("collective '{}'", self.position),
        };
        let ends: BTreeSet<&str> = self.called.values().map(|text| &text[head(text)..]).collect();
        let mut callers: Vec<(&str, Vec<Rank>)> = Vec::new();
        for (rank, signature) in &self.called {
            // What all have in common explains nothing.
            let end = if ends.len() == 1 { head(signature) } else { signature.len() };
            let signature = &signature[..end];
            match callers.iter_mut().find(|(known, _)| *known == signature) {
                Some((_, ranks)) => ranks.push(*rank),
                None => callers.push((signature, vec![*rank])),
            }
        }
        if callers.len() < 2 {
            return format!("{what}: {}", self.reason);
        }
        let callers = callers.into_iter().map(|(signature, ranks)| {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{noun} {} called {signature}", list(ranks))
        });
        let callers = list(callers);
        format!("{what}: {callers}; every rank must make the same calls in the same order")
    }
}

/// The length of a signature without the last failed call.
fn head(signature: &str) -> usize {
    signature.rfind(AFTER).unwrap_or(signature.len())
}

impl Alike {
    /// Whether those that wait in the round of `tag` do so with its signature.
    fn has(&self, tag: &Tag<'_>) -> bool {
        self.signatures.get(tag.position).is_some_and(|known| known == tag.signature)
    }

    /// All that wait in the round of `tag` do so with its signature.
    fn keep(&mut self, tag: &Tag<'_>) {
        let (position, signature) = (tag.position.to_owned(), tag.signature.to_owned());
        if self.signatures.insert(position.clone(), signature).is_none() {
            self.order.push_back(position);
        }
        if self.order.len() > MAX_ROUNDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.signatures.remove(&oldest);
        }
    }
}

/// The rounds in which a rank waits for so long that they are compared.
fn waits<'a>(calls: &Calls<'a>) -> impl Iterator<Item = Tag<'a>> + use<'a> {
    let old = |op: &&PendingOp| op.since_ms >= WORTH_A_LOOK_MS;
    calls.pending.iter().filter(old).filter_map(|op| Tag::parse(&op.tag))
}

/// Of the rounds in which `rank` waits, those in which one of the others does so with another
/// signature.
fn differing<'a>(own: &[Tag<'a>], rank: Rank, ranks: &[Calls<'a>]) -> Vec<Tag<'a>> {
    let own_tags: BTreeMap<&str, Tag<'a>> = own.iter().map(|tag| (tag.position, *tag)).collect();
    let others = ranks.iter().filter(|calls| calls.rank != rank).flat_map(waits);
    let differs = |other: Tag<'a>| {
        let tag = own_tags.get(other.position)?;
        (tag.signature != other.signature).then_some(*tag)
    };
    others.filter_map(differs).collect()
}

#[cfg(test)]
mod tests;
