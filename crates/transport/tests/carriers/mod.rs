//! The transports, each joining two endpoints.

use std::time::Duration;

use mio::net::UnixStream;
use mio::{Events, Poll, Token};
use sumpter_engine::{ConnId, Endpoint};
use sumpter_transport::{LinkError, ShmLink, Side, SimLink, TcpLink, connect, in_process, listen};

use crate::NOW;

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

pub struct Tcp {
    poll: Poll,
    events: Events,
    a: Option<TcpLink>,
    b: TcpLink,
}

impl Tcp {
    pub fn new() -> Tcp {
        let poll = Poll::new().expect("a poll");
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let a = connect(address, None).expect("a connection");
        let b = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock, "{e}"),
            }
        };
        let a = TcpLink::new(a, poll.registry(), Token(0)).expect("registered");
        let b = TcpLink::new(b, poll.registry(), Token(1)).expect("registered");
        Tcp { poll, events: Events::with_capacity(8), a: Some(a), b }
    }

    fn wait(&mut self) {
        for event in events(&mut self.poll, &mut self.events) {
            match (event.token(), &mut self.a) {
                (Token(0), Some(a)) => a.ready(event),
                (Token(0), None) => {}
                _ => self.b.ready(event),
            }
        }
    }

    pub fn close_a(&mut self) {
        let a = self.a.take().expect("still open");
        a.finish_sending().expect("still connected");
    }

    pub fn receive_b(&mut self, b: &mut impl Endpoint) -> Result<usize, LinkError> {
        self.wait();
        Ok(self.b.receive(b, ConnId(0), NOW)?.bytes)
    }
}

impl Carrier for Tcp {
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
                (Token(0), Some(a)) => a.ready(event),
                (Token(0), None) => {}
                _ => self.b.ready(event),
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
