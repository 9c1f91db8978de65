//! On which cores lanes run: those of the NUMA node of their network interface.
//!
//! With one node, or where the system does not say, threads stay where the scheduler puts them.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cluster::link_speed::{INTERFACES, device_of};

/// Where the system describes its NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// Cores that this process may use and that are near a network interface; none if all are, or the
/// system does not say.
pub(crate) fn cores_near(interface: &str) -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let mut cores = cores_of(Path::new(NODES), Path::new(INTERFACES), interface);
    cores.retain(|core| *core < CpuSet::MAX_CPU && allowed.is_set(*core));
    cores
}

fn cores_of(nodes: &Path, interfaces: &Path, interface: &str) -> Vec<usize> {
    let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let entries = fs::read_dir(nodes).into_iter().flatten().flatten();
    let count = entries.filter(|e| e.file_name().to_str().and_then(number).is_some()).count();
    let node = || {
        let device = device_of(interfaces, interface)?;
        // -1 where the firmware does not say.
        let text = fs::read_to_string(device.join("numa_node")).ok()?;
        let node = text.trim().parse::<u32>().ok()?;
        list(&fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).ok()?)
    };
    if count > 1 { node().unwrap_or_default() } else { Vec::new() }
}

/// The numbers of a list as the kernel writes it, such as `0-19,40-59`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= CpuSet::MAX_CPU {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The core of each lane, of those near its interface: by turns, so that lanes share one only if
/// there are more lanes than cores. None where no core is nearer than others.
pub(crate) fn cores_of_lanes(near: &[Vec<usize>]) -> Vec<Option<usize>> {
    let core = |(lane, cores): (usize, &Vec<usize>)| {
        let turn = near[..lane].iter().filter(|other| *other == cores).count();
        (!cores.is_empty()).then(|| cores[turn % cores.len()])
    };
    near.iter().enumerate().map(core).collect()
}

/// Keeps the calling thread on these cores; without any, it may run everywhere.
pub(crate) fn pin(cores: &[usize]) {
    if cores.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(?cores, %error, "a lane stays where the scheduler puts it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::link_speed::testing::Tree;

    /// A machine with some nodes of four cores each.
    fn nodes(tree: &Tree, count: usize) -> std::path::PathBuf {
        for node in 0..count {
            let first = 4 * node;
            tree.file(&format!("node{node}/cpulist"), &format!("{first}-{}\n", first + 3));
        }
        tree.path().to_owned()
    }

    #[test]
    fn an_interface_has_the_cores_of_its_node() {
        let (system, tree) = (Tree::new("sumpter-numa"), Tree::new("sumpter-numa-net"));
        let nodes = nodes(&system, 2);
        tree.file("eth0/device/numa_node", "1\n");
        tree.file("eth1/device/numa_node", "-1\n");
        tree.file("bond0/lower_eth0/mtu", "");
        tree.file("veth0/mtu", "");
        let cores = |name: &str| cores_of(&nodes, tree.path(), name);
        assert_eq!(cores("eth0"), [4, 5, 6, 7]);
        assert_eq!(cores("bond0"), [4, 5, 6, 7]);
        for name in ["eth1", "veth0", "absent"] {
            assert!(cores(name).is_empty(), "{name}");
        }
    }

    #[test]
    fn with_one_node_or_no_nodes_all_cores_are_near() {
        let tree = Tree::new("sumpter-one-node");
        tree.file("eth0/device/numa_node", "0\n");
        let nodes = nodes(&tree, 1);
        assert!(cores_of(&nodes, tree.path(), "eth0").is_empty());
        assert!(cores_of(&nodes.join("nowhere"), tree.path(), "eth0").is_empty());
    }

    #[test]
    fn lists_are_numbers_and_ranges() {
        assert_eq!(list("0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(list(""), Some(vec![]));
        assert_eq!((list("0-x"), list("0-99999999999")), (None, None));
    }

    #[test]
    fn lanes_of_a_node_take_its_cores_by_turns() {
        let (here, there) = (vec![0, 1], vec![4, 5, 6]);
        let near = [here.clone(), there.clone(), here.clone(), there, here, vec![]];
        let cores = cores_of_lanes(&near);
        assert_eq!(cores, [Some(0), Some(4), Some(1), Some(5), Some(0), None]);
    }

    #[test]
    fn a_thread_is_pinned_to_cores_that_it_may_use() {
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let pinned = std::thread::spawn(move || {
            pin(&[core]);
            let now = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|core| now.is_set(*core)).collect::<Vec<_>>()
        });
        assert_eq!(pinned.join().unwrap(), [core]);
        pin(&[]);
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
