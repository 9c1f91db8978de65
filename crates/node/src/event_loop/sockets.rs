//! The sockets of one event loop: a table by token, the listener, and what is due when.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use sumpter_coordinator::{Origin, Shares};
use sumpter_endpoint::{Link, Placing, Readiness};
use sumpter_transport::{
    FabricLink, ShmLink, TcpLink, TlsConfig, TlsLink, Turns, connect, limit_silence, unix_connect,
};
use sumpter_types::JobId;
use sumpter_wire::{ClientHandshake, Hello, ServerHandshake, Token as RunKey};

use crate::cluster::paths::{NetworkPath, Sources};
use crate::event_loop::greeting::Greeting;
use crate::event_loop::socket::{LOCAL_PEER, Phase, Socket, ToLane, Verdict};
use crate::fabric::PlacedNetwork;
use crate::join::Listeners;

pub(crate) const WAKER: Token = Token(0);
pub(crate) const LISTENER: Token = Token(1);
pub(crate) const UNIX_LISTENER: Token = Token(2);
const FIRST: usize = 3;

/// A handshake takes two round trips; a peer that needs longer is gone, or slow on purpose.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Bytes that all connections of a lane may have on their way to it where several jobs share it.
/// Enough to keep a link of 10 Gb/s busy with a delay of 800 us; and little beside what switches
/// hold, so that these windows say who gets how much of a busy link, and not losses, which would
/// give each connection the same.
const SHARED_WINDOW_BYTES: f64 = (1 << 20) as f64;

/// Providers make progress with their own connections when they are asked, and tell no descriptor
/// of all that happens meanwhile: they are asked so often until the way is open.
const SETTLING_PAUSE: Duration = Duration::from_millis(1);

/// Less would not be worth a packet. TCP links raise it to two segments.
const LEAST_WINDOW_BYTES: u32 = 8 << 10;

#[derive(Debug)]
pub(crate) struct Sockets {
    registry: Registry,
    listeners: Vec<TcpListener>,
    unix: Option<UnixListener>,
    table: Vec<Option<Socket>>,
    greeting: Greeting,
    tls: Option<TlsConfig>,
    /// Where bytes are placed, if they are.
    pub network: Option<PlacedNetwork>,
    /// How long a network in which bytes are placed may do nothing of what it owes.
    patience: Duration,
    /// When ways to place bytes are tried again.
    settle_at: Instant,
    /// What connections that are gone have placed.
    placed: Placing,
    /// Where connections may leave from.
    pub sources: Sources,
    /// Sockets that can move bytes.
    pub turns: Turns,
}

/// How to connect to a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub path: NetworkPath,
    /// The address by which its processes know a lane of this machine, which may share memory.
    pub beside: Option<SocketAddr>,
    /// Silence after which the connection is given up, if that is limited.
    pub silence: Option<Duration>,
}

impl Sockets {
    pub(crate) fn new(
        registry: Registry,
        listeners: Listeners,
        patience: Duration,
    ) -> io::Result<Sockets> {
        let Listeners { tcp: mut listeners, mut unix, sources, tls, network, .. } = listeners;
        for listener in &mut listeners {
            registry.register(listener, LISTENER, Interest::READABLE)?;
        }
        if let Some(unix) = &mut unix {
            registry.register(unix, UNIX_LISTENER, Interest::READABLE)?;
        }
        Ok(Sockets {
            registry,
            listeners,
            unix,
            table: Vec::new(),
            greeting: Greeting::default(),
            tls,
            network,
            patience,
            settle_at: Instant::now(),
            placed: Placing::default(),
            sources,
            turns: Turns::default(),
        })
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
        for listener in 0..self.listeners.len() {
            self.accept_tcp(listener);
        }
        while let Some(unix) = &self.unix {
            match unix.accept() {
                Ok((stream, _)) => {
                    let link = |token, registry: &_| shm(stream, registry, token);
                    self.greet(link, LOCAL_PEER.to_owned(), None);
                }
                Err(error) if self.no_more(&error) => break,
                Err(_) => {}
            }
        }
        while let Some(surplus) = self.greeting.surplus() {
            self.remove(surplus);
        }
    }

