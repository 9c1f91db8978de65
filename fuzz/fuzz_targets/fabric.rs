//! What a peer tells of its registered memory, and what it claims to have written there: any bytes
//! and any immediates break at most its own stream.
#![no_main]

use std::io::IoSliceMut;

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
    for word in data.chunks_exact(4) {
        network.forge(0, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let broken = a.poll().is_err();
        let n = a.recv(&mut [IoSliceMut::new(&mut space)]).expect("reading does not fail");
        assert!(n <= shape.slots as usize * shape.slot_bytes as usize);
        if broken {
            assert!(!a.can_send());
            break;
        }
    }
});
