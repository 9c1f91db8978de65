//! A run that has outlived its coordinator. Work goes on without one, so a coordinator that starts
//! anew learns of a run from its members when they come back.
//!
//! The first worker that comes back restores the run from what it knows; until every worker has
//! come back or has left, and every server of the plan has or is late, the run is *returning*:
//! messages of its workers are held back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_types::{Epoch, MemberId, Rank};

use crate::event::MemberEvent;
use crate::registry::io::Message;
use crate::rejoin::{Idle, KnownRun};

/// Messages of workers in all while their run returns: far above the tensors of any model.
const MAX_HELD_BACK: usize = 1 << 18;

/// What a run that returns still has to settle.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// What each worker knew when it came back.
    workers: BTreeMap<Rank, Known>,
    refused: BTreeMap<String, String>,
    idle: Idle,
    /// When the last worker came back.
    complete: Option<Duration>,
    /// The worker that the others go on without, since it did not come back.
    lost: Option<String>,
    /// Messages of workers meanwhile.
    held_back: Vec<(MemberId, Message)>,
}

/// What a worker knew when it came back.
#[derive(Debug)]
struct Known {
    epoch: Epoch,
    suspended: Option<Epoch>,
    tensors: usize,
    all_out: u32,
}

/// What a worker has missed while the coordinator was gone.
#[derive(Debug, PartialEq)]
pub(crate) struct Missed {
    pub rank: Rank,
    /// The entries of the tensor table that it knows.
    pub tensors: usize,
    /// Whether all workers have been out of data since.
    pub all_out_of_data: Option<MemberEvent>,
}

impl Returning {
    /// Whether the worker is back.
    pub fn has(&self, rank: Rank) -> bool {
        self.workers.contains_key(&rank)
    }

    /// A worker comes back.
    pub fn back(&mut self, rank: Rank, known: &KnownRun) {
        if known.idle.age() > self.idle.age() {
            self.idle.clone_from(&known.idle);
        }
        let refused = known.refused.iter().map(|(name, why)| (name.clone(), why.clone()));
        self.refused.extend(refused);
        let known = Known {
            epoch: known.view.epoch,
            suspended: known.suspended,
            tensors: known.table.len(),
            all_out: known.idle.times,
        };
        self.workers.insert(rank, known);
    }

    /// A worker that had come back is gone again.
    pub fn expect_again(&mut self, rank: Rank) {
        self.workers.remove(&rank);
    }

    /// The others go on without a worker, for this reason.
    pub fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// Why the others go on without a worker, if they do.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Holds a message back; whether there is room.
    pub fn hold_back(&mut self, id: MemberId, message: Message) -> bool {
        let room = self.held_back.len() < MAX_HELD_BACK;
        if room {
            self.held_back.push((id, message));
        }
        room
    }

    /// All workers are back now, or have been since the time returned.
    pub fn all_back(&mut self, now: Duration) -> Duration {
        *self.complete.get_or_insert(now)
    }

    /// The tensors that are refused, and why.
    pub fn refused(&self) -> &BTreeMap<String, String> {
        &self.refused
    }

    /// The workers that are out of data.
    pub fn idle(&self) -> &Idle {
        &self.idle
    }

    /// The epochs that some worker knows.
    pub fn epochs(&self) -> BTreeSet<Epoch> {
        let known = self.workers.values().flat_map(|known| [Some(known.epoch), known.suspended]);
        known.flatten().collect()
    }

    /// Whether some worker has been suspended.
    pub fn suspended(&self) -> bool {
        self.workers.values().any(|known| known.suspended.is_some())
    }

    /// What each worker has missed.
    pub fn missed(&self) -> impl Iterator<Item = Missed> + '_ {
        let last = self.idle.last;
        self.workers.iter().map(move |(rank, known)| Missed {
            rank: *rank,
            tensors: known.tensors,
            all_out_of_data: (known.all_out < self.idle.times)
                .then_some(MemberEvent::AllOutOfData { last }),
        })
    }

    /// The messages that were held back.
    pub fn into_held_back(self) -> Vec<(MemberId, Message)> {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(epoch: u32, times: u32) -> KnownRun {
        let mut known = KnownRun::default();
        known.view.epoch = Epoch(epoch);
        known.idle.times = times;
        known
    }

    #[test]
    fn the_newest_word_on_idle_workers_counts_and_the_others_have_missed_it() {
        let mut returning = Returning::default();
        returning.back(Rank(0), &known(3, 2));
        returning.back(Rank(1), &known(4, 1));
        assert_eq!(returning.idle().times, 2);
        assert_eq!(returning.epochs(), [Epoch(3), Epoch(4)].into());
        let missed: Vec<bool> = returning.missed().map(|m| m.all_out_of_data.is_some()).collect();
        assert_eq!(missed, [false, true]);
        returning.expect_again(Rank(1));
        assert!(returning.has(Rank(0)) && !returning.has(Rank(1)));
    }

    #[test]
    fn messages_are_held_back_in_order_and_the_first_completion_counts() {
        let mut returning = Returning::default();
        assert!(returning.hold_back(MemberId(1), Message::OutOfData));
        assert!(returning.hold_back(MemberId(2), Message::Drain));
        let second = Duration::from_secs(1);
        assert_eq!((returning.all_back(second), returning.all_back(second * 2)), (second, second));
        let ids: Vec<MemberId> = returning.into_held_back().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [MemberId(1), MemberId(2)]);
    }
}
