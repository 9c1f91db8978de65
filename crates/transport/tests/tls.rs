//! Connections with TLS: which peers are refused, the errors at both ends, and what a network or a
//! peer can do to one.

mod certificates;
mod scripted;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use certificates::{ours, stranger, trusting_and_expired};
use mio::{Events, Poll, Token};
use proptest::prelude::*;
use scripted::Scripted;
use sumpter_endpoint::{ConnId, Link, LinkError, TlsError};
use sumpter_transport::{TlsConfig, TlsLink, readiness};

/// Time stands still in these tests.
const NOW: Duration = Duration::ZERO;
const CONN: ConnId = ConnId(0);
/// Rounds without progress after which a test gives up; each waits shortly.
const PATIENCE: usize = 5000;

/// A client and a server with the test as the network between them.
struct Between {
    poll: Poll,
    events: Events,
    client: TlsLink,
    server: TlsLink,
    /// The other ends of the client's and of the server's socket.
    wires: [TcpStream; 2],
}

/// What a test does to bytes on their way: those from the client, or to it.
type Tamper<'a> = &'a mut dyn FnMut(bool, &mut Vec<u8>);

impl Between {
    fn new(client: &TlsConfig, server: &TlsConfig) -> Between {
        let poll = Poll::new().expect("a poll");
        let (ours, wire) = pair();
        let client = TlsLink::client(ours, poll.registry(), Token(0), client).expect("registered");
        let (ours, other) = pair();
        let server = TlsLink::server(ours, poll.registry(), Token(1), server).expect("registered");
        let events = Events::with_capacity(8);
        Between { poll, events, client, server, wires: [wire, other] }
    }

    /// Carries up to `limit` bytes each way; whether there were any.
    fn carry(&mut self, limit: usize, tamper: Tamper<'_>) -> bool {
        let mut any = false;
        for from in 0..2 {
            let mut bytes = vec![0; limit];
            let n = match self.wires[from].read(&mut bytes) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                // The end that was to be read is gone.
                Err(_) => continue,
            };
            bytes.truncate(n);
            any |= n > 0;
            tamper(from == 0, &mut bytes);
            let to = &mut self.wires[1 - from];
            to.set_nonblocking(false).expect("a socket");
            // Its reader may have given up; it has said why.
            let _ = to.write_all(&bytes);
            to.set_nonblocking(true).expect("a socket");
        }
        self.poll.poll(&mut self.events, Some(Duration::from_millis(1))).expect("events");
        for event in &self.events {
            match event.token() {
                Token(0) => self.client.ready(readiness(event)),
                _ => self.server.ready(readiness(event)),
            }
        }
        any
    }

    /// Goes on until both ends have what they wait for, or have failed.
    fn until<T>(
        &mut self,
        limit: usize,
        tamper: Tamper<'_>,
        mut step: impl FnMut(&mut TlsLink, &mut TlsLink) -> Option<T>,
    ) -> T {
        let mut idle = 0;
        while idle < PATIENCE {
            let moved = self.carry(limit, tamper);
            if let Some(done) = step(&mut self.client, &mut self.server) {
                return done;
            }
            idle = if moved { 0 } else { idle + 1 };
        }
        panic!("nothing moves any more");
    }

    fn establish(&mut self) {
        self.until(1 << 16, &mut |_, _| {}, |client, server| {
            let client = client.establish().expect("good certificates");
            (server.establish().expect("good certificates") && client).then_some(())
        });
    }

    /// Sends a stream through; the error of the reading end, if there is one.
    fn stream(&mut self, len: usize, limit: usize, tamper: Tamper<'_>) -> Option<LinkError> {
        let (mut from, mut to) = (Scripted::new(len, 0, 100), Scripted::new(0, len, 30_000));
        self.until(limit, tamper, |client, server| {
            client.transmit(&mut from, CONN).expect("connected");
            match server.receive(&mut to, CONN, NOW) {
                Err(error) => Some(Some(error)),
                Ok(_) if to.is_done() => Some(None),
                Ok(_) => None,
            }
        })
        .inspect(|_| assert!(!to.is_done(), "all was received all the same"))
        .or_else(|| {
            assert!(to.received_right());
            None
        })
    }

    /// The errors of both ends.
    fn refusals(&mut self) -> [TlsError; 2] {
        let (mut client_says, mut server_says) = (None, None);
        self.until(1 << 16, &mut |_, _| {}, |client, server| {
            client_says = client_says.take().or_else(|| refusal(client));
            server_says = server_says.take().or_else(|| refusal(server));
            Some([client_says.take_if(|_| server_says.is_some())?, server_says.take()?])
        })
    }
}

