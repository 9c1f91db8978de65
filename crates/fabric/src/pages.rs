//! Memory that begins on a page, and that a peer may write to at any time.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Regions are aligned to so many bytes, and slots in them as well.
pub const PAGE_BYTES: usize = 4096;

/// Zeros at first. No Rust reference to the bytes exists, since a peer may write to them; only
/// copies are made.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory without thread affinity, which this alone owns.
unsafe impl Send for Pages {}

impl Pages {
    /// With memory behind each page, which some networks demand (`FI_MR_ALLOCATED`): of memory that
    /// begins on a page the system's allocator writes the zeros itself.
    pub(crate) fn new(bytes: usize) -> Pages {
        let layout = layout(bytes);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Pages { start, bytes }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn put(&mut self, at: usize, from: &[u8]) {
        assert!(at <= self.bytes && from.len() <= self.bytes - at, "no room");
        // SAFETY: in range by the assertion; nothing else in this process has the address.
        unsafe { self.start.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    pub(crate) fn get(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.bytes && into.len() <= self.bytes - at, "no such bytes");
        // SAFETY: as above. What the peer writes meanwhile makes other bytes of its own stream.
        unsafe {
            self.start.as_ptr().add(at).copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), layout(self.bytes)) };
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), PAGE_BYTES).expect("no region is so large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_they_were_put_and_begin_on_a_page() {
        let mut pages = Pages::new(2 * PAGE_BYTES);
        assert_eq!(pages.start() as usize % PAGE_BYTES, 0);
        pages.put(PAGE_BYTES - 1, &[1, 2, 3]);
        let mut read = [9; 5];
        pages.get(PAGE_BYTES - 2, &mut read);
        assert_eq!((read, pages.len()), ([0, 1, 2, 3, 0], 2 * PAGE_BYTES));
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn what_does_not_fit_is_not_written() {
        Pages::new(8).put(5, &[0; 4]);
    }
}
