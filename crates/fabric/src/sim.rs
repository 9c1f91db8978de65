//! A network in a test: writes wait until it is stepped, and are placed and complete in any order.

use std::io::{Read, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contract::{
    Access, Completion, Counts, FabricError, Network, PlacedWrites, Posted, RegionId, Remote,
    Segment, Write,
};
use crate::pages::Pages;

/// Writes that may be under way from an end.
const DEPTH: usize = 24;

/// Between the addresses of two regions, so that a write behind the end of one hits no other.
const SPACING: u64 = 1 << 40;

/// Two ends and what is on its way between them.
#[derive(Clone, Debug, Default)]
pub struct SimNetwork(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ends: [End; 2],
    under_way: Vec<UnderWay>,
}

#[derive(Debug, Default)]
struct End {
    regions: Vec<(Pages, Remote, Access)>,
    completions: Vec<Completion>,
    failed: Option<FabricError>,
    /// It takes no write any more.
    refuses: bool,
    /// Bytes in it say that there is something to poll: the end that is read, and the other.
    descriptor: Option<[UnixStream; 2]>,
    /// It may register so many bytes more, if there is a limit.
    lockable: Option<usize>,
    /// Its process is gone.
    dead: bool,
    /// Its endpoint is closed, and its regions with it.
    closed: bool,
    counts: Counts,
}

#[derive(Clone, Debug)]
struct UnderWay {
    from: usize,
    region: RegionId,
    segments: Vec<Segment>,
    to: Remote,
    offset: usize,
    immediate: u32,
    context: u32,
    placed: bool,
}

/// An end of a simulated connection.
#[derive(Debug)]
pub struct SimEndpoint {
    network: SimNetwork,
    side: usize,
    name: [u8; 1],
    connected: bool,
}

impl SimNetwork {
    /// A network, and its two ends.
    #[must_use]
    pub fn new() -> (SimNetwork, SimEndpoint, SimEndpoint) {
        let network = SimNetwork::default();
        let (a, b) = (network.end(0), network.end(1));
        (network, a, b)
    }

    fn end(&self, side: usize) -> SimEndpoint {
        SimEndpoint { network: self.clone(), side, name: [side as u8], connected: false }
    }

    /// A network, and what opens each of its two ends.
    #[must_use]
    pub fn unopened() -> (SimNetwork, [SimPort; 2]) {
        let network = SimNetwork::default();
        let ports = [0, 1].map(|side| SimPort { network: network.clone(), side });
        (network, ports)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives both ends a descriptor to wait for, as libfabric does: it says nothing of what the
    /// network takes in while it posts a write, so that it must be armed after each.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn give_descriptors(&self) -> std::io::Result<()> {
        for end in &mut self.state().ends {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            writer.set_nonblocking(true)?;
            end.descriptor = Some([reader, writer]);
        }
        Ok(())
    }

    /// Lets one thing happen to one of the writes under way, as `choice` says: it is placed, or,
    /// if it is already, it completes. False if there is none.
    pub fn step(&self, choice: usize) -> bool {
        let mut state = self.state();
        if state.under_way.is_empty() {
            return false;
        }
        let index = choice % state.under_way.len();
        let of = state.step(index);
        state.ends[of].signal();
        true
    }

    /// Writes under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.state().under_way.len()
    }

    /// The process of an end dies: what it has written may be lost, as `choice` says.
    pub fn kill(&self, side: usize, choice: usize) {
        let mut state = self.state();
        state.ends[side].dead = true;
        let mut turn = choice;
        state.under_way.retain(|one| {
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            one.from != side || turn >> 40 & 1 == 0
        });
    }

    /// One of the writes under way from an end completes, as `choice` says which, and is never
    /// placed: as no network may that keeps its promises. False if there is none.
    pub fn lose(&self, side: usize, choice: usize) -> bool {
        let mut state = self.state();
        let on_its_way = |one: &UnderWay| one.from == side && !one.placed;
        let count = state.under_way.iter().filter(|one| on_its_way(one)).count();
        if count == 0 {
            return false;
        }
        let mut lost = (0..state.under_way.len()).filter(|i| on_its_way(&state.under_way[*i]));
        let index = lost.nth(choice % count).expect("just counted");
        state.under_way[index].placed = true;
        state.step(index);
        state.ends[side].signal();
        true
    }

    /// An end may register only so many bytes more, as with `ulimit -l`.
    pub fn limit_memory(&self, side: usize, bytes: usize) {
        self.state().ends[side].lockable = Some(bytes);
    }

    /// The network of an end reports an error: its writes that were not placed are lost.
    pub fn fail(&self, side: usize, reason: &str) {
        let mut state = self.state();
        state.under_way.retain(|one| one.from != side || one.placed);
        let end = &mut state.ends[side];
        end.failed = Some(FabricError::new("write", reason));
        end.signal();
    }

    /// The network of an end takes no write any more.
    pub fn refuse(&self, side: usize) {
        self.state().ends[side].refuses = true;
    }

    /// Tells an end that a write with this immediate has been placed, as only a peer could that
    /// breaks the protocol.
    pub fn forge(&self, to: usize, immediate: u32) {
        self.state().ends[to].completions.push(Completion::Arrived(immediate));
    }
}

