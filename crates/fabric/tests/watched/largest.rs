//! The largest allocation of a call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Knows the largest allocation of each thread.
struct Largest;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    LARGEST.with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: everything is passed on to the system's allocator; noting does not allocate, since the
// number is a constant-initialised thread-local without a destructor.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// What `call` returns, and its largest allocation.
pub fn largest<T>(call: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.set(0);
    let result = call();
    (result, LARGEST.get())
}
