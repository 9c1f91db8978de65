//! What each link inside a machine carries when its GPUs add their gradients, by following every
//! copy through the tree of devices. [`reduce`](super::reduce) says which way they are added.

use crate::PlanError;
use crate::devices::reduce::{Inside, InsideLink, LocalReduction, local_reduction};
use crate::devices::{Device, DeviceKind, Devices};

/// What a link upwards carries, as in [`InsideLink`].
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    inward: f64,
    outward: f64,
    exchange: f64,
    network: f64,
}

/// A machine of which loads are computed: for each device, what its link upwards carries.
pub(super) struct Wiring<'a> {
    devices: &'a Devices,
    pub(super) gpus: Vec<usize>,
    pub(super) nics: Vec<usize>,
    network: f64,
}

impl<'a> Wiring<'a> {
    pub(super) fn new(devices: &'a Devices, network: f64) -> Self {
        let gpus = devices.of(DeviceKind::Gpu).collect();
        let nics = devices.of(DeviceKind::Nic).collect();
        Self { devices, gpus, nics, network }
    }

    fn name(&self, device: usize) -> &str {
        &self.devices.devices[device].name
    }

    /// Whether a GPU's link to the CPU has a NIC's traffic as well.
    pub(super) fn beside_nic(&self, gpu: usize) -> bool {
        let switch = self.devices.switch_of(gpu);
        self.nics.iter().any(|&nic| self.devices.switch_of(nic) == switch)
    }

    /// What each GPU can send over NVLink where one island has them all; else some reach each other
    /// only over PCIe.
    pub(super) fn nvlink(&self) -> Option<f64> {
        let island = self.devices.islands[self.gpus[0]]?;
        let whole = self.gpus.iter().all(|&gpu| self.devices.islands[gpu] == Some(island));
        whole.then(|| self.devices.nvlinks[island].gbps)
    }

    /// What the rule says, and which GPUs are roots.
    pub(super) fn by_rule(&self) -> (LocalReduction, Vec<usize>) {
        let mut switches: Vec<(usize, bool)> = self
            .gpus
            .iter()
            .map(|&gpu| (self.devices.switch_of(gpu), self.beside_nic(gpu)))
            .collect();
        switches.sort_unstable();
        switches.dedup();
        let with_nic = switches.iter().filter(|(_, nic)| *nic).count();
        let nvlink = self.nvlink().is_some();
        let reduction = local_reduction(nvlink, with_nic, switches.len() - with_nic);
        let roots = match reduction {
            LocalReduction::ReduceBroadcast => {
                self.gpus.iter().copied().filter(|&gpu| !self.beside_nic(gpu)).collect()
            }
            LocalReduction::CpuAssisted | LocalReduction::ReduceScatter => Vec::new(),
        };
        (reduction, roots)
    }

    /// The roots of these names.
    pub(super) fn named(&self, place: &str, names: &[String]) -> Result<Vec<usize>, PlanError> {
        let known = || self.gpus.iter().map(|&gpu| self.name(gpu)).collect::<Vec<_>>().join(", ");
        let refuse = |value: String, expected: String| {
            Err(PlanError::field(format!("{place}: roots"), value, expected))
        };
        if self.nvlink().is_none() {
            let expected = "no roots without NVLink between all GPUs".to_owned();
            return refuse(names.join(", "), expected);
        }
        if names.is_empty() {
            return refuse("empty".to_owned(), format!("one or more of {}", known()));
        }
        let mut roots = Vec::new();
        for name in names {
            let found = self.gpus.iter().copied().find(|&gpu| self.name(gpu) == name);
            match found.filter(|gpu| !roots.contains(gpu)) {
                Some(gpu) => roots.push(gpu),
                None => return refuse(format!("{name:?}"), format!("{}, each once", known())),
            }
        }
        Ok(roots)
    }

