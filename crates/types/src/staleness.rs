//! How far the workers that change a variable may run apart.

use crate::ids::Round;

/// By how many rounds a worker may be ahead of the slowest one that changes the same variable: the
/// bound of the stale-synchronous parallel model.
///
/// 0 is a synchronous variable: all gradients of a round are added before it changes, and all
/// workers get the same value. Above 0, each worker's contribution changes the variable when it
/// arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Staleness(pub u32);

impl Staleness {
    /// All workers change the variable together.
    pub const SYNCHRONOUS: Staleness = Staleness(0);
    /// No worker waits for another.
    pub const UNBOUNDED: Staleness = Staleness(u32::MAX);

    /// Whether all workers change the variable together.
    #[must_use]
    pub fn is_synchronous(self) -> bool {
        self == Staleness::SYNCHRONOUS
    }

    /// How many rounds, modulo 2^32, every worker must have contributed before one gets the value
    /// of `round`; none if it waits for no other. A bound of 2^31 or more is none, since numbers of
    /// rounds are compared by the sign of their difference.
    #[must_use]
    pub fn awaited(self, round: Round) -> Option<u32> {
        let is_bound = self.0 <= i32::MAX.cast_unsigned();
        is_bound.then(|| round.0.wrapping_add(1).wrapping_sub(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_at_most_the_bound_ahead_of_the_slowest() {
        let awaited = |bound, round| Staleness(bound).awaited(Round(round));
        assert_eq!([0, 1, 5].map(|round| awaited(0, round)), [1, 2, 6].map(Some));
        assert_eq!([1, 2, 5].map(|round| awaited(2, round)), [0, 1, 4].map(Some));
        assert_eq!(
            [0, u32::MAX].map(|round| awaited(2, round)),
            [u32::MAX, u32::MAX - 1].map(Some)
        );
        assert_eq!(awaited(i32::MAX.cast_unsigned(), 0), Some(1 << 31 | 2));
        assert_eq!(awaited(1 << 31, 0), None);
        assert_eq!(Staleness::UNBOUNDED.awaited(Round(u32::MAX)), None);
        assert!(Staleness(0).is_synchronous() && !Staleness(1).is_synchronous());
    }
}
