//! A stream of bytes each way, over writes that are placed in the peer's memory in any order.
//!
//! Each end has a ring of slots that the peer writes to, and one of the same shape from which it
//! writes: record `i` of a stream is copied to slot `i mod slots` here, and placed with one write,
//! of one segment, in the same slot there. Its immediate says which slot and how many bytes, so
//! that records may be placed in any order; they are read in theirs. What has been read is given
//! back by count (*credits*). Both rings are registered once, when the connection is made.
//!
//! The immediate has 32 bits, as many as every provider carries:
//!
//! | two highest bits | the other 30 |
//! |---|---|
//! | 0, a record | 8 bits of slot, 22 bits of its length less one |
//! | 1, credits | how many slots are free again |
//! | 2, the end | how many records there were, modulo 2^30 |
//! | 3, a greeting | [`GREETING`]; the first write, which shows that the way is open |
//!
//! All but records write a word that is not read, into the page behind the slots.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::ops::RangeInclusive;

use crate::contract::{
    Access, Completion, Counts, FabricError, PlacedWrites, Posted, RegionId, Remote, Segment, Write,
};
use crate::offer::Offer;
use crate::pages::PAGE_BYTES;

const SLOT_BITS: u32 = 8;
const LENGTH_BITS: u32 = 22;
const VALUE_BITS: u32 = SLOT_BITS + LENGTH_BITS;
const VALUE: u32 = (1 << VALUE_BITS) - 1;

const RECORD: u32 = 0;
const CREDITS: u32 = 1;
const END: u32 = 2;
const GREETING_KIND: u32 = 3;

/// What the first write carries; another is of another version.
const GREETING: u32 = 1;

/// Writes that are not records and may be under way; each waits for the one before it.
const CONTROLS: u32 = 1;

/// Bytes of such a write: what it says is in its immediate.
const CONTROL_BYTES: usize = 8;

/// The rings of a stream; equal at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots of each ring.
    pub slots: u32,
    /// Bytes of each slot: whole pages.
    pub slot_bytes: u32,
}

/// As large as the rings of shared memory: a writer is some chunks ahead, and both rings fit a
/// last-level cache.
impl Default for Shape {
    fn default() -> Shape {
        Shape { slots: 16, slot_bytes: 64 << 10 }
    }
}

impl Shape {
    /// How many slots there may be: few enough for [`lacks`](FabricStream::lacks).
    pub const SLOTS: RangeInclusive<u32> = 4..=64;
    /// How long they may be.
    pub const SLOT_BYTES: RangeInclusive<u32> = PAGE_BYTES as u32..=1 << LENGTH_BITS;

    pub(crate) fn is_possible(self) -> bool {
        Shape::SLOTS.contains(&self.slots)
            && Shape::SLOT_BYTES.contains(&self.slot_bytes)
            && self.slot_bytes.is_multiple_of(PAGE_BYTES as u32)
    }

    /// Bytes of the slots of one ring.
    pub(crate) fn ring_bytes(self) -> usize {
        self.slots as usize * self.slot_bytes as usize
    }

    /// Writes that an endpoint must be able to have under way.
    #[must_use]
    pub fn writes(self) -> u32 {
        self.slots + CONTROLS
    }

    /// Bytes that one end of a connection registers.
    #[must_use]
    pub fn registered_bytes(self) -> usize {
        2 * (self.ring_bytes() + PAGE_BYTES)
    }
}

/// Why a stream has broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The network says so.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol of placed writes: {0}")]
    Violation(&'static str),
}

/// A stream of bytes each way.
#[derive(Debug)]
pub struct FabricStream<F> {
    fabric: F,
    shape: Shape,
    /// The ring that the peer writes to.
    inbox: RegionId,
    /// The ring that writes are made from.
    outbox: RegionId,
    /// The peer's ring.
    peer: Option<Remote>,
    sending: Sending,
    receiving: Receiving,
    /// What is to be told and has not been posted, or not completed, in order.
    controls: VecDeque<u32>,
    control_under_way: bool,
    greeted: bool,
    /// Writes that have completed.
    written: u64,
    /// Writes of the peer's that have arrived.
    arrived: u64,
    /// The network had no room for a write; it is asked again after the next poll.
    full: bool,
    completions: Vec<Completion>,
    error: Option<StreamError>,
}

