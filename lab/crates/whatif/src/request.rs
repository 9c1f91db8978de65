//! The question in JSON and its answer, for callers in other languages.

use serde::{Deserialize, Serialize};
use sumpter_plan::{Architecture, LocalChoice, default_credit, largest_partition};
use sumpter_types::{CodecRates, Dtype};

use crate::{
    Addition, Case, Codec, Layer, Layout, Machines, Order, Outcome, Profile, Tensor, WhatifError,
    simulate_placed,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    profile: RawProfile,
    cases: Vec<RawCase>,
    /// Whether to find the bottleneck of each.
    bottleneck: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    iteration_s: f64,
    backward_s: f64,
    /// Seconds of the forward pass by layer.
    forward_s: Vec<Option<f64>>,
    /// Layer, bytes, seconds at which the gradient is ready.
    tensors: Vec<(usize, u64, f64)>,
    /// Their element types; none: `float32`.
    #[serde(default)]
    dtypes: Option<Vec<String>>,
    add: Option<Vec<(f64, f64)>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    workers: u32,
    servers: u32,
    architecture: String,
    bandwidth_gbps: f64,
    transport_efficiency: f64,
    compression: f64,
    fusion_bytes: u64,
    fusion_timeout_s: f64,
    partition_bytes: u64,
    /// None: as a job takes it by itself.
    credit_bytes: Option<u64>,
    overlap_forward: bool,
    /// "readiness" or "forward"; none: as a job does by itself.
    order: Option<String>,
    #[serde(default)]
    hop_latency_s: f64,
    #[serde(default)]
    update_bytes_per_s: Option<f64>,
    /// The text of a machine list.
    #[serde(default)]
    machines: Option<String>,
    /// One of [`LOCAL_REDUCTIONS`], or `roots=` and names of GPUs with `+` between them; none: by
    /// the rule.
    #[serde(default)]
    local_reduction: Option<String>,
    #[serde(default)]
    codec: Option<RawCodec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCodec {
    /// As in `topk:k=0.01`.
    name: String,
    /// Bytes of `float32` a second and core that are encoded, decoded, decoded and added; none: it
    /// takes no time.
    rates: Option<[f64; 3]>,
    /// Cores of each machine that code.
    cores: f64,
    /// Smaller tensors travel as they are.
    least_bytes: u64,
}

/// The words for how GPUs of one machine add.
const LOCAL_REDUCTIONS: [(&str, LocalChoice); 4] = [
    ("rule", LocalChoice::Rule),
    ("direct", LocalChoice::Direct),
    ("cpu-assisted", LocalChoice::CpuAssisted),
    ("reduce-scatter", LocalChoice::ReduceScatter),
];

/// Machines that are listed, as callers in other languages see them.
#[derive(Serialize)]
struct Described {
    workers: u32,
    servers: u32,
    gpus: usize,
    racks: usize,
    /// The slowest link of a GPU machine.
    bandwidth_gbps: f64,
    /// How the GPUs of each kind of machine add.
    local_reductions: Vec<(String, &'static str)>,
}

/// Describes a machine list in JSON: the numbers of its machines, GPUs and racks, the slowest link
/// of a GPU machine, and how the GPUs of each kind of machine add, for a `local_reduction` as in
/// [`answer_json`].
///
/// # Errors
/// What [`Machines::new`] refuses.
pub fn machines_json(toml: &str, local_reduction: &str) -> Result<String, WhatifError> {
    let machines = Machines::new(toml, local_choice(local_reduction)?)?;
    let described = Described {
        workers: machines.workers(),
        servers: machines.servers(),
        gpus: machines.gpus(),
        racks: machines.racks(),
        bandwidth_gbps: machines.bandwidth_gbps(),
        local_reductions: machines.reductions(),
    };
    serde_json::to_string(&described).map_err(|error| WhatifError::Request(error.to_string()))
}

/// Answers `{"profile": ..., "cases": [...], "bottleneck": true}` with a list of one [`Outcome`] a
/// case, in order. Cases that follow one another and share their placement share the work of it.
///
/// # Errors
/// What is not such JSON, and values that [`Profile::new`], [`Case::check`] or [`Machines::new`]
/// refuse.
pub fn answer_json(request: &str) -> Result<String, WhatifError> {
    let invalid = |error: serde_json::Error| WhatifError::Request(error.to_string());
    let Request { profile, cases, bottleneck } = serde_json::from_str(request).map_err(invalid)?;
    let dtypes = dtypes(&profile)?;
    let profile = Profile::try_from(profile)?;
    let cases = cases.into_iter().map(Question::try_from).collect::<Result<Vec<_>, _>>()?;
    let mut placed: Option<(&Question, Layout)> = None;
    let mut coded: Option<(&Codec, Profile)> = None;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    for question in &cases {
        if let Some(codec) = &question.codec
            && coded.as_ref().is_none_or(|(before, _)| *before != codec)
        {
            coded = Some((codec, profile.coded(codec, &dtypes)?));
        }
        let profile = match &coded {
            Some((_, coded)) if question.codec.is_some() => coded,
            _ => &profile,
        };
        let layout = match placed.take() {
            Some((before, layout)) if before.same_placement(question) => layout,
            _ => question.layout(profile)?,
        };
        outcomes.push(simulate_placed(profile, &layout, &question.case, bottleneck)?);
        placed = Some((question, layout));
    }
    serde_json::to_string(&outcomes).map_err(invalid)
}

/// The element types of a profile's tensors.
fn dtypes(profile: &RawProfile) -> Result<Vec<Dtype>, WhatifError> {
    let Some(names) = &profile.dtypes else { return Ok(vec![Dtype::F32; profile.tensors.len()]) };
    let read = |(index, name): (usize, &String)| {
        Dtype::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
            WhatifError::field(format!("dtypes[{index}]"), name, known.join(", "))
        })
    };
    names.iter().enumerate().map(read).collect()
}

