//! A client and a lane in one process: what they need not send each other.
//!
//! Frames without payload go between them like between any two; chunks do not. The lane adds a
//! contribution straight from the tensor, and the client takes a sum straight from the
//! accumulator, chunk by chunk while both are in cache. Where the contribution is the last, and the
//! sum goes to the same memory, both happen block by block.

use crate::chunk::Visit;
use crate::client::Client;
use crate::lane::Lane;
use sumpter_endpoint::Memory;
use sumpter_endpoint::{ConnId, Violation};

/// Lets a client and the lane in its process look at each other's chunks until there is nothing
/// left to do or `budget` bytes have been looked at; returns how many were.
///
/// # Errors
/// [`Violation`] when the two disagree: a bug, since both are ours.
pub fn exchange<M: Memory>(
    (client, on_client): (&mut Client<M>, ConnId),
    (lane, on_lane): (&mut Lane, ConnId),
    budget: usize,
) -> Result<usize, Violation> {
    let mut done = 0;
    while done < budget {
        // What was asked for in vain goes first, or a later chunk would overtake it.
        let offer = client.next_offer(on_client).map(|chunk| (chunk, Visit::Ask));
        let Some((chunk, visit)) = offer.or_else(|| lane.next_visit(on_lane)) else { break };
        match visit {
            // An operation that has failed here has nothing to give and takes nothing; one that
            // is supplied in chunks offers later what it does not have yet.
            Visit::Ask => {
                if lane.lacks_only_resident(on_lane, chunk)
                    && let Some(bytes) = client.in_place(on_client, chunk)?
                {
                    let len = bytes.len();
                    if !lane.complete_in_place(on_lane, chunk, bytes) {
                        return Err(Violation::state("a sum that was complete and is not"));
                    }
                    done += 2 * len;
                    client.take(on_client, chunk, len, None)?;
                } else if let Some(code) =
                    client.coded_contribution(on_client, chunk, |len| lane.spare(len))?
                {
                    done += code.len();
                    lane.contribute_resident_code(on_lane, chunk, code);
                } else if let Some(bytes) = client.contribution(on_client, chunk)? {
                    done += bytes.len();
                    lane.contribute_resident(on_lane, chunk, bytes);
                }
            }
            Visit::Deliver => {
                if let Some(value) = lane.value(on_lane, chunk) {
                    done += value.len();
                    client.take(on_client, chunk, value.len(), Some(value))?;
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sumpter_endpoint::OwnedMemory;
    use sumpter_transport::in_process;
    use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, TensorId};
    use sumpter_wire::Tier;

    use super::*;
    use crate::{ClientSettings, Event, LaneLimits, Peer, Place, Request, Supply};

    const CHUNK_BYTES: u32 = 12 << 10;
    const LANE: ConnId = ConnId(0);

    /// A worker's memory before the round: all elements are its rank plus one.
    fn memory(rank: u32, in_place: bool) -> OwnedMemory {
        let elements = 5 * CHUNK_BYTES as usize / 8;
        let contribution: Vec<u8> =
            (0..elements).flat_map(|_| (rank as f32 + 1.0).to_le_bytes()).collect();
        match in_place {
            true => OwnedMemory { separate: None, bytes: contribution },
            false => {
                OwnedMemory { bytes: vec![9; contribution.len()], separate: Some(contribution) }
            }
        }
    }

    /// The elements of each worker's memory after a round on the lane that the first one's process
    /// has, all alike.
    fn round(request: Request, deterministic: bool, in_place: bool) -> [f32; 2] {
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
        let mut lane = Lane::new(limits);
        let mut workers: Vec<_> = (0..2)
            .map(|rank| {
                let settings = ClientSettings {
                    rank: Rank(rank),
                    world_size: 2,
                    epoch: Epoch(1),
                    chunk_bytes: CHUNK_BYTES,
                    credit_bytes: 1 << 20,
                    deterministic,
                    checksum: false,
                };
                let peer = Peer {
                    job: JobId(1),
                    rank: Rank(rank),
                    world_size: 2,
                    epoch: Epoch(1),
                    keeps: false,
                    checksum: false,
                };
                let mut client = Client::new(settings, 1);
                let bytes = memory(rank, true).bytes.len();
                let place = Place::new(LANE, 0, (0, bytes), GroupId(0), 2);
                client.register(TensorId(0), Tier::Root, vec![place]);
                let conn = if rank == 0 {
                    client.attached(LANE);
                    lane.open_resident(peer).unwrap()
                } else {
                    client.connected(LANE);
                    lane.open(peer).unwrap().0
                };
                client.submit(request, memory(rank, in_place));
                (client, conn)
            })
            .collect();
        let mut moved = 1;
        while moved > 0 {
            moved = 0;
            for (rank, (client, conn)) in workers.iter_mut().enumerate() {
                let (on_client, on_lane) = ((&mut *client, LANE), (&mut lane, *conn));
                moved += in_process(on_client, on_lane, Duration::ZERO, 5000).unwrap();
                if rank == 0 {
                    moved += exchange((&mut *client, LANE), (&mut lane, *conn), 5000).unwrap();
                }
            }
        }
        [0, 1].map(|rank| {
            let client = &mut workers[rank].0;
            let mut events = std::iter::from_fn(|| client.next_event());
            let released = events.find_map(|event| match event {
                Event::Released(_, memory) => Some(memory),
                _ => None,
            });
            let bytes = released.expect("the round is over").bytes;
            let all: Vec<f32> =
                bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            assert!(all.iter().all(|element| *element == all[0]), "{all:?}");
            all[0]
        })
    }

    fn request(collective: Collective, root: u32) -> Request {
        Request {
            tensor: TensorId(0),
            tier: Tier::Root,
            collective,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(root),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale: 1.0,
        }
    }

    #[test]
    fn a_sum_is_the_same_in_place_and_elsewhere() {
        let sum = request(Collective::AllReduce, 0);
        for in_place in [true, false] {
            for deterministic in [true, false] {
                assert_eq!(round(sum, deterministic, in_place), [3.0; 2]);
                let average = Request { average: true, ..sum };
                assert_eq!(round(average, deterministic, in_place), [1.5; 2]);
            }
        }
    }

    #[test]
    fn the_contribution_of_a_worker_that_receives_nothing_stays_as_it_is() {
        for (root, expected) in [(0, [3.0, 2.0]), (1, [1.0, 3.0])] {
            assert_eq!(round(request(Collective::Reduce, root), false, true), expected);
        }
    }
}
