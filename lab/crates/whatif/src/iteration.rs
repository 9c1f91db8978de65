//! From completed sums to the iteration: what it takes, and what it waits for.

use serde::Serialize;
use sumpter_plan::Architecture;

use crate::{Case, Layout, Machines, Profile, WhatifError, ring, stream};

/// Below this part of an iteration, overhead is not worth removing.
const NEGLIGIBLE: f64 = 0.01;

/// Stands for a link without limits.
const UNLIMITED: f64 = 1e9;

/// What an iteration waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Overhead is under 1 % of the iteration.
    None,
    /// Links without limits would remove more of the overhead than additions, and updates on
    /// servers, that cost nothing.
    Network,
    /// The other way round.
    Addition,
    /// Links inside machines without limits would remove more than either.
    Inside,
    /// A codec that takes no time would remove more than any of these.
    Codec,
}

/// The answer for one [`Case`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Compute time over iteration time: 1 is perfect scaling.
    pub scaling_factor: f64,
    /// From one backward pass to the next.
    pub iteration_time_s: f64,
    /// What communication adds to the iteration.
    pub overhead_s: f64,
    /// Why; `None` if that was not asked.
    pub bottleneck: Option<Bottleneck>,
}

/// Simulates one iteration.
///
/// # Errors
/// A case that [`Case::check`] refuses, or `overlap_forward` without forward times.
pub fn simulate(profile: &Profile, case: &Case) -> Result<Outcome, WhatifError> {
    simulate_placed(profile, &Layout::new(profile, case)?, case, true)
}

/// Simulates one iteration on machines that are listed. The case has their numbers, and as its
/// bandwidth that of the slowest link of a GPU machine; with another bandwidth all links between
/// machines are faster or slower in proportion.
///
/// # Errors
/// As [`simulate`]; numbers of machines other than the list's.
pub fn simulate_on(
    profile: &Profile,
    machines: &Machines,
    case: &Case,
) -> Result<Outcome, WhatifError> {
    simulate_placed(profile, &Layout::on(profile, machines, case)?, case, true)
}

/// As [`simulate`], with the [`Layout`] of another case that differs in nothing but bandwidth,
/// efficiency, compression, credit and overlap, and of the same profile with or without a
/// codec. Why it takes so long is up to four more simulations, made if `why`.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_placed(
    profile: &Profile,
    layout: &Layout,
    case: &Case,
    why: bool,
) -> Result<Outcome, WhatifError> {
    case.check()?;
    let compute_s = profile.iteration_s();
    let overhead_s = overhead(profile, layout, case)?;
    let iteration_time_s = compute_s + overhead_s;
    let bottleneck = if why { Some(bottleneck(profile, layout, case, overhead_s)?) } else { None };
    let scaling_factor = compute_s / iteration_time_s;
    Ok(Outcome { scaling_factor, iteration_time_s, overhead_s, bottleneck })
}

fn bottleneck(
    profile: &Profile,
    layout: &Layout,
    case: &Case,
    overhead_s: f64,
) -> Result<Bottleneck, WhatifError> {
    if overhead_s <= NEGLIGIBLE * (profile.iteration_s() + overhead_s) {
        return Ok(Bottleneck::None);
    }
    let bandwidth_gbps = case.bandwidth_gbps * UNLIMITED;
    let unlimited = overhead(profile, layout, &Case { bandwidth_gbps, ..*case })?;
    let added = if profile.has_addition() || case.update_bytes_per_s.is_some() {
        let case = Case { update_bytes_per_s: None, ..*case };
        overhead(&profile.without_addition(), layout, &case)?
    } else {
        overhead_s
    };
    let mut best = match unlimited <= added {
        true => (unlimited, Bottleneck::Network),
        false => (added, Bottleneck::Addition),
    };
    let mut consider = |overhead_s: f64, what| {
        if overhead_s < best.0 {
            best = (overhead_s, what);
        }
    };
    if layout.has_inside() {
        consider(overhead(profile, &layout.without_inside(), case)?, Bottleneck::Inside);
    }
    if profile.is_coded() {
        consider(overhead(&profile.with_free_codec(), layout, case)?, Bottleneck::Codec);
    }
    Ok(best.1)
}

fn overhead(profile: &Profile, layout: &Layout, case: &Case) -> Result<f64, WhatifError> {
    let done = match case.architecture {
        Architecture::Allreduce => ring::completions_on(profile, layout, case),
        Architecture::Sumpter | Architecture::Ps => stream::completions(profile, layout, case),
    };
    if case.overlap_forward {
        return overlapped(profile, &done);
    }
    let end = done.iter().copied().fold(0.0, f64::max);
    Ok((end - profile.backward_s()).max(0.0))
}

/// Overhead where each layer's forward pass waits for its own gradients only. What is neither
/// backward nor forward (the optimizer, the input) is done between them and waits for nothing.
fn overlapped(profile: &Profile, done: &[f64]) -> Result<f64, WhatifError> {
    let mut layer_done = vec![0.0_f64; profile.layers().len()];
    for (tensor, &done) in profile.tensors().iter().zip(done) {
        layer_done[tensor.layer] = layer_done[tensor.layer].max(done);
    }
    let mut forward = Vec::with_capacity(layer_done.len());
    for (index, layer) in profile.layers().iter().enumerate() {
        forward.push(layer.forward_s.ok_or_else(|| {
            let expected = "seconds of its forward pass, which overlapping it needs";
            WhatifError::field(format!("layers[{index}].forward_s"), "null", expected)
        })?);
    }
    let other_s = profile.iteration_s() - profile.backward_s() - forward.iter().sum::<f64>();
    let mut now = profile.backward_s() + other_s.max(0.0);
    for (forward_s, ready_s) in forward.iter().zip(layer_done) {
        now = now.max(ready_s) + forward_s;
    }
    Ok((now - profile.iteration_s()).max(0.0))
}
