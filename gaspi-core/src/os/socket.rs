//! Unix sockets with abstract names (nothing to delete) that also carry descriptors.
//!
//! All are close-on-exec and non-blocking, and no call raises SIGPIPE.
//!
//! What sends and receives pieces is made by hand: rustix wants slices, which memory that peers
//! write must not become. So are credentials, in which rustix has no place for the process 0.

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that one message may carry.
pub const DESCRIPTORS_MAX: usize = 4;
const CONTROL_WORDS: usize = 8;

/// The process on the other side of a connection, as the kernel vouches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process, 0 where it is not visible from here.
    pub pid: i32,
    /// User.
    pub uid: u32,
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes());
    address.map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

/// A listener under the abstract name `name`.
///
/// # Errors
/// The name is taken (`AddrInUse`) or too long, or descriptors ran out.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let fd = socket(SocketType::STREAM)?;
    net::bind(&fd, &address(name)?)?;
    // The kernel caps the backlog.
    net::listen(&fd, 65536)?;
    Ok(fd)
}

/// The next connection to a listener, `None` if there is none.
///
/// # Errors
/// Descriptors ran out.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match net::accept_with(listener, flags) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A connection to the listener under the abstract name `name`.
///
/// # Errors
/// Nobody listens (`ConnectionRefused`), or the listener has too many waiting (`WouldBlock`).
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let fd = socket(SocketType::STREAM)?;
    net::connect(&fd, &address(name)?)?;
    Ok(fd)
}

/// Both ends of a connection of this process with itself.
///
/// # Errors
/// Descriptors ran out.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A socket for single bytes that call somebody, under the abstract name `name` if it is to be
/// called.
///
/// # Errors
/// The name is taken (`AddrInUse`) or too long, or descriptors ran out.
pub fn datagram(name: Option<&str>) -> io::Result<OwnedFd> {
    let fd = socket(SocketType::DGRAM)?;
    if let Some(name) = name {
        net::bind(&fd, &address(name)?)?;
    }
    Ok(fd)
}

/// Calls the [`datagram`] socket under the abstract name `name`. Where it is called already and has
/// not listened yet, or is gone, nothing happens.
pub fn send_to(fd: BorrowedFd<'_>, name: &str) {
    let Ok(address) = address(name) else { return };
    let _ = net::sendto(fd, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &address);
}

/// Takes what a [`datagram`] socket was called for.
pub fn clear(fd: BorrowedFd<'_>) {
    let mut bytes = [0u8; 8];
    while net::recv(fd, &mut bytes, RecvFlags::DONTWAIT).is_ok() {}
}

/// The process on the other side.
///
/// # Errors
/// The kernel's.
pub fn credentials(fd: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the struct.
    let failed = unsafe {
        let option = libc::SO_PEERCRED;
        let to = (&raw mut found).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, to, &raw mut len)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { pid: found.pid, uid: found.uid })
}

/// The user of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Ends a connection for both sides, also where a forked child holds a copy of it.
pub fn shut_down(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Both);
}

/// Nothing follows what was sent so far; the other side can still be heard.
pub fn end_sending(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Write);
}

/// Whether sending failed for lack of room that will come: in the socket, in the kernel's memory,
/// or among the descriptors that are on their way.
pub fn is_full(error: &io::Error) -> bool {
    let lacking = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM, libc::ETOOMANYREFS];
    error.raw_os_error().is_some_and(|number| lacking.contains(&number))
}

