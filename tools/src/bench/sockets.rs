//! TCP sockets as a careful C program has them: what the limits over TCP and the meetings of ranks
//! without common memory consist of.
//!
//! Congestion control is cubic, or reno, and set before a connection exists: bbr, the default of
//! some machines, leaves its pacing behind where it was ever in charge. Buffers are the kernel's.

use crate::failure::{Failure, Result};
use crate::job::{Job, Patience};
use crate::system;
use socket2::{Domain, Protocol, SockAddr, Type};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Congestion controls that do not pace, best first.
const CONGESTION: [&[u8]; 2] = [b"cubic", b"reno"];
/// Between looks at whether all ranks live.
const NAP: Duration = Duration::from_millis(20);
/// For one address of a peer.
const CONNECT: Duration = Duration::from_secs(2);
/// Attempts of a rank that spins between looks at the clock: some 100 us.
const TRIES: u32 = 256;
/// The same where ranks share cores.
const TRIES_CROWDED: u32 = 4;

/// How a rank waits for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Asks again and again.
    Spinning,
    /// Sleeps in the call.
    Blocking,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket(socket2::Socket);

fn fresh(address: &SocketAddr) -> io::Result<socket2::Socket> {
    let socket =
        socket2::Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    // A machine that has neither leaves what it has.
    let _ = CONGESTION.iter().any(|name| socket.set_tcp_congestion(name).is_ok());
    Ok(socket)
}

fn settled(socket: socket2::Socket) -> io::Result<Socket> {
    socket.set_tcp_nodelay(true)?;
    // So that a call which sleeps comes back to see whether the peer lives; costs less than 1 %.
    socket.set_read_timeout(Some(NAP))?;
    socket.set_write_timeout(Some(NAP))?;
    Ok(Socket(socket))
}

impl Socket {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Socket> {
        let socket = fresh(&address)?;
        socket.connect_timeout(&SockAddr::from(address), CONNECT)?;
        settled(socket)
    }

    /// Sends as much as there is room for; 0 if there is none.
    #[inline]
    pub(crate) fn send_some(&self, parts: &mut [libc::iovec], flags: i32) -> Result<usize> {
        let message = header(parts);
        // SAFETY: the parts are mapped memory, which the caller keeps for the call.
        let sent = unsafe {
            libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags | libc::MSG_NOSIGNAL)
        };
        usize::try_from(sent).or_else(|_| nothing_yet())
    }

    /// Receives what is there; 0 if there is nothing.
    #[inline]
    pub(crate) fn receive_some(&self, parts: &mut [libc::iovec], flags: i32) -> Result<usize> {
        let mut message = header(parts);
        // SAFETY: the parts are mapped memory of the caller, who alone uses it during the call.
        let received = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, flags) };
        match usize::try_from(received) {
            Ok(0) => Err(Failure::run("the peer of a measurement has closed its connection")),
            Ok(count) => Ok(count),
            Err(_) => nothing_yet(),
        }
    }

    /// Sends `size` bytes from `from` on.
    #[inline]
    pub(crate) fn send(
        &self,
        job: &Job,
        what: &'static str,
        from: *const u8,
        size: usize,
        waiting: Waiting,
    ) -> Result<()> {
        let fd = self.0.as_raw_fd();
        let flags = libc::MSG_NOSIGNAL | waiting.flags();
        self.all(job, what, size, waiting, |done| {
            // SAFETY: the caller vouches for `size` bytes from `from` on.
            unsafe { libc::send(fd, from.add(done).cast(), size - done, flags) }
        })
    }

    /// Receives `size` bytes to `to`.
    #[inline]
    pub(crate) fn receive(
        &self,
        job: &Job,
        what: &'static str,
        to: *mut u8,
        size: usize,
        waiting: Waiting,
    ) -> Result<()> {
        let fd = self.0.as_raw_fd();
        self.all(job, what, size, waiting, |done| {
            // SAFETY: the caller vouches for `size` bytes from `to` on.
            unsafe { libc::recv(fd, to.add(done).cast(), size - done, waiting.flags()) }
        })
    }

    /// Sends `size` bytes from the begin of a file, without copying them first.
    pub(crate) fn send_file(
        &self,
        job: &Job,
        what: &'static str,
        file: &File,
        size: usize,
    ) -> Result<()> {
        let (fd, from) = (self.0.as_raw_fd(), file.as_raw_fd());
        self.all(job, what, size, Waiting::Blocking, |done| {
            let mut offset = libc::off_t::try_from(done).unwrap_or(libc::off_t::MAX);
            // SAFETY: the kernel updates the offset, which lives during the call.
            unsafe { libc::sendfile(fd, from, &raw mut offset, size - done) }
        })
    }

    /// Repeats a call until `size` bytes went through it.
    #[inline(always)]
    fn all(
        &self,
        job: &Job,
        what: &'static str,
        size: usize,
        waiting: Waiting,
        some: impl Fn(usize) -> isize,
    ) -> Result<()> {
        let mut done = 0;
        let mut pause = Pause::new(job, what, waiting);
        while done < size {
            match usize::try_from(some(done)) {
                Ok(0) => {
                    let message = format!("the peer has closed its connection during {what}");
                    return Err(Failure::run(message));
                }
                Ok(count) => done += count,
                Err(_) => {
                    nothing_yet()?;
                    pause.take()?;
                }
            }
        }
        Ok(())
    }

    /// Sleeps until something can be received, or for a while.
    pub(crate) fn await_some(&self) {
        system::await_readable(self.0.as_raw_fd(), NAP);
    }
}

