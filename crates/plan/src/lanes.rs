//! Spreads partitions over the lanes of a server, by longest processing time first (LPT): the
//! largest partition goes first, each to the lane with the least so far.
//!
//! Bounds, with `m` lanes: from empty lanes, the fullest lane holds at most `4/3 - 1/(3m)` times
//! what the best possible assignment would leave on its fullest lane (Graham, 1969; PHub,
//! SoCC'18, uses the same rule for its cores). On top of existing loads, no two lanes ever differ
//! by more than the largest partition assigned.
//!
//! Invariant: ties go to the earlier partition and the lower lane, so that the outcome is a
//! function of the sizes alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The lane of each partition, from empty lanes. No lanes count as one.
///
/// ```
/// use sumpter_plan::lpt;
///
/// // 7 | 4 + 3 | 5 + 2: every lane holds 7 bytes.
/// assert_eq!(lpt(&[2, 3, 4, 5, 7], 3), [1, 2, 2, 1, 0]);
/// ```
#[must_use]
pub fn lpt(sizes: &[u64], lanes: usize) -> Vec<usize> {
    LaneAssigner::new(lanes).assign(sizes)
}

/// The lanes of one server and the bytes each has been given.
///
/// ```
/// use sumpter_plan::LaneAssigner;
///
/// let mut lanes = LaneAssigner::new(2);
/// assert_eq!(lanes.assign(&[1, 6]), [1, 0]);
/// assert_eq!(lanes.assign(&[2, 3]), [1, 1]); // Lane 0 is still the fuller one.
/// assert_eq!(lanes.loads(), [6, 6]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneAssigner {
    loads: Vec<u128>,
}

impl LaneAssigner {
    /// Empty lanes; no lanes count as one.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self { loads: vec![0; lanes.max(1)] }
    }

    /// Assigns a set of partitions on top of what the lanes have, and returns the lane of each.
    pub fn assign(&mut self, sizes: &[u64]) -> Vec<usize> {
        let mut largest_first: Vec<usize> = (0..sizes.len()).collect();
        largest_first.sort_by_key(|&index| Reverse(sizes[index]));
        let lanes = self.loads.iter().enumerate();
        let mut least_first: BinaryHeap<_> =
            lanes.map(|(lane, &load)| Reverse((load, lane))).collect();

        let mut assigned = vec![0; sizes.len()];
        for index in largest_first {
            // There is at least one lane, and every one taken out is put back.
            if let Some(mut least) = least_first.peek_mut() {
                let Reverse((load, lane)) = &mut *least;
                *load += u128::from(sizes[index]);
                self.loads[*lane] = *load;
                assigned[index] = *lane;
            }
        }
        assigned
    }

    /// Bytes given to each lane so far.
    #[must_use]
    pub fn loads(&self) -> &[u128] {
        &self.loads
    }
}
