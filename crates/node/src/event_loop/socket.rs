//! One socket of an event loop, from its handshake on.

use std::time::Instant;

use sumpter_endpoint::{ConnId, Link, LinkError};
use sumpter_types::JobId;
use sumpter_wire::{ClientHandshake, HandshakeError, Hello, ServerHandshake, Token};

/// What a socket is for.
#[derive(Debug)]
pub(crate) enum Phase {
    /// To a lane elsewhere; the connection or its handshake is being made, this until `limit`.
    Dialing { to: ToLane, handshake: ClientHandshake, limit: Instant },
    /// From a worker elsewhere; its handshake is under way.
    Greeting(ServerHandshake),
    /// A connection to a lane elsewhere, of a worker or of a server that passes aggregates on.
    ToLane(ToLane),
    /// A connection of our lane's, from one of these elsewhere.
    FromWorker(ConnId),
}

/// A connection to a lane: in which job, and which of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToLane {
    pub job: JobId,
    pub lane: ConnId,
}

/// A connection and what it is for.
#[derive(Debug)]
pub(crate) struct Socket {
    pub link: Box<dyn Link>,
    pub phase: Phase,
    /// Whether it leaves this machine, once it is known whose it is.
    pub away: bool,
    /// How far ahead the peer may be of what is read here, if that is limited.
    pub window: Option<u32>,
    /// When a connection or a handshake that is not finished is given up.
    pub deadline: Option<Instant>,
    pub peer: String,
}

/// What a process with which memory is shared is called in messages: it has no address.
pub(crate) const LOCAL_PEER: &str = "a process of this machine";

impl Socket {
    /// Whether it leads to a process with which memory is shared.
    pub(crate) fn is_shared(&self) -> bool {
        self.peer == LOCAL_PEER
    }

    /// Whether a way to place bytes is being tried, after the handshake.
    pub(crate) fn is_settling(&self) -> bool {
        let through = matches!(self.phase, Phase::ToLane(_) | Phase::FromWorker(_));
        through && self.deadline.is_some()
    }
}

/// Why a handshake ended without a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Bytes are to be placed, and the other end does not.
    #[error(
        "fabric = libfabric here, and the peer places no bytes: its fabric is tcp, or it has no \
         libfabric (`sumpter doctor` there says why)"
    )]
    NotPlaced,
}

impl GreetError {
    /// Whether another attempt must end the same way.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            GreetError::Handshake(error) => matches!(
                error,
                HandshakeError::Token | HandshakeError::Version { .. } | HandshakeError::NotSumpter
            ),
            GreetError::Link(LinkError::Tls(error)) => error.is_permanent(),
            GreetError::NotPlaced => true,
            GreetError::Link(_) => false,
        }
    }
}

/// Drives our side of a connection we opened; true once the lane has accepted.
pub(crate) fn drive_client(
    link: &mut dyn Link,
    handshake: &mut ClientHandshake,
) -> Result<bool, GreetError> {
    if !link.is_established() {
        if !link.establish()? {
            return Ok(false);
        }
        handshake.rekey(|key| bound(link, key));
    }
    loop {
        send_all(link, handshake.pending()).map(|n| handshake.sent(n))?;
        let n = link.recv(&mut [std::io::IoSliceMut::new(handshake.space())])?;
        if n == 0 {
            return Ok(false);
        }
        if handshake.filled(n)? {
            return Ok(true);
        }
    }
}

/// Drives our side of a connection we accepted; who it is, once they have proven it. `key_of` gives
/// the key of a run.
pub(crate) fn drive_server(
    link: &mut dyn Link,
    handshake: &mut ServerHandshake,
    key_of: impl Fn(JobId) -> Option<Token>,
) -> Result<Option<Hello>, GreetError> {
    if !link.establish()? {
        return Ok(None);
    }
    loop {
        flush(link, handshake)?;
        let n = link.recv(&mut [std::io::IoSliceMut::new(handshake.space())])?;
        if n == 0 {
            return Ok(None);
        }
        let bound_key_of = |job| key_of(job).map(|key| bound(link, key));
        if let Some(hello) = handshake.filled(n, bound_key_of)? {
            return Ok(Some(hello));
        }
    }
}

/// What the run's key is proved for on this connection: its ends, if they are known.
fn bound(link: &dyn Link, key: Token) -> Token {
    match link.channel_binding() {
        Some(ends) => key.bound_to(ends),
        None => key,
    }
}

/// Sends what a handshake has to say; true once all is sent.
pub(crate) fn flush(
    link: &mut dyn Link,
    handshake: &mut ServerHandshake,
) -> Result<bool, LinkError> {
    let n = send_all(link, handshake.pending())?;
    handshake.sent(n);
    Ok(handshake.pending().is_empty())
}

fn send_all(link: &mut dyn Link, bytes: &[u8]) -> Result<usize, LinkError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match link.send(&[std::io::IoSlice::new(&bytes[sent..])])? {
            0 => break,
            n => sent += n,
        }
    }
    Ok(sent)
}
