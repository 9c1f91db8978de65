//! A connection of an event loop, over whichever transport reaches the peer.

use std::io::{self, IoSlice, IoSliceMut};

use mio::Registry;
use mio::event::Event;
use sumpter_engine::{ConnId, Endpoint, Now};
use sumpter_transport::{
    ByteLink, DEFAULT_RING_BYTES, LinkError, Received, ShmLink, TcpLink, TlsLink,
};
use sumpter_wire::Token;

/// A connection to a process elsewhere, or to another one of this machine.
#[derive(Debug)]
pub(crate) enum Link {
    Tcp(TcpLink),
    Tls(Box<TlsLink>),
    Shm(ShmLink),
}

/// Calls the same method of whichever link it is.
macro_rules! either {
    ($link:expr, $method:ident($($argument:expr),*)) => {
        match $link {
            Link::Tcp(link) => link.$method($($argument),*),
            Link::Tls(link) => link.$method($($argument),*),
            Link::Shm(link) => link.$method($($argument),*),
        }
    };
}

impl Link {
    pub(crate) fn ready(&mut self, event: &Event) {
        either!(self, ready(event));
    }

    pub(crate) fn check_connected(&self) -> io::Result<()> {
        either!(self, check_connected())
    }

    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, send(slices))
    }

    pub(crate) fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
        either!(self, recv(spaces))
    }

    pub(crate) fn transmit(&mut self, from: &mut dyn Endpoint, conn: ConnId) -> io::Result<usize> {
        either!(self, transmit(from, conn))
    }

    pub(crate) fn receive(
        &mut self,
        into: &mut dyn Endpoint,
        conn: ConnId,
        now: Now,
    ) -> Result<Received, LinkError> {
        either!(self, receive(into, conn, now))
    }

    pub(crate) fn finish_sending(&mut self) -> io::Result<()> {
        either!(self, finish_sending())
    }

    /// Lets the peer be so far ahead of what is read here; within a machine nothing is limited.
    pub(crate) fn limit_window(&self, bytes: Option<u32>) -> io::Result<()> {
        match self {
            Link::Tcp(link) => link.limit_window(bytes),
            Link::Tls(link) => link.limit_window(bytes),
            Link::Shm(_) => Ok(()),
        }
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) {
        either!(self, deregister(registry));
    }

    /// Goes on with what comes before the first byte of ours; true once that is through.
    pub(crate) fn establish(&mut self) -> Result<bool, LinkError> {
        match self {
            Link::Tcp(_) | Link::Shm(_) => Ok(true),
            Link::Tls(link) => link.establish(),
        }
    }

    pub(crate) fn is_established(&self) -> bool {
        match self {
            Link::Tcp(_) | Link::Shm(_) => true,
            Link::Tls(link) => link.is_established(),
        }
    }

    /// What the run's key is proved for on this connection: its ends, if they are known.
    pub(crate) fn bind(&self, key: Token) -> Token {
        match self {
            Link::Tcp(_) | Link::Shm(_) => key,
            Link::Tls(link) => key.bound_to(link.ends()),
        }
    }

    /// The handshake is through and this side dialled: what follows may go another way.
    pub(crate) fn dialled(&mut self) -> io::Result<()> {
        match self {
            Link::Tcp(_) | Link::Tls(_) => Ok(()),
            Link::Shm(link) => link.offer(DEFAULT_RING_BYTES),
        }
    }

    /// The handshake is through and this side was dialled.
    pub(crate) fn accepted(&mut self) {
        if let Link::Shm(link) = self {
            link.expect_offer();
        }
    }
}
