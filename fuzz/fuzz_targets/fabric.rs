//! What a peer tells of its registered memory, and what it claims to have written there: any bytes
//! and any immediates, at any time while bytes are sent, break at most its own stream.
#![no_main]

use std::io::{IoSlice, IoSliceMut};

use libfuzzer_sys::fuzz_target;
use sumpter_fabric::{FabricStream, Offer, Shape, SimNetwork};

fuzz_target!(|data: &[u8]| {
    if let Ok(offer) = Offer::decode(data) {
        assert_eq!(offer.encode(), data);
    }
    let shape = Shape { slots: 4, slot_bytes: 4096 };
    let (network, a, b) = SimNetwork::new();
    let mut a = FabricStream::new(a, shape).expect("rings");
    let b = FabricStream::new(b, shape).expect("rings");
    a.join(&b.offer()).expect("a peer");
    let mut space = vec![0; 1 << 15];
    for turn in data.chunks_exact(6) {
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
        assert!(n <= shape.slots as usize * shape.slot_bytes as usize);
        if broken {
            assert!(!a.can_send());
            break;
        }
    }
});
