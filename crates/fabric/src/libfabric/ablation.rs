//! Placed writes with one rule or another left out, to measure what each is worth (BytePS, OSDI'20,
//! section 6.2 and Table 2; `sumpter bench ablate datapath`). Jobs do not use this.

use std::net::IpAddr;
use std::os::fd::RawFd;

use super::endpoint::{LibfabricEndpoint, Object};
use super::ffi;
use super::library::Choice;
use crate::contract::{
    Access, Completion, Counts, FabricError, Network, PlacedWrites, Posted, RegionId, Remote,
    Segment, Write,
};

/// How far behind a page regions begin that are off it: as long as a frame's header.
const OFF_PAGE_BYTES: usize = 32;

/// Where a write is split into two segments: a header, and what follows.
const HEAD_BYTES: usize = 32;

/// Which rules of the data path are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Regions begin off a page, at both ends.
    pub alignment: bool,
    /// A write is gathered from two segments.
    pub single_segment: bool,
    /// The bytes of each write are registered for it.
    pub single_registration: bool,
}

/// A network with rules left out.
#[derive(Clone, Debug)]
pub struct Ablated {
    /// Which network.
    pub choice: Choice,
    /// Which rules.
    pub left_out: LeftOut,
}

/// One of its endpoints.
#[derive(Debug)]
pub struct AblatedEndpoint {
    /// Registrations for single writes, by the write's context. Closed before the endpoint.
    registrations: Vec<Option<Object<ffi::fid_mr>>>,
    endpoint: LibfabricEndpoint,
    left_out: LeftOut,
}

impl Network for Ablated {
    type Endpoint = AblatedEndpoint;

    fn open(&self, source: Option<IpAddr>, writes: u32) -> Result<AblatedEndpoint, FabricError> {
        Ok(AblatedEndpoint {
            registrations: (0..writes).map(|_| None).collect(),
            endpoint: LibfabricEndpoint::open(&self.choice, source, writes)?,
            left_out: self.left_out,
        })
    }

    fn may_block(&self) -> bool {
        true
    }
}

impl AblatedEndpoint {
    fn shift(&self) -> usize {
        if self.left_out.alignment { OFF_PAGE_BYTES } else { 0 }
    }
}

impl PlacedWrites for AblatedEndpoint {
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
        self.endpoint.register(bytes + self.shift(), access)
    }

    fn remote(&self, region: RegionId) -> Remote {
        let Remote { address, key, bytes } = self.endpoint.remote(region);
        let shift = self.shift() as u64;
        Remote { address: address + shift, key, bytes: bytes - shift }
    }

    fn put(&mut self, region: RegionId, at: usize, bytes: &[u8]) {
        self.endpoint.put(region, at + self.shift(), bytes);
    }

    fn get(&self, region: RegionId, at: usize, into: &mut [u8]) {
        self.endpoint.get(region, at + self.shift(), into);
    }

    fn connect(&mut self, name: &[u8]) -> Result<(), FabricError> {
        self.endpoint.connect(name)
    }

    fn post(&mut self, write: &Write<'_>) -> Result<Posted, FabricError> {
        let Write { from, segments: &[Segment { at, len }], context, .. } = *write else {
            return Err(FabricError::new("post", "a stream writes one segment at once"));
        };
        let at = at + self.shift();
        let registration = match self.left_out.single_registration {
            true => Some(self.endpoint.register_again(from, at, len)?),
            false => None,
        };
        let whole = [Segment { at, len }];
        let split = [
            Segment { at, len: HEAD_BYTES },
            Segment { at: at + HEAD_BYTES, len: len.saturating_sub(HEAD_BYTES) },
        ];
        let splits = self.left_out.single_segment && len > HEAD_BYTES;
        let segments = if splits { &split[..] } else { &whole };
        let write = Write { segments, ..*write };
        let posted = self.endpoint.post_by(&write, registration.as_ref())?;
        if posted == Posted::Posted {
            self.registrations[context as usize] = registration;
        }
        Ok(posted)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let before = completions.len();
        let polled = self.endpoint.poll(completions);
        for completion in &completions[before..] {
            if let Completion::Written(context) = completion {
                self.registrations[*context as usize] = None;
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
