//! The stream over libfabric's own providers, in one process; skipped, with a line that says so,
//! where there is no library.

use std::io::{IoSlice, IoSliceMut, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use sumpter_fabric::{
    Ablated, Access, Choice, Completion, FabricStream, LeftOut, LibfabricEndpoint, Network, Offer,
    PlacedWrites, Posted, Remote, Segment, Shape, Write, providers,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);

/// Providers that need no hardware, as different releases call them.
const SOFTWARE: [&str; 3] = ["tcp", "net", "shm"];

type Stream<E = LibfabricEndpoint> = FabricStream<E>;

fn choice(provider: &str) -> Choice {
    Choice { provider: Some(provider.to_owned()), device: None }
}

/// Those of [`SOFTWARE`] that are here; says what is missing otherwise.
fn here(test: &str) -> Vec<&'static str> {
    let (there, missing): (Vec<_>, Vec<_>) = SOFTWARE
        .into_iter()
        .map(|name| (name, providers(&choice(name))))
        .partition(|p| p.1.is_ok());
    if there.is_empty() {
        let reason = missing[0].1.as_ref().expect_err("none is there");
        // To the terminal, past the capture of a test that passes.
        let _ = writeln!(std::io::stderr().lock(), "SKIPPED {test}: {reason}");
    }
    there.into_iter().map(|(name, _)| name).collect()
}

fn open(provider: &str, shape: Shape) -> Stream {
    let endpoint = LibfabricEndpoint::open(&choice(provider), Some(LOOPBACK), shape.writes());
    FabricStream::new(endpoint.expect("an endpoint"), shape).expect("rings")
}

fn joined<N: Network>(network: &N, shape: Shape) -> [Stream<N::Endpoint>; 2] {
    let [mut a, mut b] = [0, 1].map(|_| {
        let endpoint = network.open(Some(LOOPBACK), shape.writes()).expect("an endpoint");
        FabricStream::new(endpoint, shape).expect("rings")
    });
    let (to_a, to_b) = (b.offer(), a.offer());
    a.join(&to_a).expect("a peer");
    b.join(&to_b).expect("a peer");
    [a, b]
}

/// Polls both ends until `done`.
fn until<E: PlacedWrites>(
    streams: &mut [Stream<E>; 2],
    mut done: impl FnMut(&mut [Stream<E>; 2]) -> bool,
) {
    let limit = Instant::now() + PATIENCE;
    while !done(streams) {
        assert!(Instant::now() < limit, "stuck: {streams:?}");
        for stream in streams.iter_mut() {
            stream.poll().expect("no failure");
        }
    }
}

/// Both ends of a connection over which bytes have gone each way at once, and arrived.
fn exchanged<N: Network>(network: &N, shape: Shape) -> [Stream<N::Endpoint>; 2] {
    let mut streams = joined(network, shape);
    let total = 20 * shape.slots as usize * shape.slot_bytes as usize + 5;
    let bytes: Vec<u8> = (0..total).map(|i| ((i * 31) >> 7) as u8).collect();
    let (mut sent, mut received) = ([0; 2], [Vec::new(), Vec::new()]);
    until(&mut streams, |streams| {
        for (side, stream) in streams.iter_mut().enumerate() {
            let rest = IoSlice::new(&bytes[sent[side]..]);
            sent[side] += stream.send(&[rest]).expect("no failure");
            if sent[side] == total {
                stream.finish().expect("no failure");
            }
            let mut space = vec![0; 10_007];
            let n = stream.recv(&mut [IoSliceMut::new(&mut space)]).expect("no failure");
            received[side].extend_from_slice(&space[..n]);
        }
        streams.iter().all(Stream::has_ended)
    });
    assert!(received.iter().all(|got| *got == bytes), "{network:?}");
    until(&mut streams, |streams| streams.iter().all(Stream::is_flushed));
    streams
}

/// What `sumpter bench ablate datapath` compares is what it says, and carries the same bytes.
#[test]
fn each_rule_of_the_data_path_can_be_left_out() {
    for provider in here("the data path without its rules") {
        for bits in 0..8 {
            let left_out = LeftOut {
                alignment: bits & 1 != 0,
                single_segment: bits & 2 != 0,
                single_registration: bits & 4 != 0,
            };
            let network = Ablated { choice: choice(provider), left_out };
            for stream in &exchanged(&network, Shape::default()) {
                let (counts, address) = (stream.counts(), stream.offer().ring.address);
                // A write for which there was no room was registered in vain.
                match left_out.single_registration {
                    true => assert!(counts.registrations >= 2 + counts.writes, "{network:?}"),
                    false => assert_eq!(counts.registrations, 2, "{network:?}"),
                }
                assert_eq!(address % 4096 != 0, left_out.alignment, "{network:?}: {address:#x}");
                // All but what goes into immediates alone.
                assert_eq!(counts.segments > counts.writes, left_out.single_segment);
            }
        }
    }
}

