//! How fast the system says that this machine's link is.
//!
//! Only of interfaces over hardware: what a virtual one states is made up (a veth pair says
//! 10 Gb/s whatever carries it). A bond, a bridge or a VLAN over hardware counts.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// Where the system describes its network interfaces.
const INTERFACES: &str = "/sys/class/net";

/// How many interfaces may lie over each other: a VLAN over a bridge over a bond, and one more.
const MOST_LAYERS: usize = 4;

/// What an interface carries each way.
#[derive(Debug, PartialEq)]
pub(crate) struct LinkSpeed {
    pub gbps: f64,
    pub interface: String,
}

/// The speed of the interface that has this address, if the system knows it.
pub(crate) fn link_speed(address: IpAddr) -> Option<LinkSpeed> {
    let all = if_addrs::get_if_addrs().ok()?.into_iter();
    let interface = all.filter(|known| known.ip() == address).map(|known| known.name).next()?;
    speed_of(Path::new(INTERFACES), interface)
}

fn speed_of(interfaces: &Path, interface: String) -> Option<LinkSpeed> {
    if !is_hardware(interfaces, &interface, MOST_LAYERS) {
        return None;
    }
    // In Mb/s; -1 or an error where there is no link, or the driver does not know.
    let text = fs::read_to_string(interfaces.join(&interface).join("speed")).ok()?;
    let mbps = text.trim().parse::<i64>().ok().filter(|mbps| *mbps > 0)?;
    Some(LinkSpeed { gbps: mbps as f64 / 1e3, interface })
}

/// Whether an interface is a device or lies over one.
fn is_hardware(interfaces: &Path, interface: &str, layers: usize) -> bool {
    let folder = interfaces.join(interface);
    if folder.join("device").exists() {
        return true;
    }
    let Some(layers) = layers.checked_sub(1) else { return false };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| name.strip_prefix("lower_").map(str::to_owned))
        .any(|lower| is_hardware(interfaces, &lower, layers))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder as the system's, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Tree(folder)
        }

        fn interface(&self, name: &str, speed: &str, entries: &[&str]) {
            let folder = self.0.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("speed"), speed).unwrap();
            entries.iter().for_each(|entry| fs::create_dir_all(folder.join(entry)).unwrap());
        }

        fn gbps(&self, name: &str) -> Option<f64> {
            speed_of(&self.0, name.to_owned()).map(|speed| speed.gbps)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_device_states_its_speed() {
        let tree = Tree::new("sumpter-devices");
        tree.interface("eth0", "25000\n", &["device"]);
        tree.interface("slow", "100\n", &["device"]);
        let speed = LinkSpeed { gbps: 25.0, interface: "eth0".to_owned() };
        assert_eq!(speed_of(&tree.0, "eth0".to_owned()), Some(speed));
        assert_eq!(tree.gbps("slow"), Some(0.1));
    }

    #[test]
    fn what_the_driver_does_not_know_or_is_not_there_has_none() {
        let tree = Tree::new("sumpter-unknown");
        tree.interface("down", "-1\n", &["device"]);
        tree.interface("virtio", "", &["device"]);
        fs::create_dir_all(tree.0.join("wlan0/device")).unwrap();
        for name in ["down", "virtio", "wlan0", "absent"] {
            assert_eq!(tree.gbps(name), None, "{name}");
        }
    }

    #[test]
    fn a_virtual_interface_has_the_speed_it_states_only_over_a_device() {
        let tree = Tree::new("sumpter-virtual");
        tree.interface("veth1", "10000\n", &[]);
        tree.interface("docker0", "10000\n", &["lower_veth1"]);
        tree.interface("eth0", "100000\n", &["device"]);
        tree.interface("bond0", "200000\n", &["lower_eth0"]);
        tree.interface("vlan7", "200000\n", &["lower_bond0"]);
        tree.interface("loop", "1000\n", &["lower_loop"]);
        assert_eq!(
            (tree.gbps("veth1"), tree.gbps("docker0"), tree.gbps("loop")),
            (None, None, None)
        );
        assert_eq!((tree.gbps("bond0"), tree.gbps("vlan7")), (Some(200.0), Some(200.0)));
    }

    #[test]
    fn a_loopback_address_has_no_link() {
        assert_eq!(link_speed(IpAddr::from([127, 0, 0, 1])), None);
    }
}
