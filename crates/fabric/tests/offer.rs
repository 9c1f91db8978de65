//! What a peer tells of its registered memory, which may be anything: what was encoded comes back,
//! all else is refused, and memory is taken for the bytes that are there, not for those claimed.

mod watched;

use std::io::IoSlice;

use proptest::prelude::*;
use sumpter_fabric::{
    FabricStream, MAX_NAME_BYTES, Offer, OfferError, PAGE_BYTES, Remote, Shape, SimNetwork, Told,
};
use watched::{Watched, largest};

fn shapes() -> impl Strategy<Value = Shape> {
    let pages = *Shape::SLOT_BYTES.end() / PAGE_BYTES as u32;
    (Shape::SLOTS, 1..=pages)
        .prop_map(|(slots, pages)| Shape { slots, slot_bytes: pages * PAGE_BYTES as u32 })
}

fn offers() -> impl Strategy<Value = Offer> {
    let name = prop::collection::vec(any::<u8>(), 0..=MAX_NAME_BYTES);
    (shapes(), any::<u64>(), any::<u64>(), name).prop_map(|(shape, address, key, name)| {
        let bytes = shape.registered_bytes() as u64 / 2;
        // So that it ends before the last address.
        Offer { name, ring: Remote { address: address.min(u64::MAX - bytes), key, bytes }, shape }
    })
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        ("\\PC{0,40}", offers()).prop_map(|(protocol, offer)| Told::Offer { protocol, offer }),
        "\\PC{0,100}".prop_map(Told::Nothing),
    ]
}

/// As a link takes it in: as many bytes as are missing, until none are.
fn taken_in(bytes: &[u8]) -> Result<Option<Told>, OfferError> {
    let mut have = 0;
    while let Some(missing) = Told::missing(&bytes[..have])? {
        assert!(missing > 0, "it would be asked for again without end");
        if have + missing > bytes.len() {
            return Ok(None);
        }
        have += missing;
    }
    Told::decode(&bytes[..have]).map(Some)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_comes_back_and_no_beginning_of_it_does(
        told in told(),
        cut: prop::sample::Index,
    ) {
        let bytes = told.encode();
        prop_assert_eq!(taken_in(&bytes), Ok(Some(told.clone())));
        prop_assert_eq!(Told::decode(&bytes), Ok(told));
        let cut = &bytes[..cut.index(bytes.len())];
        prop_assert_eq!(Told::decode(cut), Err(OfferError));
        prop_assert_eq!(taken_in(cut), Ok(None), "the rest is waited for");
    }

    #[test]
    fn no_beginning_of_an_offer_is_one_nor_more_than_an_offer(
        offer in offers(),
        more in 1..9usize,
    ) {
        let bytes = offer.encode();
        prop_assert_eq!(Offer::decode(&bytes), Ok(offer));
        prop_assert_eq!(Offer::decode(&[&bytes[..], &vec![0; more]].concat()), Err(OfferError));
        for len in [0, 1, 35, 36, bytes.len() - 1] {
            let cut = &bytes[..len.min(bytes.len() - 1)];
            prop_assert_eq!(Offer::decode(cut), Err(OfferError));
        }
    }

    #[test]
    fn corrupted_bytes_are_refused_or_are_those_of_something_else(
        told in told(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..4),
    ) {
        let sound = told.encode();
        let mut bytes = sound.clone();
        for (at, flip) in flips {
            bytes[at.index(sound.len())] ^= flip;
        }
        let (decoded, most) = largest(|| taken_in(&bytes));
        // The name and the text are copied, and nothing else is made room for.
        prop_assert!(most <= bytes.len(), "{} bytes for {}", most, bytes.len());
        if let Ok(Some(told)) = decoded {
            prop_assert!(bytes.starts_with(&told.encode()));
        }
    }

    #[test]
    fn any_bytes_are_taken_in_without_room_for_what_they_claim(
        bytes in prop::collection::vec(any::<u8>(), 0..1200),
    ) {
        let (decoded, most) = largest(|| (taken_in(&bytes), Offer::decode(&bytes)));
        prop_assert!(most <= bytes.len(), "{} bytes for {}", most, bytes.len());
        if let Ok(Some(told)) = decoded.0 {
            prop_assert!(bytes.starts_with(&told.encode()));
        }
    }

    #[test]
    fn a_ring_that_is_not_of_its_shape_is_refused(offer in offers(), bytes: u64) {
        prop_assume!(bytes != offer.ring.bytes);
        let ring = Remote { bytes, address: 0, ..offer.ring };
        prop_assert_eq!(Offer::decode(&Offer { ring, ..offer }.encode()), Err(OfferError));
    }

    #[test]
    fn nothing_is_written_outside_of_what_was_offered(
        offer in offers(),
        keep_shape: bool,
        sends in prop::collection::vec(0..100_000usize, 1..8),
    ) {
        let shape = Shape { slots: 4, slot_bytes: 4096 };
        let offer = match keep_shape {
            true => {
                let bytes = shape.registered_bytes() as u64 / 2;
                Offer { ring: Remote { bytes, ..offer.ring }, shape, ..offer }
            }
            false => offer,
        };
        let (network, a, _) = SimNetwork::new();
        let mut a = FabricStream::new(Watched::new(a, &offer), shape).expect("rings");
        let (joined, most) = largest(|| a.join(&offer));
        prop_assert!(most < 4096, "{} bytes", most);
        prop_assert_eq!(joined.is_ok(), offer.shape == shape, "{:?}", joined);
        let mut sent = 0;
        for len in sends {
            sent += a.send(&[IoSlice::new(&vec![7; len])]).unwrap_or(0);
            network.step(len);
            let _ = a.poll();
        }
        prop_assert!(sent <= 4 * 4096, "no slot was given back");
    }
}

