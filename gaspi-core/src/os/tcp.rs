//! TCP sockets: listeners, connections that are made without waiting, and their options.
//!
//! All are close-on-exec and non-blocking. Bytes go through [`send`](super::socket::send) and
//! [`receive`](super::socket::receive), which raise no SIGPIPE.

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Room for an address of any family that is used here, as the kernel wants it.
#[repr(C)]
#[derive(Clone, Copy)]
union Address {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    fn empty() -> Address {
        // SAFETY: all zeroes is a valid address of this type.
        Address { v6: unsafe { std::mem::zeroed() } }
    }

    fn of(address: SocketAddr) -> (Address, libc::socklen_t) {
        let mut found = Address::empty();
        let len = match address {
            SocketAddr::V4(address) => {
                found.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                found.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
        };
        (found, len as libc::socklen_t)
    }

    fn get(&self) -> io::Result<SocketAddr> {
        // SAFETY: the family lies at the same place in all of them, and every bit pattern is valid.
        match i32::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: of this family.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: of this family.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn checked(outcome: c_int) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a new descriptor.
    let fd = owned(unsafe { libc::socket(family, kind, 0) })?;
    // Before the socket is connected, or listens for others that inherit it: what bbr has set up by
    // then stays. One that cannot be had is done without.
    let _ = set_plain_congestion(fd.as_fd());
    Ok(fd)
}

fn set(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value lives on this stack and has the given length.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len)
    })
}

/// A listener on `address`; port 0 takes a free one, see [`local_address`]. IPv6 listeners take no
/// IPv4 connections.
///
/// # Errors
/// The port is taken (`AddrInUse`), the address is none of this host's (`AddrNotAvailable`), the
/// family is switched off, or descriptors ran out.
pub fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(address)?;
    if address.is_ipv6() {
        set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    if address.port() != 0 {
        // A port that a former job used may have connections in TIME_WAIT. Linux never lets two
        // listeners share a port by this option.
        set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    let (raw, len) = Address::of(address);
    // SAFETY: the address lives on this stack and has the given length.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const raw).cast(), len) })?;
    // SAFETY: the descriptor is open; the kernel caps the backlog.
    checked(unsafe { libc::listen(fd.as_raw_fd(), 65536) })?;
    Ok(fd)
}

/// The next connection to a listener and where it comes from, `None` if there is none.
///
/// # Errors
/// Descriptors ran out.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut from = Address::empty();
    let mut len = size_of::<Address>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of the address.
    let fd = owned(unsafe {
        libc::accept4(listener.as_raw_fd(), (&raw mut from).cast(), &raw mut len, flags)
    });
    match fd {
        Ok(fd) => Ok(Some((fd, from.get()?))),
        Err(error) => match error.raw_os_error() {
            // A connection that broke while it waited in line is nobody's error (accept(2)).
            Some(
                libc::EAGAIN
                | libc::EINTR
                | libc::ECONNABORTED
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH,
            ) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Begins to connect to `address`; [`outcome`] tells how that went once the socket is writable.
///
/// # Errors
/// There is no way to the address, or descriptors or ports ran out.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(address)?;
    let (raw, len) = Address::of(address);
    // SAFETY: the address lives on this stack and has the given length.
    match checked(unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), len) }) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
            Err(error)
        }
        _ => Ok(fd),
    }
}

/// What became of a [`connect`]: false while it is under way.
///
/// # Errors
/// It failed: refused, no route, no answer.
pub fn outcome(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry on this stack, looked at without waiting.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    if ready == 0 || entry.revents == 0 {
        return Ok(false);
    }
    let mut found: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    checked(unsafe {
        let to = (&raw mut found).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, to, &raw mut len)
    })?;
    if found == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(found)) }
}

/// The own address of a socket.
///
/// # Errors
/// The kernel's.
pub fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut found = Address::empty();
    let mut len = size_of::<Address>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of the address.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut found).cast(), &raw mut len) })?;
    found.get()
}

/// Sends what there is at once, in place of waiting for more (TCP_NODELAY).
///
/// # Errors
/// The kernel's.
pub fn set_no_delay(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
}

/// Lets the kernel's acknowledgements wait for data to go along with, for as long as the connection
/// is lively; the kernel forgets it when nothing comes for a while. Otherwise each small segment
/// that is read costs a segment in return.
pub fn delay_acknowledgements(fd: BorrowedFd<'_>) {
    // Where it is refused, they go at once.
    let _ = set(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 0);
}

/// Lets the kernel ask an idle peer's kernel whether it is there: after `idle_s` seconds without a
/// word, then every `interval_s`; after `probes` without an answer the connection breaks.
///
/// # Errors
/// A value is out of the kernel's limits.
pub fn set_keepalive(
    fd: BorrowedFd<'_>,
    idle_s: u16,
    interval_s: u16,
    probes: u8,
) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_s.into())?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval_s.into())?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, probes.into())?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
}

