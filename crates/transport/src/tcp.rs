//! TCP without copies of our own: gathering writes from, and scattering reads into, the memory
//! the endpoint names. Readiness is edge-triggered; nothing polls.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use sumpter_endpoint::{Link, LinkError, Readiness};

/// Connections that may wait to be accepted: more than any job has workers.
const BACKLOG: i32 = 1024;

/// Bytes the kernel may hold that it has not sent yet. More would let a connection run ahead of
/// the others and of what is urgent; less would wake us more often, and leave the link idle if we
/// come late.
const UNSENT_BYTES: u32 = 64 << 10;

/// Between two probes of an idle connection whose silence is limited: the shortest there is.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// One TCP connection.
#[derive(Debug)]
pub struct TcpLink {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// The peer has said that it sends no more: read until the end shows.
    ending: bool,
}

impl TcpLink {
    /// Takes a connection, perhaps still being made, and registers it for both directions.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(mut stream: TcpStream, registry: &Registry, token: Token) -> io::Result<TcpLink> {
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(TcpLink { stream, readable: false, writable: false, ending: false })
    }

    /// Makes the next wait for events return at once, with one of this connection's.
    pub(crate) fn wake(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // What is ready when it is registered is an event, and a connection without anything on
        // its way out is ready to be written to.
        registry.reregister(&mut self.stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// The address of this end, once it is connected.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|address| address.ip())
    }
}

/// A sender waits for its persist timer, 200 ms and more, while less than a segment fits the window
/// (silly window avoidance: RFC 9293, section 3.8.6.2.1). Segments take 64 KiB on loopback and 9 KB
/// where frames are jumbo.
const LEAST_WINDOW_SEGMENTS: u32 = 2;