#[test]
fn bytes_arrive_in_order_both_ways_at_once_from_rings_registered_once() {
    for provider in here("bytes over libfabric") {
        for shape in [Shape { slots: 4, slot_bytes: 4096 }, Shape::default()] {
            let streams = exchanged(&choice(provider), shape);
            for stream in &streams {
                let counts = stream.counts();
                assert_eq!((counts.registrations, counts.segments), (2, counts.writes));
                let address = stream.offer().ring.address;
                assert!(address % 4096 == 0, "{provider}: {address:#x}");
            }
        }
    }
}

#[test]
fn a_descriptor_says_when_there_is_something_to_poll() {
    for provider in here("waiting for libfabric") {
        let mut streams = joined(&choice(provider), Shape::default());
        until(&mut streams, |streams| streams.iter().all(Stream::is_open));
        let [a, b] = &mut streams;
        let Some(fd) = b.fabric().event_fd() else {
            assert_eq!(provider, "shm", "it has none");
            continue;
        };
        for round in 0..50u8 {
            // What is left of earlier writes is taken in first.
            while a.poll().expect("no failure") || b.poll().expect("no failure") || !b.arm() {}
            a.send(&[IoSlice::new(&[round])]).expect("no failure");
            let mut ready = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let limit = Instant::now() + PATIENCE;
            while !b.can_receive() {
                // The writer must be polled too: progress is manual.
                a.poll().expect("no failure");
                // SAFETY: one entry, which outlives the call.
                if unsafe { libc::poll(&raw mut ready, 1, 20) } > 0 {
                    b.poll().expect("no failure");
                }
                assert!(Instant::now() < limit, "{provider}: round {round} was not told");
            }
            let mut byte = [0];
            b.recv(&mut [IoSliceMut::new(&mut byte)]).expect("no failure");
            assert_eq!(byte, [round]);
        }
    }
}

#[test]
fn a_provider_that_is_not_there_is_named_beside_those_that_are() {
    if here("names of providers").is_empty() {
        return;
    }
    let error = providers(&choice("nonesuch")).expect_err("there is none");
    let text = error.to_string();
    assert!(text.contains("`nonesuch` (fabric_provider); it has"), "{text}");
    assert!(text.contains("shm"), "{text}");
    let device = Choice { provider: None, device: Some("nodevice0".to_owned()) };
    let text = providers(&device).expect_err("there is none").to_string();
    assert!(text.contains("`nodevice0` (fabric_device)"), "{text}");
}

#[test]
fn a_peer_with_a_wrong_key_writes_nowhere() {
    for provider in here("keys of libfabric") {
        let (mut a, mut b) = (open(provider, Shape::default()), open(provider, Shape::default()));
        let (to_a, mut to_b) = (b.offer(), a.offer());
        to_b.ring.key ^= 0x5a5a;
        a.join(&to_a).expect("a peer");
        // The greeting fails, at once or when it is polled for; or it never arrives.
        let mut refused = b.join(&to_b).is_err();
        let limit = Instant::now() + Duration::from_millis(500);
        while Instant::now() < limit && !refused {
            let _ = a.poll();
            refused = b.poll().is_err();
        }
        assert!(!a.is_open(), "{provider}: written with a wrong key");
    }
}

