//! Reads a machine list: the TOML of `sumpter plan --machines`.

use std::collections::HashSet;

use serde::Deserialize;

use crate::machine::{bandwidth_expected, check_count, count_expected};
use crate::request::loose::{Loose, within};
use crate::{
    BANDWIDTH_GBPS, Cluster, Device, DeviceKind, Devices, MAX_MACHINES, Machine, NvLink, PlanError,
    Role, Topology,
};

/// Entries of a list stand for up to this many machines together: as many as may be of each role.
const MAX_LISTED: usize = 2 * MAX_MACHINES as usize;

/// What is given twice, as a bandwidth and as what it follows from, may differ by this part.
const ROUNDING: f64 = 1e-3;

/// The machines of a list, the racks they are in, and what is inside them.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineList {
    /// The machines, in the order of the list.
    pub machines: Vec<NamedMachine>,
    /// The racks; none if the list has none.
    pub racks: Vec<NamedRack>,
    /// What all racks together may send to each other, if that is a limit.
    pub core_gbps: Option<f64>,
    /// The devices of machines that list them, by [`NamedMachine::devices`].
    pub devices: Vec<Devices>,
}

/// A machine with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedMachine {
    /// What the list calls it, numbered where one entry stands for several.
    pub name: String,
    /// The machine; every listed machine has one server.
    pub machine: Machine,
    /// Its rack, an index of [`MachineList::racks`].
    pub rack: Option<usize>,
    /// Its network interfaces, if they are listed.
    pub nics: Vec<Nic>,
    /// Its devices, an index of [`MachineList::devices`].
    pub devices: Option<usize>,
}

/// A network interface of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Its bandwidth each way.
    pub gbps: f64,
    /// Its NUMA node, if it is known.
    pub numa: Option<u32>,
}

/// A rack with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedRack {
    /// What the list calls it, numbered where one entry stands for several.
    pub name: String,
    /// What its trunk carries each way.
    pub trunk_gbps: f64,
}

impl MachineList {
    /// The machines and racks, for planning.
    ///
    /// # Errors
    /// No GPU machine, or too many machines.
    pub fn topology(&self) -> Result<Topology, PlanError> {
        let cluster = Cluster::new(self.machines.iter().map(|named| named.machine).collect())?;
        if self.racks.is_empty() {
            return Ok(Topology::flat(cluster));
        }
        let rack_of = self.machines.iter().filter_map(|named| named.rack).collect();
        let trunks = self.racks.iter().map(|rack| rack.trunk_gbps).collect();
        Topology::new(cluster, rack_of, trunks, self.core_gbps)
    }
}

