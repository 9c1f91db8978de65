//! TCP with TLS 1.3 and certificates on both ends.
//!
//! The same contract as [`TcpLink`], on top of one. Bytes count as sent once they are encrypted; up
//! to one batch of them waits here until the kernel takes it. A connection that ends without a
//! farewell ends like one with it: what frames are missing their lengths tell, so a cut is no
//! threat. The handshake must be through ([`TlsLink::establish`]) before anything else is sent or
//! received; the caller that accepts connections bounds how long it may take.

mod buffers;
mod config;
mod error;
mod machine;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr};

use mio::net::TcpStream;
use mio::{Registry, Token};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;

use crate::tcp::TcpLink;
use crate::tls::buffers::{Gather, Target};
use crate::tls::error::objection;
use crate::tls::machine::{Buffers, Machine, Standing, Wish};
use sumpter_endpoint::{Link, LinkError, Readiness, TlsError};

pub use config::{TlsConfig, TlsConfigError};

/// The first bytes of a record of a handshake, and of an alert.
const FIRST_BYTES: [u8; 2] = [22, 21];

/// One encrypted TCP connection.
pub struct TlsLink {
    tcp: TcpLink,
    machine: Machine,
    buffers: Buffers,
    own: rustls::pki_types::CertificateDer<'static>,
    established: bool,
    /// The record layer has given up, and is not to be asked again.
    failed: bool,
    /// The peer sends no more.
    ended: bool,
    /// Nothing more will be sent, except what is in the outbox.
    finishing: bool,
    /// The peer has been notified.
    finished: bool,
}

impl TlsLink {
    /// Takes a connection that this side opened, perhaps still being made, and registers it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn client(
        stream: TcpStream,
        registry: &Registry,
        token: Token,
        config: &TlsConfig,
    ) -> io::Result<TlsLink> {
        // A name is asked for, but neither sent nor compared.
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
        let connection = UnbufferedClientConnection::new(config.client.clone(), name);
        let machine = Machine::Client(connection.map_err(io::Error::other)?);
        Ok(TlsLink::new(TcpLink::new(stream, registry, token)?, machine, config))
    }

    /// Takes a connection that this side accepted, and registers it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn server(
        stream: TcpStream,
        registry: &Registry,
        token: Token,
        config: &TlsConfig,
    ) -> io::Result<TlsLink> {
        let connection = UnbufferedServerConnection::new(config.server.clone());
        let machine = Machine::Server(connection.map_err(io::Error::other)?);
        Ok(TlsLink::new(TcpLink::new(stream, registry, token)?, machine, config))
    }

    fn new(tcp: TcpLink, machine: Machine, config: &TlsConfig) -> TlsLink {
        TlsLink {
            tcp,
            machine,
            buffers: Buffers::default(),
            own: config.own.clone(),
            established: false,
            failed: false,
            ended: false,
            finishing: false,
            finished: false,
        }
    }

    /// Reads once; 0 when there is nothing now.
    fn read(&mut self) -> Result<usize, LinkError> {
        match self.buffers.inbox.fill(&mut self.tcp) {
            Err(LinkError::Closed) if self.is_unanswered() => Err(TlsError::NoAnswer.into()),
            read => read,
        }
    }

    fn is_unanswered(&self) -> bool {
        matches!(self.machine, Machine::Client(_)) && !self.buffers.inbox.heard
    }

    fn drive(&mut self, target: &mut Target<'_, '_>, wish: Wish<'_, '_>) -> Result<(), TlsError> {
        if self.failed {
            return Err(TlsError::Broken("the connection has failed".to_owned()));
        }
        let TlsLink { machine, buffers, .. } = self;
        let first = buffers.inbox.unread().first().copied();
        match machine.drive(buffers, target, wish) {
            Ok(standing) => {
                self.established |= standing == Standing::Open;
                self.ended |= standing == Standing::Ended;
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                // Tells the peer why, if it still listens.
                let _ = self.flush();
                let begun = self.machine.state().protocol_version().is_some();
                let tls = begun || first.is_none_or(|byte| FIRST_BYTES.contains(&byte));
                Err(if tls { objection(error) } else { TlsError::NotTls })
            }
        }
    }

    /// Sends what is encrypted; true once all is.
    fn flush(&mut self) -> io::Result<bool> {
        let empty = self.buffers.outbox.flush(&mut self.tcp)?;
        if empty && self.finishing && !self.finished {
            self.finished = true;
            self.tcp.finish_sending()?;
        }
        Ok(empty)
    }
}

impl Link for TlsLink {
    fn ready(&mut self, readiness: Readiness) {
        self.tcp.ready(readiness);
    }

    fn check_connected(&self) -> io::Result<()> {
        self.tcp.check_connected()
    }

    /// The side that opened the connection learns only later whether its own certificate is
    /// accepted. On an error the other end has got an alert.
    fn establish(&mut self) -> Result<bool, LinkError> {
        while !self.established {
            self.drive(&mut Target::new(&mut []), Wish::Nothing)?;
            let flushed = self.flush();
            if !self.established && self.read()? == 0 {
                flushed?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_established(&self) -> bool {
        self.established
    }

    /// The certificates of both ends. Empty before the handshake is complete.
    fn channel_binding(&self) -> Option<[&[u8]; 2]> {
        let peer = self.machine.state().peer_certificates().and_then(|chain| chain.first());
        let peer = peer.map_or(&[][..], |certificate| certificate);
        Some(match &self.machine {
            Machine::Client(_) => [&self.own, peer],
            Machine::Server(_) => [peer, &self.own],
        })
    }

    fn limit_window(&self, bytes: Option<u32>) -> io::Result<()> {
        self.tcp.limit_window(bytes)
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        if !self.finishing && self.established {
            // A connection that has failed has sent its alert already.
            let _ = self.drive(&mut Target::new(&mut []), Wish::Close);
        }
        self.finishing = true;
        self.flush().map(|_| ())
    }

    fn can_send(&mut self) -> io::Result<bool> {
        // Also when nothing may be sent any more: what was is driven on.
        let flushed = self.flush()?;
        Ok(flushed && self.established && !self.finishing && self.tcp.can_send()?)
    }

    fn can_receive(&self) -> bool {
        !self.buffers.plain.is_empty() || self.ended || self.tcp.can_receive()
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.can_send()? {
            return Ok(0);
        }
        let mut gather = Gather::new(slices);
        let wish = Wish::Encrypt(&mut gather);
        self.drive(&mut Target::new(&mut []), wish).map_err(io::Error::other)?;
        self.flush()?;
        Ok(gather.taken)
    }

    fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
        let flushed = self.flush();
        let mut target = Target::new(spaces);
        target.take(&mut self.buffers.plain);
        while target.filled == 0 {
            if self.ended {
                return Err(LinkError::Closed);
            }
            if self.read()? == 0 {
                // What the peer said last counts for more than that nothing can be sent.
                flushed?;
                break;
            }
            self.drive(&mut target, Wish::Nothing)?;
        }
        Ok(target.filled)
    }
}

impl fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLink").field("established", &self.established).finish_non_exhaustive()
    }
}
