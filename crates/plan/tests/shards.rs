//! Shards cover a tensor, do not overlap, are balanced, and have one holder of each group.

use proptest::prelude::*;
use sumpter_plan::{SMALL_SHARD_BYTES, Shard, shard_cut, shard_turn, shards};
use sumpter_types::Rank;

const ITEM: u64 = 4;

fn ranks(ranks: &[u32]) -> Vec<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

/// Groups of so many holders, with ranks one after the other.
fn groups(sizes: &[u32]) -> Vec<Vec<Rank>> {
    let mut next = 0;
    let mut group = |size: &u32| {
        next += size;
        (next - size..next).map(Rank).collect()
    };
    sizes.iter().map(&mut group).collect()
}

#[test]
fn the_parts_are_equal_and_the_last_one_has_the_remainder() {
    let cut = shard_cut(100_003, ITEM, 4, 7);
    assert_eq!(cut, [0..100_000, 100_000..200_000, 200_000..300_000, 300_000..400_012]);
}

#[test]
fn a_small_tensor_is_held_by_the_one_whose_turn_it_is() {
    let small = SMALL_SHARD_BYTES * 3 / ITEM;
    let held = |elements, turn| shard_cut(elements, ITEM, 3, turn);
    assert_eq!(held(small, 4), [0..0, 0..small * ITEM, 0..0]);
    assert_eq!(held(small, 5), [0..0, 0..0, 0..small * ITEM]);
    assert!(held(small + 1, 4).iter().all(|bytes| !bytes.is_empty()));
    // Names spread them.
    let mut counts = [0; 4];
    for layer in 0..400 {
        counts[(shard_turn(&format!("layers.{layer}.bias")) % 4) as usize] += 1;
    }
    assert!(counts.iter().all(|count| (70..130).contains(count)), "{counts:?}");
}

#[test]
fn groups_of_different_sizes_are_cut_where_any_of_them_is() {
    let elements = 1_200_000;
    let all = shards(elements, 1, &groups(&[4, 3, 1]), 0);
    let found: Vec<_> = all.iter().map(|s| (s.bytes.start, s.holders.clone())).collect();
    let expected = [
        (0, ranks(&[0, 4, 7])),
        (300_000, ranks(&[1, 4, 7])),
        (400_000, ranks(&[1, 5, 7])),
        (600_000, ranks(&[2, 5, 7])),
        (800_000, ranks(&[2, 6, 7])),
        (900_000, ranks(&[3, 6, 7])),
    ];
    assert_eq!(found, expected);
    assert_eq!(all.last().unwrap().bytes.end, elements);
    // Ranks without a group hold all of it together.
    let whole = shards(elements, 1, &groups(&[1, 1, 1]), 5);
    assert_eq!(whole, [Shard { bytes: 0..elements, holders: ranks(&[0, 1, 2]) }]);
    assert_eq!(shards(0, ITEM, &groups(&[2, 2]), 0), []);
}

proptest! {
    #[test]
    fn shards_cover_a_tensor_and_each_has_one_holder_of_each_group(
        elements in 0u64..400_000,
        item in prop::sample::select(vec![1u64, 2, 4, 8]),
        sizes in prop::collection::vec(1u32..9, 1..6),
        turn: u64,
    ) {
        let groups = groups(&sizes);
        let all = shards(elements, item, &groups, turn);
        let mut end = 0;
        for (index, Shard { bytes, holders }) in all.iter().enumerate() {
            prop_assert!(bytes.start == end && bytes.end > bytes.start);
            prop_assert!(bytes.start % item == 0 && bytes.end % item == 0, "whole elements");
            prop_assert!(index == 0 || all[index - 1].holders != *holders, "as long as possible");
            prop_assert!(holders.is_sorted());
            for group in &groups {
                let held = holders.iter().filter(|rank| group.contains(rank)).count();
                prop_assert_eq!(held, 1);
            }
            end = bytes.end;
        }
        prop_assert_eq!(end, elements * item);
        // What a rank holds is one stretch, the one that its group's cut says.
        for group in &groups {
            let cut = shard_cut(elements, item, group.len() as u64, turn);
            for (rank, expected) in group.iter().zip(&cut) {
                let held: Vec<_> = all.iter().filter(|s| s.holders.contains(rank)).collect();
                prop_assert!(held.windows(2).all(|w| w[0].bytes.end == w[1].bytes.start));
                let bytes: u64 = held.iter().map(|s| s.bytes.end - s.bytes.start).sum();
                prop_assert_eq!(bytes, expected.end - expected.start);
                prop_assert!(bytes == 0 || held[0].bytes.start == expected.start);
            }
            // Balanced: none but the last holds an element more than another.
            let held = |at: usize| (cut[at].end - cut[at].start) / item;
            if elements * item > SMALL_SHARD_BYTES * group.len() as u64 {
                let last = group.len() - 1;
                prop_assert!((0..last).all(|at| held(at) == held(0)));
                prop_assert!(held(last) - held(0) < group.len() as u64);
            }
        }
    }
}
