//! Tests: what is put into records, and keys that are used up.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use mio::{Events, Poll, Token};
use proptest::prelude::*;
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

use super::*;
use crate::tls::buffers::Plain;

proptest! {
    #[test]
    fn what_is_gathered_is_what_was_given(
        lens in proptest::collection::vec(0usize..40_000, 0..12),
    ) {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let slices: Vec<_> = lens.iter().map(|len| IoSlice::new(&bytes[..*len])).collect();
        let all: Vec<u8> = lens.iter().flat_map(|len| &bytes[..*len]).copied().collect();
        let mut gather = Gather::new(&slices);
        let (mut gathered, mut pieces, mut scratch) = (Vec::new(), 0, Vec::new());
        while let Some(piece) = gather.next(&mut scratch) {
            prop_assert!(!piece.is_empty());
            gathered.extend_from_slice(piece);
            pieces += 1;
        }
        prop_assert_eq!(gathered.len(), all.len().min(buffers::BATCH_BYTES));
        prop_assert_eq!(gather.taken, gathered.len());
        prop_assert_eq!(&gathered[..], &all[..gathered.len()]);
        // Small slices share records.
        prop_assert!(pieces <= 8, "{} pieces", pieces);
    }

    #[test]
    fn what_has_no_space_is_kept_and_comes_next(
        chunks in proptest::collection::vec(0usize..300, 1..20),
        spaces in proptest::collection::vec(1usize..200, 1..20),
    ) {
        let mut next = 0u8;
        let (mut given, mut taken, mut plain) = (Vec::new(), Vec::new(), Plain::default());
        let mut spaces = spaces.iter().cycle();
        let mut chunks = chunks.iter();
        loop {
            let (mut a, mut b) = ([0; 200], [0; 200]);
            let (len_a, len_b) = (*spaces.next().unwrap(), *spaces.next().unwrap());
            let mut both = [IoSliceMut::new(&mut a[..len_a]), IoSliceMut::new(&mut b[..len_b])];
            let mut target = Target::new(&mut both);
            target.take(&mut plain);
            let chunk = chunks.next();
            if let Some(len) = chunk {
                let bytes: Vec<u8> = (0..*len).map(|i| next.wrapping_add(i as u8)).collect();
                next = next.wrapping_add(bytes.len() as u8);
                target.put(&bytes, &mut plain);
                given.extend(bytes);
            }
            let filled = target.filled;
            taken.extend_from_slice(&a[..filled.min(len_a)]);
            taken.extend_from_slice(&b[..filled.saturating_sub(len_a)]);
            if chunk.is_none() && plain.is_empty() {
                break;
            }
        }
        prop_assert_eq!(taken, given);
    }
}

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../coordinator/tests/certificates/", $name, ".pem"))
    };
}

/// Certificates, and keys that last for `records` records only.
fn short_lived(records: u64) -> TlsConfig {
    let mut provider = config::provider();
    provider.cipher_suites.truncate(1);
    let suite = provider.cipher_suites[0].tls13().expect("a cipher of TLS 1.3");
    let &Tls13CipherSuite { ref common, hkdf_provider, aead_alg, quic } = suite;
    let common = rustls::CipherSuiteCommon { confidentiality_limit: records, ..*common };
    let suite = Box::leak(Box::new(Tls13CipherSuite { common, hkdf_provider, aead_alg, quic }));
    // Rustls wants it to live for ever, and a sanitizer wants to see a reference to it.
    static KEPT: AtomicPtr<Tls13CipherSuite> = AtomicPtr::new(ptr::null_mut());
    KEPT.store(suite, Ordering::Relaxed);
    provider.cipher_suites = vec![SupportedCipherSuite::Tls13(suite)];
    TlsConfig::with_provider(provider, pem!("cert"), pem!("key"), pem!("ca")).expect("good")
}

#[test]
fn keys_that_are_used_up_are_changed_on_the_way() {
    let config = short_lived(20);
    let listener = crate::tcp::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let stream = crate::tcp::connect(address, None).expect("a connection");
    let (accepted, _) = loop {
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            accepted => break accepted.expect("a connection"),
        }
    };
    let mut poll = Poll::new().expect("a poll");
    let registry = poll.registry();
    let mut a = TlsLink::client(stream, registry, Token(0), &config).expect("registered");
    let mut b = TlsLink::server(accepted, registry, Token(1), &config).expect("registered");
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let (mut at, mut received, mut space) = (0, Vec::new(), vec![0; 50_000]);
    let mut events = Events::with_capacity(8);
    while received.len() < sent.len() {
        poll.poll(&mut events, Some(Duration::from_millis(1))).expect("events");
        for event in &events {
            if event.token() == Token(0) {
                a.ready(crate::readiness(event))
            } else {
                b.ready(crate::readiness(event))
            }
        }
        let through = a.establish().expect("good certificates");
        if !(b.establish().expect("good certificates") && through) {
            continue;
        }
        at += a.send(&[IoSlice::new(&sent[at..])]).expect("connected");
        let n = b.recv(&mut [IoSliceMut::new(&mut space)]).expect("connected");
        received.extend_from_slice(&space[..n]);
        // The answers to the changes of keys.
        a.recv(&mut [IoSliceMut::new(&mut space)]).expect("connected");
    }
    assert!(received == sent);
}
