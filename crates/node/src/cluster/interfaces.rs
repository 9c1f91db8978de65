//! The network interfaces of this process: where its lanes listen, where its connections leave
//! from, and what they carry.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use if_addrs::{IfAddr, IfOperStatus};
use sumpter_plan::lane_interfaces;

use crate::cluster::link_speed::link_mbit;

/// A network interface, by one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// What the system calls it; empty if it is not known.
    pub name: String,
    pub address: IpAddr,
    /// How many bits of the address are equal for all hosts of its network.
    pub prefix: u8,
}

impl Interface {
    /// Whether an address is one of its network, which it reaches without a router.
    pub(crate) fn reaches(&self, address: IpAddr) -> bool {
        let (own, other, bits) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(u32::from(own)), u128::from(u32::from(other)), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own), u128::from(other), 128),
            _ => return false,
        };
        let hosts = bits - u32::from(self.prefix).min(bits);
        (own ^ other).checked_shr(hosts).unwrap_or(0) == 0
    }
}

/// The interfaces of this process, in the order of the settings.
#[derive(Clone, Debug)]
pub(crate) struct Interfaces {
    pub all: Vec<Interface>,
    /// Whether the settings name them: else the routing table decides about each connection.
    pub are_chosen: bool,
    /// What the system says that each carries, in Mb/s.
    speeds: Vec<Option<u32>>,
}

impl Interfaces {
    /// Those asked for, or the one by which the coordinator is reached.
    ///
    /// # Errors
    /// When the coordinator's name is unknown, or an interface that was asked for cannot be used.
    pub(crate) fn find(coordinator: &str, wanted: &[String]) -> io::Result<Interfaces> {
        let known = known()?;
        let all = match wanted {
            [] => vec![routed(&known, coordinator)?],
            wanted => chosen(&known, wanted)
                .map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))?,
        };
        let speeds = all.iter().map(|interface| link_mbit(&interface.name)).collect();
        Ok(Interfaces { all, are_chosen: !wanted.is_empty(), speeds })
    }

    /// What each carries in Mb/s: what is not known counts as the slowest that is. None if nothing
    /// is known.
    pub(crate) fn mbit(&self) -> Option<Vec<u32>> {
        let slowest = self.speeds.iter().flatten().copied().min()?;
        Some(self.speeds.iter().map(|speed| speed.unwrap_or(slowest)).collect())
    }

    /// The interfaces of each of `lanes` lanes, as numbers.
    pub(crate) fn of_lanes(&self, lanes: usize) -> Vec<Vec<usize>> {
        lane_interfaces(lanes, &self.bandwidths())
    }

    /// What some of them carry, beside others.
    pub(crate) fn bandwidth(&self, numbers: &[usize]) -> u32 {
        let each = self.bandwidths();
        numbers.iter().map(|number| each[*number]).fold(0, u32::saturating_add)
    }

    fn bandwidths(&self) -> Vec<u32> {
        self.mbit().unwrap_or_else(|| vec![1; self.all.len()])
    }

    /// What an operator should know of them before the job starts.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let unknown = self.all.iter().zip(&self.speeds).filter(|(_, speed)| speed.is_none());
        if let Some(slowest) = self.speeds.iter().flatten().min() {
            warnings.extend(unknown.map(|(Interface { name, .. }, _)| {
                format!(
                    "the system reports no speed of interface {name}: it counts as {slowest} \
                     Mb/s, the slowest of the others; set bandwidth_gbps to what all carry together"
                )
            }));
        }
        for (number, one) in self.all.iter().enumerate() {
            let beside = |other: &&Interface| {
                one.reaches(other.address) && !one.address.is_loopback() && one.name != other.name
            };
            warnings.extend(self.all[..number].iter().find(beside).map(|other| {
                format!(
                    "interfaces {} and {} are in one network: without source routing (ip rule) \
                     the system sends everything through one of them",
                    other.name, one.name
                )
            }));
        }
        warnings
    }
}

/// An interface that the system has, by one of its addresses, and whether it is down.
type Known = (Interface, bool);

fn known() -> io::Result<Vec<Known>> {
    let known = |found: if_addrs::Interface| {
        let prefix = match &found.addr {
            IfAddr::V4(address) => address.prefixlen,
            IfAddr::V6(address) => address.prefixlen,
        };
        let is_down = found.oper_status == IfOperStatus::Down;
        (Interface { address: found.ip(), name: found.name, prefix }, is_down)
    };
    Ok(if_addrs::get_if_addrs()?.into_iter().map(known).collect())
}

/// The interface that the way to the coordinator leaves by.
fn routed(known: &[Known], coordinator: &str) -> io::Result<Interface> {
    let target = coordinator.to_socket_addrs()?.next().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{coordinator} has no address"))
    })?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    let address = socket.local_addr()?.ip();
    let unnamed = || Interface { name: String::new(), address, prefix: u8::MAX };
    Ok(with_address(known, address).map_or_else(unnamed, |(interface, _)| interface))
}

