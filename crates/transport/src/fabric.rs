//! A connection between two processes whose bytes are placed in registered memory (RDMA, by
//! libfabric); a TCP connection beside it for everything else.
//!
//! TCP carries the handshake, then what each end tells of its registered memory, and its end is the
//! peer's end, however that died. So keys go only to peers that have proved themselves, and are
//! void once the connection is gone: its endpoint and its regions are its own. Where one end has no
//! such network, or the two have different ones, bytes go over TCP as ever.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sumpter_endpoint::{ConnId, Endpoint, Link, LinkError, Now, Placing, Readiness, Received};
use sumpter_endpoint::{TURN_BYTES, Upgrade, Violation};
use sumpter_fabric::{
    Choice, FabricStream, Network, Offer, OfferError, PlacedWrites, Shape, StreamError, Told,
};

use crate::tcp::TcpLink;

/// Polls in a row before other connections have their turn, while a network says that there is
/// more.
const POLLS: usize = 16;

/// One connection.
#[derive(Debug)]
pub struct FabricLink<N: Network = Choice> {
    tcp: TcpLink,
    registry: Registry,
    token: Token,
    placing: N,
    stage: Stage<N::Endpoint>,
    /// Something has happened that was not looked at.
    news: bool,
    /// The next wait for events returns at once because of that.
    woken: bool,
    /// The peer is to be told how much was written even if an event has told it so.
    asked: bool,
    /// The peer's end of the TCP connection is closed.
    ended: bool,
    /// The network does nothing any more.
    hangs: bool,
    /// Why bytes go over TCP after all.
    fallback: Option<String>,
}

#[derive(Debug)]
enum Stage<E> {
    /// Bytes go over TCP.
    Tcp,
    /// An endpoint is opened in another thread; what the peer tells waits.
    Opening(Receiver<Opened<E>>),
    /// Both ends tell what they have.
    Offering(Box<Offering<E>>),
    /// Bytes are placed.
    Placed(Box<Placed<E>>),
}

/// An endpoint's rings and its protocol; in words, why there is none.
type Opened<E> = Result<(FabricStream<E>, String), String>;

#[derive(Debug)]
struct Offering<E> {
    /// What this end has.
    ours: Opened<E>,
    /// What is told, and how much of it was sent.
    message: Vec<u8>,
    sent: usize,
    /// What the peer has told so far.
    told: Vec<u8>,
}

#[derive(Debug)]
struct Placed<E> {
    stream: FabricStream<E>,
    /// What wakes this end; `None` if the peer rings over TCP.
    event_fd: Option<RawFd>,
    registry: Registry,
    /// Writes that were posted when the queue was armed last.
    armed: u8,
    /// Writes of which the peer was told.
    told: u8,
    /// So many writes of the peer's are to arrive, as far as it has told.
    announced: u64,
}

impl<E> Drop for Placed<E> {
    fn drop(&mut self) {
        self.forget_descriptor();
    }
}

