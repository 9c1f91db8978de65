//! Finds ranks that wait for different things, from what they say they are waiting for.
//!
//! Collectives of one group are numbered on every rank. Two ranks that wait in the same group at
//! the same number with different signatures can never meet: the program calls different
//! collectives. The tag `group#number|signature` carries what is needed to see that.

use std::collections::BTreeMap;

use sumpter_types::{PendingOp, Rank};

/// Younger operations are not compared: most are done before anyone could look.
const WORTH_A_LOOK_MS: u64 = 1000;

/// Two ranks that can never meet.
#[derive(Debug, PartialEq)]
pub(super) struct Disagreement {
    /// The group and number: what is reported once.
    pub place: String,
    /// The tensors of both ranks.
    pub names: Vec<String>,
    /// What to tell everyone.
    pub message: String,
}

/// Compares what `rank` waits for with what the others wait for.
pub(super) fn disagreements<'a>(
    rank: Rank,
    pending: &[PendingOp],
    others: impl Iterator<Item = (Rank, &'a [PendingOp])>,
) -> Vec<Disagreement> {
    let own: BTreeMap<&str, (&str, &PendingOp)> = pending.iter().filter_map(tagged).collect();
    let mut found = BTreeMap::new();
    for (other_rank, other_pending) in others.filter(|(other, _)| *other != rank) {
        for (place, (signature, op)) in other_pending.iter().filter_map(tagged) {
            let Some((own_signature, own_op)) = own.get(place) else { continue };
            if *own_signature != signature {
                found.entry(place).or_insert_with(|| {
                    let own = (rank, *own_signature, *own_op);
                    disagreement(place, own, (other_rank, signature, op))
                });
            }
        }
    }
    found.into_values().collect()
}

type Waiting<'a> = (Rank, &'a str, &'a PendingOp);

fn disagreement(place: &str, one: Waiting<'_>, other: Waiting<'_>) -> Disagreement {
    let (low, high) = if one.0 <= other.0 { (one, other) } else { (other, one) };
    let what = match place.rsplit_once('#') {
        Some((group, number)) => format!("collective #{number} of group '{group}'"),
        None => format!("collective '{place}'"),
    };
    let mut names = vec![low.2.name.clone(), high.2.name.clone()];
    names.dedup();
    let message = format!(
        "{what}: rank {} called {}, rank {} called {}; every rank must make the same calls in the \
         same order",
        low.0, low.1, high.0, high.1
    );
    Disagreement { place: place.to_owned(), names, message }
}

fn tagged(op: &PendingOp) -> Option<(&str, (&str, &PendingOp))> {
    let (place, signature) = op.tag.split_once('|')?;
    (op.since_ms >= WORTH_A_LOOK_MS).then_some((place, (signature, op)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(name: &str, tag: &str, since_ms: u64) -> PendingOp {
        PendingOp { name: name.into(), tag: tag.into(), since_ms, ..PendingOp::default() }
    }

    fn compare(one: &[PendingOp], other: &[PendingOp]) -> Vec<Disagreement> {
        disagreements(Rank(1), one, [(Rank(0), other), (Rank(1), one)].into_iter())
    }

    #[test]
    fn the_same_place_with_different_signatures_is_a_disagreement() {
        let one = [op("b", "world#12|all_reduce(float32 [12])", 2000)];
        let other = [op("a", "world#12|all_reduce(float32 [10])", 1500)];
        let found = compare(&one, &other);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "world#12");
        assert_eq!(found[0].names, ["a", "b"]);
        assert!(
            found[0].message.starts_with(
                "collective #12 of group 'world': rank 0 called all_reduce(float32 [10]), \
                 rank 1 called all_reduce(float32 [12])"
            ),
            "{}",
            found[0].message
        );
    }

    #[test]
    fn equal_calls_other_places_young_operations_and_free_text_are_not() {
        let old = |tag| [op("t", tag, 5000)];
        let young = [op("t", "world#1|b", 10)];
        assert_eq!(compare(&old("world#1|a"), &old("world#1|a")), []);
        assert_eq!(compare(&old("world#1|a"), &old("world#2|b")), []);
        assert_eq!(compare(&old("world#1|a"), &young), []);
        assert_eq!(compare(&young, &old("world#1|a")), []);
        assert_eq!(compare(&old("step 1"), &old("step 2")), []);
        assert_eq!(compare(&old(""), &old("")), []);
    }
}
