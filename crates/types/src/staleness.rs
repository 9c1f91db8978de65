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

    /// How many rounds every worker must have contributed before one gets the value of `round`.
    #[must_use]
    pub fn awaited(self, round: Round) -> u32 {
        match self {
            Staleness::UNBOUNDED => 0,
            Staleness(bound) => (round.0 + 1).saturating_sub(bound),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_at_most_the_bound_ahead_of_the_slowest() {
        let awaited = |bound| [0, 1, 2, 5].map(|round| Staleness(bound).awaited(Round(round)));
        assert_eq!(awaited(0), [1, 2, 3, 6]);
        assert_eq!(awaited(2), [0, 0, 1, 4]);
        assert_eq!(Staleness::UNBOUNDED.awaited(Round(u32::MAX - 1)), 0);
        assert!(Staleness(0).is_synchronous() && !Staleness(1).is_synchronous());
    }
}
