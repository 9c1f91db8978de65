//! Rounds that update variables: what the workers mirror of them, and what must come out.

use sumpter_engine::{Client, OpMemory, Place, Recovery, VariablePlace};
use sumpter_sum::AlignedBuf;
use sumpter_types::{Dtype, Rank, Rule, Staleness, TensorId, Update};

use super::worker::request;
use super::{Pages, ServerSpec};
use crate::pattern::Pattern;

const ELEMENT_BYTES: usize = 4;

/// A variable of no more bytes for each worker is mirrored by one of them, as in a real job.
const SMALL_BYTES: usize = 64 << 10;

/// The rule with coefficients that optimizers have by default; those of Adam for no particular
/// step, since they make no difference to what it costs.
pub(super) fn update(rule: Rule) -> Update {
    let take = match rule {
        Rule::Adam { .. } | Rule::Lion => 0.1,
        _ => 1.0,
    };
    Update {
        keep: 0.9,
        take,
        keep_square: 0.999,
        take_square: 0.001,
        epsilon: 1e-8,
        step: -1.0 / 1024.0,
        ..Update::new(rule)
    }
}

/// The places of each tensor, which is a variable: of a large one each worker mirrors an equal
/// share.
pub(super) fn variables(spec: &ServerSpec, places: &[Vec<Place>]) -> Vec<Vec<Place>> {
    let place = |place: &Place, tensor: usize| {
        let (bytes, workers) = (spec.tensors[tensor], spec.workers);
        let small = bytes <= SMALL_BYTES * workers;
        let mirror = if small { tensor % workers } else { place.offset * workers / bytes };
        let variable = VariablePlace {
            mirrors: [Some(Rank(mirror as u32)), None],
            home: place.number,
            offset: 0,
            staleness: Staleness::SYNCHRONOUS,
            lacks: false,
        };
        Place { variable: Some(variable), ..*place }
    };
    let of = |(tensor, places): (usize, &Vec<Place>)| {
        places.iter().map(|one| place(one, tensor)).collect()
    };
    places.iter().enumerate().map(of).collect()
}

/// Has a worker mirror its part of each variable, of zeros, and give it to the lanes.
pub(super) fn fill(
    client: &mut Client<OpMemory<Pages>>,
    recovery: &mut Recovery,
    rank: Rank,
    (update, places): (Update, &[Vec<Place>]),
) {
    let parts = 1 + update.rule.slots().len();
    for (tensor, places) in places.iter().enumerate() {
        let own = |place: &&Place| place.variable.is_some_and(|variable| variable.is_mirror(rank));
        for place in places.iter().filter(own) {
            let zeros = (0..parts).map(|_| AlignedBuf::new(place.bytes)).collect();
            let (id, first) = (TensorId(tensor as u32), place.origin / ELEMENT_BYTES);
            let share = first..first + place.bytes / ELEMENT_BYTES;
            client.mirror_from(id, (share, first), Dtype::F32, zeros);
        }
        recovery.fill(client, rank, &request(tensor, Some(update)), parts);
    }
}

/// What a variable must hold, round after round.
#[derive(Debug)]
pub(super) struct Reference {
    update: Update,
    gradient: Pattern,
    /// The value and the slots.
    parts: Vec<Pattern>,
}

impl Reference {
    /// A variable of zeros, to which the pattern of `scale` is applied in each round.
    pub(super) fn new(update: Update, scale: u32) -> Reference {
        let parts = (0..=update.rule.slots().len()).map(|_| Pattern::new(0)).collect();
        Reference { update, gradient: Pattern::new(scale), parts }
    }

    /// The value after one more round.
    pub(super) fn step(&mut self) -> &Pattern {
        Pattern::update(&self.update, &mut self.parts, &self.gradient);
        &self.parts[0]
    }
}

#[cfg(test)]
mod tests {
    use sumpter_engine::Place;
    use sumpter_types::GroupId;

    use super::*;

    #[test]
    fn the_reference_takes_the_steps_of_the_rule() {
        let sgd = Rule::Sgd { momentum: false, nesterov: false };
        let mut reference = Reference::new(update(sgd), 512);
        for round in 1..4 {
            let value = reference.step();
            let first: Vec<u8> =
                (1..=7).flat_map(|i| (-0.5 * (i * round) as f32).to_ne_bytes()).collect();
            assert_eq!(value.differs_at(&first), None);
        }
        let momentum = Rule::Sgd { momentum: true, nesterov: false };
        let mut reference = Reference::new(update(momentum), 1024);
        reference.step();
        assert_eq!(reference.step().differs_at(&(-2.9_f32).to_ne_bytes()), None);
    }

    #[test]
    fn every_worker_mirrors_its_share_of_a_large_variable_and_small_ones_in_turns() {
        let spec = ServerSpec {
            workers: 2,
            lanes: 1,
            tensors: vec![1 << 20, 8, 8],
            partition_bytes: 1 << 18,
            chunk_bytes: 1 << 18,
            credit_bytes: 1 << 20,
            rounds: 1,
            rules: Vec::new(),
        };
        let place = |number, at| Place::new(sumpter_endpoint::ConnId(0), number, at, GroupId(0), 1);
        let large = (0..4).map(|i| place(i, ((i as usize) << 18, 1 << 18))).collect();
        let places = [large, vec![place(0, (0, 8))], vec![place(0, (0, 8))]];
        let mirrors = variables(&spec, &places).into_iter().map(|places| {
            let mirror =
                |place: Place| place.variable.and_then(|v| v.mirrors[0]).map(|rank| rank.0);
            places.into_iter().map(mirror).collect::<Vec<_>>()
        });
        let of = |ranks: &[u32]| ranks.iter().copied().map(Some).collect::<Vec<_>>();
        let expected = [of(&[0, 0, 1, 1]), of(&[1]), of(&[0])];
        assert_eq!(mirrors.collect::<Vec<_>>(), expected);
    }
}
