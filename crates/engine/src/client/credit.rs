//! Flow control: which partitions are admitted to their connections, and when.
//!
//! Partitions wait in one order for all lanes, the one in which the placement dealt them out, and
//! are admitted only `limit` bytes ahead of what has been sent. The bytes that a partition holds of
//! the window are noted with the partition; the window knows their sum.

use super::op::OpId;
use crate::queue::Queue;

/// Partitions that wait for their turn, by operation and index.
pub(super) type Ready = Queue<(OpId, usize), ()>;

#[derive(Debug)]
pub(super) struct CreditWindow {
    limit: usize,
    /// Bytes of partitions that are admitted and not sent.
    admitted_bytes: usize,
    waiting: Ready,
}

impl CreditWindow {
    pub(super) fn new(limit: usize) -> CreditWindow {
        CreditWindow { limit, admitted_bytes: 0, waiting: Ready::new() }
    }

    /// Bytes of partitions that are admitted and not sent.
    pub(super) fn admitted_bytes(&self) -> usize {
        self.admitted_bytes
    }

    /// A partition to admit in its turn.
    pub(super) fn enqueue(&mut self, priority: i32, id: OpId, part: usize) {
        self.waiting.push(priority, (id, part), ());
    }

    /// The next partition to admit, while the window is open.
    pub(super) fn admit(&mut self) -> Option<(i32, OpId, usize)> {
        if self.admitted_bytes >= self.limit {
            return None;
        }
        self.waiting.pop().map(|(priority, (id, part), ())| (priority, id, part))
    }

    /// A partition takes `bytes` of the window.
    pub(super) fn charge(&mut self, held: &mut usize, bytes: usize) {
        *held += bytes;
        self.admitted_bytes += bytes;
    }

    /// A partition gives back `bytes` of what it holds, or all if that is less.
    pub(super) fn refund(&mut self, held: &mut usize, bytes: usize) {
        let bytes = bytes.min(*held);
        *held -= bytes;
        self.admitted_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_closes_at_its_limit_and_opens_when_bytes_are_sent() {
        let mut window = CreditWindow::new(100);
        (0..3).for_each(|part| window.enqueue(0, OpId(1), part));
        let mut held = [0; 3];
        for held in &mut held[..2] {
            assert!(window.admit().is_some());
            window.charge(held, 60);
        }
        // The last one that was admitted may go beyond the limit.
        assert_eq!((window.admitted_bytes(), window.admit()), (120, None));
        window.refund(&mut held[0], 40);
        assert_eq!(window.admit(), Some((0, OpId(1), 2)));
        window.refund(&mut held[0], usize::MAX);
        assert_eq!((held, window.admitted_bytes()), ([0, 60, 0], 60));
    }

    #[test]
    fn an_urgent_partition_is_admitted_before_those_that_waited_longer() {
        let mut window = CreditWindow::new(1);
        window.enqueue(0, OpId(1), 0);
        window.enqueue(0, OpId(1), 1);
        window.enqueue(3, OpId(2), 0);
        let order: Vec<_> = std::iter::from_fn(|| window.admit()).collect();
        assert_eq!(order, [(3, OpId(2), 0), (0, OpId(1), 0), (0, OpId(1), 1)]);
    }
}
