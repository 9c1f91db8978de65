//! What is inside a machine: CPUs, PCIe switches, GPUs and NICs as a tree of links, and NVLink.
//!
//! Invariants of [`Devices`]: names differ; every device but one CPU is attached to another, with
//! no cycle, GPUs and NICs to a CPU or a switch and to nothing else; every link has a bandwidth
//! within [`BANDWIDTH_GBPS`].

mod loads;
mod reduce;

pub use reduce::{
    Inside, InsideLink, InsideReport, LinkLoad, LocalChoice, LocalReduction, all_reduce_s,
    assisted_s, best_split, cpu_link_load, gpu_link_load, inside, local_reduction, reduce_inside,
    ring_gbps,
};

use crate::machine::bandwidth_expected;
use crate::{BANDWIDTH_GBPS, PlanError};

/// Most devices of a machine: beyond any, few enough for a plan at once.
const MAX_DEVICES: usize = 256;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A socket with its memory: a NUMA node.
    Cpu,
    /// A PCIe switch.
    Switch,
    /// What contributes gradients.
    Gpu,
    /// A network interface.
    Nic,
}

/// A device and its link to the one that it is attached to.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name, once in the machine.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The name of the device that it is attached to; none for one CPU.
    pub parent: Option<String>,
    /// Bandwidth of that link, each way.
    pub gbps: Option<f64>,
}

/// GPUs that reach each other without PCIe.
#[derive(Clone, Debug, PartialEq)]
pub struct NvLink {
    /// Their names.
    pub devices: Vec<String>,
    /// What each of them can send to the others, each way.
    pub gbps: f64,
}

/// The devices of one machine, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    devices: Vec<Device>,
    /// What each is attached to, by number.
    parents: Vec<Option<usize>>,
    /// The island of each GPU that has NVLink.
    islands: Vec<Option<usize>>,
    nvlinks: Vec<NvLink>,
}

impl Devices {
    /// Checks the devices of a machine. `place` begins every message.
    ///
    /// # Errors
    /// A name that is given twice or not at all, a link without a speed, a cycle, or a machine with
    /// no GPU, no NIC, or not exactly one device at its top.
    pub fn new(place: &str, devices: Vec<Device>, nvlinks: Vec<NvLink>) -> Result<Self, PlanError> {
        let at = |name: &str, key: &str| format!("{place}: device \"{name}\": {key}");
        if devices.len() > MAX_DEVICES {
            let expected = format!("at most {MAX_DEVICES}");
            return Err(PlanError::field(format!("{place}: devices"), devices.len(), expected));
        }
        let find = |name: &str| devices.iter().position(|device| device.name == name);
        let mut parents = Vec::new();
        for (number, Device { name, kind, parent, gbps }) in devices.iter().enumerate() {
            if find(name) != Some(number) {
                let expected = "a name of its own";
                return Err(PlanError::field(at(name, "name"), format!("{name:?}"), expected));
            }
            let Some(parent) = parent else {
                if *kind != DeviceKind::Cpu {
                    let expected = "the name of a cpu or switch; only one cpu has none";
                    return Err(PlanError::field(at(name, "parent"), "missing", expected));
                }
                parents.push(None);
                continue;
            };
            let holds = |device: &Device| match device.kind {
                DeviceKind::Cpu => true,
                DeviceKind::Switch => *kind != DeviceKind::Cpu,
                DeviceKind::Gpu | DeviceKind::Nic => false,
            };
            let Some(found) = find(parent).filter(|found| holds(&devices[*found])) else {
                let expected = match kind {
                    DeviceKind::Cpu => "the name of a cpu of this machine",
                    _ => "the name of a cpu or switch of this machine",
                };
                let value = format!("{parent:?}");
                return Err(PlanError::field(at(name, "parent"), value, expected));
            };
            let speed = gbps.ok_or_else(|| {
                PlanError::field(at(name, "gbps"), "missing", bandwidth_expected())
            })?;
            if !BANDWIDTH_GBPS.contains(&speed) {
                return Err(PlanError::field(at(name, "gbps"), speed, bandwidth_expected()));
            }
            parents.push(Some(found));
        }
        check_shape(place, &devices, &parents)?;
        let islands = islands(place, &devices, &nvlinks)?;
        Ok(Self { devices, parents, islands, nvlinks })
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The NVLink islands.
    #[must_use]
    pub fn nvlinks(&self) -> &[NvLink] {
        &self.nvlinks
    }

    /// Numbers of the devices of a kind.
    pub(crate) fn of(&self, kind: DeviceKind) -> impl Iterator<Item = usize> {
        (0..self.devices.len()).filter(move |&device| self.devices[device].kind == kind)
    }

    /// A device and everything above it.
    fn upwards(&self, device: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(device), |&device| self.parents[device])
    }

