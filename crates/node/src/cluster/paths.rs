//! The ways over the network from a worker to a lane, where either has several interfaces.
//!
//! A path is an address of the lane and an address of this machine. A connection takes the first
//! of its paths; when that fails, the next. The order is a function of the addresses and of both
//! ends' places in the cluster, so that the connections of a machine spread over its interfaces.

use std::net::{IpAddr, SocketAddr};

use sumpter_membership::LaneView;

use crate::cluster::interfaces::Interface;

/// Where connections may leave from: nothing if the routing table decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Those of this process's lane first.
    pub interfaces: Vec<Interface>,
    /// How many are the lane's.
    pub own: usize,
}

/// A way to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkPath {
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
}

/// The number of the connection from the worker at place `own` of the cluster's lanes to the lane
/// at `other`: the two connections between two workers have numbers in a row, so that they take
/// different interfaces at both ends.
pub(crate) fn connection_number(own: usize, other: usize) -> usize {
    own + other + usize::from(own < other)
}

/// All ways to a lane, in the order in which they are tried: at least one. The first ones share no
/// address, so that one interface that is down costs one attempt.
pub(crate) fn paths(lane: &LaneView, sources: &Sources, connection: usize) -> Vec<NetworkPath> {
    let to = rotated(&lane.addresses, lane.own as usize, connection);
    let from: Vec<_> = to.iter().map(|to| candidates(sources, to.ip(), connection)).collect();
    let attempts = from.iter().map(Vec::len).max().unwrap_or(0);
    let nth = |attempt: usize| {
        let ways = to.iter().zip(&from).enumerate();
        ways.filter(move |(_, (_, from))| attempt < from.len()).map(move |(place, (to, from))| {
            NetworkPath { to: *to, from: from[(attempt + place) % from.len()] }
        })
    };
    (0..attempts).flat_map(nth).collect()
}

/// Where a connection to an address may leave from: an interface in its network if there is one,
/// since a router may not know how to answer to another.
fn candidates(sources: &Sources, to: IpAddr, connection: usize) -> Vec<Option<IpAddr>> {
    let of_family = |one: &&Interface| one.address.is_ipv4() == to.is_ipv4();
    let Sources { interfaces, own } = sources;
    let own = interfaces[..*own].iter().filter(of_family);
    let others = interfaces[sources.own..].iter().filter(of_family);
    let near = |one: &&Interface| one.reaches(to);
    let choose = |own: Vec<&Interface>, others: Vec<&Interface>| {
        let count = own.len();
        let all: Vec<_> = own.into_iter().chain(others).map(|one| Some(one.address)).collect();
        rotated(&all, count, connection)
    };
    let beside = choose(own.clone().filter(near).collect(), others.clone().filter(near).collect());
    match beside.is_empty() {
        false => beside,
        true => Some(choose(own.collect(), others.collect()))
            .filter(|all| !all.is_empty())
            .unwrap_or_else(|| vec![None]),
    }
}

/// The first `own` of some, beginning with that of the connection's number; then the others.
fn rotated<T: Clone>(all: &[T], own: usize, connection: usize) -> Vec<T> {
    let (own, others) = all.split_at(own.min(all.len()));
    let start = connection.checked_rem(own.len()).unwrap_or(0);
    [&own[start..], &own[..start], others].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn lane(addresses: &[&str], own: u32) -> LaneView {
        let addresses =
            addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7000)).collect();
        LaneView { addresses, own, bandwidth: 1 }
    }

    fn sources(addresses: &[&str], own: usize) -> Sources {
        let interface = |(number, address): (usize, &&str)| Interface {
            name: format!("eth{number}"),
            address: address.parse().unwrap(),
            prefix: 24,
        };
        Sources { interfaces: addresses.iter().enumerate().map(interface).collect(), own }
    }

    /// The paths in short: the last numbers of both addresses.
    fn short(lane: &LaneView, sources: &Sources, connection: usize) -> Vec<String> {
        let last = |ip: IpAddr| ip.to_string().rsplit('.').next().unwrap_or_default().to_owned();
        let from = |path: &NetworkPath| path.from.map_or("-".to_owned(), last);
        let one = |path: NetworkPath| format!("{}>{}", from(&path), last(path.to.ip()));
        paths(lane, sources, connection).into_iter().map(one).collect()
    }

    #[test]
    fn without_a_choice_there_is_one_path() {
        let lane = lane(&["10.0.0.9"], 1);
        assert_eq!(short(&lane, &Sources::default(), 5), ["->9"]);
        assert_eq!(short(&lane, &sources(&["10.0.0.1"], 1), 5), ["1>9"]);
        // An address of the other family cannot be a source.
        assert_eq!(short(&lane, &sources(&["fd00::1"], 1), 5), ["->9"]);
    }

    #[test]
    fn a_lane_is_reached_at_its_own_interface_first_and_then_at_the_others() {
        let lane = lane(&["10.0.1.12", "10.0.0.11", "10.0.2.13"], 1);
        for connection in 0..3 {
            assert_eq!(short(&lane, &Sources::default(), connection), ["->12", "->11", "->13"]);
        }
        // One of a network of its own is used for that network only.
        let rails = sources(&["10.0.0.1", "10.0.1.2", "10.0.2.3"], 3);
        assert_eq!(short(&lane, &rails, 7), ["2>12", "1>11", "3>13"]);
    }

    #[test]
    fn connections_spread_over_both_ends_interfaces_and_the_second_attempt_shares_none() {
        // Reached through a router: every pair of addresses is a path.
        let (lane, from) =
            (lane(&["10.9.0.11", "10.9.1.12"], 2), sources(&["10.0.0.1", "10.0.1.2"], 2));
        assert_eq!(short(&lane, &from, 0), ["1>11", "2>12", "2>11", "1>12"]);
        assert_eq!(short(&lane, &from, 1), ["2>12", "1>11", "1>12", "2>11"]);
    }

    #[test]
    fn the_two_connections_between_two_workers_take_different_interfaces() {
        let mut numbers = BTreeSet::new();
        for (a, b) in [(0, 1), (1, 0), (3, 7), (7, 3)] {
            numbers.insert(connection_number(a, b) % 2);
            if a > b {
                assert_eq!(std::mem::take(&mut numbers).len(), 2);
            }
        }
    }

    #[test]
    fn every_pair_of_addresses_is_tried_once() {
        for own in 1..=3 {
            let lane = lane(&["10.9.0.11", "10.9.1.12", "10.9.2.13"], own);
            let from = sources(&["10.0.0.1", "10.0.1.2"], own.min(2) as usize);
            let all = short(&lane, &from, 4);
            assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (6, 6), "{all:?}");
        }
    }
}
