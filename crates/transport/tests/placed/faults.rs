//! What goes wrong in a network that places bytes, in simulation: memory that cannot be locked, a
//! network that hangs, one that reports an error, and processes that die with writes under way.

use proptest::prelude::*;
use sumpter_endpoint::LinkError;
use sumpter_fabric::Shape;

use super::PATIENCE;
use crate::carriers::{Carrier, Simulated, carry};
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
