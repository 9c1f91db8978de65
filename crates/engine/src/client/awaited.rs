//! What the operations on a tensor still wait for, for those who ask why one does not end.

use std::collections::BTreeMap;

use sumpter_types::TensorId;

use super::Client;
use super::op::Stage;
use sumpter_endpoint::ConnId;
use sumpter_endpoint::Memory;

/// What is not done of a tensor at one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
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

impl<M: Memory> Client<M> {
    /// Bytes of partitions that have credit and are not sent.
    #[must_use]
    pub fn admitted_bytes(&self) -> usize {
        self.admitted_bytes
    }

    /// What has not been handed to the connections yet. It looks at every partition that is under
    /// way.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let (rank, chunk_bytes) = (self.settings.rank, self.settings.chunk_bytes as usize);
        let mut backlog = Backlog::default();
        for op in self.ops.values().filter(|op| op.stage == Stage::Active) {
            for (index, part) in op.parts.iter().enumerate().filter(|(_, part)| !part.done) {
                let (place, sent) = (op.places[index], part.sent.max(part.have));
                let left = place.bytes.saturating_sub(sent as usize * chunk_bytes);
                let resident = self.links.get(place.lane.0).is_none_or(|link| link.resident);
                if left > 0 && !resident && op.contributes(index, rank) {
                    backlog.partitions += 1;
                    backlog.bytes += left;
                }
            }
        }
        backlog
    }

    /// The lanes that the active operations on a tensor wait for, by lane: the worker's own
    /// operation and what is passed on for its machine. None between two epochs.
    #[must_use]
    pub fn awaited(&self, tensor: TensorId) -> Vec<Awaited> {
        if self.suspended {
            return Vec::new();
        }
        let (rank, chunk_bytes) = (self.settings.rank, self.settings.chunk_bytes as usize);
        let mut lanes: BTreeMap<usize, Awaited> = BTreeMap::new();
        let active = |op: &&super::Op<M>| op.stage == Stage::Active && op.request.tensor == tensor;
        for op in self.ops.values().filter(active) {
            for (index, part) in op.parts.iter().enumerate().filter(|(_, part)| !part.done) {
                let place = op.places[index];
                let link = &self.links[place.lane.0];
                let left = |chunks: u32| place.bytes.saturating_sub(chunks as usize * chunk_bytes);
                let none = Awaited { lane: place.lane, up: link.up, to_send: 0, to_receive: 0 };
                let awaited = lanes.entry(place.lane.0).or_insert(none);
                if op.receives(index, rank) {
                    awaited.to_receive += left(part.have);
                }
                // A lane in this process takes contributions without a connection.
                if op.contributes(index, rank) && !link.resident {
                    awaited.to_send += left(part.sent.max(part.have));
                }
            }
        }
        lanes.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ClientSettings, Place, Request};
    use sumpter_endpoint::Endpoint;
    use sumpter_endpoint::OwnedMemory;
    use sumpter_types::{Collective, Dtype, Epoch, GroupId, Rank, ReduceOp};
    use sumpter_wire::Tier;

    const CHUNK: usize = 4096;
    const LANES: [ConnId; 2] = [ConnId(0), ConnId(1)];

    #[test]
    fn each_lane_is_told_with_its_connection_and_what_is_to_go_and_to_come() {
        let settings = ClientSettings {
            rank: Rank(0),
            world_size: 2,
            epoch: Epoch(1),
            chunk_bytes: CHUNK as u32,
            credit_bytes: 1 << 20,
            deterministic: false,
            checksum: false,
        };
        let mut client = Client::new(settings, 2);
        let place = |lane: usize| {
            Place::new(LANES[lane], lane as u32, (lane * 2 * CHUNK, 2 * CHUNK), GroupId(0), 2)
        };
        client.register(TensorId(5), Tier::Root, vec![place(0), place(1)]);
        client.connected(LANES[1]);
        let request = Request {
            tensor: TensorId(5),
            tier: Tier::Root,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            streamed: false,
        };
        client.submit(request, OwnedMemory { separate: None, bytes: vec![0; 4 * CHUNK] });
        let awaited = |lane: usize, up, to_send, to_receive| Awaited {
            lane: LANES[lane],
            up,
            to_send,
            to_receive,
        };
        let all = 2 * CHUNK;
        let expected = [awaited(0, false, all, all), awaited(1, true, all, all)];
        assert_eq!(client.awaited(TensorId(5)), expected);
        // Only what has a connection takes credit.
        assert_eq!(client.admitted_bytes(), all);
        assert_eq!(client.backlog(), Backlog { partitions: 2, bytes: 2 * all });
        let bytes: usize = client.pending(LANES[1]).iter().map(|slice| slice.len()).sum();
        client.sent(LANES[1], bytes);
        assert_eq!(client.admitted_bytes(), 0);
        assert_eq!(client.backlog(), Backlog { partitions: 1, bytes: all });
        let expected = [awaited(0, false, all, all), awaited(1, true, 0, all)];
        assert_eq!(client.awaited(TensorId(5)), expected);
        assert_eq!(client.awaited(TensorId(6)), []);
        client.fail_all(|_| "over".to_owned());
        assert_eq!(client.awaited(TensorId(5)), []);
    }
}
