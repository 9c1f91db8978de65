//! Shared memory with a ring of bytes each way, and copies into and out of it.
//!
//! The other process may write to any of it at any time, whatever the protocol says. So no Rust
//! reference to its bytes exists, only copies through raw pointers; the positions are atomics and
//! are checked where they are loaded.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::positions::{Insane, Positions, Reader, Writer};

/// Room for the positions of both rings, before their bytes: a page, so that bytes begin on one.
const HEADER_BYTES: usize = 4096;

/// Where the positions of the second ring are.
const SECOND_POSITIONS: usize = HEADER_BYTES / 2;

const _: () = assert!(size_of::<Positions>() <= SECOND_POSITIONS);

/// Bytes after which the other side is notified, so that it works on the first half of a chunk
/// while the second is copied. Smaller pieces cost fences, larger ones wait; both sides' pieces
/// in work fit a second-level cache.
const PIECE_BYTES: u64 = 128 << 10;

/// A ring is at least a page and at most what no setting should ask for.
const RING_BYTES: std::ops::RangeInclusive<usize> = 4096..=1 << 30;

/// Which end of the connection this is: each writes one ring and reads the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It made the memory and writes the first ring.
    Offering,
    /// It was given the memory and writes the second ring.
    Accepting,
}

/// How many bytes the memory for two rings of `ring_bytes` has.
///
/// # Errors
/// `ring_bytes` is not a power of two in range.
pub(super) fn region_bytes(ring_bytes: usize) -> io::Result<usize> {
    match ring_bytes.is_power_of_two() && RING_BYTES.contains(&ring_bytes) {
        true => Ok(HEADER_BYTES + 2 * ring_bytes),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a ring of {ring_bytes} bytes: use a power of two from 4096 to 1 GiB"),
        )),
    }
}

/// The size of the rings in memory of `region` bytes, if it can hold two.
pub(super) fn ring_bytes(region: u64) -> Option<usize> {
    let ring = usize::try_from(region).ok()?.checked_sub(HEADER_BYTES)? / 2;
    (region_bytes(ring).ok()? as u64 == region).then_some(ring)
}

/// Memory mapped for as long as this exists.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping has no thread affinity, and this is its only handle in the process.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nothing refers to it once its handle is dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// One of the two rings: where its positions and its bytes are.
#[derive(Clone, Copy, Debug)]
struct Ring {
    positions: NonNull<Positions>,
    bytes: NonNull<u8>,
    capacity: u64,
}

// SAFETY: as for the mapping it points into, beside which it is kept.
unsafe impl Send for Ring {}

impl Ring {
    fn positions(&self) -> &Positions {
        // SAFETY: in the mapping, which outlives this, and aligned, as the mapping begins on a
        // page. Atomics only, for which any bytes are valid and others may write at any time.
        unsafe { self.positions.as_ref() }
    }

    /// Where the byte at a position is, and how many follow it before the ring begins anew.
    fn place(&self, position: u64) -> (NonNull<u8>, u64) {
        let offset = position & (self.capacity - 1);
        // SAFETY: less than the capacity, which is a power of two, so within the mapping.
        (unsafe { self.bytes.add(offset as usize) }, self.capacity - offset)
    }
}

/// One end of two rings.
#[derive(Debug)]
pub(super) struct Region {
    outgoing: Ring,
    writer: Writer,
    incoming: Ring,
    reader: Reader,
    /// What the rings are in.
    _mapping: Mapping,
}

impl Region {
    /// Maps `memory`, which must have [`region_bytes`] of `ring_bytes` and be sealed against
    /// shrinking: access beyond the end of a file kills the process.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn map(memory: BorrowedFd<'_>, ring_bytes: usize, end: End) -> io::Result<Region> {
        let bytes = region_bytes(ring_bytes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at null");
        let mapping = Mapping { start, bytes };
        let capacity = ring_bytes as u64;
        let at = |positions: usize, bytes: usize| {
            // SAFETY: both offsets are within the mapping, whose size is that of a header and
            // two rings.
            let (positions, bytes) = unsafe { (start.add(positions).cast(), start.add(bytes)) };
            Ring { positions, bytes, capacity }
        };
        let first = at(0, HEADER_BYTES);
        let second = at(SECOND_POSITIONS, HEADER_BYTES + ring_bytes);
        let (outgoing, incoming) = match end {
            End::Offering => (first, second),
            End::Accepting => (second, first),
        };
        if end == End::Offering {
            first.positions().begin();
            second.positions().begin();
        }
        let (writer, reader) = (Writer::new(capacity), Reader::new(capacity));
        Ok(Region { outgoing, writer, incoming, reader, _mapping: mapping })
    }

