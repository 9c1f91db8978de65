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

use crate::PlanError;
use crate::devices::Devices;
use crate::devices::loads::Wiring;

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
/// A switch here is everything that shares one link to the CPU: cascaded switches are one, and a
/// GPU that is attached to the CPU is one by itself. `sumpter doctor --topology` counts in the same
/// way.
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

/// How the GPUs of a machine are to add their gradients: by the rule, or in another way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalChoice {
    /// By [`local_reduction`], with the best split.
    #[default]
    Rule,
    /// Every GPU copies everything as it is, and the CPU adds: no local step.
    Direct,
    /// CPU-assisted, with nothing copied as it is.
    CpuAssisted,
    /// Reduce-scatter and all-gather over all GPUs, over NVLink where all of them have it, else in
    /// a ring over PCIe; each GPU copies its part to the CPU and back.
    ReduceScatter,
    /// Reduce over NVLink to these GPUs in turn, and broadcast from them.
    Roots(Vec<String>),
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

/// A link inside a machine and what a reduction of the whole model puts on it, as fractions of the
/// model. The result takes the way of the contributions back, so it puts `inward` on the other
/// direction, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct InsideLink {
    /// The device at its lower end.
    pub device: String,
    /// The device that it leads to, or `NVLink`.
    pub parent: String,
    /// Whether it is a NIC's own, which carries nothing but the network's traffic.
    pub nic: bool,
    /// Its bandwidth each way.
    pub gbps: f64,
    /// Contributions that are copied over it towards the parent.
    pub inward: f64,
    /// Contributions that are copied over it away from the parent.
    pub outward: f64,
    /// What GPUs exchange over it each way to add, and once more to share the result.
    pub exchange: f64,
    /// The part of the machine's network traffic that crosses it: what the machine receives towards
    /// the parent, what it sends away from it.
    pub network: f64,
}

/// How the GPUs of a machine add their gradients, and over which links.
#[derive(Clone, Debug, PartialEq)]
pub struct Inside {
    /// What GPUs do; none where they have no local step.
    pub reduction: Option<LocalReduction>,
    /// The fraction of the model that each GPU copies to the CPU as it is.
    pub direct: f64,
    /// The GPUs that are roots in turn, if there are roots.
    pub roots: Vec<String>,
    /// Every link.
    pub links: Vec<InsideLink>,
}

/// How the GPUs of a machine add a model, of which the machine's NICs carry `network` (as a
/// fraction, each way), and what that puts on each link. `place` begins messages.
///
/// # Errors
/// Roots that are not GPUs of the machine, or given twice, or none; roots without NVLink between
/// all GPUs.
pub fn inside(
    place: &str,
    devices: &Devices,
    choice: &LocalChoice,
    network: f64,
) -> Result<Inside, PlanError> {
    let machine = Wiring::new(devices, network);
    let (reduction, roots) = match choice {
        LocalChoice::Rule => {
            let (reduction, roots) = machine.by_rule();
            (Some(reduction), roots)
        }
        LocalChoice::Direct => (None, Vec::new()),
        LocalChoice::CpuAssisted => (Some(LocalReduction::CpuAssisted), Vec::new()),
        LocalChoice::ReduceScatter => (Some(LocalReduction::ReduceScatter), Vec::new()),
        LocalChoice::Roots(names) => {
            (Some(LocalReduction::ReduceBroadcast), machine.named(place, names)?)
        }
    };
    let split = *choice == LocalChoice::Rule;
    Ok(machine.inside(reduction, &roots, split))
}

/// How the GPUs of a machine add a model of `bytes`, of which the machine's NICs carry `network`
/// (as a fraction, each way), and what each link inside carries.
#[must_use]
pub fn reduce_inside(devices: &Devices, bytes: u64, network: f64) -> InsideReport {
    let machine = Wiring::new(devices, network);
    let (reduction, roots) = machine.by_rule();
    let Inside { direct, roots, links, .. } = machine.inside(Some(reduction), &roots, true);
    let links: Vec<LinkLoad> =
        links.into_iter().map(|link| LinkLoad::new(link, network, bytes)).collect();
    let without = machine.inside(None, &[], false).links;
    let slowest = |links: &mut dyn Iterator<Item = f64>| links.fold(0.0, f64::max);
    InsideReport {
        reduction,
        direct,
        gpu_direct: machine.gpus.iter().any(|&gpu| machine.beside_nic(gpu)),
        roots,
        time_s: slowest(&mut links.iter().map(|link| link.time_s)),
        without_local_step_s: slowest(
            &mut without.into_iter().map(|link| LinkLoad::new(link, network, bytes).time_s),
        ),
        links,
    }
}

/// What a ring all-reduce over the GPUs of several machines goes through inside one of them: the
/// bandwidth of its slowest hop, without what the NICs carry. Over NVLink where all GPUs have it,
/// and to each NIC from the GPU nearest to it; else over PCIe from GPU to GPU.
#[must_use]
pub fn ring_gbps(devices: &Devices) -> f64 {
    let machine = Wiring::new(devices, 0.0);
    let speed = |link: usize| devices.devices[link].gbps.unwrap_or(f64::INFINITY);
    let Some(nvlink) = machine.nvlink() else {
        let carries = |link: &usize| machine.parts_ring(*link) || machine.leads_to_nic(*link);
        return (0..devices.devices.len()).filter(carries).map(speed).fold(f64::INFINITY, f64::min);
    };
    let to_nearest = |&nic: &usize| -> f64 {
        let ways = machine.gpus.iter().map(|&gpu| machine.way(nic, gpu));
        let way = ways.min_by_key(Vec::len).unwrap_or_default();
        way.into_iter().filter(|&link| link != nic).map(speed).fold(f64::INFINITY, f64::min)
    };
    // Each NIC has a ring of its own.
    machine.nics.iter().map(to_nearest).sum::<f64>().min(nvlink)
}

impl LinkLoad {
    fn new(link: InsideLink, network: f64, bytes: u64) -> Self {
        let load = link.network * network + link.inward + link.outward + 2.0 * link.exchange;
        let InsideLink { device, parent, gbps, .. } = link;
        let time_s = crate::predict::seconds(bytes, load, gbps);
        Self { device, parent, gbps, bytes: load * bytes as f64, time_s }
    }
}
