//! Whose turn it is: connections that can move bytes, each once, and fairly by whom they serve.
//!
//! A connection belongs to a *party* (a job), which has a weight. Parties take turns by deficit
//! round robin: when a party comes up it may move [`QUANTUM_BYTES`] times its weight, its
//! connections in turn; what a turn moved is charged afterwards, so a party may overdraw by one
//! turn, which it pays back before it comes up again. A party alone is never held back. So a
//! party's share of the bytes follows its weight, however many connections it has. Each turn costs
//! a little ([`TURN_COST_BYTES`]) even if it moves nothing: a connection that must be polled asks
//! for one turn after the other, and its party would stay up for good.

use std::collections::VecDeque;

use sumpter_endpoint::TURN_BYTES;

/// What a party of weight 1 may move when it comes up: one turn of a busy connection.
const QUANTUM_BYTES: i64 = TURN_BYTES as i64;

/// What a turn costs beside the bytes that it moves: about its system calls, and little beside a
/// full one.
const TURN_COST_BYTES: i64 = QUANTUM_BYTES / 64;

/// The party of connections without one of their own.
const NOBODY: usize = 0;

/// A queue of connections, by index, that holds each at most once: one that asks again while it
/// waits keeps its place, so that no connection gets two turns where others get one.
#[derive(Debug)]
pub struct Turns {
    connections: Vec<Connection>,
    parties: Vec<Party>,
    /// Parties of whom a connection waits, and the one whose turn was last; the first is up.
    order: VecDeque<usize>,
    waiting: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    party: usize,
    waits: bool,
}

#[derive(Debug)]
struct Party {
    key: u64,
    weight: i64,
    /// Bytes it may still move while it is up; below 0 what it has overdrawn.
    deficit: i64,
    queue: VecDeque<usize>,
    /// Connections that are assigned to it.
    members: usize,
    /// Whether it is in the order.
    listed: bool,
}

impl Default for Turns {
    fn default() -> Self {
        // The first party is for connections without one of their own, and never goes.
        let parties = vec![Party::new(0, 1)];
        Turns { connections: Vec::new(), parties, order: VecDeque::new(), waiting: 0 }
    }
}

impl Party {
    fn new(key: u64, weight: u32) -> Party {
        let weight = i64::from(weight.max(1));
        Party { key, weight, deficit: 0, queue: VecDeque::new(), members: 0, listed: false }
    }

    fn quantum(&self) -> i64 {
        QUANTUM_BYTES * self.weight
    }
}

impl Turns {
    /// `index` belongs to the party `key`, of this weight, from now on.
    pub fn assign(&mut self, index: usize, key: u64, weight: u32) {
        self.release(index);
        let known = |(at, p): (usize, &Party)| at != NOBODY && p.members > 0 && p.key == key;
        let found = self.parties.iter().enumerate().position(known);
        // Whose last turns are still queued keeps its place until they are through.
        let unused = |(at, p): (usize, &Party)| at != NOBODY && p.members == 0 && !p.listed;
        let at = found.unwrap_or_else(|| match self.parties.iter().enumerate().position(unused) {
            Some(free) => {
                self.parties[free] = Party::new(key, weight);
                free
            }
            None => {
                self.parties.push(Party::new(key, weight));
                self.parties.len() - 1
            }
        });
        self.parties[at].weight = i64::from(weight.max(1));
        self.parties[at].members += 1;
        self.connections[index].party = at;
    }

    /// `index` belongs to no connection from now on. Returns whether it belonged to a party.
    pub fn release(&mut self, index: usize) -> bool {
        self.reach(index);
        let party = std::mem::replace(&mut self.connections[index].party, NOBODY);
        if party != NOBODY {
            self.parties[party].members -= 1;
        }
        party != NOBODY
    }

