//! The transports, each joining two endpoints.

use std::io::Write as _;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};
use mio::{Events, Poll, Token};
use sumpter_endpoint::{ConnId, Endpoint, Link, LinkError, Readiness, Upgrade};
use sumpter_fabric::{Choice, Network, SimNetwork, SimPort, providers};
use sumpter_transport::{
    FabricLink, ShmLink, Side, SimLink, TcpLink, TlsLink, connect, in_process, listen, readiness,
};

use crate::scripted::Scripted;
use crate::{NOW, certificates};

/// Something that moves bytes between two endpoints.
pub trait Carrier {
    /// Moves what can be moved; whether anything was.
    fn step_on<A: Endpoint, B: Endpoint>(
        &mut self,
        a: (&mut A, ConnId),
        b: (&mut B, ConnId),
    ) -> Result<bool, LinkError>;

    fn step<A: Endpoint, B: Endpoint>(&mut self, a: &mut A, b: &mut B) -> Result<bool, LinkError> {
        self.step_on((a, ConnId(0)), (b, ConnId(0)))
    }
}

/// Steps without progress after which a test gives up.
const PATIENCE: usize = 2000;

/// Carries all that two endpoints have to send.
pub fn carry<C: Carrier>(carrier: &mut C, a: &mut Scripted, b: &mut Scripted) {
    let mut idle = 0;
    while !(a.is_done() && b.is_done()) {
        let moved = carrier.step(a, b).expect("no violation");
        idle = if moved { 0 } else { idle + 1 };
        assert!(idle < PATIENCE, "stuck: {a:?}, {b:?}");
    }
}

pub struct InProcess;

impl InProcess {
    pub fn new() -> InProcess {
        InProcess
    }
}

impl Carrier for InProcess {
    fn step_on<A: Endpoint, B: Endpoint>(
        &mut self,
        a: (&mut A, ConnId),
        b: (&mut B, ConnId),
    ) -> Result<bool, LinkError> {
        Ok(in_process(a, b, NOW, 1 << 20)? > 0)
    }
}

pub struct Sim {
    link: SimLink,
    turn: usize,
}

impl Sim {
    pub fn new() -> Sim {
        Sim { link: SimLink::new(10_000), turn: 0 }
    }

    /// Over writes that are placed in any order.
    pub fn placed() -> Sim {
        Sim { link: SimLink::placed(7), turn: 0 }
    }
}

impl Carrier for Sim {
    fn step_on<A: Endpoint, B: Endpoint>(
        &mut self,
        (a, on_a): (&mut A, ConnId),
        (b, on_b): (&mut B, ConnId),
    ) -> Result<bool, LinkError> {
        self.turn += 1;
        let limit = 1 + self.turn * 7919 % 5000;
        let mut moved = self.link.transmit(Side::A, a, on_a, limit)?;
        moved += self.link.transmit(Side::B, b, on_b, limit)?;
        moved += self.link.deliver(Side::B, b, on_b, limit, NOW)?;
        moved += self.link.deliver(Side::A, a, on_a, limit, NOW)?;
        Ok(moved > 0)
    }
}

/// What has happened; waits only shortly, as the caller counts the waits when nothing will come.
fn events<'a>(poll: &mut Poll, events: &'a mut Events) -> mio::event::Iter<'a> {
    poll.poll(events, Some(Duration::from_millis(2))).expect("events");
    events.iter()
}

/// Both ends of a TCP connection.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = listen(([127, 0, 0, 1], 0).into()).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let a = connect(address, None).expect("a connection");
    loop {
        match listener.accept() {
            Ok((b, _)) => return (a, b),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock, "{e}"),
        }
    }
}

/// A TCP connection, through the links of both ends.
pub struct OverTcp<L> {
    poll: Poll,
    events: Events,
    a: L,
    b: L,
    /// Where bytes are placed, if that is in simulation.
    network: Option<SimNetwork>,
    steps: usize,
}

pub type Tcp = OverTcp<TcpLink>;
pub type Tls = OverTcp<TlsLink>;
pub type Fabric = OverTcp<FabricLink>;
pub type Simulated = OverTcp<FabricLink<SimPort>>;

impl<L: Link> OverTcp<L> {
    fn of(poll: Poll, [a, b]: [L; 2]) -> OverTcp<L> {
        OverTcp { poll, events: Events::with_capacity(8), a, b, network: None, steps: 0 }
    }

    fn wait(&mut self) {
        if let Some(network) = &self.network {
            // In another order each time.
            self.steps += 1;
            for i in 0..self.steps % 7 {
                network.step(self.steps + 5 * i);
            }
        }
        for event in events(&mut self.poll, &mut self.events) {
            match event.token() {
                Token(0) => self.a.ready(readiness(event)),
                _ => self.b.ready(readiness(event)),
            }
        }
    }

