//! Which server sums which partition: the planner's answer for the tensors of a profile.

use sumpter_plan::{
    Architecture, Dealing, Machine, Placement, Plan, Role, TreePlan, largest_partition,
    server_weights,
};

use crate::machines::Ring;
use crate::routes::Routes;
use crate::{Case, Machines, Profile, WhatifError};

/// One partition of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The tensor, an index of [`Profile::tensors`].
    pub tensor: usize,
    /// Its size.
    pub bytes: u64,
    /// The machine that sums it: GPU machines are `0..n`, CPU machines `n..n+k`, or those of
    /// [`Machines`] in the order of the list.
    pub machine: usize,
    /// Its way there: the machine, or the reduction tree among those of [`Machines`].
    pub(crate) route: usize,
}

/// All partitions of a profile in the order in which they were dealt out: that in which tensors
/// become ready. It depends on neither bandwidth nor credit.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The partitions, those of a tensor one after another.
    pub units: Vec<Unit>,
    /// Of machines that are listed.
    pub(crate) listed: Option<Listed>,
}

/// What a layout has of machines that are listed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listed {
    pub routes: Routes,
    pub ring: Ring,
    /// The slowest link of a GPU machine: a case's bandwidth is relative to it.
    pub bandwidth_gbps: f64,
}

impl Layout {
    /// Cuts and places the tensors of a profile as the runtime does. An all-reduce has none.
    ///
    /// # Errors
    /// Values that [`Case::check`] refuses, or more servers than the planner takes.
    pub fn new(profile: &Profile, case: &Case) -> Result<Self, WhatifError> {
        case.check()?;
        let first = match case.architecture {
            Architecture::Allreduce => return Ok(Self { units: Vec::new(), listed: None }),
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
                route: first + place.server,
            }));
        }
        Ok(Self { units, listed: None })
    }

    /// The same on machines that are listed. Where a [`Case`] says all of them, it is that of the
    /// case.
    ///
    /// # Errors
    /// As [`Layout::new`]; numbers of machines other than the list's.
    pub fn on(profile: &Profile, machines: &Machines, case: &Case) -> Result<Self, WhatifError> {
        case.check()?;
        machines.check(case)?;
        if machines.is_uniform() {
            return Self::new(profile, case);
        }
        let planned = match profile.is_coded() {
            true => machines.plan_coded(case.architecture)?,
            false => machines.plan(case.architecture)?,
        };
        let largest = largest_partition(case.partition_bytes, case.credit_bytes);
        let mut placement = Placement::new(&plan_of(planned.trees.clone(), largest))?;
        let mut units = Vec::new();
        if case.architecture != Architecture::Allreduce {
            for &tensor in profile.by_readiness() {
                let places = placement.place(profile.tensors()[tensor].bytes);
                units.extend(places.iter().map(|place| Unit {
                    tensor,
                    bytes: place.bytes,
                    machine: place.server,
                    route: place.tree,
                }));
            }
        }
        let limits = machines.limits(&planned.loads.machines)?;
        let (topology, trees) = (machines.topology(), placement.trees());
        let listed = Listed {
            routes: Routes::new(topology, &planned.trees, trees, limits),
            ring: machines.ring(),
            bandwidth_gbps: machines.bandwidth_gbps(),
        };
        Ok(Self { units, listed: Some(listed) })
    }

    /// Whether links inside machines are a limit.
    pub(crate) fn has_inside(&self) -> bool {
        self.listed
            .as_ref()
            .is_some_and(|listed| listed.routes.has_inside() || listed.ring.inside.is_finite())
    }

    /// The same without limits inside machines.
    #[must_use]
    pub(crate) fn without_inside(&self) -> Self {
        let mut layout = self.clone();
        if let Some(listed) = &mut layout.listed {
            listed.routes = listed.routes.without_inside();
            listed.ring.inside = f64::INFINITY;
        }
        layout
    }
}

/// The plan of the runtime: one server on every machine that may sum.
fn plan(case: &Case) -> Result<Plan, WhatifError> {
    let colocated = u32::from(case.architecture == Architecture::Sumpter);
    let bandwidth_gbps = case.bandwidth_gbps;
    let machine = |role, servers| Machine { role, bandwidth_gbps, servers };
    let mut machines = vec![machine(Role::Gpu, colocated); case.workers as usize];
    machines.resize(machines.len() + case.servers as usize, machine(Role::Cpu, 1));
    let trees = TreePlan::flat(server_weights(&machines)?);
    Ok(plan_of(trees, largest_partition(case.partition_bytes, case.credit_bytes)))
}

fn plan_of(trees: TreePlan, partition_bytes: u64) -> Plan {
    let lanes = vec![1; trees.nodes()];
    Plan { epoch: 1, partition_bytes, lanes, trees, dealing: Dealing::Balanced }
}
