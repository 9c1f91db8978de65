//! The states that a variable may be in where workers die: each element of each round is what those
//! made of it who lived at some time while the round lasted.

use super::*;

/// An element of a variable in each of its parts.
type ElementState = Vec<Vec<u8>>;

impl World {
    /// Follows a variable from round to round by what workers got, and compares what is mirrored at
    /// the end.
    pub(super) fn check_states(&self, index: usize, tensor: &Tensor) {
        let Request { tensor: id, dtype, .. } = tensor.request;
        let (size, master) = (dtype.size(), dtype.accumulator().size());
        let rule = tensor.rule().expect("a variable");
        let parts = model::parts(rule, dtype, (id.0, tensor.elements));
        let element = |parts: &[Vec<u8>], at: usize| -> ElementState {
            parts.iter().map(|part| part[at * master..][..master].to_vec()).collect()
        };
        let of = |at| BTreeSet::from([element(&parts, at)]);
        let mut states: Vec<BTreeSet<ElementState>> = (0..tensor.elements).map(of).collect();
        for round in 0..tensor.rounds {
            let Some(rank) = tensor.members.first() else { return };
            let got = &self.workers[rank.0 as usize].results[&(index, round)];
            let (first, last) = self.spans[&(index, round)];
            let sum = |(living, on): &(BTreeSet<usize>, Machines)| {
                let lives = |rank: &Rank| living.contains(&(rank.0 as usize));
                let members: Vec<Rank> = tensor.everyone.iter().copied().filter(lives).collect();
                tensor.sum(round, (&members, on))
            };
            let gradients: Vec<_> = self.generations[first..=last].iter().map(sum).collect();
            for (at, states) in states.iter_mut().enumerate() {
                let bytes = at * size..(at + 1) * size;
                let mut next = BTreeSet::new();
                for before in &*states {
                    for gradient in &gradients {
                        let mut after = before.clone();
                        let update = model::update(rule, round);
                        let weights =
                            model::apply(&update, dtype, &mut after, &gradient[bytes.clone()]);
                        if weights == got[bytes.clone()] {
                            next.insert(after);
                        }
                    }
                }
                assert!(!next.is_empty(), "element {at} of round {round} of {tensor:?}");
                *states = next;
            }
        }
        for span in tensor.mirrors.iter().map(|of| elements_of(of, size)) {
            self.check_mirrored(tensor, span, &states);
        }
    }

    /// What is mirrored of an element is one of its possible states, and both mirrors have the
    /// same.
    fn check_mirrored(
        &self,
        tensor: &Tensor,
        (span, ranks): (Range<usize>, Vec<Rank>),
        states: &[BTreeSet<ElementState>],
    ) {
        let master = tensor.request.dtype.accumulator().size();
        for element in span {
            let mut known: Option<ElementState> = None;
            for rank in &ranks {
                let client = &self.workers[rank.0 as usize].client;
                let found = client.mirrored(tensor.request.tensor, &(element..element + 1));
                let Some(found) = found else { continue };
                let state: ElementState =
                    found.iter().map(|part| part[..master].to_vec()).collect();
                let is_possible = states[element].contains(&state);
                assert!(is_possible, "the state of element {element} on rank {rank}: {tensor:?}");
                let same = known.as_ref().is_none_or(|known| *known == state);
                assert!(same, "the mirrors differ in element {element}: {tensor:?}");
                known = Some(state);
            }
            assert!(known.is_some(), "element {element} is mirrored nowhere: {tensor:?}");
        }
    }
}

/// The elements of a stretch, and who mirrors them.
fn elements_of(of: &MirroredSpan, size: usize) -> (Range<usize>, Vec<Rank>) {
    let elements = of.span.start / size..of.span.end / size;
    (elements, of.mirrors.iter().flatten().copied().collect())
}
