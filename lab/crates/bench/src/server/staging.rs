//! A small buffer for headers and whatever follows them, as lanes use: large payloads bypass it.

use sumpter_endpoint::Violation;
use sumpter_wire::{HEADER_BYTES, Header};

/// As in a lane, so that both make the same system calls.
const BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct Staging {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    pub(super) fn new() -> Staging {
        Staging { bytes: vec![0; BYTES].into(), start: 0, end: 0 }
    }

    pub(super) fn tail(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.bytes[self.end..]
    }

    pub(super) fn grow(&mut self, n: usize) {
        self.end += n;
    }

    pub(super) fn header(&mut self) -> Result<Option<Header>, Violation> {
        let staged = &self.bytes[self.start..self.end];
        let Some(bytes) = staged.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(bytes)?;
        self.start += HEADER_BYTES;
        Ok(Some(header))
    }

    /// Copies staged bytes into `target`, as many as there are and fit.
    pub(super) fn take(&mut self, target: &mut [u8]) -> usize {
        let n = target.len().min(self.end - self.start);
        target[..n].copy_from_slice(&self.bytes[self.start..][..n]);
        self.start += n;
        n
    }
}
