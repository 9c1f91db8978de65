//! A connection in a simulation: two queues of bytes in flight, or rings that the ends write to in
//! each other's memory, moved when the test says so.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, Now, Violation};
use sumpter_fabric::{FabricStream, Shape, SimEndpoint, SimNetwork};

/// An end of a simulated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that opened it.
    A,
    /// The end that accepted it.
    B,
}

/// A connection whose bytes wait until the test delivers them, in pieces of any size.
#[derive(Debug)]
pub struct SimLink {
    capacity: usize,
    from_a: VecDeque<u8>,
    from_b: VecDeque<u8>,
    placed: Option<Box<Placed>>,
}

/// Rings over a network that places and completes writes in any order.
#[derive(Debug)]
struct Placed {
    network: SimNetwork,
    ends: [FabricStream<SimEndpoint>; 2],
    /// What the network does next.
    turn: u64,
}

/// The smallest rings, to be full soon.
const SHAPE: Shape = Shape { slots: 4, slot_bytes: 4096 };

/// What may happen in the network before an end has its turn.
const STEPS: u64 = 12;

impl Placed {
    fn new(seed: u64) -> Placed {
        let (network, a, b) = SimNetwork::new();
        let [mut a, mut b] = [a, b].map(|end| FabricStream::new(end, SHAPE).expect("rings"));
        let (of_a, of_b) = (a.offer(), b.offer());
        a.join(&of_b).expect("equal rings");
        b.join(&of_a).expect("equal rings");
        Placed { network, ends: [a, b], turn: seed }
    }

    /// Lets some of what is under way happen, and returns an end that has taken note of it.
    fn advance(&mut self, side: Side) -> &mut FabricStream<SimEndpoint> {
        for _ in 0..self.random() % STEPS {
            let choice = self.random() as usize;
            self.network.step(choice);
        }
        let end = &mut self.ends[side as usize];
        end.poll().expect("both ends keep to the protocol");
        end
    }

    /// Knuth's multiplier of a linear congruential generator.
    fn random(&mut self) -> u64 {
        self.turn = self.turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.turn >> 33
    }
}

impl SimLink {
    /// A connection that holds up to `capacity` bytes in flight each way.
    #[must_use]
    pub fn new(capacity: usize) -> SimLink {
        SimLink { capacity, from_a: VecDeque::new(), from_b: VecDeque::new(), placed: None }
    }

    /// A connection whose ends write to each other's memory; writes are placed in an order that
    /// `seed` says.
    #[must_use]
    pub fn placed(seed: u64) -> SimLink {
        SimLink { placed: Some(Box::new(Placed::new(seed))), ..SimLink::new(0) }
    }

    /// Takes up to `limit` bytes from an end that has something to send.
    pub fn transmit(
        &mut self,
        side: Side,
        from: &mut dyn Endpoint,
        conn: ConnId,
        limit: usize,
    ) -> usize {
        let capacity = self.capacity;
        let mut moved = 0;
        if let Some(placed) = &mut self.placed {
            let end = placed.advance(side);
            for slice in &from.pending(conn) {
                let slice = &slice[..slice.len().min(limit - moved)];
                let sent = end.send(&[IoSlice::new(slice)]).expect("the peer lives");
                moved += sent;
                if sent < slice.len() {
                    break;
                }
            }
        } else {
            let queue = self.queue(side);
            let room = limit.min(capacity - queue.len());
            for slice in &from.pending(conn) {
                let n = slice.len().min(room - moved);
                queue.extend(&slice[..n]);
                moved += n;
            }
        }
        if moved > 0 {
            from.sent(conn, moved);
        }
        moved
    }

    /// Gives the end at `side` up to `limit` of the bytes that wait for it.
    ///
    /// # Errors
    /// The endpoint's [`Violation`].
    pub fn deliver(
        &mut self,
        side: Side,
        into: &mut dyn Endpoint,
        conn: ConnId,
        limit: usize,
        now: Now,
    ) -> Result<usize, Violation> {
        let other = match side {
            Side::A => Side::B,
            Side::B => Side::A,
        };
        let mut moved = 0;
        for space in &mut into.space(conn) {
            let len = space.len().min(limit - moved);
            let n = match &mut self.placed {
                Some(placed) => {
                    let space = &mut [IoSliceMut::new(&mut space[..len])];
                    placed.advance(side).recv(space).expect("the peer lives")
                }
                None => {
                    let queue = self.queue(other);
                    let n = len.min(queue.len());
                    for (place, byte) in space.iter_mut().zip(queue.drain(..n)) {
                        *place = byte;
                    }
                    n
                }
            };
            moved += n;
            if n < space.len() {
                break;
            }
        }
        if moved > 0 {
            into.filled(conn, moved, now)?;
        }
        Ok(moved)
    }

    /// Flips a bit of a byte on its way from an end, if there is such a byte.
    pub fn damage(&mut self, side: Side, byte: usize, bit: u8) -> bool {
        match self.queue(side).get_mut(byte) {
            Some(byte) => {
                *byte ^= 1 << (bit & 7);
                true
            }
            None => false,
        }
    }

    /// Bytes on their way from an end, in a queue.
    #[must_use]
    pub fn in_flight(&self, side: Side) -> usize {
        match side {
            Side::A => self.from_a.len(),
            Side::B => self.from_b.len(),
        }
    }

    fn queue(&mut self, side: Side) -> &mut VecDeque<u8> {
        match side {
            Side::A => &mut self.from_a,
            Side::B => &mut self.from_b,
        }
    }
}
