//! What waits for its turn on a connection: the most urgent first, and nothing forever.
//!
//! Nearly all that waits at a time has one of a few priorities, and comes in the order of keys. So
//! there is a queue for each priority, and what is pushed mostly goes to the end of one.

use std::cmp::Reverse;
use std::collections::VecDeque;

/// So many may overtake the oldest one in a row; the next turn is the oldest one's. It bounds how
/// long whatever waits is passed over by more urgent ones, at the price of one turn in so many
/// that is not given to the most urgent.
const OVERTAKERS: u32 = 64;

/// Empty queues that are kept for the next priority.
const SPARE: usize = 8;

/// Items by priority, the higher first, and among equals by key, the lower first. Keys differ, and
/// say which item is older.
#[derive(Debug)]
pub(crate) struct Queue<K, T> {
    /// By priority, the higher first; none is empty.
    classes: Vec<Class<K, T>>,
    spare: Vec<VecDeque<(K, T)>>,
    /// The least key, and its priority.
    oldest: Option<(K, i32)>,
    /// Turns given to others since the oldest one was the oldest, or had one.
    overtaken: u32,
}

/// What has one priority, by key.
#[derive(Debug)]
struct Class<K, T> {
    priority: i32,
    items: VecDeque<(K, T)>,
}

impl<K: Copy + Ord, T> Queue<K, T> {
    /// With nothing in it.
    pub(crate) fn new() -> Queue<K, T> {
        Queue { classes: Vec::new(), spare: Vec::new(), oldest: None, overtaken: 0 }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// One more waits; nothing with its key does.
    pub(crate) fn push(&mut self, priority: i32, key: K, item: T) {
        let class = match self.find(priority) {
            Ok(known) => known,
            Err(place) => {
                let items = self.spare.pop().unwrap_or_default();
                self.classes.insert(place, Class { priority, items });
                place
            }
        };
        let items = &mut self.classes[class].items;
        match items.back() {
            Some((last, _)) if *last > key => {
                let place = items.partition_point(|(known, _)| *known < key);
                debug_assert!(items[place].0 != key, "a key that waits already");
                items.insert(place, (key, item));
            }
            _ => items.push_back((key, item)),
        }
        if self.oldest.is_none_or(|(oldest, _)| key < oldest) {
            self.oldest = Some((key, priority));
        }
    }

    /// Whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<(i32, K, T)> {
        let (oldest, its_priority) = self.oldest?;
        let class = match self.overtaken < OVERTAKERS {
            true => 0,
            false => self.find(its_priority).expect("the oldest one waits"),
        };
        let Class { priority, items } = &mut self.classes[class];
        let (priority, (key, item)) = (*priority, items.pop_front()?);
        if items.is_empty() {
            let emptied = self.classes.remove(class).items;
            if self.spare.len() < SPARE {
                self.spare.push(emptied);
            }
        }
        if key == oldest {
            self.overtaken = 0;
            let first = |class: &Class<K, T>| Some((class.items.front()?.0, class.priority));
            self.oldest = self.classes.iter().filter_map(first).min_by_key(|(key, _)| *key);
        } else {
            self.overtaken += 1;
        }
        Some((priority, key, item))
    }

    fn find(&self, priority: i32) -> Result<usize, usize> {
        self.classes.binary_search_by_key(&Reverse(priority), |class| Reverse(class.priority))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        /// Whatever is pushed and popped in whatever order, turns follow the rule in words.
        #[test]
        fn turns_follow_the_rule(
            steps in prop::collection::vec(prop_oneof![
                2 => (-2..3_i32, 0..1000_u32).prop_map(Some),
                1 => Just(None),
            ], 1..400),
        ) {
            let (mut queue, mut waiting, mut overtaken) = (Queue::new(), BTreeMap::new(), 0);
            for step in steps {
                if let Some((priority, key)) = step {
                    if let std::collections::btree_map::Entry::Vacant(free) = waiting.entry(key) {
                        free.insert(priority);
                        queue.push(priority, key, key);
                    }
                    continue;
                }
                let oldest = waiting.first_key_value().map(|(key, priority)| (*key, *priority));
                let urgent = waiting.iter().max_by_key(|(key, priority)| {
                    (**priority, std::cmp::Reverse(**key))
                });
                let urgent = urgent.map(|(key, priority)| (*key, *priority));
                let turn = if overtaken < OVERTAKERS { urgent } else { oldest };
                overtaken = if turn == oldest { 0 } else { overtaken + 1 };
                let popped = queue.pop().map(|(priority, key, item)| {
                    assert_eq!(key, item);
                    (key, priority)
                });
                prop_assert_eq!(popped, turn);
                turn.map(|(key, _)| waiting.remove(&key));
                prop_assert_eq!(queue.is_empty(), waiting.is_empty());
            }
        }

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
