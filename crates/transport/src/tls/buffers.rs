//! The bytes on either side of the record layer. None of them grows beyond a fixed size, whatever
//! the peer sends or leaves unread.

use std::io::{self, IoSlice, IoSliceMut};

use crate::tcp::TcpLink;
use sumpter_endpoint::TlsError;
use sumpter_endpoint::{Link, LinkError};

/// What one record carries at most.
const RECORD_BYTES: usize = 16 << 10;

/// What a record is longer than its contents: 5 bytes of header, 1 of type, 16 of tag.
const RECORD_OVERHEAD: usize = 22;

/// What is encrypted before it is written. As much as the kernel takes at once (see
/// `UNSENT_BYTES`): less makes more system calls, more runs ahead of what is urgent.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// What is read at once: a few records, and the part of one that was left over.
const INBOX_BYTES: usize = BATCH_BYTES + RECORD_BYTES + 1024;

/// Encrypted bytes that were received.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    /// Whether anything ever came.
    pub heard: bool,
}

impl Inbox {
    /// Reads once; 0 when there is nothing now.
    pub(super) fn fill(&mut self, tcp: &mut TcpLink) -> Result<usize, LinkError> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; INBOX_BYTES];
        }
        self.bytes.copy_within(self.head..self.tail, 0);
        (self.head, self.tail) = (0, self.tail - self.head);
        if self.tail == self.bytes.len() {
            let text = "a message is longer than any of this protocol".to_owned();
            return Err(TlsError::Broken(text).into());
        }
        let n = tcp.recv(&mut [IoSliceMut::new(&mut self.bytes[self.tail..])])?;
        self.tail += n;
        self.heard |= n > 0;
        Ok(n)
    }

    pub(super) fn unread(&mut self) -> &mut [u8] {
        &mut self.bytes[self.head..self.tail]
    }

    pub(super) fn discard(&mut self, n: usize) {
        self.head += n;
    }
}

/// Encrypted bytes that wait to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Room for `payload` bytes and what records add to them.
    pub(super) fn space(&mut self, payload: usize) -> &mut [u8] {
        let records = payload.div_ceil(RECORD_BYTES);
        self.room(payload + records * RECORD_OVERHEAD)
    }

    /// Room for so many bytes.
    pub(super) fn room(&mut self, n: usize) -> &mut [u8] {
        if self.bytes.len() < self.tail + n {
            self.bytes.resize(self.tail + n, 0);
        }
        &mut self.bytes[self.tail..]
    }

    pub(super) fn wrote(&mut self, n: usize) {
        self.tail += n;
    }

    /// Sends what the kernel takes; true once all is sent.
    pub(super) fn flush(&mut self, tcp: &mut TcpLink) -> io::Result<bool> {
        while !self.is_empty() {
            match tcp.send(&[IoSlice::new(&self.bytes[self.head..self.tail])])? {
                0 => return Ok(false),
                n => self.head += n,
            }
        }
        (self.head, self.tail) = (0, 0);
        Ok(true)
    }
}

/// Decrypted bytes for which there was no space.
#[derive(Default)]
pub(super) struct Plain {
    bytes: Vec<u8>,
    head: usize,
}

impl Plain {
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.bytes.len()
    }
}

/// Where decrypted bytes go: into the caller's spaces, and what does not fit is kept.
pub(super) struct Target<'a, 'b> {
    spaces: &'a mut [IoSliceMut<'b>],
    /// Bytes of the first space that are filled.
    at: usize,
    /// Bytes filled.
    pub filled: usize,
}

impl<'a, 'b> Target<'a, 'b> {
    pub(super) fn new(spaces: &'a mut [IoSliceMut<'b>]) -> Target<'a, 'b> {
        Target { spaces, at: 0, filled: 0 }
    }

    /// Takes what was kept.
    pub(super) fn take(&mut self, plain: &mut Plain) {
        plain.head += self.copy(&plain.bytes[plain.head..]);
        if plain.is_empty() {
            plain.bytes.clear();
            plain.head = 0;
        }
    }

    /// Takes what was just decrypted.
    pub(super) fn put(&mut self, bytes: &[u8], plain: &mut Plain) {
        // What came before goes first.
        let n = if plain.is_empty() { self.copy(bytes) } else { 0 };
        plain.bytes.extend_from_slice(&bytes[n..]);
    }

    fn copy(&mut self, mut bytes: &[u8]) -> usize {
        let mut copied = 0;
        while let Some(space) = self.spaces.first_mut() {
            let n = bytes.len().min(space.len() - self.at);
            space[self.at..self.at + n].copy_from_slice(&bytes[..n]);
            (bytes, copied, self.at) = (&bytes[n..], copied + n, self.at + n);
            if self.at < space.len() {
                break;
            }
            self.spaces = &mut std::mem::take(&mut self.spaces)[1..];
            self.at = 0;
        }
        self.filled += copied;
        copied
    }
}

/// What is to be encrypted, in pieces that fill records: small slices are put together.
pub(super) struct Gather<'a> {
    slices: &'a [IoSlice<'a>],
    /// Bytes of the first slice that were taken.
    at: usize,
    /// Bytes taken.
    pub taken: usize,
}

impl<'a> Gather<'a> {
    pub(super) fn new(slices: &'a [IoSlice<'a>]) -> Gather<'a> {
        Gather { slices, at: 0, taken: 0 }
    }

    /// The next piece, perhaps put together in `scratch`.
    pub(super) fn next<'s>(&mut self, scratch: &'s mut Vec<u8>) -> Option<&'s [u8]>
    where
        'a: 's,
    {
        let budget = BATCH_BYTES - self.taken;
        let first = self.rest()?;
        if budget == 0 {
            return None;
        }
        let whole = first.len().min(budget) / RECORD_BYTES * RECORD_BYTES;
        if whole > 0 {
            self.skip(whole);
            return Some(&first[..whole]);
        }
        scratch.clear();
        let limit = budget.min(RECORD_BYTES);
        while let Some(next) = self.rest()
            && scratch.len() < limit
        {
            let n = next.len().min(limit - scratch.len());
            scratch.extend_from_slice(&next[..n]);
            self.skip(n);
        }
        Some(scratch)
    }

    /// What is left of the first slice that is not used up.
    fn rest(&mut self) -> Option<&'a [u8]> {
        loop {
            let first: &'a [u8] = self.slices.first()?;
            if self.at < first.len() {
                return Some(&first[self.at..]);
            }
            (self.slices, self.at) = (&self.slices[1..], 0);
        }
    }

    fn skip(&mut self, n: usize) {
        self.at += n;
        self.taken += n;
    }
}
