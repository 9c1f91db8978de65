//! Which server sums which partition: the planner's answer for the tensors of a profile.

use sumpter_plan::{
    Architecture, Dealing, Machine, Placement, Plan, Role, TreePlan, largest_partition,
    server_weights,
};

use crate::{Case, Profile, WhatifError};

/// One partition of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The tensor, an index of [`Profile::tensors`].
    pub tensor: usize,
    /// Its size.
    pub bytes: u64,
    /// The machine that sums it: GPU machines are `0..n`, CPU machines `n..n+k`.
    pub machine: usize,
}

/// All partitions of a profile in the order in which they were dealt out: that in which tensors
/// become ready. It depends on neither bandwidth nor credit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The partitions, those of a tensor one after another.
    pub units: Vec<Unit>,
}

impl Layout {
    /// Cuts and places the tensors of a profile as the runtime does. An all-reduce has none.
    ///
    /// # Errors
    /// Values that [`Case::check`] refuses, or more servers than the planner takes.
    pub fn new(profile: &Profile, case: &Case) -> Result<Self, WhatifError> {
        case.check()?;
        let first = match case.architecture {
            Architecture::Allreduce => return Ok(Self { units: Vec::new() }),
            Architecture::Sumpter => 0,
            Architecture::Ps => case.workers as usize,
        };
        let mut placement = Placement::new(&plan(case)?)?;
        let mut units = Vec::new();
        for &tensor in profile.by_readiness() {
            let places = placement.place(profile.tensors()[tensor].bytes);
            units.extend(places.iter().map(|place| Unit {
                tensor,
                bytes: place.bytes,
                machine: first + place.server,
            }));
        }
        Ok(Self { units })
    }
}

/// The plan of the runtime: one server on every machine that may sum.
fn plan(case: &Case) -> Result<Plan, WhatifError> {
    let colocated = u32::from(case.architecture == Architecture::Sumpter);
    let bandwidth_gbps = case.bandwidth_gbps;
    let machine = |role, servers| Machine { role, bandwidth_gbps, servers };
    let mut machines = vec![machine(Role::Gpu, colocated); case.workers as usize];
    machines.resize(machines.len() + case.servers as usize, machine(Role::Cpu, 1));
    let weights = server_weights(&machines)?;
    Ok(Plan {
        epoch: 1,
        partition_bytes: largest_partition(case.partition_bytes, case.credit_bytes),
        lanes: vec![1; weights.len()],
        trees: TreePlan::flat(weights),
        dealing: Dealing::Balanced,
    })
}
