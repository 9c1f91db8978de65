//! How the GPUs of one machine add their gradients, and what that puts on each link inside
//! (BytePS, OSDI'20, section 4.2).
//!
//! **Without NVLink** GPUs below one switch do a reduce-scatter, each copies its part to the CPU,
//! which adds the parts of all switches; the result goes back the same way. With `n` GPUs below a
//! switch this *CPU-assisted* reduction of `M` bytes puts `M` on the link from the switch to the
//! CPU and `(2n-1)/n M` on a GPU's link, each way. If instead the fraction `x` is copied from each
//! GPU as it is, and `y = 1 - x` goes by the way above,
//!
//! ```text
//! t(S, C) = (n x + y) M / B              (8)    from switch to CPU
//! t(N, S) = ((2n-1)/n y + x) M / B       (9)    from GPU to switch
//! ```
//!
//! With links of one bandwidth the larger is least at `x = 1/(n+1)`, where both are `2n/(n+1)`.
//! (The paper's example of n = 4 at 13.1 GB/s is 1.094 times slower at `x = 0`; the seconds that it
//! prints for both have this ratio, but do not follow from 13.1 GB/s and a model of its size.)
//!
//! **With NVLink** GPUs add over it; PCIe carries what is copied to the CPU and back, once.
//!
//! Traffic to other machines comes on top: it goes from the memory of the NIC's socket to the NIC.
//! In a graph of links of any bandwidth, `x` minimizes the longest time over all links.

use serde::Serialize;

use crate::devices::{DeviceKind, Devices};

/// How the GPUs of a machine add their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalReduction {
    /// Reduce-scatter below each switch, copies to the CPU, which adds; then all-gather.
    CpuAssisted,
    /// Reduce-scatter and all-gather over NVLink; each GPU copies its part to the CPU and back.
    ReduceScatter,
    /// Reduce over NVLink to a root that shares no switch with a NIC, and broadcast from it; GPUs
    /// take turns as the root.
    ReduceBroadcast,
}

/// The rule of BytePS (section 4.2) for a machine whose switches that have GPUs number
/// `with_nic` with a NIC (`Sn`) and `without_nic` without one (`Sg`):
///
/// | NVLink | `Sn > 0`, `Sg > 0` | otherwise |
/// |---|---|---|
/// | no | CPU-assisted | CPU-assisted |
/// | yes | reduce and broadcast | reduce-scatter and all-gather |
///
/// Roots of a reduce are below switches without a NIC: a link that the NIC uses has less left for
/// copies, so these go over the others.
///
/// ```
/// use sumpter_plan::{LocalReduction, local_reduction};
///
/// assert_eq!(local_reduction(true, 1, 3), LocalReduction::ReduceBroadcast);
/// assert_eq!(local_reduction(true, 4, 0), LocalReduction::ReduceScatter);
/// assert_eq!(local_reduction(true, 0, 2), LocalReduction::ReduceScatter);
/// assert_eq!(local_reduction(false, 1, 1), LocalReduction::CpuAssisted);
/// ```
#[must_use]
pub fn local_reduction(nvlink: bool, with_nic: usize, without_nic: usize) -> LocalReduction {
    match (nvlink, with_nic, without_nic) {
        (false, ..) => LocalReduction::CpuAssisted,
        (true, 1.., 1..) => LocalReduction::ReduceBroadcast,
        (true, ..) => LocalReduction::ReduceScatter,
    }
}

/// `n x + y` of equation (8): what the link from a switch with `gpus` GPUs to the CPU carries each
/// way, as a fraction of the model, if `direct` (x) of it is copied from each GPU as it is.
#[must_use]
pub fn cpu_link_load(gpus: u32, direct: f64) -> f64 {
    f64::from(gpus) * direct + (1.0 - direct)
}

/// `(2n-1)/n y + x` of equation (9): what a GPU's link to its switch carries each way.
#[must_use]
pub fn gpu_link_load(gpus: u32, direct: f64) -> f64 {
    let n = f64::from(gpus);
    (2.0 * n - 1.0) / n * (1.0 - direct) + direct
}

/// `x* = 1/(n+1)`, the fraction to copy as it is for which the busier link carries least, with
/// links of one bandwidth.
///
/// ```
/// use sumpter_plan::{best_split, cpu_link_load, gpu_link_load};
///
/// let busier = |x| f64::max(cpu_link_load(4, x), gpu_link_load(4, x));
/// assert_eq!(best_split(4), 0.2);
/// assert!((busier(0.2) - 1.6).abs() < 1e-12);
/// assert!((busier(0.0) / busier(0.2) - 1.09375).abs() < 1e-12);
/// assert_eq!(busier(1.0) / busier(0.2), 2.5); // Every GPU by itself, without any local step.
/// ```
#[must_use]
pub fn best_split(gpus: u32) -> f64 {
    1.0 / f64::from(gpus.saturating_add(1))
}

