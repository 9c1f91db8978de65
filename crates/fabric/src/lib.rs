//! Memory of a peer's that is written from here, without a copy on its side (RDMA), and a stream of
//! bytes made of such writes.
//!
//! The contract is [`PlacedWrites`]: memory is registered once; a write goes from a region
//! registered here to one registered there, and carries 32 bits to the peer, the *immediate*. What
//! a network of this kind promises is little, and nothing more is used: a write that has completed
//! is placed, and an immediate arrives after the bytes of its own write. Writes may be placed, and
//! complete, in any order.
//!
//! | implementation | joins |
//! |---|---|
//! | [`LibfabricEndpoint`] | two processes, by any provider of libfabric with reliable datagrams |
//! | [`SimEndpoint`] | two ends in a test; its network delays, reorders, loses, refuses and fails |
//!
//! [`FabricStream`] makes a stream of bytes out of either, as a connection needs it. An endpoint
//! has one peer, and its regions belong to it alone: no other peer has a key to them, and what a
//! peer writes can harm its own stream only.

mod contract;
mod libfabric;
mod offer;
mod pages;
mod sim;
mod stream;

pub use contract::{
    Access, Completion, Counts, FabricError, Network, PlacedWrites, Posted, RegionId, Remote,
    Segment, Write,
};
pub use libfabric::{Ablated, AblatedEndpoint, LeftOut};
pub use libfabric::{
    Choice, LibfabricEndpoint, Provider, Unavailable, device_memory_providers, providers, version,
};
pub use offer::{MAX_NAME_BYTES, Offer, OfferError, Told};
pub use pages::PAGE_BYTES;
pub use sim::{SimEndpoint, SimNetwork, SimPort};
pub use stream::{FabricStream, Shape, StreamError};
