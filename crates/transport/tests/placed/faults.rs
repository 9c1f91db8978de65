//! What goes wrong in a network that places bytes, in simulation: memory that cannot be locked, a
//! network that hangs, one that reports an error, and processes that die with writes under way.

use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};

use proptest::prelude::*;
use sumpter_endpoint::LinkError;
use sumpter_fabric::{FabricError, Network, Shape, SimEndpoint, SimNetwork, SimPort};
use sumpter_transport::FabricLink;

use super::PATIENCE;
use crate::carriers::{Carrier, OverTcp, Simulated, carry};
use crate::scripted::Scripted;

#[test]
fn ends_that_may_lock_too_little_memory_go_on_over_tcp_and_say_why() {
    let least = Shape::default().registered_bytes();
    for (side, lockable) in [(0, 0), (1, least / 2 + 1), (0, least - 1)] {
        let (_, mut both) = Simulated::within(|network| network.limit_memory(side, lockable));
        assert_eq!(both.settle(), [None, None]);
        let fallbacks = both.fallbacks().map(|reason| reason.expect("a reason"));
        assert!(fallbacks[side].starts_with("this end has none"), "{fallbacks:?}");
        assert!(fallbacks[1 - side].contains("the peer none"), "{fallbacks:?}");
        for text in &fallbacks {
            assert!(text.contains("no more memory may be locked"), "{text}");
        }
        let (mut a, mut b) = (Scripted::new(300_000, 7, 64), Scripted::new(7, 300_000, 1 << 16));
        carry(&mut both, &mut a, &mut b);
        assert!(a.received_right() && b.received_right());
    }
    let (_, mut both) = Simulated::within(|network| network.limit_memory(0, least));
    assert!(both.settle().iter().all(Option::is_some), "it is enough");
}

/// Both ends write at once, and then wait for each other.
#[test]
fn nothing_is_overlooked_that_a_network_takes_in_while_it_posts() {
    for make in [Simulated::with_descriptors, Simulated::new] {
        let mut both = make();
        both.settle();
        for round in 0..200 {
            let (len, space) = (1 + round % 70, 64);
            let (mut a, mut b) = (Scripted::new(len, 70, space), Scripted::new(70, len, space));
            carry(&mut both, &mut a, &mut b);
        }
    }
}

#[test]
fn a_network_that_hangs_leaves_the_way_unsettled() {
    let (network, mut both) = Simulated::within(|_| {});
    both.hang();
    let (mut a, mut b) = (Scripted::new(0, 0, 64), Scripted::new(0, 0, 64));
    for _ in 0..50 {
        both.step(&mut a, &mut b).expect("connected");
        assert!(!both.is_settled());
    }
    assert_eq!(network.under_way(), 2, "both have greeted");
}

#[test]
fn a_network_owes_something_until_it_has_written_all_and_for_ever_once_it_hangs() {
    for make in [Simulated::with_descriptors, Simulated::new] {
        let mut both = make();
        both.settle();
        let (mut a, mut b) = (Scripted::new(1 << 20, 0, 64), Scripted::new(0, 1 << 20, 1 << 16));
        let mut seen = std::collections::BTreeSet::new();
        while !b.is_done() {
            both.step(&mut a, &mut b).expect("connected");
            seen.extend(both.owed()[0]);
        }
        assert!(seen.len() > 3, "it has changed with what was written: {seen:?}");
        for turn in 0..PATIENCE {
            if both.owed() == [None, None] {
                break;
            }
            // Events say no more once all has completed, and then the ends tell each other.
            if turn % 20 == 19 {
                both.ask();
            }
            both.step(&mut a, &mut b).expect("connected");
        }
        assert_eq!(both.owed(), [None, None], "all is written");
        both.hang();
        let (mut a, mut b) = (Scripted::new(4 << 20, 0, 64), Scripted::new(0, 4 << 20, 1 << 16));
        for _ in 0..50 {
            both.step(&mut a, &mut b).expect("connected");
        }
        let owed = both.owed();
        assert!(owed[0].is_some() && !b.is_done());
        for _ in 0..50 {
            both.step(&mut a, &mut b).expect("connected");
            assert_eq!(both.owed(), owed);
        }
    }
}