    /// All that was sent goes out before the connection ends.
    pub fn close_a(&mut self) {
        self.a.finish_sending().expect("still connected");
    }

    pub fn receive_b(&mut self, b: &mut impl Endpoint) -> Result<usize, LinkError> {
        self.wait();
        let mut nothing = Scripted::new(0, 0, 64);
        self.a.transmit(&mut nothing, ConnId(0))?;
        Ok(self.b.receive(b, ConnId(0), NOW)?.bytes)
    }
}

impl<L: Link> Carrier for OverTcp<L> {
    fn step_on<A: Endpoint, B: Endpoint>(
        &mut self,
        (a, on_a): (&mut A, ConnId),
        (b, on_b): (&mut B, ConnId),
    ) -> Result<bool, LinkError> {
        self.wait();
        let mut moved = self.a.transmit(a, on_a)? + self.b.transmit(b, on_b)?;
        moved += self.a.receive(a, on_a, NOW)?.bytes + self.b.receive(b, on_b, NOW)?.bytes;
        Ok(moved > 0)
    }
}

impl Tcp {
    pub fn new() -> Tcp {
        let poll = Poll::new().expect("a poll");
        let (a, b) = tcp_pair();
        let a = TcpLink::new(a, poll.registry(), Token(0)).expect("registered");
        let b = TcpLink::new(b, poll.registry(), Token(1)).expect("registered");
        Tcp::of(poll, [a, b])
    }
}

impl Tls {
    pub fn new() -> Tls {
        let poll = Poll::new().expect("a poll");
        let (a, b) = tcp_pair();
        let config = certificates::ours();
        let a = TlsLink::client(a, poll.registry(), Token(0), &config).expect("registered");
        let b = TlsLink::server(b, poll.registry(), Token(1), &config).expect("registered");
        let mut both = Tls::of(poll, [a, b]);
        loop {
            both.wait();
            let a = both.a.establish().expect("good certificates");
            if both.b.establish().expect("good certificates") && a {
                return both;
            }
        }
    }
}

impl Fabric {
    /// Over a provider of libfabric's.
    pub fn over(provider: &str) -> Fabric {
        let choice = Choice { provider: Some(provider.to_owned()), device: None };
        Fabric::pair([choice.clone(), choice])
    }

    /// Of two ends that make these choices.
    pub fn pair(choices: [Choice; 2]) -> Fabric {
        Fabric::joined(choices, None)
    }
}

impl Simulated {
    /// In a network that answers.
    pub fn new() -> Simulated {
        Simulated::within(|_| {}).1
    }

    /// In one that says by a descriptor when there is something to poll.
    pub fn with_descriptors() -> Simulated {
        Simulated::within(|network| network.give_descriptors().expect("descriptors")).1
    }

    /// In a network of which `prepare` makes what it is to be.
    pub fn within(prepare: impl FnOnce(&SimNetwork)) -> (SimNetwork, Simulated) {
        let (network, ports) = SimNetwork::unopened();
        prepare(&network);
        let both = Simulated::joined(ports, Some(network.clone()));
        (network, both)
    }

    /// The network does nothing any more.
    pub fn hang(&mut self) {
        self.network = None;
    }

    /// Posts what an end can write, and lets nothing else happen.
    pub fn post(&mut self, side: usize, from: &mut Scripted) {
        let link = if side == 0 { &mut self.a } else { &mut self.b };
        link.transmit(from, ConnId(0)).expect("connected");
    }

    /// Nothing has happened for long: both ends are driven without an event.
    pub fn ask(&mut self) {
        self.a.ready(Readiness::default());
        self.b.ready(Readiness::default());
    }

    /// The process of the first end dies; of its writes under way some are lost.
    pub fn kill_a(self, choice: usize) -> Survivor {
        let network = self.network.expect("it does not hang");
        network.kill(0, choice);
        drop(self.a);
        Survivor { poll: self.poll, events: self.events, link: self.b, network }
    }
}

/// The second end of a connection whose first is gone.
pub struct Survivor {
    poll: Poll,
    events: Events,
    link: FabricLink<SimPort>,
    network: SimNetwork,
}

impl Survivor {
    pub fn receive(&mut self, b: &mut impl Endpoint) -> Result<usize, LinkError> {
        self.network.step(0);
        for event in events(&mut self.poll, &mut self.events) {
            if event.token() == Token(1) {
                self.link.ready(readiness(event));
            }
        }
        Ok(self.link.receive(b, ConnId(0), NOW)?.bytes)
    }
}

