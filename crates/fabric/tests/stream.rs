//! The stream over a network that places and completes writes in any order, and loses peers.

use std::io::{IoSlice, IoSliceMut};

use fastrand::Rng;
use proptest::prelude::*;
use sumpter_fabric::{
    FabricStream, MAX_NAME_BYTES, Offer, PAGE_BYTES, PlacedWrites, Shape, SimEndpoint, SimNetwork,
    StreamError,
};

/// The smallest rings, to be full soon.
const SMALL: Shape = Shape { slots: 4, slot_bytes: 4096 };

type Stream = FabricStream<SimEndpoint>;

fn joined(shape: Shape) -> (SimNetwork, [Stream; 2]) {
    let (network, a, b) = SimNetwork::new();
    let mut a = FabricStream::new(a, shape).expect("rings");
    let mut b = FabricStream::new(b, shape).expect("rings");
    let (to_a, to_b) = (b.offer(), a.offer());
    a.join(&to_a).expect("a peer");
    b.join(&to_b).expect("a peer");
    (network, [a, b])
}

/// Byte `i` of what an end sends.
fn byte(side: usize, i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ side as u8
}

/// What one end sends and the other reads, in pieces of any size.
struct Traffic {
    total: [usize; 2],
    sent: [usize; 2],
    read: [usize; 2],
}

impl Traffic {
    fn new(total: [usize; 2]) -> Traffic {
        Traffic { total, sent: [0; 2], read: [0; 2] }
    }

    fn send(&mut self, side: usize, stream: &mut Stream, rng: &mut Rng) {
        let left = self.total[side] - self.sent[side];
        if left == 0 {
            return;
        }
        let len = rng.usize(1..=left.min(20_000));
        let bytes: Vec<u8> = (0..len).map(|i| byte(side, self.sent[side] + i)).collect();
        let (head, tail) = bytes.split_at(rng.usize(0..=len));
        let sent = stream.send(&[IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)]);
        self.sent[side] += sent.expect("no failure");
        if self.sent[side] == self.total[side] {
            stream.finish().expect("no failure");
        }
    }

    /// What arrives is checked byte for byte.
    fn read(&mut self, side: usize, stream: &mut Stream, rng: &mut Rng) {
        let mut first = vec![0; rng.usize(1..64)];
        let mut second = vec![0; rng.usize(0..10_000)];
        let spaces = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let n = stream.recv(spaces).expect("no failure");
        for (i, got) in first.iter().chain(&second).take(n).enumerate() {
            assert_eq!(*got, byte(1 - side, self.read[side] + i), "byte {}", self.read[side] + i);
        }
        self.read[side] += n;
        let all = self.read[side] == self.total[1 - side];
        assert!(all || !stream.has_ended(), "the end came before the last byte");
    }
}

fn step(network: &SimNetwork, streams: &mut [Stream; 2], traffic: &mut Traffic, rng: &mut Rng) {
    let side = rng.usize(0..2);
    match rng.u8(0..8) {
        0..3 => _ = network.step(rng.usize(..)),
        3 => _ = streams[side].poll().expect("no failure"),
        4 | 5 => traffic.send(side, &mut streams[side], rng),
        _ => traffic.read(side, &mut streams[side], rng),
    }
}

