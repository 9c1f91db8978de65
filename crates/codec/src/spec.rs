//! What people write of a codec: `topk:k=0.01,momentum=0.9`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sumpter_types::{Round, TensorId};

use crate::error::CodecError;

/// A codec with its arguments, and how contributions are prepared for it.
///
/// Written as its name, then `:` and arguments `key=value` with commas between them. [`FromStr`]
/// knows the codecs of this crate; a [`Registry`](crate::Registry) also those of users.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The codec.
    pub scheme: Scheme,
    /// `ef`: what a round leaves out is added to the next (error feedback). By default on for all
    /// codecs but `fp16` and `bf16`, which leave out little, and those that are unbiased.
    pub feedback: bool,
    /// `momentum`: the factor of Nesterov momentum inside the codec, from 0 to less than 1.
    pub momentum: Option<f32>,
    /// `nan`: what becomes of a block with a NaN or an infinity.
    pub nan: NanPolicy,
    /// `two_way`: sums are encoded as well; else they are sent as they are.
    pub two_way: bool,
    /// `sum_ef`: what a sum leaves out is added to the next, too. By default on for `onebit` and
    /// `topk`, if `ef` and `two_way` are; it costs as many bytes as sums that are not encoded, over
    /// the number of ranks.
    pub sum_feedback: bool,
    /// `from`, of a codec that draws random numbers: what they are for, as `from=TENSOR.ROUND`. Not
    /// for people to write: each tensor has its own, which goes on from that of an earlier job.
    pub draws: Option<Draws>,
}

/// What the random numbers of a tensor's first round in a job are for; later rounds follow.
///
/// The number that a tensor has in a job depends on which ranks are first to declare it, so it is
/// not that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    /// Made of the tensor's name.
    pub tensor: TensorId,
    /// The rounds before this job.
    pub round: Round,
}

impl Draws {
    /// Of a tensor of this name, from its first round on.
    #[must_use]
    pub fn of(name: &str) -> Draws {
        // FNV-1a; tensors that share it draw alike, which does no harm.
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let tensor = TensorId(name.bytes().fold(0x811c_9dc5, fold));
        Draws { tensor, round: Round(0) }
    }

    /// After so many rounds more.
    #[must_use]
    pub fn after(self, rounds: Round) -> Draws {
        Draws { round: Round(self.round.0.wrapping_add(rounds.0)), ..self }
    }
}

/// A codec with its own arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheme {
    /// IEEE 754 binary16.
    Fp16,
    /// bfloat16.
    Bf16,
    /// 8-bit integers times a scale.
    Int8 {
        /// `scale=shared`: all ranks use the same scale, so that coded integers can be added; else
        /// `scale=block`, each block's own.
        shared: bool,
    },
    /// 8-bit floats times a power of two for each block.
    Fp8 {
        /// `format`: how many bits of the eight are exponent.
        format: Fp8Format,
    },
    /// A sign for each element, and their mean magnitude.
    Onebit {
        /// `scaling`: signs are multiplied by the mean magnitude; else by 1, or by 0 in a
        /// block of zeros.
        scaling: bool,
    },
    /// The largest elements of each block.
    Topk {
        /// `k`: how many.
        k: Count,
    },
    /// Random elements of each block, the same in all ranks.
    Randomk {
        /// `k`: how many.
        k: Count,
        /// `scaling`: elements are multiplied by the inverse of their chance to be drawn, so that
        /// the expectation is the element.
        scaling: bool,
        /// `seed` of the random numbers.
        seed: u64,
    },
    /// Elements rounded to few levels at random, so that the expectation is the element.
    Dithering {
        /// `k`: levels above zero, 1 to 127; or `bits=2`, `4` or `8` for 1, 7 or 127.
        levels: u8,
        /// `partition`: how levels are spaced.
        partition: Partition,
        /// `normalize`: what the highest level is.
        norm: Norm,
        /// `seed` of the random numbers.
        seed: u64,
    },
    /// A matrix as the product of two narrow ones; see [`LowRank`](crate::LowRank).
    PowerSgd {
        /// `rank`: their width.
        rank: u32,
        /// `start`: the rounds before, in which the matrix is summed as it is.
        start: u32,
        /// `seed` of the first guess.
        seed: u64,
    },
    /// A codec of a [`Registry`](crate::Registry).
    Custom {
        /// Its name.
        name: String,
        /// Its own arguments.
        arguments: Arguments,
    },
}

/// Arguments by key.
pub type Arguments = BTreeMap<String, String>;

/// How many elements are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// A part of each block, above 0 and below 1; of a block's elements it is rounded up.
    Ratio(f64),
    /// A number of elements of the whole tensor, dealt to its blocks by their lengths; rounded up
    /// for each.
    Elements(u64),
}

