//! The connections that have not proved themselves yet: no more than a number of them, and of one
//! address a part. A peer that opens more loses its own oldest connection, never another's.

use std::collections::VecDeque;

use sumpter_coordinator::{Origin, Shares};

/// Connections that may be in their handshake at once.
const AT_ONCE: usize = 256;

#[derive(Debug)]
pub(crate) struct Greeting {
    shares: Shares,
    /// By age, the oldest first.
    queue: VecDeque<(usize, Origin)>,
}

impl Default for Greeting {
    fn default() -> Greeting {
        Greeting { shares: Shares::new(AT_ONCE), queue: VecDeque::new() }
    }
}

impl Greeting {
    pub(crate) fn begin(&mut self, index: usize, origin: Origin) {
        self.shares.take(origin);
        self.queue.push_back((index, origin));
    }

    /// It has proved itself, or is gone.
    pub(crate) fn end(&mut self, index: usize) {
        let at = self.queue.iter().position(|(i, _)| *i == index);
        if let Some((_, origin)) = at.and_then(|at| self.queue.remove(at)) {
            self.shares.give_back(origin);
        }
    }

    /// One that has to go, if there are too many.
    pub(crate) fn surplus(&self) -> Option<usize> {
        let origin = self.shares.surplus()?;
        self.queue.iter().find(|(_, from)| *from == origin).map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_opens_too_many_loses_its_oldest_and_the_others_stay() {
        let mut greeting = Greeting::default();
        let polite = Shares::origin([10, 0, 0, 1].into());
        let greedy = Shares::origin([10, 0, 0, 2].into());
        greeting.begin(0, polite);
        let mut dropped = Vec::new();
        for index in 1..1000 {
            greeting.begin(index, greedy);
            while let Some(surplus) = greeting.surplus() {
                dropped.push(surplus);
                greeting.end(surplus);
            }
        }
        assert_eq!(dropped, (1..1000 - AT_ONCE / 4).collect::<Vec<_>>());
        assert_eq!(greeting.queue.len(), 1 + AT_ONCE / 4);
        assert_eq!(greeting.queue[0], (0, polite));
    }
}