/// Both ends of a connection, of which the test has the second.
fn pair() -> (mio::net::TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (wire, _) = listener.accept().expect("a connection");
    for stream in [&ours, &wire] {
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
    }
    (mio::net::TcpStream::from_std(ours), wire)
}

/// Goes on with a handshake, and beyond it to the other end's verdict; why it failed.
fn refusal(link: &mut TlsLink) -> Option<TlsError> {
    let outcome = match link.establish() {
        Ok(true) => link.recv(&mut [std::io::IoSliceMut::new(&mut [0; 8])]).map(|_| ()),
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => None,
        Err(LinkError::Tls(error)) => Some(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn both_ends_know_the_same_two_certificates() {
    let mut between = Between::new(&ours(), &ours());
    assert_eq!(between.client.channel_binding().expect("TLS")[1], b"");
    between.establish();
    assert_eq!(
        between.client.channel_binding().expect("TLS"),
        between.server.channel_binding().expect("TLS")
    );
    assert!(between.client.channel_binding().expect("TLS").iter().all(|end| end.len() > 100));
}

#[test]
fn who_has_no_good_certificate_is_refused_and_both_ends_say_why() {
    let (trusting, expired) = trusting_and_expired();
    let (ours, stranger) = (ours(), stranger());
    let cases = [
        (&stranger, &ours, 1, "no authority of tls_ca has signed it", "no authority of its tls_ca"),
        (&ours, &stranger, 0, "no authority of tls_ca has signed it", "no authority of its tls_ca"),
        (&expired, &trusting, 1, "it has expired", "it has expired"),
        (&trusting, &expired, 0, "it has expired", "it has expired"),
    ];
    for (client, server, judge, judgement, told) in cases {
        let said = Between::new(client, server).refusals();
        let texts = said.each_ref().map(ToString::to_string);
        let expected = "the peer's certificate is not accepted";
        assert!(texts[judge].starts_with(expected), "{texts:?}");
        assert!(texts[judge].contains(judgement), "{texts:?}");
        let other = &texts[1 - judge];
        assert!(other.contains("(tls_cert)") && other.contains(told), "{texts:?}");
        assert!(said.iter().all(TlsError::is_permanent), "{texts:?}");
    }
}

#[test]
fn who_does_not_use_tls_is_told_by_an_alert_and_named_so() {
    let mut between = Between::new(&ours(), &ours());
    let [_, wire] = &mut between.wires;
    wire.write_all(b"SUMPTER\n, 72 bytes that are a greeting without TLS").expect("connected");
    let error = loop {
        between.carry(1, &mut |_, _| {});
        if let Some(error) = refusal(&mut between.server) {
            break error;
        }
    };
    assert!(matches!(error, TlsError::NotTls) && error.is_permanent(), "{error}");
    assert!(error.to_string().contains("tls_data"), "{error}");
    let [_, wire] = &mut between.wires;
    wire.set_nonblocking(false).expect("a socket");
    let mut alert = [0; 2];
    wire.read_exact(&mut alert).expect("an alert");
    assert_eq!(alert, [21, 3]);
}

#[test]
fn a_lane_without_tls_that_closes_is_named_so() {
    let mut between = Between::new(&ours(), &ours());
    let [wire, _] = &mut between.wires;
    wire.shutdown(std::net::Shutdown::Write).expect("connected");
    let error = loop {
        between.carry(1, &mut |_, bytes| bytes.clear());
        if let Some(error) = refusal(&mut between.client) {
            break error;
        }
    };
    assert!(matches!(error, TlsError::NoAnswer), "{error}");
    assert!(error.to_string().contains("tls_data"), "{error}");
}

#[test]
fn pieces_of_any_size_make_no_difference() {
    for limit in [1, 7, 5000] {
        let mut between = Between::new(&ours(), &ours());
        between.until(limit, &mut |_, _| {}, |client, server| {
            let client = client.establish().expect("good certificates");
            (server.establish().expect("good certificates") && client).then_some(())
        });
        assert!(between.stream(limit * 400, limit, &mut |_, _| {}).is_none());
    }
}

#[test]
fn a_byte_changed_on_its_way_ends_the_connection_and_is_not_delivered() {
    let mut between = Between::new(&ours(), &ours());
    between.establish();
    let mut carried = 0;
    let error = between.stream(300_000, 1 << 14, &mut |from_client, bytes| {
        if from_client {
            let place = 123_456usize.checked_sub(carried).filter(|place| *place < bytes.len());
            place.into_iter().for_each(|place| bytes[place] ^= 0x40);
            carried += bytes.len();
        }
    });
    let error = error.expect("a changed byte was taken");
    assert!(matches!(&error, LinkError::Tls(e) if !e.is_permanent()), "{error}");
}

#[test]
fn a_connection_cut_in_the_middle_of_a_record_ends_for_the_reader() {
    let mut between = Between::new(&ours(), &ours());
    between.establish();
    let cut = between.wires[1].try_clone().expect("a socket");
    let mut carried = 0;
    let error = between.stream(300_000, 1 << 14, &mut |from_client, bytes| {
        carried += if from_client { bytes.len() } else { 0 };
        if carried > 100_000 {
            bytes.clear();
            cut.shutdown(std::net::Shutdown::Write).expect("a socket");
        }
    });
    let error = error.expect("the rest never came");
    assert!(matches!(error, LinkError::Closed), "{error}");
}

#[test]
fn a_peer_that_stalls_in_the_handshake_does_not_block() {
    let mut between = Between::new(&ours(), &ours());
    let mut carried = 0;
    for _ in 0..100 {
        between.carry(1, &mut |from_client, bytes| {
            carried += if from_client { bytes.len() } else { 0 };
            if carried > 20 {
                bytes.clear();
            }
        });
        assert!(!between.client.establish().expect("only slow"));
        assert!(!between.server.establish().expect("only slow"));
    }
    assert!(carried > 20);
}

#[test]
fn a_file_that_is_no_certificate_is_named() {
    let error = TlsConfig::new(b"nothing", b"", b"").expect_err("no certificate");
    assert!(error.to_string().contains("tls_cert"), "{error}");
    let pem = include_bytes!("../../coordinator/tests/certificates/cert.pem");
    let other = include_bytes!("../../coordinator/tests/certificates/other-key.pem");
    let error = TlsConfig::new(pem, b"nothing", pem).expect_err("no key");
    assert!(error.to_string().contains("tls_key"), "{error}");
    let error = TlsConfig::new(pem, other, pem).expect_err("another's key");
    assert!(error.to_string().contains("cannot be used"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// At worst the connection ends: whatever comes instead of a handshake, with a record's first
    /// bytes or without.
    #[test]
    fn random_bytes_end_a_connection_at_worst(
        header in proptest::option::of(0u8..=255),
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
    ) {
        let mut between = Between::new(&ours(), &ours());
        let wires = &mut between.wires;
        for wire in wires {
            if let Some(len) = header {
                wire.write_all(&[22, 3, 3, 0, len]).expect("connected");
            }
            wire.write_all(&bytes).expect("connected");
            wire.shutdown(std::net::Shutdown::Write).expect("connected");
        }
        let mut over = [false; 2];
        for _ in 0..PATIENCE {
            between.carry(1 << 16, &mut |_, bytes| bytes.clear());
            over[0] |= between.client.establish().is_err();
            over[1] |= between.server.establish().is_err();
            if over == [true; 2] {
                break;
            }
        }
        prop_assert_eq!(over, [true; 2]);
    }

    /// Both ends still agree afterwards, or at least one of them has given up or waits.
    #[test]
    fn a_bit_changed_in_the_handshake_ends_a_connection_at_worst(
        from_client in any::<bool>(),
        place in 0usize..2500,
        bit in 0u32..8,
    ) {
        let mut between = Between::new(&ours(), &ours());
        let (mut carried, mut idle) = (0, 0);
        let mut tamper = |from: bool, bytes: &mut Vec<u8>| {
            if from == from_client {
                if let Some(byte) = place.checked_sub(carried).and_then(|at| bytes.get_mut(at)) {
                    *byte ^= 1 << bit;
                }
                carried += bytes.len();
            }
        };
        let (mut through, mut over) = ([false; 2], false);
        while through != [true; 2] && !over && idle < 20 {
            idle = if between.carry(1 << 16, &mut tamper) { 0 } else { idle + 1 };
            let said = [between.client.establish(), between.server.establish()];
            over = said.iter().any(Result::is_err);
            through = said.map(|said| said.unwrap_or(false));
        }
        if through == [true; 2] {
            let bindings = [between.client.channel_binding(), between.server.channel_binding()];
            prop_assert!(bindings[0].is_some());
            prop_assert_eq!(bindings[0], bindings[1]);
            let end = between.stream(1000, 1 << 16, &mut |_, _| {});
            prop_assert!(end.is_none());
        }
    }
}
