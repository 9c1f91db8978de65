//! Which event loop of a worker serves which part of a tensor: a function of the tensor alone, so
//! that it is the same on every rank, known before the tensor has a number, and unchanged when the
//! plan changes.

use std::ops::Range;

/// The least that a loop serves of a tensor beside others. Waking a second thread takes some ten
/// microseconds, in which one loop moves about so many bytes.
pub const LEAST_PART_BYTES: u64 = 64 << 10;

/// Parts begin at multiples of this: a page, so that no two loops write to one.
const GRAIN_BYTES: u64 = 4 << 10;

/// A part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopPart {
    /// The loop that serves it.
    pub number: u32,
    /// Elements of the tensor.
    pub elements: Range<u64>,
}

/// Where a tensor may be cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Nowhere.
    Nowhere,
    /// Between any two elements.
    Anywhere,
    /// Behind each so many elements, of which each block is encoded on its own.
    Blocks(u64),
}

/// The parts of a tensor for `loops` loops, one behind the other, each of another loop: equal ones
/// for all loops, or for as many as have [`LEAST_PART_BYTES`] each. A small tensor has one part.
/// The loop of the first part is the one whose `turn` it is.
///
/// ```
/// use sumpter_plan::{Cuts, loop_parts};
///
/// let parts = loop_parts((1 << 20, 4), 2, Cuts::Anywhere, 7);
/// let parts: Vec<_> = parts.into_iter().map(|part| (part.number, part.elements)).collect();
/// assert_eq!(parts, [(1, 0..1 << 19), (0, 1 << 19..1 << 20)]);
/// ```
#[must_use]
pub fn loop_parts(
    (elements, item_bytes): (u64, u64),
    loops: u32,
    cuts: Cuts,
    turn: u64,
) -> Vec<LoopPart> {
    let loops = u64::from(loops.max(1));
    let bytes = elements.saturating_mul(item_bytes);
    let count = match cuts {
        Cuts::Nowhere => 1,
        Cuts::Anywhere | Cuts::Blocks(_) => (bytes / LEAST_PART_BYTES).clamp(1, loops),
    };
    let page = (GRAIN_BYTES / item_bytes.max(1)).max(1);
    let grain = match cuts {
        Cuts::Blocks(elements) => page.next_multiple_of(elements.max(1)),
        Cuts::Nowhere | Cuts::Anywhere => page,
    };
    let end = |part: u64| match part {
        last if last == count => elements,
        part => {
            (u128::from(elements) * u128::from(part) / u128::from(count)) as u64 / grain * grain
        }
    };
    let part = |part: u64| LoopPart {
        number: ((turn % loops + part) % loops) as u32,
        elements: end(part)..end(part + 1),
    };
    (0..count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_tensors_take_turns_and_are_not_cut() {
        let of = |turn| loop_parts((100, 4), 3, Cuts::Anywhere, turn);
        let found: Vec<_> = (0..4).map(of).collect();
        assert!(found.iter().all(|parts| parts.len() == 1 && parts[0].elements == (0..100)));
        assert_eq!(found.iter().map(|parts| parts[0].number).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!(loop_parts((0, 4), 2, Cuts::Anywhere, 1)[0].elements, 0..0);
    }

    #[test]
    fn a_tensor_is_cut_for_as_many_loops_as_have_enough() {
        let count = |bytes| loop_parts((bytes, 1), 4, Cuts::Anywhere, 0).len();
        let sizes = [LEAST_PART_BYTES, 2 * LEAST_PART_BYTES - 1, 2 * LEAST_PART_BYTES, 1 << 30];
        assert_eq!(sizes.map(count), [1, 1, 2, 4]);
        assert_eq!(loop_parts((1 << 30, 1), 4, Cuts::Nowhere, 5).len(), 1);
    }

    proptest! {
        #[test]
        fn the_parts_are_the_tensor_on_different_loops(
            elements in 0u64..1 << 24,
            item in prop::sample::select(vec![1u64, 2, 4, 8, 16]),
            loops in 1u32..=64,
            turn: u64,
        ) {
            let parts = loop_parts((elements, item), loops, Cuts::Anywhere, turn);
            let ends = (parts[0].elements.start, parts.last().unwrap().elements.end);
            prop_assert_eq!(ends, (0, elements));
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[0].elements.end, pair[1].elements.start);
                prop_assert_eq!(pair[1].elements.start * item % GRAIN_BYTES, 0);
            }
            let numbers: BTreeSet<u32> = parts.iter().map(|part| part.number).collect();
            prop_assert_eq!(numbers.len(), parts.len());
            prop_assert!(numbers.iter().all(|number| *number < loops));
            if parts.len() > 1 {
                let bytes = |part: &LoopPart| (part.elements.end - part.elements.start) * item;
                let least = parts.iter().map(bytes).min().unwrap();
                let most = parts.iter().map(bytes).max().unwrap();
                prop_assert!(most - least <= 2 * GRAIN_BYTES, "{} {}", least, most);
                prop_assert!(least >= LEAST_PART_BYTES - GRAIN_BYTES, "{}", least);
            }
        }

        #[test]
        fn blocks_of_elements_are_not_cut(
            elements in 0u64..1 << 24,
            item in prop::sample::select(vec![2u64, 4, 8]),
            loops in 1u32..=64,
            turn: u64,
        ) {
            let anywhere = loop_parts((elements, item), loops, Cuts::Anywhere, turn);
            let parts = loop_parts((elements, item), loops, Cuts::Blocks(1024), turn);
            prop_assert_eq!(parts.len(), anywhere.len());
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[0].elements.end, pair[1].elements.start);
                prop_assert_eq!(pair[1].elements.start % 1024, 0);
                prop_assert_eq!(pair[1].elements.start * item % GRAIN_BYTES, 0);
                prop_assert!(!pair[0].elements.is_empty());
            }
            let ends = (parts[0].elements.start, parts.last().unwrap().elements.end);
            prop_assert_eq!(ends, (0, elements));
            // With elements of up to 4 bytes a page has whole blocks, or is one.
            if item <= 4 {
                prop_assert_eq!(parts, anywhere);
            }
        }
    }
}