/// `J_ca`: the seconds of a CPU-assisted reduction of `bytes` with `gpus` below each switch, over
/// links of `gbps`, with nothing copied as it is.
///
/// ```
/// use sumpter_plan::{all_reduce_s, assisted_s};
///
/// // Eight GPUs below two switches: copies inside a switch at 13.1 GB/s, across at 80 Gb/s.
/// let (assisted, ring) = (assisted_s(4, 1 << 30, 8.0 * 13.1), all_reduce_s(8, 1 << 30, 80.0));
/// assert_eq!(format!("{:.1} %", 100.0 * (1.0 - assisted / ring)), "23.7 %");
/// // The paper calls the 104.8 Gb/s 105; with that it would be 23.8 %.
/// let assisted = assisted_s(4, 1 << 30, 105.0);
/// assert_eq!(format!("{:.1} %", 100.0 * (1.0 - assisted / ring)), "23.8 %");
/// ```
#[must_use]
pub fn assisted_s(gpus: u32, bytes: u64, gbps: f64) -> f64 {
    crate::predict::seconds(bytes, gpu_link_load(gpus, 0.0).max(cpu_link_load(gpus, 0.0)), gbps)
}

/// `J_ar`: the seconds of a ring all-reduce of `bytes` over all `gpus` of a machine, of which the
/// slowest hop has `gbps`.
#[must_use]
pub fn all_reduce_s(gpus: u32, bytes: u64, gbps: f64) -> f64 {
    let n = f64::from(gpus);
    crate::predict::seconds(bytes, 2.0 * (n - 1.0) / n, gbps)
}

/// What one reduction puts on the links inside a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InsideReport {
    /// What GPUs do.
    pub reduction: LocalReduction,
    /// The fraction of the model that each GPU copies to the CPU as it is; zero with NVLink.
    pub direct: f64,
    /// Whether a GPU and a NIC share a switch: only these may exchange data past the CPU.
    pub gpu_direct: bool,
    /// The GPUs that are roots in turn, if there are roots.
    pub roots: Vec<String>,
    /// Every link.
    pub links: Vec<LinkLoad>,
    /// The time of the busiest link, for the whole model.
    pub time_s: f64,
    /// The time if each GPU copied everything as it is.
    pub without_local_step_s: f64,
}

/// A link inside a machine and what it carries each way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkLoad {
    /// The device at its lower end.
    pub device: String,
    /// The device that it leads to, or `NVLink`.
    pub parent: String,
    /// Its bandwidth each way.
    pub gbps: f64,
    /// What it carries each way, in bytes.
    pub bytes: f64,
    /// How long that takes.
    pub time_s: f64,
}

/// How the GPUs of a machine add a model of `bytes`, of which the machine's NICs carry `network`
/// (as a fraction, each way), and what each link inside carries.
#[must_use]
pub fn reduce_inside(devices: &Devices, bytes: u64, network: f64) -> InsideReport {
    let gpus: Vec<usize> = devices.of(DeviceKind::Gpu).collect();
    let nics: Vec<usize> = devices.of(DeviceKind::Nic).collect();
    let beside_nic =
        |gpu: usize| nics.iter().any(|&nic| devices.switch_of(nic) == devices.switch_of(gpu));
    let mut switches: Vec<(usize, bool)> =
        gpus.iter().map(|&gpu| (devices.switch_of(gpu), beside_nic(gpu))).collect();
    switches.sort_unstable();
    switches.dedup();
    let with_nic = switches.iter().filter(|(_, nic)| *nic).count();
    // One island with all GPUs; else some reach each other only over PCIe.
    let whole = devices.islands[gpus[0]];
    let nvlink = whole.filter(|_| gpus.iter().all(|&gpu| devices.islands[gpu] == whole));
    let reduction = local_reduction(nvlink.is_some(), with_nic, switches.len() - with_nic);
    let roots: Vec<usize> = match reduction {
        LocalReduction::ReduceBroadcast => {
            gpus.iter().copied().filter(|&gpu| !beside_nic(gpu)).collect()
        }
        LocalReduction::CpuAssisted | LocalReduction::ReduceScatter => Vec::new(),
    };
    let plan = Plan { devices, gpus: &gpus, nics: &nics, network };
    let nvlink = nvlink.map(|island| devices.nvlinks[island].gbps);
    let count = gpus.len() as f64;
    let copied = |one: usize| match reduction {
        LocalReduction::ReduceBroadcast if roots.contains(&one) => 1.0 / roots.len() as f64,
        LocalReduction::ReduceBroadcast => 0.0,
        LocalReduction::CpuAssisted | LocalReduction::ReduceScatter => 1.0 / count,
    };
    let (direct, loads) = match reduction {
        LocalReduction::CpuAssisted => {
            let direct = plan.best_direct();
            (direct, plan.assisted(direct))
        }
        LocalReduction::ReduceScatter | LocalReduction::ReduceBroadcast => {
            (0.0, plan.copies(&gpus.iter().map(|&gpu| copied(gpu)).collect::<Vec<_>>()))
        }
    };
    let between = match reduction {
        // A GPU in the middle of a chain passes everything on, both ways.
        LocalReduction::ReduceBroadcast => 2.0,
        LocalReduction::CpuAssisted | LocalReduction::ReduceScatter => 2.0 * (count - 1.0) / count,
    };
    let mut links = plan.links(&loads, bytes);
    if let Some(gbps) = nvlink {
        links.extend(gpus.iter().map(|&gpu| link(plan.name(gpu), "NVLink", gbps, between, bytes)));
    }
    let slowest = |links: &[LinkLoad]| links.iter().map(|link| link.time_s).fold(0.0, f64::max);
    InsideReport {
        reduction,
        direct,
        gpu_direct: with_nic > 0,
        roots: roots.iter().map(|&gpu| plan.name(gpu).to_owned()).collect(),
        time_s: slowest(&links),
        without_local_step_s: slowest(&plan.links(&plan.copies(&vec![1.0; gpus.len()]), bytes)),
        links,
    }
}

