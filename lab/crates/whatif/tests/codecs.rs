//! Codecs: cases computed by hand, the planner's prediction, and figures of the runtime's own
//! state machines in virtual time.

use sumpter_plan::{
    Architecture, Candidate, Cluster, CodedTensor, Compression, Cores, LocalChoice,
};
use sumpter_types::{CodecRates, Dtype};
use sumpter_whatif::{
    Addition, Bottleneck, Case, Codec, Layer, Machines, Profile, Tensor, WhatifError, simulate,
    simulate_on,
};

const MIB: u64 = 1 << 20;

/// Elements of `float32` and bytes of `int8` with the scale of a block.
const INT8: f64 = 1028.0 / 4096.0;

/// So fast that it takes no time.
const INSTANT: CodecRates = CodecRates { encode: 1e18, decode: 1e18, add: 1e18 };

fn rates(encode: f64, decode: f64, add: f64) -> CodecRates {
    CodecRates { encode, decode, add }
}

/// Gradients that are ready when a backward pass of no time ends.
fn profile(sizes: &[u64]) -> Profile {
    let tensor = |bytes: &u64| Tensor { layer: 0, bytes: *bytes, ready_s: 0.0 };
    let tensors = sizes.iter().map(tensor).collect();
    Profile::new(1.0, 0.0, vec![Layer { forward_s: None }], tensors, None).unwrap()
}

fn coded(profile: &Profile, codec: &str, rates: CodecRates) -> Profile {
    let codec = Codec::new(codec, rates, 1.0, 64 << 10).unwrap();
    profile.coded(&codec, &vec![Dtype::F32; profile.tensors().len()]).unwrap()
}

fn case(workers: u32, servers: u32, architecture: Architecture) -> Case {
    Case { workers, servers, architecture, bandwidth_gbps: 10.0, ..Case::default() }
}

fn overhead(profile: &Profile, case: &Case) -> f64 {
    simulate(profile, case).unwrap().overhead_s
}

fn near(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() < part, "{value}, not {expected}");
}

#[test]
fn a_ring_sends_codes_and_codes_what_it_sends() {
    // 305,000 blocks of 4,096 bytes.
    let bytes = 4096 * 305_000_u64;
    let plain = profile(&[bytes]);
    let (n, m) = (4.0, bytes as f64);
    let ring = case(4, 0, Architecture::Allreduce);
    let codec = coded(&plain, "int8", rates(4e9, 8e9, 5e9));
    let sent_s = 2.0 * m * 3.0 / n * INT8 / 1.25e9;
    // Three quarters are encoded, decoded and added, a quarter is encoded as a sum, all decoded.
    let coded_s = 0.75 * m * (1.0 / 4e9 + 1.0 / 5e9) + 0.25 * m / 4e9 + m / 8e9;
    near(overhead(&codec, &ring), sent_s + coded_s, 1e-9);

    let answers_plain = coded(&plain, "int8:two_way=false", rates(4e9, 8e9, 5e9));
    let sent_s = m * 0.75 * (1.0 + INT8) / 1.25e9;
    let coded_s = 0.75 * m * (1.0 / 4e9 + 1.0 / 5e9);
    near(overhead(&answers_plain, &ring), sent_s + coded_s, 1e-9);
    // One machine sends nothing, and so encodes nothing.
    assert_eq!(overhead(&codec, &case(1, 0, Architecture::Allreduce)), 0.0);
}

#[test]
fn a_ring_adds_what_is_not_coded_as_before() {
    let addition = Addition::new(vec![(1.0, 0.25)]).unwrap();
    let tensors = [4096 * 1000, 4096].map(|bytes| Tensor { layer: 0, bytes, ready_s: 0.0 });
    let layers = vec![Layer { forward_s: None }];
    let plain = Profile::new(1.0, 0.0, layers, tensors.to_vec(), Some(addition)).unwrap();
    let codec = coded(&plain, "bf16", INSTANT);
    let ring = case(2, 0, Architecture::Allreduce);
    let sent_s = (4096.0 * 1000.0 / 2.0 + 4096.0) / 1.25e9;
    near(overhead(&codec, &ring), sent_s + 0.25, 1e-9);
}

#[test]
fn a_codec_that_takes_no_time_is_a_ratio() {
    let plain = profile(&[32 * MIB; 4]);
    for (codec, part) in [("bf16", 0.5), ("int8", INT8), ("onebit", 132.0 / 4096.0)] {
        let instant = coded(&plain, codec, INSTANT);
        for (workers, servers) in [(2, 0), (4, 0), (4, 2), (4, 4), (8, 3)] {
            for architecture in [Architecture::Sumpter, Architecture::Ps] {
                if servers == 0 && architecture == Architecture::Ps {
                    continue;
                }
                // One partition at a time is encoded before it is sent: with little credit that
                // would show.
                let case = case(workers, servers, architecture);
                let ratio = Case { compression: 1.0 / part, ..case };
                near(overhead(&instant, &case), overhead(&plain, &ratio), 1e-3);
            }
        }
    }
}

