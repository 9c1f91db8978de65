//! Placement: partitions tile their tensor, all workers agree, every window is balanced.

use proptest::prelude::*;
use sumpter_plan::{Branch, Dealing, Exchange, GroupLevel, Level, Placement, Plan, TreePlan};

fn plan() -> impl Strategy<Value = Plan> {
    let server = (prop_oneof![1 => Just(0.0), 5 => 0.05..1.0_f64], 1..9_u32);
    let servers = proptest::collection::vec(server, 1..20)
        .prop_filter("a weight", |servers| servers.iter().any(|(weight, _)| *weight > 0.0));
    (0..9_u64, 1..5_u64, servers).prop_map(|(epoch, pages, servers)| {
        let (weights, lanes) = servers.into_iter().unzip();
        let (trees, dealing) = (TreePlan::flat(weights), Dealing::Balanced);
        Plan { epoch, partition_bytes: pages * 4096, lanes, trees, dealing }
    })
}

fn weights(plan: &Plan) -> &[f64] {
    &plan.trees.branches[0].roots
}

fn tensors() -> impl Strategy<Value = Vec<u64>> {
    let tensor = prop_oneof![Just(0), 1..64_u64, 1..40_000_u64, (1..40_u64).prop_map(|n| n * 4096)];
    proptest::collection::vec(tensor, 1..60)
}