    /// Each connection that belongs to a party, and its part of what all parties share by weight,
    /// the connections of a party alike: all parts together are 1. `None` for who shares nothing,
    /// because its party is alone.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Option<f64>)> {
        let present = || self.parties.iter().filter(|party| party.members > 0);
        let weights: i64 = present().map(|party| party.weight).sum();
        let alone = present().count() < 2;
        self.connections.iter().enumerate().filter(|(_, c)| c.party != NOBODY).map(
            move |(at, c)| {
                let Party { weight, members, .. } = self.parties[c.party];
                (at, (!alone).then(|| weight as f64 / weights as f64 / members as f64))
            },
        )
    }

    /// `index` wants a turn.
    pub fn ask(&mut self, index: usize) {
        self.reach(index);
        let Connection { party: at, waits } = &mut self.connections[index];
        if std::mem::replace(waits, true) {
            return;
        }
        let party = &mut self.parties[*at];
        if !std::mem::replace(&mut party.listed, true) {
            // What it did not use while it was up is gone, what it overdrew is not.
            party.deficit = party.deficit.min(0) + party.quantum();
            self.order.push_back(*at);
        }
        party.queue.push_back(index);
        self.waiting += 1;
    }

    /// The next whose turn it is; its turn begins, and it may ask for another.
    pub fn begin(&mut self) -> Option<usize> {
        loop {
            let up = *self.order.front()?;
            let alone = self.order.len() == 1;
            let party = &mut self.parties[up];
            if party.queue.is_empty() {
                party.listed = false;
                self.order.pop_front();
                continue;
            }
            if party.deficit <= 0 {
                party.deficit += party.quantum();
                if alone {
                    // No other party waits while it pays back.
                    party.deficit = party.deficit.max(1);
                }
                self.order.rotate_left(1);
                continue;
            }
            // It stays up, for it may ask again while this turn lasts.
            let index = party.queue.pop_front()?;
            party.deficit -= TURN_COST_BYTES;
            self.connections[index].waits = false;
            self.waiting -= 1;
            return Some(index);
        }
    }

    /// `index` has moved so many bytes, in its turn or out of it.
    pub fn charge(&mut self, index: usize, bytes: usize) {
        let party = self.connections.get(index).map_or(NOBODY, |connection| connection.party);
        let deficit = &mut self.parties[party].deficit;
        *deficit = deficit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether no connection waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn reach(&mut self, index: usize) {
        if self.connections.len() <= index {
            self.connections.resize(index + 1, Connection::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn a_connection_that_polls_in_vain_starves_no_other_party() {
        let mut turns = Turns::default();
        turns.assign(0, 7, 4);
        (0..2).for_each(|index| turns.ask(index));
        // The first asks again within each of its turns, and moves nothing.
        let turns_until_the_other = std::iter::from_fn(|| turns.begin().inspect(|i| turns.ask(*i)));
        let polls = turns_until_the_other.take(1000).take_while(|index| *index == 0).count();
        assert!(polls < 1000, "the other had no turn");
    }

    #[test]
    fn a_party_that_goes_and_one_that_comes_do_not_mix() {
        let mut turns = Turns::default();
        turns.assign(0, 7, 1);
        turns.ask(0);
        turns.release(0);
        // Its turn is still queued when the connection belongs to another.
        turns.assign(0, 8, 3);
        turns.ask(0);
        assert_eq!(turns.len(), 1);
        assert_eq!(turns.begin(), Some(0));
        turns.charge(0, 1 << 30);
        turns.assign(1, 7, 1);
        turns.ask(1);
        turns.ask(0);
        assert_eq!([turns.begin(), turns.begin(), turns.begin()], [Some(1), Some(0), None]);
    }

    /// Parties with so many busy connections each; what each moves until `total` bytes are moved
    /// when a turn of party `p` moves `moved(p)`. What a turn costs counts as moved.
    fn share(
        parties: &[(u32, usize)],
        mut moved: impl FnMut(usize) -> usize,
        total: usize,
    ) -> Vec<usize> {
        let mut turns = Turns::default();
        let mut owner = Vec::new();
        for (party, (weight, connections)) in parties.iter().enumerate() {
            for _ in 0..*connections {
                turns.assign(owner.len(), party as u64, *weight);
                owner.push(party);
            }
        }
        (0..owner.len()).for_each(|index| turns.ask(index));
        let mut shares = vec![0; parties.len()];
        while shares.iter().sum::<usize>() < total {
            let index = turns.begin().expect("a connection waits");
            let bytes = moved(owner[index]);
            shares[owner[index]] += bytes + TURN_COST_BYTES as usize;
            turns.charge(index, bytes);
            turns.ask(index);
        }
        shares
    }

    proptest! {
        #[test]
        fn busy_parties_share_by_weight_whatever_their_connections_and_turns(
            parties in prop::collection::vec((1u32..5, 1usize..40), 2..6),
            sizes in prop::collection::vec(1usize..2 * TURN_BYTES, 1..50),
        ) {
            let largest = *sizes.iter().max().unwrap();
            let mut sizes = sizes.iter().copied().cycle();
            let weights: u32 = parties.iter().map(|(weight, _)| weight).sum();
            let total = 200 * TURN_BYTES * weights as usize;
            let shares = share(&parties, |_| sizes.next().unwrap(), total);
            for ((weight, _), share) in parties.iter().zip(&shares) {
                let fair = total as f64 * f64::from(*weight) / f64::from(weights);
                // One time of being up, and one turn, more or less than anyone else had.
                let slack = f64::from(*weight + weights) * TURN_BYTES as f64 + 2.0 * largest as f64;
                prop_assert!((*share as f64 - fair).abs() <= slack, "{parties:?}: {shares:?}");
            }
        }

        #[test]
        fn connections_that_wait_get_a_turn_and_no_others(
            steps in prop::collection::vec((0usize..12, 0usize..8, 0usize..1 << 22), 1..300),
        ) {
            let mut turns = Turns::default();
            let mut waiting = std::collections::BTreeSet::new();
            for (step, index, bytes) in steps {
                match step {
                    0 | 1 => turns.assign(index, (bytes % 3) as u64, 1 + (bytes % 4) as u32),
                    2 => drop(turns.release(index)),
                    3..=6 => {
                        turns.ask(index);
                        waiting.insert(index);
                    }
                    7 | 8 => turns.charge(index, bytes),
                    _ => match turns.begin() {
                        Some(index) => prop_assert!(waiting.remove(&index)),
                        None => prop_assert!(waiting.is_empty()),
                    },
                }
                prop_assert_eq!(turns.len(), waiting.len());
            }
            while let Some(index) = turns.begin() {
                prop_assert!(waiting.remove(&index));
            }
            prop_assert!(waiting.is_empty());
        }
    }

    #[test]
    fn parts_follow_weights_not_connections() {
        let mut turns = Turns::default();
        turns.assign(0, 7, 1);
        turns.ask(5);
        assert_eq!(turns.parts().collect::<Vec<_>>(), [(0, None)]);
        turns.assign(1, 8, 3);
        turns.assign(2, 8, 3);
        let parts = [(0, Some(0.25)), (1, Some(0.375)), (2, Some(0.375))];
        assert_eq!(turns.parts().collect::<Vec<_>>(), parts);
        assert!(turns.release(1) && turns.release(2) && !turns.release(2));
        assert_eq!(turns.parts().collect::<Vec<_>>(), [(0, None)]);
    }

    #[test]
    fn a_party_with_one_connection_is_not_outnumbered() {
        let shares = share(&[(1, 50), (1, 1)], |_| TURN_BYTES, 1000 * TURN_BYTES);
        assert!(shares[0].abs_diff(shares[1]) <= 2 * TURN_BYTES, "{shares:?}");
    }

    #[test]
    fn a_party_that_overdraws_pays_back() {
        // Each turn of the first moves eight times as much as one of the second.
        let moved = |party| if party == 0 { 8 * TURN_BYTES } else { TURN_BYTES };
        let shares = share(&[(1, 1), (1, 1)], moved, 1600 * TURN_BYTES);
        assert!(shares[0].abs_diff(shares[1]) <= 16 * TURN_BYTES, "{shares:?}");
    }
}
