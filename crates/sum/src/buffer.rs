//! Page-aligned bytes, so that what lies in them can be registered with a network interface.
//!
//! Invariant: all `capacity` bytes are initialized, so every length up to it is safe to expose.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The alignment of every [`AlignedBuf`], in bytes: the smallest page of the platforms we run on.
pub const ALIGNMENT: usize = 4096;

/// Carries [`ALIGNMENT`] as a type, for the address of a buffer without bytes.
#[repr(align(4096))]
struct Page;

/// Owned bytes that start at a multiple of [`ALIGNMENT`] and share no page with anything else.
///
/// Zeroed when created. The length can be changed within the capacity, which is fixed.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    /// A sum of capacities that has this one, until the buffer is freed.
    counted: Option<Arc<AtomicUsize>>,
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes; its capacity is `len` rounded up to whole pages. An empty
    /// one allocates nothing.
    ///
    /// # Panics
    /// If `len` is beyond what can be addressed. If memory runs out, as allocation does everywhere.
    #[must_use]
    pub fn new(len: usize) -> AlignedBuf {
        let capacity = len.checked_next_multiple_of(ALIGNMENT);
        let layout = capacity.and_then(|bytes| Layout::from_size_align(bytes, ALIGNMENT).ok());
        let Some(layout) = layout else {
            panic!("a buffer of {len} bytes cannot be addressed");
        };
        if layout.size() == 0 {
            let start = NonNull::<Page>::dangling().cast();
            return AlignedBuf { start, len: 0, capacity: 0, counted: None };
        }
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuf { start, len, capacity: layout.size(), counted: None }
    }

    /// The bytes there is room for: a multiple of [`ALIGNMENT`].
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length. Bytes that come into view hold whatever was written there last.
    ///
    /// # Panics
    /// If `len` is larger than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} exceeds the capacity {}", self.capacity);
        self.len = len;
    }

    /// Has a sum count the capacity until the buffer is freed, wherever that happens; no other sum
    /// counts it from now on.
    pub(crate) fn count_in(&mut self, sum: &Arc<AtomicUsize>) {
        if self.counted.as_ref().is_some_and(|counted| Arc::ptr_eq(counted, sum)) {
            return;
        }
        sum.fetch_add(self.capacity, Relaxed);
        if let Some(before) = self.counted.replace(Arc::clone(sum)) {
            before.fetch_sub(self.capacity, Relaxed);
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(sum) = &self.counted {
            sum.fetch_sub(self.capacity, Relaxed);
        }
        if self.capacity > 0 {
            // SAFETY: `new` allocated with this size and alignment, for which it built a layout.
            unsafe {
                let layout = Layout::from_size_align_unchecked(self.capacity, ALIGNMENT);
                dealloc(self.start.as_ptr(), layout);
            }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` initialized bytes that `self` owns, or none at an aligned
        // address.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Default for AlignedBuf {
    fn default() -> AlignedBuf {
        AlignedBuf::new(0)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

// SAFETY: the buffer owns its bytes alone, and only `&mut self` changes them.
unsafe impl Send for AlignedBuf {}
// SAFETY: as for `Send`.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_as_long_as_asked() {
        for len in [1, 7, 4095, 4096, 4097, 1 << 20] {
            let buf = AlignedBuf::new(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buf.capacity(), len.next_multiple_of(ALIGNMENT));
            assert!(buf.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn can_be_empty() {
        let mut buf = AlignedBuf::default();
        assert!(buf.is_empty());
        assert_eq!(buf.capacity(), 0);
        assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
        buf.set_len(0);
        buf.copy_from_slice(&[]);
    }

    #[test]
    fn keeps_its_bytes_when_the_length_changes() {
        let mut buf = AlignedBuf::new(10);
        buf.fill(7);
        buf.set_len(3);
        assert_eq!(*buf, [7; 3]);
        buf.set_len(4096);
        assert_eq!(buf[..10], [7; 10]);
        assert!(buf[10..].iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "length 4097 exceeds the capacity 4096")]
    fn refuses_a_length_beyond_its_capacity() {
        AlignedBuf::new(1).set_len(4097);
    }

    #[test]
    #[should_panic(expected = "cannot be addressed")]
    fn refuses_a_length_beyond_the_address_space() {
        let _ = AlignedBuf::new(usize::MAX);
    }

    #[test]
    fn moves_between_threads() {
        let mut buf = AlignedBuf::new(8);
        let buf = std::thread::spawn(move || {
            buf.fill(1);
            buf
        });
        assert_eq!(*buf.join().unwrap(), [1; 8]);
    }
}