impl<N: Network> OverTcp<FabricLink<N>> {
    /// Of ends with these networks, of which the second argument says what happens in them if they
    /// are simulated.
    pub fn joined(networks: [N; 2], simulated: Option<SimNetwork>) -> OverTcp<FabricLink<N>> {
        let poll = Poll::new().expect("a poll");
        let links = fabric_links(&poll, networks);
        OverTcp { network: simulated, ..OverTcp::of(poll, links) }
    }

    /// What the networks of both ends owe.
    pub fn owed(&self) -> [Option<u64>; 2] {
        [self.a.owed(), self.b.owed()]
    }

    /// Whether all that the first end has sent is in the network's hands.
    pub fn is_flushed(&self) -> bool {
        self.a.is_flushed()
    }

    /// Moves what both ends tell each other, until the way is open or they have fallen back.
    pub fn settle(&mut self) -> [Option<String>; 2] {
        let mut nothing = [Scripted::new(0, 0, 64), Scripted::new(0, 0, 64)];
        for _ in 0..PATIENCE {
            if self.a.is_settled() && self.b.is_settled() {
                break;
            }
            let [a, b] = &mut nothing;
            self.step(a, b).expect("connected");
        }
        [self.a.network(), self.b.network()]
    }

    /// Whether both ends know that the way is open.
    pub fn is_settled(&self) -> bool {
        self.a.is_settled() && self.b.is_settled()
    }

    /// Why the ends have fallen back.
    pub fn fallbacks(&mut self) -> [Option<String>; 2] {
        [self.a.take_fallback(), self.b.take_fallback()]
    }
}

/// Both ends of a connection that is to place bytes.
fn fabric_links<N: Network>(poll: &Poll, networks: [N; 2]) -> [FabricLink<N>; 2] {
    let (a, b) = tcp_pair();
    let mut sides = [(a, true), (b, false)].into_iter().enumerate();
    networks.map(|network| {
        let (token, (stream, dialled)) = sides.next().expect("two");
        let tcp = TcpLink::new(stream, poll.registry(), Token(token)).expect("registered");
        let link = FabricLink::new(tcp, poll.registry(), Token(token), network);
        let mut link = link.expect("registered");
        link.upgrade(Upgrade { dialled, placed: true }).expect("connected");
        link
    })
}

/// Whether a provider is here; says what is missing otherwise.
pub fn has_provider(name: &str) -> bool {
    let choice = Choice { provider: Some(name.to_owned()), device: None };
    let Err(reason) = providers(&choice) else { return true };
    // To the terminal, past the capture of a test that passes.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED placed writes over {name}: {reason}");
    false
}

pub struct Shm {
    poll: Poll,
    events: Events,
    a: Option<ShmLink>,
    b: ShmLink,
}

impl Shm {
    pub fn new() -> Shm {
        let poll = Poll::new().expect("a poll");
        let (a, b) = UnixStream::pair().expect("a pair of sockets");
        let mut a = ShmLink::new(a, poll.registry(), Token(0)).expect("registered");
        let mut b = ShmLink::new(b, poll.registry(), Token(1)).expect("registered");
        b.expect_offer();
        a.offer(1 << 16).expect("memory");
        Shm { poll, events: Events::with_capacity(8), a: Some(a), b }
    }

    fn wait(&mut self) {
        for event in events(&mut self.poll, &mut self.events) {
            match (event.token(), &mut self.a) {
                (Token(0), Some(a)) => a.ready(readiness(event)),
                (Token(0), None) => {}
                _ => self.b.ready(readiness(event)),
            }
        }
    }

    pub fn close_a(&mut self, finish: bool) {
        let mut a = self.a.take().expect("still open");
        if finish {
            a.finish_sending().expect("still connected");
        }
    }

    pub fn receive_b(&mut self, b: &mut impl Endpoint) -> Result<usize, LinkError> {
        self.wait();
        Ok(self.b.receive(b, ConnId(0), NOW)?.bytes)
    }
}

impl Carrier for Shm {
    fn step_on<A: Endpoint, B: Endpoint>(
        &mut self,
        (a, on_a): (&mut A, ConnId),
        (b, on_b): (&mut B, ConnId),
    ) -> Result<bool, LinkError> {
        self.wait();
        let link = self.a.as_mut().expect("still open");
        let mut moved = link.transmit(a, on_a)? + self.b.transmit(b, on_b)?;
        moved += link.receive(a, on_a, NOW)?.bytes + self.b.receive(b, on_b, NOW)?.bytes;
        Ok(moved > 0)
    }
}