    /// The socket that a device is attached to.
    fn cpu_of(&self, device: usize) -> usize {
        let cpu = |device: &usize| self.devices[*device].kind == DeviceKind::Cpu;
        self.upwards(device).find(cpu).unwrap_or(device)
    }

    /// The topmost device below the socket that a GPU or NIC is attached to: what the rule counts
    /// as its switch. All below it, cascaded switches together, share one link to the CPU. A device
    /// that is attached to the CPU shares its link with nothing and is a switch by itself.
    fn switch_of(&self, device: usize) -> usize {
        let cpu = self.cpu_of(device);
        self.upwards(device).take_while(|above| *above != cpu).last().unwrap_or(device)
    }
}

/// Whether the devices are one tree that has GPUs and a NIC.
fn check_shape(
    place: &str,
    devices: &[Device],
    parents: &[Option<usize>],
) -> Result<(), PlanError> {
    for first in 0..devices.len() {
        let mut steps = std::iter::successors(Some(first), |&device| parents[device]);
        if steps.nth(devices.len()).is_some() {
            let mut way = vec![first];
            while let Some(next) = parents[way[way.len() - 1]].filter(|next| !way.contains(next)) {
                way.push(next);
            }
            // Those before the cycle are no part of it.
            let again = parents[way[way.len() - 1]];
            let start = way.iter().position(|device| Some(*device) == again).unwrap_or(0);
            let names: Vec<&str> = way[start..]
                .iter()
                .chain(&again)
                .map(|&device| devices[device].name.as_str())
                .collect();
            let cycle = format!("a cycle, {}", names.join(" -> "));
            return Err(PlanError::field(format!("{place}: devices"), cycle, "a tree"));
        }
    }
    let tops = parents.iter().filter(|parent| parent.is_none()).count();
    if tops != 1 {
        let expected = "exactly one cpu without a parent: give each other cpu the one it reaches";
        return Err(PlanError::field(format!("{place}: cpus without a parent"), tops, expected));
    }
    for (kind, word) in [(DeviceKind::Gpu, "GPUs"), (DeviceKind::Nic, "NICs")] {
        if !devices.iter().any(|device| device.kind == kind) {
            let expected = "at least one in a machine that lists its devices";
            return Err(PlanError::field(format!("{place}: {word}"), 0, expected));
        }
    }
    Ok(())
}

/// The island of each GPU that is in one.
fn islands(
    place: &str,
    devices: &[Device],
    nvlinks: &[NvLink],
) -> Result<Vec<Option<usize>>, PlanError> {
    let mut islands = vec![None; devices.len()];
    for (number, nvlink) in nvlinks.iter().enumerate() {
        let field = |key| format!("{place}: nvlink {}: {key}", number + 1);
        if !BANDWIDTH_GBPS.contains(&nvlink.gbps) {
            return Err(PlanError::field(field("gbps"), nvlink.gbps, bandwidth_expected()));
        }
        if nvlink.devices.len() < 2 {
            let expected = "at least two GPUs";
            return Err(PlanError::field(field("devices"), nvlink.devices.len(), expected));
        }
        for name in &nvlink.devices {
            let gpu = |device: &Device| device.name == *name && device.kind == DeviceKind::Gpu;
            let Some(device) = devices.iter().position(gpu).filter(|&at| islands[at].is_none())
            else {
                let expected = "GPUs of this machine, each once";
                return Err(PlanError::field(field("devices"), format!("{name:?}"), expected));
            };
            islands[device] = Some(number);
        }
    }
    Ok(islands)
}
