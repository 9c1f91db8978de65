//! How fast the system says that a network interface is.
//!
//! Only of interfaces over hardware: what a virtual one states is made up (a veth pair says
//! 10 Gb/s whatever carries it). A bond, a bridge or a VLAN over hardware counts.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the system describes its network interfaces.
pub(crate) const INTERFACES: &str = "/sys/class/net";

/// How many interfaces may lie over each other: a VLAN over a bridge over a bond, and one more.
const MOST_LAYERS: usize = 4;

/// What an interface carries each way in Mb/s, if the system knows it.
pub(crate) fn link_mbit(interface: &str) -> Option<u32> {
    speed_of(Path::new(INTERFACES), interface)
}

fn speed_of(interfaces: &Path, interface: &str) -> Option<u32> {
    device_of(interfaces, interface)?;
    // -1 or an error where there is no link, or the driver does not know.
    let text = fs::read_to_string(interfaces.join(interface).join("speed")).ok()?;
    text.trim().parse::<u32>().ok().filter(|mbit| (1..=i32::MAX as u32).contains(mbit))
}

/// The folder of an interface's device, or of the first one that it lies over.
pub(crate) fn device_of(interfaces: &Path, interface: &str) -> Option<PathBuf> {
    device_below(interfaces, interface, MOST_LAYERS)
}

fn device_below(interfaces: &Path, interface: &str, layers: usize) -> Option<PathBuf> {
    // Not a name: that of the folder itself.
    if interface.is_empty() {
        return None;
    }
    let folder = interfaces.join(interface);
    let device = folder.join("device");
    if device.exists() {
        return Some(device);
    }
    let layers = layers.checked_sub(1)?;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut lower: Vec<_> =
        names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)).collect();
    lower.sort_unstable();
    lower.iter().find_map(|lower| device_below(interfaces, lower, layers))
}

#[cfg(test)]
pub(crate) mod testing {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A folder as the system's, removed at the end.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Tree(folder)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        /// A file and the folders above it.
        pub(crate) fn file(&self, name: &str, text: &str) {
            let file = self.0.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Tree;
    use super::*;

    fn interface(tree: &Tree, name: &str, speed: &str, entries: &[&str]) {
        tree.file(&format!("{name}/speed"), speed);
        let folder = tree.path().join(name);
        entries.iter().for_each(|entry| fs::create_dir_all(folder.join(entry)).unwrap());
    }

    fn mbit(tree: &Tree, name: &str) -> Option<u32> {
        speed_of(tree.path(), name)
    }

    #[test]
    fn a_device_states_its_speed() {
        let tree = Tree::new("sumpter-devices");
        interface(&tree, "eth0", "25000\n", &["device"]);
        interface(&tree, "slow", "100\n", &["device"]);
        interface(&tree, "fast", "400000\n", &["device"]);
        assert_eq!((mbit(&tree, "eth0"), mbit(&tree, "slow")), (Some(25_000), Some(100)));
        assert_eq!(mbit(&tree, "fast"), Some(400_000));
    }

    #[test]
    fn what_the_driver_does_not_know_or_is_not_there_has_none() {
        let tree = Tree::new("sumpter-unknown");
        interface(&tree, "down", "-1\n", &["device"]);
        interface(&tree, "unsigned", "4294967295\n", &["device"]);
        interface(&tree, "virtio", "", &["device"]);
        fs::create_dir_all(tree.path().join("wlan0/device")).unwrap();
        for name in ["down", "unsigned", "virtio", "wlan0", "absent", ""] {
            assert_eq!(mbit(&tree, name), None, "{name}");
        }
    }

    #[test]
    fn a_virtual_interface_has_the_speed_it_states_only_over_a_device() {
        let tree = Tree::new("sumpter-virtual");
        interface(&tree, "veth1", "10000\n", &[]);
        interface(&tree, "docker0", "10000\n", &["lower_veth1"]);
        interface(&tree, "eth0", "100000\n", &["device"]);
        interface(&tree, "bond0", "200000\n", &["lower_eth0"]);
        interface(&tree, "vlan7", "200000\n", &["lower_bond0"]);
        interface(&tree, "loop", "1000\n", &["lower_loop"]);
        for name in ["veth1", "docker0", "loop"] {
            assert_eq!(mbit(&tree, name), None, "{name}");
        }
        assert_eq!((mbit(&tree, "bond0"), mbit(&tree, "vlan7")), (Some(200_000), Some(200_000)));
    }

    #[test]
    fn a_loopback_interface_has_no_link() {
        assert_eq!(link_mbit("lo"), None);
    }
}
