//! What a peer tells of its registered memory, and what it claims to have written to this end's:
//! any bytes and any immediates, at any time while bytes are sent, break at most its own stream.
//! Nothing is written to where it has not offered memory, and memory is taken for what it has sent,
//! not for what it claims.
#![no_main]

#[path = "../../crates/fabric/tests/watched/mod.rs"]
mod watched;

use std::io::{IoSlice, IoSliceMut};

use libfuzzer_sys::fuzz_target;
use sumpter_fabric::{FabricStream, Shape, SimNetwork, Told};
use watched::{Watched, largest};

const SHAPE: Shape = Shape { slots: 4, slot_bytes: 4096 };

/// More than anything that is allocated for what a peer tells.
const LITTLE: usize = 4096;

/// What `data` begins with, taken in as a link does, and the rest.
fn take_in(data: &[u8]) -> Option<(Told, &[u8])> {
    let mut have = 0;
    while let Some(missing) = Told::missing(&data[..have]).ok()? {
        assert!(missing > 0 && missing < LITTLE);
        if missing > data.len() - have {
            return None;
        }
        have += missing;
    }
    let told = Told::decode(&data[..have]).ok()?;
    assert_eq!(told.encode(), data[..have]);
    assert!((0..have).all(|cut| Told::decode(&data[..cut]).is_err()));
    Some((told, &data[have..]))
}

/// What the peer tells, a true offer with some bytes changed or any bytes, and the rest of `data`.
fn told<'a>(sound: &[u8], data: &'a [u8]) -> Option<(Told, &'a [u8])> {
    let (&changes, rest) = data.split_first()?;
    let count = usize::from(changes & 7);
    if count == 7 {
        return take_in(rest);
    }
    let (changes, rest) = rest.split_at_checked(2 * count)?;
    let mut bytes = sound.to_vec();
    for change in changes.chunks_exact(2) {
        let at = usize::from(change[0]) % bytes.len();
        bytes[at] ^= change[1];
    }
    take_in(&bytes).map(|(told, _)| (told, rest))
}

fuzz_target!(|data: &[u8]| {
    let (network, a, b) = SimNetwork::new();
    let b = FabricStream::new(b, SHAPE).expect("rings");
    let sound = Told::Offer { protocol: "simulated/1".to_owned(), offer: b.offer() }.encode();
    let (told, most) = largest(|| told(&sound, data));
    // The fuzzer's own copy of an offer is none larger.
    assert!(most <= LITTLE, "{most} bytes");
    let Some((Told::Offer { offer, .. }, turns)) = told else { return };
    let mut a = FabricStream::new(Watched::new(a, &offer), SHAPE).expect("rings");
    let registrations = a.counts().registrations;
    let (joined, most) = largest(|| a.join(&offer));
    assert!(most <= LITTLE, "{most} bytes");
    assert_eq!(joined.is_ok(), offer.shape == SHAPE);
    if joined.is_err() {
        assert!(!a.can_send());
        return;
    }
    let mut space = vec![0; 1 << 15];
    for turn in turns.chunks_exact(6) {
        // What this end does meanwhile. A slot that is written to before its last write has
        // completed would be a context that is used twice, of which the network complains.
        let [what, how, immediate @ ..] = turn else { continue };
        if what & 1 != 0 {
            let _ = a.send(&[IoSlice::new(&space[..usize::from(*how) << 6])]);
        }
        if what & 2 != 0 {
            let _ = a.finish();
        }
        (0..what >> 4).for_each(|_| _ = network.step(usize::from(*how)));
        if what & 4 != 0 {
            network.forge(0, immediate.try_into().map(u32::from_le_bytes).expect("four bytes"));
        }
        let broken = a.poll().is_err();
        let n = a.recv(&mut [IoSliceMut::new(&mut space)]).expect("reading does not fail");
        assert!(n <= SHAPE.slots as usize * SHAPE.slot_bytes as usize);
        if broken {
            assert!(!a.can_send());
            break;
        }
    }
    assert_eq!(a.counts().registrations, registrations);
});
