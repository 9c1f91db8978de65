//! Ring all-reduces of fusion buffers, by the rules of NetAI'20 (section 3, and the simulation
//! published with it).
//!
//! - A tensor that becomes ready joins the fusion buffer. The buffer is flushed then, if its bytes
//!   have reached the limit or the time since the last flush has; what is left goes when the last
//!   tensor is ready. (So a timeout takes effect at a tensor, not between two.)
//! - All-reduces run one after another. One of `S` bytes over `N` workers takes
//!   `2 S (N-1)/N / bandwidth / compression` to transmit and `(N-1) AddEst(S/N)` to add.

use crate::{Case, Profile};

/// When each tensor's sum is complete at all workers, in the order of [`Profile::tensors`], since
/// the beginning of the backward pass.
#[must_use]
pub fn completions(profile: &Profile, case: &Case) -> Vec<f64> {
    let tensors = profile.tensors();
    let order = profile.by_readiness();
    let mut done = vec![0.0; tensors.len()];
    let (mut first, mut bytes, mut flushed_s, mut free_s) = (0, 0, 0.0, 0.0_f64);
    for (position, &index) in order.iter().enumerate() {
        let now = tensors[index].ready_s;
        bytes += tensors[index].bytes;
        let full = bytes >= case.fusion_bytes || now - flushed_s >= case.fusion_timeout_s;
        if full || position + 1 == order.len() {
            free_s = free_s.max(now) + allreduce_s(profile, case, bytes as f64);
            for &member in &order[first..=position] {
                done[member] = free_s;
            }
            (first, bytes, flushed_s) = (position + 1, 0, now);
        }
    }
    done
}

/// One ring all-reduce of `bytes`.
fn allreduce_s(profile: &Profile, case: &Case, bytes: f64) -> f64 {
    let workers = f64::from(case.workers);
    let transmission = 2.0 * bytes * (workers - 1.0) / workers / case.link_rate();
    let addition = (workers - 1.0) * profile.addition_s(bytes / workers);
    transmission / case.compression + addition
}