/// The formats of 8-bit floats, as the Open Compute Project defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Format {
    /// 4 bits of exponent, 3 of mantissa; no infinity.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa.
    E5m2,
}

/// How levels are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Evenly.
    Linear,
    /// By powers of two.
    Natural,
}

/// The norm of a block to which elements are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// The largest magnitude.
    Max,
    /// The Euclidean norm.
    L2,
}

/// What becomes of a block with a NaN or an infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NanPolicy {
    /// It decodes to NaNs, or to what the format has for them: all ranks see it.
    #[default]
    Pass,
    /// It contributes zeros, and changes neither residual nor momentum.
    Skip,
}

/// The names of the codecs of this crate.
pub(crate) const NAMES: [&str; 9] =
    ["fp16", "bf16", "int8", "fp8", "onebit", "topk", "randomk", "dithering", "powersgd"];

/// The arguments that every codec takes.
const COMMON: [&str; 5] = ["ef", "momentum", "nan", "sum_ef", "two_way"];

impl Spec {
    /// A codec with what is the default for it.
    #[must_use]
    pub fn new(scheme: Scheme) -> Spec {
        let feedback = scheme.feedback_by_default();
        let sum_feedback = feedback && scheme.loses_much();
        let (momentum, nan, two_way, draws) = (None, NanPolicy::Pass, true, None);
        Spec { scheme, feedback, momentum, nan, two_way, sum_feedback, draws }
    }
}

impl Scheme {
    /// The codec's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Scheme::Fp16 => "fp16",
            Scheme::Bf16 => "bf16",
            Scheme::Int8 { .. } => "int8",
            Scheme::Fp8 { .. } => "fp8",
            Scheme::Onebit { .. } => "onebit",
            Scheme::Topk { .. } => "topk",
            Scheme::Randomk { .. } => "randomk",
            Scheme::Dithering { .. } => "dithering",
            Scheme::PowerSgd { .. } => "powersgd",
            Scheme::Custom { name, .. } => name,
        }
    }

    /// Whether codes depend on random numbers, which depend on the round.
    #[must_use]
    pub fn draws(&self) -> bool {
        matches!(self, Scheme::Randomk { .. } | Scheme::Dithering { .. })
    }

    /// Whether a sum may lack most of what was added.
    fn loses_much(&self) -> bool {
        matches!(self, Scheme::Onebit { .. } | Scheme::Topk { .. })
    }

    fn feedback_by_default(&self) -> bool {
        // What is unbiased may lose more than it keeps, and residuals then grow.
        !matches!(
            self,
            Scheme::Fp16
                | Scheme::Bf16
                | Scheme::Dithering { .. }
                | Scheme::Randomk { scaling: true, .. }
        )
    }

    /// The scheme of a name of this crate, with what it takes of the arguments.
    fn take(name: &str, from: &mut Taker<'_>) -> Result<Scheme, CodecError> {
        Ok(match name {
            "fp16" => Scheme::Fp16,
            "bf16" => Scheme::Bf16,
            "int8" => {
                let shared = from.choice("scale", &[("block", false), ("shared", true)], false)?;
                Scheme::Int8 { shared }
            }
            "fp8" => {
                let formats = [("e4m3", Fp8Format::E4m3), ("e5m2", Fp8Format::E5m2)];
                Scheme::Fp8 { format: from.choice("format", &formats, Fp8Format::E4m3)? }
            }
            "onebit" => Scheme::Onebit { scaling: from.switch("scaling", true)? },
            "topk" => Scheme::Topk { k: from.count()? },
            "randomk" => {
                let (k, scaling) = (from.count()?, from.switch("scaling", false)?);
                Scheme::Randomk { k, scaling, seed: from.seed()? }
            }
            "dithering" => {
                let partitions = [("linear", Partition::Linear), ("natural", Partition::Natural)];
                Scheme::Dithering {
                    levels: from.levels()?,
                    partition: from.choice("partition", &partitions, Partition::Linear)?,
                    norm: from.choice(
                        "normalize",
                        &[("max", Norm::Max), ("l2", Norm::L2)],
                        Norm::Max,
                    )?,
                    seed: from.seed()?,
                }
            }
            "powersgd" => {
                let rank = from.number("rank", 4, 1, 1024, "a whole number of 1 to 1024")?;
                let expected = "a number of rounds, below 2^31";
                let start = from.number("start", 0, 0, i32::MAX as u64, expected)?;
                Scheme::PowerSgd { rank: rank as u32, start: start as u32, seed: from.seed()? }
            }
            _ => {
                let known = NAMES.join(", ");
                return Err(CodecError::Unknown { name: name.to_owned(), known });
            }
        })
    }

    fn arguments(&self) -> Vec<(&str, String)> {
        let seeded = |seed: u64| (seed != 0).then(|| ("seed", seed.to_string()));
        match self {
            Scheme::Fp16 | Scheme::Bf16 => vec![],
            Scheme::Int8 { shared: false } => vec![],
            Scheme::Int8 { shared: true } => vec![("scale", "shared".to_owned())],
            Scheme::Fp8 { format: Fp8Format::E4m3 } => vec![],
            Scheme::Fp8 { format: Fp8Format::E5m2 } => vec![("format", "e5m2".to_owned())],
            Scheme::Onebit { scaling: true } => vec![],
            Scheme::Onebit { scaling: false } => vec![("scaling", "false".to_owned())],
            Scheme::Topk { k } => vec![("k", k.to_string())],
            Scheme::Randomk { k, scaling, seed } => {
                let mut all = vec![("k", k.to_string())];
                all.extend(scaling.then(|| ("scaling", "true".to_owned())));
                all.extend(seeded(*seed));
                all
            }
            Scheme::Dithering { levels, partition, norm, seed } => {
                let mut all = vec![match levels {
                    1 | 7 | 127 => ("bits", code_bits(*levels).to_string()),
                    _ => ("k", levels.to_string()),
                }];
                let natural = *partition == Partition::Natural;
                all.extend(natural.then(|| ("partition", "natural".to_owned())));
                all.extend((*norm == Norm::L2).then(|| ("normalize", "l2".to_owned())));
                all.extend(seeded(*seed));
                all
            }
            Scheme::PowerSgd { rank, start, seed } => {
                let mut all = vec![("rank", rank.to_string())];
                all.extend((*start != 0).then(|| ("start", start.to_string())));
                all.extend(seeded(*seed));
                all
            }
            Scheme::Custom { arguments, .. } => {
                arguments.iter().map(|(key, value)| (key.as_str(), value.clone())).collect()
            }
        }
    }
}

