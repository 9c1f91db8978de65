//! The address on which a lane listens and which it announces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// The address others can reach this machine at: the interface asked for, or the one that the
/// way to the coordinator leaves by.
///
/// # Errors
/// When the coordinator's name is unknown or the interface has no address.
pub(crate) fn own_address(coordinator: &str, interface: Option<&str>) -> io::Result<IpAddr> {
    if let Some(interface) = interface {
        return interface_address(interface);
    }
    let target = coordinator.to_socket_addrs()?.next().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{coordinator} has no address"))
    })?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

fn interface_address(interface: &str) -> io::Result<IpAddr> {
    if let Ok(address) = interface.parse() {
        return Ok(address);
    }
    let all = if_addrs::get_if_addrs()?.into_iter();
    let mut found: Vec<IpAddr> = all.filter(|i| i.name == interface).map(|i| i.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.into_iter().next().ok_or_else(|| {
        let text = format!("interface '{interface}' has no address, or does not exist");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}
