//! The question in JSON and its answer, for callers in other languages.

use serde::Deserialize;
use sumpter_plan::{Architecture, default_credit, largest_partition};

use crate::{
    Addition, Case, Layer, Layout, Order, Outcome, Profile, Tensor, WhatifError, simulate_placed,
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
}

/// Answers `{"profile": ..., "cases": [...], "bottleneck": true}` with a list of one [`Outcome`] a
/// case, in order. Cases that follow one another and share their placement share the work of it.
///
/// # Errors
/// What is not such JSON, and values that [`Profile::new`] or [`Case::check`] refuse.
pub fn answer_json(request: &str) -> Result<String, WhatifError> {
    let invalid = |error: serde_json::Error| WhatifError::Request(error.to_string());
    let Request { profile, cases, bottleneck } = serde_json::from_str(request).map_err(invalid)?;
    let profile = Profile::try_from(profile)?;
    let cases = cases.into_iter().map(Case::try_from).collect::<Result<Vec<_>, _>>()?;
    let mut placed: Option<(Case, Layout)> = None;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    for case in &cases {
        let layout = match placed.take() {
            Some((before, layout)) if same_placement(&before, case) => layout,
            _ => Layout::new(&profile, case)?,
        };
        outcomes.push(simulate_placed(&profile, &layout, case, bottleneck)?);
        placed = Some((*case, layout));
    }
    serde_json::to_string(&outcomes).map_err(invalid)
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

impl TryFrom<RawCase> for Case {
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
            ..Case::default()
        };
        case.check()?;
        Ok(case)
    }
}