/// A case, and the machine list and the codec that it is about, if there are.
struct Question {
    case: Case,
    machines: Option<(String, LocalChoice)>,
    codec: Option<Codec>,
}

impl Question {
    fn layout(&self, profile: &Profile) -> Result<Layout, WhatifError> {
        match &self.machines {
            None => Layout::new(profile, &self.case),
            Some((toml, choice)) => {
                Layout::on(profile, &Machines::new(toml, choice.clone())?, &self.case)
            }
        }
    }

    fn same_placement(&self, other: &Self) -> bool {
        // In racks, tensors have other trees with a codec.
        self.machines == other.machines
            && self.codec.is_some() == other.codec.is_some()
            && same_placement(&self.case, &other.case)
    }
}

fn same_placement(a: &Case, b: &Case) -> bool {
    let machines = |case: &Case| (case.workers, case.servers, case.architecture);
    let largest = |case: &Case| largest_partition(case.partition_bytes, case.credit_bytes);
    machines(a) == machines(b) && largest(a) == largest(b)
}

impl TryFrom<RawProfile> for Profile {
    type Error = WhatifError;

    fn try_from(raw: RawProfile) -> Result<Self, WhatifError> {
        let tensor = |(layer, bytes, ready_s)| Tensor { layer, bytes, ready_s };
        Profile::new(
            raw.iteration_s,
            raw.backward_s,
            raw.forward_s.into_iter().map(|forward_s| Layer { forward_s }).collect(),
            raw.tensors.into_iter().map(tensor).collect(),
            raw.add.map(Addition::new).transpose()?,
        )
    }
}

fn order(word: &str) -> Result<Order, WhatifError> {
    let known = Order::WORDS.iter().find(|(known, _)| *known == word).map(|(_, order)| *order);
    known.ok_or_else(|| WhatifError::field("order", word, "readiness or forward"))
}

fn local_choice(word: &str) -> Result<LocalChoice, WhatifError> {
    if let Some(names) = word.strip_prefix("roots=") {
        return Ok(LocalChoice::Roots(names.split('+').map(str::to_owned).collect()));
    }
    let known = LOCAL_REDUCTIONS.iter().find(|(known, _)| *known == word);
    known.map(|(_, choice)| choice.clone()).ok_or_else(|| {
        let words: Vec<&str> = LOCAL_REDUCTIONS.iter().map(|(known, _)| *known).collect();
        let expected = format!("{} or roots=GPU+GPU", words.join(", "));
        WhatifError::field("local_reduction", word, expected)
    })
}

impl TryFrom<RawCase> for Question {
    type Error = WhatifError;

    fn try_from(raw: RawCase) -> Result<Self, WhatifError> {
        let architecture: Architecture = raw.architecture.parse().map_err(|()| {
            WhatifError::field("architecture", &raw.architecture, "allreduce, ps or sumpter")
        })?;
        let link_gbps = raw.bandwidth_gbps;
        let case = Case {
            workers: raw.workers,
            servers: raw.servers,
            architecture,
            bandwidth_gbps: raw.bandwidth_gbps,
            transport_efficiency: raw.transport_efficiency,
            compression: raw.compression,
            fusion_bytes: raw.fusion_bytes,
            fusion_timeout_s: raw.fusion_timeout_s,
            partition_bytes: raw.partition_bytes,
            credit_bytes: raw.credit_bytes.unwrap_or_else(|| default_credit(Some(link_gbps))),
            overlap_forward: raw.overlap_forward,
            order: raw.order.as_deref().map(order).transpose()?,
            hop_latency_s: raw.hop_latency_s,
            update_bytes_per_s: raw.update_bytes_per_s,
            ..Case::default()
        };
        case.check()?;
        let choice = raw.local_reduction.as_deref().map(local_choice).transpose()?;
        let machines = match (raw.machines, choice) {
            (Some(toml), choice) => Some((toml, choice.unwrap_or_default())),
            (None, None | Some(LocalChoice::Rule)) => None,
            (None, Some(_)) => {
                let word = raw.local_reduction.unwrap_or_default();
                let expected = "rule without machines; give a list with devices";
                return Err(WhatifError::field("local_reduction", word, expected));
            }
        };
        let codec = raw.codec.map(Codec::try_from).transpose()?;
        Ok(Self { case, machines, codec })
    }
}

impl TryFrom<RawCodec> for Codec {
    type Error = WhatifError;

    fn try_from(raw: RawCodec) -> Result<Self, WhatifError> {
        let rates = raw.rates.map_or(CodecRates::FREE, |[encode, decode, add]| CodecRates {
            encode,
            decode,
            add,
        });
        Codec::new(&raw.name, rates, raw.cores, raw.least_bytes)
    }
}
