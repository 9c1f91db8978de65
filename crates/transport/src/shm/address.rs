//! Where the processes of a machine find each other: names without files.
//!
//! A lane listens under a name made from its TCP address. Names of the abstract namespace vanish
//! with their process and belong to the network namespace, as the TCP address does. They have no
//! owner: any process may listen first, so the handshake proves the token both ways, as over TCP.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;

use mio::net::{UnixListener, UnixStream};

/// Listens for processes of this machine that look for the lane at `address`.
///
/// # Errors
/// What the operating system says, such as that the name is in use.
pub fn unix_listen(address: SocketAddr) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&name(address)?)
}

/// Connects to the lane at `address` if it listens on this machine.
///
/// # Errors
/// What the operating system says: `ConnectionRefused` without a listener, `WouldBlock` when too
/// many wait to be accepted.
pub fn unix_connect(address: SocketAddr) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&name(address)?)
}

fn name(address: SocketAddr) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("sumpter-lane-{address}"))
}
