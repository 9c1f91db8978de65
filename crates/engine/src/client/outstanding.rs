//! What the operations on a tensor still wait for: the evidence of a report about a stall.

use std::collections::BTreeMap;

use sumpter_endpoint::ConnId;
use sumpter_types::{Rank, TensorId};

use super::ClientSettings;
use super::link::Links;
use super::op::Op;
use super::operations::Operations;

/// What is not done of a tensor at one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// The lane.
    pub lane: ConnId,
    /// Whether there is a connection.
    pub up: bool,
    /// Bytes of contributions that have not been handed to the connection.
    pub to_send: usize,
    /// Bytes of results that have not arrived.
    pub to_receive: usize,
}

/// What a client has not handed to its connections yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Partitions with contributions that are to be sent.
    pub partitions: usize,
    /// Bytes of these contributions.
    pub bytes: usize,
}

pub(super) fn backlog<M>(ops: &Operations<M>, links: &Links, settings: &ClientSettings) -> Backlog {
    let (rank, chunk_bytes) = (settings.rank, settings.chunk_bytes as usize);
    let mut backlog = Backlog::default();
    for op in ops.active() {
        for (index, part) in op.parts.iter().enumerate().filter(|(_, part)| !part.done) {
            let (place, sent) = (op.places[index], part.sent.max(part.have));
            let left = place.bytes.saturating_sub(sent as usize * chunk_bytes);
            // Between two epochs, a place may name a connection that there is no more.
            let resident = links.get(place.lane).is_none_or(|link| link.resident);
            let there = op.unsupplied(index, rank) == 0;
            if left > 0 && !resident && there && op.contributes(index, rank) {
                backlog.partitions += 1;
                backlog.bytes += left;
            }
        }
    }
    backlog
}

/// Whether anything under way is sent to a lane, or its result comes from there.
pub(super) fn needs<M>(ops: &Operations<M>, lane: ConnId) -> bool {
    ops.active().any(|op| {
        let mut parts = op.parts.iter().zip(op.places.iter());
        parts.any(|(part, place)| !part.done && place.lane == lane)
    })
}

pub(super) fn unsupplied<M>(tensor: TensorId, ops: &Operations<M>, rank: Rank) -> Option<usize> {
    let of_tensor = |op: &&Op<M>| op.request.tensor == tensor;
    let awaits = ops.active().filter(of_tensor).any(|op| op.awaits_supply(rank));
    let of_op =
        |op: &Op<M>| (0..op.parts.len()).map(|part| op.unsupplied(part, rank)).sum::<usize>();
    let bytes = ops.active().filter(of_tensor).map(of_op).sum();
    (awaits || bytes > 0).then_some(bytes)
}