    /// What a reduction puts on each link; without one, each GPU copies everything as it is. With
    /// `split`, the CPU-assisted one copies the best part as it is.
    pub(super) fn inside(
        &self,
        reduction: Option<LocalReduction>,
        roots: &[usize],
        split: bool,
    ) -> Inside {
        let count = self.gpus.len() as f64;
        let even = vec![1.0 / count; self.gpus.len()];
        let mut direct = 0.0;
        // What each GPU exchanges with the others over NVLink each way, to add and to share.
        let mut between = (count - 1.0) / count;
        let loads = match reduction {
            None => {
                direct = 1.0;
                self.copies(&vec![1.0; self.gpus.len()])
            }
            Some(LocalReduction::CpuAssisted) => {
                direct = if split { self.best_direct() } else { 0.0 };
                self.assisted(direct)
            }
            Some(LocalReduction::ReduceScatter) if self.nvlink().is_none() => {
                let mut loads = self.copies(&even);
                for (link, load) in loads.iter_mut().enumerate() {
                    load.exchange += if self.parts_ring(link) { between } else { 0.0 };
                }
                loads
            }
            Some(LocalReduction::ReduceScatter) => self.copies(&even),
            Some(LocalReduction::ReduceBroadcast) => {
                // A GPU in the middle of a chain passes everything on, both ways.
                between = 1.0;
                let part = |gpu| if roots.contains(gpu) { 1.0 / roots.len() as f64 } else { 0.0 };
                self.copies(&self.gpus.iter().map(part).collect::<Vec<_>>())
            }
        };
        let mut links = self.links(&loads);
        let over_nvlink = matches!(
            reduction,
            Some(LocalReduction::ReduceScatter | LocalReduction::ReduceBroadcast)
        );
        if let Some(gbps) = self.nvlink().filter(|_| over_nvlink) {
            links.extend(self.gpus.iter().map(|&gpu| InsideLink {
                device: self.name(gpu).to_owned(),
                parent: "NVLink".to_owned(),
                nic: false,
                gbps,
                inward: 0.0,
                outward: 0.0,
                exchange: between,
                network: 0.0,
            }));
        }
        let roots = roots.iter().map(|&gpu| self.name(gpu).to_owned()).collect();
        Inside { reduction, direct, roots, links }
    }

    /// The links between a device and the socket that it is attached to.
    fn to_cpu(&self, device: usize) -> impl Iterator<Item = usize> {
        let cpu = self.devices.cpu_of(device);
        self.devices.upwards(device).take_while(move |&above| above != cpu)
    }

    /// The links from one device up and those down to another.
    fn apart(&self, one: usize, other: usize) -> (Vec<usize>, Vec<usize>) {
        let up: Vec<usize> = self.devices.upwards(one).collect();
        let down: Vec<usize> = self.devices.upwards(other).collect();
        let only = |way: &[usize], shared: &[usize]| -> Vec<usize> {
            way.iter().copied().filter(|device| !shared.contains(device)).collect()
        };
        (only(&up, &down), only(&down, &up))
    }

    /// The links between two devices.
    pub(super) fn way(&self, one: usize, other: usize) -> Vec<usize> {
        let (up, down) = self.apart(one, other);
        [up, down].concat()
    }

    /// Whether some GPUs are below a link and others are not, so that a ring over PCIe crosses it.
    pub(super) fn parts_ring(&self, link: usize) -> bool {
        let below = |gpu: &&usize| self.devices.upwards(**gpu).any(|above| above == link);
        let count = self.gpus.iter().filter(below).count();
        self.devices.parents[link].is_some() && (1..self.gpus.len()).contains(&count)
    }

    /// Whether a link lies between a NIC, but for its own link, and a GPU.
    pub(super) fn leads_to_nic(&self, link: usize) -> bool {
        let beside = |&nic: &usize| {
            let ways = self.gpus.iter().map(|&gpu| self.way(nic, gpu));
            let way = ways.min_by_key(Vec::len).unwrap_or_default();
            link != nic && way.contains(&link)
        };
        self.nics.iter().any(beside)
    }

