//! Shared-memory links under what the conformance suite does not try: rings that are full or wrap
//! at odd places, ends of connections, threads that sleep on each other.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use mio::net::UnixStream;
use mio::{Events, Poll, Registry, Token};
use proptest::prelude::*;
use sumpter_endpoint::{Link, LinkError};
use sumpter_transport::{ShmLink, readiness, unix_connect, unix_listen};

/// The smallest ring, to be full soon.
const RING_BYTES: usize = 4096;

fn pair(registry: &Registry) -> (ShmLink, ShmLink) {
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let mut a = ShmLink::new(a, registry, Token(0)).expect("registered");
    let mut b = ShmLink::new(b, registry, Token(1)).expect("registered");
    b.expect_offer();
    a.offer(RING_BYTES).expect("memory");
    (a, b)
}

fn send(link: &mut ShmLink, bytes: &[u8]) -> usize {
    link.send(&[IoSlice::new(bytes)]).expect("no failure")
}

fn recv(link: &mut ShmLink, len: usize) -> Result<Vec<u8>, LinkError> {
    let mut bytes = vec![0; len];
    let n = link.recv(&mut [IoSliceMut::new(&mut bytes)])?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Gives an end the events that wait for it, waiting for the first.
fn wait(poll: &mut Poll, ends: [Option<&mut ShmLink>; 2]) {
    let mut events = Events::with_capacity(8);
    poll.poll(&mut events, None).expect("events");
    let mut ends = ends;
    for event in &events {
        if let Some(link) = &mut ends[event.token().0] {
            link.ready(readiness(event));
        }
    }
}

#[test]
fn a_full_ring_takes_no_more_until_half_of_it_is_free() {
    let mut poll = Poll::new().expect("a poll");
    let (mut a, mut b) = pair(poll.registry());
    assert_eq!(send(&mut a, &[1; RING_BYTES + 1]), RING_BYTES);
    assert!(!a.can_send().unwrap());
    assert_eq!(send(&mut a, &[2]), 0);
    wait(&mut poll, [None, Some(&mut b)]);
    assert_eq!(recv(&mut b, RING_BYTES / 2).expect("bytes"), [1; RING_BYTES / 2]);
    wait(&mut poll, [Some(&mut a), None]);
    assert!(a.can_send().unwrap());
    assert_eq!(send(&mut a, &[2; RING_BYTES]), RING_BYTES / 2);
}

#[test]
fn the_peer_is_received_from_until_it_has_finished_and_sent_to_still() {
    let mut poll = Poll::new().expect("a poll");
    let (mut a, mut b) = pair(poll.registry());
    assert_eq!(send(&mut a, b"last words"), 10);
    a.finish_sending().expect("connected");
    assert!(a.send(&[IoSlice::new(b"more")]).is_err(), "sent after the end");
    wait(&mut poll, [None, Some(&mut b)]);
    assert_eq!(recv(&mut b, 100).expect("bytes before the end"), b"last words");
    assert!(matches!(recv(&mut b, 100), Err(LinkError::Closed)));
    assert_eq!(send(&mut b, b"answer"), 6);
    wait(&mut poll, [Some(&mut a), None]);
    assert_eq!(recv(&mut a, 100).expect("the other way is open"), b"answer");
}

#[test]
fn the_end_wakes_a_reader_that_sleeps() {
    let mut poll = Poll::new().expect("a poll");
    for finish in [true, false] {
        let (mut a, mut b) = pair(poll.registry());
        assert_eq!(recv(&mut b, 1).expect("open"), []);
        assert_eq!(recv(&mut b, 1).expect("open"), []);
        if finish {
            a.finish_sending().expect("connected");
        } else {
            drop(a);
        }
        while !matches!(recv(&mut b, 1), Err(LinkError::Closed)) {
            wait(&mut poll, [None, Some(&mut b)]);
        }
    }
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_frame_has_its_bytes_received_and_ends() {
    let mut poll = Poll::new().expect("a poll");
    let (mut a, mut b) = pair(poll.registry());
    assert_eq!(send(&mut a, &[5; 1000]), 1000);
    assert_eq!(send(&mut b, &[6; RING_BYTES + 1]), RING_BYTES, "never read");
    drop(a);
    wait(&mut poll, [None, Some(&mut b)]);
    let received = recv(&mut b, 999).expect("bytes before the end");
    assert_eq!(received, [5; 999]);
    assert_eq!(send(&mut b, b"to no peer"), 0);
    assert_eq!(recv(&mut b, 999).expect("bytes before the end"), [5]);
    assert!(matches!(recv(&mut b, 999), Err(LinkError::Closed)));
}

#[test]
fn a_peer_that_dies_instead_of_an_offer_is_an_end() {
    let mut poll = Poll::new().expect("a poll");
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let mut b = ShmLink::new(b, poll.registry(), Token(1)).expect("registered");
    b.expect_offer();
    assert_eq!(recv(&mut b, 1).expect("open"), []);
    assert_eq!(send(&mut b, b"too early"), 0);
    drop(a);
    wait(&mut poll, [None, Some(&mut b)]);
    assert!(matches!(recv(&mut b, 1), Err(LinkError::Closed)));
}

#[test]
fn a_handshake_goes_through_the_socket_before_the_rings() {
    let mut poll = Poll::new().expect("a poll");
    let address = ([127, 0, 0, 1], 4242 + std::process::id() as u16 % 1000).into();
    let listener = unix_listen(address).expect("a free name");
    assert!(unix_listen(address).is_err(), "two lanes listen under one name");
    let a = unix_connect(address).expect("a listener");
    let (b, _) = listener.accept().expect("a connection is made at once");
    let mut a = ShmLink::new(a, poll.registry(), Token(0)).expect("registered");
    let mut b = ShmLink::new(b, poll.registry(), Token(1)).expect("registered");
    a.check_connected().expect("connected");
    assert_eq!(send(&mut a, b"hello"), 5);
    while recv(&mut b, 5).expect("open") != b"hello" {
        wait(&mut poll, [None, Some(&mut b)]);
    }
    assert_eq!(send(&mut b, b"welcome"), 7);
    b.expect_offer();
    while recv(&mut a, 7).expect("open") != b"welcome" {
        wait(&mut poll, [Some(&mut a), None]);
    }
    a.offer(RING_BYTES).expect("memory");
    assert_eq!(send(&mut a, b"a frame"), 7);
    while recv(&mut b, 7).expect("open") != b"a frame" {
        wait(&mut poll, [None, Some(&mut b)]);
    }
    assert!(a.is_joined() && b.is_joined());
    drop(listener);
    let error = unix_connect(address).expect_err("no listener");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_ring_of_an_impossible_size_is_refused_by_name() {
    let poll = Poll::new().expect("a poll");
    for bytes in [0, 4095, 5000, usize::MAX, 2 << 30] {
        let (a, _b) = UnixStream::pair().expect("a pair of sockets");
        let mut a = ShmLink::new(a, poll.registry(), Token(0)).expect("registered");
        let error = a.offer(bytes).expect_err("no such ring").to_string();
        assert!(error.contains(&bytes.to_string()), "{error}");
    }
}

/// The sum of all bytes that each thread received, when both send `total` bytes and sleep
/// whenever nothing moves. A wake-up that is lost makes this hang.
fn exchange(link: &mut ShmLink, poll: &mut Poll, total: usize) -> usize {
    let chunk: Vec<u8> = (0..=250).cycle().take(251 * 40).collect();
    let (mut sent, mut received) = (0, 0);
    let mut events = Events::with_capacity(4);
    while sent < total || received < total {
        let begin = sent % 251;
        let n = (total - sent).min(chunk.len() - begin);
        let out = send(link, &chunk[begin..begin + n]);
        let bytes = recv(link, 1 + received % 3000).expect("no failure");
        assert!(bytes.iter().enumerate().all(|(i, b)| usize::from(*b) == (received + i) % 251));
        (sent, received) = (sent + out, received + bytes.len());
        if out == 0 && bytes.is_empty() {
            poll.poll(&mut events, None).expect("events");
            events.iter().for_each(|event| link.ready(readiness(event)));
        }
    }
    received
}

#[test]
fn threads_that_sleep_on_each_other_get_every_byte() {
    const TOTAL: usize = 20 << 20;
    let (mut a_poll, mut b_poll) = (Poll::new().expect("a poll"), Poll::new().expect("a poll"));
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let mut a = ShmLink::new(a, a_poll.registry(), Token(0)).expect("registered");
    let mut b = ShmLink::new(b, b_poll.registry(), Token(0)).expect("registered");
    b.expect_offer();
    a.offer(RING_BYTES).expect("memory");
    let other = std::thread::spawn(move || exchange(&mut b, &mut b_poll, TOTAL));
    assert_eq!(exchange(&mut a, &mut a_poll, TOTAL), TOTAL);
    assert_eq!(other.join().expect("no panic"), TOTAL);
}

/// Drives one end until `step` has moved `total` bytes, sleeping whenever it says 0.
fn until(total: usize, poll: &mut Poll, link: &mut ShmLink, step: fn(&mut ShmLink) -> usize) {
    let (mut moved, mut events) = (0, Events::with_capacity(4));
    while moved < total {
        match step(link) {
            0 => {
                poll.poll(&mut events, None).expect("events");
                events.iter().for_each(|event| link.ready(readiness(event)));
            }
            n => moved += n,
        }
    }
}

/// Pieces that fill and empty the ring exactly, so that each call begins at its edge: whoever is
/// told 0 though the other has moved meanwhile sleeps for ever, and this hangs.
#[test]
fn nothing_moved_is_a_promise_of_an_event() {
    const TOTAL: usize = 200_000 * RING_BYTES;
    let (mut a_poll, mut b_poll) = (Poll::new().expect("a poll"), Poll::new().expect("a poll"));
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let mut a = ShmLink::new(a, a_poll.registry(), Token(0)).expect("registered");
    let mut b = ShmLink::new(b, b_poll.registry(), Token(0)).expect("registered");
    b.expect_offer();
    a.offer(RING_BYTES).expect("memory");
    std::thread::scope(|scope| {
        scope.spawn(|| until(TOTAL, &mut a_poll, &mut a, |a| send(a, &[1; RING_BYTES / 2])));
        let half = |b: &mut ShmLink| recv(b, RING_BYTES / 2).expect("no failure").len();
        until(TOTAL, &mut b_poll, &mut b, half);
    });
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Recv(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..6000usize).prop_map(Step::Send),
        (0..3000usize, 1..3000usize).prop_map(|(a, b)| Step::Recv(a, b)),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_ring_is_a_queue_of_bytes(steps in steps()) {
        let mut poll = Poll::new().expect("a poll");
        let (mut a, mut b) = pair(poll.registry());
        let mut queue: VecDeque<u8> = VecDeque::new();
        let mut next = 0u64;
        // The offer; afterwards all wake-ups are given without waiting for them.
        wait(&mut poll, [Some(&mut a), Some(&mut b)]);
        for step in steps {
            let mut events = Events::with_capacity(8);
            poll.poll(&mut events, Some(std::time::Duration::ZERO)).expect("events");
            for event in &events {
                let link = if event.token() == Token(0) { &mut a } else { &mut b };
                link.ready(readiness(event));
            }
            match step {
                Step::Send(len) => {
                    let mixed = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let numbers = next..next + len as u64;
                    let bytes: Vec<u8> = numbers.map(|i| (mixed(i) >> 56) as u8).collect();
                    let writable = a.can_send().unwrap();
                    let n = send(&mut a, &bytes);
                    let room = RING_BYTES - queue.len();
                    prop_assert_eq!(n, if writable { len.min(room) } else { 0 });
                    queue.extend(&bytes[..n]);
                    next += n as u64;
                }
                Step::Recv(first, second) => {
                    let (mut one, mut two) = (vec![0; first], vec![0; second]);
                    let spaces = &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                    let n = b.recv(spaces).expect("no failure");
                    prop_assert_eq!(n, queue.len().min(first + second));
                    let expected: Vec<u8> = queue.drain(..n).collect();
                    one.extend(two);
                    prop_assert_eq!(&one[..n], &expected[..]);
                }
            }
        }
    }
}
