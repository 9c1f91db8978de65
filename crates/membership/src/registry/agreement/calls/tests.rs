use super::*;

fn op(name: &str, tag: &str, since_ms: u64) -> PendingOp {
    PendingOp { name: name.into(), tag: tag.into(), since_ms, ..PendingOp::default() }
}

fn old(name: &str, tag: &str) -> PendingOp {
    op(name, tag, 5000)
}

fn refused(name: &str, tag: &str) -> Vec<RefusedOp> {
    vec![RefusedOp { name: name.into(), tag: tag.into() }]
}

/// What ranks wait for, the tensors that were refused, and the calls that have failed.
#[derive(Default)]
struct Ranks {
    pending: Vec<Vec<PendingOp>>,
    refused: BTreeMap<usize, Vec<RefusedOp>>,
    tensors: BTreeMap<String, String>,
    failed: FailedCalls,
}

impl Ranks {
    fn of<const N: usize>(pending: [&[PendingOp]; N]) -> Self {
        let pending = pending.into_iter().map(<[_]>::to_vec).collect();
        Self { pending, ..Self::default() }
    }

    fn reports(&mut self, rank: usize) -> Vec<Unmatched> {
        let calls = |(index, pending)| {
            let refused = self.refused.get(&index).map_or(&[][..], Vec::as_slice);
            Calls { rank: Rank(index as u32), pending, refused }
        };
        let calls: Vec<Calls<'_>> =
            self.pending.iter().map(Vec::as_slice).enumerate().map(calls).collect();
        let tensors = &self.tensors;
        let found =
            self.failed.compare(&calls[rank], || calls.clone(), |name| tensors.get(name).cloned());
        let added = found.iter().map(|found| (found.tensor.clone(), found.message.clone()));
        self.tensors.extend(added);
        found
    }

    fn tensors_after_report(&mut self, rank: usize) -> Vec<String> {
        self.reports(rank).into_iter().map(|found| found.tensor).collect()
    }
}

#[test]
fn every_rank_that_waits_in_a_call_is_named_with_what_it_called() {
    let tens = [old("a", "world#12|all_reduce(float32 [10])")];
    let twelve = [old("b", "world#12|all_reduce(float32 [12])")];
    let young = [op("c", "world#12|barrier()", 10)];
    let mut ranks = Ranks::of([&tens, &twelve, &young, &tens]);
    let found = ranks.reports(1);
    let tensors: Vec<&str> = found.iter().map(|found| found.tensor.as_str()).collect();
    assert_eq!(tensors, ["a", "b", "c"]);
    for Unmatched { message, is_new, .. } in &found {
        assert!(is_new);
        assert_eq!(
            message,
            "collective #12 of group 'world': ranks 0, 3 called all_reduce(float32 [10]), rank 1 \
             called all_reduce(float32 [12]), rank 2 called barrier(); every rank must make the \
             same calls in the same order"
        );
    }
    assert_eq!(ranks.reports(0), []);
}

#[test]
fn a_rank_that_comes_late_to_a_failed_call_is_refused_at_once_and_named() {
    let (one, other) = ([old("a", "g#0|x")], [old("b", "g#0|y")]);
    let mut ranks = Ranks::of([&one, &other, &[]]);
    assert_eq!(ranks.tensors_after_report(0), ["a", "b"]);
    ranks.pending = vec![Vec::new(), Vec::new(), vec![op("c", "g#0|z", 1)]];
    let found = ranks.reports(2);
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].tensor, found[0].is_new), ("c", false));
    let message = &found[0].message;
    assert!(message.contains("rank 0 called x, rank 1 called y, rank 2 called z;"), "{message}");
}

#[test]
fn an_earlier_failure_is_named_only_where_not_all_ranks_know_it() {
    let message = |one: &str, other: &str| {
        let (one, other) = ([old("a", one)], [old("b", other)]);
        Ranks::of([&one, &other]).reports(0).remove(0).message
    };
    let both = message("g#8|x, after call #3 failed", "g#8|y, after call #3 failed");
    assert!(both.contains(": rank 0 called x, rank 1 called y;"), "{both}");
    let one = message("g#8|x, after call #3 failed", "g#8|x");
    let expected = ": rank 0 called x, after call #3 failed, rank 1 called x;";
    assert!(one.contains(expected), "{one}");
}

#[test]
fn all_rounds_of_a_failed_call_are_refused_and_no_other_call() {
    let gather = [old("p", "g#7|gather, root 0"), old("q", "g#7.1|gather, root 1")];
    let reduce = [old("r", "g#7|reduce"), old("s", "g#70|reduce"), old("t", "h#7|reduce")];
    let mut ranks = Ranks::of([&gather, &reduce, &gather]);
    assert_eq!(ranks.tensors_after_report(2), ["p", "q", "r"]);
}

#[test]
fn a_call_that_failed_at_once_on_one_rank_fails_on_those_that_wait_in_it() {
    let waits = [old("b!3", "bcast.b#4|x, after call #3 failed")];
    let mut ranks = Ranks::of([&waits, &[], &waits]);
    ranks.tensors.insert("b".into(), "tensor 'b': they differ".into());
    ranks.refused.insert(1, refused("b", "bcast.b#4|x"));
    let found = ranks.reports(1);
    assert_eq!(found.len(), 1);
    let message = &found[0].message;
    assert!(message.contains("ranks 0, 2 called x, after call #3 failed, rank 1 called x"));
    assert_eq!(ranks.reports(1), []);
}

#[test]
fn a_matched_call_that_fails_with_its_tensor_says_why() {
    let waits = [old("new", "g#9|x")];
    let mut ranks = Ranks::of([&waits, &[]]);
    ranks.tensors.insert("t".into(), "collective #5 of group 'g': they differ".into());
    ranks.refused.insert(1, refused("t", "g#9|x"));
    let found = ranks.reports(1);
    let reason = "collective #9 of group 'g': collective #5 of group 'g': they differ";
    assert_eq!((&*found[0].tensor, &*found[0].message), ("new", reason));
}

#[test]
fn equal_calls_other_positions_young_operations_and_free_text_are_no_mismatch() {
    let tensors = |one: PendingOp, other: PendingOp| {
        let (one, other) = ([one], [other]);
        Ranks::of([&one, &other]).tensors_after_report(0)
    };
    let equal: [String; 0] = [];
    assert_eq!(tensors(old("t", "g#1|a"), old("t", "g#1|a")), equal);
    assert_eq!(tensors(old("t", "g#1|a"), old("t", "g#2|b")), equal);
    assert_eq!(tensors(old("t", "g#1|a"), old("t", "g#1.1|b")), equal);
    assert_eq!(tensors(old("t", "g#1|a"), op("t", "g#1|b", 10)), equal);
    assert_eq!(tensors(op("t", "g#1|b", 10), old("t", "g#1|a")), equal);
    assert_eq!(tensors(old("t", "step 1"), old("t", "step 2")), equal);
    assert_eq!(tensors(old("t", ""), old("t", "")), equal);
}

#[test]
fn only_the_last_failed_calls_are_remembered() {
    let mut failed = FailedCalls::default();
    for number in 0..MAX_CALLS + 2 {
        let text = format!("g#{number}|s");
        assert!(failed.add(&Tag::parse(&text).unwrap(), || None));
    }
    assert_eq!((failed.calls.len(), failed.order.len()), (MAX_CALLS, MAX_CALLS));
    let is_known = |text| failed.calls.contains_key(Tag::parse(text).unwrap().call);
    assert!(!is_known("g#1|s") && is_known("g#2|s"));
}
