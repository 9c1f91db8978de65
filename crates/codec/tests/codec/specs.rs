//! What people write.

use proptest::prelude::*;
use proptest::sample::select;
use sumpter_codec::{Codec, CodecError, Count, LowRank, NanPolicy, Norm, Partition, Scheme, Spec};

use crate::inputs::SPECS;

fn parse(text: &str) -> Spec {
    text.parse().unwrap()
}

#[test]
fn a_spec_is_a_name_and_arguments() {
    assert_eq!(parse("int8"), Spec::new(Scheme::Int8 { shared: false }));
    let spec = parse(" topk: k=0.01 , momentum=0.9,nan=skip,ef=false ");
    assert_eq!(spec.scheme, Scheme::Topk { k: Count::Ratio(0.01) });
    assert_eq!((spec.feedback, spec.momentum, spec.nan), (false, Some(0.9), NanPolicy::Skip));
    assert_eq!(parse("topk:k=1").scheme, Scheme::Topk { k: Count::Elements(1) });
    let (partition, norm) = (Partition::Natural, Norm::L2);
    let dithering = Scheme::Dithering { levels: 7, partition, norm, seed: 0 };
    assert_eq!(parse("dithering:bits=4,partition=natural,normalize=l2").scheme, dithering);
    assert_eq!(parse("powersgd:rank=4").scheme, Scheme::PowerSgd { rank: 4, start: 0, seed: 0 });
    let late = Scheme::PowerSgd { rank: 2, start: 1000, seed: 0 };
    assert_eq!(parse("powersgd:start=1000,rank=2").scheme, late);
}

#[test]
fn error_feedback_is_off_for_16_bit_floats_and_what_is_unbiased() {
    for spec in SPECS {
        let unbiased = spec.starts_with("dithering") || spec.contains("scaling=true");
        assert_eq!(parse(spec).feedback, !unbiased && !spec.ends_with('6'), "{spec}");
    }
    assert!(parse("powersgd").feedback && parse("fp16:ef=true").feedback);
}

proptest! {
    #[test]
    fn a_spec_is_written_as_it_is_read(
        spec in select([&SPECS[..], &["powersgd:rank=3,seed=9", "randomk:k=9,from=7.2"]].concat()),
        ef in select(vec!["", "ef=true", "ef=false"]),
        rest in select(vec!["", "momentum=0.9", "nan=skip", "momentum=0.125,nan=skip"]),
    ) {
        let separator = if spec.contains(':') { "," } else { ":" };
        let text = format!("{spec}{separator}{ef},{rest}");
        let spec = parse(&text);
        prop_assert_eq!(parse(&spec.to_string()), spec);
    }

    #[test]
    fn any_text_is_a_spec_or_an_error(text in "[a-z0-9]{0,9}[:=,]?[a-z0-9=,.:-]{0,20}") {
        if let Ok(spec) = text.parse::<Spec>() {
            prop_assert_eq!(parse(&spec.to_string()), spec);
        }
    }
}

#[test]
fn specs_are_written_without_what_is_the_default() {
    for spec in SPECS.iter().chain(&["int8:scale=shared", "powersgd:rank=2"]) {
        assert_eq!(parse(spec).to_string(), *spec);
    }
    assert_eq!(parse("dithering").to_string(), "dithering:bits=4");
    assert_eq!(parse("dithering:k=7,seed=0").to_string(), "dithering:bits=4");
}

#[test]
fn errors_name_the_codec_and_the_remedy() {
    let count = "give a part of all elements, as 0.01, or a number of them, as 100";
    for (text, message) in [
        (
            "gzip",
            "no codec is called 'gzip': give one of fp16, bf16, int8, fp8, onebit, topk, randomk, \
             dithering, powersgd",
        ),
        (
            "int8:level=9",
            "codec int8 takes no argument 'level': give scale, ef, nan, two_way, sum_ef, momentum",
        ),
        ("fp16:k=3", "codec fp16 takes no argument 'k': give ef, nan, two_way, sum_ef, momentum"),
        ("topk", &format!("codec topk: k=: {count}")),
        ("topk:k=0", &format!("codec topk: k=0: {count}")),
        ("topk:k=-1", &format!("codec topk: k=-1: {count}")),
        ("topk:k=nan", &format!("codec topk: k=nan: {count}")),
        ("randomk:k=1.5", &format!("codec randomk: k=1.5: {count}")),
        ("onebit:scaling=1", "codec onebit: scaling=1: give true or false"),
        ("int8:scale", "codec int8: scale=: give arguments as key=value"),
        ("int8:scale=block,scale=shared", "codec int8: scale=shared: give it once"),
        ("fp8:format=e3m4", "codec fp8: format=e3m4: give e4m3 or e5m2"),
        ("dithering:bits=3", "codec dithering: bits=3: give 2, 4 or 8"),
        ("dithering:k=128", "codec dithering: k=128: give 1 to 127 levels"),
        ("dithering:bits=4,k=3", "codec dithering: k=3: give either bits or k"),
        ("dithering:normalize=l1", "codec dithering: normalize=l1: give max or l2"),
        ("powersgd:rank=0", "codec powersgd: rank=0: give a whole number of 1 to 1024"),
        (
            "randomk:k=1,from=7",
            "codec randomk: from=7: give two numbers as TENSOR.ROUND, or leave it out",
        ),
        (
            "int8:from=1.2",
            "codec int8 takes no argument 'from': give scale, ef, nan, two_way, sum_ef, momentum",
        ),
        ("randomk:k=1,seed=x", "codec randomk: seed=x: give a whole number below 2^64"),
        ("bf16:momentum=1", "codec bf16: momentum=1: give a factor from 0 to less than 1"),
        ("bf16:nan=hide", "codec bf16: nan=hide: give pass or skip"),
    ] {
        assert_eq!(text.parse::<Spec>().unwrap_err().to_string(), message);
    }
}

#[test]
fn a_codec_that_does_not_fit_its_tensor_is_refused() {
    let error = Codec::new(&parse("topk:k=101"), 100).unwrap_err().to_string();
    let expected = "codec topk: k=101: give 1 to 100, or a part as 0.01, to this tensor";
    assert_eq!(error, expected);
    assert!(Codec::new(&parse("randomk:k=100"), 100).is_ok());
    let error = Codec::new(&parse("powersgd:rank=2"), 100).unwrap_err();
    assert_eq!(error, CodecError::WholeMatrix { codec: "powersgd".to_owned() });
    let error = LowRank::new(5, 0, (4, 100)).unwrap_err().to_string();
    let expected = "codec powersgd: rank=5: give 1 to 4 to a matrix of 4 by 100, or leave it \
                    uncompressed";
    assert_eq!(error, expected);
    assert!(LowRank::new(0, 0, (4, 100)).is_err());
    assert!(LowRank::new(1, 0, (0, 100)).is_err());
}
