//! Workers that have run out of data while others have not (Horovod's `join`).
//!
//! Such a worker takes part with zeros in every round that the others begin, so lanes and rounds
//! know nothing of it. The coordinator announces rounds to it: those under way when a worker runs
//! out, from every worker; later ones, from the lowest of a round's ranks that still has data. A
//! round that was announced before, or that it has begun itself, is ignored.

use std::collections::BTreeSet;

use crossbeam_channel::Sender;
use sumpter_types::Rank;

use crate::error::OpError;

/// Which workers are out of data.
#[derive(Debug, Default)]
pub(crate) struct OutOfData {
    others: BTreeSet<Rank>,
    /// Set while this worker is: where the last one is reported.
    answer: Option<Sender<Result<Rank, OpError>>>,
}

impl OutOfData {
    /// This worker is out of data.
    pub(crate) fn begin(&mut self, answer: Sender<Result<Rank, OpError>>) {
        self.answer = Some(answer);
    }

    /// Whether this worker is out of data.
    pub(crate) fn is_own(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether another worker is.
    pub(crate) fn is_any_other(&self) -> bool {
        !self.others.is_empty()
    }

    /// Another worker is out of data.
    pub(crate) fn add(&mut self, rank: Rank) {
        self.others.insert(rank);
    }

    /// All workers are: each goes on as before.
    pub(crate) fn end(&mut self, last: Rank) {
        self.others.clear();
        if let Some(answer) = self.answer.take() {
            // The caller may have given up.
            let _ = answer.send(Ok(last));
        }
    }

    /// The others will never run out of data.
    pub(crate) fn fail(&mut self, reason: &OpError) {
        if let Some(answer) = self.answer.take() {
            // As above.
            let _ = answer.send(Err(reason.about("other ranks still had data")));
        }
    }

    /// Whether rank `own` is the one that announces a new round of `members`.
    pub(crate) fn announces(&self, own: Rank, members: &[Rank]) -> bool {
        let mut with_data = members.iter().filter(|rank| !self.others.contains(rank));
        self.answer.is_none()
            && members.iter().any(|rank| self.others.contains(rank))
            && with_data.next() == Some(&own)
    }
}
