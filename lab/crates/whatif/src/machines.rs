//! Machines that are listed one by one: racks, links that differ, and what is inside a machine.

use std::collections::BTreeMap;

use sumpter_plan::{
    Architecture, Inside, InsideLink, LocalChoice, MachineList, PlanError, PlannedTrees, Role,
    Topology, TreePlan, inside, parse_machines, plan_job_trees, ring_gbps, server_weights,
};

use crate::{Case, WhatifError};

/// Machines that differ by less than this part have links of one speed.
const ROUNDING: f64 = 1e-9;

/// The machines of a list, as [`parse_machines`] reads it, and how their GPUs add.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    list: MachineList,
    topology: Topology,
    choice: LocalChoice,
}

/// A link inside a machine, in one direction. A byte of each partition puts `reduce` bytes on it
/// when it is summed and `result` bytes when the sum comes back; a byte that the machine sends to
/// others puts `sends` on it, one that it receives `receives`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InsideLimit {
    pub reduce: f64,
    pub result: f64,
    pub sends: f64,
    pub receives: f64,
    /// Bytes per second.
    pub rate: f64,
}

/// A ring over all GPUs of all machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ring {
    pub members: f64,
    /// Bytes per second of the slowest hop between machines, and inside one.
    pub network: f64,
    pub inside: f64,
}

impl Machines {
    /// Reads a list. `choice` is how the GPUs of machines that list their devices add.
    ///
    /// # Errors
    /// What [`parse_machines`] and [`MachineList::topology`] refuse, a choice other than the rule
    /// without any devices, or one that a machine cannot have.
    pub fn new(toml: &str, choice: LocalChoice) -> Result<Self, WhatifError> {
        let list = parse_machines(toml)?;
        let topology = list.topology()?;
        let machines = Self { list, topology, choice };
        let devices = machines.with_devices();
        if machines.choice != LocalChoice::Rule && devices.is_empty() {
            let expected = "rule, or GPU machines that list their devices";
            return Err(WhatifError::field("local reduction", machines.choice_word(), expected));
        }
        for (at, of) in devices {
            machines.inside(at, of, 1.0)?;
        }
        Ok(machines)
    }

