//! The sockets of one event loop: a table by token, the listener, and what is due when.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use sumpter_transport::{TcpLink, connect};
use sumpter_wire::{ClientHandshake, Hello, ServerHandshake, Token as JobToken};

use crate::socket::{Phase, Socket};

pub(crate) const WAKER: Token = Token(0);
pub(crate) const LISTENER: Token = Token(1);
const FIRST: usize = 2;

/// A handshake takes two round trips; whoever needs longer is slow on purpose or gone.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections that may be in their handshake at once; beyond, the oldest is dropped.
const MAX_GREETING: usize = 256;

#[derive(Debug)]
pub(crate) struct Sockets {
    registry: Registry,
    listener: TcpListener,
    token: JobToken,
    table: Vec<Option<Socket>>,
    greeting: VecDeque<usize>,
    /// Sockets with more to read that had their turn.
    pub again: VecDeque<usize>,
}

impl Sockets {
    pub(crate) fn new(
        registry: Registry,
        mut listener: TcpListener,
        token: JobToken,
    ) -> io::Result<Sockets> {
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let (table, greeting, again) = Default::default();
        Ok(Sockets { registry, listener, token, table, greeting, again })
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Socket> {
        self.table.get_mut(index)?.as_mut()
    }

    /// The socket of an event's token.
    pub(crate) fn index(token: Token) -> usize {
        token.0 - FIRST
    }

    /// Takes every connection that waits.
    pub(crate) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    let handshake = ServerHandshake::new(nonce(), self.token.clone());
                    let phase = Phase::Greeting(handshake);
                    match self.insert(stream, phase, peer) {
                        Ok(index) => self.greeting.push_back(index),
                        Err(error) => tracing::warn!(%peer, %error, "a connection was dropped"),
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    break;
                }
            }
        }
        while self.greeting.len() > MAX_GREETING {
            let oldest = self.greeting.pop_front().expect("just counted");
            if self.get(oldest).is_some_and(|s| matches!(s.phase, Phase::Greeting(_))) {
                self.remove(oldest);
            }
        }
    }

    /// Begins to connect to a lane.
    pub(crate) fn dial(
        &mut self,
        lane: sumpter_engine::ConnId,
        address: SocketAddr,
        source: Option<IpAddr>,
        hello: Hello,
    ) -> io::Result<usize> {
        let stream = connect(address, source)?;
        let handshake = ClientHandshake::new(hello, nonce(), self.token.clone());
        self.insert(stream, Phase::Dialing { lane, handshake }, address)
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Socket> {
        let mut socket = self.table.get_mut(index)?.take()?;
        socket.link.deregister(&self.registry);
        self.greeting.retain(|i| *i != index);
        Some(socket)
    }

    /// The address the listener is bound to, if it is bound to one.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.listener.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
    }

    /// Handshakes that took too long.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<usize> {
        let late = |s: &Socket| s.deadline.is_some_and(|d| d <= now);
        (0..self.table.len()).filter(|i| self.table[*i].as_ref().is_some_and(late)).collect()
    }

    /// The earliest deadline of a handshake.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.table.iter().flatten().filter_map(|s| s.deadline).min()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.table.iter_mut().flatten()
    }

    fn insert(
        &mut self,
        stream: mio::net::TcpStream,
        phase: Phase,
        peer: SocketAddr,
    ) -> io::Result<usize> {
        let free = self.table.iter().position(Option::is_none);
        let index = free.unwrap_or(self.table.len());
        let _ = stream.set_nodelay(true);
        let link = TcpLink::new(stream, &self.registry, Token(index + FIRST))?;
        let deadline = Some(Instant::now() + HANDSHAKE_LIMIT);
        let socket = Socket { link, phase, deadline, peer: peer.to_string() };
        if index == self.table.len() {
            self.table.push(None);
        }
        self.table[index] = Some(socket);
        Ok(index)
    }
}

fn nonce() -> sumpter_wire::Nonce {
    let mut nonce = sumpter_wire::Nonce::default();
    getrandom::fill(&mut nonce).expect("the operating system gives random bytes");
    nonce
}