/// Lets all happen that is under way.
fn settle(network: &SimNetwork, [a, b]: &mut [Stream; 2]) {
    for _ in 0..100_000 {
        let any = network.step(0) || a.poll().expect("no failure") || b.poll().expect("no failure");
        if !any {
            return;
        }
    }
    panic!("it never comes to rest: {a:?}, {b:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_in_order_and_once_in_whatever_order_writes_are_placed(
        seed: u64,
        total in prop::array::uniform2(0..300_000usize),
        slots in 4..9u32,
        pages in 1..4u32,
    ) {
        let rng = &mut Rng::with_seed(seed);
        let shape = Shape { slots, slot_bytes: pages * 4096 };
        let (network, mut streams) = joined(shape);
        let mut traffic = Traffic::new(total);
        for (stream, total) in streams.iter_mut().zip(total) {
            if total == 0 {
                stream.finish().expect("no failure");
            }
        }
        let mut steps = 0;
        while !streams.iter().all(|stream| stream.has_ended()) {
            step(&network, &mut streams, &mut traffic, rng);
            steps += 1;
            prop_assert!(steps < 1_000_000, "stuck: {streams:?}");
        }
        prop_assert_eq!(traffic.read, [total[1], total[0]]);
        settle(&network, &mut streams);
        for stream in &streams {
            prop_assert!(stream.is_flushed() && stream.is_open());
            let counts = stream.counts();
            // Registered once, and one segment a write.
            prop_assert_eq!(counts.registrations, 2);
            prop_assert_eq!(counts.segments, counts.writes);
        }
    }

    #[test]
    fn a_peer_that_dies_leaves_a_beginning_of_what_it_sent(
        seed: u64,
        steps in 0..4000usize,
    ) {
        let rng = &mut Rng::with_seed(seed);
        let (network, mut streams) = joined(SMALL);
        let mut traffic = Traffic::new([200_000; 2]);
        for _ in 0..steps {
            step(&network, &mut streams, &mut traffic, rng);
        }
        network.kill(1, rng.usize(..));
        // The survivor reads what has arrived, in order, and finds that its own writes fail.
        for _ in 0..2000 {
            network.step(rng.usize(..));
            let outcome = streams[0].poll();
            traffic.read(0, &mut streams[0], rng);
            match outcome {
                Ok(_) if traffic.sent[0] < traffic.total[0] => {
                    traffic.sent[0] += streams[0].send(&[IoSlice::new(&[0; 100])]).unwrap_or(0);
                }
                Ok(_) => {}
                Err(error) => {
                    prop_assert!(matches!(error, StreamError::Fabric(_)), "{error}");
                    prop_assert!(streams[0].poll().is_err(), "it stays broken");
                }
            }
        }
    }

    #[test]
    fn no_immediate_of_a_peer_harms_more_than_its_stream(seed: u64, forged: [u32; 8]) {
        let rng = &mut Rng::with_seed(seed);
        let (network, mut streams) = joined(SMALL);
        for immediate in forged {
            network.forge(0, if rng.bool() { immediate } else { immediate & 0xc000_00ff });
            network.step(rng.usize(..));
            let broken = streams[0].poll().is_err();
            // What it claims to have placed is what lies there, never more than a slot of it.
            let mut space = vec![0; 1 << 20];
            let n = streams[0].recv(&mut [IoSliceMut::new(&mut space)]).expect("no panic");
            prop_assert!(n <= 4 * 4096);
            if broken {
                prop_assert!(!streams[0].can_send());
                break;
            }
        }
    }
}

#[test]
fn a_full_ring_takes_no_more_until_some_of_it_was_read() {
    let (network, mut streams) = joined(SMALL);
    let bytes = [7; 5 * 4096];
    assert_eq!(streams[0].send(&[IoSlice::new(&bytes)]).expect("no failure"), 4 * 4096);
    assert!(streams[0].owed().is_some(), "no write has completed");
    settle(&network, &mut streams);
    assert_eq!(streams[0].owed(), None, "a peer that does not read is no network that hangs");
    assert_eq!(streams[0].send(&[IoSlice::new(&bytes)]).expect("no failure"), 0);
    let mut space = [0; 4096];
    assert_eq!(streams[1].recv(&mut [IoSliceMut::new(&mut space)]).expect("no failure"), 4096);
    settle(&network, &mut streams);
    assert!(streams[0].can_send(), "a slot was given back");
    assert_eq!(streams[0].send(&[IoSlice::new(&bytes)]).expect("no failure"), 4096);
}

