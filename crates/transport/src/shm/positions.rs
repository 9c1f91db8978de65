//! Who may touch which bytes of a ring, and who must be woken: the protocol without the bytes.
//!
//! One side writes, one reads; each has its own position, a count of bytes since the beginning
//! that only it stores. What the other side stores is not trusted: it may be a different build,
//! broken or hostile, so every value that is loaded must lie between what was loaded before and
//! what it can be by now.
//!
//! Only a sleeping side is woken. A side that is about to sleep raises its flag, then looks
//! once more; the other side moves its position, then looks at the flag. A sequentially
//! consistent fence between the two steps of each makes sure that at least one of them sees the
//! other. The side that sees a flag lowers it and rings, so a sleep costs one wake-up.
//! `tests/loom.rs` tries all interleavings.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A value on cache lines of its own: processors fetch lines in pairs of 64 bytes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line<T>(T);

/// What the two sides of a ring share beside its bytes.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Positions {
    /// Bytes written since the beginning; stored by the writer.
    tail: Line<AtomicU64>,
    /// Bytes read since the beginning; stored by the reader.
    head: Line<AtomicU64>,
    /// Not 0 while the reader sleeps until there are bytes.
    reader_sleeps: Line<AtomicU32>,
    /// Not 0 while the writer sleeps until there is room.
    writer_sleeps: Line<AtomicU32>,
    /// Not 0 once the writer writes no more.
    finished: Line<AtomicU32>,
}

/// The other side stored something that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Insane;

/// Whether the other side sleeps and must be rung.
pub(super) type MustRing = bool;

impl Positions {
    /// What the side that makes the ring writes first. Both readers begin as sleepers, so the
    /// first bytes ring even for a driver that waits for an event before it looks.
    pub(super) fn begin(&self) {
        self.reader_sleeps.0.store(1, Ordering::Release);
    }
}

/// The writing side of a ring.
#[derive(Debug)]
pub(super) struct Writer {
    capacity: u64,
    /// Where the next byte goes; ahead of `tail` by what is not published yet.
    staged: u64,
    tail: u64,
    /// The reader's position, as last seen.
    head: u64,
}

impl Writer {
    pub(super) fn new(capacity: u64) -> Writer {
        Writer { capacity, staged: 0, tail: 0, head: 0 }
    }

    /// Where the next byte goes.
    pub(super) fn position(&self) -> u64 {
        self.staged
    }

    /// Bytes staged but not published.
    pub(super) fn unpublished(&self) -> u64 {
        self.staged - self.tail
    }

    /// Bytes that may be written; looks at the reader's position only if they seem fewer than
    /// `wanted`, as that line is mostly in the other core's cache.
    pub(super) fn room(&mut self, shared: &Positions, wanted: u64) -> Result<u64, Insane> {
        if self.free() < wanted {
            let head = shared.head.0.load(Ordering::Acquire);
            if head < self.head || head > self.tail {
                return Err(Insane);
            }
            self.head = head;
        }
        Ok(self.free())
    }

    /// Takes note of `bytes` written after those staged before.
    pub(super) fn stage(&mut self, bytes: u64) {
        self.staged += bytes;
        debug_assert!(self.staged - self.head <= self.capacity);
    }

    /// Lets the reader see what is staged.
    pub(super) fn publish(&mut self, shared: &Positions) -> MustRing {
        self.tail = self.staged;
        shared.tail.0.store(self.tail, Ordering::Release);
        wake(&shared.reader_sleeps.0, || true)
    }

    /// Says that nothing more will be written.
    pub(super) fn finish(&self, shared: &Positions) -> MustRing {
        shared.finished.0.store(1, Ordering::Release);
        wake(&shared.reader_sleeps.0, || true)
    }

    /// Prepares to sleep until there is [`enough`] room; false if there is by now. The room that
    /// is less than that is left alone: the bytes that fill the rest will be read, and then the
    /// reader rings.
    pub(super) fn sleeps(&mut self, shared: &Positions) -> Result<bool, Insane> {
        shared.writer_sleeps.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.room(shared, self.capacity)? < enough(self.capacity) {
            return Ok(true);
        }
        shared.writer_sleeps.0.store(0, Ordering::Relaxed);
        Ok(false)
    }

    fn free(&self) -> u64 {
        self.capacity - (self.staged - self.head)
    }
}

/// The reading side of a ring.
#[derive(Debug)]
pub(super) struct Reader {
    capacity: u64,
    /// Where the next byte is; ahead of `head` by what is not released yet.
    staged: u64,
    head: u64,
    /// The writer's position, as last seen.
    tail: u64,
}

impl Reader {
    pub(super) fn new(capacity: u64) -> Reader {
        Reader { capacity, staged: 0, head: 0, tail: 0 }
    }

    /// Where the next byte is.
    pub(super) fn position(&self) -> u64 {
        self.staged
    }

    /// Bytes staged but not released.
    pub(super) fn unreleased(&self) -> u64 {
        self.staged - self.head
    }

