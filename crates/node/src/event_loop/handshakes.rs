//! Connections until bytes of tensors go over them: the handshake of either side, and how it goes
//! on after that.

use std::io;
use std::time::Instant;

use sumpter_endpoint::{LinkError, Upgrade};
use sumpter_wire::{HandshakeError, Hello};

use crate::event_loop::socket::{GreetError, Phase, ToLane, drive_client, drive_server, flush};
use crate::event_loop::sockets::HANDSHAKE_LIMIT;
use crate::event_loop::{EventLoop, user};

impl EventLoop {
    /// Whether bytes between machines must be placed.
    fn must_place(&self) -> bool {
        self.sockets.network.as_ref().is_some_and(|network| network.is_required)
    }

    pub(super) fn advance_greeting(&mut self, index: usize) {
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Greeting(handshake) = &mut socket.phase else { return };
        let key_of = |job| self.lane_side.key_of(job);
        match drive_server(socket.link.as_mut(), handshake, key_of) {
            Ok(None) => {}
            Ok(Some(hello)) => self.admit(index, &hello),
            Err(GreetError::Link(LinkError::Closed)) => drop(self.sockets.remove(index)),
            // A peer may know of the start before this lane does; it dials again.
            Err(GreetError::Handshake(HandshakeError::UnknownJob)) => self.refuse(index),
            Err(error) => {
                tracing::warn!(peer = %socket.peer, %error, "a connection was refused");
                self.report.counters.refused += 1;
                self.refuse(index);
            }
        }
    }

    /// Sends what a handshake says last, and closes.
    fn refuse(&mut self, index: usize) {
        let Some(socket) = self.sockets.remove(index) else { return };
        let (Phase::Greeting(mut handshake), mut link) = (socket.phase, socket.link) else {
            return;
        };
        // The few bytes of a refusal fit any socket's buffer.
        let _ = flush(link.as_mut(), &mut handshake);
        let _ = link.finish_sending();
    }

    fn admit(&mut self, index: usize, hello: &Hello) {
        let placed = hello.placed && self.sockets.network.is_some();
        let unplaced = self.must_place() && !placed && self.lane_side.is_away(hello);
        let verdict = match () {
            // A peer that is not leaving saw the end of its connection, and dials again.
            () if self.said_goodbye => Err("this lane's process is leaving".to_owned()),
            () if unplaced => {
                Err("fabric = libfabric there, and this end places no bytes".to_owned())
            }
            () => self.lane_side.open(hello),
        };
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Greeting(handshake) = &mut socket.phase else { return };
        match verdict {
            Err(reason) => {
                tracing::debug!(peer = %socket.peer, %reason, "a connection was refused");
                handshake.refuse(&reason);
                self.refuse(index);
            }
            Ok((conn, old)) => {
                handshake.accept(placed);
                // As above: an acceptance is four bytes.
                let _ = flush(socket.link.as_mut(), handshake);
                // Nothing is sent here: a link that continues elsewhere waits for the other end.
                let _ = socket.link.upgrade(Upgrade { dialled: false, placed });
                socket.phase = Phase::FromWorker(conn);
                socket.away = self.lane_side.is_away(hello);
                // The end that dials gives up first: it knows what to try next.
                socket.deadline = placed.then(|| Instant::now() + 2 * HANDSHAKE_LIMIT);
                self.sockets.greeted(index);
                self.sockets.assign(index, hello.job.run(), self.lane_side.weight_of(hello.job));
                if let Some(stale) = old.and_then(|old| self.lane_side.detach(old)) {
                    self.sockets.remove(stale);
                }
                self.lane_side.attach(conn, index);
                self.advance(index);
            }
        }
    }

    pub(super) fn advance_dialing(&mut self, index: usize) {
        let demanded = self.must_place();
        let Some(socket) = self.sockets.get(index) else { return };
        let Phase::Dialing { to, handshake, limit } = &mut socket.phase else { return };
        let to = *to;
        let outcome = match socket.link.check_connected() {
            // Not there yet; another event will come.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(e) => Err(GreetError::Link(LinkError::Io(e))),
            Ok(()) => {
                socket.deadline = Some(*limit);
                drive_client(socket.link.as_mut(), handshake)
            }
        };
        let outcome = outcome.and_then(|through| {
            if through {
                let placed = handshake.places();
                if demanded && handshake.would_place() && !placed {
                    return Err(GreetError::NotPlaced);
                }
                socket.link.upgrade(Upgrade { dialled: true, placed }).map_err(LinkError::Io)?;
                socket.deadline = placed.then(|| Instant::now() + HANDSHAKE_LIMIT);
            }
            Ok(through)
        });
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                socket.phase = Phase::ToLane(to);
                if let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) {
                    socket.away = run.is_away(to.lane);
                    run.dials().succeeded(to.lane, Instant::now());
                    run.client().connected(to.lane);
                }
                if self.server_hubs.get_mut(to.job).is_some() {
                    self.sockets.assign(index, to.job.run(), self.lane_side.weight_of(to.job));
                }
                self.advance(index);
            }
            Err(error) => {
                let shared = socket.is_shared();
                self.sockets.remove(index);
                if let GreetError::Link(error) = &error {
                    self.judge_path(to, error);
                }
                if let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) {
                    run.dials().avoid_sharing(to.lane, shared);
                }
                // Another process than the lane may have answered.
                self.dial_failed(to, &error.to_string(), error.is_permanent() && !shared);
            }
        }
    }

    /// Takes note of what became of a connection that was to place bytes.
    pub(super) fn settle_link(&mut self, index: usize) {
        let required = self.must_place();
        let Some(socket) = self.sockets.get(index) else { return };
        if socket.deadline.is_none() || !socket.link.is_settled() {
            return;
        }
        socket.deadline = None;
        match (socket.link.network(), socket.link.take_fallback()) {
            (Some(network), _) => {
                tracing::info!(peer = %socket.peer, %network, "bytes are placed");
                self.report.counters.placed += 1;
            }
            (None, Some(reason)) if required => {
                let to = match socket.phase {
                    Phase::ToLane(to) => Some(to),
                    _ => None,
                };
                let reason = format!("fabric = libfabric: {reason}");
                self.disconnect(index, &LinkError::Io(io::Error::other(reason.clone())));
                to.into_iter().for_each(|to| self.dial_failed(to, &reason, true));
            }
            (None, Some(reason)) => {
                tracing::info!(peer = %socket.peer, %reason, "bytes go over TCP");
            }
            (None, None) => {}
        }
    }

    /// A connection to a lane is gone before a byte could be placed there.
    pub(super) fn cannot_place(&mut self, to: ToLane, error: &LinkError) {
        // A peer that has died meanwhile is judged as any other.
        let LinkError::Io(cause) = error else { return };
        if cause.kind() != io::ErrorKind::Other {
            return;
        }
        if self.must_place() {
            return self.dial_failed(to, &format!("fabric = libfabric: {cause}"), true);
        }
        if let Some(run) = user(&mut self.worker_side, &mut self.server_hubs, to.job) {
            tracing::warn!(lane = %run.describe(to.lane), %error, "going on over TCP");
            run.dials().avoid_placing(to.lane);
        }
    }
}
