//! Connections that place bytes, under what the conformance suite does not try: ends of
//! connections, ends that do not find a common network, peers that send nonsense.

mod faults;

use std::io::{IoSliceMut, Read, Write};
use std::time::Duration;

use mio::{Events, Poll, Token};
use sumpter_endpoint::{Link, LinkError, Upgrade};
use sumpter_fabric::{Choice, FabricStream, LibfabricEndpoint, Shape};
use sumpter_transport::{FabricLink, TcpLink, readiness};

use crate::carriers::{Carrier, Fabric, carry, has_provider};
use crate::scripted::Scripted;

/// Waits for events after which something has to happen.
const PATIENCE: usize = 2000;

fn named(provider: &str) -> Choice {
    Choice { provider: Some(provider.to_owned()), device: None }
}

/// Whether a text begins with a provider's name; `tcp` was called `net` before libfabric 1.18.
fn is(text: &str, provider: &str) -> bool {
    text.starts_with(provider) || (provider == "tcp" && text.starts_with("net"))
}

#[test]
fn both_ends_name_the_network_that_they_have_found() {
    for provider in ["tcp", "shm"] {
        if !has_provider(provider) {
            continue;
        }
        let mut both = Fabric::over(provider);
        let [a, b] = both.settle();
        assert_eq!(a, b);
        assert!(a.as_ref().is_some_and(|name| is(name, provider)), "{a:?}");
        assert_eq!(both.fallbacks(), [None, None]);
    }
}

#[test]
fn ends_without_a_common_network_go_on_over_tcp_and_say_why() {
    // Where there is no library at all, both say so.
    let mut both = Fabric::pair([named("tcp"), named("nonesuch")]);
    assert_eq!(both.settle(), [None, None]);
    let [a, b] = both.fallbacks().map(|reason| reason.expect("a reason"));
    if has_provider("tcp") {
        assert!(a.contains("the peer none: ") && a.contains("`nonesuch`"), "{a}");
        assert!(is(a.trim_start_matches("this end has "), "tcp"), "{a}");
    }
    assert!(b.contains("this end has none: "), "{b}");
    assert_eq!(both.fallbacks(), [None, None], "told once");
    let (mut a, mut b) = (Scripted::new(100_000, 0, 1 << 16), Scripted::new(0, 100_000, 1 << 16));
    carry(&mut both, &mut a, &mut b);
    assert!(b.received_right());
}

#[test]
fn different_networks_are_named_by_both_ends() {
    if !(has_provider("tcp") && has_provider("shm")) {
        return;
    }
    let mut both = Fabric::pair([named("tcp"), named("shm")]);
    assert_eq!(both.settle(), [None, None]);
    let [a, b] = both.fallbacks().map(|reason| reason.expect("a reason"));
    let (own, peer) = a.split_once(", the peer ").expect("both are named");
    assert!(is(own.trim_start_matches("this end has "), "tcp") && is(peer, "shm"), "{a}");
    let (own, peer) = b.split_once(", the peer ").expect("both are named");
    assert!(is(own.trim_start_matches("this end has "), "shm") && is(peer, "tcp"), "{b}");
}

#[test]
fn all_that_was_sent_arrives_before_the_end() {
    for provider in ["tcp", "shm"] {
        if !has_provider(provider) {
            continue;
        }
        let mut both = Fabric::over(provider);
        both.settle();
        let total = 300_000;
        let mut b = Scripted::new(0, total, 1 << 16);
        let mut a = Scripted::new(total, 0, 64);
        while !a.is_done() {
            both.step(&mut a, &mut b).expect("connected");
        }
        both.close_a();
        let flushed = (0..PATIENCE).any(|_| both.receive_b(&mut b).is_err() || both.is_flushed());
        assert!(flushed, "{provider}: its end stays on the way");
        let end = (0..PATIENCE).find_map(|_| both.receive_b(&mut b).err());
        assert!(matches!(end, Some(LinkError::Closed)), "{provider}: {end:?}");
        assert!(b.is_done() && b.received_right(), "{provider}");
    }
}