fn link(device: &str, parent: &str, gbps: f64, load: f64, bytes: u64) -> LinkLoad {
    let (device, parent) = (device.to_owned(), parent.to_owned());
    let time_s = crate::predict::seconds(bytes, load, gbps);
    LinkLoad { device, parent, gbps, bytes: load * bytes as f64, time_s }
}

/// A machine of which loads are computed: for each device, what its link upwards carries each way.
/// Everything goes and comes back, so both directions carry the same.
struct Plan<'a> {
    devices: &'a Devices,
    gpus: &'a [usize],
    nics: &'a [usize],
    network: f64,
}

impl Plan<'_> {
    fn name(&self, device: usize) -> &str {
        &self.devices.devices[device].name
    }

    /// Adds a load to the links between a device and the socket that it is attached to.
    fn to_cpu(&self, loads: &mut [f64], device: usize, load: f64) {
        let cpu = self.devices.cpu_of(device);
        for link in self.devices.upwards(device).take_while(|&above| above != cpu) {
            loads[link] += load;
        }
    }

    /// Adds a load to the links between two sockets.
    fn between_cpus(&self, loads: &mut [f64], one: usize, other: usize, load: f64) {
        let up: Vec<usize> = self.devices.upwards(one).collect();
        let down: Vec<usize> = self.devices.upwards(other).collect();
        let apart = |way: &[usize], shared: &[usize]| -> Vec<usize> {
            way.iter().copied().filter(|device| !shared.contains(device)).collect()
        };
        for link in [apart(&up, &down), apart(&down, &up)].concat() {
            loads[link] += load;
        }
    }

    /// The network's part, and the aggregates of sockets without a NIC: each reaches the sockets
    /// with one, in proportion to the NICs' bandwidths.
    fn around(&self, of_socket: &[(usize, f64)]) -> Vec<f64> {
        let mut loads = vec![0.0; self.devices.devices.len()];
        let speed = |nic: usize| self.devices.devices[nic].gbps.unwrap_or(0.0);
        let total: f64 = self.nics.iter().map(|&nic| speed(nic)).sum();
        for &nic in self.nics {
            let part = speed(nic) / total;
            self.to_cpu(&mut loads, nic, self.network * part);
            for &(cpu, load) in of_socket {
                self.between_cpus(&mut loads, cpu, self.devices.cpu_of(nic), load * part);
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
    fn copies(&self, parts: &[f64]) -> Vec<f64> {
        let mut loads = self.around(&self.of_sockets(parts));
        for (&gpu, part) in self.gpus.iter().zip(parts) {
            self.to_cpu(&mut loads, gpu, *part);
        }
        loads
    }

    /// CPU-assisted, with the fraction `direct` copied from each GPU as it is.
    fn assisted(&self, direct: f64) -> Vec<f64> {
        let group = |gpu: usize| {
            let switch = self.devices.switch_of(gpu);
            self.gpus.iter().filter(|&&other| self.devices.switch_of(other) == switch).count()
        };
        let copied: Vec<f64> =
            self.gpus.iter().map(|&gpu| direct + (1.0 - direct) / group(gpu) as f64).collect();
        let mut loads = self.copies(&copied);
        for &gpu in self.gpus {
            let n = group(gpu) as f64;
            // Reduce-scatter and all-gather stay below the switch.
            loads[gpu] += 2.0 * (n - 1.0) / n * (1.0 - direct);
        }
        loads
    }

    /// The time of the busiest link, for a gigabit.
    fn slowest(&self, loads: &[f64]) -> f64 {
        let links = loads.iter().zip(&self.devices.devices);
        links.map(|(load, device)| load / device.gbps.unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
    }

    /// The fraction to copy as it is: every link's time is linear in it, so the largest is convex,
    /// and least at an end or where two links take equally long.
    fn best_direct(&self) -> f64 {
        let (none, all) = (self.assisted(0.0), self.assisted(1.0));
        let links = self.devices.devices.iter().zip(none.iter().zip(&all));
        let lines: Vec<(f64, f64)> = links
            .filter_map(|(device, (none, all))| {
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

    fn links(&self, loads: &[f64], bytes: u64) -> Vec<LinkLoad> {
        let links = self.devices.devices.iter().zip(loads).filter_map(|(device, load)| {
            let (parent, gbps) = (device.parent.as_deref()?, device.gbps?);
            Some(link(&device.name, parent, gbps, *load, bytes))
        });
        links.collect()
    }
}