#[test]
fn cores_are_the_limit_of_links_that_are_faster() {
    let bytes = 128 * MIB;
    let plain = profile(&[32 * MIB; 4]);
    let codec = coded(&plain, "int8", rates(4e9, 8e9, 5e9));
    let m = bytes as f64;
    for n in [2_u32, 4, 8] {
        let fast = Case { bandwidth_gbps: 1e5, ..case(n, 0, Architecture::Sumpter) };
        // Each machine encodes and decodes all, adds n contributions to its nth part, encodes it.
        let cores_s = m * (1.0 / 4e9 + 1.0 / 8e9 + 1.0 / 5e9 + 1.0 / 4e9 / f64::from(n));
        near(overhead(&codec, &fast), cores_s, 0.03);
        let outcome = simulate(&codec, &fast).unwrap();
        assert_eq!(outcome.bottleneck, Some(Bottleneck::Codec));
    }
    // Twice the cores take half the time.
    let two = Codec::new("int8", rates(4e9, 8e9, 5e9), 2.0, 0).unwrap();
    let two = plain.coded(&two, &[Dtype::F32; 4]).unwrap();
    let fast = Case { bandwidth_gbps: 1e5, ..case(4, 0, Architecture::Sumpter) };
    near(overhead(&codec, &fast), 2.0 * overhead(&two, &fast), 0.01);
}

#[test]
fn servers_that_add_are_a_limit_too() {
    // One CPU machine adds the contributions of four workers to all of it.
    let plain = profile(&[32 * MIB; 4]);
    let codec = coded(&plain, "int8", rates(20e9, 1e18, 5e9));
    let fast = Case { bandwidth_gbps: 1e5, ..case(4, 1, Architecture::Ps) };
    let m = 128.0 * MIB as f64;
    near(overhead(&codec, &fast), m * (4.0 / 5e9 + 1.0 / 20e9), 0.03);
}

#[test]
fn plain_answers_fill_their_way_of_the_links() {
    let plain = profile(&[32 * MIB; 4]);
    let one_way = coded(&plain, "int8:two_way=false", INSTANT);
    let case = case(4, 4, Architecture::Sumpter);
    let (m, rate) = (128.0 * MIB as f64, 1.25e9);
    let took = overhead(&one_way, &case);
    assert!((m / rate..1.05 * m / rate).contains(&took), "{took}");
    let both = overhead(&coded(&plain, "int8", INSTANT), &case);
    assert!(both < 0.3 * took, "{both} {took}");
}

#[test]
fn small_tensors_and_integers_travel_as_they_are() {
    let plain = profile(&[32 << 10; 64]);
    let case = case(4, 2, Architecture::Sumpter);
    let codec = coded(&plain, "int8", rates(1e6, 1e6, 1e6));
    assert_eq!(simulate(&codec, &case), simulate(&plain, &case));
    let large = profile(&[MIB; 4]);
    let codec = Codec::new("int8", rates(1e6, 1e6, 1e6), 1.0, 0).unwrap();
    let integers = large.coded(&codec, &[Dtype::I32; 4]).unwrap();
    assert_eq!(simulate(&integers, &case), simulate(&large, &case));
}

#[test]
fn sixteen_bit_gradients_have_half_the_bytes_to_save() {
    let plain = profile(&[32 * MIB; 4]);
    let codec = Codec::new("int8", INSTANT, 1.0, 0).unwrap();
    let narrow = plain.coded(&codec, &[Dtype::Bf16; 4]).unwrap();
    let ring = case(4, 0, Architecture::Allreduce);
    near(overhead(&narrow, &ring), overhead(&plain, &ring) * 2.0 * INT8, 1e-6);
}

#[test]
fn it_is_as_the_planner_predicts_by_which_a_job_decides() {
    let speed = rates(4e9, 8e9, 5e9);
    let bytes = 256 * MIB;
    for (workers, servers) in [(2, 0), (4, 0), (4, 2), (4, 4), (8, 4)] {
        for bandwidth_gbps in [1.0, 10.0, 25.0, 100.0] {
            let cluster = Cluster::uniform(workers, servers, bandwidth_gbps).unwrap();
            let cores =
                Cores { worker: 1.0, server: 1.0, add: f64::INFINITY, transport: f64::INFINITY };
            let model = Compression::new(&cluster, cores, 256 << 10).unwrap();
            let whole = CodedTensor { bytes, dtype: Dtype::F32 };
            let encoded = (bytes as f64 * INT8) as u64;
            let candidate = Candidate {
                codec: "int8".to_owned(),
                contribution_bytes: encoded,
                answer_bytes: encoded,
                encodes_sums: true,
                decodes_sums: true,
                rates: speed,
            };
            let predicted_s = model.coded(whole, &candidate).total_s();
            let plain = profile(&[32 * MIB; 8]);
            let case = Case { bandwidth_gbps, ..case(workers, servers, Architecture::Sumpter) };
            let took_s = overhead(&coded(&plain, "int8", speed), &case);
            println!(
                "n = {workers}, k = {servers}, {bandwidth_gbps} Gb/s: {took_s:.4} s, predicted \
                 {predicted_s:.4} s"
            );
            near(took_s, predicted_s, 0.02);
        }
    }
}

