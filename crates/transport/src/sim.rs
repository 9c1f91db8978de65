//! A connection in a simulation: two queues of bytes in flight, moved when the test says so.

use std::collections::VecDeque;

use sumpter_endpoint::{ConnId, Endpoint, Now, Violation};

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
}

impl SimLink {
    /// A connection that holds up to `capacity` bytes in flight each way.
    #[must_use]
    pub fn new(capacity: usize) -> SimLink {
        SimLink { capacity, from_a: VecDeque::new(), from_b: VecDeque::new() }
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
        let queue = self.queue(side);
        let room = limit.min(capacity - queue.len());
        let mut moved = 0;
        for slice in &from.pending(conn) {
            let n = slice.len().min(room - moved);
            queue.extend(&slice[..n]);
            moved += n;
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
        let queue = self.queue(other);
        let mut moved = 0;
        for space in &mut into.space(conn) {
            let n = space.len().min(limit - moved).min(queue.len());
            for (place, byte) in space.iter_mut().zip(queue.drain(..n)) {
                *place = byte;
            }
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

    /// Bytes on their way from an end.
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
