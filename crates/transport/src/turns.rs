//! Whose turn it is: connections that can move bytes, each once.

use std::collections::VecDeque;

/// A queue of connections, by index, that holds each at most once: one that asks again while it
/// waits keeps its place, so that nobody gets two turns where others get one.
#[derive(Debug, Default)]
pub struct Turns {
    queue: VecDeque<usize>,
    waiting: Vec<bool>,
}

impl Turns {
    /// `index` wants a turn.
    pub fn ask(&mut self, index: usize) {
        if self.waiting.len() <= index {
            self.waiting.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.waiting[index], true) {
            self.queue.push_back(index);
        }
    }

    /// The next in the queue; its turn begins, and it may ask for another.
    pub fn begin(&mut self) -> Option<usize> {
        let index = self.queue.pop_front()?;
        self.waiting[index] = false;
        Some(index)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_one_turn_however_often_it_asks() {
        let mut turns = Turns::default();
        for index in [3, 1, 3, 0, 1, 3] {
            turns.ask(index);
        }
        assert_eq!(turns.len(), 3);
        assert_eq!(turns.begin(), Some(3));
        turns.ask(3);
        turns.ask(1);
        assert_eq!(std::iter::from_fn(|| turns.begin()).collect::<Vec<_>>(), [1, 0, 3]);
        assert!(turns.is_empty());
    }
}
