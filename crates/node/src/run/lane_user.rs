//! A process with connections to lanes of a job: a worker, or a server that passes aggregates on.

use std::net::SocketAddr;
use std::time::Instant;

use sumpter_endpoint::ConnId;
use sumpter_wire::{Hello, Token};

use crate::cluster::paths::{NetworkPath, Sources};
use crate::cluster::route::WorkerClient;
use crate::run::WorkerRun;
use crate::run::dials::Dials;

/// What an event loop must know of one to make its connections and move their bytes.
pub(crate) trait LaneUser {
    fn client(&mut self) -> &mut WorkerClient;
    fn dials(&mut self) -> &mut Dials;
    /// The ways to a lane over the network, in the order in which they are tried.
    fn paths(&self, lane: ConnId, sources: &Sources) -> Vec<NetworkPath>;
    /// Who we are to a lane; whether bytes are placed is up to the event loop.
    fn hello(&self, lane: ConnId) -> Hello;
    /// What the members of the run prove to each other.
    fn key(&self) -> Token;
    /// The address by which a lane is known.
    fn address(&self, lane: ConnId) -> SocketAddr;
    /// A lane in words: whose it is, and where.
    fn describe(&self, lane: ConnId) -> String;
    /// Whether a lane is reached over the network, not within this machine.
    fn is_away(&self, lane: ConnId) -> bool;
    /// The connection to a lane is gone.
    fn lost(&mut self, lane: ConnId, now: Instant);
    /// Bytes have moved.
    fn progressed(&mut self);
}

impl LaneUser for WorkerRun {
    fn client(&mut self) -> &mut WorkerClient {
        &mut self.client
    }

    fn dials(&mut self) -> &mut Dials {
        &mut self.dials
    }

    fn paths(&self, lane: ConnId, sources: &Sources) -> Vec<NetworkPath> {
        self.paths(lane, sources)
    }

    fn hello(&self, lane: ConnId) -> Hello {
        self.hello(lane)
    }

    fn key(&self) -> Token {
        self.key()
    }

    fn address(&self, lane: ConnId) -> SocketAddr {
        self.cluster.lanes[lane.0].view.address()
    }

    fn describe(&self, lane: ConnId) -> String {
        self.describe(lane)
    }

    fn is_away(&self, lane: ConnId) -> bool {
        self.is_away(lane)
    }

    fn lost(&mut self, lane: ConnId, now: Instant) {
        self.lost(lane, now);
    }

    fn progressed(&mut self) {
        self.last_progress = Instant::now();
    }
}
