//! Whether codecs pay: cases computed by hand, and what holds for all.

use proptest::prelude::*;
use sumpter_plan::{
    Candidate, Cluster, CodedTensor, Compression, Cores, LEAST_CODED_BYTES, LEAST_GAIN, Why,
};
use sumpter_types::{CodecRates, Dtype};

const MIB: u64 = 1 << 20;

fn cores(worker: f64) -> Cores {
    Cores { worker, server: worker, add: 8e9, transport: f64::INFINITY }
}

fn tensor(bytes: u64) -> CodedTensor {
    CodedTensor { bytes, dtype: Dtype::F32 }
}

/// A codec that makes a part of the bytes, with one rate for all it does.
fn candidate(bytes: u64, part: f64, rate: f64) -> Candidate {
    let coded = (bytes as f64 * part) as u64;
    Candidate {
        codec: "int8".to_owned(),
        contribution_bytes: coded,
        answer_bytes: coded,
        encodes_sums: true,
        decodes_sums: true,
        rates: CodecRates { encode: rate, decode: rate, add: rate },
    }
}

fn model(workers: u32, servers: u32, gbps: f64, cores: Cores) -> Compression {
    let cluster = Cluster::uniform(workers, servers, gbps).unwrap();
    Compression::new(&cluster, cores, 256 << 10).unwrap()
}

#[test]
fn four_workers_alone_are_as_computed_by_hand() {
    // 8 Gb/s are 1e9 bytes a second; each machine reduces a quarter: 1.5 tensors each way.
    let bytes = 1_000_000_000;
    let model = model(4, 0, 8.0, cores(2.0));
    let plain = model.plain(tensor(bytes));
    assert!((plain.link_s - 1.5).abs() < 1e-9, "{plain:?}");
    // Three additions of a quarter at 8 GB/s, on two cores.
    assert!((plain.cores_s - 0.75 / 8.0 / 2.0).abs() < 1e-9, "{plain:?}");
    assert!((plain.chunk_s - 262_144.0 * (2.0 / 1e9 + 1.0 / 8e9)).abs() < 1e-9, "{plain:?}");

    let codec = candidate(bytes, 0.25, 5e9);
    let coded = model.coded(tensor(bytes), &codec);
    assert!((coded.link_s - 0.375).abs() < 1e-9, "{coded:?}");
    // It encodes and decodes all; of its quarter it adds four contributions and encodes the sum.
    assert!((coded.cores_s - (2.0 + 0.25 * 5.0) / 5.0 / 2.0).abs() < 1e-9, "{coded:?}");
    let chunk_s = 262_144.0 * (0.5 / 1e9 + 4.0 / 5e9);
    assert!((coded.chunk_s - chunk_s).abs() < 1e-9, "{coded:?}");

    let choice = model.choose(tensor(bytes), &[codec]);
    assert_eq!(choice.codec.as_deref(), Some("int8"));
    let text = "int8: 375.34 ms a round instead of 1.50 s, 4.00 times as fast (link 375.00 ms, \
                cores 325.00 ms, one chunk 340.8 us)";
    assert_eq!(choice.to_string(), text);
}

#[test]
fn plain_answers_and_cpu_machines_are_as_computed_by_hand() {
    // Of four GPU and four CPU machines the CPU machines reduce all, a quarter each.
    let bytes = 1_000_000_000;
    let model = model(4, 4, 8.0, cores(1.0));
    let one_way = Candidate {
        answer_bytes: bytes,
        encodes_sums: false,
        decodes_sums: false,
        ..candidate(bytes, 0.25, 5e9)
    };
    let coded = model.coded(tensor(bytes), &one_way);
    // Answers fill the links of the CPU machines, one whole tensor each.
    assert!((coded.link_s - 1.0).abs() < 1e-9, "{coded:?}");
    // A worker encodes all, a CPU machine adds four contributions of a quarter.
    assert!((coded.cores_s - 0.2).abs() < 1e-9, "{coded:?}");
    let two_way = model.coded(tensor(bytes), &candidate(bytes, 0.25, 5e9));
    assert!((two_way.link_s - 0.25).abs() < 1e-9, "{two_way:?}");
    assert!((two_way.cores_s - 0.4).abs() < 1e-9, "{two_way:?}");
}

