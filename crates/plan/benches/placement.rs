//! What planning reduction trees and placing a model cost: dealing its partitions to trees, and
//! these to lanes.
//!
//! All workers place each tensor once, before its first round. `cargo bench -p sumpter-plan`;
//! with `-- --test` every case runs once.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sumpter_plan::{
    Cluster, Dealer, Dealing, LaneAssigner, Machine, Placement, Plan, Role, Topology, TreePlan,
    largest_partition, plan_trees, server_weights,
};

const SERVERS: [usize; 4] = [16, 64, 256, 1024];
const PARTITION_BYTES: u64 = 1 << 20;
const LANES: u32 = 4;

/// Tensor sizes like ResNet-50's, in bytes of `f32`: bottleneck blocks of three convolutions with
/// their norms, one of them with a projection in each stage.
fn tensors() -> Vec<u64> {
    let mut elements = vec![64 * 3 * 49, 64, 64];
    let mut inputs = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            let out = 4 * width;
            for (kernel, channels) in
                [(inputs * width, width), (9 * width * width, width), (width * out, out)]
            {
                elements.extend([kernel, channels, channels]);
            }
            if block == 0 {
                elements.extend([inputs * out, out, out]);
            }
            inputs = out;
        }
    }
    elements.extend([inputs * 1000, 1000]);
    elements.iter().map(|count| 4 * count).collect()
}

fn place_a_model(criterion: &mut Criterion) {
    let tensors = tensors();
    let mut group = criterion.benchmark_group("place-a-model");
    for count in SERVERS {
        // A third of the servers have twice the weight, as CPU machines beside GPU machines do.
        let weight = |i: usize| if i.is_multiple_of(3) { 2.0 } else { 1.0 };
        let trees = TreePlan::flat((0..count).map(weight).collect());
        let (lanes, dealing) = (vec![LANES; count], Dealing::default());
        let plan = Plan { epoch: 1, partition_bytes: PARTITION_BYTES, lanes, trees, dealing };
        let place_all = |plan: &Plan| {
            let mut placement = Placement::new(plan).expect("a sound plan");
            tensors.iter().map(|bytes| placement.place(*bytes).len()).sum::<usize>()
        };
        let partitions = place_all(&plan);
        assert!(partitions >= tensors.len());
        group.throughput(Throughput::Elements(partitions as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| assert_eq!(place_all(black_box(&plan)), partitions));
        });
    }
    group.finish();
}

/// A thousand tensors of 4 MiB on 4,096 lanes: of a worker on each of 2,048 machines, and of 64
/// servers.
fn place_on_thousands(criterion: &mut Criterion) {
    let (workers, servers, lanes) = (2048, 64, 32);
    let machine = |role| Machine { role, bandwidth_gbps: 100.0, servers: 1 };
    let roles = std::iter::repeat_n(Role::Gpu, workers);
    let roles = roles.chain(std::iter::repeat_n(Role::Cpu, servers));
    let machines: Vec<Machine> = roles.map(machine).collect();
    let trees = TreePlan::flat(server_weights(&machines).expect("sound machines"));
    let lanes = [vec![1; workers], vec![lanes; servers]].concat();
    assert_eq!(lanes.iter().sum::<u32>(), 4096);
    let (partition_bytes, dealing) = (largest_partition(1 << 20, 1 << 20), Dealing::Balanced);
    let plan = Plan { epoch: 1, partition_bytes, lanes, trees, dealing };
    let mut group = criterion.benchmark_group("place-on-thousands");
    group.sample_size(10);
    group.bench_function("1000-tensors-4096-lanes", |bencher| {
        bencher.iter(|| {
            let mut placement = Placement::new(black_box(&plan)).expect("a sound plan");
            let places = (0..1000).flat_map(|_| placement.place(4 << 20));
            assert_eq!(places.map(|place| place.bytes).sum::<u64>(), 4000 << 20);
        });
    });
    group.finish();
}

fn deal_a_partition(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("deal-a-partition");
    for count in SERVERS {
        let weights: Vec<f64> = (0..count).map(|i| 1.0 + (i % 3) as f64).collect();
        let mut dealer = Dealer::new(&weights, PARTITION_BYTES).expect("sound weights");
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let server = dealer.deal(black_box(PARTITION_BYTES));
                assert!(server < count);
                server
            });
        });
    }
    group.finish();
}

fn assign_to_lanes(criterion: &mut Criterion) {
    let sizes: Vec<u64> = tensors();
    let total: u128 = sizes.iter().map(|bytes| u128::from(*bytes)).sum();
    let mut group = criterion.benchmark_group("assign-to-lanes");
    group.throughput(Throughput::Elements(sizes.len() as u64));
    for lanes in [2, 16, 64] {
        group.bench_function(BenchmarkId::from_parameter(lanes), |bencher| {
            bencher.iter(|| {
                let mut assigner = LaneAssigner::new(lanes);
                let assigned = assigner.assign(black_box(&sizes));
                assert_eq!(assigner.loads().iter().sum::<u128>(), total);
                assigned
            });
        });
    }
    group.finish();
}

/// 32 racks of 30 GPU and two CPU machines at 4:1: by the number of different racks, and last with
/// all machines different.
fn plan_racks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan-racks");
    group.sample_size(10);
    for kinds in [1, 4, 32, 1024] {
        let (mut machines, mut rack_of, mut trunks) = (Vec::new(), Vec::new(), Vec::new());
        for rack in 0..32_usize {
            let rack_gbps = 25.0 + (rack % kinds) as f64;
            let step = if kinds > 32 { 1e-2 } else { 0.0 };
            machines.extend((0..32).map(|at| Machine {
                role: if at < 30 { Role::Gpu } else { Role::Cpu },
                bandwidth_gbps: rack_gbps + step * f64::from(at),
                servers: 1,
            }));
            rack_of.resize(machines.len(), rack);
            trunks.push(8.0 * rack_gbps);
        }
        let cluster = Cluster::new(machines).expect("sound machines");
        let topology = Topology::new(cluster, rack_of, trunks, None).expect("sound racks");
        group.bench_function(BenchmarkId::from_parameter(kinds), |bencher| {
            bencher.iter(|| plan_trees(black_box(&topology)).expect("a plan"));
        });
    }
    group.finish();
}

criterion_group!(
    benches,
    plan_racks,
    place_a_model,
    place_on_thousands,
    deal_a_partition,
    assign_to_lanes
);
criterion_main!(benches);
