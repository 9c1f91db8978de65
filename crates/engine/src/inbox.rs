//! The receiving half of a connection: a small staging buffer that holds headers and whatever
//! follows them, while large payloads bypass it.
//!
//! Without staging every header would cost a system call of its own; with a large one every
//! payload would be copied. So behind a large payload there is room for the next headers and
//! little more, and else for a hundred small frames in one read.

use sumpter_wire::{CHECKED_HEADER_BYTES, FrameError, HEADER_BYTES, Header, checksum};

const STAGING_BYTES: usize = 4096;

/// Room behind a payload of more than [`STAGING_BYTES`]: some acknowledgements, a beginning and the
/// header of a chunk.
const READ_AHEAD_BYTES: usize = 512;

#[derive(Debug)]
pub(crate) struct Inbox {
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    copied: u64,
    /// Whether frames carry checksums.
    checked: bool,
    /// The last frame and what its payload's checksum should be.
    expected: Option<(Header, u32)>,
}

impl Inbox {
    /// An inbox of frames that carry checksums, or do not.
    pub(crate) fn new(checked: bool) -> Inbox {
        let staging = vec![0; STAGING_BYTES].into_boxed_slice();
        Inbox { staging, start: 0, end: 0, copied: 0, checked, expected: None }
    }

    /// Whether frames carry checksums, both ways.
    pub(crate) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Free staging memory; never empty between frames, because at most a part of a header stays.
    pub(crate) fn tail(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.staging[self.end..]
    }

    /// Free staging memory behind the `payload` bytes that come first.
    pub(crate) fn tail_behind(&mut self, payload: usize) -> &mut [u8] {
        let limit = if payload > STAGING_BYTES { READ_AHEAD_BYTES } else { STAGING_BYTES };
        let tail = self.tail();
        let len = tail.len().min(limit);
        &mut tail[..len]
    }

    pub(crate) fn grow(&mut self, n: usize) {
        self.end += n;
        assert!(self.end <= self.staging.len(), "more bytes than there was space for");
    }

    /// The next header, once all of it is here.
    pub(crate) fn header(&mut self) -> Result<Option<Header>, FrameError> {
        let staged = &self.staging[self.start..self.end];
        if self.checked {
            let Some(bytes) = staged.first_chunk() else { return Ok(None) };
            let (header, payload) = Header::decode_checked(bytes)?;
            self.expected = Some((header, payload));
            self.start += CHECKED_HEADER_BYTES;
            return Ok(Some(header));
        }
        let Some(bytes) = staged.first_chunk() else { return Ok(None) };
        let header = Header::decode(bytes)?;
        self.start += HEADER_BYTES;
        Ok(Some(header))
    }

    /// Compares the payload of the last frame with its checksum, if it has one.
    pub(crate) fn check(&self, payload: &[u8]) -> Result<(), FrameError> {
        match self.expected {
            Some((header, expected)) if checksum(payload) != expected => {
                Err(FrameError::Corrupt(header))
            }
            _ => Ok(()),
        }
    }

    /// Copies staged bytes into `target`, as many as there are and fit.
    pub(crate) fn take(&mut self, target: &mut [u8]) -> usize {
        let n = self.skip(target.len());
        target[..n].copy_from_slice(&self.staging[self.start - n..self.start]);
        self.copied += n as u64;
        n
    }

    /// Bytes of payload that were copied because they came behind a header.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied
    }

    /// Drops staged bytes, at most `limit`.
    pub(crate) fn skip(&mut self, limit: usize) -> usize {
        let n = limit.min(self.end - self.start);
        self.start += n;
        n
    }
}

/// Advances `have`, the bytes there are of `len`, by at most `n`; returns by how much.
pub(crate) fn fill(have: &mut usize, len: usize, n: usize) -> usize {
    let direct = n.min(len - *have);
    *have += direct;
    direct
}
