//! An endpoint that panics at a write to where its peer has not allowed one, and what knows the
//! largest allocation of a call; the fuzzer of offers has both as well.

mod largest;

use std::os::fd::RawFd;

use sumpter_fabric::{
    Access, Completion, Counts, FabricError, Offer, PlacedWrites, Posted, RegionId, Remote, Shape,
    SimEndpoint, Write,
};

pub use largest::largest;

/// Takes any name of its peer's, and allows writes to what was offered only: of a record to a slot
/// that is lent, and of a word to the page behind the slots.
#[derive(Debug)]
pub struct Watched {
    endpoint: SimEndpoint,
    offered: Remote,
    shape: Shape,
    /// Slots that are lent to this end.
    lent: u64,
}

impl Watched {
    /// The first end of a network, whose peer has told this offer.
    pub fn new(endpoint: SimEndpoint, offer: &Offer) -> Watched {
        let Offer { ring: offered, shape, .. } = *offer;
        Watched { endpoint, offered, shape, lent: shape.slots.into() }
    }
}

impl PlacedWrites for Watched {
    fn network(&self) -> String {
        self.endpoint.network()
    }

    fn protocol(&self) -> String {
        self.endpoint.protocol()
    }

    fn name(&self) -> &[u8] {
        self.endpoint.name()
    }

    fn max_write(&self) -> usize {
        self.endpoint.max_write()
    }

    fn register(&mut self, bytes: usize, access: Access) -> Result<RegionId, FabricError> {
        self.endpoint.register(bytes, access)
    }

    fn remote(&self, region: RegionId) -> Remote {
        self.endpoint.remote(region)
    }

    fn put(&mut self, region: RegionId, at: usize, bytes: &[u8]) {
        self.endpoint.put(region, at, bytes);
    }

    fn get(&self, region: RegionId, at: usize, into: &mut [u8]) {
        self.endpoint.get(region, at, into);
    }

    fn connect(&mut self, _name: &[u8]) -> Result<(), FabricError> {
        self.endpoint.connect(&[1])
    }

    fn post(&mut self, write: &Write<'_>) -> Result<Posted, FabricError> {
        assert_eq!(write.to, self.offered);
        let (at, len) = (write.offset as u64, write.bytes() as u64);
        assert!(self.offered.address.checked_add(at + len).is_some(), "{write:?}");
        assert!(at + len <= self.offered.bytes, "{write:?} goes behind {:?}", self.offered);
        let slot_bytes = u64::from(self.shape.slot_bytes);
        let slots_end = slot_bytes * u64::from(self.shape.slots);
        if write.immediate >> 30 != 0 {
            assert!(at >= slots_end, "a word goes to a slot: {write:?}");
            return self.endpoint.post(write);
        }
        assert!(at % slot_bytes + len <= slot_bytes && at + len <= slots_end, "{write:?}");
        let posted = self.endpoint.post(write)?;
        if posted == Posted::Posted {
            self.lent = self.lent.checked_sub(1).expect("no slot is lent");
        }
        Ok(posted)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let before = completions.len();
        let polled = self.endpoint.poll(completions);
        for completion in &completions[before..] {
            if let Completion::Arrived(immediate @ 0x4000_0000..0x8000_0000) = completion {
                self.lent += u64::from(immediate & 0x3fff_ffff);
            }
        }
        polled
    }

    fn arm(&mut self) -> bool {
        self.endpoint.arm()
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.endpoint.event_fd()
    }

    fn counts(&self) -> Counts {
        self.endpoint.counts()
    }
}
