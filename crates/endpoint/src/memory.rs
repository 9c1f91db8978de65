//! Where a worker's tensors live.

/// The memory of one operation: what is contributed and where the result goes. The two may be
/// the same bytes: a chunk's result arrives only after its contribution has been summed, so each
/// byte is at every instant either the contribution or the result, never lost.
pub trait Memory {
    /// `len` bytes of the contribution, from `offset`.
    fn contribution(&self, offset: usize, len: usize) -> &[u8];

    /// `len` bytes of the result, from `offset`.
    fn result(&mut self, offset: usize, len: usize) -> &mut [u8];

    /// `len` bytes from `offset` that are the contribution and are to be the result; `None` if the
    /// two are, or may be, in different places.
    fn in_place(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let _ = (offset, len);
        None
    }
}

/// Memory of its own, for tests and simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedMemory {
    /// The contribution, or nothing when it is summed in place.
    pub separate: Option<Vec<u8>>,
    /// The result and, in place, the contribution.
    pub bytes: Vec<u8>,
}

impl Memory for OwnedMemory {
    fn contribution(&self, offset: usize, len: usize) -> &[u8] {
        &self.separate.as_ref().unwrap_or(&self.bytes)[offset..offset + len]
    }

    fn result(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[offset..offset + len]
    }

    fn in_place(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        self.separate.is_none().then(|| self.result(offset, len))
    }
}
