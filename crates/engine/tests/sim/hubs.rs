//! Which workers pass on the subtotals of a simulated tensor's partitions.

use fastrand::Rng;
use sumpter_types::Rank;

use super::{Machines, Tensor};

impl Tensor {
    /// Who passes subtotals on, of machines and of racks; those that are fixed on their own.
    pub fn any_hubs(
        &self,
        rng: &mut Rng,
        on: &Machines,
        (steady, fixed): (bool, &[Option<Rank>]),
    ) -> (Vec<Rank>, Vec<Rank>) {
        let of_machines = match self.passes_on() {
            true => hubs(rng, &on.machines, (steady, fixed)),
            false => Vec::new(),
        };
        if !self.is_racked(on) {
            return (of_machines, Vec::new());
        }
        let node = |rank: &Rank| of_machines.is_empty() || of_machines.contains(rank);
        let nodes = |rack: &Vec<Rank>| rack.iter().copied().filter(node).collect();
        let racks: Vec<Vec<Rank>> = on.racks.iter().map(nodes).collect();
        let of_racks = hubs(rng, &racks, (steady, fixed));
        (of_machines, of_racks)
    }

    /// The same of a steady tensor.
    pub fn hubs_beside(&self, fixed: &[Option<Rank>], on: &Machines) -> (Vec<Rank>, Vec<Rank>) {
        self.any_hubs(&mut Rng::with_seed(0), on, (true, fixed))
    }

    /// Who mirrors an element of a variable.
    pub fn mirrors_of(&self, element: usize) -> Vec<Option<Rank>> {
        let at = element * self.request.dtype.size();
        let found = self.mirrors.iter().find(|of| of.span.contains(&at));
        found.map(|of| of.mirrors.to_vec()).unwrap_or_default()
    }

    /// The worker that differs from the others, if one does.
    pub fn rooted(&self) -> Option<Rank> {
        self.request.collective.has_root().then_some(self.request.root)
    }
}

/// Any member of each group, in the order of ranks; those that are fixed on their own.
fn hubs(rng: &mut Rng, of: &[Vec<Rank>], (steady, fixed): (bool, &[Option<Rank>])) -> Vec<Rank> {
    let one = |group: &Vec<Rank>| match fixed.iter().flatten().find(|r| group.contains(r)) {
        Some(fixed) => *fixed,
        None => group[if steady { 0 } else { rng.usize(0..group.len()) }],
    };
    let mut hubs: Vec<_> = of.iter().map(one).collect();
    hubs.sort_unstable();
    hubs
}
