//! Buffers that come back: training moves the same tensors for ever, so after the first round
//! nothing needs to be allocated.
//!
//! One lane owns a pool; there is no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::buffer::{ALIGNMENT, AlignedBuf};

/// One free list for each power of two from [`ALIGNMENT`] up that can be addressed.
const CLASSES: usize = (usize::BITS - ALIGNMENT.ilog2()) as usize;

/// Lends [`AlignedBuf`]s and keeps those that are given back, up to a limit.
///
/// Capacities are powers of two, so that a buffer fits every later use of about the same length.
/// The buffer given back last is lent first, because it is the likeliest to be in a cache.
#[derive(Debug)]
pub struct BufferPool {
    free: [Vec<AlignedBuf>; CLASSES],
    kept_bytes: usize,
    /// Of buffers that are kept or lent; one that was lent may be freed without coming back.
    allocated_bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
}

impl BufferPool {
    /// An empty pool that keeps at most `limit_bytes` for reuse. What is lent is not limited.
    #[must_use]
    pub fn new(limit_bytes: usize) -> BufferPool {
        BufferPool {
            free: [const { Vec::new() }; CLASSES],
            kept_bytes: 0,
            allocated_bytes: Arc::default(),
            limit_bytes,
        }
    }

    /// The bytes that a buffer of `len` takes.
    ///
    /// # Panics
    /// If `len` is beyond what can be addressed.
    #[must_use]
    pub fn capacity(len: usize) -> usize {
        let capacity = len.max(ALIGNMENT).checked_next_power_of_two();
        capacity.unwrap_or_else(|| panic!("a buffer of {len} bytes cannot be addressed"))
    }

    /// A buffer of `len` bytes. A reused one holds what was written into it before.
    ///
    /// # Panics
    /// If `len` is beyond what can be addressed.
    #[must_use]
    pub fn take(&mut self, len: usize) -> AlignedBuf {
        let capacity = BufferPool::capacity(len);
        let mut buf = match self.free[class(capacity)].pop() {
            Some(buf) => {
                self.kept_bytes -= capacity;
                buf
            }
            None => AlignedBuf::new(capacity),
        };
        buf.count_in(&self.allocated_bytes);
        buf.set_len(len);
        buf
    }

    /// Takes a buffer back that this pool lent. It is freed if the pool would otherwise keep more
    /// than its limit.
    ///
    /// A buffer from elsewhere is kept too if its capacity is one of the pool's, and else freed.
    pub fn give(&mut self, mut buf: AlignedBuf) {
        let capacity = buf.capacity();
        if capacity < ALIGNMENT || !capacity.is_power_of_two() {
            return;
        }
        if capacity <= self.limit_bytes - self.kept_bytes {
            self.kept_bytes += capacity;
            buf.count_in(&self.allocated_bytes);
            self.free[class(capacity)].push(buf);
        }
    }

    /// Frees all that is kept: for when the lengths in use change and old capacities would fill
    /// the limit.
    pub fn clear(&mut self) {
        for free in &mut self.free {
            free.clear();
        }
        self.kept_bytes = 0;
    }

    /// The memory of the buffers that the pool keeps or has lent, in bytes.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.allocated_bytes.load(Relaxed)
    }
}

fn class(capacity: usize) -> usize {
    (capacity.ilog2() - ALIGNMENT.ilog2()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: usize = usize::MAX;

    #[test]
    fn lends_buffers_that_do_not_overlap() {
        let mut pool = BufferPool::new(NO_LIMIT);
        let mut lent: Vec<_> = (0..64).map(|i| pool.take(1 + i * 777)).collect();
        for (i, buf) in lent.iter_mut().enumerate() {
            assert_eq!(buf.len(), 1 + i * 777);
            assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
            buf.fill(i as u8);
        }
        for (i, buf) in lent.iter().enumerate() {
            assert!(buf.iter().all(|&byte| byte == i as u8));
        }
    }

    #[test]
    fn lends_first_what_came_back_last() {
        let mut pool = BufferPool::new(NO_LIMIT);
        let (first, second) = (pool.take(5000), pool.take(6000));
        let (first_at, second_at) = (first.as_ptr(), second.as_ptr());
        pool.give(first);
        pool.give(second);
        assert_eq!(pool.take(8192).as_ptr(), second_at);
        assert_eq!(pool.take(4097).as_ptr(), first_at);
    }

    #[test]
    fn allocates_nothing_once_every_length_was_used() {
        let mut pool = BufferPool::new(NO_LIMIT);
        let lengths = [0, 1, 4096, 100_000, 1 << 20, 1 << 20];
        let mut bytes = Vec::new();
        for _ in 0..3 {
            let lent: Vec<_> = lengths.iter().map(|&len| pool.take(len)).collect();
            lent.into_iter().for_each(|buf| pool.give(buf));
            bytes.push(pool.allocated_bytes());
        }
        assert_eq!(bytes, [3 * 4096 + 131_072 + 2 * (1 << 20); 3]);
    }

    #[test]
    fn keeps_no_more_than_its_limit() {
        let mut pool = BufferPool::new(3 * 4096);
        let lent: Vec<_> = (0..4).map(|_| pool.take(4096)).collect();
        assert_eq!(pool.allocated_bytes(), 4 * 4096);
        lent.into_iter().for_each(|buf| pool.give(buf));
        assert_eq!(pool.allocated_bytes(), 3 * 4096);
        pool.clear();
        assert_eq!(pool.allocated_bytes(), 0);
    }

    #[test]
    fn a_buffer_that_does_not_come_back_counts_until_it_is_freed() {
        let (mut pool, mut other) = (BufferPool::new(NO_LIMIT), BufferPool::new(NO_LIMIT));
        let (lost, passed_on) = (pool.take(4096), pool.take(8192));
        assert_eq!(pool.allocated_bytes(), 3 * 4096);
        drop(lost);
        assert_eq!(pool.allocated_bytes(), 2 * 4096);
        other.give(passed_on);
        assert_eq!((pool.allocated_bytes(), other.allocated_bytes()), (0, 2 * 4096));
        let lent = other.take(8192);
        drop(other);
        // Its sum is still there.
        drop(lent);
    }

    #[test]
    fn takes_buffers_from_elsewhere() {
        let mut pool = BufferPool::new(NO_LIMIT);
        let fitting = AlignedBuf::new(8192);
        let fitting_at = fitting.as_ptr();
        pool.give(fitting);
        pool.give(AlignedBuf::new(3 * 4096));
        pool.give(AlignedBuf::new(0));
        assert_eq!(pool.allocated_bytes(), 8192);
        assert_eq!(pool.take(5000).as_ptr(), fitting_at);
    }

    #[test]
    #[should_panic(expected = "cannot be addressed")]
    fn refuses_a_length_beyond_the_address_space() {
        let _ = BufferPool::new(NO_LIMIT).take(usize::MAX);
    }
}
