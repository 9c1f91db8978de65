//! A client and a lane in one process: what they need not send each other.
//!
//! Frames without payload go between them like between any two; chunks do not. The lane adds a
//! contribution straight from the tensor, and the client takes a sum straight from the
//! accumulator, chunk by chunk while both are in cache.

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
                if let Some(bytes) = client.contribution(on_client, chunk)? {
                    done += bytes.len();
                    lane.contribute_resident(on_lane, chunk, bytes);
                }
            }
            Visit::Deliver => {
                if let Some(value) = lane.value(on_lane, chunk) {
                    done += value.len();
                    client.take(on_client, chunk, value)?;
                }
            }
        }
    }
    Ok(done)
}
