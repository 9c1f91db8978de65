//! A client against a lane that sends anything: at worst that connection closes.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sumpter_endpoint::{ConnId, Endpoint, OwnedMemory};
use sumpter_engine::{Client, ClientSettings, Place, Request, Supply, VariablePlace};
use sumpter_sum::AlignedBuf;
use sumpter_types::{
    Collective, Dtype, Epoch, GroupId, Rank, ReduceOp, Rule, Staleness, TensorId, Update,
};
use sumpter_wire::{HEADER_BYTES, Tier};

fuzz_target!(|data: &[u8]| {
    let settings = ClientSettings {
        rank: Rank(0),
        world_size: 2,
        epoch: Epoch(1),
        chunk_bytes: 64,
        credit_bytes: 1 << 16,
        deterministic: false,
        checksum: false,
    };
    let lane = ConnId(0);
    let mut client = Client::new(settings, 1);
    if data.len() % 2 == 1 {
        client.retain_results_of(lane);
    }
    client.connected(lane);
    // The client mirrors the first of the two partitions of the variable.
    let part = || AlignedBuf::new(200);
    client.mirror_from(TensorId(3), (0..50, 0), Dtype::F32, vec![part(), part()]);
    // And one that changes asynchronously.
    client.mirror_from(TensorId(4), (0..50, 0), Dtype::F32, vec![part(), part()]);
    client.mirror_rounds_of(TensorId(4), Dtype::F32, &[Rank(0), Rank(1)]);
    let alone = client.define_group(&[Rank(0)]);
    let update = Collective::Update;
    let all = [Collective::AllReduce, Collective::Broadcast, Collective::Reduce, update, update];
    for (id, collective) in all.into_iter().enumerate() {
        let tensor = TensorId(id as u32);
        let (group, tier, staleness) = match id {
            4 => (alone, Tier::Worker, Staleness::UNBOUNDED),
            _ => (GroupId(0), Tier::Root, Staleness::SYNCHRONOUS),
        };
        let place = |number: u32| {
            let mirrors = [Some(Rank(number)), None];
            let (home, offset, lacks) = (number, 0, false);
            let variable = VariablePlace { mirrors, home, offset, staleness, lacks };
            let updates = collective == Collective::Update;
            let place = Place::new(lane, number, (100 * number as usize, 100), group, 2);
            Place { variable: updates.then_some(variable), ..place }
        };
        client.register(tensor, tier, vec![place(0), place(1)]);
        let (dtype, op, root, average) = (Dtype::F32, ReduceOp::Sum, Rank(1), true);
        let priority = 0;
        // The reduce is supplied in ranges, all but its last bytes.
        let supply = match collective {
            Collective::Reduce => Supply::Ranges,
            _ => Supply::Whole,
        };
        let rule = Rule::Sgd { momentum: true, nesterov: false };
        let update = (collective == Collective::Update).then(|| Update::new(rule));
        let separate = update.is_some().then(|| vec![1; 200]);
        let request = Request {
            tensor,
            tier,
            collective,
            dtype,
            op,
            root,
            average,
            priority,
            supply,
            call: None,
            update,
            rescale: 1.0,
        };
        let op = client.submit(request, OwnedMemory { separate, bytes: vec![1; 200] });
        if supply == Supply::Ranges {
            client.supply(op, 0..150);
        }
    }
    for piece in data.chunks(HEADER_BYTES + 64) {
        let mut bytes = piece.to_vec();
        if bytes.len() >= HEADER_BYTES && bytes[1] & 1 == 0 {
            // Results, ends, errors, that everyone has a result, and snapshots.
            bytes[0] = [3, 4, 5, 8, 9][usize::from(bytes[0] % 5)];
            bytes[1] = [0, 7][usize::from(bytes[1] >> 1 & 1)];
            bytes[2..4].fill(0);
            bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
            bytes[9..12].fill(0);
            bytes[13..20].fill(0);
            bytes[21..24].fill(0);
            bytes[25..32].fill(0);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let mut moved = 0;
            for space in &mut client.space(lane) {
                let n = space.len().min(rest.len());
                space[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                moved += n;
            }
            if client.filled(lane, moved, Duration::ZERO).is_err() {
                client.disconnected(lane);
                client.connected(lane);
                break;
            }
            let n: usize = client.pending(lane).iter().map(|s| s.len()).sum();
            client.sent(lane, n);
        }
        while client.next_event().is_some() {}
    }
});
