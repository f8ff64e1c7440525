//! TCP sockets: listeners, connections that are made without waiting, and their options.
//!
//! All are close-on-exec and non-blocking. Bytes go through [`send`](super::socket::send) and
//! [`receive`](super::socket::receive), which raise no SIGPIPE.
//!
//! TCP_INFO is asked for by hand: rustix does not have it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Before the socket is connected, or listens for others that inherit it: what bbr has set up by
    // then stays. One that cannot be had is done without.
    let _ = set_plain_congestion(fd.as_fd());
    Ok(fd)
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
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if address.port() != 0 {
        // A port that a former job used may have connections in TIME_WAIT. Linux never lets two
        // listeners share a port by this option.
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    net::bind(&fd, &address)?;
    // The kernel caps the backlog.
    net::listen(&fd, 65536)?;
    Ok(fd)
}

/// The next connection to a listener and where it comes from, `None` if there is none.
///
/// # Errors
/// Descriptors ran out.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match net::acceptfrom_with(listener, flags) {
        Ok((fd, from)) => Ok(Some((fd, address(from)?))),
        // A connection that broke while it waited in line is nobody's error (accept(2)).
        Err(
            Errno::AGAIN
            | Errno::INTR
            | Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH,
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the kernel tells as the address of a socket.
fn address(found: Option<SocketAddrAny>) -> io::Result<SocketAddr> {
    let found = found.and_then(|found| SocketAddr::try_from(found).ok());
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Begins to connect to `address`; [`outcome`] tells how that went once the socket is writable.
///
/// # Errors
/// There is no way to the address, or descriptors or ports ran out.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(address)?;
    match net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

/// What became of a [`connect`]: false while it is under way.
///
/// # Errors
/// It failed: refused, no route, no answer.
pub fn outcome(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut entry = [PollFd::new(&fd, PollFlags::OUT)];
    let ready = poll(&mut entry, Some(&AT_ONCE));
    if ready == Ok(0) || entry[0].revents().is_empty() {
        return Ok(false);
    }
    sockopt::socket_error(fd)??;
    Ok(true)
}

/// The own address of a socket.
///
/// # Errors
/// The kernel's.
pub fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    address(Some(net::getsockname(fd)?))
}

/// Sends what there is at once, in place of waiting for more (TCP_NODELAY).
///
/// # Errors
/// The kernel's.
pub fn set_no_delay(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(fd, true)?)
}

/// Lets the kernel's acknowledgements wait for data to go along with, for as long as the connection
/// is lively; the kernel forgets it when nothing comes for a while. Otherwise each small segment
/// that is read costs a segment in return.
pub fn delay_acknowledgements(fd: BorrowedFd<'_>) {
    // Where it is refused, they go at once.
    let _ = sockopt::set_tcp_quickack(fd, false);
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
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(idle_s.into()))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(interval_s.into()))?;
    sockopt::set_tcp_keepcnt(fd, probes.into())?;
    Ok(sockopt::set_socket_keepalive(fd, true)?)
}

/// Breaks the connection once something that was sent has not been acknowledged for `patience`.
/// Only while no more is sent than fits into any window: that of a stopped peer stays full.
///
/// # Errors
/// The value is out of the kernel's limits.
pub fn limit_silence(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let patience_ms = patience.as_millis().try_into().map_err(io::Error::other)?;
    Ok(sockopt::set_tcp_user_timeout(fd, patience_ms)?)
}

/// Ends what [`limit_silence`] has begun.
///
/// # Errors
/// The kernel's.
pub fn allow_silence(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(fd, 0)?)
}

/// Ends what [`set_keepalive`] has begun.
///
/// # Errors
/// The kernel's.
pub fn clear_keepalive(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::set_socket_keepalive(fd, false)?)
}

/// What the kernel knows of a connection.
fn info(fd: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: all zeroes is a valid value of this struct of numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    let failed = unsafe {
        let to = (&raw mut info).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

fn heard(info: &libc::tcp_info) -> Duration {
    let ago_ms = info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv);
    Duration::from_millis(ago_ms.into())
}

/// How long ago the other side's kernel was heard on a connection: its data, or its
/// acknowledgement.
///
/// # Errors
/// The kernel's.
pub fn heard_last(fd: BorrowedFd<'_>) -> io::Result<Duration> {
    info(fd).map(|info| heard(&info))
}

/// How long ago data went or came on a connection.
///
/// # Errors
/// The kernel's.
pub fn used_last(fd: BorrowedFd<'_>) -> io::Result<Duration> {
    let info = info(fd)?;
    let ago_ms = info.tcpi_last_data_sent.min(info.tcpi_last_data_recv);
    Ok(Duration::from_millis(ago_ms.into()))
}

/// Whether the other side's kernel has not answered for `patience`, though this one asks it again
/// and again: by data that it sends again, or for which it finds no way, or, on an idle connection,
/// by [`set_keepalive`]. A window that is full is no silence: questions about it come ever more
/// rarely, and are answered.
///
/// # Errors
/// The kernel's.
pub fn is_unanswered(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let info = info(fd)?;
    let heard = heard(&info);
    let sent = Duration::from_millis(info.tcpi_last_data_sent.into());
    let asked = match info.tcpi_unacked {
        0 => info.tcpi_probes >= 2,
        // It is sent again ever more rarely: the last time has to be late enough that an outage
        // which has ended since would be known.
        _ => info.tcpi_retransmits > 0 && (sent <= patience / 3 || heard >= 2 * patience),
    };
    Ok(asked && heard >= patience)
}

/// Whether something that was sent has not been acknowledged. The kernel asks an idle peer
/// ([`set_keepalive`]) only while there is nothing of that.
///
/// # Errors
/// The kernel's.
pub fn has_unacknowledged(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    let failed = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(bytes > 0) }
}

/// The congestion control of a socket.
///
/// # Errors
/// The kernel's.
pub fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(fd)?)
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
        // Not built into this kernel, or not allowed to this user.
        if sockopt::set_tcp_congestion(fd, name).is_ok() {
            return Ok(name.to_owned());
        }
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket::{Piece, end_sending, receive, send};
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
