//! Tensors that are encoded: with what, and what must come out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use sumpter_codec::{At, Codec, Key, Next, Previous, Registry, Spec, store_sums};
use sumpter_engine::{Carrier, Coding, Request};
use sumpter_types::{Collective, Dtype, Rank, ReduceOp, Round};

use super::{Machines, Part, Tensor};
use crate::model;

/// Codecs of which the sums of few small integers are exact in any order.
const EXACT: [&str; 6] = [
    "bf16",
    "topk:k=0.1",
    "topk:k=0.3,two_way=false",
    "topk:k=0.2,sum_ef=false",
    "randomk:k=0.2",
    "randomk:k=0.5,two_way=false,ef=false",
];
/// Others, whose sums depend on the order of addition.
const ROUNDING: [&str; 9] = [
    "int8",
    "int8:sum_ef=true",
    "int8:two_way=false",
    "fp8:ef=false",
    "onebit",
    "topk:k=0.1,momentum=0.5",
    "onebit:momentum=0.25,two_way=false",
    "dithering:bits=4,seed=7,ef=true",
    "dithering:bits=8,partition=natural",
];

/// For several workers of a machine, of which any may encode what all contribute: nothing is lost
/// but what is left out.
const SHARED: [&str; 3] = ["topk:k=0.1,two_way=false", "topk:k=0.4,two_way=false", "topk:k=0.2"];

/// Bytes of chunks of which all blocks of every type are a part.
pub const CHUNK_BYTES: u32 = 1024 * 8;

/// What a rank has kept, in the model.
#[derive(Default)]
struct Kept {
    residual: Vec<u8>,
    velocity: Vec<u8>,
}

/// Who keeps what the codes of sums leave out, of a lane that adds what these contribute.
pub(super) fn carrier_among(carrier: Option<Rank>, group: &[Rank]) -> Option<Carrier> {
    carrier.map(|rank| Carrier { rank, contributions: group.len() as u32 })
}

