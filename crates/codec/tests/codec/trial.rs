//! Codecs on memory of their own: what is timed is what a round does, by the clock that is given.

use sumpter_codec::{Phase, Registry, Spec, Traffic, Trial};
use sumpter_types::Dtype;

const ALL: [&str; 13] = [
    "fp16",
    "bf16",
    "int8",
    "int8:scale=shared",
    "fp8",
    "onebit",
    "topk:k=0.01",
    "randomk:k=0.01",
    "dithering",
    "dithering:bits=8,normalize=l2,ef=true",
    "powersgd:rank=2",
    "int8:momentum=0.9",
    "onebit:ef=false,momentum=0.5,two_way=false",
];

fn trial(codec: &str, elements: usize) -> Trial {
    let spec: Spec = codec.parse().unwrap();
    Trial::new(&Registry::new(), &spec, elements).unwrap()
}

#[test]
fn every_phase_of_every_codec_can_be_timed() {
    for codec in ALL {
        let mut trial = trial(codec, 4096);
        for phase in [Phase::Encode, Phase::Feedback, Phase::Decode, Phase::Add] {
            trial.run(phase).unwrap_or_else(|error| panic!("{codec}: {phase:?}: {error}"));
        }
        let lost = trial.lost().unwrap();
        assert!((0.0..1.5).contains(&lost), "{codec}: {lost}");
        assert!(trial.encoded_bytes() < 4 * 4096, "{codec}");
    }
}

#[test]
fn rates_are_bytes_over_the_median_by_the_clock_that_is_given() {
    // Reading the clock takes a second, but for one run that was interrupted.
    let mut calls = 0.0;
    let mut clock = || {
        calls += if calls == 3.0 { 100.0 } else { 1.0 };
        calls
    };
    let rates = trial("int8", 2048).rates(0.0, &mut clock).unwrap();
    assert_eq!([rates.encode, rates.decode, rates.add], [8192.0; 3]);
}

#[test]
fn a_clock_that_is_coarser_than_a_run_still_gives_a_rate() {
    // It moves by a second each 10 times that it is read.
    let mut calls = 0;
    let mut clock = || {
        calls += 1;
        f64::from(calls / 10)
    };
    let rates = trial("int8", 1024).rates(3.0, &mut clock).unwrap();
    assert!((rates.encode / 40_960.0 - 1.0).abs() < 0.2, "{rates:?}");
}

#[test]
fn traffic_is_what_encoders_write() {
    let registry = Registry::new();
    for (codec, elements) in ALL.into_iter().flat_map(|codec| [(codec, 4096), (codec, 2500)]) {
        let spec: Spec = codec.parse().unwrap();
        let traffic = Traffic::of(&registry, &spec, Dtype::F32, elements as u64).unwrap();
        let encoded = trial(codec, elements).encoded_bytes() as u64;
        let maxima = if codec == "int8:scale=shared" { 4 * elements.div_ceil(1024) } else { 0 };
        assert_eq!(traffic.contribution, encoded + maxima as u64, "{codec} {elements}");
        let answer = match codec {
            "int8:scale=shared" => 2 * encoded + maxima as u64,
            _ if spec.two_way => encoded,
            _ => 4 * elements as u64,
        };
        assert_eq!(traffic.answer, answer, "{codec} {elements}");
        assert_eq!(traffic.decodes_sums, spec.two_way, "{codec}");
        let added = ["int8:scale=shared", "randomk:k=0.01", "powersgd:rank=2"].contains(&codec);
        assert_eq!(traffic.encodes_sums, spec.two_way && !added, "{codec}");
    }
}

#[test]
fn traffic_of_what_cannot_be_encoded_is_refused() {
    let of = |codec: &str, dtype, elements| {
        let spec: Spec = codec.parse().unwrap();
        Traffic::of(&Registry::new(), &spec, dtype, elements).unwrap_err().to_string()
    };
    assert!(of("int8", Dtype::I32, 1024).contains("not int32"));
    assert!(of("topk:k=100", Dtype::F32, 99).contains("1 to 99"));
    assert!(of("powersgd:rank=64", Dtype::F32, 1024).contains("1 to 32"));
}