impl<N: Network> FabricLink<N> {
    /// Goes over `tcp` until it is [upgraded](Link::upgrade), then places bytes by `placing`; its
    /// events have the same token.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(
        tcp: TcpLink,
        registry: &Registry,
        token: Token,
        placing: N,
    ) -> io::Result<FabricLink<N>> {
        let registry = registry.try_clone()?;
        Ok(FabricLink {
            tcp,
            registry,
            token,
            placing,
            stage: Stage::Tcp,
            news: false,
            woken: false,
            asked: false,
            ended: false,
            hangs: false,
            fallback: None,
        })
    }

    /// Opens an endpoint. Drivers are asked for that, and one that hangs must hold up no other
    /// connection: the thread that asks is left behind then, and ends if they answer.
    fn open(&self) -> Stage<N::Endpoint> {
        let (network, source) = (self.placing.clone(), self.tcp.local_address());
        if !network.may_block() {
            return Stage::Offering(Box::new(Offering::new(open(&network, source))));
        }
        let (sender, opened) = channel();
        // Where the link has been given up, what was opened is closed in the thread.
        let opening = move || drop(sender.send(open(&network, source)));
        match thread::Builder::new().name("sumpter-fabric".to_owned()).spawn(opening) {
            Ok(_) => Stage::Opening(opened),
            Err(error) => Stage::Offering(Box::new(Offering::new(Err(error.to_string())))),
        }
    }

    /// Goes on once the endpoint is open.
    fn take_opened(&mut self) {
        let Stage::Opening(opening) = &self.stage else { return };
        let opened = match opening.try_recv() {
            Ok(opened) => opened,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("the library panicked".to_owned()),
        };
        self.stage = Stage::Offering(Box::new(Offering::new(opened)));
    }

    /// Goes on with what both ends tell each other.
    fn agree(&mut self) -> Result<(), LinkError> {
        let Stage::Offering(offering) = &mut self.stage else { return Ok(()) };
        while offering.sent < offering.message.len() && self.tcp.can_send()? {
            let rest = IoSlice::new(&offering.message[offering.sent..]);
            offering.sent += self.tcp.send(&[rest])?;
        }
        while let Some(missing) = Told::missing(&offering.told).map_err(nonsense)?
            && self.tcp.can_receive()
        {
            let have = offering.told.len();
            offering.told.resize(have + missing, 0);
            let n = self.tcp.recv(&mut [IoSliceMut::new(&mut offering.told[have..])]);
            offering.told.truncate(have + *n.as_ref().unwrap_or(&0));
            n?;
        }
        let is_told = Told::missing(&offering.told).map_err(nonsense)?.is_none();
        if offering.sent < offering.message.len() || !is_told {
            return Ok(());
        }
        let Stage::Offering(offering) = std::mem::replace(&mut self.stage, Stage::Tcp) else {
            return Ok(());
        };
        let Offering { ours, told, .. } = *offering;
        let told = Told::decode(&told).map_err(nonsense)?;
        match (ours, told) {
            (Ok((stream, ours)), Told::Offer { protocol, offer }) if protocol == ours => {
                self.place(stream, &offer)?;
            }
            (Ok((_, ours)), Told::Offer { protocol, .. }) => {
                self.fall_back(format!("this end has {ours}, the peer {protocol}"));
            }
            (Ok((_, ours)), Told::Nothing(reason)) => {
                self.fall_back(format!("this end has {ours}, the peer none: {reason}"));
            }
            (Err(reason), _) => self.fall_back(format!("this end has none: {reason}")),
        }
        self.news = true;
        Ok(())
    }

    fn fall_back(&mut self, reason: String) {
        self.fallback = Some(reason);
    }

    fn place(
        &mut self,
        mut stream: FabricStream<N::Endpoint>,
        offer: &Offer,
    ) -> Result<(), LinkError> {
        stream.join(offer).map_err(broken)?;
        let event_fd = stream.fabric().event_fd();
        if let Some(fd) = event_fd {
            self.registry.register(&mut SourceFd(&fd), self.token, Interest::READABLE)?;
        }
        let registry = self.registry.try_clone()?;
        let placed = Placed { stream, event_fd, registry, armed: 0, told: 0, announced: 0 };
        self.stage = Stage::Placed(Box::new(placed));
        Ok(())
    }

    /// Takes in what has happened.
    fn drive(&mut self) -> Result<(), LinkError> {
        self.take_opened();
        if matches!(self.stage, Stage::Offering(_)) {
            self.agree()?;
        }
        let Stage::Placed(placed) = &mut self.stage else { return Ok(()) };
        if self.news {
            self.news = false;
            // Wake-ups, or the end. A peer that sends more of them than it can have reason to does
            // not keep others from their turn.
            let (mut rings, mut reads) = ([0; 512], 0);
            while !self.ended && self.tcp.can_receive() {
                if reads == POLLS {
                    self.news = true;
                    break;
                }
                reads += 1;
                match self.tcp.recv(&mut [IoSliceMut::new(&mut rings)]) {
                    Ok(0) => break,
                    Ok(n) => placed.take_ring(rings[n - 1]),
                    Err(LinkError::Closed) => self.ended = true,
                    Err(error) => return Err(error),
                }
            }
            let mut polls = 0;
            // A peer that ends in good order does so once all has arrived; of another nothing
            // more will.
            while placed.stream.poll().map_err(broken)? || !(self.ended || placed.arm()) {
                polls += 1;
                if polls == POLLS {
                    self.news = true;
                    break;
                }
            }
        }
        self.look_again()
    }

    /// Sees to it that this is called again when no event would say that it must be.
    fn look_again(&mut self) -> Result<(), LinkError> {
        let Stage::Placed(placed) = &mut self.stage else { return Ok(()) };
        placed.ring(&mut self.tcp, self.asked)?;
        let silent = match placed.event_fd {
            // A network may take in what has arrived while it posts a write, and the descriptor
            // then says nothing of it.
            Some(_) => placed.stream.posted() != placed.armed && !placed.arm(),
            // Without a descriptor no event reports what is under way, in either direction.
            None => placed.has_under_way(),
        };
        self.news |= silent && !self.ended;
        if self.news && !std::mem::replace(&mut self.woken, true) {
            self.tcp.wake(&self.registry, self.token)?;
        }
        Ok(())
    }

    /// Whether nothing more will come.
    fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Placed(placed) => {
                let unread = placed.stream.can_receive() || self.news;
                placed.stream.has_ended() || (self.ended && !unread)
            }
            Stage::Tcp | Stage::Opening(_) | Stage::Offering(_) => false,
        }
    }
}

