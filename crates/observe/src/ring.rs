//! The ring that a state machine notes its events in: a fixed size, one owner, no lock, and after
//! its first turn no allocation. What is new overwrites what is oldest.

use crate::event::{Event, EventKind, Part, Peer};

/// The latest events of one state machine.
///
/// It is given a clock by the driver, so that its owner need not know one: the owner only says what
/// happened. Without a clock it records nothing.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    clock: Option<fn() -> u64>,
    capacity: usize,
    events: Vec<Event>,
    /// Where the next event goes, once the ring is full.
    next: usize,
    /// Events that were overwritten.
    lost: u64,
}

impl Recorder {
    /// A ring of `capacity` events, stamped by `clock`; of none, nothing is recorded.
    #[must_use]
    pub fn new(capacity: usize, clock: fn() -> u64) -> Recorder {
        let clock = (capacity > 0).then_some(clock);
        // Memory is used as it is written: a short job costs little.
        let events = Vec::with_capacity(capacity);
        Recorder { clock, capacity, events, next: 0, lost: 0 }
    }

    /// Notes an event, now.
    pub fn note(&mut self, kind: EventKind, part: Part, peer: Peer, bytes: usize, run: u64) {
        let Some(clock) = self.clock else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let event = Event { at_ns: clock(), kind, part, peer, bytes, run };
        if self.events.len() < self.capacity {
            return self.events.push(event);
        }
        self.events[self.next] = event;
        self.next = if self.next + 1 == self.capacity { 0 } else { self.next + 1 };
        self.lost += 1;
    }

    /// Whether anything is recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.clock.is_some()
    }

    /// What is in the ring, oldest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Event> {
        let (newer, older) = self.events.split_at(self.next);
        [older, newer].concat()
    }

    /// Events that were overwritten.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });

    fn clock() -> u64 {
        NOW.with(|now| now.replace(now.get() + 1))
    }

    fn noted(capacity: usize, events: u32) -> Recorder {
        let mut ring = Recorder::new(capacity, clock);
        for tensor in 0..events {
            let part = Part { tensor, ..Part::default() };
            ring.note(EventKind::SendBegin, part, Peer::Rank(1), 64, 7);
        }
        ring
    }

    #[test]
    fn the_latest_events_are_kept_oldest_first() {
        for (capacity, events) in [(1, 1), (1, 5), (4, 3), (4, 4), (4, 5), (4, 8), (5, 1003)] {
            let ring = noted(capacity, events);
            let kept: Vec<u32> = ring.snapshot().iter().map(|e| e.part.tensor).collect();
            let first = events.saturating_sub(capacity as u32);
            assert_eq!(kept, (first..events).collect::<Vec<_>>(), "{capacity} {events}");
            assert_eq!(ring.lost(), u64::from(first));
            assert!(ring.snapshot().is_sorted_by_key(|event| event.at_ns));
        }
    }

    #[test]
    fn a_ring_never_grows_beyond_its_size() {
        let ring = noted(1000, 5000);
        assert_eq!(ring.events.capacity(), Recorder::new(1000, clock).events.capacity());
    }

    #[test]
    fn a_ring_of_no_events_looks_at_no_clock() {
        let before = NOW.with(Cell::get);
        let ring = noted(0, 10);
        assert!(!ring.is_on() && ring.snapshot().is_empty() && ring.lost() == 0);
        assert_eq!(NOW.with(Cell::get), before);
    }
}