/// What opens an end of a simulated connection; to be used once.
#[derive(Clone, Debug)]
pub struct SimPort {
    network: SimNetwork,
    side: usize,
}

impl Network for SimPort {
    type Endpoint = SimEndpoint;

    fn open(&self, _source: Option<IpAddr>, _writes: u32) -> Result<SimEndpoint, FabricError> {
        Ok(self.network.end(self.side))
    }

    fn may_block(&self) -> bool {
        false
    }
}

impl End {
    /// Says that there is something to poll.
    fn signal(&mut self) {
        if let Some([_, writer]) = &mut self.descriptor {
            // One that is full says so already.
            let _ = writer.write(&[1]);
        }
    }
}

impl State {
    /// Lets a write under way be placed, or, if it is, complete. The end that can see it.
    fn step(&mut self, index: usize) -> usize {
        let UnderWay { from, context, placed, .. } = self.under_way[index];
        if placed {
            self.under_way.swap_remove(index);
            self.ends[from].completions.push(Completion::Written(context));
            return from;
        }
        self.under_way[index].placed = true;
        self.place(index);
        if self.ends[from].failed.is_some() { from } else { 1 - from }
    }

    /// Lets happen all that an end can see, and signals nothing.
    fn take_in(&mut self, side: usize) {
        let visible = |one: &UnderWay| (one.from == side) == one.placed;
        while let Some(index) = self.under_way.iter().position(visible) {
            self.step(index);
        }
    }

    fn place(&mut self, index: usize) {
        let UnderWay { from, region, ref segments, to, offset, immediate, .. } =
            self.under_way[index];
        let ends = &mut self.ends;
        // As a network card may, this reads them late: they must not change until it is told.
        let mut bytes = Vec::new();
        for Segment { at, len } in segments {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            ends[from].regions[region.0].0.get(*at, &mut bytes[start..]);
        }
        let peer = &mut ends[1 - from];
        if peer.dead {
            ends[from].failed = Some(FabricError::new("write", "the peer does not answer"));
            return;
        }
        let region = peer.regions.iter_mut().find(|(_, remote, access)| {
            remote.key == to.key && remote.address == to.address && *access == Access::Target
        });
        match region {
            Some(_) if peer.closed => {
                ends[from].failed = Some(FabricError::new("write", "the key is void"));
            }
            Some((pages, ..)) if offset <= pages.len() && bytes.len() <= pages.len() - offset => {
                pages.put(offset, &bytes);
                peer.completions.push(Completion::Arrived(immediate));
            }
            _ => ends[from].failed = Some(FabricError::new("write", "the peer refuses the key")),
        }
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.network.state().ends[self.side].closed = true;
    }
}