proptest! {
    #[test]
    fn two_workers_fed_the_same_agree(plan in plan(), tensors in tensors()) {
        let mut first = Placement::new(&plan).unwrap();
        let mut second = Placement::new(&plan.clone()).unwrap();
        for bytes in tensors {
            prop_assert_eq!(first.place(bytes), second.place(bytes));
        }
        prop_assert_eq!(first.epoch(), plan.epoch);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn partitions_tile_the_tensor_in_order(plan in plan(), tensors in tensors()) {
        let mut placement = Placement::new(&plan).unwrap();
        for tensor_bytes in tensors {
            let places = placement.place(tensor_bytes);
            let mut end = 0;
            for (index, place) in places.iter().enumerate() {
                prop_assert_eq!(place.offset, end);
                end += place.bytes;
                let last = index + 1 == places.len();
                prop_assert!(place.bytes == plan.partition_bytes || last && place.bytes > 0);
                prop_assert!(place.bytes <= plan.partition_bytes);
                prop_assert!(weights(&plan)[place.server] > 0.0);
                prop_assert!(place.lane < plan.lanes[place.server] as usize);
                prop_assert_eq!(placement.trees()[place.tree].root, place.server);
            }
            prop_assert_eq!(end, tensor_bytes);
        }
    }

    #[test]
    fn blocks_are_not_cut(
        plan in plan(),
        tensors in tensors(),
        block in prop::sample::select(vec![2048u64, 4096, 8192, 12_288]),
    ) {
        let mut placement = Placement::new(&plan).unwrap();
        let mut plain = Placement::new(&plan).unwrap();
        let size = (plan.partition_bytes / block * block).max(block);
        for tensor_bytes in tensors {
            let places = placement.place_blocks(tensor_bytes, block);
            let mut end = 0;
            for (index, place) in places.iter().enumerate() {
                prop_assert_eq!((place.offset, place.offset % block), (end, 0));
                end += place.bytes;
                let last = index + 1 == places.len();
                prop_assert!(place.bytes == size || last && place.bytes > 0);
                prop_assert!(weights(&plan)[place.server] > 0.0);
            }
            prop_assert_eq!(end, tensor_bytes);
            let unaligned = plain.place(tensor_bytes);
            if plan.partition_bytes % block == 0 {
                prop_assert_eq!(places, unaligned);
            }
        }
    }

    #[test]
    fn every_prefix_is_balanced_over_servers_and_lanes(plan in plan(), tensors in tensors()) {
        let mut placement = Placement::new(&plan).unwrap();
        let total: f64 = weights(&plan).iter().sum();
        let largest = plan.partition_bytes as f64;
        let mut dealt = 0.0;
        let mut lanes: Vec<Vec<u64>> =
            plan.lanes.iter().map(|lanes| vec![0; *lanes as usize]).collect();
        for bytes in tensors {
            for place in placement.place(bytes) {
                dealt += place.bytes as f64;
                lanes[place.server][place.lane] += place.bytes;
                for (weight, lanes) in weights(&plan).iter().zip(&lanes) {
                    let exact = dealt * weight / total;
                    let given = lanes.iter().sum::<u64>() as f64;
                    prop_assert!((given - exact).abs() <= largest * (1.0 + 1e-6));
                }
            }
            for lanes in &lanes {
                let (least, most) = (lanes.iter().min(), lanes.iter().max());
                prop_assert!(most.unwrap() - least.unwrap() <= plan.partition_bytes);
            }
        }
    }
}

/// A worker admits 256 KiB ahead of what it has sent: the first partitions must not all go to the
/// servers with the largest shares, nor any later stretch of them.
#[test]
fn windows_of_a_tensor_are_balanced_by_the_size_it_is_cut_into() {
    let weights = [0.1, 0.1, 0.1, 0.1, 0.3, 0.3];
    let (trees, dealing) = (TreePlan::flat(weights.to_vec()), Dealing::Balanced);
    let plan = Plan { epoch: 1, partition_bytes: 1 << 20, lanes: vec![1; 6], trees, dealing };
    let mut placement = Placement::new(&plan).unwrap();
    for tensor_bytes in [512 << 20, 64 << 20, 64 << 20] {
        let places = placement.place(tensor_bytes);
        for window in places.windows(20) {
            for (server, weight) in weights.iter().enumerate() {
                let given = window.iter().filter(|place| place.server == server).count() as f64;
                assert!((given - 20.0 * weight).abs() <= 2.0, "{given} of 20 for {server}");
            }
        }
    }
}

#[test]
fn a_plan_that_cannot_be_followed_is_refused() {
    let message = |partition_bytes, (weight, lanes)| {
        let (trees, dealing) = (TreePlan::flat(vec![weight]), Dealing::Balanced);
        let plan = Plan { epoch: 0, partition_bytes, lanes, trees, dealing };
        Placement::new(&plan).unwrap_err().to_string()
    };
    let expected = "partition_bytes is 0; expected a positive multiple of 64";
    assert_eq!(message(0, (1.0, vec![1])), expected);
    assert!(message(100, (1.0, vec![1])).starts_with("partition_bytes is 100;"));
    let laneless = message(64, (1.0, vec![0]));
    assert_eq!(laneless, "lanes of server 0 is 0; expected a number from 1 to 4096");
    assert!(message(64, (0.0, vec![1])).starts_with("largest weight of a server is 0;"));
    assert!(message(64, (1.0, vec![1, 1])).starts_with("nodes of the trees is 1;"));
}

#[test]
fn every_partition_has_a_tree_and_there_are_few() {
    let racks = GroupLevel {
        level: Level::Rack,
        groups: (0..32).map(|server| Some(server / 8)).collect(),
        hubs: vec![1.0; 32],
    };
    let branch = Branch { exchange: Exchange::Star, roots: vec![1.0; 32], levels: vec![racks] };
    for dealing in [Dealing::Balanced, Dealing::Hashed] {
        let trees = TreePlan { branches: vec![branch.clone()] };
        let plan = Plan { epoch: 1, partition_bytes: 4096, lanes: vec![1; 32], trees, dealing };
        let mut placement = Placement::new(&plan).unwrap();
        let places = placement.place(4096 * 3200);
        let mut hubs = [0; 32];
        for place in &places {
            let tree = &placement.trees()[place.tree];
            assert_eq!((tree.root, tree.hubs[0][place.server / 8]), (place.server, place.server));
            tree.hubs[0].iter().for_each(|hub| hubs[*hub] += 1);
        }
        assert_eq!(hubs.iter().sum::<i32>(), 4 * 3200);
        if dealing == Dealing::Balanced {
            // One for each root: the hubs of alike racks advance together.
            assert_eq!(placement.trees().len(), 32);
            assert!(hubs.iter().all(|count| (396..=404).contains(count)), "{hubs:?}");
        }
    }
}

#[test]
fn large_tensors_are_cut_finer_the_more_servers_share_them() {
    let sizes = |partition_bytes: u64, servers: usize, tensor_bytes: u64| {
        let (trees, dealing) = (TreePlan::flat(vec![1.0; servers]), Dealing::Balanced);
        let lanes = vec![1; servers];
        let plan = Plan { epoch: 0, partition_bytes, lanes, trees, dealing };
        let places = Placement::new(&plan).unwrap().place(tensor_bytes);
        assert_eq!(places.iter().map(|place| place.bytes).sum::<u64>(), tensor_bytes);
        places[0].bytes
    };
    let (slow, fast) = (64 << 10, 256 << 10);
    // 256 for each server as far as a quarter of the largest size allows it,
    assert_eq!(sizes(slow, 2, 64 << 20), 64 << 10);
    assert_eq!(sizes(slow, 6, 64 << 20), 32 << 10);
    assert_eq!(sizes(fast, 2, 64 << 20), 128 << 10);
    assert_eq!(sizes(fast, 6, 64 << 20), 64 << 10);
    assert_eq!(sizes(fast, 2, 1 << 30), 256 << 10);
    // eight as far as the smallest allows it.
    assert_eq!(sizes(fast, 2, 1 << 20), 64 << 10);
    assert_eq!(sizes(fast, 8, 1 << 20), 32 << 10);
    assert_eq!(sizes(slow, 2, 1 << 20), 32 << 10);
    assert_eq!(sizes(fast, 2, 100), 100);
}

/// Where processors are the limit, few large partitions count for more than even shares.
#[test]
fn a_tensor_is_cut_no_finer_than_asked_while_every_server_gets_eight_partitions() {
    let (trees, dealing) = (TreePlan::flat(vec![1.0; 4]), Dealing::Balanced);
    let plan = Plan { epoch: 0, partition_bytes: 128 << 10, lanes: vec![1; 4], trees, dealing };
    let size = |even: u64, tensor_bytes: u64| {
        let mut placement = Placement::new(&plan).unwrap().cut_to(even);
        placement.place(tensor_bytes)[0].bytes
    };
    assert_eq!(size(32 << 10, 25 << 20), 32 << 10);
    assert_eq!(size(64 << 10, 25 << 20), 64 << 10);
    assert_eq!(size(128 << 10, 25 << 20), 128 << 10);
    assert_eq!(size(128 << 10, 1 << 20), 32 << 10);
}