/// Bits of an element's code for so many levels above zero: a sign and the level.
pub(crate) fn code_bits(levels: u8) -> usize {
    match levels {
        0..=1 => 2,
        2..=7 => 4,
        _ => 8,
    }
}

impl FromStr for Spec {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Spec, CodecError> {
        parse(text, |_| false)
    }
}

/// Reads a codec, which may also be one of those that `is_custom` knows.
pub(crate) fn parse(text: &str, is_custom: impl Fn(&str) -> bool) -> Result<Spec, CodecError> {
    let (name, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let mut from = Taker::new(name, rest)?;
    if is_custom(name) {
        let common = |key: &str| COMMON.contains(&key);
        let own = from.given.iter().filter(|(key, _)| !common(key));
        let arguments = own.map(|(key, value)| (key.clone(), value.clone())).collect();
        from.given.retain(|key, _| common(key));
        return from.common(Scheme::Custom { name: name.to_owned(), arguments });
    }
    let scheme = Scheme::take(name, &mut from)?;
    from.common(scheme)
}

/// Takes arguments one by one; what is left in the end is unknown.
struct Taker<'a> {
    codec: &'a str,
    given: Arguments,
    known: Vec<&'static str>,
}

impl<'a> Taker<'a> {
    fn new(codec: &'a str, text: &str) -> Result<Taker<'a>, CodecError> {
        let mut taker = Taker { codec, given: Arguments::new(), known: Vec::new() };
        for argument in text.split(',').map(str::trim).filter(|argument| !argument.is_empty()) {
            let Some((key, value)) = argument.split_once('=') else {
                return Err(taker.wrong(argument, "", "arguments as key=value"));
            };
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            if taker.given.insert(key.clone(), value.clone()).is_some() {
                return Err(taker.wrong(&key, &value, "it once"));
            }
        }
        Ok(taker)
    }

    fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.given.remove(key)
    }

    fn wrong(&self, key: &str, value: &str, expected: &str) -> CodecError {
        CodecError::Argument {
            codec: self.codec.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        }
    }

    fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        default: T,
    ) -> Result<T, CodecError> {
        let Some(value) = self.take(key) else { return Ok(default) };
        let chosen = choices.iter().find(|(name, _)| *name == value);
        chosen.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.wrong(key, &value, &names.join(" or "))
        })
    }

    fn switch(&mut self, key: &'static str, default: bool) -> Result<bool, CodecError> {
        self.choice(key, &[("true", true), ("false", false)], default)
    }

    fn number(
        &mut self,
        key: &'static str,
        default: u64,
        least: u64,
        most: u64,
        expected: &str,
    ) -> Result<u64, CodecError> {
        let Some(value) = self.take(key) else { return Ok(default) };
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.wrong(key, &value, expected))
    }

    fn seed(&mut self) -> Result<u64, CodecError> {
        self.number("seed", 0, 0, u64::MAX, "a whole number below 2^64")
    }

    /// Where random numbers go on.
    fn draws(&mut self) -> Result<Option<Draws>, CodecError> {
        let Some(value) = self.take("from") else { return Ok(None) };
        let parts = value.split_once('.').and_then(|(tensor, round)| {
            let (tensor, round) = (tensor.parse().ok()?, round.parse().ok()?);
            Some(Draws { tensor: TensorId(tensor), round: Round(round) })
        });
        let expected = "two numbers as TENSOR.ROUND, or leave it out";
        parts.map(Some).ok_or_else(|| self.wrong("from", &value, expected))
    }

    fn count(&mut self) -> Result<Count, CodecError> {
        let expected = "a part of all elements, as 0.01, or a number of them, as 100";
        let Some(value) = self.take("k") else { return Err(self.wrong("k", "", expected)) };
        let ratio = value.parse().ok().filter(|ratio| *ratio > 0.0 && *ratio < 1.0);
        let elements = value.parse().ok().filter(|elements| *elements > 0);
        let count = ratio.map(Count::Ratio).or(elements.map(Count::Elements));
        count.ok_or_else(|| self.wrong("k", &value, expected))
    }

    fn levels(&mut self) -> Result<u8, CodecError> {
        let (bits, k) = (self.take("bits"), self.take("k"));
        match (bits.as_deref(), k) {
            (None, None) => Ok(7),
            (Some("2"), None) => Ok(1),
            (Some("4"), None) => Ok(7),
            (Some("8"), None) => Ok(127),
            (Some(bits), None) => Err(self.wrong("bits", bits, "2, 4 or 8")),
            (Some(_), Some(k)) => Err(self.wrong("k", &k, "either bits or k")),
            (None, Some(k)) => {
                let levels = k.parse().ok().filter(|levels| (1..=127).contains(levels));
                levels.ok_or_else(|| self.wrong("k", &k, "1 to 127 levels"))
            }
        }
    }

    /// What every codec takes; and nothing else is left.
    fn common(mut self, scheme: Scheme) -> Result<Spec, CodecError> {
        let draws = if scheme.draws() { self.draws()? } else { None };
        let default = Spec::new(scheme);
        let feedback = self.switch("ef", default.feedback)?;
        let nan = self.choice(
            "nan",
            &[("pass", NanPolicy::Pass), ("skip", NanPolicy::Skip)],
            NanPolicy::Pass,
        )?;
        let two_way = self.switch("two_way", default.two_way)?;
        let sum_default = feedback && two_way && default.scheme.loses_much();
        let sum_feedback = self.switch("sum_ef", sum_default)?;
        if sum_feedback && !(feedback && two_way) {
            return Err(self.wrong("sum_ef", "true", "it with ef=true and two_way=true only"));
        }
        let momentum = self.take("momentum");
        let momentum = momentum.map(|value| {
            let factor = value.parse().ok().filter(|factor| (0.0..1.0).contains(factor));
            factor.ok_or_else(|| self.wrong("momentum", &value, "a factor from 0 to less than 1"))
        });
        let momentum = momentum.transpose()?;
        if let Some(key) = self.given.keys().next() {
            let known = self.known.join(", ");
            let (codec, key) = (self.codec.to_owned(), key.clone());
            return Err(CodecError::UnknownArgument { codec, key, known });
        }
        Ok(Spec { feedback, momentum, nan, two_way, sum_feedback, draws, ..default })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme.name())?;
        let mut all = self.scheme.arguments();
        let draws = self.draws;
        all.extend(draws.map(|at| ("from", format!("{}.{}", at.tensor.0, at.round.0))));
        if self.feedback != self.scheme.feedback_by_default() {
            all.push(("ef", self.feedback.to_string()));
        }
        all.extend(self.momentum.map(|factor| ("momentum", factor.to_string())));
        if self.nan == NanPolicy::Skip {
            all.push(("nan", "skip".to_owned()));
        }
        if self.sum_feedback != (self.feedback && self.two_way && self.scheme.loses_much()) {
            all.push(("sum_ef", self.sum_feedback.to_string()));
        }
        if !self.two_way {
            all.push(("two_way", "false".to_owned()));
        }
        for (i, (key, value)) in all.iter().enumerate() {
            let before = if i == 0 { ':' } else { ',' };
            write!(f, "{before}{key}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::Ratio(ratio) => ratio.fmt(f),
            Count::Elements(elements) => elements.fmt(f),
        }
    }
}