impl PlacedWrites for SimEndpoint {
    fn network(&self) -> String {
        "simulated".to_owned()
    }

    fn protocol(&self) -> String {
        "simulated/1".to_owned()
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    fn max_write(&self) -> usize {
        1 << 20
    }

    fn register(&mut self, bytes: usize, access: Access) -> Result<RegionId, FabricError> {
        let mut state = self.network.state();
        let end = &mut state.ends[self.side];
        if let Some(left) = &mut end.lockable {
            let after = left.checked_sub(bytes);
            *left = after
                .ok_or_else(|| FabricError::new("register", "no more memory may be locked"))?;
        }
        let index = end.regions.len();
        let address = (1 + index as u64) * SPACING;
        let key = address ^ 0x5bd1_e995 ^ (self.side as u64) << 20;
        let remote = Remote { address, key, bytes: bytes as u64 };
        end.regions.push((Pages::new(bytes), remote, access));
        end.counts.registrations += 1;
        Ok(RegionId(index))
    }

    fn remote(&self, RegionId(region): RegionId) -> Remote {
        self.network.state().ends[self.side].regions[region].1
    }

    fn put(&mut self, RegionId(region): RegionId, at: usize, bytes: &[u8]) {
        self.network.state().ends[self.side].regions[region].0.put(at, bytes);
    }

    fn get(&self, RegionId(region): RegionId, at: usize, into: &mut [u8]) {
        self.network.state().ends[self.side].regions[region].0.get(at, into);
    }

    fn connect(&mut self, name: &[u8]) -> Result<(), FabricError> {
        match name == [1 - self.side as u8] {
            true => self.connected = true,
            false => return Err(FabricError::new("connect", "there is no such end")),
        }
        Ok(())
    }

    fn post(&mut self, write: &Write<'_>) -> Result<Posted, FabricError> {
        assert!(self.connected, "connect first");
        let mut state = self.network.state();
        let from = self.side;
        if state.ends[from].refuses {
            return Err(FabricError::new("post", "the device is gone"));
        }
        let of_us = |one: &&UnderWay| one.from == from;
        if state.under_way.iter().filter(of_us).count() == DEPTH {
            return Ok(Posted::Full);
        }
        let in_use = |one: &UnderWay| one.from == from && one.context == write.context;
        assert!(!state.under_way.iter().any(in_use), "a context is used twice: {write:?}");
        let counts = &mut state.ends[from].counts;
        counts.writes += 1;
        counts.segments += write.segments.len() as u64;
        counts.bytes += write.bytes() as u64;
        let Write { from: region, segments, to, offset, immediate, context } = *write;
        let segments = segments.to_vec();
        let placed = false;
        let one = UnderWay { from, region, segments, to, offset, immediate, context, placed };
        state.under_way.push(one);
        let eager = (state.ends[from].counts.writes + from as u64).is_multiple_of(2);
        if state.ends[from].descriptor.is_some() {
            state.take_in(from);
            if eager && let Some(index) = state.under_way.iter().position(in_use) {
                // It is gone before the call returns.
                let of = state.step(index);
                state.ends[of].signal();
                state.take_in(from);
            }
        }
        Ok(Posted::Posted)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut state = self.network.state();
        let end = &mut state.ends[self.side];
        completions.append(&mut end.completions);
        end.failed.clone().map_or(Ok(()), Err)
    }

    fn arm(&mut self) -> bool {
        let end = &mut self.network.state().ends[self.side];
        if let Some([reader, _]) = &mut end.descriptor {
            while reader.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        }
        end.completions.is_empty()
    }

    fn event_fd(&self) -> Option<RawFd> {
        let end = &self.network.state().ends[self.side];
        end.descriptor.as_ref().map(|[reader, _]| reader.as_raw_fd())
    }

    fn counts(&self) -> Counts {
        self.network.state().ends[self.side].counts
    }
}