#[test]
fn a_name_of_another_kind_of_address_is_refused_before_libfabric_reads_it() {
    for provider in here("names of libfabric") {
        let (mut end, peer) = (open(provider, Shape::default()), open(provider, Shape::default()));
        let offer = peer.offer();
        // A string is one of any length. It names nobody, which a provider may find out later.
        if provider == "shm" {
            for name in [vec![], vec![b'x'; 512], vec![0xff; 512], b"fi_shm://".to_vec()] {
                let mut end = open(provider, Shape::default());
                let _ = end.join(&Offer { name, ..offer.clone() });
                (0..10).for_each(|_| _ = end.poll());
                assert!(!end.is_open());
            }
            continue;
        }
        // IPv6 has longer addresses than the IPv4 of this one.
        let mut name = offer.name.clone();
        name[..2].copy_from_slice(&(libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
        let error = end.join(&Offer { name, ..offer.clone() }).expect_err("another kind");
        assert!(error.to_string().contains("an address of another kind"), "{error}");
        // An address that is none: no host, no port.
        let mut name = offer.name.clone();
        name[2..].fill(0);
        let mut nowhere = open(provider, Shape::default());
        let error = nowhere.join(&Offer { name, ..offer.clone() }).expect_err("no address");
        assert!(error.to_string().contains("the peer's name is not an address"), "{error}");
        for name in [&offer.name[1..], &[], &[0; 512]] {
            let mut end = open(provider, Shape::default());
            let error = end.join(&Offer { name: name.to_vec(), ..offer.clone() });
            let error = error.expect_err("another length").to_string();
            assert!(error.contains("the peer's name has another length"), "{error}");
        }
    }
}

/// Two endpoints, the second of which knows the first.
fn endpoints(provider: &str) -> [LibfabricEndpoint; 2] {
    let open = || LibfabricEndpoint::open(&choice(provider), Some(LOOPBACK), 4);
    let [mut a, mut b] = [0, 1].map(|_| open().expect("an endpoint"));
    a.connect(b.name()).expect("a peer");
    b.connect(a.name()).expect("a peer");
    [a, b]
}

/// Whether eight bytes arrive that the second end writes to a region of the first.
fn arrive([a, b]: &mut [LibfabricEndpoint; 2], to: Remote, offset: usize, limit: Duration) -> bool {
    let from = b.register(4096, Access::Source).expect("memory");
    b.put(from, 0, &[0xee; 8]);
    let segments = &[Segment { at: 0, len: 8 }];
    let write = Write { from, segments, to, offset, immediate: 5, context: 0 };
    let (mut found, mut own, mut posted) = (Vec::new(), Vec::new(), false);
    let limit = Instant::now() + limit;
    while Instant::now() < limit && found.is_empty() {
        // A network may refuse it here, when it is polled for, or at the peer, and then break the
        // connection; `tcp` says nothing here.
        posted = posted || b.post(&write).map_or(true, |posted| posted == Posted::Posted);
        let _ = (a.poll(&mut found), b.poll(&mut own));
    }
    assert!(found.iter().all(|completion| *completion == Completion::Arrived(5)), "{found:?}");
    !found.is_empty()
}

/// Long enough for a write that is refused to arrive if it were not.
const REFUSED: Duration = Duration::from_millis(300);

#[test]
fn a_write_behind_the_end_of_a_region_is_refused() {
    for provider in here("the bounds of regions of libfabric") {
        for offset in [4096 - 8, 4096 - 7, 4096, 1 << 30] {
            let mut both = endpoints(provider);
            let target = both[0].register(4096, Access::Target).expect("memory");
            // Were the region longer than it is said to be, this would be overwritten.
            let behind = both[0].register(4096, Access::Target).expect("memory");
            let to = both[0].remote(target);
            let fits = offset <= 4096 - 8;
            let limit = if fits { PATIENCE } else { REFUSED };
            let arrived = arrive(&mut both, to, offset, limit);
            assert_eq!(arrived, fits, "{provider} at {offset}");
            for (region, len) in [(target, if fits { 4096 - 8 } else { 4096 }), (behind, 4096)] {
                let mut bytes = vec![1; len];
                both[0].get(region, 0, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == 0), "{provider} at {offset}");
            }
        }
    }
}

#[test]
fn a_stranger_without_the_key_neither_writes_nor_is_heard_nor_breaks_the_connection() {
    for provider in here("strangers to a connection") {
        let mut streams = joined(&choice(provider), Shape::default());
        until(&mut streams, |streams| streams.iter().all(Stream::is_open));
        let mut stranger = LibfabricEndpoint::open(&choice(provider), Some(LOOPBACK), 4)
            .unwrap_or_else(|error| panic!("{provider}: {error}"));
        let offer = streams[0].offer();
        stranger.connect(&offer.name).expect("an address");
        let from = stranger.register(4096, Access::Source).expect("memory");
        // A record, a credit, an end; with bytes and without.
        for (context, (immediate, len)) in
            [(7, 8), (1 << 30 | 1, 0), (2 << 30, 8)].iter().enumerate()
        {
            let to = Remote { key: offer.ring.key ^ 0x5a5a, ..offer.ring };
            let segments = &[Segment { at: 0, len: *len }];
            let context = context as u32;
            let write = Write { from, segments, to, offset: 0, immediate: *immediate, context };
            let limit = Instant::now() + REFUSED;
            let mut posted = false;
            while Instant::now() < limit {
                posted = posted || !matches!(stranger.post(&write), Ok(Posted::Full));
                let _ = stranger.poll(&mut Vec::new());
                for stream in &mut streams {
                    stream.poll().unwrap_or_else(|error| panic!("{provider}: {error}"));
                }
            }
            assert!(!streams[0].can_receive() && !streams[0].has_ended(), "{provider}");
        }
        // The two go on.
        assert_eq!(streams[1].send(&[IoSlice::new(b"bytes")]).expect("no failure"), 5);
        until(&mut streams, |streams| streams[0].can_receive());
        let mut read = [0; 5];
        streams[0].recv(&mut [IoSliceMut::new(&mut read)]).expect("no failure");
        assert_eq!(&read, b"bytes", "{provider}");
    }
}

#[test]
fn a_key_is_void_once_the_connection_that_it_was_told_for_has_ended() {
    for provider in here("keys of libfabric after their connection") {
        let old = {
            let mut ended = endpoints(provider);
            let region = ended[0].register(4096, Access::Target).expect("memory");
            let old = ended[0].remote(region);
            assert!(arrive(&mut ended, old, 0, PATIENCE), "{provider}");
            old
        };
        // The next connection between the same processes: its region may lie at the same address.
        let mut next = endpoints(provider);
        let region = next[0].register(4096, Access::Target).expect("memory");
        let own = next[0].remote(region);
        assert_ne!(own.key, old.key, "{provider}");
        let to = Remote { key: old.key, ..own };
        assert!(!arrive(&mut next, to, 0, REFUSED), "{provider}: written with an old key");
        let mut bytes = [1; 8];
        next[0].get(region, 0, &mut bytes);
        assert_eq!(bytes, [0; 8], "{provider}");
    }
}
