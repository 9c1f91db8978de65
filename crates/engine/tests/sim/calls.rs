//! Who may connect to which lane: everyone to all of them, or once there is something for a lane.

use std::collections::HashMap;

use super::*;

/// A worker or helper, and a lane elsewhere.
pub(super) type Key = (usize, usize);

/// Connections that are there or may be made, in an order that follows from what has happened.
#[derive(Default)]
pub(super) struct Calls {
    keys: Vec<Key>,
    places: HashMap<Key, usize>,
}

impl Calls {
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn get(&self, index: usize) -> Key {
        self.keys[index % self.keys.len()]
    }

    pub fn has(&self, key: Key) -> bool {
        self.places.contains_key(&key)
    }

    pub fn insert(&mut self, key: Key) {
        if let Entry::Vacant(place) = self.places.entry(key) {
            place.insert(self.keys.len());
            self.keys.push(key);
        }
    }

    /// Drops those that `keeps` does not name.
    pub fn retain(&mut self, keeps: impl Fn(&Key) -> bool) {
        self.keys.retain(keeps);
        self.places = self.keys.iter().copied().zip(0..).collect();
    }
}

impl World {
    /// Whether a worker that lives, or a helper that passes something on, calls a lane.
    pub(super) fn calls(&self, who: usize, lane: usize) -> bool {
        let is_there = self.living().contains(&who) || self.server_hubs.contains_key(&who);
        is_there && self.callable.has((who, lane))
    }

    /// Notes for which lanes a worker or a helper has something.
    pub(super) fn note_wanted(&mut self, who: usize) {
        while let Some(lane) = self.client(who).next_wanted() {
            if lane.0 != who {
                self.callable.insert((who, lane.0));
            }
        }
    }

    /// A worker or helper begins anew, without connections.
    pub(super) fn forget_calls(&mut self, who: usize) {
        if self.on_demand || who >= self.workers.len() {
            self.callable.retain(|(caller, _)| *caller != who);
        }
    }
}