pub(super) fn of_tensor<M>(
    tensor: TensorId,
    ops: &Operations<M>,
    links: &Links,
    settings: &ClientSettings,
) -> Vec<Outstanding> {
    let (rank, chunk_bytes) = (settings.rank, settings.chunk_bytes as usize);
    let mut lanes: BTreeMap<usize, Outstanding> = BTreeMap::new();
    for op in ops.active().filter(|op| op.request.tensor == tensor) {
        for (index, part) in op.parts.iter().enumerate().filter(|(_, part)| !part.done) {
            let place = op.places[index];
            let link = &links[place.lane];
            let left = |chunks: u32| place.bytes.saturating_sub(chunks as usize * chunk_bytes);
            let none = Outstanding { lane: place.lane, up: link.up, to_send: 0, to_receive: 0 };
            let outstanding = lanes.entry(place.lane.0).or_insert(none);
            if op.receives(index, rank) {
                outstanding.to_receive += left(part.have);
            }
            // A lane in this process takes contributions without a connection.
            if op.contributes(index, rank) && !link.resident {
                outstanding.to_send += left(part.sent.max(part.have));
            }
        }
    }
    lanes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Event, Layout, Place, Request, Supply};
    use sumpter_endpoint::Endpoint;
    use sumpter_endpoint::OwnedMemory;
    use sumpter_types::{Collective, Dtype, Epoch, GroupId, Rank, ReduceOp};
    use sumpter_wire::Tier;

    const CHUNK: usize = 4096;
    const LANES: [ConnId; 2] = [ConnId(0), ConnId(1)];

    fn settings(credit_bytes: usize) -> ClientSettings {
        ClientSettings {
            rank: Rank(0),
            world_size: 2,
            epoch: Epoch(1),
            chunk_bytes: CHUNK as u32,
            credit_bytes,
            deterministic: false,
            checksum: false,
        }
    }

    fn request() -> Request {
        Request {
            tensor: TensorId(5),
            tier: Tier::Root,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale: 1.0,
        }
    }

    #[test]
    fn each_lane_is_reported_with_its_connection_and_what_is_to_be_sent_and_received() {
        let mut client = Client::new(settings(1 << 20), 2);
        let place = |lane: usize| {
            Place::new(LANES[lane], lane as u32, (lane * 2 * CHUNK, 2 * CHUNK), GroupId(0), 2)
        };
        client.register(TensorId(5), Tier::Root, vec![place(0), place(1)]);
        client.connected(LANES[1]);
        client.submit(request(), OwnedMemory { separate: None, bytes: vec![0; 4 * CHUNK] });
        let outstanding = |lane: usize, up, to_send, to_receive| Outstanding {
            lane: LANES[lane],
            up,
            to_send,
            to_receive,
        };
        let all = 2 * CHUNK;
        let expected = [outstanding(0, false, all, all), outstanding(1, true, all, all)];
        assert_eq!(client.outstanding(TensorId(5)), expected);
        // Only what has a connection takes credit.
        assert_eq!(client.admitted_bytes(), all);
        assert_eq!(client.backlog(), Backlog { partitions: 2, bytes: 2 * all });
        let bytes: usize = client.pending(LANES[1]).iter().map(|slice| slice.len()).sum();
        client.sent(LANES[1], bytes);
        assert_eq!(client.admitted_bytes(), 0);
        assert_eq!(client.backlog(), Backlog { partitions: 1, bytes: all });
        let expected = [outstanding(0, false, all, all), outstanding(1, true, 0, all)];
        assert_eq!(client.outstanding(TensorId(5)), expected);
        assert_eq!(client.outstanding(TensorId(6)), []);
        client.fail_all(|_| "over".to_owned());
        assert_eq!(client.outstanding(TensorId(5)), []);
    }

    #[test]
    fn what_is_not_supplied_takes_no_credit_and_is_not_behind() {
        let mut client = Client::new(settings(16 * CHUNK), 1);
        let place = |number: u32| {
            let offset = number as usize * 2 * CHUNK;
            Place::new(LANES[0], number, (offset, 2 * CHUNK), GroupId(0), 2)
        };
        client.register(TensorId(5), Tier::Root, vec![place(0), place(1)]);
        client.connected(LANES[0]);
        let request = Request { supply: Supply::Ranges, ..request() };
        let op = client.submit(request, OwnedMemory { separate: None, bytes: vec![0; 4 * CHUNK] });
        let now = |client: &Client<_>| {
            (client.unsupplied(TensorId(5)), client.admitted_bytes(), client.backlog().partitions)
        };
        assert_eq!(now(&client), (Some(4 * CHUNK), 0, 0));
        // Half of the first partition, and all of the second.
        client.supply(op, CHUNK..4 * CHUNK);
        assert_eq!(now(&client), (Some(CHUNK), 2 * CHUNK, 1));
        client.supply(op, 0..CHUNK);
        assert_eq!(now(&client), (None, 4 * CHUNK, 2));
    }

    #[test]
    fn a_worker_that_holds_nothing_is_done_once_that_was_supplied_in_the_order_of_rounds() {
        let mut client = Client::new(settings(CHUNK), 1);
        client.register(TensorId(5), Tier::Root, Layout::default());
        let request = Request { supply: Supply::Ranges, ..request() };
        let nothing = || OwnedMemory { separate: None, bytes: Vec::new() };
        let ops = [0, 1].map(|_| client.submit(request, nothing()));
        let finished = |client: &mut Client<_>| {
            let mut ended = Vec::new();
            while let Some(event) = client.next_event() {
                if let Event::Finished(op, Ok(())) = event {
                    ended.push(op);
                }
            }
            ended
        };
        client.supply(ops[1], 0..0);
        assert_eq!((client.unsupplied(TensorId(5)), finished(&mut client)), (Some(0), vec![]));
        // Another epoch changes nothing about it.
        client.suspend();
        client.resume(settings(CHUNK), 1);
        client.lay_out(TensorId(5), Tier::Root, Layout::default());
        assert_eq!((client.unsupplied(TensorId(5)), finished(&mut client)), (Some(0), vec![]));
        client.supply(ops[0], 0..0);
        assert_eq!((client.unsupplied(TensorId(5)), finished(&mut client)), (None, ops.to_vec()));
    }
}
