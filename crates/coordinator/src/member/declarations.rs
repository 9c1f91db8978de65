//! The tensors that a worker wants declared and that the coordinator has not judged.
//!
//! One list of them is on its way at a time. What is declared meanwhile waits for the answer, and
//! is not sent at all if the tensor table has it by then: with thousands of workers that declare
//! the same tensors, the busier the coordinator, the fewer and longer the lists it gets. A worker
//! sends its next list after a pause that grows with their number, so that lists take about half of
//! a coordinator's time at most. Rank 0 sends the first one after a while at once. The others wait
//! for two pauses: by then the table has what they declare as rank 0 does, and each announcement,
//! which goes to all workers, has many tensors.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use prost::Message as _;
use sumpter_types::{Rank, TensorSpec};
use tokio::time::Instant;

use crate::codec::{MOST_LISTED, spec_to_proto};
use crate::proto;

/// Bytes of a list, far below what a coordinator takes. Names are long, and so are lists of ranks.
const MOST_BYTES: usize = 1 << 20;

/// The pause between two lists for each worker of the job: twice what a short list and its answer
/// take a coordinator.
const PAUSE_PER_WORKER: Duration = Duration::from_micros(30);

/// In the order in which they were declared; the first are on their way.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    unanswered: VecDeque<TensorSpec>,
    asked: usize,
    pause: Duration,
    /// Whether another rank is likely to have declared the same before.
    follows: bool,
    not_before: Option<Instant>,
}

impl Declarations {
    /// Of a rank of so many workers.
    pub fn set_rank(&mut self, rank: Rank, workers: u32) {
        self.follows = rank != Rank(0);
        self.pause = PAUSE_PER_WORKER * workers * if self.follows { 2 } else { 1 };
    }

    /// When the next list may be sent, if there is one and none is on its way.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let waits = self.asked == 0 && !self.unanswered.is_empty();
        waits.then(|| self.not_before.unwrap_or(now))
    }

    /// The owner declares a tensor.
    pub fn add(&mut self, spec: TensorSpec, now: Instant) {
        if self.follows && self.unanswered.is_empty() {
            self.not_before = Some(now + self.pause);
        }
        self.unanswered.push_back(spec);
    }

    /// The next list to be sent, if it is due.
    pub fn next_list(&mut self, now: Instant) -> Option<Vec<proto::TensorSpec>> {
        self.due(now).filter(|due| *due <= now)?;
        let (mut list, mut bytes) = (Vec::new(), 0);
        for spec in self.unanswered.iter().take(MOST_LISTED) {
            let spec = spec_to_proto(spec.clone());
            bytes += spec.encoded_len();
            if bytes > MOST_BYTES && !list.is_empty() {
                break;
            }
            list.push(spec);
        }
        (self.asked, self.not_before) = (list.len(), Some(now + self.pause));
        Some(list)
    }

    /// The coordinator has judged the list that was sent last.
    pub fn answered(&mut self) {
        self.unanswered.drain(..self.asked);
        self.asked = 0;
    }

    /// The coordinator is another one, which knows of no list.
    pub fn forget_asked(&mut self) {
        self.asked = 0;
    }

    /// These are in the tensor table: what is not on its way and equal to one need not be sent.
    pub fn entered(&mut self, specs: &[TensorSpec]) {
        if self.unanswered.len() == self.asked {
            return;
        }
        let known: HashMap<&str, &TensorSpec> =
            specs.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        let mut waiting = self.unanswered.split_off(self.asked);
        waiting.retain(|spec| known.get(spec.name.as_str()) != Some(&spec));
        self.unanswered.append(&mut waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    fn declared(names: &[&str]) -> Declarations {
        let mut declarations = Declarations::default();
        names.iter().for_each(|name| declarations.add(spec(name, &[1]), Instant::now()));
        declarations
    }

    fn next(declarations: &mut Declarations) -> Vec<String> {
        let list = declarations.next_list(Instant::now()).unwrap_or_default();
        list.into_iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn one_list_is_on_its_way_and_what_is_declared_meanwhile_is_in_the_next() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        declarations.add(spec("b", &[1]), Instant::now());
        declarations.add(spec("c", &[1]), Instant::now());
        assert_eq!(declarations.next_list(Instant::now()), None);
        declarations.answered();
        assert_eq!(next(&mut declarations), ["b", "c"]);
        declarations.answered();
        assert_eq!(declarations.next_list(Instant::now()), None);
    }

    #[test]
    fn the_first_list_is_sent_at_once_and_the_next_after_a_pause() {
        let (mut declarations, start) = (declared(&["a"]), Instant::now());
        declarations.set_rank(Rank(0), 1000);
        let pause = 1000 * PAUSE_PER_WORKER;
        assert!(declarations.next_list(start).is_some());
        declarations.add(spec("b", &[1]), Instant::now());
        assert_eq!(declarations.due(start), None);
        declarations.answered();
        assert_eq!(declarations.due(start), Some(start + pause));
        assert_eq!(declarations.next_list(start + pause / 2), None);
        assert!(declarations.next_list(start + pause).is_some());
        declarations.answered();
        assert_eq!(declarations.due(start + pause), None);
        let later = start + 5 * pause;
        declarations.add(spec("c", &[1]), Instant::now());
        assert!(declarations.next_list(later).is_some());
        let mut other = Declarations::default();
        other.set_rank(Rank(7), 1000);
        other.add(spec("a", &[1]), start);
        other.add(spec("b", &[1]), start + pause);
        assert_eq!(other.due(start), Some(start + 2 * pause));
        other.entered(&[spec("a", &[1]), spec("b", &[1])]);
        assert_eq!(other.due(start), None);
    }

    #[test]
    fn what_the_table_has_meanwhile_is_not_sent() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        ["b", "c", "d"].iter().for_each(|name| declarations.add(spec(name, &[1]), Instant::now()));
        // That of the list on its way is no answer to it, and another spec of a name is none.
        declarations.entered(&[spec("a", &[1]), spec("b", &[1]), spec("c", &[2])]);
        assert_eq!(declarations.next_list(Instant::now()), None);
        declarations.answered();
        assert_eq!(next(&mut declarations), ["c", "d"]);
    }

    #[test]
    fn a_coordinator_that_is_another_gets_all_that_was_not_answered() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        declarations.add(spec("b", &[1]), Instant::now());
        declarations.forget_asked();
        assert_eq!(next(&mut declarations), ["a", "b"]);
    }

    #[test]
    fn a_list_is_bounded_in_tensors_and_bytes_and_has_at_least_one() {
        let names: Vec<String> = (0..MOST_LISTED + 3).map(|i| i.to_string()).collect();
        let mut declarations = declared(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(next(&mut declarations).len(), MOST_LISTED);
        declarations.answered();
        assert_eq!(next(&mut declarations).len(), 3);
        let long = "x".repeat(MOST_BYTES / 2);
        let mut declarations = declared(&[&long, &long, &long]);
        for _ in 0..3 {
            assert_eq!(next(&mut declarations).len(), 1);
            declarations.answered();
        }
        let longer = "x".repeat(2 * MOST_BYTES);
        assert_eq!(next(&mut declared(&[&longer])).len(), 1);
    }
}