#[test]
fn links_that_differ_are_as_slow_as_the_slowest() {
    use sumpter_plan::{Machine, Role};
    let machine = |role, bandwidth_gbps| Machine { role, bandwidth_gbps, servers: 1 };
    let machines = [8.0, 8.0, 2.0].map(|gbps| machine(Role::Gpu, gbps)).to_vec();
    let cluster = Cluster::new(machines).unwrap();
    let model = Compression::new(&cluster, cores(1.0), 256 << 10).unwrap();
    let time = model.plain(tensor(250_000_000));
    // The slow machine reduces nothing and sends its tensor at 0.25e9 bytes a second.
    assert!((time.link_s - 1.0).abs() < 1e-9, "{time:?}");
}

#[test]
fn what_must_not_be_compressed_is_left_alone_and_says_why() {
    let model = model(4, 0, 1.0, cores(1.0));
    let free = |bytes| [candidate(bytes, 0.01, 1e15)];
    let small = LEAST_CODED_BYTES - 4;
    let choice = model.choose(tensor(small), &free(small));
    assert_eq!(choice.codec, None);
    assert_eq!(choice.to_string(), "not compressed: 65532 bytes are fewer than 65536");
    let integers = CodedTensor { bytes: MIB, dtype: Dtype::I32 };
    let choice = model.choose(integers, &free(MIB));
    assert_eq!(choice.to_string(), "not compressed: its elements are int32, not floats");
    let choice = model.choose(tensor(MIB), &[]);
    assert_eq!(choice.to_string(), "not compressed: no codec is to be considered");
    let choice = model.choose(tensor(MIB), &[candidate(MIB, 1.0, 1e15)]);
    assert_eq!((choice.codec, choice.why), (None, Why::NoFewerBytes));

    let alone = Compression::new(&Cluster::uniform(1, 0, 1.0).unwrap(), cores(1.0), 1 << 18);
    let choice = alone.unwrap().choose(tensor(MIB), &free(MIB));
    assert_eq!(choice.to_string(), "not compressed: it does not cross the network");

    let smaller = model.with_least_bytes(1024);
    assert!(smaller.choose(tensor(small), &free(small)).codec.is_some());
}

#[test]
fn of_codecs_that_take_the_same_time_the_first_is_chosen() {
    let bytes = 256 * MIB;
    // The cores are the limit of both.
    let model = model(4, 0, 10.0, cores(1.0));
    let named =
        |codec: &str, part| Candidate { codec: codec.to_owned(), ..candidate(bytes, part, 6e9) };
    let both = [named("int8", 0.25), named("onebit", 0.03)];
    let choice = model.choose(tensor(bytes), &both);
    assert_eq!(choice.codec.as_deref(), Some("int8"), "{choice}");
    let slow = model_at(0.1);
    assert_eq!(slow.choose(tensor(bytes), &both).codec.as_deref(), Some("onebit"));
}

fn model_at(gbps: f64) -> Compression {
    model(4, 0, gbps, cores(1.0))
}

#[test]
fn a_link_that_is_faster_than_the_cores_gets_no_codec_and_the_reason() {
    let bytes = 64 * MIB;
    let choice = model_at(400.0).choose(tensor(bytes), &[candidate(bytes, 0.25, 3e9)]);
    assert_eq!((choice.codec.as_deref(), choice.why), (None, Why::Cores));
    assert!(choice.to_string().ends_with("the cores are the limit"), "{choice}");
    assert!(choice.to_string().starts_with("not compressed: 6.3"), "{choice}");
}

#[test]
fn sixteen_bit_elements_take_half_the_bytes_and_the_same_time_for_each() {
    let model = model_at(1.0);
    let codec = candidate(MIB, 0.5, 4e9);
    let narrow = CodedTensor { bytes: MIB, dtype: Dtype::Bf16 };
    let (one, other) = (model.coded(tensor(MIB), &codec), model.coded(narrow, &codec));
    assert_eq!(other.link_s, one.link_s);
    assert!((other.cores_s / one.cores_s - 2.0).abs() < 1e-12);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let cluster = Cluster::uniform(2, 0, 1.0).unwrap();
    let text = |cores, chunk| Compression::new(&cluster, cores, chunk).unwrap_err().to_string();
    let none = Cores { worker: 0.0, ..cores(1.0) };
    assert_eq!(text(none, 1), "cores of a GPU machine is 0; expected a number above 0");
    let unknown = Cores { add: f64::NAN, ..cores(1.0) };
    assert_eq!(text(unknown, 1), "bytes added a second is NaN; expected a number above 0");
    assert_eq!(text(cores(1.0), 0), "chunk_bytes is 0; expected one byte or more");
    let shares = Compression::with_shares(&cluster, &[1.0], cores(1.0), 1);
    let expected = "the number of shares is 1; expected 2, one of each machine";
    assert_eq!(shares.unwrap_err().to_string(), expected);
}