    /// GPU machines.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.topology.cluster().workers()
    }

    /// CPU machines.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.topology.cluster().servers()
    }

    /// GPUs of all machines; a machine that does not list its devices counts as one.
    #[must_use]
    pub fn gpus(&self) -> usize {
        let of = |at: usize| self.list.machines[at].devices.map_or(1, |of| self.gpus_of(of));
        self.of_role(Role::Gpu).map(of).sum()
    }

    /// Racks; none where the list has none.
    #[must_use]
    pub fn racks(&self) -> usize {
        self.list.racks.len()
    }

    /// The slowest link of a GPU machine. [`Case::bandwidth_gbps`] over it is what all links
    /// between machines are multiplied by.
    #[must_use]
    pub fn bandwidth_gbps(&self) -> f64 {
        let gbps = |at: usize| self.list.machines[at].machine.bandwidth_gbps;
        self.of_role(Role::Gpu).map(gbps).fold(f64::INFINITY, f64::min)
    }

    /// The machines and racks.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether a [`Case`] says all of it: links of one speed, one rack or none, no devices.
    #[must_use]
    pub fn is_uniform(&self) -> bool {
        let gbps = self.bandwidth_gbps();
        let alike = |machine: &sumpter_plan::NamedMachine| machine.machine.bandwidth_gbps == gbps;
        self.racks() <= 1 && self.with_devices().is_empty() && self.list.machines.iter().all(alike)
    }

    /// The reduction trees: those of a job ([`plan_job_trees`]), or with [`Architecture::Ps`] flat
    /// ones whose roots are CPU machines.
    ///
    /// # Errors
    /// What [`plan_job_trees`] refuses.
    pub fn plan(&self, architecture: Architecture) -> Result<PlannedTrees, WhatifError> {
        if architecture != Architecture::Ps {
            return Ok(plan_job_trees(&self.topology)?);
        }
        let machines = self.topology.cluster().machines();
        let weight = |machine: &sumpter_plan::Machine| match machine.role {
            Role::Gpu => 0.0,
            Role::Cpu => machine.bandwidth_gbps,
        };
        let trees = TreePlan::flat(machines.iter().map(weight).collect());
        Ok(PlannedTrees::of(&self.topology, trees))
    }

    /// The reduction trees of a job whose tensors have a codec: flat, since hubs do not add codes.
    ///
    /// # Errors
    /// As [`Machines::plan`].
    pub(crate) fn plan_coded(
        &self,
        architecture: Architecture,
    ) -> Result<PlannedTrees, WhatifError> {
        if architecture == Architecture::Ps || self.racks() <= 1 {
            return self.plan(architecture);
        }
        let trees = TreePlan::flat(server_weights(self.topology.cluster().machines())?);
        Ok(PlannedTrees::of(&self.topology, trees))
    }

    /// Checks a case against the list.
    ///
    /// # Errors
    /// Other numbers of machines than the list has.
    pub(crate) fn check(&self, case: &Case) -> Result<(), WhatifError> {
        let counts =
            [("workers", case.workers, self.workers()), ("servers", case.servers, self.servers())];
        for (field, given, listed) in counts {
            if given != listed {
                let expected = format!("{listed}, as many as are listed");
                return Err(WhatifError::field(field, given, expected));
            }
        }
        Ok(())
    }

    /// What limits each machine inside, in the order of the list; `network` is what each carries of
    /// the model between machines. A machine without devices has no limits.
    ///
    /// # Errors
    /// A choice that a machine cannot have.
    pub(crate) fn limits(&self, network: &[f64]) -> Result<Vec<Vec<InsideLimit>>, WhatifError> {
        let limits = |(at, named): (usize, &sumpter_plan::NamedMachine)| {
            let Some(of) = named.devices else { return Ok(Vec::new()) };
            let links = self.inside(at, of, network[at])?.links;
            Ok(tightest(links.iter().filter(|link| !link.nic).flat_map(both)))
        };
        self.list.machines.iter().enumerate().map(limits).collect()
    }

    /// A ring over all GPUs, which visits one rack after another.
    pub(crate) fn ring(&self) -> Ring {
        let rate = |gbps: f64| gbps * 1e9 / 8.0;
        let devices = self.of_role(Role::Gpu).filter_map(|at| self.list.machines[at].devices);
        let inside = devices.map(|of| ring_gbps(&self.list.devices[of]));
        let by_rack = self.topology.workers_by_rack();
        let joined = by_rack.iter().filter(|workers| **workers > 0).count();
        let trunks = by_rack.iter().zip(self.topology.trunks_gbps());
        let trunks = trunks.filter(|(workers, _)| **workers > 0 && joined > 1);
        let core = self.topology.core_gbps().filter(|_| joined > 1);
        let network = trunks
            .map(|(_, trunk)| *trunk)
            .chain(core.map(|core| core / joined as f64))
            .fold(self.bandwidth_gbps(), f64::min);
        let alone = self.workers() == 1;
        Ring {
            members: self.gpus() as f64,
            network: if alone { f64::INFINITY } else { rate(network) },
            inside: rate(inside.fold(f64::INFINITY, f64::min)),
        }
    }

    /// How the GPUs of each kind of machine add, in words, by the name of the first of the kind.
    #[must_use]
    pub fn reductions(&self) -> Vec<(String, &'static str)> {
        let word = |(at, of): (usize, usize)| {
            let name = self.list.machines[at].name.clone();
            self.inside(at, of, 1.0).ok().map(|inside| (name, reduction_word(&inside)))
        };
        self.with_devices().into_iter().filter_map(word).collect()
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = usize> {
        let machines = self.list.machines.iter().enumerate();
        machines.filter(move |(_, named)| named.machine.role == role).map(|(at, _)| at)
    }

    fn gpus_of(&self, devices: usize) -> usize {
        let all = self.list.devices[devices].devices().iter();
        all.filter(|device| device.kind == sumpter_plan::DeviceKind::Gpu).count()
    }

    /// The first machine with each graph of devices, and the graph.
    fn with_devices(&self) -> Vec<(usize, usize)> {
        let mut first = BTreeMap::new();
        for at in self.of_role(Role::Gpu) {
            if let Some(of) = self.list.machines[at].devices {
                first.entry(of).or_insert(at);
            }
        }
        first.into_iter().map(|(of, at)| (at, of)).collect()
    }

    fn inside(&self, at: usize, devices: usize, network: f64) -> Result<Inside, PlanError> {
        let place = format!("machine \"{}\"", self.list.machines[at].name);
        inside(&place, &self.list.devices[devices], &self.choice, network)
    }

    fn choice_word(&self) -> &'static str {
        match self.choice {
            LocalChoice::Rule => "rule",
            LocalChoice::Direct => "direct",
            LocalChoice::CpuAssisted => "cpu-assisted",
            LocalChoice::ReduceScatter => "reduce-scatter",
            LocalChoice::Roots(_) => "roots",
        }
    }
}

fn reduction_word(inside: &Inside) -> &'static str {
    use sumpter_plan::LocalReduction::{CpuAssisted, ReduceBroadcast, ReduceScatter};
    match inside.reduction {
        None => "every GPU copies everything",
        Some(CpuAssisted) => "the CPU adds",
        Some(ReduceScatter) => "reduce-scatter",
        Some(ReduceBroadcast) => "reduce to roots",
    }
}

/// Both directions of a link.
fn both(link: &InsideLink) -> [InsideLimit; 2] {
    let (to, from) = (link.inward + link.exchange, link.outward + link.exchange);
    let rate = link.gbps * 1e9 / 8.0;
    [
        InsideLimit { reduce: to, result: from, sends: 0.0, receives: link.network, rate },
        InsideLimit { reduce: from, result: to, sends: link.network, receives: 0.0, rate },
    ]
}

/// Of links that carry the same, the slowest; none that carries nothing.
fn tightest(limits: impl Iterator<Item = InsideLimit>) -> Vec<InsideLimit> {
    let mut kept: Vec<InsideLimit> = Vec::new();
    for limit in limits {
        let loads = |one: &InsideLimit| [one.reduce, one.result, one.sends, one.receives];
        let same = |known: &&mut InsideLimit| {
            let pairs = loads(known).into_iter().zip(loads(&limit));
            pairs.into_iter().all(|(a, b)| (a - b).abs() <= ROUNDING)
        };
        if loads(&limit).iter().all(|load| *load == 0.0) {
            continue;
        }
        match kept.iter_mut().find(same) {
            Some(known) => known.rate = known.rate.min(limit.rate),
            None => kept.push(limit),
        }
    }
    kept
}
