//! What workers contribute to a round, and what it must give.

use super::*;

impl Tensor {
    /// What a worker contributes to a round.
    pub fn memory(&self, round: u32, rank: u32) -> OwnedMemory {
        let Request { tensor: TensorId(id), op, dtype, .. } = self.request;
        if !self.staleness.is_synchronous() {
            let deltas = (0..self.elements).map(|element| model::delta(rank, element) as f64);
            let bytes = model::encode(dtype, deltas);
            return OwnedMemory { bytes: vec![0xaa; bytes.len()], separate: Some(bytes) };
        }
        let value = |i| match (model::contribution(op, id, round, rank, i), self.rough) {
            (value, false) => value as f64,
            (value, true) => f64::from(model::roughen(value, i)),
        };
        let bytes = model::encode(dtype, (0..self.elements).map(value));
        match self.in_place {
            true => OwnedMemory { separate: None, bytes },
            false => OwnedMemory { bytes: vec![0xaa; bytes.len()], separate: Some(bytes) },
        }
    }

    /// What a round of these members must give; of rough values, in the order that
    /// `deterministic` prescribes.
    pub fn expected(&self, round: u32, (members, on): (&[Rank], &Machines)) -> Vec<u8> {
        match self.rule() {
            Some(_) => self.after(round, on).1,
            None if !self.shards.is_empty() => self.sum_of_shards(round, on),
            None => self.sum(round, (members, on)),
        }
    }

    /// The sum of a round.
    pub fn sum(&self, round: u32, (members, on): (&[Rank], &Machines)) -> Vec<u8> {
        let Request { tensor: TensorId(id), op, dtype, collective, root, average, .. } =
            self.request;
        let contributors: Vec<_> =
            members.iter().copied().filter(|r| collective.contributes(*r, root)).collect();
        let divisor = if average { f64::from(self.contributors(&contributors)) } else { 1.0 };
        let raw = |rank: Rank, element| model::contribution(op, id, round, rank.0, element);
        if self.rough {
            let of = |ranks: &[Rank], element| {
                let values = ranks.iter().map(|rank| model::roughen(raw(*rank, element), element));
                values.reduce(|a, b| a + b).expect("a contributor")
            };
            let sum = |element: usize| {
                let on = on.among(members);
                let (hubs, rack_hubs) = match collective {
                    Collective::Broadcast => (Vec::new(), Vec::new()),
                    Collective::Update => self.hubs_beside(&self.mirrors_of(element), &on),
                    _ => self.hubs_beside(&[self.rooted()], &on),
                };
                let inner = |within: &[Rank]| {
                    let hubs: Vec<_> = hubs.iter().filter(|hub| within.contains(hub)).collect();
                    let own: Vec<_> =
                        contributors.iter().copied().filter(|r| within.contains(r)).collect();
                    let subtotals = hubs.iter().map(|hub| of(on.of(**hub), element));
                    subtotals.reduce(|a, b| a + b).unwrap_or_else(|| of(&own, element))
                };
                let racks = rack_hubs.iter().map(|hub| inner(on.rack_of(*hub)));
                f64::from(racks.reduce(|a, b| a + b).unwrap_or_else(|| inner(&contributors)))
            };
            return model::encode(dtype, (0..self.elements).map(sum));
        }
        let value = |element| {
            let values = contributors.iter().map(|r| model::as_stored(dtype, raw(*r, element)));
            model::reduce(op, values) as f64 / divisor
        };
        model::encode(dtype, (0..self.elements).map(value))
    }
}
