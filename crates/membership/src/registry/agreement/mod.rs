//! What the ranks of a run must agree on while it runs: tensors and the order of their calls, and
//! which ranks are out of data.

pub(crate) mod calls;
pub(crate) mod tensors;

use std::collections::{BTreeMap, BTreeSet};

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

    /// Puts tensors into the table, and says which workers must know of them, or why not.
    pub fn declare(
        &mut self,
        rank: Rank,
        specs: Vec<TensorSpec>,
        world_size: u32,
    ) -> impl Iterator<Item = Notice> + use<> {
        let (mut first, mut new, mut errors) = (TensorId(0), Vec::new(), Vec::new());
        for spec in specs {
            match self.table.declare(rank, spec, world_size) {
                Declared::New(id, spec) => {
                    // The others follow it, since nothing comes between.
                    first = if new.is_empty() { id } else { first };
                    new.push(spec);
                }
                Declared::Known => {}
                Declared::Conflict { name, message } => {
                    errors.push(Notice::All(MemberEvent::TensorError { name, message }));
                }
                Declared::Refused { name, message } => {
                    errors.push(Notice::Sender(MemberEvent::TensorError { name, message }));
                }
            }
        }
        // A name that is declared twice has its number before the conflict.
        let new = (!new.is_empty()).then_some(MemberEvent::Tensors { first, specs: new });
        new.map(Notice::All).into_iter().chain(errors)
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
        self.lose_all(&BTreeSet::from([rank]), living)
    }

    /// The same for several.
    pub fn lose_all(&mut self, ranks: &BTreeSet<Rank>, living: usize) -> Option<MemberEvent> {
        self.out_of_data.retain(|other| !ranks.contains(other));
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
        let mut declare = |rank, shape| {
            agreement.declare(Rank(rank), vec![spec("w", &[shape])], 2).collect::<Vec<_>>()
        };
        let tensors = MemberEvent::Tensors { first: TensorId(0), specs: vec![spec("w", &[2])] };
        assert_eq!(declare(0, 2), [Notice::All(tensors)]);
        assert_eq!(declare(1, 2), []);
        let conflict = declare(1, 3);
        assert!(matches!(conflict[..], [Notice::All(MemberEvent::TensorError { .. })]));
        let later = declare(0, 2);
        assert!(matches!(later[..], [Notice::Sender(MemberEvent::TensorError { .. })]));
    }

    #[test]
    fn new_tensors_of_a_list_come_in_one_notice_and_before_what_is_wrong_with_others() {
        let mut agreement = Agreement::default();
        drop(agreement.declare(Rank(0), vec![spec("a", &[1]), spec("b", &[1])], 2));
        let list = [spec("a", &[1]), spec("c", &[1]), spec("b", &[2]), spec("d", &[1])];
        let twice = spec("c", &[9]);
        let notices: Vec<_> =
            agreement.declare(Rank(1), list.into_iter().chain([twice]).collect(), 2).collect();
        let specs = vec![spec("c", &[1]), spec("d", &[1])];
        let [new, b, c] = &notices[..] else { panic!("{notices:?}") };
        assert_eq!(*new, Notice::All(MemberEvent::Tensors { first: TensorId(2), specs }));
        let texts = [b, c].map(|notice| match notice {
            Notice::All(MemberEvent::TensorError { name, message }) => {
                (name.as_str(), message.as_str())
            }
            other => panic!("{other:?}"),
        });
        assert!(texts[0].0 == "b" && texts[0].1.contains("rank 0 declared"), "{texts:?}");
        assert!(texts[0].1.contains("rank 1 declared"), "{texts:?}");
        assert!(texts[1].0 == "c" && texts[1].1.contains("rank 1 declared"), "{texts:?}");
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
        let declared = agreement.declare(Rank(1), vec![spec("b", &[2])], 2).collect::<Vec<_>>();
        assert!(matches!(declared[..], [Notice::Sender(MemberEvent::TensorError { .. })]));
    }
}