/// Reads a machine list. An entry is one machine, or `count` alike; `name` and `count` may be left
/// out. A machine's bandwidth is `bandwidth_gbps`, or the sum of its `nics`. With racks, an entry
/// names its rack, and stands for `count` machines in each of them where the rack has a `count`.
///
/// ```
/// let list = sumpter_plan::parse_machines(
///     r#"
///     [[rack]]
///     name = "row"
///     count = 2
///     trunk_gbps = 100
///
///     [[machine]]
///     name = "trainer"
///     role = "gpu"
///     rack = "row"
///     nics = [{ name = "eth0", gbps = 50 }, { name = "eth1", gbps = 50 }]
///
///     [[machine]]
///     name = "idle"
///     role = "cpu"
///     rack = "row-2"
///     bandwidth_gbps = 25
///     "#,
/// )?;
/// let names: Vec<&str> = list.machines.iter().map(|machine| machine.name.as_str()).collect();
/// assert_eq!(names, ["row-1/trainer", "row-2/trainer", "idle"]);
/// assert_eq!(list.machines[0].machine.bandwidth_gbps, 100.0);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// What is not TOML; a field that is missing, unknown, of the wrong type or out of range; a rack
/// that is not declared or has no machine; values that contradict each other.
pub fn parse_machines(toml: &str) -> Result<MachineList, PlanError> {
    let raw: RawList = toml::from_str(toml)
        .map_err(|error| PlanError::MachineList(error.to_string().trim_end().to_owned()))?;
    let mut list = MachineList {
        machines: Vec::new(),
        racks: Vec::new(),
        core_gbps: None,
        devices: Vec::new(),
    };
    let mut racks = Vec::new();
    let mut names = HashSet::new();
    for (index, entry) in raw.rack.into_iter().enumerate() {
        let rack = RackEntry::read(entry, index + 1, list.racks.len())?;
        // A machine names an entry or one of the racks that it stands for.
        let several = rack.names().filter(|name| *name != rack.name);
        for name in std::iter::once(rack.name.clone()).chain(several) {
            own_name(&mut names, name, || rack.field("name"))?;
        }
        list.racks.extend(rack.names().map(|name| NamedRack { name, trunk_gbps: 0.0 }));
        racks.push(rack);
    }
    if let Some(core) = &raw.core_gbps {
        if racks.is_empty() {
            let expected = "no core without racks; add [[rack]]";
            return Err(PlanError::field("core_gbps", core, expected));
        }
        let core = within(Some(core), "core_gbps", &BANDWIDTH_GBPS, &bandwidth_expected())?;
        list.core_gbps = Some(core);
    }
    let mut names = HashSet::new();
    for (index, entry) in raw.machine.into_iter().enumerate() {
        let first = list.machines.len();
        entry.expand(index + 1, &racks, &mut list)?;
        for machine in &list.machines[first..] {
            own_name(&mut names, machine.name.clone(), || format!("machine {}: name", index + 1))?;
        }
        if list.machines.len() > MAX_LISTED {
            let expected = format!("at most {MAX_LISTED}");
            return Err(PlanError::field("number of machines", list.machines.len(), expected));
        }
    }
    let mut totals = vec![0.0; list.racks.len()];
    for machine in &list.machines {
        if let Some(rack) = machine.rack {
            totals[rack] += machine.machine.bandwidth_gbps;
        }
    }
    for rack in &racks {
        rack.set_trunks(&mut list.racks, &totals)?;
    }
    Ok(list)
}