/// One end of a connection that places bytes if it can, and the bare socket of the other.
fn beside_a_socket() -> (Poll, FabricLink, std::net::TcpStream) {
    let poll = Poll::new().expect("a poll");
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).expect("a connection");
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("a socket");
    let stream = mio::net::TcpStream::from_std(stream);
    let tcp = TcpLink::new(stream, poll.registry(), Token(0)).expect("registered");
    let mut link =
        FabricLink::new(tcp, poll.registry(), Token(0), named("tcp")).expect("registered");
    link.upgrade(Upgrade { dialled: false, placed: true }).expect("connected");
    (poll, link, peer)
}

/// Drives the link until it fails.
fn failure(poll: &mut Poll, link: &mut FabricLink) -> LinkError {
    let mut events = Events::with_capacity(8);
    for _ in 0..PATIENCE {
        poll.poll(&mut events, Some(Duration::from_millis(2))).expect("events");
        for event in &events {
            link.ready(readiness(event));
        }
        if let Err(error) = link.can_send() {
            return error.into();
        }
        let mut byte = [0];
        match link.recv(&mut [IoSliceMut::new(&mut byte)]) {
            Ok(n) => assert_eq!(n, 0, "nothing was sent"),
            Err(error) => return error,
        }
    }
    panic!("it goes on: {link:?}");
}

#[test]
fn nonsense_in_place_of_an_offer_closes_the_connection() {
    let long = 1_000_000u32.to_le_bytes();
    let short = [2, 0, 0, 0, 0, 0];
    let no_kind = [3, 0, 0, 0, 7, 0, 0];
    let cut_text = [3, 0, 0, 0, 1, 9, 0];
    let no_offer = [4, 0, 0, 0, 1, 0, 0, 5];
    for bytes in [&long[..], &short, &no_kind, &cut_text, &no_offer] {
        let (mut poll, mut link, mut peer) = beside_a_socket();
        peer.write_all(bytes).expect("connected");
        let error = failure(&mut poll, &mut link).to_string();
        assert!(error.contains("registered memory makes no sense"), "{bytes:?}: {error}");
    }
}

#[test]
fn a_peer_that_dies_instead_of_an_offer_is_an_end() {
    let (mut poll, mut link, peer) = beside_a_socket();
    drop(peer);
    let error = failure(&mut poll, &mut link);
    assert!(matches!(error, LinkError::Closed | LinkError::Io(_)), "{error}");
}

#[test]
fn a_peer_that_is_silent_after_its_offer_leaves_the_way_unsettled() {
    if !has_provider("tcp") {
        return;
    }
    let (mut poll, mut link, mut peer) = beside_a_socket();
    let shape = Shape::default();
    let loopback = Some([127, 0, 0, 1].into());
    let endpoint = LibfabricEndpoint::open(&named("tcp"), loopback, shape.writes());
    let silent = FabricStream::new(endpoint.expect("an endpoint"), shape).expect("rings");
    let mut events = Events::with_capacity(8);
    let mut said = vec![0; 4096];
    peer.set_read_timeout(Some(Duration::from_millis(2))).expect("a socket");
    let (mut offered, mut turns_after) = (false, 0);
    for _ in 0..PATIENCE {
        turns_after += u32::from(offered);
        if turns_after == 100 {
            break;
        }
        poll.poll(&mut events, Some(Duration::from_millis(1))).expect("events");
        for event in &events {
            link.ready(readiness(event));
        }
        link.can_send().expect("connected");
        if let (false, Ok(n)) = (offered, peer.read(&mut said)) {
            // As the link said it, of the same protocol, but with the offer of the silent end.
            let text = usize::from(u16::from_le_bytes([said[5], said[6]]));
            let body = [&said[4..7 + text], &silent.offer().encode()].concat();
            assert!(n > 7 + text, "the link offers nothing");
            peer.write_all(&(body.len() as u32).to_le_bytes()).expect("connected");
            peer.write_all(&body).expect("connected");
            offered = true;
        }
    }
    assert!(offered && link.network().is_some(), "{link:?}");
    assert!(!link.is_settled(), "no greeting has come");
}
