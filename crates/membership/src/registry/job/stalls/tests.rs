use proptest::collection::vec;
use proptest::prelude::*;
use sumpter_types::{Rank, Rule, Suspicion};

use super::*;
use crate::registry::agreement::tensors::TensorTable;
use crate::registry::tests::spec;

const LIMIT: Duration = Duration::from_secs(10);

/// A worker as the coordinator knows it.
#[derive(Clone, Debug, Default)]
struct Said {
    pending: Vec<PendingOp>,
    begun: Vec<u64>,
    still_s: u64,
    silent_s: Option<u64>,
}

fn waits(name: &str, round: u64, seconds: u64) -> PendingOp {
    PendingOp { name: name.into(), since_ms: seconds * 1000, round, ..PendingOp::default() }
}

fn table(specs: impl IntoIterator<Item = TensorSpec>, ranks: u32) -> TensorTable {
    let mut table = TensorTable::default();
    for spec in specs {
        let by = spec.ranks.first().copied().unwrap_or(Rank(0));
        table.declare(by, spec, ranks);
    }
    table
}

fn find_in(said: &[Said], table: &TensorTable) -> Option<Stall> {
    let hosts: Vec<String> = (0..said.len()).map(|rank| format!("gpu{rank}")).collect();
    let reports: Vec<Report<'_>> = said
        .iter()
        .enumerate()
        .map(|(rank, said)| Report {
            rank: Rank(rank as u32),
            host: &hosts[rank],
            pending: &said.pending,
            begun: &said.begun,
            still: Duration::from_secs(said.still_s),
            silent: said.silent_s.map(Duration::from_secs),
        })
        .collect();
    find(&reports, table, LIMIT)
}

/// Ranks 0 and 1 wait for round 3 of a tensor, which rank 2 has not begun.
fn one_is_late() -> Vec<Said> {
    let waiter =
        |s| Said { pending: vec![waits("w", 3, s)], begun: vec![4], still_s: s, ..Said::default() };
    vec![waiter(12), waiter(11), Said { begun: vec![3], still_s: 40, ..Said::default() }]
}

#[test]
fn a_rank_that_has_not_begun_is_named_with_its_host_the_tensor_and_the_time() {
    let table = table([spec("w", &[1])], 3);
    let stall = find_in(&one_is_late(), &table).unwrap();
    assert_eq!(stall.missing, [Rank(2)]);
    assert_eq!(
        stall.message(),
        "waiting for rank 2 (host gpu2) on 'w' since 12 s: it has not begun this round; 2 others \
         have"
    );
    let mut said = one_is_late();
    said[2].silent_s = Some(5);
    let message = find_in(&said, &table).unwrap().message();
    assert!(message.ends_with("2 others have; rank 2 has been silent for 5 s"), "{message}");
    said[2].silent_s = None;
    said[2].pending = vec![waits("other", 0, 9)];
    let message = find_in(&said, &table).unwrap().message();
    assert!(message.ends_with("rank 2 itself waits on 'other' since 9 s"), "{message}");
    said[1] = said[2].clone();
    let message = find_in(&said, &table).unwrap().message();
    let both = "waiting for rank 1 (host gpu1), rank 2 (host gpu2) on 'w' since 12 s: they have \
                not begun this round; 1 other has";
    assert!(message.starts_with(both), "{message}");
}

#[test]
fn what_all_have_begun_waits_for_the_lane_that_its_most_suspicious_waiter_names() {
    let mut said = one_is_late();
    said[2] = Said { begun: vec![4], pending: vec![waits("w", 3, 10)], still_s: 10, ..said[2] };
    said[0].pending[0].waits_for = "lane 0 of server 7 on cpu1: connected".into();
    said[2].pending[0].waits_for = "lane 1 of server 7 on cpu1: not connected since 4 s".into();
    said[2].pending[0].suspicion = Suspicion::NotConnected;
    let stall = find_in(&said, &table([spec("w", &[1])], 3)).unwrap();
    assert_eq!(stall.missing, []);
    assert_eq!(
        stall.message(),
        "waiting on 'w' since 10 s: all 3 ranks have begun this round; rank 2 (host gpu2) waits \
         for lane 1 of server 7 on cpu1: not connected since 4 s"
    );
}

