//! Both sides of the handshake against any bytes: no peer is accepted without the token.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sumpter_types::{Epoch, JobId, Rank};
use sumpter_wire::{ClientHandshake, Hello, ServerHandshake, Token};

fuzz_target!(|data: &[u8]| {
    let token = Token::new("a token of good length").expect("long enough");
    let mut server = ServerHandshake::new([7; 32]);
    let mut rest = data;
    while !rest.is_empty() {
        let space = server.space();
        let n = space.len().min(rest.len());
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match server.filled(n, |_| Some(token.clone())) {
            Ok(None) => {}
            Ok(Some(_)) => panic!("let in without the token"),
            Err(_) => break,
        }
    }
    let hello = Hello {
        job: JobId(1),
        rank: Rank(0),
        world_size: 1,
        epoch: Epoch(1),
        lane: 0,
        keeps: false,
        checksum: false,
        placed: true,
    };
    let mut client = ClientHandshake::new(hello, [1; 32], token);
    let mut rest = data;
    while !rest.is_empty() {
        let space = client.space();
        let n = space.len().min(rest.len());
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match client.filled(n) {
            Ok(false) => {}
            Ok(true) => panic!("trusted a server without the token"),
            Err(_) => break,
        }
    }
});