    /// Bytes that may be read; looks at the writer's position only if they seem fewer than
    /// `wanted`.
    pub(super) fn available(&mut self, shared: &Positions, wanted: u64) -> Result<u64, Insane> {
        if self.tail - self.staged < wanted {
            let tail = shared.tail.0.load(Ordering::Acquire);
            if tail < self.tail || tail - self.head > self.capacity {
                return Err(Insane);
            }
            self.tail = tail;
        }
        Ok(self.tail - self.staged)
    }

    /// Takes note of `bytes` read after those staged before.
    pub(super) fn stage(&mut self, bytes: u64) {
        self.staged += bytes;
        debug_assert!(self.staged <= self.tail);
    }

    /// Gives the room of what is staged back to the writer. A writer that sleeps is rung once
    /// there is [`enough`] room, not for each piece.
    pub(super) fn release(&mut self, shared: &Positions) -> MustRing {
        self.head = self.staged;
        shared.head.0.store(self.head, Ordering::Release);
        wake(&shared.writer_sleeps.0, || {
            // A tail that cannot be counts as an empty ring: ringing too much does no harm, and
            // the next look at it ends the connection.
            let tail = shared.tail.0.load(Ordering::Acquire);
            let used = tail.saturating_sub(self.head).min(self.capacity);
            self.capacity - used >= enough(self.capacity)
        })
    }

    /// Whether the writer has said that it writes no more. Bytes before the end are seen by a
    /// look at the ring that comes after this.
    pub(super) fn is_finished(shared: &Positions) -> bool {
        shared.finished.0.load(Ordering::Acquire) != 0
    }

    /// Prepares to sleep until there are bytes or the end; false if there are by now.
    pub(super) fn sleeps(&mut self, shared: &Positions) -> Result<bool, Insane> {
        shared.reader_sleeps.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.available(shared, 1)? == 0 && !Reader::is_finished(shared) {
            return Ok(true);
        }
        shared.reader_sleeps.0.store(0, Ordering::Relaxed);
        Ok(false)
    }
}

/// Room for which a writer is woken: half the ring, so that the two sides take turns of a size
/// that a wake-up is small against, and the writer is back before the reader runs dry.
fn enough(capacity: u64) -> u64 {
    capacity / 2
}

/// Lowers the flag of a side that sleeps and that `now` is worth waking.
fn wake(sleeps: &AtomicU32, now: impl FnOnce() -> bool) -> MustRing {
    fence(Ordering::SeqCst);
    let must = sleeps.load(Ordering::Relaxed) != 0 && now();
    if must {
        // A side that raises it again meanwhile has one spurious wake-up, by the ring that follows.
        sleeps.store(0, Ordering::Relaxed);
    }
    must
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_peer_is_not_rung() {
        let (shared, mut writer) = (Positions::default(), Writer::new(4));
        let mut reader = Reader::new(4);
        writer.stage(1);
        assert!(!writer.publish(&shared));
        assert_eq!(reader.available(&shared, 1), Ok(1));
        reader.stage(1);
        assert!(!reader.release(&shared));
    }

    #[test]
    fn a_sleeper_is_rung_once() {
        let (shared, mut writer) = (Positions::default(), Writer::new(4));
        assert_eq!(Reader::new(4).sleeps(&shared), Ok(true));
        for expected in [true, false] {
            writer.stage(1);
            assert_eq!(writer.publish(&shared), expected);
        }
    }

    #[test]
    fn a_reader_does_not_sleep_over_bytes_or_the_end() {
        let (shared, mut writer, mut reader) =
            (Positions::default(), Writer::new(4), Reader::new(4));
        writer.stage(1);
        writer.publish(&shared);
        assert_eq!(reader.sleeps(&shared), Ok(false));
        reader.stage(1);
        assert_eq!(reader.sleeps(&shared), Ok(true));
        assert!(writer.finish(&shared));
        assert_eq!(reader.sleeps(&shared), Ok(false));
    }

    #[test]
    fn a_writer_is_rung_when_half_the_ring_is_free() {
        let (shared, mut writer, mut reader) =
            (Positions::default(), Writer::new(4), Reader::new(4));
        writer.stage(4);
        writer.publish(&shared);
        assert_eq!(writer.sleeps(&shared), Ok(true));
        assert_eq!(reader.available(&shared, 1), Ok(4));
        for expected in [false, true, false] {
            reader.stage(1);
            assert_eq!(reader.release(&shared), expected);
        }
        assert_eq!(writer.sleeps(&shared), Ok(false));
    }

    #[test]
    fn positions_that_cannot_be_are_refused() {
        let shared = Positions::default();
        let (mut writer, mut reader) = (Writer::new(4), Reader::new(4));
        shared.head.0.store(1, Ordering::Relaxed);
        assert_eq!(writer.room(&shared, 5), Err(Insane), "read before it was written");
        for tail in [5, u64::MAX] {
            shared.tail.0.store(tail, Ordering::Relaxed);
            assert_eq!(reader.available(&shared, 1), Err(Insane), "more than the ring holds");
        }
        shared.tail.0.store(3, Ordering::Relaxed);
        assert_eq!(reader.available(&shared, 1), Ok(3));
        reader.stage(3);
        shared.tail.0.store(2, Ordering::Relaxed);
        assert_eq!(reader.available(&shared, 1), Err(Insane), "written, then not written");
    }
}