#[test]
fn a_workers_words_stay_within_one_line() {
    let mut said = one_is_late();
    said.truncate(2);
    said[0].pending[0].waits_for = format!("a\nb\x1b{}", "c".repeat(10_000));
    let message = find_in(&said, &table([spec("w", &[1])], 2)).unwrap().message();
    assert!(message.len() < 500 && message.contains("waits for abccc"), "{message}");
}

#[test]
fn short_waits_ranks_that_still_move_and_unknown_tensors_are_nothing_to_tell() {
    let table_of = |name: &str| table([spec(name, &[1])], 3);
    assert!(find_in(&one_is_late(), &table_of("w")).is_some());
    assert_eq!(find_in(&one_is_late(), &table_of("another")), None);
    let mut moving = one_is_late();
    moving[2].still_s = 2;
    assert_eq!(find_in(&moving, &table_of("w")), None);
    let mut young = one_is_late();
    young.iter_mut().flat_map(|said| &mut said.pending).for_each(|op| op.since_ms = 9_999);
    assert_eq!(find_in(&young, &table_of("w")), None);
}

#[test]
fn a_broadcast_waits_for_its_root_and_then_for_all() {
    let spec = TensorSpec { collective: Collective::Broadcast, root: Rank(1), ..spec("b", &[1]) };
    let table = table([spec], 3);
    let begun = |n| Said { begun: vec![n], still_s: 60, ..Said::default() };
    let waiting = Said { pending: vec![waits("b", 0, 20)], ..begun(1) };
    let missing = |said: &[Said]| find_in(said, &table).unwrap().missing;
    assert_eq!(missing(&[waiting.clone(), begun(0), begun(0)]), [Rank(1)]);
    // Rank 2 may be on the machine of rank 0: the two receive it together.
    assert_eq!(missing(&[waiting.clone(), begun(1), begun(0)]), [Rank(2)]);
    assert_eq!(missing(&[waiting.clone(), begun(1), begun(1)]), []);
    assert_eq!(missing(&[begun(1), waiting, begun(0)]), [Rank(2)]);
}

#[test]
fn a_wait_is_told_with_doubling_pauses_and_its_end_once() {
    let table = table([spec("w", &[1])], 3);
    let mut watch = StallWatch::default();
    let mut told = Vec::new();
    for now in 100..=200 {
        let said: Vec<Said> = one_is_late()
            .into_iter()
            .map(|said| Said {
                pending: said.pending.iter().map(|_| waits("w", 3, now - 100)).collect(),
                ..said
            })
            .map(|said| Said { still_s: 1000, ..said })
            .collect();
        let stall = find_in(&said, &table);
        let lines = watch.lines(Duration::from_secs(now), stall.as_ref());
        told.extend(lines.iter().map(|line| (now - 100, line.over)));
    }
    assert_eq!(told, [(10, false), (20, false), (40, false), (80, false)]);
    let message = "no longer waiting for rank 2 (host gpu2) on 'w': that took 101 s".to_owned();
    let over = Line { message, over: true };
    assert_eq!(watch.lines(Duration::from_secs(201), None), [over]);
    assert_eq!(watch.lines(Duration::from_secs(202), None), []);
}

#[test]
fn another_round_is_another_wait() {
    let table = table([spec("w", &[1])], 3);
    let mut watch = StallWatch::default();
    let first = find_in(&one_is_late(), &table);
    let mut later = one_is_late();
    later.iter_mut().for_each(|said| said.begun[0] += 1);
    later.iter_mut().flat_map(|said| &mut said.pending).for_each(|op| op.round += 1);
    let second = find_in(&later, &table);
    assert_eq!(watch.lines(Duration::from_secs(20), first.as_ref()).len(), 1);
    let lines = watch.lines(Duration::from_secs(21), second.as_ref());
    assert_eq!(lines.iter().map(|line| line.over).collect::<Vec<_>>(), [true, false]);
}