    /// Takes what waits at one of the listeners.
    fn accept_tcp(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((stream, peer)) => {
                    let (tls, network) = (self.tls.clone(), self.network.clone());
                    let link = |token, registry: &_| match &tls {
                        None => tcp(stream, registry, token, network),
                        Some(tls) => encrypted(TlsLink::server, stream, registry, token, tls),
                    };
                    self.greet(link, peer.to_string(), Shares::origin(peer.ip()));
                }
                Err(error) if self.no_more(&error) => break,
                Err(_) => {}
            }
        }
    }

    /// Whether accepting is over for now.
    fn no_more(&self, error: &io::Error) -> bool {
        match error.kind() {
            io::ErrorKind::WouldBlock => true,
            io::ErrorKind::Interrupted => false,
            _ => {
                tracing::warn!(%error, "a connection could not be accepted");
                true
            }
        }
    }

    /// Begins the handshake of a connection that was accepted.
    fn greet(
        &mut self,
        link: impl FnOnce(Token, &Registry) -> io::Result<Box<dyn Link>>,
        peer: String,
        origin: Origin,
    ) {
        let phase = Phase::Greeting(ServerHandshake::new(nonce()));
        match self.insert(link, phase, peer) {
            Ok(index) => self.greeting.begin(index, origin),
            Err(error) => tracing::warn!(%error, "a connection was dropped"),
        }
    }

    /// Begins to connect to a lane; by shared memory if it is beside us and listens there.
    pub(crate) fn dial(
        &mut self,
        lane: ToLane,
        Way { path: NetworkPath { to, from }, beside, silence }: Way,
        (hello, key): (Hello, RunKey),
    ) -> io::Result<usize> {
        let handshake = ClientHandshake::new(hello, nonce(), key);
        let limit = Instant::now() + HANDSHAKE_LIMIT;
        let phase = Phase::Dialing { to: lane, handshake, limit };
        if let Some(Ok(stream)) = beside.map(unix_connect) {
            let link = |token, registry: &_| shm(stream, registry, token);
            let index = self.insert(link, phase, LOCAL_PEER.to_owned())?;
            // It is connected already: no event will say so.
            self.turns.ask(index);
            return Ok(index);
        }
        let stream = connect(to, from)?;
        if let Some(limit) = silence {
            limit_silence(&stream, limit)?;
        }
        let (tls, network) = (self.tls.clone(), self.network.clone().filter(|_| hello.placed));
        let link = |token, registry: &_| match &tls {
            None => tcp(stream, registry, token, network),
            Some(tls) => encrypted(TlsLink::client, stream, registry, token, tls),
        };
        let index = self.insert(link, phase, to.to_string())?;
        if let (Some(limit), Some(socket)) = (silence, self.get(index)) {
            // Systems answer at once, however busy the lane is.
            socket.deadline = Some(Instant::now() + limit.min(HANDSHAKE_LIMIT));
        }
        Ok(index)
    }

    /// A handshake is through.
    pub(crate) fn greeted(&mut self, index: usize) {
        self.greeting.end(index);
    }

    /// A socket serves a job of this weight from now on.
    pub(crate) fn assign(&mut self, index: usize, job: JobId, weight: u32) {
        self.turns.assign(index, job.0, weight);
        self.share_windows();
    }

    /// Gives each connection its part of what may be on its way to this lane.
    fn share_windows(&mut self) {
        for (index, part) in self.turns.parts() {
            let Some(socket) = self.table[index].as_mut() else { continue };
            let window = part.map(|part| (part * SHARED_WINDOW_BYTES) as u32);
            let window = window.map(|bytes| bytes.max(LEAST_WINDOW_BYTES));
            if socket.window != window {
                socket.window = window;
                if let Err(error) = socket.link.limit_window(window) {
                    tracing::debug!(peer = %socket.peer, %error, "a window stays as it was");
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Socket> {
        let socket = self.table.get_mut(index)?.take()?;
        self.placed += socket.link.placing();
        self.greeting.end(index);
        if self.turns.release(index) {
            self.share_windows();
        }
        Some(socket)
    }

    /// Removes all sockets that are in some phase.
    pub(crate) fn remove_all(&mut self, doomed: impl Fn(&Phase) -> bool) {
        for index in 0..self.table.len() {
            if self.table[index].as_ref().is_some_and(|socket| doomed(&socket.phase)) {
                self.remove(index);
            }
        }
    }

    /// Handshakes that took too long.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<usize> {
        let late = |s: &Socket| s.deadline.is_some_and(|d| d <= now);
        (0..self.table.len()).filter(|i| self.table[*i].as_ref().is_some_and(late)).collect()
    }

    /// Gives each connection that tries a way to place bytes another turn, from time to time.
    pub(crate) fn settle(&mut self, now: Instant) {
        if now < self.settle_at {
            return;
        }
        self.settle_at = now + SETTLING_PAUSE;
        for (index, socket) in self.table.iter_mut().enumerate() {
            let Some(socket) = socket else { continue };
            if socket.is_settling() {
                socket.link.ready(Readiness::default());
                self.turns.ask(index);
            }
        }
    }

    /// Connections whose networks have done nothing for too long of what they owe.
    pub(crate) fn hung(&mut self, now: Instant) -> Vec<usize> {
        let mut hung = Vec::new();
        for (index, socket) in self.table.iter_mut().enumerate() {
            // A way that is not open yet has a deadline.
            let Some(socket) = socket.as_mut().filter(|s| s.deadline.is_none()) else { continue };
            match socket.judge(now, self.patience) {
                Verdict::Fine => {}
                Verdict::Ask => {
                    socket.link.ready(Readiness::default());
                    self.turns.ask(index);
                }
                Verdict::Hangs => hung.push(index),
            }
        }
        hung
    }

    /// The earliest deadline of a handshake or a network, or when a way to place bytes is tried
    /// again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let sockets = self.table.iter().flatten();
        let settling = sockets.clone().any(Socket::is_settling);
        let now = Instant::now();
        let again = settling.then_some(self.settle_at);
        // What was sent since the last look is not watched yet.
        let unwatched = |s: &Socket| s.link.owed().map(|_| now + self.patience / 2);
        let watched = |s: &Socket| s.watch.as_ref().map(|watch| watch.due(self.patience));
        let judged = |s: &Socket| watched(s).or_else(|| unwatched(s));
        let due = |s: &Socket| s.deadline.into_iter().chain(judged(s)).min();
        again.or_else(|| sockets.filter_map(due).min())
    }

    /// What all connections have placed so far.
    pub(crate) fn placing(&self) -> Placing {
        let mut placed = self.placed;
        self.table.iter().flatten().for_each(|socket| placed += socket.link.placing());
        placed
    }

    /// Whether all that was sent goes out even if the connections are closed.
    pub(crate) fn are_flushed(&self) -> bool {
        self.table.iter().flatten().all(|socket| socket.link.is_flushed())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.table.iter_mut().flatten()
    }

    fn insert(
        &mut self,
        link: impl FnOnce(Token, &Registry) -> io::Result<Box<dyn Link>>,
        phase: Phase,
        peer: String,
    ) -> io::Result<usize> {
        let free = self.table.iter().position(Option::is_none);
        let index = free.unwrap_or(self.table.len());
        let link = link(Token(index + FIRST), &self.registry)?;
        let deadline = Some(Instant::now() + HANDSHAKE_LIMIT);
        let socket = Socket { link, phase, away: true, window: None, deadline, watch: None, peer };
        if index == self.table.len() {
            self.table.push(None);
        }
        self.table[index] = Some(socket);
        Ok(index)
    }
}

/// A TCP connection, which may go on in a network in which bytes are placed.
fn tcp(
    stream: TcpStream,
    registry: &Registry,
    token: Token,
    network: Option<PlacedNetwork>,
) -> io::Result<Box<dyn Link>> {
    // Fails while the connection is being made; it is set again when it is there.
    let _ = stream.set_nodelay(true);
    let link = TcpLink::new(stream, registry, token)?;
    Ok(match network {
        None => Box::new(link),
        Some(network) => Box::new(FabricLink::new(link, registry, token, network.choice)?),
    })
}

/// A TLS connection of whichever side `make` makes.
fn encrypted(
    make: impl FnOnce(TcpStream, &Registry, Token, &TlsConfig) -> io::Result<TlsLink>,
    stream: TcpStream,
    registry: &Registry,
    token: Token,
    tls: &TlsConfig,
) -> io::Result<Box<dyn Link>> {
    // As above.
    let _ = stream.set_nodelay(true);
    Ok(Box::new(make(stream, registry, token, tls)?))
}

fn shm(stream: UnixStream, registry: &Registry, token: Token) -> io::Result<Box<dyn Link>> {
    Ok(Box::new(ShmLink::new(stream, registry, token)?))
}

fn nonce() -> sumpter_wire::Nonce {
    let mut nonce = sumpter_wire::Nonce::default();
    getrandom::fill(&mut nonce).expect("the operating system gives random bytes");
    nonce
}
