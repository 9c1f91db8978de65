//! One socket of an event loop, from its handshake on.

use std::time::{Duration, Instant};

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
    /// While the network below owes something.
    pub watch: Option<Watch>,
    pub peer: String,
}

/// How long a network has done nothing of what it owes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// See [`Link::owed`].
    owed: u64,
    since: Instant,
    /// The first half of the limit is over, and the link has had a turn since.
    asked: bool,
}

/// What a [`Watch`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// The link is to be driven once more: this process may have been stopped itself.
    Ask,
    Hangs,
}

impl Watch {
    /// When the network is judged again.
    pub(crate) fn due(&self, limit: Duration) -> Instant {
        self.since + limit / 2
    }
}

/// What a process with which memory is shared is called in messages: it has no address.
pub(crate) const LOCAL_PEER: &str = "a process of this machine";

impl Socket {
    /// Whether it leads to a process with which memory is shared.
    pub(crate) fn is_shared(&self) -> bool {
        self.peer == LOCAL_PEER
    }

    /// Judges the network below, which may do nothing for `limit`.
    pub(crate) fn judge(&mut self, now: Instant, limit: Duration) -> Verdict {
        let Some(owed) = self.link.owed() else {
            self.watch = None;
            return Verdict::Fine;
        };
        match &mut self.watch {
            Some(watch) if watch.owed == owed => {
                if now < watch.due(limit) {
                    return Verdict::Fine;
                }
                watch.since = now;
                match std::mem::replace(&mut watch.asked, true) {
                    false => Verdict::Ask,
                    true => Verdict::Hangs,
                }
            }
            _ => {
                self.watch = Some(Watch { owed, since: now, asked: false });
                Verdict::Fine
            }
        }
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

#[cfg(test)]
mod tests {
    use std::io::{self, IoSlice, IoSliceMut};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use sumpter_endpoint::Readiness;

    use super::*;

    /// A link whose network owes what a test says; 0 is nothing.
    #[derive(Debug)]
    struct Owing(Arc<AtomicU64>);

    impl Link for Owing {
        fn ready(&mut self, _readiness: Readiness) {}

        fn check_connected(&self) -> io::Result<()> {
            Ok(())
        }

        fn owed(&self) -> Option<u64> {
            Some(self.0.load(Ordering::Relaxed)).filter(|owed| *owed > 0)
        }

        fn finish_sending(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn can_send(&mut self) -> io::Result<bool> {
            Ok(false)
        }

        fn can_receive(&self) -> bool {
            false
        }

        fn send(&mut self, _slices: &[IoSlice<'_>]) -> io::Result<usize> {
            Ok(0)
        }

        fn recv(&mut self, _spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
            Ok(0)
        }
    }

    #[test]
    fn a_network_hangs_that_did_nothing_for_the_limit_though_it_was_driven_meanwhile() {
        let (start, limit) = (Instant::now(), Duration::from_secs(20));
        let owed = Arc::new(AtomicU64::new(0));
        let mut socket = Socket {
            link: Box::new(Owing(owed.clone())),
            phase: Phase::FromWorker(ConnId(0)),
            away: true,
            window: None,
            deadline: None,
            watch: None,
            peer: String::new(),
        };
        let mut at = |s: u64, now: u64| {
            owed.store(now, Ordering::Relaxed);
            socket.judge(start + Duration::from_secs(s), limit)
        };
        use Verdict::{Ask, Fine, Hangs};
        // It owes nothing for as long as it likes.
        assert_eq!([at(0, 0), at(100, 0)], [Fine, Fine]);
        assert_eq!([at(101, 7), at(110, 7), at(111, 7), at(112, 7)], [Fine, Fine, Ask, Fine]);
        // It had only not been asked.
        assert_eq!([at(113, 8), at(122, 8), at(123, 8), at(132, 8)], [Fine, Fine, Ask, Fine]);
        assert_eq!(at(133, 8), Hangs);
        // A process that was stopped does not blame the network.
        assert_eq!([at(134, 9), at(1000, 9), at(1001, 10)], [Fine, Ask, Fine]);
        assert_eq!([at(1002, 0), at(1003, 10), at(1012, 10)], [Fine; 3]);
    }
}
