//! A lane against a client that holds the token and sends anything: at worst that connection
//! closes, and another worker's round still gives the right sum.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sumpter_endpoint::{ConnId, Endpoint};
use sumpter_engine::{JobLimits, Lane, LaneLimits, Peer};
use sumpter_types::{Epoch, JobId, Rank};
use sumpter_wire::{BEGIN_BYTES, HEADER_BYTES, MAX_BEGIN_BYTES, ORDER_ENTRY_BYTES, ROUTE_BYTES};

const LIMITS: LaneLimits =
    LaneLimits { max_job_bytes: 1 << 20, max_chunk_bytes: 1 << 16, hub: true };

fn feed(lane: &mut Lane, conn: ConnId, mut data: &[u8]) -> bool {
    while !data.is_empty() {
        let mut moved = 0;
        for space in &mut lane.space(conn) {
            let n = space.len().min(data.len());
            space[..n].copy_from_slice(&data[..n]);
            data = &data[n..];
            moved += n;
        }
        if lane.filled(conn, moved, Duration::ZERO).is_err() {
            return false;
        }
    }
    true
}

fuzz_target!(|data: &[u8]| {
    // A lane of a worker, or one of a server whose subtotals have routes.
    let is_server = data.len() % 4 > 1;
    let mut lane = Lane::new(LaneLimits { hub: !is_server, ..LIMITS });
    let lanes = if is_server { 2 } else { 0 };
    let (max_bytes, max_connections) = (1 << 20, 8);
    lane.know(JobId(1), JobLimits { max_bytes, max_connections, servers: 2, lanes });
    let keeps = data.len() % 2 == 1;
    let peer = |rank| Peer {
        job: JobId(1),
        rank: Rank(rank),
        world_size: 2,
        epoch: Epoch(1),
        keeps,
        checksum: false,
    };
    let conns = [0, 1].map(|rank| lane.open(peer(rank)).expect("fits").0);
    // The first byte of each piece says whose it is; the kind and the epoch of most frames are
    // made valid, or nearly everything would stop at the first check.
    let mut open = [true; 2];
    for piece in data.chunks(1 + HEADER_BYTES + MAX_BEGIN_BYTES + 2 * ORDER_ENTRY_BYTES) {
        let who = usize::from(piece[0] & 1);
        let mut bytes = piece[1..].to_vec();
        if piece[0] & 2 == 0 && bytes.len() >= HEADER_BYTES {
            bytes[0] = [1, 2, 12, 7, 5, 6, 9, 10][usize::from(bytes[0] & 7)];
            // Sums of all and of a machine, the parts of a variable, and a worker's own round.
            let aggregate = if is_server { 8 } else { 1 };
            bytes[1] = [0, aggregate, 3, 4, 7, 7, 0, 3][usize::from(bytes[1] & 7)];
            bytes[2..4].fill(0);
            bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
            bytes[9..12].fill(0);
            bytes[13..16].fill(0);
            bytes[28..32].fill(0);
            // Most beginnings are no update, and of those that are the length is right.
            if bytes[0] == 1 && bytes.len() > HEADER_BYTES + 16 {
                let updates = bytes[HEADER_BYTES + 16] == 5;
                // Some follow an order.
                let entries = if bytes[1] == 7 { usize::from(piece[0] >> 2) % 3 } else { 0 };
                let update = MAX_BEGIN_BYTES + entries * ORDER_ENTRY_BYTES;
                let routed = is_server && bytes[1] == 8;
                let plain = BEGIN_BYTES + if routed { ROUTE_BYTES } else { 0 };
                let length = if updates { update } else { plain };
                bytes[24..28].copy_from_slice(&(length as u32).to_le_bytes());
            }
        }
        if open[who] && !feed(&mut lane, conns[who], &bytes) {
            open[who] = false;
            lane.close(conns[who]);
        }
        for conn in [0, 1].into_iter().filter(|i| open[*i]).map(|i| conns[i]) {
            let n: usize = lane.pending(conn).iter().map(|s| s.len()).sum();
            lane.sent(conn, n);
        }
        // Totals come back at once, as if no other machine took part.
        while let Some((of, _, bytes)) = lane.next_subtotal(JobId(1)) {
            lane.return_total(of, bytes).expect("it was lent");
        }
        while let Some(total) = lane.next_total(JobId(1)) {
            lane.release_total(total);
        }
    }
});
