//! The network between machines: which machines share a rack, and what the rack's uplink carries.
//!
//! A rack's *trunk* joins its switch to the core. Without racks, or where trunks carry all that the
//! rack's machines can send, the machines' own links are the only limit; a trunk that carries less
//! is *oversubscribed*.
//!
//! Invariant of [`Topology`]: either no racks, or every machine in one and every rack with a
//! machine; bandwidths within [`BANDWIDTH_GBPS`](crate::BANDWIDTH_GBPS).

use crate::machine::bandwidth_expected;
use crate::{BANDWIDTH_GBPS, Cluster, PlanError, Role};

/// The rack of each machine and what each rack's trunk carries, from what members say: the name of
/// the machine's rack and of what its trunk carries, as far as these are known, and the machine's
/// bandwidth, in Gb/s.
///
/// A machine of which no rack is known is one. The least that is said of a trunk counts; one of
/// which nothing is said carries all that the rack's machines can send.
pub fn racks_by_name<'a>(
    machines: impl Iterator<Item = (Option<&'a str>, Option<f64>, f64)>,
) -> (Vec<usize>, Vec<f64>) {
    let mut names: Vec<Option<&str>> = Vec::new();
    let mut trunks: Vec<(Option<f64>, f64)> = Vec::new();
    let mut rack_of = Vec::new();
    for (name, said, bandwidth_gbps) in machines {
        let known = names.iter().position(|known| name.is_some() && *known == name);
        let at = known.unwrap_or(names.len());
        if at == names.len() {
            names.push(name);
            trunks.push((None, 0.0));
        }
        let (trunk, of_machines) = &mut trunks[at];
        *trunk = [*trunk, said].into_iter().flatten().reduce(f64::min);
        *of_machines += bandwidth_gbps;
        rack_of.push(at);
    }
    let most = *BANDWIDTH_GBPS.end();
    let trunk = |(said, of_machines): (Option<f64>, f64)| said.unwrap_or(of_machines).min(most);
    (rack_of, trunks.into_iter().map(trunk).collect())
}

/// The machines of a job and the racks they are in.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    cluster: Cluster,
    rack_of: Vec<usize>,
    trunks_gbps: Vec<f64>,
    core_gbps: Option<f64>,
}

impl Topology {
    /// Machines between which only their own links are a limit.
    #[must_use]
    pub fn flat(cluster: Cluster) -> Self {
        Self { cluster, rack_of: Vec::new(), trunks_gbps: Vec::new(), core_gbps: None }
    }

    /// Machines in racks: `rack_of` numbers the rack of each machine, `trunks_gbps` has what each
    /// rack's trunk carries each way, `core_gbps` what all racks together may send to each other,
    /// if that is a limit.
    ///
    /// # Errors
    /// A machine without a rack, a rack without a machine, or a bandwidth out of range.
    pub fn new(
        cluster: Cluster,
        rack_of: Vec<usize>,
        trunks_gbps: Vec<f64>,
        core_gbps: Option<f64>,
    ) -> Result<Self, PlanError> {
        if rack_of.len() != cluster.machines().len() {
            let expected = format!("one for each of {} machines", cluster.machines().len());
            return Err(PlanError::field("number of racks of machines", rack_of.len(), expected));
        }
        let racks = trunks_gbps.len();
        let mut used = vec![false; racks];
        for (machine, &rack) in rack_of.iter().enumerate() {
            if let Some(used) = used.get_mut(rack) {
                *used = true;
            } else {
                let field = format!("rack of machine {}", machine + 1);
                return Err(PlanError::field(field, rack, format!("a number below {racks}")));
            }
        }
        for (rack, trunk) in trunks_gbps.iter().enumerate() {
            let field = |key| format!("rack {}: {key}", rack + 1);
            if !BANDWIDTH_GBPS.contains(trunk) {
                return Err(PlanError::field(field("trunk_gbps"), trunk, bandwidth_expected()));
            }
            if !used[rack] {
                return Err(PlanError::field(field("machines"), 0, "at least one machine in it"));
            }
        }
        if let Some(core) = core_gbps.filter(|core| !BANDWIDTH_GBPS.contains(core)) {
            return Err(PlanError::field("core_gbps", core, bandwidth_expected()));
        }
        Ok(Self { cluster, rack_of, trunks_gbps, core_gbps })
    }

    /// The machines.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The rack of each machine; empty without racks.
    #[must_use]
    pub fn rack_of(&self) -> &[usize] {
        &self.rack_of
    }

    /// What the trunk of each rack carries each way, in Gb/s.
    #[must_use]
    pub fn trunks_gbps(&self) -> &[f64] {
        &self.trunks_gbps
    }

    /// What all racks together may send to each other, in Gb/s, if that is a limit.
    #[must_use]
    pub fn core_gbps(&self) -> Option<f64> {
        self.core_gbps
    }

    /// GPU machines of each rack.
    #[must_use]
    pub fn workers_by_rack(&self) -> Vec<u32> {
        let mut workers = vec![0; self.trunks_gbps.len()];
        for (machine, &rack) in self.cluster.machines().iter().zip(&self.rack_of) {
            workers[rack] += u32::from(machine.role == Role::Gpu);
        }
        workers
    }
}
