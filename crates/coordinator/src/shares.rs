//! How many places the peers of each address take, so that one of them cannot take all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// One address may have this part of all places.
const PARTS: usize = 4;

/// Who takes places: an IPv4 address, an IPv6 network of 64 bits, within which a host has as many
/// addresses as it likes, or the processes of this machine that have no address.
pub type Origin = Option<IpAddr>;

/// Places taken, by origin.
#[derive(Debug)]
pub struct Shares {
    places: usize,
    taken: HashMap<Origin, usize>,
    total: usize,
}

impl Shares {
    /// So many places for all together.
    #[must_use]
    pub fn new(places: usize) -> Shares {
        Shares { places, taken: HashMap::new(), total: 0 }
    }

    /// Whose places a peer takes.
    #[must_use]
    pub fn origin(peer: IpAddr) -> Origin {
        Some(match peer.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// Takes a place, whether there is one or not.
    pub fn take(&mut self, origin: Origin) {
        *self.taken.entry(origin).or_default() += 1;
        self.total += 1;
    }

    /// Gives a place back.
    pub fn give_back(&mut self, origin: Origin) {
        let Some(taken) = self.taken.get_mut(&origin) else { return };
        *taken -= 1;
        self.total -= 1;
        if *taken == 0 {
            self.taken.remove(&origin);
        }
    }

    /// Whether `origin` may take another place.
    #[must_use]
    pub fn has_place_for(&self, origin: Origin) -> bool {
        let taken = self.taken.get(&origin).copied().unwrap_or(0);
        self.total < self.places && taken < self.places / PARTS
    }

    /// The peer that gives up a place when more are taken than there are: the one with most.
    #[must_use]
    pub fn surplus(&self) -> Option<Origin> {
        let (origin, taken) = self.taken.iter().max_by_key(|(_, taken)| **taken)?;
        (self.total > self.places || *taken > self.places / PARTS).then_some(*origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        Shares::origin(text.parse().unwrap())
    }

    #[test]
    fn one_address_gets_a_quarter_and_gets_it_again_when_it_gives_back() {
        let mut shares = Shares::new(16);
        let (greedy, other) = (origin("10.0.0.1"), origin("10.0.0.2"));
        for _ in 0..4 {
            assert!(shares.has_place_for(greedy) && shares.surplus().is_none());
            shares.take(greedy);
        }
        assert!(!shares.has_place_for(greedy) && shares.has_place_for(other));
        shares.take(greedy);
        assert_eq!(shares.surplus(), Some(greedy));
        shares.give_back(greedy);
        shares.give_back(greedy);
        assert!(shares.has_place_for(greedy) && shares.surplus().is_none());
        shares.give_back(other);
        assert!(shares.taken.len() == 1 && shares.total == 3);
    }

    #[test]
    fn all_together_get_no_more_than_there_is_and_the_largest_share_shrinks() {
        let mut shares = Shares::new(16);
        for i in 0..16 {
            shares.take(origin(&format!("10.0.0.{}", i % 5)));
        }
        assert!(!shares.has_place_for(origin("10.0.0.9")));
        shares.take(origin("10.0.0.9"));
        assert_eq!(shares.surplus(), Some(origin("10.0.0.0")));
    }

    #[test]
    fn addresses_that_one_host_can_choose_among_count_as_one() {
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:2"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
    }
}