impl Tensor {
    /// Some tensors are encoded from now on, by their workers themselves.
    pub fn encode(&mut self, rng: &mut Rng, deterministic: bool) {
        if self.request.collective != Collective::AllReduce || rng.u32(0..4) > 0 {
            return;
        }
        let floats = [Dtype::F32, Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
        let dtype = floats[rng.usize(0..floats.len())];
        self.request = Request { dtype, op: ReduceOp::Sum, average: false, ..self.request };
        let all = match self.tiered {
            true => &SHARED[..],
            false if deterministic && rng.bool() => &ROUNDING[..],
            false => &EXACT[..],
        };
        self.codec = Some(all[rng.usize(0..all.len())]);
        (self.in_racks, self.rough) = (false, false);
        self.shards.clear();
        self.elements = if rng.bool() { rng.usize(1..3000) } else { 1024 * rng.usize(1..6) };
    }

    /// How contributions over the network are encoded in this epoch.
    pub fn coding(&self) -> Option<Arc<Coding>> {
        let codec = self.codec.filter(|_| !self.is_plain)?;
        let (spec, elements): (Spec, _) = (codec.parse().unwrap(), self.elements as u64);
        Some(Arc::new(Coding::new(&Registry::new(), &spec, elements, 0..elements).unwrap()))
    }

    /// Who keeps what the codes of sums leave out, by stretches of the tensor: always the same, or
    /// the hub of its machine.
    fn carriers(&self) -> Vec<(Range<usize>, Rank)> {
        let coding =
            self.codec.map(|text| Codec::new(&text.parse().unwrap(), self.elements as u64));
        let all = &self.everyone;
        if !coding.is_some_and(|codec| codec.unwrap().feeds_back_sums()) {
            return Vec::new();
        }
        let block = Coding::granularity(self.request.dtype);
        let blocks = self.bytes().div_ceil(block);
        let start = |index: usize| self.bytes().min(blocks * index / all.len() * block);
        let stretches = (0..all.len()).map(|index| (start(index)..start(index + 1), all[index]));
        stretches.filter(|(stretch, _)| !stretch.is_empty()).collect()
    }

    /// The same partitions, cut where another keeps what codes of sums leave out.
    pub(super) fn among_carriers(&self, parts: Vec<Part>, on: &Machines) -> Vec<Part> {
        let carriers = self.carriers();
        if carriers.is_empty() {
            return parts;
        }
        let mut out = Vec::new();
        for part in parts {
            for (stretch, rank) in &carriers {
                let start = part.offset.max(stretch.start);
                let end = (part.offset + part.bytes).min(stretch.end);
                if start < end {
                    let hub = part.hubs.iter().copied().find(|hub| on.of(*rank).contains(hub));
                    let (offset, bytes, carrier) = (start, end - start, hub.or(Some(*rank)));
                    out.push(Part { offset, bytes, carrier, ..part.clone() });
                }
            }
        }
        out
    }

    /// Whether the hub of a machine encodes for its workers.
    pub fn is_encoded_by_hubs(&self) -> bool {
        self.tiered
    }

    /// What all workers contribute in all rounds to each element.
    pub fn contributed(&self) -> Vec<f64> {
        let mut all = vec![0.0; self.elements];
        for (round, rank) in (0..self.rounds).flat_map(|r| self.members.iter().map(move |m| (r, m)))
        {
            let memory = self.memory(round, rank.0);
            let x = self.values(&memory.separate.unwrap_or(memory.bytes));
            all.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        all
    }

    /// Elements of the tensor's type.
    pub fn values(&self, bytes: &[u8]) -> Vec<f64> {
        let dtype = self.request.dtype;
        if matches!(dtype, Dtype::F32 | Dtype::F64) {
            return model::decode(dtype, bytes);
        }
        let mut wide = vec![0; 2 * bytes.len()];
        sumpter_sum::widen(dtype, &mut wide, bytes);
        model::decode(Dtype::F32, &wide)
    }

    /// The sums of all rounds, and what each rank has left out in the end.
    pub fn encoded_sums(&self) -> (Vec<Vec<u8>>, BTreeMap<Rank, Vec<u8>>) {
        let spec: Spec = self.codec.expect("an encoded tensor").parse().unwrap();
        let codec = Codec::new(&spec, self.elements as u64).unwrap();
        let mut kept = BTreeMap::new();
        let rounds = (0..self.rounds).map(|round| self.encoded_sum(&codec, round, &mut kept));
        let sums = rounds.collect();
        (sums, kept.into_iter().map(|(rank, Kept { residual, .. })| (rank, residual)).collect())
    }

    fn encoded_sum(&self, codec: &Codec, round: u32, kept: &mut BTreeMap<Rank, Kept>) -> Vec<u8> {
        let (tensor, dtype, wide) = (self.request.tensor, self.request.dtype, 4 * self.elements);
        let Spec { feedback, momentum, two_way, .. } = *codec.spec();
        let at = |key| At { key, ..At::default() };
        let sum_at = at(Key::of_sum(tensor, Round(round)));
        let mut sum: Option<Vec<u8>> = None;
        for rank in &self.members {
            let memory = self.memory(round, rank.0);
            let x = memory.separate.unwrap_or(memory.bytes);
            let Kept { residual, velocity } = kept
                .entry(*rank)
                .or_insert_with(|| Kept { residual: vec![0; wide], velocity: vec![0; wide] });
            let (mut next, mut next_velocity) = (vec![0; wide], vec![0; wide]);
            let previous = Previous {
                residual: feedback.then_some(&residual[..]),
                rescale: self.rescale(round),
                velocity: momentum.map(|_| &velocity[..]),
            };
            let after = Next {
                residual: feedback.then_some(&mut next[..]),
                velocity: momentum.map(|_| &mut next_velocity[..]),
            };
            let key = Key { tensor, round: Round(round), rank: *rank };
            let mut code = vec![0; codec.encoded_len(self.elements)];
            codec.encode(at(key), (dtype, &x), previous, after, &mut code).unwrap();
            (*residual, *velocity) = (next, next_velocity);
            match &mut sum {
                None if codec.sums_encoded() => sum = Some(code),
                None => {
                    let mut first = vec![0; wide];
                    codec.decode(sum_at, &code, (Dtype::F32, &mut first)).unwrap();
                    sum = Some(first);
                }
                Some(sum) if codec.sums_encoded() => {
                    sumpter_sum::reduce(ReduceOp::Sum, Dtype::F32, sum, &code);
                }
                Some(sum) => codec.decode_add(sum_at, &code, sum).unwrap(),
            }
        }
        let (sum, codec) = (sum.expect("a member"), codec.clone().without_memory());
        let mut out = vec![0; self.bytes()];
        let code = match (codec.sums_encoded(), two_way) {
            (true, _) => sum,
            (false, false) => {
                store_sums(dtype, &sum, &mut out);
                return out;
            }
            (false, true) => {
                let mut code = vec![0; codec.encoded_len(self.elements)];
                let (previous, next) = Default::default();
                codec.encode(sum_at, (Dtype::F32, &sum), previous, next, &mut code).unwrap();
                let mut decoded = vec![0; wide];
                codec.decode(sum_at, &code, (Dtype::F32, &mut decoded)).unwrap();
                for (stretch, rank) in self.carriers() {
                    let within = stretch.start / dtype.size()..stretch.end / dtype.size();
                    let residual = &mut kept.get_mut(&rank).unwrap().residual;
                    for i in within {
                        let at = 4 * i..4 * i + 4;
                        let of = |x: &[u8]| f32::from_ne_bytes(x[at.clone()].try_into().unwrap());
                        let left = of(residual) + (of(&sum) - of(&decoded));
                        residual[at].copy_from_slice(&left.to_ne_bytes());
                    }
                }
                code
            }
        };
        codec.decode(sum_at, &code, (dtype, &mut out)).unwrap();
        out
    }

    /// What residuals are multiplied by in a round: the learning rate has changed in some.
    pub fn rescale(&self, round: u32) -> f32 {
        if round % 3 == 2 && !self.tiered { 2.0 } else { 1.0 }
    }
}
