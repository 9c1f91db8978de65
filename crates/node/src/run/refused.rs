//! The operations of a worker that failed because ranks disagree, as it reports them.
//!
//! An operation that fails at once is never pending, so that another rank could wait for it without
//! the coordinator seeing why. Reports say the last ones every time: they survive a coordinator
//! that comes back.

use std::collections::VecDeque;

use sumpter_types::RefusedOp;

/// As many as a report has of pending operations; those of a rank come one call after the other.
const LIMIT: usize = 64;

/// The last ones, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RefusedOps(VecDeque<RefusedOp>);

impl RefusedOps {
    /// An operation on the tensor `name` has failed; without a tag no other rank can be found.
    pub(crate) fn add(&mut self, name: &str, tag: &str) {
        if tag.is_empty() {
            return;
        }
        if self.0.len() == LIMIT {
            self.0.pop_front();
        }
        self.0.push_back(RefusedOp { name: name.to_owned(), tag: tag.to_owned() });
    }

    pub(crate) fn to_vec(&self) -> Vec<RefusedOp> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operations_with_a_tag_are_kept() {
        let mut refused = RefusedOps::default();
        refused.add("contributed zeros", "");
        for call in 0..LIMIT + 3 {
            refused.add("t", &format!("world#{call}|x"));
        }
        let kept = refused.to_vec();
        assert_eq!(kept.len(), LIMIT);
        assert_eq!((&*kept[0].tag, &*kept[LIMIT - 1].tag), ("world#3|x", "world#66|x"));
        assert!(kept.iter().all(|op| op.name == "t"));
    }
}
