//! A connection in a simulation: two queues of bytes in flight, or rings that the ends write to in
//! each other's memory, moved when the test says so.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, LinkError, Now};
use sumpter_fabric::{FabricError, FabricStream, Shape, SimEndpoint, SimNetwork, StreamError};

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
    /// An end that has died.
    gone: Option<Side>,
}

/// Rings over a network that places and completes writes in any order.
#[derive(Debug)]
struct Placed {
    network: SimNetwork,
    ends: [FabricStream<SimEndpoint>; 2],
    /// What the network does next.
    turn: u64,
    /// It does nothing any more.
    hangs: bool,
    /// A write has completed that is never placed.
    loses: bool,
}

/// The smallest rings, to be full soon.
const SHAPE: Shape = Shape { slots: 4, slot_bytes: 4096 };

/// What may happen in the network before an end has its turn.
const STEPS: u64 = 12;

impl Placed {
    fn new(seed: u64, lockable: Option<usize>) -> Result<Placed, FabricError> {
        let (network, a, b) = SimNetwork::new();
        if let Some(bytes) = lockable {
            network.limit_memory((seed % 2) as usize, bytes);
        }
        let (mut a, mut b) = (FabricStream::new(a, SHAPE)?, FabricStream::new(b, SHAPE)?);
        let (of_a, of_b) = (a.offer(), b.offer());
        a.join(&of_b).expect("equal rings");
        b.join(&of_a).expect("equal rings");
        Ok(Placed { network, ends: [a, b], turn: seed, hangs: false, loses: false })
    }

    /// Lets some of what is under way happen, and returns an end that has taken note of it, with
    /// what that has met.
    fn advance(&mut self, side: Side) -> (&mut FabricStream<SimEndpoint>, Result<(), LinkError>) {
        for _ in 0..self.random() % STEPS {
            let choice = self.random() as usize;
            if !self.hangs {
                self.network.step(choice);
            }
        }
        let end = &mut self.ends[side as usize];
        let polled = end.poll().map(drop).map_err(broken);
        (end, polled)
    }

    /// Knuth's multiplier of a linear congruential generator.
    fn random(&mut self) -> u64 {
        self.turn = self.turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.turn >> 33
    }
}

fn broken(error: StreamError) -> LinkError {
    match error {
        StreamError::Fabric(error) => io::Error::other(error).into(),
        StreamError::Violation(what) => panic!("both ends keep to the protocol: {what}"),
    }
}

impl SimLink {
    /// A connection that holds up to `capacity` bytes in flight each way.
    #[must_use]
    pub fn new(capacity: usize) -> SimLink {
        let (from_a, from_b) = (VecDeque::new(), VecDeque::new());
        SimLink { capacity, from_a, from_b, placed: None, gone: None }
    }

    /// A connection whose ends write to each other's memory; writes are placed in an order that
    /// `seed` says.
    #[must_use]
    pub fn placed(seed: u64) -> SimLink {
        SimLink::placed_within(None, 0, seed)
    }

    /// The same if the memory of both ends can be registered, of which one end may lock so much;
    /// else one that holds up to `capacity` bytes, as [`new`](Self::new).
    #[must_use]
    pub fn placed_within(lockable: Option<usize>, capacity: usize, seed: u64) -> SimLink {
        match Placed::new(seed, lockable) {
            Ok(placed) => SimLink { placed: Some(Box::new(placed)), ..SimLink::new(0) },
            Err(_) => SimLink::new(capacity),
        }
    }

