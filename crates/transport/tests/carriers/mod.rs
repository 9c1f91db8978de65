//! The transports, each joining two endpoints.

use std::io::Write as _;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};
use mio::{Events, Poll, Token};
use sumpter_endpoint::{ConnId, Endpoint, Link, LinkError, Upgrade};
use sumpter_fabric::{Choice, providers};
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
        let mut moved = self.link.transmit(Side::A, a, on_a, limit);
        moved += self.link.transmit(Side::B, b, on_b, limit);
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

/// A connection over TCP, through the links of both ends.
macro_rules! over_tcp {
    ($name:ident, $link:ty) => {
        pub struct $name {
            poll: Poll,
            events: Events,
            a: $link,
            b: $link,
        }

        impl $name {
            fn wait(&mut self) {
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

        impl Carrier for $name {
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
    };
}

over_tcp!(Tcp, TcpLink);
over_tcp!(Tls, TlsLink);
over_tcp!(Fabric, FabricLink);

impl Tcp {
    pub fn new() -> Tcp {
        let poll = Poll::new().expect("a poll");
        let (a, b) = tcp_pair();
        let a = TcpLink::new(a, poll.registry(), Token(0)).expect("registered");
        let b = TcpLink::new(b, poll.registry(), Token(1)).expect("registered");
        Tcp { poll, events: Events::with_capacity(8), a, b }
    }
}

impl Tls {
    pub fn new() -> Tls {
        let poll = Poll::new().expect("a poll");
        let (a, b) = tcp_pair();
        let config = certificates::ours();
        let a = TlsLink::client(a, poll.registry(), Token(0), &config).expect("registered");
        let b = TlsLink::server(b, poll.registry(), Token(1), &config).expect("registered");
        let mut both = Tls { poll, events: Events::with_capacity(8), a, b };
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
    pub fn pair([of_a, of_b]: [Choice; 2]) -> Fabric {
        let poll = Poll::new().expect("a poll");
        let (a, b) = tcp_pair();
        let registry = poll.registry();
        let link = |stream, token, choice| {
            let tcp = TcpLink::new(stream, registry, token).expect("registered");
            FabricLink::new(tcp, registry, token, choice).expect("registered")
        };
        let (a, b) = (link(a, Token(0), of_a), link(b, Token(1), of_b));
        let mut both = Fabric { poll, events: Events::with_capacity(8), a, b };
        both.a.upgrade(Upgrade { dialled: true, placed: true }).expect("connected");
        both.b.upgrade(Upgrade { dialled: false, placed: true }).expect("connected");
        both
    }

    /// Moves what both ends tell each other, until the way is open or they have fallen back.
    pub fn settle(&mut self) -> [Option<String>; 2] {
        let mut nothing = Scripted::new(0, 0, 64);
        for _ in 0..2000 {
            if self.a.is_settled() && self.b.is_settled() {
                break;
            }
            self.wait();
            for link in [&mut self.a, &mut self.b] {
                link.transmit(&mut nothing, ConnId(0)).expect("connected");
                link.receive(&mut nothing, ConnId(0), NOW).expect("connected");
            }
        }
        [self.a.network(), self.b.network()]
    }

    /// Why the ends have fallen back.
    pub fn fallbacks(&mut self) -> [Option<String>; 2] {
        [self.a.take_fallback(), self.b.take_fallback()]
    }
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
