//! Tensors in memory of the caller, by address.

use std::any::Any;
use std::fmt;

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