/// Tensors of all kinds and groups, and how many operations of each every rank has begun.
fn jobs() -> impl Strategy<Value = (Vec<TensorSpec>, Vec<Said>)> {
    let tensor = (0..Collective::ALL.len(), 0..4u32, any::<bool>());
    (vec(tensor, 1..4), 2..5u32).prop_flat_map(|(tensors, ranks)| {
        let specs: Vec<TensorSpec> = tensors
            .into_iter()
            .enumerate()
            .map(|(i, (kind, root, all))| {
                let group = if all { 0..0 } else { 0..ranks - 1 };
                let members = if all { ranks } else { ranks - 1 };
                let collective = Collective::ALL[kind];
                TensorSpec {
                    collective,
                    rule: (collective == Collective::Update).then_some(Rule::Adagrad),
                    root: Rank(root % members),
                    ranks: group.map(Rank).collect(),
                    ..spec(&format!("t{i}"), &[1])
                }
            })
            .collect();
        let said = (vec(0..3u64, specs.len()), vec(proptest::option::of(0..30u64), specs.len()));
        let said = (said, 0..30u64).prop_map(|((begun, ages), still_s)| {
            let pending = begun.iter().zip(ages).enumerate().filter_map(|(i, (begun, age))| {
                Some(waits(&format!("t{i}"), begun.checked_sub(1)?, age?))
            });
            Said { pending: pending.collect(), begun, still_s, silent_s: None }
        });
        (Just(specs), vec(said, ranks as usize))
    })
}

/// Who has not begun what `waiter` waits for, by the definition.
fn late(said: &[Said], specs: &[TensorSpec], waiter: usize, op: &PendingOp) -> Vec<Rank> {
    let index = specs.iter().position(|spec| spec.name == op.name).unwrap();
    let spec = &specs[index];
    let takes_part = |rank: usize| spec.ranks.is_empty() || spec.ranks.contains(&Rank(rank as u32));
    let is_root = |rank: usize| spec.root == Rank(rank as u32);
    let root_is_late = said[spec.root.0 as usize].begun[index] <= op.round;
    let needed = |rank: usize| match spec.collective {
        Collective::Broadcast if !is_root(waiter) && root_is_late => is_root(rank),
        _ => takes_part(rank),
    };
    let late = (0..said.len()).filter(|r| needed(*r) && said[*r].begun[index] <= op.round);
    late.map(|rank| Rank(rank as u32)).collect()
}

proptest! {
    /// The ranks named are exactly those that have not begun, and a wait names at least one.
    #[test]
    fn who_is_named_is_exactly_who_has_not_begun((specs, said) in jobs()) {
        let found = find_in(&said, &table(specs.clone(), said.len() as u32));
        let waits = said.iter().enumerate().flat_map(|(rank, said)| {
            said.pending.iter().map(move |op| (rank, op))
        });
        let still = |rank: &Rank| said[rank.0 as usize].still_s;
        let mut longest = 0;
        let mut causes = Vec::new();
        for (rank, op) in waits {
            let late = late(&said, &specs, rank, op);
            let waited = match late.iter().map(still).max() {
                Some(still) => still.min(op.since_ms / 1000),
                None => said[rank].still_s.min(op.since_ms / 1000),
            };
            if !late.is_empty() {
                longest = longest.max(waited);
            }
            causes.push((op.name.clone(), op.round, late));
        }
        match &found {
            None => prop_assert!(longest < LIMIT.as_secs(), "{longest} s and nothing said"),
            Some(stall) => {
                prop_assert!(stall.waited >= LIMIT);
                prop_assert!(stall.waited.as_secs() >= longest);
                let cause = (stall.tensor.clone(), stall.round, stall.missing.clone());
                prop_assert!(causes.contains(&cause), "{cause:?} of {causes:?}");
                for rank in 0..said.len() as u32 {
                    let named = stall.subject.contains(&format!("rank {rank} "));
                    prop_assert_eq!(named, stall.missing.contains(&Rank(rank)));
                }
            }
        }
    }
}
