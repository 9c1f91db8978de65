//! What waits for its turn on a connection: the most urgent first, and nothing forever.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// So many may overtake the oldest one in a row; the next turn is the oldest one's. It bounds how
/// long whatever waits is passed over by more urgent ones, at the price of one turn in so many
/// that is not given to the most urgent.
const OVERTAKERS: u32 = 64;

/// Items by priority, the higher first, and among equals by key, the lower first. Keys differ, and
/// say which item is older.
#[derive(Debug)]
pub(crate) struct Queue<K, T> {
    by_urgency: BTreeMap<(Reverse<i32>, K), T>,
    by_age: BTreeMap<K, i32>,
    /// Turns given to others since the oldest one was the oldest, or had one.
    overtaken: u32,
}

impl<K: Copy + Ord, T> Queue<K, T> {
    /// With nothing in it.
    pub(crate) fn new() -> Queue<K, T> {
        Queue { by_urgency: BTreeMap::new(), by_age: BTreeMap::new(), overtaken: 0 }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// One more waits; nothing with its key does.
    pub(crate) fn push(&mut self, priority: i32, key: K, item: T) {
        let known = self.by_age.insert(key, priority);
        debug_assert!(known.is_none(), "a key that waits already");
        self.by_urgency.insert((Reverse(priority), key), item);
    }

    /// Whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<(i32, K, T)> {
        let (&oldest, &priority) = self.by_age.first_key_value()?;
        let (&best, _) = self.by_urgency.first_key_value()?;
        let of_oldest = (Reverse(priority), oldest);
        let turn = if self.overtaken < OVERTAKERS { best } else { of_oldest };
        self.overtaken = if turn == of_oldest { 0 } else { self.overtaken + 1 };
        let (Reverse(priority), key) = turn;
        self.by_age.remove(&key);
        self.by_urgency.remove(&turn).map(|item| (priority, key, item))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{OVERTAKERS, Queue};

    #[test]
    fn the_more_urgent_goes_first_and_among_equals_the_older() {
        let mut queue = Queue::new();
        for (priority, key) in [(0, 1), (5, 2), (5, 3), (-1, 4), (7, 5)] {
            queue.push(priority, key, ());
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop().map(|(_, key, ())| key)).collect();
        assert_eq!(order, [5, 2, 3, 1, 4]);
    }

    proptest! {
        /// However urgent what comes later is: with so many older ones before it, an item waits
        /// for no more than so many turns.
        #[test]
        fn nothing_waits_forever(priorities in prop::collection::vec(any::<i8>(), 1..50)) {
            let mut queue = Queue::new();
            for (key, priority) in priorities.iter().enumerate() {
                queue.push(i32::from(*priority), key, ());
            }
            let mut left = priorities.len();
            let mut turns = 0;
            for later in priorities.len().. {
                queue.push(i32::MAX, later, ());
                let (_, key, ()) = queue.pop().expect("something waits");
                turns += 1;
                if key < priorities.len() {
                    prop_assert!(turns <= (key as u32 + 1) * (OVERTAKERS + 1));
                    left -= 1;
                }
                if left == 0 {
                    break;
                }
            }
        }
    }
}