#[derive(Debug)]
struct Sending {
    /// Records sent so far.
    records: u64,
    /// Slots of the peer's that may be written to.
    free: u32,
    /// Slots here whose write has not completed.
    busy: Vec<bool>,
    finished: bool,
}

#[derive(Debug)]
struct Receiving {
    /// Records read so far.
    records: u64,
    /// Bytes of each slot's record that has arrived and was not read to its end.
    lengths: Vec<u32>,
    /// Bytes that were read of the next one.
    read: u32,
    /// Slots that the peer may write to.
    lent: u32,
    /// Slots that were read, and of which the peer has not been told.
    free: u32,
    /// How many records there are, once the peer has said so.
    end: Option<u32>,
}

impl<F: PlacedWrites> FabricStream<F> {
    /// Registers both rings.
    ///
    /// # Errors
    /// If the shape is none, or the network refuses to register so much memory.
    pub fn new(mut fabric: F, shape: Shape) -> Result<FabricStream<F>, FabricError> {
        if !shape.is_possible() || shape.slot_bytes as usize > fabric.max_write() {
            let reason = format!(
                "{} slots of {} bytes: use {} to {} slots of whole pages, of at most {} bytes",
                shape.slots,
                shape.slot_bytes,
                Shape::SLOTS.start(),
                Shape::SLOTS.end(),
                fabric.max_write().min(1 << LENGTH_BITS),
            );
            return Err(FabricError::new("make a ring", reason));
        }
        let bytes = shape.ring_bytes() + PAGE_BYTES;
        let inbox = fabric.register(bytes, Access::Target)?;
        let outbox = fabric.register(bytes, Access::Source)?;
        let slots = shape.slots;
        let busy = vec![false; slots as usize];
        let lengths = vec![0; slots as usize];
        let receiving = Receiving { records: 0, lengths, read: 0, lent: slots, free: 0, end: None };
        Ok(FabricStream {
            fabric,
            shape,
            inbox,
            outbox,
            peer: None,
            sending: Sending { records: 0, free: slots, busy, finished: false },
            receiving,
            controls: VecDeque::new(),
            control_under_way: false,
            greeted: false,
            written: 0,
            arrived: 0,
            full: false,
            completions: Vec::new(),
            error: None,
        })
    }

