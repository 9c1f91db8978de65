//! What a network must do that places bytes in a peer's memory.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Who uses a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes are made from it; the peer has no access.
    Source,
    /// The peer writes to it.
    Target,
}

/// A region of this endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(pub usize);

/// A region of the peer's, as it has described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins, by the peer's reckoning.
    pub address: u64,
    /// What shows that its owner has allowed writes.
    pub key: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Bytes of a region that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How far behind the beginning of the region.
    pub at: usize,
    /// How many.
    pub len: usize,
}

/// A write from a region of this endpoint's to one of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// Where the bytes are. They must not change until the write has completed.
    pub from: RegionId,
    /// Which bytes of that region, gathered in this order: at most
    /// [`max_write`](PlacedWrites::max_write) of them.
    pub segments: &'a [Segment],
    /// Where they go.
    pub to: Remote,
    /// How far behind the beginning of that region.
    pub offset: usize,
    /// What the peer is told.
    pub immediate: u32,
    /// What this endpoint is told when the write has completed; less than the number of writes
    /// that may be under way, and of no other write that is.
    pub context: u32,
}

impl Write<'_> {
    /// How many bytes it carries.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.len).sum()
    }
}

/// What became of a write that was to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is under way.
    Posted,
    /// There is no room for it: try again when another has completed.
    Full,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The write with this context has completed: its bytes may change.
    Written(u32),
    /// A write of the peer's with this immediate is placed.
    Arrived(u32),
}

/// How often an endpoint did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions that were registered.
    pub registrations: u64,
    /// Writes that were posted.
    pub writes: u64,
    /// Segments of memory that these were gathered from.
    pub segments: u64,
    /// Bytes that they carried.
    pub bytes: u64,
}

/// A call that a network refused, or a connection that broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct FabricError {
    /// What was tried.
    pub call: &'static str,
    /// Why it failed.
    pub reason: String,
}

impl FabricError {
    pub(crate) fn new(call: &'static str, reason: impl Into<String>) -> FabricError {
        FabricError { call, reason: reason.into() }
    }
}

/// A network whose endpoints place bytes in each other's memory.
pub trait Network: fmt::Debug + Clone + Send + 'static {
    /// One end of a connection.
    type Endpoint: PlacedWrites + 'static;

    /// Opens an endpoint, at `source` where the network has IP addresses. So many `writes` may be
    /// under way at once.
    ///
    /// # Errors
    /// Why there is none.
    fn open(&self, source: Option<IpAddr>, writes: u32) -> Result<Self::Endpoint, FabricError>;

    /// Whether opening an endpoint, registering memory with it and closing it may take long, as
    /// they ask drivers; what has other work does that in another thread.
    fn may_block(&self) -> bool;
}

/// An endpoint with one peer, in whose memory it places bytes.
///
/// Made, then [`register`](Self::register)ed with, then [`connect`](Self::connect)ed by the name
/// that the peer's endpoint has. Progress is manual: nothing moves, in either direction, but while
/// one of these functions runs, so that both ends must be polled. From then on no function waits.
pub trait PlacedWrites: fmt::Debug + Send {
    /// The network's name, for people.
    fn network(&self) -> String;

    /// What both ends must have in common.
    fn protocol(&self) -> String;

    /// How the peer reaches this endpoint.
    fn name(&self) -> &[u8];

    /// The most bytes of one write.
    fn max_write(&self) -> usize;

    /// Allocates `bytes` of zeros, aligned to pages, and registers them.
    ///
    /// # Errors
    /// What the network says, such as that too much memory would be locked.
    fn register(&mut self, bytes: usize, access: Access) -> Result<RegionId, FabricError>;

    /// What the peer needs to write to a region.
    fn remote(&self, region: RegionId) -> Remote;

    /// Copies bytes to `at` in a region.
    ///
    /// # Panics
    /// If they do not fit.
    fn put(&mut self, region: RegionId, at: usize, bytes: &[u8]);

    /// Copies bytes from `at` in a region.
    ///
    /// # Panics
    /// If there are not so many.
    fn get(&self, region: RegionId, at: usize, into: &mut [u8]);

    /// Takes the peer's name; to be called once.
    ///
    /// # Errors
    /// What the network says.
    fn connect(&mut self, name: &[u8]) -> Result<(), FabricError>;

    /// Begins to write.
    ///
    /// # Errors
    /// What the network says; the connection is then broken.
    fn post(&mut self, write: &Write<'_>) -> Result<Posted, FabricError>;

    /// Adds what has happened.
    ///
    /// # Errors
    /// A write that failed; the connection is then broken.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError>;

    /// Prepares to wait for [`event_fd`](Self::event_fd); false if there is more to poll, so that
    /// waiting might not end.
    fn arm(&mut self) -> bool;

    /// A descriptor that becomes readable when there is something to poll; `None` if the network
    /// has no such thing, and the peer must say by other means that it has written.
    fn event_fd(&self) -> Option<RawFd>;

    /// What has been done so far.
    fn counts(&self) -> Counts;
}
