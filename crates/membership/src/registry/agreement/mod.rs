//! What the ranks of a run must agree on while it runs: tensors and the order of their calls, and
//! which ranks are out of data.

pub(crate) mod calls;
pub(crate) mod tensors;

use std::collections::BTreeMap;

use sumpter_types::{Rank, TensorId, TensorSpec};

use crate::event::MemberEvent;
use crate::rejoin::Idle;
use calls::{Calls, FailedCalls, Unmatched};
use tensors::{Declared, TensorTable};

/// The tensors of a run and what its ranks said of them.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    table: TensorTable,
    /// Workers that take part with zeros, in the order in which they said so.
    out_of_data: Vec<Rank>,
    failed_calls: FailedCalls,
}

/// What follows from a message, and which workers are notified.
#[derive(Debug, PartialEq)]
pub(crate) enum Notice {
    /// All workers of the run.
    All(MemberEvent),
    /// Its sender alone.
    Sender(MemberEvent),
}

impl Agreement {
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// Puts a tensor into the table, or says which workers must know why not.
    pub fn declare(&mut self, rank: Rank, spec: TensorSpec, world_size: u32) -> Option<Notice> {
        let name = spec.name.clone();
        match self.table.declare(rank, spec, world_size) {
            Declared::New(id, spec) => Some(Notice::All(MemberEvent::Tensor { id, spec })),
            Declared::Known => None,
            Declared::Conflict(message) => {
                Some(Notice::All(MemberEvent::TensorError { name, message }))
            }
            Declared::Refused(message) => {
                Some(Notice::Sender(MemberEvent::TensorError { name, message }))
            }
        }
    }

    /// A worker cannot take part in the rounds of a tensor, so that none can be finished.
    pub fn refuse(&mut self, tensor: &str, message: &str) -> MemberEvent {
        self.table.refuse(tensor, message);
        MemberEvent::TensorError { name: tensor.to_owned(), message: message.to_owned() }
    }

    /// A worker takes part with zeros from now on; after the last one, all as before.
    pub fn out_of_data(&mut self, rank: Rank, living: usize) -> Option<MemberEvent> {
        if self.out_of_data.contains(&rank) {
            return None;
        }
        self.out_of_data.push(rank);
        Some(self.all_out_of_data(living).unwrap_or(MemberEvent::OutOfData { rank }))
    }

    /// The event that all living workers are out of data; from then on all have some.
    fn all_out_of_data(&mut self, living: usize) -> Option<MemberEvent> {
        let last = self.out_of_data.last().copied().filter(|_| self.out_of_data.len() == living)?;
        self.out_of_data.clear();
        Some(MemberEvent::AllOutOfData { last })
    }

    /// A worker has died; the others may all be out of data now.
    pub fn lose(&mut self, rank: Rank, living: usize) -> Option<MemberEvent> {
        self.out_of_data.retain(|other| *other != rank);
        self.all_out_of_data(living)
    }

    /// The ranks that take part with zeros in a round that has begun, and the event for them.
    pub fn began(&self, tensor: TensorId, round: u64) -> (&[Rank], MemberEvent) {
        (&self.out_of_data, MemberEvent::Began { tensor, round })
    }

    /// The tensors of calls that ranks cannot match, now that one has reported its own; they are
    /// refused from now on.
    pub fn compare<'a>(
        &mut self,
        own: &Calls<'a>,
        ranks: impl Fn() -> Vec<Calls<'a>>,
    ) -> Vec<Unmatched> {
        let table = &self.table;
        let refusal = |tensor: &str| table.refusal(tensor).map(str::to_owned);
        let found = self.failed_calls.compare(own, ranks, refusal);
        for Unmatched { tensor, message, .. } in &found {
            self.table.refuse(tensor, message);
        }
        found
    }

    /// Takes what a worker's table, which [agrees](TensorTable::agrees_with), has more.
    pub fn restore(&mut self, specs: &[TensorSpec], world_size: u32) -> Result<(), String> {
        self.table.restore(specs, world_size)
    }

    /// All workers of a returning run have come back, with these tensors refused and these ranks
    /// out of data.
    pub fn settle(&mut self, refused: &BTreeMap<String, String>, idle: &Idle) {
        self.out_of_data.clone_from(&idle.ranks);
        refused.iter().for_each(|(tensor, why)| self.table.refuse(tensor, why));
    }
}

#[cfg(test)]
mod tests {
    use sumpter_types::PendingOp;

    use super::*;
    use crate::registry::tests::spec;

    #[test]
    fn a_conflict_is_for_all_and_a_later_declaration_for_its_sender() {
        let mut agreement = Agreement::default();
        let first = agreement.declare(Rank(0), spec("w", &[2]), 2);
        assert!(matches!(first, Some(Notice::All(MemberEvent::Tensor { id: TensorId(0), .. }))));
        assert_eq!(agreement.declare(Rank(1), spec("w", &[2]), 2), None);
        let conflict = agreement.declare(Rank(1), spec("w", &[3]), 2);
        assert!(matches!(conflict, Some(Notice::All(MemberEvent::TensorError { .. }))));
        let later = agreement.declare(Rank(0), spec("w", &[2]), 2);
        assert!(matches!(later, Some(Notice::Sender(MemberEvent::TensorError { .. }))));
    }

    #[test]
    fn the_last_living_rank_out_of_data_ends_the_zeros() {
        let mut agreement = Agreement::default();
        let one = MemberEvent::OutOfData { rank: Rank(1) };
        assert_eq!(agreement.out_of_data(Rank(1), 3), Some(one));
        assert_eq!(agreement.out_of_data(Rank(1), 3), None);
        assert_eq!(agreement.began(TensorId(0), 4).0, [Rank(1)]);
        assert!(agreement.out_of_data(Rank(2), 3).is_some());
        let all = MemberEvent::AllOutOfData { last: Rank(2) };
        assert_eq!(agreement.lose(Rank(0), 2), Some(all));
        assert_eq!(agreement.began(TensorId(0), 5).0, []);
    }

    #[test]
    fn the_tensors_of_a_mismatch_are_refused_once() {
        let op = |name: &str, call: &str| {
            [PendingOp {
                name: name.to_owned(),
                tag: format!("world#1|{call}"),
                since_ms: 2000,
                ..PendingOp::default()
            }]
        };
        let pending = [op("a", "x"), op("b", "y")];
        let ranks: Vec<Calls<'_>> = (0..)
            .map(Rank)
            .zip(&pending)
            .map(|(rank, pending)| Calls { rank, pending, refused: &[] })
            .collect();
        let mut agreement = Agreement::default();
        let mut compare = || agreement.compare(&ranks[0], || ranks.clone()).len();
        assert_eq!((compare(), compare()), (2, 0));
        let declared = agreement.declare(Rank(1), spec("b", &[2]), 2);
        assert!(matches!(declared, Some(Notice::Sender(MemberEvent::TensorError { .. }))));
    }
}