/// A piece of memory to send or to receive into.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// First byte.
    pub pointer: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl Piece {
    /// The piece that a slice is.
    pub fn of(bytes: &[u8]) -> Piece {
        Piece { pointer: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// What lies behind the first `skip` bytes.
    #[must_use]
    pub fn behind(self, skip: usize) -> Piece {
        Piece { pointer: self.pointer.wrapping_add(skip), len: self.len - skip }
    }

    /// The bytes.
    ///
    /// # Safety
    /// The piece is readable, and nobody writes there meanwhile.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

fn message(pieces: &[Piece; 2]) -> ([libc::iovec; 2], libc::msghdr) {
    let vectors =
        pieces.map(|piece| libc::iovec { iov_base: piece.pointer.cast(), iov_len: piece.len });
    // SAFETY: all zeroes is a valid header.
    (vectors, unsafe { std::mem::zeroed() })
}

/// Sends as much of `bytes` as there is room for, behind which more follows at once.
///
/// # Errors
/// As [`send`].
pub fn send_more(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::MORE;
    Ok(net::send(fd, bytes, flags)?)
}

/// Sends as much of two pieces as there is room for, and `descriptors` with the first byte.
///
/// # Errors
/// The kernel's; `WouldBlock` where there is no room.
///
/// # Safety
/// Both pieces are readable.
pub unsafe fn send(
    fd: BorrowedFd<'_>,
    pieces: [Piece; 2],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    if pieces[1].len == 0 && descriptors.is_empty() {
        let [Piece { pointer, len }, _] = pieces;
        // SAFETY: the caller vouches for the piece.
        let sent = unsafe { libc::send(fd.as_raw_fd(), pointer.cast(), len, flags) };
        return usize::try_from(sent).map_err(|_| io::Error::last_os_error());
    }
    let (mut vectors, mut header) = message(&pieces);
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    let mut control = [0u64; CONTROL_WORDS];
    let count = descriptors.len().min(DESCRIPTORS_MAX);
    if count > 0 {
        let bytes = (count * size_of::<RawFd>()) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: pure computation; the buffer has room for DESCRIPTORS_MAX.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: the header has a control buffer of this size.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: `first` points into the control buffer, which is aligned to 8.
        unsafe {
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as usize;
        }
        for (i, descriptor) in descriptors.iter().take(count).enumerate() {
            // SAFETY: the data area of the control message has room for `count` descriptors.
            unsafe {
                let to = libc::CMSG_DATA(first).cast::<RawFd>().add(i);
                to.write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    // SAFETY: the caller vouches for the pieces, the rest lives on this stack.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `piece` what comes without descriptors. 0 means that the other side has closed.
///
/// # Errors
/// As [`receive`].
///
/// # Safety
/// The piece is writable.
pub unsafe fn receive_bytes(fd: BorrowedFd<'_>, piece: Piece) -> io::Result<usize> {
    // SAFETY: the caller vouches for the piece.
    let received =
        unsafe { libc::recv(fd.as_raw_fd(), piece.pointer.cast(), piece.len, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Receives into two pieces, the second behind the first, what comes without descriptors. 0 means
/// that the other side has closed.
///
/// # Errors
/// As [`receive`].
///
/// # Safety
/// Both pieces are writable.
pub unsafe fn receive_two(fd: BorrowedFd<'_>, pieces: [Piece; 2]) -> io::Result<usize> {
    let (mut vectors, mut header) = message(&pieces);
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    // SAFETY: the caller vouches for the pieces, the rest lives on this stack.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Receives into `piece`; descriptors that come along are appended. 0 means that the other side
/// has closed.
///
/// # Errors
/// The kernel's; `WouldBlock` where there is nothing.
///
/// # Safety
/// The piece is writable.
pub unsafe fn receive(
    fd: BorrowedFd<'_>,
    piece: Piece,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let empty = Piece { pointer: std::ptr::null_mut(), len: 0 };
    let (mut vectors, mut header) = message(&[piece, empty]);
    let mut control = [0u64; CONTROL_WORDS];
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the caller vouches for the piece, the rest lives on this stack.
    let received = unsafe {
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags)
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the header describes the control buffer as the kernel filled it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: `next` points to a control message inside of the buffer.
        let found = unsafe { next.read_unaligned() };
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: pure computation.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (found.cmsg_len as usize).saturating_sub(overhead) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: the kernel filled in `count` descriptors behind the message's header.
                let fd = unsafe { libc::CMSG_DATA(next).cast::<RawFd>().add(i).read_unaligned() };
                // SAFETY: the kernel has just made this descriptor for us.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: both point into the control buffer.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn one_call_fills_two_pieces() {
        let name = format!("gaspi-pieces-test-{}", std::process::id());
        let listener = listen(&name).expect("listener");
        let client = connect(&name).expect("connection");
        let server = accept(listener.as_fd()).expect("accept").expect("a connection waits");
        // SAFETY: the piece is a constant.
        unsafe { send(client.as_fd(), [Piece::of(b"headdata"), Piece::of(b"")], &[]) }
            .expect("send");
        let (mut head, mut rest) = ([0u8; 4], [0u8; 8]);
        let pieces = [&mut head[..], &mut rest[..]]
            .map(|bytes| Piece { pointer: bytes.as_mut_ptr(), len: bytes.len() });
        // SAFETY: both are writable.
        let got = unsafe { receive_two(server.as_fd(), pieces) }.expect("receive");
        assert_eq!((got, &head, &rest[..4]), (8, b"head", &b"data"[..]));
    }

    #[test]
    fn bytes_and_descriptors_arrive() {
        let name = format!("gaspi-socket-test-{}", std::process::id());
        let listener = listen(&name).expect("listener");
        assert_eq!(listen(&name).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        let client = connect(&name).expect("connection");
        let server = accept(listener.as_fd()).expect("accept").expect("a connection waits");
        let who = credentials(server.as_fd()).expect("credentials");
        assert_eq!((who.uid, who.pid), (own_uid(), std::process::id() as i32));
        let pieces = [Piece::of(b"hello "), Piece::of(b"world")];
        // SAFETY: both pieces are constants.
        let sent = unsafe { send(client.as_fd(), pieces, &[listener.as_fd()]) }.expect("send");
        assert_eq!(sent, 11);
        let mut buffer = [0u8; 32];
        let mut descriptors = Vec::new();
        let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
        // SAFETY: the buffer is writable.
        let got = unsafe { receive(server.as_fd(), piece, &mut descriptors) }.expect("receive");
        assert_eq!((&buffer[..got], descriptors.len()), (&b"hello world"[..], 1));
    }
}