#[test]
fn a_ring_past_the_end_of_all_addresses_is_refused() {
    let shape = Shape::default();
    let bytes = shape.registered_bytes() as u64 / 2;
    let at = |address| {
        let ring = Remote { address, key: 1, bytes };
        Offer::decode(&Offer { name: vec![1], ring, shape }.encode())
    };
    assert!(at(u64::MAX - bytes).is_ok());
    assert_eq!(at(u64::MAX - bytes + 1), Err(OfferError));
    assert_eq!(at(u64::MAX), Err(OfferError));
}

#[test]
fn a_name_or_a_text_that_is_too_long_is_refused_and_a_text_of_ours_is_cut() {
    let shape = Shape::default();
    let ring = Remote { address: 0, key: 1, bytes: shape.registered_bytes() as u64 / 2 };
    let offer = |bytes| Offer { name: vec![0; bytes], ring, shape };
    assert!(Offer::decode(&offer(MAX_NAME_BYTES).encode()).is_ok());
    assert_eq!(Offer::decode(&offer(MAX_NAME_BYTES + 1).encode()), Err(OfferError));
    // The longest that there is.
    let told = Told::Offer { protocol: "p".repeat(512), offer: offer(MAX_NAME_BYTES) };
    assert_eq!(Told::decode(&told.encode()), Ok(told));
    // Not in the middle of a character.
    let long = format!("{}é and more", "r".repeat(511));
    let cut = Told::decode(&Told::Nothing(long).encode());
    assert_eq!(cut, Ok(Told::Nothing("r".repeat(511))));
    let lines = Told::decode(&Told::Nothing("one\ntwo\u{1b}[31m".to_owned()).encode());
    assert_eq!(lines, Ok(Told::Nothing("one two [31m".to_owned())));
    let mut bytes = vec![0, 2, 0, 0, 0, 0xfd, 1];
    bytes.resize(4 + 512, b't');
    assert_eq!(Told::decode(&bytes), Ok(Told::Nothing("t".repeat(509))));
    // One of 513 bytes fits what an end may tell at most, and is none of ours.
    let mut bytes = vec![4, 2, 0, 0, 0, 1, 2];
    bytes.resize(4 + 516, b't');
    assert_eq!(Told::decode(&bytes), Err(OfferError));
}

#[test]
fn text_that_is_none_a_kind_that_is_none_and_a_reason_with_more_behind_it_are_refused() {
    assert_eq!(Told::decode(&[4, 0, 0, 0, 0, 1, 0, 0xff]), Err(OfferError));
    assert_eq!(Told::decode(&[4, 0, 0, 0, 0, 1, 0, b'\n']), Err(OfferError), "a line of its own");
    assert_eq!(Told::decode(&[3, 0, 0, 0, 2, 0, 0]), Err(OfferError));
    assert_eq!(Told::decode(&[4, 0, 0, 0, 0, 0, 0, 9]), Err(OfferError));
    assert_eq!(Told::decode(&[3, 0, 0, 0, 0, 0, 0]), Ok(Told::Nothing(String::new())));
}