#[test]
fn a_peer_that_has_nothing_to_say_and_says_it_breaks_its_stream() {
    let (network, mut streams) = joined(SMALL);
    settle(&network, &mut streams);
    // Credits for no slot: an endless row of them would keep this end busy.
    network.forge(0, 1 << 30);
    let error = streams[0].poll().expect_err("no end does this");
    assert!(error.to_string().contains("no slot is given back"), "{error}");
}

#[test]
fn other_shapes_are_refused() {
    let (_, a, b) = SimNetwork::new();
    let mut a = FabricStream::new(a, SMALL).expect("rings");
    let b = FabricStream::new(b, Shape { slots: 8, ..SMALL }).expect("rings");
    let error = a.join(&b.offer()).expect_err("another shape");
    assert!(error.to_string().contains("another shape"), "{error}");
    for shape in [
        Shape { slots: 3, ..SMALL },
        Shape { slots: 257, ..SMALL },
        Shape { slot_bytes: 4097, ..SMALL },
        Shape { slot_bytes: 8 << 20, ..SMALL },
    ] {
        let (_, end, _) = SimNetwork::new();
        let error = FabricStream::new(end, shape).expect_err("no shape");
        assert!(error.reason.contains("whole pages"), "{error}");
        let bytes = Offer { shape, ..a.offer() }.encode();
        assert!(Offer::decode(&bytes).is_err());
    }
}

#[test]
fn a_peer_with_a_wrong_key_or_address_writes_nowhere() {
    let changes: [fn(&mut Offer); 2] =
        [|offer| offer.ring.key ^= 1, |offer| offer.ring.address += 4096];
    for change in changes {
        let (network, a, b) = SimNetwork::new();
        let mut a = FabricStream::new(a, SMALL).expect("rings");
        let mut b = FabricStream::new(b, SMALL).expect("rings");
        let mut offer = a.offer();
        change(&mut offer);
        a.join(&b.offer()).expect("a peer");
        b.join(&offer).expect("a peer");
        while network.step(0) {}
        assert!(matches!(b.poll(), Err(StreamError::Fabric(_))), "its greeting is refused");
        assert!(!a.is_open());
    }
}

#[test]
fn slots_begin_on_pages_and_rings_are_registered_once() {
    let (_, [a, _]) = joined(Shape::default());
    assert_eq!(a.offer().ring.address % 4096, 0);
    assert_eq!(Shape::default().slot_bytes % 4096, 0);
    assert_eq!(a.fabric().counts().registrations, 2);
    assert_eq!(Shape::default().registered_bytes() as u64, 2 * a.offer().ring.bytes);
}

#[test]
fn the_page_of_the_wire_format_says_what_shapes_and_names_there_are() {
    let page = include_str!("../../../docs/design/wire.md");
    let (slots, bytes) = (Shape::SLOTS, Shape::SLOT_BYTES);
    assert_eq!((*bytes.start() as usize, PAGE_BYTES), (4096, 4096));
    for row in [
        format!("| 4 | slots of each ring, {} to {} |", slots.start(), slots.end()),
        format!(
            "| 4 | bytes of each slot, whole pages of 4,096, at most {} MiB |",
            bytes.end() >> 20
        ),
        format!("| - | the endpoint's name, at most {MAX_NAME_BYTES} bytes |"),
    ] {
        assert!(page.contains(&row), "docs/design/wire.md lacks: {row}");
    }
}

#[test]
fn a_key_is_void_once_the_connection_that_it_was_told_for_has_ended() {
    let (network, mut streams) = joined(SMALL);
    settle(&network, &mut streams);
    let [owner, mut peer] = streams;
    assert!(peer.is_open());
    drop(owner);
    assert_eq!(peer.send(&[IoSlice::new(&[0xee; 8])]).expect("it has not been told"), 8);
    while network.step(0) {}
    let error = peer.poll().expect_err("its memory is not registered any more");
    assert!(error.to_string().contains("the key is void"), "{error}");
}
