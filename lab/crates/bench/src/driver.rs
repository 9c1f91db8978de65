//! The event loop of the benchmarks: sleeps until a socket is ready, then lets the endpoint move
//! what it can, as the loops of workers and servers do. It counts the system calls it causes.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token};
use sumpter_endpoint::{
    ConnId, Endpoint, Incoming, Link, LinkError, Now, Outgoing, Readiness, Violation,
};
use sumpter_transport::{TcpLink, Turns, readiness};

const MAX_EVENTS: usize = 256;

/// Between two looks at links that have not found their way.
const SETTLING_PAUSE: Duration = Duration::from_millis(1);

/// System calls of one or several loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads from sockets.
    pub reads: u64,
    /// Writes to sockets.
    pub writes: u64,
    /// Waits for readiness.
    pub waits: u64,
}

impl std::ops::Sub for Calls {
    type Output = Calls;

    fn sub(self, earlier: Calls) -> Calls {
        Calls {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            waits: self.waits - earlier.waits,
        }
    }
}

/// Counts that several loops share.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    waits: AtomicU64,
}

impl Counters {
    pub(crate) fn calls(&self) -> Calls {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Calls { reads: read(&self.reads), writes: read(&self.writes), waits: read(&self.waits) }
    }
}

/// An endpoint whose driver's calls are counted: each offer of bytes leads to one write, each
/// offer of space to one read.
struct Counted<'a> {
    endpoint: &'a mut dyn Endpoint,
    counters: &'a Counters,
}

impl Endpoint for Counted<'_> {
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_> {
        let pending = self.endpoint.pending(conn);
        self.counters.writes.fetch_add(u64::from(!pending.is_empty()), Ordering::Relaxed);
        pending
    }

    fn sent(&mut self, conn: ConnId, n: usize) {
        self.endpoint.sent(conn, n);
    }

    fn space(&mut self, conn: ConnId) -> Incoming<'_> {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.endpoint.space(conn)
    }

    fn filled(&mut self, conn: ConnId, n: usize, now: Now) -> Result<(), Violation> {
        self.endpoint.filled(conn, n, now)
    }

    fn end_turn(&mut self) {
        self.endpoint.end_turn();
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        self.endpoint.next_dirty()
    }
}

/// One thread's loop; connection `i` is `ConnId(i)` of the endpoint it drives.
#[derive(Debug)]
pub(crate) struct Driver {
    poll: Poll,
    events: Events,
    links: Vec<Box<dyn Link>>,
    turns: Turns,
    origin: Instant,
    counters: Arc<Counters>,
}

impl Driver {
    pub(crate) fn new(streams: Vec<TcpStream>, counters: Arc<Counters>) -> io::Result<Driver> {
        let links = |registry: &Registry| {
            let links = streams.into_iter().enumerate().map(|(index, stream)| {
                Ok(Box::new(tcp_link(stream, registry, Token(index))?) as Box<dyn Link>)
            });
            links.collect()
        };
        Driver::of(links, counters)
    }

    /// Of other links; that of connection `i` has the token `i`.
    pub(crate) fn of(
        links: impl FnOnce(&Registry) -> io::Result<Vec<Box<dyn Link>>>,
        counters: Arc<Counters>,
    ) -> io::Result<Driver> {
        let poll = Poll::new()?;
        let links = links(poll.registry())?;
        Ok(Driver {
            poll,
            events: Events::with_capacity(MAX_EVENTS),
            links,
            turns: Turns::default(),
            origin: Instant::now(),
            counters,
        })
    }

    /// Whether all links have found their way.
    pub(crate) fn is_settled(&self) -> bool {
        self.links.iter().all(|link| link.is_settled())
    }

    /// The networks in which links place bytes.
    pub(crate) fn networks(&self) -> impl Iterator<Item = String> {
        self.links.iter().filter_map(|link| link.network())
    }

    /// Waits until something can move, and moves it.
    pub(crate) fn turn(&mut self, endpoint: &mut dyn Endpoint) -> Result<(), LinkError> {
        let settling = self.links.iter().map(|link| !link.is_settled()).enumerate();
        let settling: Vec<usize> = settling.filter(|one| one.1).map(|one| one.0).collect();
        let timeout = match (self.turns.is_empty(), settling.is_empty()) {
            (false, _) => Some(Duration::ZERO),
            // No event may say that a way has opened.
            (true, false) => Some(SETTLING_PAUSE),
            (true, true) => None,
        };
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &self.events {
            let index = event.token().0;
            self.links[index].ready(readiness(event));
            self.turns.ask(index);
        }
        for index in settling {
            self.links[index].ready(Readiness::default());
            self.turns.ask(index);
        }
        let endpoint = &mut Counted { endpoint, counters: &self.counters };
        for _ in 0..self.turns.len() {
            let Some(index) = self.turns.begin() else { break };
            let (link, conn) = (&mut self.links[index], ConnId(index));
            link.transmit(endpoint, conn)?;
            if link.receive(endpoint, conn, self.origin.elapsed())?.more {
                self.turns.ask(index);
            }
            // At once, while what was summed is in cache.
            while let Some(conn) = endpoint.next_dirty() {
                self.links[conn.0].transmit(endpoint, conn)?;
            }
        }
        endpoint.end_turn();
        while let Some(conn) = endpoint.next_dirty() {
            self.links[conn.0].transmit(endpoint, conn)?;
        }
        Ok(())
    }

    /// Sends all that the endpoint has for its connections, though it may wait.
    pub(crate) fn drain(&mut self, endpoint: &mut dyn Endpoint) -> Result<(), LinkError> {
        for index in 0..self.links.len() {
            loop {
                let counted = &mut Counted { endpoint, counters: &self.counters };
                self.links[index].transmit(counted, ConnId(index))?;
                if self.links[index].can_send()? {
                    break;
                }
                self.turn(endpoint)?;
            }
        }
        Ok(())
    }

    /// Sends what the endpoint has to say of its own accord, before the first turn.
    pub(crate) fn flush(&mut self, endpoint: &mut dyn Endpoint) -> Result<(), LinkError> {
        let endpoint = &mut Counted { endpoint, counters: &self.counters };
        while let Some(conn) = endpoint.next_dirty() {
            self.links[conn.0].transmit(endpoint, conn)?;
        }
        Ok(())
    }
}

/// The link of a connected socket.
pub(crate) fn tcp_link(
    stream: TcpStream,
    registry: &Registry,
    token: Token,
) -> io::Result<TcpLink> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    TcpLink::new(mio::net::TcpStream::from_std(stream), registry, token)
}

/// Pairs of connected sockets over loopback: ours, theirs.
pub(crate) fn loopback_pairs(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let pair = |_| {
        let ours = TcpStream::connect(address)?;
        let (theirs, peer) = listener.accept()?;
        // Anybody may connect to a listener: only our own connection counts.
        if peer != ours.local_addr()? {
            return Err(io::Error::other("an unknown process connected to the benchmark's port"));
        }
        Ok((ours, theirs))
    };
    (0..count).map(pair).collect()
}