/// A network that hangs may not close an endpoint either.
impl<N: Network> Drop for FabricLink<N> {
    fn drop(&mut self) {
        if !self.hangs {
            return;
        }
        if let Stage::Placed(placed) = &mut self.stage {
            placed.forget_descriptor();
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Tcp);
        // Without a thread it is dropped here.
        let closing = move || drop(stage);
        let _ = thread::Builder::new().name("sumpter-fabric".to_owned()).spawn(closing);
    }
}

impl<E> Offering<E> {
    fn new(opened: Opened<E>) -> Offering<E>
    where
        E: PlacedWrites,
    {
        let told = match &opened {
            Ok((stream, protocol)) => {
                Told::Offer { protocol: protocol.clone(), offer: stream.offer() }
            }
            Err(reason) => Told::Nothing(reason.clone()),
        };
        Offering { ours: opened, message: told.encode(), sent: 0, told: Vec::new() }
    }
}

impl<E> Placed<E> {
    /// Events do not come for it any more.
    fn forget_descriptor(&mut self) {
        if let Some(fd) = self.event_fd.take() {
            // It is closed with the stream in any case.
            let _ = self.registry.deregister(&mut SourceFd(&fd));
        }
    }
}

impl<E: PlacedWrites> Placed<E> {
    /// See [`Link::owed`].
    fn owed(&self) -> Option<u64> {
        let written = self.stream.owed();
        // Far from the numbers of writes, and from each other.
        let arrivals = || self.is_behind().then(|| !self.stream.arrived());
        let news = || self.is_unannounced().then(|| 1 << 62 | self.stream.counts().writes);
        written.or_else(arrivals).or_else(news)
    }

    /// Whether writes have not arrived of which the peer has told.
    fn is_behind(&self) -> bool {
        self.stream.arrived() < self.announced
    }

    /// Whether writes were posted that were not announced to the peer: it cannot know of one that
    /// has completed here and has not arrived there.
    fn is_unannounced(&self) -> bool {
        self.stream.is_open() && self.stream.posted() != self.told
    }

    /// The peer tells how many writes it has posted.
    fn take_ring(&mut self, posted: u8) {
        self.announced = self.stream.arrived() + self.stream.lacks(posted);
    }

    /// Prepares to wait; false if there is more to poll.
    fn arm(&mut self) -> bool {
        let is_armed = self.stream.arm();
        if is_armed {
            self.armed = self.stream.posted();
        }
        is_armed
    }

    /// Whether there is something that only polling brings on.
    fn has_under_way(&self) -> bool {
        let stream = &self.stream;
        !stream.is_open() || !stream.is_flushed() || self.is_behind()
    }

    /// Tells the peer how much was written: at once where it has no descriptor to wait for, else
    /// when this end is `asked` because nothing has happened for long. This may overtake the
    /// writes.
    fn ring(&mut self, tcp: &mut TcpLink, asked: bool) -> Result<(), LinkError> {
        let (posted, is_due) = (self.stream.posted(), self.event_fd.is_none() || asked);
        if is_due && posted != self.told && tcp.can_send()? {
            // A byte that does not fit is sent by a later call.
            if tcp.send(&[IoSlice::new(&[posted])])? == 1 {
                self.told = posted;
            }
        }
        Ok(())
    }
}

impl<N: Network> Link for FabricLink<N> {
    fn ready(&mut self, readiness: Readiness) {
        self.tcp.ready(readiness);
        (self.news, self.woken) = (true, false);
        // Not an event: the loop checks a link on which nothing has happened.
        self.asked = readiness == Readiness::default();
    }

    fn check_connected(&self) -> io::Result<()> {
        self.tcp.check_connected()
    }