/// Notes a name, which may be given once.
fn own_name(
    names: &mut HashSet<String>,
    name: String,
    field: impl FnOnce() -> String,
) -> Result<(), PlanError> {
    match names.get(&name) {
        Some(known) => Err(PlanError::field(field(), format!("{known:?}"), "a name of its own")),
        None => {
            names.insert(name);
            Ok(())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawList {
    core_gbps: Option<Loose>,
    #[serde(default)]
    rack: Vec<RawRack>,
    #[serde(default)]
    machine: Vec<RawMachine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRack {
    name: Option<Loose>,
    count: Option<Loose>,
    trunk_gbps: Option<Loose>,
    oversubscription: Option<Loose>,
}

/// An entry of the list of racks: one, or several alike.
struct RackEntry {
    number: usize,
    name: String,
    /// The racks that it stands for.
    racks: std::ops::Range<usize>,
    trunk_gbps: Option<f64>,
    oversubscription: Option<f64>,
}

impl RackEntry {
    fn read(raw: RawRack, number: usize, first: usize) -> Result<Self, PlanError> {
        let name = match raw.name {
            Some(name) => name.text(&format!("rack {number}: name"), "text")?,
            None => format!("rack-{number}"),
        };
        let field = |key| format!("rack {number} (\"{name}\"): {key}");
        let count = count(raw.count.as_ref(), &field("count"))?;
        let (trunk, ratio) = (field("trunk_gbps"), field("oversubscription"));
        if raw.trunk_gbps.is_none() && raw.oversubscription.is_none() {
            let expected = format!("{}, or oversubscription", bandwidth_expected());
            return Err(PlanError::field(trunk, "missing", expected));
        }
        let optional = |value: Option<&Loose>, field: &str, range, expected: &str| {
            value.map(|value| within(Some(value), field, &range, expected)).transpose()
        };
        let trunk_gbps =
            optional(raw.trunk_gbps.as_ref(), &trunk, BANDWIDTH_GBPS, &bandwidth_expected())?;
        let oversubscription = optional(
            raw.oversubscription.as_ref(),
            &ratio,
            1e-3..=1e6,
            "what the rack's machines can send over what its trunk carries, from 0.001 to 1000000",
        )?;
        let racks = first..first + count as usize;
        Ok(Self { number, name, racks, trunk_gbps, oversubscription })
    }

    fn field(&self, key: &str) -> String {
        format!("rack {} (\"{}\"): {key}", self.number, self.name)
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let one = self.racks.len() == 1;
        (1..=self.racks.len())
            .map(move |n| if one { self.name.clone() } else { format!("{}-{n}", self.name) })
    }

    /// Sets what the trunks carry, now that it is known what the machines of each rack can send.
    fn set_trunks(&self, racks: &mut [NamedRack], totals: &[f64]) -> Result<(), PlanError> {
        for rack in self.racks.clone() {
            let total = totals[rack];
            if total == 0.0 {
                let field = format!("machines of rack \"{}\"", racks[rack].name);
                return Err(PlanError::field(field, 0, "at least one, or no such rack"));
            }
            let from_ratio = self.oversubscription.map(|ratio| total / ratio);
            if let (Some(given), Some(ratio), Some(follows)) =
                (self.trunk_gbps, self.oversubscription, from_ratio)
                && (given / follows - 1.0).abs() > ROUNDING
            {
                let expected = format!(
                    "{follows} Gb/s, since {total} Gb/s of machines in rack \"{}\" are \
                     oversubscribed {ratio} times; leave one of the two out",
                    racks[rack].name
                );
                return Err(PlanError::field(self.field("trunk_gbps"), given, expected));
            }
            let trunk = self.trunk_gbps.or(from_ratio).unwrap_or(total);
            if !BANDWIDTH_GBPS.contains(&trunk) {
                let (field, expected) = (self.field("trunk_gbps"), bandwidth_expected());
                return Err(PlanError::field(field, trunk, expected));
            }
            racks[rack].trunk_gbps = trunk;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: Option<Loose>,
    role: Option<Loose>,
    bandwidth_gbps: Option<Loose>,
    count: Option<Loose>,
    rack: Option<Loose>,
    nics: Option<Vec<RawNic>>,
    devices: Option<Vec<RawDevice>>,
    nvlinks: Option<Vec<RawNvLink>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNic {
    name: Option<Loose>,
    gbps: Option<Loose>,
    numa: Option<Loose>,
    device: Option<Loose>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    name: Option<Loose>,
    kind: Option<Loose>,
    parent: Option<Loose>,
    gbps: Option<Loose>,
    count: Option<Loose>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNvLink {
    devices: Option<Vec<Loose>>,
    gbps: Option<Loose>,
}

impl RawMachine {
    /// Checks the entry and appends its machines.
    fn expand(
        self,
        number: usize,
        racks: &[RackEntry],
        list: &mut MachineList,
    ) -> Result<(), PlanError> {
        let name = match self.name {
            Some(value) => value.text(&format!("machine {number}: name"), "text")?,
            None => format!("machine-{number}"),
        };
        let place = format!("machine {number} (\"{name}\")");
        let field = |key| format!("{place}: {key}");
        let role_expected = "\"gpu\" (runs workers) or \"cpu\" (runs servers only)";
        let missing = || PlanError::field(field("role"), "missing", role_expected);
        let role = match self.role.ok_or_else(missing)?.to_string().as_str() {
            "\"gpu\"" => Role::Gpu,
            "\"cpu\"" => Role::Cpu,
            other => return Err(PlanError::field(field("role"), other, role_expected)),
        };
        let (nics, attached) = nics(&place, self.nics.unwrap_or_default())?;
        let bandwidth_gbps = bandwidth(&place, self.bandwidth_gbps.as_ref(), &nics)?;
        let count = count(self.count.as_ref(), &field("count"))?;
        let rack = rack_of(&field("rack"), self.rack, racks, &list.racks)?;

        let nvlinks = self.nvlinks.unwrap_or_default();
        let devices = match self.devices {
            None if nvlinks.is_empty() && attached.iter().all(Option::is_none) => None,
            None => {
                let expected = "the devices that nics and nvlinks name";
                return Err(PlanError::field(field("devices"), "missing", expected));
            }
            Some(_) if role == Role::Cpu => {
                let expected = "none in a machine with role \"cpu\", which has no GPUs that \
                                contribute";
                return Err(PlanError::field(field("devices"), "a list", expected));
            }
            Some(raw) => {
                let devices = devices(&place, raw, (&nics, attached), nvlinks)?;
                list.devices.push(devices);
                Some(list.devices.len() - 1)
            }
        };
        let machine = Machine { role, bandwidth_gbps, servers: 1 };
        let several = rack.as_ref().is_some_and(|racks| racks.len() > 1);
        let places: Vec<Option<usize>> = match rack {
            None => vec![None],
            Some(racks) => racks.map(Some).collect(),
        };
        for rack in places {
            let prefix = match rack {
                Some(rack) if several => format!("{}/", list.racks[rack].name),
                _ => String::new(),
            };
            let named = |copy| NamedMachine {
                name: match count {
                    1 => format!("{prefix}{name}"),
                    _ => format!("{prefix}{name}-{copy}"),
                },
                machine,
                rack,
                nics: nics.clone(),
                devices,
            };
            list.machines.extend((1..=count).map(named));
            if list.machines.len() > MAX_LISTED {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn count(value: Option<&Loose>, field: &str) -> Result<u32, PlanError> {
    let count: u32 = value.map_or(Ok(1), |value| value.count(field, &count_expected(1)))?;
    check_count(field, u64::from(count), 1)?;
    Ok(count)
}

/// The racks that a machine's entry stands in: those of an entry, or one of them.
fn rack_of(
    field: &str,
    value: Option<Loose>,
    entries: &[RackEntry],
    racks: &[NamedRack],
) -> Result<Option<std::ops::Range<usize>>, PlanError> {
    let known: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let expected = match known.is_empty() {
        true => "no rack, or [[rack]] entries that declare it".to_owned(),
        false => format!("one of the racks: {}", known.join(", ")),
    };
    let Some(value) = value else {
        return match known.is_empty() {
            true => Ok(None),
            false => Err(PlanError::field(field, "missing", expected)),
        };
    };
    let name = value.text(field, &expected)?;
    let entry = entries.iter().find(|entry| entry.name == name).map(|entry| entry.racks.clone());
    let one = || racks.iter().position(|rack| rack.name == name).map(|rack| rack..rack + 1);
    let found = entry.or_else(one);
    found.map(Some).ok_or_else(|| PlanError::field(field, format!("{name:?}"), expected))
}

/// The NICs of a machine, and the device that each is attached to.
fn nics(place: &str, raw: Vec<RawNic>) -> Result<(Vec<Nic>, Vec<Option<String>>), PlanError> {
    let mut nics: Vec<Nic> = Vec::new();
    let mut attached = Vec::new();
    for (index, nic) in raw.into_iter().enumerate() {
        let name = match nic.name {
            Some(name) => name.text(&format!("{place}: nic {}: name", index + 1), "text")?,
            None => format!("nic-{}", index + 1),
        };
        let field = |key| format!("{place}: nic {} (\"{name}\"): {key}", index + 1);
        if nics.iter().any(|known| known.name == name) {
            let expected = "a name of its own";
            return Err(PlanError::field(field("name"), format!("{name:?}"), expected));
        }
        let expected = bandwidth_expected();
        let gbps = within(nic.gbps.as_ref(), &field("gbps"), &BANDWIDTH_GBPS, &expected)?;
        let numa = nic.numa.map(|numa| numa.count(&field("numa"), "the number of a NUMA node"));
        let numa = numa.transpose()?;
        let device = nic.device.map(|device| device.text(&field("device"), "a device's name"));
        attached.push(device.transpose()?);
        nics.push(Nic { name, gbps, numa });
    }
    Ok((nics, attached))
}

/// What a machine's interfaces carry together.
fn bandwidth(place: &str, given: Option<&Loose>, nics: &[Nic]) -> Result<f64, PlanError> {
    let field = format!("{place}: bandwidth_gbps");
    let total: f64 = nics.iter().map(|nic| nic.gbps).sum();
    if given.is_none() && !nics.is_empty() {
        return Ok(total);
    }
    let expected = bandwidth_expected();
    let gbps = within(given, &field, &BANDWIDTH_GBPS, &expected)?;
    if !nics.is_empty() && (gbps / total - 1.0).abs() > ROUNDING {
        let expected = format!("{total}, the sum of its nics; leave one of the two out");
        return Err(PlanError::field(field, gbps, expected));
    }
    Ok(gbps)
}

fn devices(
    place: &str,
    raw: Vec<RawDevice>,
    (nics, attached): (&[Nic], Vec<Option<String>>),
    nvlinks: Vec<RawNvLink>,
) -> Result<Devices, PlanError> {
    let mut devices = Vec::new();
    for (index, device) in raw.into_iter().enumerate() {
        let number = format!("{place}: device {}", index + 1);
        let named = device.name.ok_or_else(|| {
            PlanError::field(format!("{number}: name"), "missing", "a name of its own")
        })?;
        let name = named.text(&format!("{number}: name"), "text")?;
        let field = |key| format!("{place}: device \"{name}\": {key}");
        let expected = "\"cpu\", \"switch\" or \"gpu\"";
        let kind = device.kind.map_or("missing".to_owned(), |kind| kind.to_string());
        let kind = match kind.as_str() {
            "\"cpu\"" => DeviceKind::Cpu,
            "\"switch\"" => DeviceKind::Switch,
            "\"gpu\"" => DeviceKind::Gpu,
            other => return Err(PlanError::field(field("kind"), other, expected)),
        };
        let parent = device.parent.map(|parent| parent.text(&field("parent"), "a device's name"));
        let parent = parent.transpose()?;
        let gbps = device.gbps.map(|gbps| gbps.number(&field("gbps"), &bandwidth_expected()));
        let gbps = gbps.transpose()?;
        let count = count(device.count.as_ref(), &field("count"))?;
        if count > 1 && kind != DeviceKind::Gpu {
            return Err(PlanError::field(field("count"), count, "1, or a device of kind \"gpu\""));
        }
        let name = |copy| if count == 1 { name.clone() } else { format!("{name}-{copy}") };
        let one = |copy| Device { name: name(copy), kind, parent: parent.clone(), gbps };
        devices.extend((1..=count.min(1024)).map(one));
    }
    for (nic, device) in nics.iter().zip(attached) {
        let Some(parent) = device else {
            let field = format!("{place}: nic \"{}\": device", nic.name);
            let expected = "the cpu or switch that it is attached to";
            return Err(PlanError::field(field, "missing", expected));
        };
        let (name, gbps) = (nic.name.clone(), Some(nic.gbps));
        devices.push(Device { name, kind: DeviceKind::Nic, parent: Some(parent), gbps });
    }
    let nvlink = |(index, nvlink): (usize, RawNvLink)| {
        let field = |key| format!("{place}: nvlink {}: {key}", index + 1);
        let (gbps, expected) = (field("gbps"), bandwidth_expected());
        let gbps = within(nvlink.gbps.as_ref(), &gbps, &BANDWIDTH_GBPS, &expected)?;
        let names = nvlink.devices.unwrap_or_default().into_iter();
        let devices = names.map(|name| name.text(&field("devices"), "names of GPUs"));
        Ok(NvLink { devices: devices.collect::<Result<_, PlanError>>()?, gbps })
    };
    let nvlinks = nvlinks.into_iter().enumerate().map(nvlink);
    Devices::new(place, devices, nvlinks.collect::<Result<_, PlanError>>()?)
}
