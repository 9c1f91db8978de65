//! Tensors in memory of the caller, by address.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sumpter_endpoint::Memory;

/// The memory of one operation on a tensor of the caller's, read and written in place.
pub struct TensorMemory {
    contribution: *const u8,
    result: *mut u8,
    bytes: usize,
    /// Keeps the tensor alive as long as this exists.
    _owner: Box<dyn Any + Send>,
}

// SAFETY: the addresses are plain memory without thread affinity; `new` demands that no other code
// writes to it, or reads the result, while this exists.
unsafe impl Send for TensorMemory {}

/// What keeps the tensor alive of which several memories are parts.
struct SharedOwner(#[allow(dead_code)] Box<dyn Any + Send>);

// SAFETY: no thread has access to what is inside; the one that has the last part drops it, and it
// may move to any thread.
unsafe impl Sync for SharedOwner {}

impl TensorMemory {
    /// Memory at `contribution` (may be null if nothing is contributed) and `result` (may be
    /// null if nothing is received), `bytes` long each; the two may be equal.
    ///
    /// # Safety
    /// Until this is dropped, both ranges must be valid for reads, `result` for writes, and
    /// no other code may write to either; `owner` must keep them alive. Unless equal, the two must
    /// not overlap.
    #[must_use]
    pub unsafe fn new(
        contribution: *const u8,
        result: *mut u8,
        bytes: usize,
        owner: Box<dyn Any + Send>,
    ) -> TensorMemory {
        TensorMemory { contribution, result, bytes, _owner: owner }
    }
}

impl TensorMemory {
    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory of each of these ranges of bytes, which lie one behind the other. The tensor is
    /// kept alive as long as any of them exists.
    ///
    /// # Panics
    /// If a range begins before the end of another, or ends behind the memory.
    #[must_use]
    pub fn split(self, ranges: &[Range<usize>]) -> Vec<TensorMemory> {
        let TensorMemory { contribution, result, bytes, _owner: owner } = self;
        let owner = Arc::new(SharedOwner(owner));
        let mut free = 0;
        let part = |range: &Range<usize>| {
            assert!(free <= range.start && range.start <= range.end && range.end <= bytes);
            free = range.end;
            // An address that is null stays so: there is nothing to contribute, or to receive.
            let start = |is_null: bool| if is_null { 0 } else { range.start };
            TensorMemory {
                contribution: contribution.wrapping_add(start(contribution.is_null())),
                result: result.wrapping_add(start(result.is_null())),
                bytes: range.len(),
                _owner: Box::new(owner.clone()),
            }
        };
        ranges.iter().map(part).collect()
    }

    /// Zeros to contribute, and room for a result that is not read.
    #[must_use]
    pub fn zeros(bytes: usize) -> TensorMemory {
        // Words, so that elements of any type are aligned.
        let mut words = vec![0u64; bytes.div_ceil(8)];
        let address = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words stay where they are when the vector moves; they are owned by the
        // memory itself, and no other code has their address.
        unsafe { TensorMemory::new(address, address, bytes, Box::new(words)) }
    }
}

impl Memory for TensorMemory {
    fn contribution(&self, offset: usize, len: usize) -> &[u8] {
        assert!(!self.contribution.is_null() && offset + len <= self.bytes);
        // SAFETY: in range by the assertion, valid by `new`'s contract; no `&mut` to the same
        // bytes lives at the same time, as `result` borrows self mutably.
        unsafe { std::slice::from_raw_parts(self.contribution.add(offset), len) }
    }

    fn result(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(!self.result.is_null() && offset + len <= self.bytes);
        // SAFETY: as above; `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.result.add(offset), len) }
    }

    fn in_place(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let is_same = std::ptr::eq(self.contribution, self.result);
        is_same.then(|| self.result(offset, len))
    }
}

impl fmt::Debug for TensorMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_memory_are_its_bytes_and_keep_it_alive() {
        let owner = Arc::new(());
        let mut bytes: Vec<u8> = (0..100).collect();
        let address = bytes.as_mut_ptr();
        // SAFETY: the bytes live until the end of the test, which touches them through the parts
        // alone until these are gone.
        let whole = unsafe { TensorMemory::new(address, address, 100, Box::new(owner.clone())) };
        let mut parts = whole.split(&[0..40, 40..64, 64..100]);
        assert_eq!(parts[1].contribution(0, 24), (40..64).collect::<Vec<u8>>());
        parts[2].result(0, 36).fill(7);
        parts.truncate(1);
        assert_eq!((parts[0].contribution(39, 1), Arc::strong_count(&owner)), (&[39][..], 2));
        drop(parts);
        assert_eq!((bytes[63], bytes[64], Arc::strong_count(&owner)), (63, 7, 1));
    }

    #[test]
    fn what_is_null_is_null_in_the_parts_too() {
        let bytes = [1u8; 8];
        // SAFETY: as above, and nothing is received.
        let whole =
            unsafe { TensorMemory::new(bytes.as_ptr(), std::ptr::null_mut(), 8, Box::new(())) };
        let parts = whole.split(&[0..4, 4..8]);
        assert!(parts.iter().all(|part| part.result.is_null() && !part.contribution.is_null()));
    }

    #[test]
    #[should_panic(expected = "free <= range.start")]
    fn parts_do_not_overlap() {
        let _ = TensorMemory::zeros(8).split(&[0..5, 4..8]);
    }
}