/// A cluster without a bandwidth, cores, tensor, part of the bytes and rates.
fn questions() -> impl Strategy<Value = (u32, u32, Cores, u64, f64, CodecRates)> {
    let rate = || 1e8..5e10_f64;
    let cores = (0.5..8.0_f64, 0.5..8.0_f64, rate(), 1e9..1e11_f64);
    let cores =
        cores.prop_map(|(worker, server, add, transport)| Cores { worker, server, add, transport });
    // Decoding and adding is not faster than adding.
    let rates = (rate(), rate(), 0.1..1.0_f64);
    (1..12_u32, 0..12_u32, cores, 16..(1_u64 << 20), 0.01..0.9_f64, rates).prop_map(
        |(workers, servers, cores, blocks, part, (encode, decode, slower))| {
            let rates = CodecRates { encode, decode, add: cores.add * slower };
            (workers, servers, cores, 4096 * blocks, part, rates)
        },
    )
}

proptest! {
    #[test]
    fn a_codec_that_pays_pays_on_every_slower_link(
        (workers, servers, cores, bytes, part, rates) in questions(),
        gbps in 0.1..400.0_f64,
        slower in 0.01..1.0_f64,
    ) {
        let candidates = [Candidate { rates, ..candidate(bytes, part, 1.0) }];
        let at = |gbps| model(workers, servers, gbps, cores).choose(tensor(bytes), &candidates);
        let (fast, slow) = (at(gbps), at(gbps * slower));
        prop_assert!(fast.codec.is_none() || slow.codec.is_some(), "{fast}\n{slow}");
        // And a faster link is never slower, with a codec or without.
        prop_assert!(fast.plain.total_s() <= slow.plain.total_s());
        if let (Some((_, fast)), Some((_, slow))) = (fast.coded, slow.coded) {
            prop_assert!(fast.total_s() <= slow.total_s());
        }
    }

    #[test]
    fn cores_that_are_slower_than_the_link_never_encode(
        (workers, servers, cores, bytes, part, rates) in questions(),
        gbps in 0.1..400.0_f64,
    ) {
        let candidates = [Candidate { rates, ..candidate(bytes, part, 1.0) }];
        let choice = model(workers, servers, gbps, cores).choose(tensor(bytes), &candidates);
        if let Some((_, coded)) = choice.coded
            && coded.cores_s >= choice.plain.total_s()
        {
            prop_assert_eq!(choice.codec, None);
        }
    }

    #[test]
    fn no_choice_takes_longer_than_the_best_by_more_than_the_margin(
        (workers, servers, cores, bytes, part, rates) in questions(),
        others in proptest::collection::vec((0.01..1.2_f64, 1e8..5e10_f64), 0..4),
        gbps in 0.1..400.0_f64,
    ) {
        let mut candidates = vec![Candidate { rates, ..candidate(bytes, part, 1.0) }];
        for (index, (part, rate)) in others.into_iter().enumerate() {
            let codec = format!("codec{index}");
            candidates.push(Candidate { codec, ..candidate(bytes, part, rate) });
        }
        let model = model(workers, servers, gbps, cores);
        let choice = model.choose(tensor(bytes), &candidates);
        let times = candidates.iter().map(|one| model.coded(tensor(bytes), one).total_s());
        let best_s = times.fold(choice.plain.total_s(), f64::min);
        let of = |codec: &String| candidates.iter().find(|one| one.codec == *codec).unwrap();
        let chosen_s = match &choice.codec {
            Some(codec) => model.coded(tensor(bytes), of(codec)).total_s(),
            None => choice.plain.total_s(),
        };
        prop_assert!(chosen_s <= best_s / (1.0 - LEAST_GAIN) * (1.0 + 1e-12), "{choice}");
    }

    #[test]
    fn small_tensors_are_left_alone_however_slow_the_link(
        (workers, servers, cores, _, part, rates) in questions(),
        bytes in 1..LEAST_CODED_BYTES,
        gbps in 1e-3..400.0_f64,
    ) {
        let candidates = [Candidate { rates, ..candidate(bytes, part, 1.0) }];
        let choice = model(workers, servers, gbps, cores).choose(tensor(bytes), &candidates);
        prop_assert_eq!(choice.codec, None);
        prop_assert_eq!(choice.why, Why::Small { bytes, least: LEAST_CODED_BYTES });
    }
}