    /// What the peer needs to know.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let ring = self.fabric.remote(self.inbox);
        Offer { name: self.fabric.name().to_vec(), ring, shape: self.shape }
    }

    /// Takes what the peer has told, and greets it.
    ///
    /// # Errors
    /// If its rings have another shape, or the network does not know it.
    pub fn join(&mut self, peer: &Offer) -> Result<(), StreamError> {
        if peer.shape != self.shape {
            return Err(StreamError::Violation("its rings have another shape"));
        }
        self.fabric.connect(&peer.name)?;
        self.peer = Some(peer.ring);
        self.controls.push_back(immediate(GREETING_KIND, GREETING));
        self.poll().map(drop)
    }

    /// Whether the peer's greeting has arrived: the way is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.greeted
    }

    /// The network below.
    #[must_use]
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// As of [`poll`](Self::poll).
    pub fn finish(&mut self) -> Result<(), StreamError> {
        if !std::mem::replace(&mut self.sending.finished, true) {
            self.controls.push_back(immediate(END, self.sending.records as u32 & VALUE));
        }
        self.poll().map(drop)
    }

    /// How many writes were posted, modulo 256.
    #[must_use]
    pub fn posted(&self) -> u8 {
        self.fabric.counts().writes as u8
    }

    /// How many of the peer's writes have not arrived once it has posted so many, modulo 256.
    #[must_use]
    pub fn lacks(&self, posted: u8) -> u64 {
        // No more than one for each slot and one other are under way.
        let ahead = posted.wrapping_sub(self.arrived as u8);
        if ahead < 128 { ahead.into() } else { 0 }
    }

    /// Writes of the peer's that have arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// While writes have not completed, or found no room, a number that changes when one does. What
    /// the peer does not read is no write that has not completed.
    #[must_use]
    pub fn owed(&self) -> Option<u64> {
        let owes = self.full || !self.is_flushed();
        owes.then(|| self.fabric.counts().writes + self.written)
    }

    /// Whether all that was sent, and its end, has been taken over by the network.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.controls.is_empty() && !self.control_under_way && !self.sending.busy.contains(&true)
    }

    /// Takes in what has happened; whether anything has.
    ///
    /// # Errors
    /// [`StreamError`]; what has arrived before can still be read.
    pub fn poll(&mut self) -> Result<bool, StreamError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let outcome = self.take_in();
        self.error = outcome.as_ref().err().cloned();
        outcome
    }

    fn take_in(&mut self) -> Result<bool, StreamError> {
        self.full = false;
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.fabric.poll(&mut completions);
        let any = !completions.is_empty();
        let taken = completions.drain(..).try_for_each(|completion| match completion {
            Completion::Written(slot) => {
                self.written += 1;
                match self.sending.busy.get_mut(slot as usize) {
                    Some(busy) => *busy = false,
                    None => self.control_under_way = false,
                }
                Ok(())
            }
            Completion::Arrived(immediate) => self.take_arrival(immediate),
        });
        self.completions = completions;
        taken?;
        polled?;
        self.tell()?;
        Ok(any)
    }

    /// Takes in what the peer says, which may be anything.
    fn take_arrival(&mut self, immediate: u32) -> Result<(), StreamError> {
        self.arrived += 1;
        let (kind, value) = (immediate >> VALUE_BITS, immediate & VALUE);
        let violation = |what| Err(StreamError::Violation(what));
        match kind {
            RECORD => {
                let slot = (value >> LENGTH_BITS) as usize;
                let length = (value & ((1 << LENGTH_BITS) - 1)) + 1;
                let receiving = &mut self.receiving;
                if slot >= self.shape.slots as usize || length > self.shape.slot_bytes {
                    return violation("a record is longer than its slot, or in none");
                }
                if receiving.lent == 0 || receiving.lengths[slot] != 0 {
                    return violation("a record is in a slot that was not free");
                }
                receiving.lent -= 1;
                receiving.lengths[slot] = length;
            }
            CREDITS if value == 0 => return violation("no slot is given back"),
            CREDITS => {
                let free = self.sending.free + value.min(self.shape.slots + 1);
                if free > self.shape.slots {
                    return violation("more slots are given back than there are");
                }
                self.sending.free = free;
            }
            END => match self.receiving.end.replace(value) {
                None => {}
                Some(_) => return violation("it has ended twice"),
            },
            _ if value == GREETING && !self.greeted => self.greeted = true,
            _ => return violation("it greets twice, or in another version"),
        }
        Ok(())
    }

    /// Tells the peer what is due, one word after the other.
    fn tell(&mut self) -> Result<(), StreamError> {
        let Some(peer) = self.peer else { return Ok(()) };
        // A peer that has no slot is told of each few that it may write to.
        if self.receiving.free >= (self.shape.slots / 4).max(1) {
            let free = std::mem::take(&mut self.receiving.free);
            self.receiving.lent += free;
            self.controls.push_back(immediate(CREDITS, free));
        }
        while !self.control_under_way
            && let Some(immediate) = self.controls.front().copied()
        {
            let at = self.shape.ring_bytes();
            let context = self.shape.slots;
            let (from, to, offset) = (self.outbox, peer, at);
            let segments = &[Segment { at, len: CONTROL_BYTES }];
            let write = Write { from, segments, to, offset, immediate, context };
            match self.fabric.post(&write)? {
                Posted::Full => {
                    self.full = true;
                    break;
                }
                Posted::Posted => self.control_under_way = true,
            }
            self.controls.pop_front();
        }
        Ok(())
    }

    /// Whether a record may be sent.
    #[must_use]
    pub fn can_send(&self) -> bool {
        let Sending { records, free, busy, finished } = &self.sending;
        let slot = (records % u64::from(self.shape.slots)) as usize;
        let may = self.peer.is_some() && self.error.is_none() && !self.full && !finished;
        may && *free > 0 && !busy[slot]
    }

    /// Sends as much as goes at once; how many bytes that is.
    ///
    /// # Errors
    /// As of [`poll`](Self::poll).
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, StreamError> {
        let mut source = Gather { slices, at: 0 };
        let mut total = 0;
        while self.can_send()
            && let Some(to) = self.peer
        {
            let slot = (self.sending.records % u64::from(self.shape.slots)) as u32;
            let at = slot as usize * self.shape.slot_bytes as usize;
            let room = self.shape.slot_bytes as usize;
            let mut len = 0;
            while let Some(piece) = source.next(room - len) {
                self.fabric.put(self.outbox, at + len, piece);
                len += piece.len();
            }
            if len == 0 {
                break;
            }
            let value = slot << LENGTH_BITS | (len as u32 - 1);
            let immediate = immediate(RECORD, value);
            let from = self.outbox;
            let segments = &[Segment { at, len }];
            let write = Write { from, segments, to, offset: at, immediate, context: slot };
            match self.fabric.post(&write) {
                Ok(Posted::Posted) => {}
                Ok(Posted::Full) => {
                    self.full = true;
                    break;
                }
                Err(error) => {
                    self.error = Some(error.clone().into());
                    return Err(error.into());
                }
            }
            self.sending.busy[slot as usize] = true;
            self.sending.free -= 1;
            self.sending.records += 1;
            total += len;
        }
        Ok(total)
    }

    /// Whether something could not be written that only [`poll`](Self::poll) can make room for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether there is something to read.
    #[must_use]
    pub fn can_receive(&self) -> bool {
        self.receiving.lengths[self.next_slot()] != 0
    }

    /// Whether the peer has sent its last byte, and all has been read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.receiving.end == Some(self.receiving.records as u32 & VALUE)
    }

    fn next_slot(&self) -> usize {
        (self.receiving.records % u64::from(self.shape.slots)) as usize
    }

    /// Reads what there is, as far as the spaces go; how many bytes that is.
    ///
    /// # Errors
    /// As of [`poll`](Self::poll).
    pub fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, StreamError> {
        let mut total = 0;
        for space in spaces {
            let mut filled = 0;
            while filled < space.len() && self.can_receive() {
                let slot = self.next_slot();
                let (read, length) = (self.receiving.read, self.receiving.lengths[slot]);
                let len = ((length - read) as usize).min(space.len() - filled);
                let at = slot * self.shape.slot_bytes as usize + read as usize;
                self.fabric.get(self.inbox, at, &mut space[filled..filled + len]);
                filled += len;
                self.receiving.read += len as u32;
                if self.receiving.read == length {
                    self.receiving.read = 0;
                    self.receiving.lengths[slot] = 0;
                    self.receiving.records += 1;
                    self.receiving.free += 1;
                }
            }
            total += filled;
            if filled < space.len() {
                break;
            }
        }
        if self.error.is_none() {
            let told = self.tell();
            self.error = told.err();
        }
        Ok(total)
    }

    /// Prepares to wait for the network; false if there is more to [`poll`](Self::poll).
    pub fn arm(&mut self) -> bool {
        self.error.is_some() || self.fabric.arm()
    }

    /// What has been done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.fabric.counts()
    }
}

fn immediate(kind: u32, value: u32) -> u32 {
    kind << VALUE_BITS | value
}

/// Slices as one source of bytes.
struct Gather<'a> {
    slices: &'a [IoSlice<'a>],
    /// Bytes of the first that were taken.
    at: usize,
}

impl<'a> Gather<'a> {
    /// The next bytes, at most so many; `None` if there are none, or none may be taken.
    fn next(&mut self, limit: usize) -> Option<&'a [u8]> {
        while let Some((first, rest)) = self.slices.split_first() {
            let left = &first[self.at..];
            if !left.is_empty() {
                let len = left.len().min(limit);
                self.at += len;
                return (len > 0).then(|| &left[..len]);
            }
            (self.slices, self.at) = (rest, 0);
        }
        None
    }
}