#[test]
fn a_write_that_is_lost_without_an_error_is_owed_once_nothing_happens() {
    let rest = |both: &mut Simulated, [a, b]: &mut [Scripted; 2]| {
        for _ in 0..100 {
            both.step(a, b).expect("connected");
        }
    };
    for (descriptors, side) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let (network, mut both) = Simulated::within(|network| {
            descriptors.then(|| network.give_descriptors().expect("descriptors"));
        });
        both.settle();
        let [mut a, mut b] = [(); 2].map(|()| Scripted::new(3 << 20, 3 << 20, 1 << 16));
        carry(&mut both, &mut a, &mut b);
        let mut nothing = [(); 2].map(|()| Scripted::new(0, 0, 64));
        rest(&mut both, &mut nothing);
        both.ask();
        rest(&mut both, &mut nothing);
        assert_eq!(both.owed(), [None, None], "each end knows that all has arrived");
        let mut ends = [(); 2].map(|()| Scripted::new(300_000, 300_000, 1 << 16));
        let lost = (0..PATIENCE).any(|turn| {
            both.post(side, &mut ends[side]);
            network.lose(side, turn)
        });
        assert!(lost && !ends[1 - side].is_done(), "{descriptors} {side}: no write was lost");
        rest(&mut both, &mut ends);
        both.ask();
        rest(&mut both, &mut ends);
        let owed = both.owed();
        assert!(owed[1 - side].is_some() && !ends[1 - side].is_done(), "{side}: {owed:?}");
        rest(&mut both, &mut ends);
        both.ask();
        assert_eq!(both.owed(), owed, "it stays lost");
    }
}

/// A port that opens once it may: as a driver that answers late, or never.
#[derive(Clone, Debug)]
struct Late {
    port: SimPort,
    may_open: Arc<(Mutex<bool>, Condvar)>,
}

impl Network for Late {
    type Endpoint = SimEndpoint;

    fn open(&self, source: Option<IpAddr>, writes: u32) -> Result<SimEndpoint, FabricError> {
        let (may, changed) = &*self.may_open;
        drop(changed.wait_while(may.lock().unwrap(), |may| !*may).unwrap());
        self.port.open(source, writes)
    }

    fn may_block(&self) -> bool {
        true
    }
}

#[test]
fn a_driver_that_does_not_answer_holds_up_nothing_but_its_connection() {
    let may_open = Arc::new((Mutex::new(false), Condvar::new()));
    let join = || {
        let (network, ports) = SimNetwork::unopened();
        let networks = ports.map(|port| Late { port, may_open: may_open.clone() });
        OverTcp::<FabricLink<Late>>::joined(networks, Some(network))
    };
    let (given_up, mut both) = (join(), join());
    let (mut a, mut b) = (Scripted::new(70_000, 5, 64), Scripted::new(5, 70_000, 1 << 16));
    for _ in 0..20 {
        assert!(!both.step(&mut a, &mut b).expect("connected"), "nothing is lost meanwhile");
        assert!(!both.is_settled());
    }
    drop(given_up);
    *may_open.0.lock().unwrap() = true;
    may_open.1.notify_all();
    assert!(both.settle().iter().all(Option::is_some), "it has answered");
    carry(&mut both, &mut a, &mut b);
    assert!(a.received_right() && b.received_right());
}

#[test]
fn an_error_of_the_network_breaks_the_connection_and_is_told() {
    for side in [0, 1] {
        let (network, mut both) = Simulated::within(|_| {});
        both.settle();
        let (mut a, mut b) = (Scripted::new(1 << 20, 0, 64), Scripted::new(0, 1 << 20, 1 << 16));
        for _ in 0..5 {
            both.step(&mut a, &mut b).expect("no failure yet");
        }
        network.fail(side, "the cable was pulled");
        let error = (0..PATIENCE).find_map(|_| both.step(&mut a, &mut b).err());
        let error = error.expect("it is told");
        assert!(matches!(error, LinkError::Io(_)), "{error:?}");
        assert!(error.to_string().contains("the cable was pulled"), "{error}");
        assert!(b.received_a_beginning());
    }
}

proptest! {
    /// What has arrived is a beginning of what was sent, and the end is reported.
    #[test]
    fn a_peer_that_dies_with_writes_under_way_leaves_a_beginning(
        steps in 0usize..60,
        choice: usize,
    ) {
        let (_, mut both) = Simulated::within(|_| {});
        both.settle();
        let (mut a, mut b) = (Scripted::new(4 << 20, 0, 64), Scripted::new(0, 4 << 20, 1 << 16));
        for _ in 0..steps {
            both.step(&mut a, &mut b).expect("no failure yet");
        }
        let mut survivor = both.kill_a(choice);
        let end = (0..PATIENCE).find_map(|_| survivor.receive(&mut b).err());
        prop_assert!(matches!(end, Some(LinkError::Closed | LinkError::Io(_))), "{end:?}");
        prop_assert!(b.received_a_beginning() && !b.is_done());
    }
}