/// The interfaces that the settings name; what is wrong with them.
fn chosen(known: &[Known], wanted: &[String]) -> Result<Vec<Interface>, String> {
    let mut found: Vec<Interface> = Vec::new();
    for text in wanted {
        let (interface, is_down) = match text.parse() {
            Ok(address) => with_address(known, address),
            Err(_) => with_name(known, text),
        }
        .ok_or_else(|| {
            let mut names: Vec<_> = known.iter().map(|(known, _)| known.name.as_str()).collect();
            names.dedup();
            let names = names.join(", ");
            format!(
                "interface '{text}' has no address, or does not exist; this machine has {names}"
            )
        })?;
        if is_down {
            return Err(format!(
                "interface '{text}' is down: bring it up, or take it out of the interfaces"
            ));
        }
        let same =
            |other: &&Interface| other.name == interface.name && !interface.address.is_loopback();
        if let Some(other) = found.iter().find(same) {
            let Interface { name, address, .. } = other;
            return Err(format!("interface '{text}' is there twice: {name} also has {address}"));
        }
        found.push(interface);
    }
    Ok(found)
}

fn with_name(known: &[Known], name: &str) -> Option<Known> {
    let named = known.iter().filter(|(known, _)| known.name == name);
    named.min_by_key(|(known, _)| known.address.is_ipv6()).cloned()
}

/// The interface of an address. Loopback has all of its network.
fn with_address(known: &[Known], address: IpAddr) -> Option<Known> {
    let has = |known: &Interface| {
        known.address == address || address.is_loopback() && known.reaches(address)
    };
    let (interface, is_down) = known.iter().find(|(known, _)| has(known))?;
    Some((Interface { address, ..interface.clone() }, *is_down))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, prefix: u8) -> Interface {
        Interface { name: name.to_owned(), address: address.parse().unwrap(), prefix }
    }

    fn machine() -> Vec<Known> {
        vec![
            (interface("lo", "127.0.0.1", 8), false),
            (interface("eth0", "fe80::1", 64), false),
            (interface("eth0", "10.0.0.1", 24), false),
            (interface("eth1", "10.0.1.1", 24), false),
            (interface("eth2", "10.0.2.1", 24), true),
        ]
    }

    fn choose(wanted: &[&str]) -> Result<Vec<Interface>, String> {
        let wanted: Vec<String> = wanted.iter().map(|text| (*text).to_owned()).collect();
        chosen(&machine(), &wanted)
    }

    #[test]
    fn interfaces_are_found_by_name_and_by_address() {
        let both = [interface("eth1", "10.0.1.1", 24), interface("eth0", "10.0.0.1", 24)];
        assert_eq!(choose(&["eth1", "eth0"]).unwrap(), both);
        assert_eq!(choose(&["10.0.1.1", "eth0"]).unwrap(), both);
        // Any address of loopback, and several of them.
        let loopback = choose(&["127.0.0.2", "127.0.0.3"]).unwrap();
        assert_eq!(loopback[1], interface("lo", "127.0.0.3", 8));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_what_to_do() {
        for (wanted, expected) in [
            (&["eth9"][..], "'eth9' has no address, or does not exist; this machine has lo, eth0"),
            (&["10.0.9.9"], "'10.0.9.9' has no address, or does not exist"),
            (&["eth0", "eth2"], "'eth2' is down: bring it up, or take it out of the interfaces"),
            (&["eth0", "10.0.0.1"], "'10.0.0.1' is there twice: eth0 also has 10.0.0.1"),
        ] {
            let text = choose(wanted).unwrap_err();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_network_is_as_large_as_its_prefix_says() {
        let eth0 = interface("eth0", "10.0.0.1", 23);
        assert!(eth0.reaches("10.0.1.200".parse().unwrap()));
        assert!(!eth0.reaches("10.0.2.1".parse().unwrap()));
        assert!(!eth0.reaches("fe80::1".parse().unwrap()));
        let all = interface("tun0", "10.0.0.1", 0);
        assert!(all.reaches("192.168.0.1".parse().unwrap()));
        let ib0 = interface("ib0", "fd00::1", 128);
        assert!(
            ib0.reaches("fd00::1".parse().unwrap()) && !ib0.reaches("fd00::2".parse().unwrap())
        );
    }

    fn interfaces(all: &[(&str, &str, Option<u32>)]) -> Interfaces {
        Interfaces {
            all: all.iter().map(|(name, address, _)| interface(name, address, 24)).collect(),
            are_chosen: true,
            speeds: all.iter().map(|(_, _, speed)| *speed).collect(),
        }
    }

    #[test]
    fn an_interface_without_a_speed_counts_as_the_slowest_and_is_named() {
        let known = Some(25_000);
        let some = interfaces(&[("a", "10.0.0.1", known), ("b", "10.0.1.1", None)]);
        assert_eq!(some.mbit(), Some(vec![25_000, 25_000]));
        assert_eq!((some.bandwidth(&[0]), some.bandwidth(&[0, 1])), (25_000, 50_000));
        let [warning] = some.warnings().try_into().unwrap();
        assert!(warning.contains("no speed of interface b: it counts as 25000 Mb/s"), "{warning}");
        let none = interfaces(&[("a", "10.0.0.1", None), ("b", "10.0.1.1", None)]);
        assert_eq!((none.mbit(), none.bandwidth(&[1])), (None, 1));
        assert_eq!(none.of_lanes(3), [[0], [1], [0]]);
        assert!(none.warnings().is_empty());
    }

    #[test]
    fn two_interfaces_in_one_network_need_source_routing() {
        let both = interfaces(&[("a", "10.0.0.1", Some(1)), ("b", "10.0.0.2", Some(1))]);
        let [warning] = both.warnings().try_into().unwrap();
        assert!(warning.contains("a and b are in one network"), "{warning}");
    }
}