    /// Whether the ends write to each other's memory.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        self.placed.is_some()
    }

    /// An end dies: of what it has sent some is lost, as `choice` says, and the other end may read
    /// the beginning that has arrived, and finds that the connection is closed.
    pub fn kill(&mut self, side: Side, choice: usize) {
        self.gone = Some(side);
        match &mut self.placed {
            Some(placed) => placed.network.kill(side as usize, choice),
            None => {
                let queue = self.queue(side);
                queue.truncate(choice % (queue.len() + 1));
            }
        }
    }

    /// The network reports an error to an end whose writes it has lost, or to which it refuses the
    /// next one; false if it places no bytes.
    pub fn fail(&mut self, side: Side, refuses: bool) -> bool {
        let Some(placed) = &self.placed else { return false };
        match refuses {
            true => placed.network.refuse(side as usize),
            false => placed.network.fail(side as usize, "a write has failed"),
        }
        true
    }

    /// The network does nothing any more, and says nothing either; false if it places no bytes.
    pub fn hang(&mut self) -> bool {
        let Some(placed) = &mut self.placed else { return false };
        placed.hangs = true;
        true
    }

    /// A write of an end's completes and is never placed, without an error; false if none is under
    /// way.
    pub fn lose(&mut self, side: Side, choice: usize) -> bool {
        let Some(placed) = &mut self.placed else { return false };
        let is_lost = placed.network.lose(side as usize, choice);
        placed.loses |= is_lost;
        is_lost
    }

    /// Whether the network does nothing any more, or has lost a write.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.hangs || placed.loses)
    }

    /// Whether an end's network owes something, as far as [`Link::owed`] would say: once nothing
    /// happens each end tells the other how many writes it has posted.
    ///
    /// [`Link::owed`]: sumpter_endpoint::Link::owed
    #[must_use]
    pub fn owes(&self, side: Side) -> bool {
        let Some(placed) = &self.placed else { return false };
        let (end, other) = (&placed.ends[side as usize], &placed.ends[1 - side as usize]);
        end.owed().is_some() || end.lacks(other.posted()) > 0
    }

    /// Takes up to `limit` bytes from an end that has something to send.
    ///
    /// # Errors
    /// [`LinkError::Io`] once the network has failed.
    pub fn transmit(
        &mut self,
        side: Side,
        from: &mut dyn Endpoint,
        conn: ConnId,
        limit: usize,
    ) -> Result<usize, LinkError> {
        let capacity = self.capacity;
        let mut moved = 0;
        if let Some(placed) = &mut self.placed {
            let (end, polled) = placed.advance(side);
            polled?;
            for slice in &from.pending(conn) {
                let slice = &slice[..slice.len().min(limit - moved)];
                let sent = end.send(&[IoSlice::new(slice)]).map_err(broken)?;
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
        Ok(moved)
    }

    /// Gives the end at `side` up to `limit` of the bytes that wait for it.
    ///
    /// # Errors
    /// What the endpoint objects to; [`LinkError::Closed`] or [`LinkError::Io`] once nothing more
    /// will come.
    pub fn deliver(
        &mut self,
        side: Side,
        into: &mut dyn Endpoint,
        conn: ConnId,
        limit: usize,
        now: Now,
    ) -> Result<usize, LinkError> {
        let other = match side {
            Side::A => Side::B,
            Side::B => Side::A,
        };
        let mut moved = 0;
        let mut polled = Ok(());
        if let Some(placed) = &mut self.placed {
            polled = placed.advance(side).1;
        }
        for space in &mut into.space(conn) {
            let len = space.len().min(limit - moved);
            let n = match &mut self.placed {
                Some(placed) => {
                    let space = &mut [IoSliceMut::new(&mut space[..len])];
                    placed.ends[side as usize].recv(space).map_err(broken)?
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
        } else if !self.has_arrived(side) {
            // All before it has been read.
            polled?;
            if self.gone == Some(other) {
                return Err(LinkError::Closed);
            }
        }
        Ok(moved)
    }

    /// Whether there is something to read for an end.
    fn has_arrived(&self, side: Side) -> bool {
        match (&self.placed, side) {
            (Some(placed), _) => placed.ends[side as usize].can_receive(),
            (None, Side::A) => !self.from_b.is_empty(),
            (None, Side::B) => !self.from_a.is_empty(),
        }
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
