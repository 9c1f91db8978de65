//! How connections of a simulated cluster end: cut, with an end that dies while bytes are under
//! way, by an error of a network in which bytes are placed, by one that hangs, or by one that loses
//! a write and says nothing.

use super::*;

impl World {
    /// Breaks a connection; sometimes the lane does not notice until the worker is back.
    pub(super) fn cut(&mut self, key: (usize, usize)) -> bool {
        if self.cuts_left == 0 {
            return false;
        }
        let Some(wire) = self.wires.get_mut(&key).and_then(Option::as_mut) else { return false };
        if wire.is_closed || wire.link.is_stuck() {
            return false;
        }
        let side = if self.rng.bool() { Side::A } else { Side::B };
        self.cuts_left -= 1;
        self.report.cuts += 1;
        match self.rng.u32(0..10) {
            0 | 1 => self.die(key, side),
            2 | 3 if wire.link.fail(side, self.rng.bool()) => self.report.failures += 1,
            4 | 5 if wire.link.hang() => self.report.hangs += 1,
            6 | 7 if wire.link.lose(side, self.rng.usize(..)) => self.report.losses += 1,
            _ => self.report.half_open += u64::from(self.sever(key)),
        }
        true
    }

    /// An end of a connection is gone. Some of what it has sent still arrives.
    fn die(&mut self, key: (usize, usize), side: Side) {
        let choice = self.rng.usize(..);
        let wire = self.wires.get_mut(&key).and_then(Option::as_mut).expect("a connection");
        wire.link.kill(side, choice);
        self.report.cut_short += 1;
        if side == Side::B {
            self.lanes[key.1].close(wire.lane_side);
            wire.is_closed = true;
            return;
        }
        let wire = self.wires.get_mut(&key).and_then(Option::take).expect("a connection");
        self.remains.insert(key, wire);
        self.client(key.0).disconnected(ConnId(key.1));
        self.collect(key.0);
    }

    /// A worker that died while its bytes were under way, or had closed.
    pub(super) fn leave_behind(&mut self, key: (usize, usize), mut wire: Wire) {
        if wire.is_closed || self.rng.bool() {
            return self.close_lane_side(key.1, &wire);
        }
        wire.link.kill(Side::A, self.rng.usize(..));
        self.report.cut_short += 1;
        self.remains.insert(key, wire);
    }

    /// A lane reads what is left of a connection, or finds that it is over.
    pub(super) fn read_remains(&mut self) -> bool {
        let nth = self.rng.usize(0..self.remains.len());
        let (key, wire) = self.remains.iter_mut().nth(nth).expect("just counted");
        let (key, lane) = (*key, &mut self.lanes[key.1]);
        let limit = self.rng.usize(1..4000);
        let moved = match self.rng.u32(0..3) {
            0 => wire.link.transmit(Side::B, lane, wire.lane_side, limit),
            _ => wire.link.deliver(Side::B, lane, wire.lane_side, limit, self.now),
        };
        match moved {
            Ok(moved) => {
                self.report.bytes += moved as u64;
                moved > 0
            }
            Err(error) => {
                self.note_end(&error);
                let wire = self.remains.remove(&key).expect("just seen");
                self.close_lane_side(key.1, &wire);
                true
            }
        }
    }

    /// A connection may end, but nothing breaks the protocol, except by bits that were flipped.
    pub(super) fn note_end(&mut self, error: &LinkError) {
        if let LinkError::Violation(violation) = error {
            assert!(violation.is_corruption() && self.report.flips > 0, "{violation}");
            self.report.corrupt += 1;
        }
    }

    /// A lane that has not closed a connection does so.
    pub(super) fn close_lane_side(&mut self, lane: usize, wire: &Wire) {
        if !wire.is_closed {
            self.lanes[lane].close(wire.lane_side);
        }
    }
}