    fn upgrade(&mut self, upgrade: Upgrade) -> io::Result<()> {
        if upgrade.placed {
            self.stage = self.open();
            self.news = true;
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        match &self.stage {
            Stage::Tcp => true,
            Stage::Opening(_) | Stage::Offering(_) => false,
            Stage::Placed(placed) => placed.stream.is_open(),
        }
    }

    fn network(&self) -> Option<String> {
        match &self.stage {
            Stage::Placed(placed) => Some(placed.stream.fabric().network()),
            Stage::Tcp | Stage::Opening(_) | Stage::Offering(_) => None,
        }
    }

    fn placing(&self) -> Placing {
        let Stage::Placed(placed) = &self.stage else { return Placing::default() };
        let counts = placed.stream.counts();
        Placing { bytes: counts.bytes, registrations: counts.registrations }
    }

    fn owed(&self) -> Option<u64> {
        let Stage::Placed(placed) = &self.stage else { return None };
        placed.owed().filter(|_| !self.ended)
    }

    fn abandon(&mut self) {
        self.hangs = self.placing.may_block();
    }

    fn is_flushed(&self) -> bool {
        let Stage::Placed(placed) = &self.stage else { return true };
        // Of a peer that has ended nothing is taken any more.
        self.ended || placed.stream.is_flushed()
    }

    fn take_fallback(&mut self) -> Option<String> {
        self.fallback.take()
    }

    fn limit_window(&self, bytes: Option<u32>) -> io::Result<()> {
        // The rings are the window otherwise.
        if let Stage::Tcp = self.stage { self.tcp.limit_window(bytes) } else { Ok(()) }
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        let Stage::Placed(placed) = &mut self.stage else { return self.tcp.finish_sending() };
        placed.stream.finish().map_err(io::Error::other)?;
        self.news = true;
        self.look_again().map_err(into_io)
    }

    fn can_send(&mut self) -> io::Result<bool> {
        self.drive().map_err(into_io)?;
        match &self.stage {
            Stage::Tcp => self.tcp.can_send(),
            Stage::Opening(_) | Stage::Offering(_) => Ok(false),
            Stage::Placed(placed) => Ok(placed.stream.can_send() && !self.ended),
        }
    }

    fn can_receive(&self) -> bool {
        match &self.stage {
            Stage::Tcp => self.tcp.can_receive(),
            Stage::Opening(_) => false,
            Stage::Offering(_) => self.tcp.can_receive(),
            Stage::Placed(placed) => self.news || placed.stream.can_receive() || self.is_over(),
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.stage {
            Stage::Tcp => self.tcp.send(slices),
            Stage::Opening(_) | Stage::Offering(_) => Ok(0),
            Stage::Placed(placed) => {
                let sent = placed.stream.send(slices).map_err(|e| into_io(broken(e)))?;
                self.look_again().map_err(into_io)?;
                Ok(sent)
            }
        }
    }

    fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
        self.drive()?;
        let received = match &mut self.stage {
            Stage::Tcp => return self.tcp.recv(spaces),
            Stage::Opening(_) | Stage::Offering(_) => return Ok(0),
            Stage::Placed(placed) => placed.stream.recv(spaces).map_err(broken)?,
        };
        self.look_again()?;
        if received == 0 && self.is_over() {
            return Err(LinkError::Closed);
        }
        Ok(received)
    }

    /// As of any link; but a network may say that there is more, and then have nothing.
    fn receive(
        &mut self,
        into: &mut dyn Endpoint,
        conn: ConnId,
        now: Now,
    ) -> Result<Received, LinkError> {
        let mut bytes = 0;
        while self.can_receive() && bytes < TURN_BYTES {
            let n = self.recv(&mut into.space(conn))?;
            if n == 0 {
                break;
            }
            into.filled(conn, n, now)?;
            bytes += n;
        }
        Ok(Received { bytes, more: self.can_receive() })
    }
}

/// An endpoint and its rings.
fn open<N: Network>(network: &N, source: Option<IpAddr>) -> Opened<N::Endpoint> {
    let shape = Shape::default();
    let endpoint = network.open(source, shape.writes());
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let protocol = endpoint.protocol();
    let stream = FabricStream::new(endpoint, shape).map_err(|error| error.to_string())?;
    Ok((stream, protocol))
}

fn nonsense(error: OfferError) -> LinkError {
    Violation::state(error.to_string()).into()
}

fn broken(error: StreamError) -> LinkError {
    match error {
        StreamError::Fabric(error) => io::Error::other(error).into(),
        StreamError::Violation(what) => Violation::state(what).into(),
    }
}

fn into_io(error: LinkError) -> io::Error {
    match error {
        LinkError::Io(error) => error,
        error => io::Error::other(error),
    }
}