impl Link for TcpLink {
    fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.ending |= readiness.ended;
    }

    fn check_connected(&self) -> io::Result<()> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => self.stream.peer_addr().map(|_| self.stream.set_nodelay(true))?,
        }
    }

    fn limit_window(&self, bytes: Option<u32>) -> io::Result<()> {
        // First, since a window that cannot be freed again must not be limited: see there.
        free_window(&self.stream)?;
        let Some(bytes) = bytes else { return Ok(()) };
        let socket = SockRef::from(&self.stream);
        let least = LEAST_WINDOW_SEGMENTS * socket.tcp_mss()?;
        // The system doubles this for what it needs beside the bytes.
        socket.set_recv_buffer_size(bytes.max(least) as usize)
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    fn can_send(&mut self) -> io::Result<bool> {
        Ok(self.writable)
    }

    fn can_receive(&self) -> bool {
        self.readable
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.writable {
            return Ok(0);
        }
        loop {
            match self.stream.write_vectored(slices) {
                Ok(n) => {
                    // A short write means that the buffer is full; an event announces new room.
                    self.writable = n == slices.iter().map(|s| s.len()).sum();
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return Ok(0);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn recv(&mut self, spaces: &mut [IoSliceMut<'_>]) -> Result<usize, LinkError> {
        if !self.readable {
            return Ok(0);
        }
        loop {
            match self.stream.read_vectored(spaces) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    // A short read means that the buffer is empty, unless the end is next.
                    self.readable = self.ending || n == spaces.iter().map(|s| s.len()).sum();
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(0);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Lets the system find the size of the receive buffer again, after it was set. Linux can do this
/// since 5.15.
fn free_window(stream: &TcpStream) -> io::Result<()> {
    let locked: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as the stream, and the value outlives the call.
    let outcome = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUF_LOCK,
            (&raw const locked).cast(),
            size_of_val(&locked) as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Begins to connect to `address`, from `source` if one is given.
///
/// # Errors
/// What the operating system says; later failures show in [`TcpLink::check_connected`].
pub fn connect(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(source) = source.filter(|ip| ip.is_ipv4() == address.is_ipv4()) else {
        return TcpStream::connect(address);
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    match socket.connect(&address.into()) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Gives up a connection on which the peer's system has acknowledged nothing for so long, or had no
/// room for what is sent, with an error that [`is_silence`]. Idle connections are probed once a
/// second.
///
/// # Errors
/// What the operating system says.
pub fn limit_silence(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new().with_time(PROBE_PAUSE).with_interval(PROBE_PAUSE);
    socket.set_tcp_keepalive(&probes)?;
    // For probes as well (tcp(7)).
    socket.set_tcp_user_timeout(Some(limit))
}

/// Whether an error says that nothing arrives by the way that a connection took: its interface or
/// the peer's is down, or has no address any more. A peer that refuses is there.
#[must_use]
pub fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::AddrNotAvailable
    )
}

/// Listens on `address`; port 0 takes a free one.
///
/// # Errors
/// What the operating system says, such as that the port is in use.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use mio::Poll;

    use super::*;

    /// A sender and a receiver whose segments have at most so many bytes, or as loopback has them.
    fn connected(poll: &Poll, segment: Option<u32>) -> (std::net::TcpStream, TcpLink) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        if let Some(bytes) = segment {
            listener.set_tcp_mss(bytes).unwrap();
        }
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let sender = std::net::TcpStream::connect(address).unwrap();
        let receiver = std::net::TcpStream::from(listener.accept().unwrap().0);
        receiver.set_nonblocking(true).unwrap();
        let receiver = TcpStream::from_std(receiver);
        (sender, TcpLink::new(receiver, poll.registry(), Token(0)).unwrap())
    }

    /// How far a sender gets ahead of a receiver that reads nothing.
    fn ahead(limit: Option<u32>) -> usize {
        let poll = Poll::new().unwrap();
        let (mut sender, receiver) = connected(&poll, Some(1448));
        // A limit that is lifted is none.
        receiver.limit_window(Some(8 << 10)).unwrap();
        receiver.limit_window(limit).unwrap();
        if limit.is_none() {
            SockRef::from(&receiver.stream).set_recv_buffer_size(1 << 20).unwrap();
            receiver.limit_window(None).unwrap();
        }
        SockRef::from(&sender).set_send_buffer_size(16 << 10).unwrap();
        sender.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut total = 0;
        while let Ok(n) = sender.write(&[0; 4096]) {
            total += n;
        }
        total
    }

    #[test]
    fn a_window_that_is_limited_keeps_the_peer_from_running_ahead() {
        let (limited, free) = (ahead(Some(16 << 10)), ahead(None));
        assert!(4 * limited < free, "{limited} bytes with a limit, {free} without");
    }

    #[test]
    fn a_peer_that_refuses_is_no_silence() {
        let silence = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENETDOWN];
        assert!(silence.into_iter().all(|code| is_silence(&io::Error::from_raw_os_error(code))));
        let answers = [libc::ECONNREFUSED, libc::ECONNRESET, libc::EPIPE];
        assert!(!answers.into_iter().any(|code| is_silence(&io::Error::from_raw_os_error(code))));
        // An address that this machine does not have any more.
        let target = SocketAddr::from(([127, 0, 0, 1], 9));
        let error = connect(target, Some([192, 0, 2, 1].into())).unwrap_err();
        assert!(is_silence(&error), "{error}");
    }

    #[test]
    fn a_limited_window_holds_two_segments_of_any_size() {
        let poll = Poll::new().unwrap();
        // Of Ethernet, of jumbo frames, and of loopback.
        for segment in [Some(1448), Some(8948), None] {
            let (_sender, receiver) = connected(&poll, segment);
            receiver.limit_window(Some(8 << 10)).unwrap();
            let socket = SockRef::from(&receiver.stream);
            let segment = socket.tcp_mss().unwrap() as usize;
            // The system has doubled what was set.
            let held = socket.recv_buffer_size().unwrap() / 2;
            assert!(held >= (2 * segment).max(8 << 10), "{held} bytes, segments of {segment}");
        }
    }
}