impl Waiting {
    fn flags(self) -> i32 {
        match self {
            Waiting::Spinning => libc::MSG_DONTWAIT,
            Waiting::Blocking => 0,
        }
    }
}

/// What a rank does between two attempts.
pub(crate) struct Pause<'a> {
    job: &'a Job,
    what: &'static str,
    waiting: Waiting,
    tries: u32,
    patience: Option<Patience>,
}

impl<'a> Pause<'a> {
    pub(crate) fn new(job: &'a Job, what: &'static str, waiting: Waiting) -> Pause<'a> {
        Pause { job, what, waiting, tries: 0, patience: None }
    }

    /// After an attempt in vain.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<()> {
        self.tries += 1;
        let limit = if self.job.crowded() { TRIES_CROWDED } else { TRIES };
        if self.waiting == Waiting::Blocking || self.tries.is_multiple_of(limit) {
            return self.look();
        }
        Ok(())
    }

    #[cold]
    fn look(&mut self) -> Result<()> {
        let patience = self.patience.get_or_insert_with(|| self.job.patience(self.what));
        patience.check(self.job)?;
        if self.job.crowded() {
            system::yield_now();
        }
        Ok(())
    }
}

fn header(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeroes is a valid header without parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

/// Nothing, if the last call only found nothing.
#[cold]
fn nothing_yet() -> Result<usize> {
    let error = io::Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
        _ => Err(Failure::run(format!("a raw connection failed: {error}"))),
    }
}

/// Where connections arrive.
#[derive(Debug)]
pub(crate) struct Listener(socket2::Socket);

impl Listener {
    /// On all addresses of this host, at a free port.
    pub(crate) fn open() -> Result<Listener> {
        let any = |ip: IpAddr| Listener::at(SocketAddr::new(ip, 0));
        let both = any(Ipv6Addr::UNSPECIFIED.into());
        both.or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))
            .map_err(|error| Failure::run(format!("cannot listen for raw connections: {error}")))
    }

    fn at(address: SocketAddr) -> io::Result<Listener> {
        let socket = fresh(&address)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&SockAddr::from(address))?;
        socket.listen(libc::SOMAXCONN)?;
        socket.set_nonblocking(true)?;
        Ok(Listener(socket))
    }

    pub(crate) fn port(&self) -> Result<u16> {
        let address = self.0.local_addr().ok().and_then(|address| address.as_socket());
        address
            .map(|address| address.port())
            .ok_or_else(|| Failure::run("a listening socket has no port"))
    }

    /// The next connection, or nothing after a while.
    pub(crate) fn accept(&self) -> Result<Option<Socket>> {
        system::await_readable(self.0.as_raw_fd(), NAP);
        match self.0.accept() {
            Ok((socket, _)) => settled(socket)
                .map(Some)
                .map_err(|error| Failure::run(format!("a raw connection failed: {error}"))),
            Err(_) => nothing_yet().map(|_| None),
        }
    }
}