/// GPU machines, CPU machines, MiB of one tensor, seconds that the runtime's state machines took at
/// 200 Mb/s in virtual time (`tests/engine.rs`).
const ENGINE: [(u32, u32, u64, f64); 6] = [
    (2, 0, 64, 2.687),
    (2, 2, 64, 2.702),
    (4, 0, 64, 4.038),
    (4, 2, 64, 3.264),
    (8, 4, 64, 3.485),
    (8, 8, 64, 2.726),
];

#[test]
fn a_coded_tensor_takes_as_long_in_the_engine_as_one_of_as_many_bytes() {
    for (workers, servers, mib, engine_s) in ENGINE {
        // Blocks whose codes have the bytes of the tensor in the engine.
        let blocks = (mib * MIB) / 1028;
        let plain = profile(&[4096 * blocks]);
        let case = Case { bandwidth_gbps: 0.2, ..case(workers, servers, Architecture::Sumpter) };
        let model_s = overhead(&coded(&plain, "int8", rates(4e9, 8e9, 5e9)), &case);
        println!("n = {workers}, k = {servers}: {model_s:.3} s, in the engine {engine_s:.3} s");
        near(model_s, engine_s, 0.06);
    }
}

#[test]
fn links_inside_machines_carry_gradients_that_are_not_coded() {
    let toml = include_str!("../../../../examples/clusters/nvlink.toml");
    let machines = Machines::new(toml, LocalChoice::Rule).unwrap();
    let plain = profile(&[32 * MIB; 4]);
    let case = Case {
        bandwidth_gbps: machines.bandwidth_gbps(),
        ..case(machines.workers(), machines.servers(), Architecture::Sumpter)
    };
    let ratio = Case { compression: 1.0 / INT8, ..case };
    let instant = coded(&plain, "int8", INSTANT);
    let by_ratio = simulate_on(&plain, &machines, &ratio).unwrap().overhead_s;
    near(simulate_on(&instant, &machines, &case).unwrap().overhead_s, by_ratio, 1e-3);
    let free = overhead(&instant, &case);
    assert!(by_ratio > 1.2 * free, "links inside are no limit: {by_ratio} {free}");
}

#[test]
fn coded_tensors_have_flat_trees_in_racks() {
    // Two racks of four behind trunks of a quarter of their links: hubs send half as much.
    let toml = "[[rack]]\nname = \"rack\"\ncount = 2\noversubscription = 4.0\n\
                [[machine]]\nrole = \"gpu\"\nrack = \"rack\"\ncount = 4\nbandwidth_gbps = 10.0\n";
    let machines = Machines::new(toml, LocalChoice::Rule).unwrap();
    let plain = profile(&[32 * MIB; 4]);
    let case = case(8, 0, Architecture::Sumpter);
    let on = |profile: &Profile, case: &Case| simulate_on(profile, &machines, case).unwrap();
    let hubs_s = on(&plain, &case).overhead_s;
    let flat_s = on(&coded(&plain, "bf16", INSTANT), &case).overhead_s;
    // Four machines' contributions to the other rack's half, and its sums: 4 M over the trunk.
    let trunk_s = 4.0 * 128.0 * MIB as f64 * 0.5 / 1.25e9;
    assert!((0.95..1.1).contains(&(flat_s / trunk_s)), "{flat_s} {trunk_s}");
    assert!(hubs_s < flat_s, "{hubs_s} {flat_s}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let text = |error: WhatifError| error.to_string();
    let refused = |codec: &str, rates, cores| text(Codec::new(codec, rates, cores, 0).unwrap_err());
    assert!(refused("int9", INSTANT, 1.0).starts_with("no codec is called 'int9'"));
    assert!(refused("topk", INSTANT, 1.0).contains("k"));
    let slow = rates(4e9, 0.0, 5e9);
    let expected = "codec rate, decode is 0; expected a number of bytes per second above 0";
    assert_eq!(refused("int8", slow, 1.0), expected);
    assert_eq!(refused("int8", INSTANT, 0.0), "codec cores is 0; expected a number above 0");
    let topk = Codec::new("topk:k=1000000", INSTANT, 1.0, 0).unwrap();
    let plain = profile(&[MIB]);
    let error = text(plain.coded(&topk, &[Dtype::F32]).unwrap_err());
    assert!(error.contains("topk") && error.contains("1 to 262144"), "{error}");
    let error = text(plain.coded(&topk, &[]).unwrap_err());
    assert_eq!(error, "the number of types is 0; expected 1, one of each tensor");
}