/// How long ago the other side's kernel was heard on a connection: its data, or its
/// acknowledgement.
///
/// # Errors
/// The kernel's.
pub fn heard_last(fd: BorrowedFd<'_>) -> io::Result<Duration> {
    // SAFETY: all zeroes is a valid value of this struct of numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    checked(unsafe {
        let to = (&raw mut info).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    })?;
    let ago_ms = info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv);
    Ok(Duration::from_millis(ago_ms.into()))
}

/// Bytes of the name of a congestion control (TCP_CA_NAME_MAX).
const CONGESTION_MAX: usize = 16;

/// The congestion control of a socket.
///
/// # Errors
/// The kernel's.
pub fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    let mut name = [0u8; CONGESTION_MAX];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    checked(unsafe {
        let to = name.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, to, &raw mut len)
    })?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Takes cubic or reno where the system's default is another congestion control: bbr paces by
/// estimates that cost nearly half of the bandwidth between processes of a machine. Returns the one
/// that is in use.
///
/// # Errors
/// The kernel's; one that cannot be had is none.
pub fn set_plain_congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    let now = congestion(fd)?;
    if now == "cubic" || now == "reno" {
        return Ok(now);
    }
    for name in ["cubic", "reno"] {
        // SAFETY: the name lives across the call and has the given length.
        let set = checked(unsafe {
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
            let len = name.len() as libc::socklen_t;
            libc::setsockopt(fd.as_raw_fd(), level, option, name.as_ptr().cast(), len)
        });
        // Not built into this kernel, or not allowed to this user.
        if set.is_ok() {
            return Ok(name.to_owned());
        }
    }
    Ok(now)
}

/// Says that nothing more will be sent; what is on its way still arrives.
pub fn end_sending(fd: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open; that the other side has gone already does not matter.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket::{Piece, receive, send};
    use std::time::Instant;

    fn ready(fd: BorrowedFd<'_>, events: i16) {
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        // SAFETY: one entry on this stack.
        assert!(unsafe { libc::poll(&raw mut entry, 1, 20_000) } > 0);
    }

    fn loopbacks() -> Vec<SocketAddr> {
        // A machine may have IPv6 switched off.
        let all = ["127.0.0.1:0", "[::1]:0"].map(|a| a.parse::<SocketAddr>().expect("address"));
        all.into_iter().filter(|address| listen(*address).is_ok()).collect()
    }

    #[test]
    fn bytes_arrive_over_both_families() {
        assert!(!loopbacks().is_empty());
        for address in loopbacks() {
            let began = Instant::now();
            let listener = listen(address).expect("listener");
            let here = local_address(listener.as_fd()).expect("address");
            assert_ne!(here.port(), 0);
            assert_eq!(listen(here).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
            assert!(accept(listener.as_fd()).expect("accept").is_none());
            let client = connect(here).expect("connection");
            ready(client.as_fd(), libc::POLLOUT);
            assert!(outcome(client.as_fd()).expect("connected"));
            ready(listener.as_fd(), libc::POLLIN);
            let (server, from) = accept(listener.as_fd()).expect("accept").expect("one waits");
            assert_eq!(from, local_address(client.as_fd()).expect("address"));
            for fd in [&client, &server] {
                set_no_delay(fd.as_fd()).expect("no delay");
                set_keepalive(fd.as_fd(), 1, 1, 4).expect("keepalive");
                let name = set_plain_congestion(fd.as_fd()).expect("congestion");
                assert_eq!(congestion(fd.as_fd()).expect("congestion"), name);
            }
            let pieces = [Piece::of(b"hello "), Piece::of(b"world")];
            // SAFETY: both pieces are constants.
            assert_eq!(unsafe { send(client.as_fd(), pieces, &[]) }.expect("send"), 11);
            end_sending(client.as_fd());
            let mut got = Vec::new();
            loop {
                ready(server.as_fd(), libc::POLLIN);
                let mut buffer = [0u8; 32];
                let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
                // SAFETY: the buffer is writable.
                match unsafe { receive(server.as_fd(), piece, &mut Vec::new()) }.expect("receive") {
                    0 => break,
                    len => got.extend_from_slice(&buffer[..len]),
                }
            }
            assert_eq!(got, b"hello world");
            for fd in [&client, &server] {
                // The kernel counts in its ticks.
                let longest = began.elapsed() + Duration::from_millis(100);
                assert!(heard_last(fd.as_fd()).expect("told") <= longest);
            }
        }
    }

    #[test]
    fn a_refused_connection_is_an_outcome() {
        let listener = listen(loopbacks()[0]).expect("listener");
        let here = local_address(listener.as_fd()).expect("address");
        drop(listener);
        let kind = match connect(here) {
            Err(error) => error.kind(),
            Ok(fd) => {
                ready(fd.as_fd(), libc::POLLOUT);
                outcome(fd.as_fd()).expect_err("nobody listens").kind()
            }
        };
        assert_eq!(kind, io::ErrorKind::ConnectionRefused);
    }
}