    /// The network's part, and the aggregates of sockets without a NIC: each reaches the sockets
    /// with one, in proportion to the NICs' bandwidths.
    fn around(&self, of_socket: &[(usize, f64)]) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.devices.devices.len()];
        let speed = |nic: usize| self.devices.devices[nic].gbps.unwrap_or(0.0);
        let total: f64 = self.nics.iter().map(|&nic| speed(nic)).sum();
        for &nic in &self.nics {
            let part = speed(nic) / total;
            self.to_cpu(nic).for_each(|link| loads[link].network += part);
            for &(cpu, load) in of_socket {
                let (up, down) = self.apart(cpu, self.devices.cpu_of(nic));
                up.into_iter().for_each(|link| loads[link].inward += load * part);
                down.into_iter().for_each(|link| loads[link].outward += load * part);
            }
        }
        loads
    }

    /// What each socket has of the model once it has added what its GPUs copied: at most all of it.
    fn of_sockets(&self, copied: &[f64]) -> Vec<(usize, f64)> {
        let mut sockets: Vec<(usize, f64)> = Vec::new();
        for (&gpu, part) in self.gpus.iter().zip(copied) {
            let cpu = self.devices.cpu_of(gpu);
            match sockets.iter_mut().find(|(known, _)| *known == cpu) {
                Some((_, load)) => *load = (*load + part).min(1.0),
                None => sockets.push((cpu, part.min(1.0))),
            }
        }
        sockets
    }

    /// Each GPU copies a part of the model to the CPU, and receives as much.
    fn copies(&self, parts: &[f64]) -> Vec<Load> {
        let mut loads = self.around(&self.of_sockets(parts));
        for (&gpu, part) in self.gpus.iter().zip(parts) {
            self.to_cpu(gpu).for_each(|link| loads[link].inward += part);
        }
        loads
    }

    /// CPU-assisted, with the fraction `direct` copied from each GPU as it is.
    fn assisted(&self, direct: f64) -> Vec<Load> {
        let switches: Vec<usize> =
            self.gpus.iter().map(|&gpu| self.devices.switch_of(gpu)).collect();
        let group = |switch| switches.iter().filter(|other| **other == switch).count() as f64;
        let copied: Vec<f64> =
            switches.iter().map(|&switch| direct + (1.0 - direct) / group(switch)).collect();
        let mut loads = self.copies(&copied);
        // Reduce-scatter and all-gather stay below the topmost switch: each is a ring, which
        // crosses a link there that has some of the GPUs below it and not all.
        for (link, load) in loads.iter_mut().enumerate() {
            let switch = self.devices.switch_of(link);
            let below = |gpu: &&usize| self.devices.upwards(**gpu).any(|above| above == link);
            let (count, n) = (self.gpus.iter().filter(below).count() as f64, group(switch));
            if link != switch && 0.0 < count && count < n {
                load.exchange += (n - 1.0) / n * (1.0 - direct);
            }
        }
        loads
    }

    /// What a link carries each way for the whole model.
    fn total(&self, load: &Load) -> f64 {
        load.network * self.network + load.inward + load.outward + 2.0 * load.exchange
    }

    /// The time of the busiest link, for a gigabit.
    fn slowest(&self, loads: &[Load]) -> f64 {
        let links = loads.iter().zip(&self.devices.devices);
        let time = |(load, device): (&Load, &Device)| {
            self.total(load) / device.gbps.unwrap_or(f64::INFINITY)
        };
        links.map(time).fold(0.0, f64::max)
    }

    /// The fraction to copy as it is: every link's time is linear in it, so the largest is convex,
    /// and least at an end or where two links take equally long.
    fn best_direct(&self) -> f64 {
        let (none, all) = (self.assisted(0.0), self.assisted(1.0));
        let links = self.devices.devices.iter().zip(none.iter().zip(&all));
        let lines: Vec<(f64, f64)> = links
            .filter_map(|(device, (none, all))| {
                let (none, all) = (self.total(none), self.total(all));
                device.gbps.map(|gbps| (none / gbps, (all - none) / gbps))
            })
            .collect();
        let mut best = (self.slowest(&none), 0.0);
        let crossings = lines.iter().flat_map(|one| lines.iter().map(move |other| (one, other)));
        let crossings = crossings.map(|(one, other)| (other.0 - one.0) / (one.1 - other.1));
        for direct in crossings.chain([1.0]).filter(|direct| (0.0..=1.0).contains(direct)) {
            let times = lines.iter().map(|(start, slope)| start + slope * direct);
            let slowest = times.fold(0.0, f64::max);
            if slowest < best.0 * (1.0 - 1e-12) {
                best = (slowest, direct);
            }
        }
        best.1
    }

    fn links(&self, loads: &[Load]) -> Vec<InsideLink> {
        let links = self.devices.devices.iter().zip(loads).filter_map(|(device, load)| {
            let (parent, gbps) = (device.parent.as_deref()?, device.gbps?);
            let &Load { inward, outward, exchange, network } = load;
            let (device, nic) = (device.name.clone(), device.kind == DeviceKind::Nic);
            let parent = parent.to_owned();
            Some(InsideLink { device, parent, nic, gbps, inward, outward, exchange, network })
        });
        links.collect()
    }
}
