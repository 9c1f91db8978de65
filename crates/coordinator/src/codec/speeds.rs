//! Between the protocol's speeds and choices of codecs and the plain ones.

use sumpter_membership::{MAX_CHOICES, MAX_CODEC_BYTES, MAX_MEASURED, cut};
use sumpter_types::{CodecChoice, CodecSpeeds, Speeds};

use crate::proto;

/// What a member has measured, as it travels.
pub(super) fn speeds_to_proto(speeds: &Speeds) -> proto::Speeds {
    let Speeds { cores, add, transport, codecs } = speeds;
    let codec = |(codec, speeds): (&String, &CodecSpeeds)| {
        let CodecSpeeds { encode, decode, add } = *speeds;
        proto::CodecSpeeds { codec: codec.clone(), encode, decode, add }
    };
    let codecs = codecs.iter().map(codec).collect();
    proto::Speeds { cores: *cores, add: *add, transport: *transport, codecs }
}

/// The same as the others know it; nothing of a member that says nothing.
pub(super) fn speeds_from_proto(speeds: Option<proto::Speeds>) -> Speeds {
    let proto::Speeds { cores, add, transport, codecs } = speeds.unwrap_or_default();
    let codecs = codecs.into_iter().filter(|of| of.codec.len() <= MAX_CODEC_BYTES);
    let codec = |proto::CodecSpeeds { codec, encode, decode, add }| {
        (codec, CodecSpeeds { encode, decode, add })
    };
    Speeds { cores, add, transport, codecs: codecs.take(MAX_MEASURED).map(codec).collect() }
}

/// What `auto` has chosen, as it travels.
pub(super) fn choices_to_proto(choices: &[CodecChoice]) -> Vec<proto::CodecChoice> {
    let choice = |choice: &CodecChoice| {
        let CodecChoice { codec, tensors, bytes, example, reason } = choice.clone();
        proto::CodecChoice { codec, tensors, bytes, example, reason }
    };
    choices.iter().map(choice).collect()
}

/// The same as it is shown.
pub(super) fn choices_from_proto(choices: Vec<proto::CodecChoice>) -> Vec<CodecChoice> {
    let choice = |choice: proto::CodecChoice| {
        let proto::CodecChoice { codec, tensors, bytes, example, reason } = choice;
        let [codec, example, reason] = [codec, example, reason].map(cut);
        CodecChoice { codec, tensors, bytes, example, reason }
    };
    choices.into_iter().take(MAX_CHOICES).map(choice).collect()
}

#[cfg(test)]
pub(super) mod testing {
    use sumpter_membership::RunSpeeds;

    use super::*;

    /// A choice of which no field is as by default.
    pub(crate) fn choice() -> CodecChoice {
        CodecChoice {
            codec: "int8".into(),
            tensors: 3,
            bytes: 1 << 40,
            example: "w".into(),
            reason: "it pays".into(),
        }
    }

    /// Speeds of which no field is as by default.
    pub(crate) fn run_speeds() -> RunSpeeds {
        let speeds = |add| {
            let codec = CodecSpeeds { encode: 1, decode: u64::MAX, add: 3 };
            let codecs = [("int8".to_owned(), codec), ("topk:k=0.01".to_owned(), codec)].into();
            Speeds { cores: 8, add, transport: 5, codecs }
        };
        RunSpeeds { workers: speeds(1), servers: speeds(2), link: 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_arrive_as_they_were_sent_and_are_bounded() {
        let speeds = testing::run_speeds().workers;
        assert_eq!(speeds_from_proto(Some(speeds_to_proto(&speeds))), speeds);
        assert_eq!(speeds_from_proto(None), Speeds::default());
        let many = (0..1000).map(|k| (format!("topk:k={k}"), CodecSpeeds::default()));
        let long = ("x".repeat(MAX_CODEC_BYTES + 1), CodecSpeeds::default());
        let codecs = many.chain([long]).collect();
        let kept = speeds_from_proto(Some(speeds_to_proto(&Speeds { codecs, ..speeds })));
        assert_eq!(kept.codecs.len(), MAX_MEASURED);
        assert!(kept.codecs.keys().all(|codec| codec.starts_with("topk")));
    }
}
