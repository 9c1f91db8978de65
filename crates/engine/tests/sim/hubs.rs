//! Who passes subtotals on in a simulated cluster: workers, and helpers in place of them.

use fastrand::Rng;
use sumpter_types::Rank;

use super::{Machines, Tensor};

impl Tensor {
    /// Who passes subtotals on, of machines and of racks; those that are fixed on their own.
    pub(super) fn any_hubs(
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

    /// Helpers that are the hubs of racks in place of workers, if some are; each is in one rack.
    pub(super) fn any_servers(
        &self,
        rng: &mut Rng,
        on: &Machines,
        lanes: &[usize],
        (n, hubs, rack_hubs): (usize, &[Rank], &mut Vec<Rank>),
    ) -> Vec<(Rank, Vec<Rank>)> {
        let mut servers = Vec::new();
        if !self.is_served || !self.is_racked(on) || self.rule().is_some() {
            return servers;
        }
        let helpers: Vec<usize> = lanes.iter().copied().filter(|lane| *lane >= n).collect();
        for (at, rack) in on.racks.iter().enumerate() {
            let node = |rank: &&Rank| hubs.is_empty() || hubs.contains(rank);
            let rooted = self.rooted().is_some_and(|root| rack.contains(&root));
            let here = helpers.iter().copied().filter(|lane| lane % on.racks.len() == at);
            let here: Vec<usize> = here.collect();
            let is_one = rack.iter().filter(node).count() < 2;
            if is_one || rooted || here.is_empty() || rng.u32(0..3) == 0 {
                continue;
            }
            let server = Rank(here[rng.usize(0..here.len())] as u32);
            rack_hubs.retain(|hub| !rack.contains(hub));
            rack_hubs.push(server);
            servers.push((server, rack.clone()));
        }
        rack_hubs.sort_unstable();
        servers
    }

    /// The same of a steady tensor.
    pub(super) fn hubs_beside(
        &self,
        fixed: &[Option<Rank>],
        on: &Machines,
    ) -> (Vec<Rank>, Vec<Rank>) {
        self.any_hubs(&mut Rng::with_seed(0), on, (true, fixed))
    }

    /// Who mirrors an element of a variable.
    pub(super) fn mirrors_of(&self, element: usize) -> Vec<Option<Rank>> {
        let at = element * self.request.dtype.size();
        let found = self.mirrors.iter().find(|of| of.span.contains(&at));
        found.map(|of| of.mirrors.to_vec()).unwrap_or_default()
    }

    /// The worker that differs from the others, if one does.
    pub(super) fn rooted(&self) -> Option<Rank> {
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
