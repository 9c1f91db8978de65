//! Ring all-reduces of fusion buffers, by the rules of NetAI'20 (section 3, and the simulation
//! published with it).
//!
//! - A tensor that becomes ready joins the fusion buffer. The buffer is flushed then, if its bytes
//!   have reached the limit or the time since the last flush has; what is left goes when the last
//!   tensor is ready. (So a timeout takes effect at a tensor, not between two.)
//! - All-reduces run one after another. One of `S` bytes over `N` workers takes
//!   `2 S (N-1)/N / bandwidth / compression` to transmit and `(N-1) AddEst(S/N)` to add.
//! - What is not in the paper: each of the `2(N-1)` steps may have a latency of its own. With a
//!   codec, the partial sums of the first `N-1` steps and the sums of the others travel encoded:
//!   each member encodes `S (N-1)/N` and decodes and adds as much, encodes its `S/N` of the sum and
//!   decodes all of it. As additions, that does not overlap with transmission.

use crate::layout::Layout;
use crate::{Case, Profile};

/// The ring of an all-reduce: its members, and how fast the slowest hop is, in bytes per second.
struct Hops {
    members: f64,
    rate: f64,
}

/// When each tensor's sum is complete at all workers, in the order of [`Profile::tensors`], since
/// the beginning of the backward pass.
#[must_use]
pub fn completions(profile: &Profile, case: &Case) -> Vec<f64> {
    over(profile, case, &Hops { members: f64::from(case.workers), rate: case.link_rate() })
}

/// The same on the machines of a layout: where they are listed, over all their GPUs.
#[must_use]
pub fn completions_on(profile: &Profile, layout: &Layout, case: &Case) -> Vec<f64> {
    let Some(listed) = &layout.listed else { return completions(profile, case) };
    let network = case.link_rate() / (listed.bandwidth_gbps * 1e9 / 8.0) * listed.ring.network;
    let rate = network.min(listed.ring.inside);
    over(profile, case, &Hops { members: listed.ring.members, rate })
}

fn over(profile: &Profile, case: &Case, hops: &Hops) -> Vec<f64> {
    let tensors = profile.tensors();
    let order = profile.by_readiness();
    let mut done = vec![0.0; tensors.len()];
    let (mut first, mut bytes, mut flushed_s, mut free_s) = (0, 0, 0.0, 0.0_f64);
    let mut fused = Fused::default();
    for (position, &index) in order.iter().enumerate() {
        let now = tensors[index].ready_s;
        bytes += tensors[index].bytes;
        fused.add(profile, index, hops.members);
        let full = bytes >= case.fusion_bytes || now - flushed_s >= case.fusion_timeout_s;
        if full || position + 1 == order.len() {
            free_s = free_s.max(now) + std::mem::take(&mut fused).seconds(profile, case, hops);
            for &member in &order[first..=position] {
                done[member] = free_s;
            }
            (first, bytes, flushed_s) = (position + 1, 0, now);
        }
    }
    done
}

/// What one ring all-reduce has to do.
#[derive(Default)]
struct Fused {
    /// Bytes of contributions and sums together.
    wire_bytes: f64,
    /// Bytes that are added as they are.
    plain_bytes: f64,
    /// What a member's codec takes.
    codec_s: f64,
}

impl Fused {
    fn add(&mut self, profile: &Profile, tensor: usize, members: f64) {
        let (bytes, coding) = (profile.tensors()[tensor].bytes as f64, profile.coding(tensor));
        self.wire_bytes += bytes * (coding.contribution + coding.answer);
        let Some(add_s) = coding.add_s else {
            self.plain_bytes += bytes;
            return;
        };
        let others = (members - 1.0) / members;
        let sum_s = coding.answer_s / members + coding.decode_s;
        self.codec_s += bytes * ((coding.encode_s + add_s) * others + sum_s);
    }

    fn seconds(&self, profile: &Profile, case: &Case, hops: &Hops) -> f64 {
        let &Hops { members, rate } = hops;
        let transmission = self.wire_bytes * (members - 1.0) / members / rate;
        let addition = match self.plain_bytes {
            0.0 => 0.0,
            bytes => (members - 1.0) * profile.addition_s(bytes / members),
        };
        let latency = 2.0 * (members - 1.0) * case.hop_latency_s;
        // A ring of one member neither sends nor encodes.
        let codec = if members > 1.0 { self.codec_s } else { 0.0 };
        transmission / case.compression + addition + latency + codec
    }
}
