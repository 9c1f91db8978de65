//! Spreads partitions over the network interfaces of a server, then over the lanes of each, by
//! longest processing time first (LPT): the largest partition goes first, each to the interface
//! that would have moved it the earliest, there to the lane with the least so far.
//!
//! Bounds, with `m` lanes of one interface: from empty lanes, the fullest lane holds at most
//! `4/3 - 1/(3m)` times what the best possible assignment would leave on its fullest lane (Graham,
//! 1969; PHub, SoCC'18, uses the same rule for its interfaces and cores). On top of existing loads,
//! no two lanes of an interface ever differ by more than the largest partition assigned. The time
//! of the interface that is done last exceeds an even one by at most that of `i - 1` of the largest
//! partitions over the bandwidth of all `i` interfaces.
//!
//! Invariant: ties go to the earlier partition, the lower interface and the lower lane, so that the
//! outcome is a function of the sizes alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The lane of each partition, from empty lanes of one interface. No lanes count as one.
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

/// The interfaces that each lane of a process belongs to, where `bandwidths` are those of its
/// interfaces in any unit; an interface of none counts as one of 1.
///
/// With at least as many lanes as interfaces, each lane belongs to one: the first lanes to one
/// each, every further lane to the interface with the most bandwidth for each of its lanes. With
/// fewer, each interface belongs to one lane, by LPT, so that none is left out.
///
/// ```
/// use sumpter_plan::lane_interfaces;
///
/// assert_eq!(lane_interfaces(4, &[25, 25]), [[0], [1], [0], [1]]);
/// assert_eq!(lane_interfaces(5, &[100, 25]), [[0], [1], [0], [0], [0]]);
/// assert_eq!(lane_interfaces(1, &[25, 25]), [[0, 1]]);
/// ```
#[must_use]
pub fn lane_interfaces(lanes: usize, bandwidths: &[u32]) -> Vec<Vec<usize>> {
    let bandwidth = |interface: usize| u64::from(bandwidths[interface].max(1));
    let (lanes, interfaces) = (lanes.max(1), bandwidths.len());
    if lanes < interfaces {
        let mut of = vec![Vec::new(); lanes];
        let weights: Vec<u64> = (0..interfaces).map(bandwidth).collect();
        for (interface, lane) in lpt(&weights, lanes).into_iter().enumerate() {
            of[lane].push(interface);
        }
        return of;
    }
    let mut counts = vec![0_u64; interfaces];
    let mut next = |lane: usize| {
        // a / (x + 1) > b / (y + 1), in integers; the first of equals.
        let more =
            |a: usize, b: usize| bandwidth(a) * (counts[b] + 1) > bandwidth(b) * (counts[a] + 1);
        let best =
            (0..interfaces).reduce(|best, other| if more(other, best) { other } else { best });
        let interface = if lane < interfaces { Some(lane) } else { best };
        interface.inspect(|interface| counts[*interface] += 1)
    };
    (0..lanes).map(|lane| next(lane).into_iter().collect()).collect()
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
    interfaces: Vec<Interface>,
}

/// An interface, the lanes that belong to it, and the bytes that they have been given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    bandwidth: u128,
    load: u128,
    lanes: Vec<usize>,
}

impl LaneAssigner {
    /// Empty lanes of one interface; no lanes count as one.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self::over(&vec![(0, 1); lanes.max(1)])
    }

    /// Empty lanes, each with the number of its interface and that interface's bandwidth in any
    /// unit; a bandwidth of zero counts as 1. No lanes count as one.
    ///
    /// ```
    /// use sumpter_plan::LaneAssigner;
    ///
    /// // Two lanes at an interface of 10 Gb/s, one at an interface of 20 Gb/s.
    /// let mut lanes = LaneAssigner::over(&[(0, 10), (0, 10), (1, 20)]);
    /// assert_eq!(lanes.assign(&[1; 6]), [2, 0, 2, 2, 1, 2]);
    /// assert_eq!(lanes.loads(), [1, 1, 4]);
    /// ```
    #[must_use]
    pub fn over(lanes: &[(usize, u32)]) -> Self {
        let lanes = if lanes.is_empty() { &[(0, 1)][..] } else { lanes };
        let mut numbers: Vec<usize> = lanes.iter().map(|(interface, _)| *interface).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let of = |number: usize| {
            let own = |lane: &usize| lanes[*lane].0 == number;
            let lanes_of: Vec<usize> = (0..lanes.len()).filter(own).collect();
            let bandwidth = lanes_of.first().map_or(1, |lane| lanes[*lane].1.max(1));
            Interface { bandwidth: u128::from(bandwidth), load: 0, lanes: lanes_of }
        };
        Self { loads: vec![0; lanes.len()], interfaces: numbers.into_iter().map(of).collect() }
    }

    /// Assigns a set of partitions on top of what the lanes have, and returns the lane of each.
    pub fn assign(&mut self, sizes: &[u64]) -> Vec<usize> {
        let mut largest_first: Vec<usize> = (0..sizes.len()).collect();
        largest_first.sort_by_key(|&index| Reverse(sizes[index]));
        let heap = |interface: &Interface| -> BinaryHeap<_> {
            interface.lanes.iter().map(|&lane| Reverse((self.loads[lane], lane))).collect()
        };
        let mut least_first: Vec<_> = self.interfaces.iter().map(heap).collect();

        let mut assigned = vec![0; sizes.len()];
        for index in largest_first {
            let size = u128::from(sizes[index]);
            let number = self.earliest(size);
            self.interfaces[number].load += size;
            // Every interface has at least one lane, and every one taken out is put back.
            if let Some(mut least) = least_first[number].peek_mut() {
                let Reverse((load, lane)) = &mut *least;
                *load += size;
                self.loads[*lane] = *load;
                assigned[index] = *lane;
            }
        }
        assigned
    }

    /// The interface that would be the first to have moved another partition.
    fn earliest(&self, size: u128) -> usize {
        let sooner = |a: &Interface, b: &Interface| {
            (a.load + size) * b.bandwidth < (b.load + size) * a.bandwidth
        };
        let numbers = 1..self.interfaces.len();
        numbers.fold(0, |best, other| {
            if sooner(&self.interfaces[other], &self.interfaces[best]) { other } else { best }
        })
    }

    /// Bytes given to each lane so far.
    #[must_use]
    pub fn loads(&self) -> &[u128] {
        &self.loads
    }
}