    /// Copies bytes in until there is no room; how many. Rings as often as the reader sleeps.
    ///
    /// # Errors
    /// `InvalidData` when the other end's position cannot be, and what `ring` says.
    pub(super) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        mut ring: impl FnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        let (shared, writer) = (self.outgoing.positions(), &mut self.writer);
        let start = writer.position();
        'full: for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let wanted = (rest.len() as u64).min(PIECE_BYTES - writer.unpublished());
                let room = writer.room(shared, wanted).map_err(insane)?;
                let (place, to_end) = self.outgoing.place(writer.position());
                let n = wanted.min(room).min(to_end) as usize;
                if n == 0 {
                    break 'full;
                }
                // SAFETY: `n` bytes from `place` are within the ring; `rest` has as many. The
                // two cannot overlap, as no reference to the mapping exists. The other process
                // has no business there now; if it writes nevertheless, the bytes are its loss.
                unsafe { place.as_ptr().copy_from_nonoverlapping(rest.as_ptr(), n) };
                writer.stage(n as u64);
                rest = &rest[n..];
                if writer.unpublished() == PIECE_BYTES && writer.publish(shared) {
                    ring()?;
                }
            }
        }
        if writer.unpublished() > 0 && writer.publish(shared) {
            ring()?;
        }
        Ok((writer.position() - start) as usize)
    }

    /// Copies bytes out until there are no more; how many. Rings as often as the writer sleeps.
    ///
    /// # Errors
    /// `InvalidData` when the other end's position cannot be, and what `ring` says.
    pub(super) fn read(
        &mut self,
        spaces: &mut [IoSliceMut<'_>],
        mut ring: impl FnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        let (shared, reader) = (self.incoming.positions(), &mut self.reader);
        let start = reader.position();
        'empty: for space in spaces {
            let mut rest: &mut [u8] = space;
            while !rest.is_empty() {
                let wanted = (rest.len() as u64).min(PIECE_BYTES - reader.unreleased());
                let available = reader.available(shared, wanted).map_err(insane)?;
                let (place, to_end) = self.incoming.place(reader.position());
                let n = wanted.min(available).min(to_end) as usize;
                if n == 0 {
                    break 'empty;
                }
                // SAFETY: as in `write`; whatever the other process does meanwhile, any bytes
                // are valid bytes.
                unsafe { place.as_ptr().copy_to_nonoverlapping(rest.as_mut_ptr(), n) };
                reader.stage(n as u64);
                rest = &mut rest[n..];
                if reader.unreleased() == PIECE_BYTES && reader.release(shared) {
                    ring()?;
                }
            }
        }
        if reader.unreleased() > 0 && reader.release(shared) {
            ring()?;
        }
        Ok((reader.position() - start) as usize)
    }

    /// Prepares to sleep until there is room; false if there is by now.
    pub(super) fn writer_sleeps(&mut self) -> io::Result<bool> {
        self.writer.sleeps(self.outgoing.positions()).map_err(insane)
    }

    /// Prepares to sleep until there are bytes or the end; false if there are by now.
    pub(super) fn reader_sleeps(&mut self) -> io::Result<bool> {
        self.reader.sleeps(self.incoming.positions()).map_err(insane)
    }

    /// Says that nothing more will be written; whether the reader must be rung.
    pub(super) fn finish(&self) -> bool {
        self.writer.finish(self.outgoing.positions())
    }

    /// Whether the other end writes no more. Bytes before the end are seen by a `read` after.
    pub(super) fn is_finished(&self) -> bool {
        Reader::is_finished(self.incoming.positions())
    }
}

fn insane(_: Insane) -> io::Error {
    let text = "a position in shared memory cannot be: the peer is broken or of another version";
    io::Error::new(io::ErrorKind::InvalidData, text)
}
