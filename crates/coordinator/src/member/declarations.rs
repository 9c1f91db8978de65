//! The tensors that a worker wants declared and that the coordinator has not judged.
//!
//! One list of them is on its way at a time. What is declared meanwhile waits for the answer, and
//! is not sent at all if the tensor table has it by then: with thousands of workers that declare
//! the same tensors, the busier the coordinator, the fewer and longer the lists it gets.

use std::collections::{HashMap, VecDeque};

use prost::Message as _;
use sumpter_types::TensorSpec;

use crate::codec::spec_to_proto;
use crate::proto;

/// Tensors of a list.
const MOST_LISTED: usize = 4096;
/// Bytes of a list, far below what a coordinator takes. Names are long, and so are lists of ranks.
const MOST_BYTES: usize = 1 << 20;

/// Whether a list may have so many tensors.
///
/// # Errors
/// In words, if it may not.
pub(crate) fn check_list(tensors: usize) -> Result<(), String> {
    match tensors {
        0..=MOST_LISTED => Ok(()),
        more => Err(format!("a declaration of {more} tensors at once, of at most {MOST_LISTED}")),
    }
}

/// In the order in which they were declared; the first are on their way.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    unanswered: VecDeque<TensorSpec>,
    asked: usize,
}

impl Declarations {
    /// The owner declares a tensor.
    pub fn add(&mut self, spec: TensorSpec) {
        self.unanswered.push_back(spec);
    }

    /// The next list to be sent, if none is on its way and there is something to declare.
    pub fn next_list(&mut self) -> Option<Vec<proto::TensorSpec>> {
        if self.asked > 0 {
            return None;
        }
        let (mut list, mut bytes) = (Vec::new(), 0);
        for spec in self.unanswered.iter().take(MOST_LISTED) {
            let spec = spec_to_proto(spec.clone());
            bytes += spec.encoded_len();
            if bytes > MOST_BYTES && !list.is_empty() {
                break;
            }
            list.push(spec);
        }
        self.asked = list.len();
        (!list.is_empty()).then_some(list)
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
        names.iter().for_each(|name| declarations.add(spec(name, &[1])));
        declarations
    }

    fn next(declarations: &mut Declarations) -> Vec<String> {
        let list = declarations.next_list().unwrap_or_default();
        list.into_iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn one_list_is_on_its_way_and_what_is_declared_meanwhile_is_in_the_next() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        declarations.add(spec("b", &[1]));
        declarations.add(spec("c", &[1]));
        assert_eq!(declarations.next_list(), None);
        declarations.answered();
        assert_eq!(next(&mut declarations), ["b", "c"]);
        declarations.answered();
        assert_eq!(declarations.next_list(), None);
    }

    #[test]
    fn what_the_table_has_meanwhile_is_not_sent() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        ["b", "c", "d"].iter().for_each(|name| declarations.add(spec(name, &[1])));
        // That of the list on its way is no answer to it, and another spec of a name is none.
        declarations.entered(&[spec("a", &[1]), spec("b", &[1]), spec("c", &[2])]);
        assert_eq!(declarations.next_list(), None);
        declarations.answered();
        assert_eq!(next(&mut declarations), ["c", "d"]);
    }

    #[test]
    fn a_coordinator_that_is_another_gets_all_that_was_not_answered() {
        let mut declarations = declared(&["a"]);
        assert_eq!(next(&mut declarations), ["a"]);
        declarations.add(spec("b", &[1]));
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
        assert!(check_list(MOST_LISTED).is_ok() && check_list(MOST_LISTED + 1).is_err());
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
