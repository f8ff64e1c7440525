//! System calls of a loop that waits for descriptors, as safe functions.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Something to wait for in [`wait`].
#[derive(Debug, Clone, Copy)]
pub struct Watch<'a> {
    fd: BorrowedFd<'a>,
    events: i16,
}

impl<'a> Watch<'a> {
    /// Something to read, or the end of what comes.
    pub fn input(fd: BorrowedFd<'a>) -> Watch<'a> {
        Watch { fd, events: libc::POLLIN }
    }

    /// Room to write, or nobody left who reads.
    pub fn room(fd: BorrowedFd<'a>) -> Watch<'a> {
        Watch { fd, events: libc::POLLOUT }
    }

    /// Nobody left at the other end, and nothing else.
    pub fn end(fd: BorrowedFd<'a>) -> Watch<'a> {
        Watch { fd, events: 0 }
    }
}

/// Sleeps until a descriptor is ready or the time is over, and says which are.
pub fn wait(watches: &[Watch<'_>], timeout: Option<Duration>) -> Vec<bool> {
    let entry = |watch: &Watch<'_>| libc::pollfd {
        fd: watch.fd.as_raw_fd(),
        events: watch.events,
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = watches.iter().map(entry).collect();
    let time = timeout.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: the array and the time live on this stack.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), count, time, std::ptr::null()) };
    // Interrupted: nothing is known.
    entries.iter().map(|entry| ready > 0 && entry.revents != 0).collect()
}

/// Whether what is watched for is there already.
pub fn ready(watch: Watch<'_>) -> bool {
    wait(&[watch], Some(Duration::ZERO))[0]
}

/// A limit of this process, as RLIMIT_NOFILE.
pub fn limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes the struct that it is given.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit
}

/// Sets a limit of this process; false if it may not be raised so far and stays as it was.
/// Async-signal-safe.
pub fn set_limit(resource: libc::__rlimit_resource_t, limit: libc::rlimit) -> bool {
    // SAFETY: reads the struct that it is given.
    unsafe { libc::setrlimit(resource, &raw const limit) == 0 }
}

/// The limit for open descriptors of this process.
pub fn descriptor_limit() -> libc::rlimit {
    limit(libc::RLIMIT_NOFILE)
}

/// Sets the limit for open descriptors of this process. Async-signal-safe.
pub fn set_descriptor_limit(limit: libc::rlimit) {
    // What cannot be raised stays as it was.
    let _ = set_limit(libc::RLIMIT_NOFILE, limit);
}

/// Raises the limit for open descriptors of this process as far as it may; the limit before.
pub fn raise_descriptor_limit() -> libc::rlimit {
    let before = descriptor_limit();
    set_descriptor_limit(libc::rlimit { rlim_cur: before.rlim_max, rlim_max: before.rlim_max });
    before
}

/// Bytes that fit into a pipe.
pub fn pipe_size(fd: BorrowedFd<'_>) -> usize {
    // SAFETY: the descriptor is open.
    let size = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETPIPE_SZ) };
    usize::try_from(size).unwrap_or(1 << 20)
}

/// What a descriptor is open on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: libc::dev_t,
    inode: libc::ino_t,
    /// A file that is always ready and never blocks.
    pub regular: bool,
}

/// What `fd` is open on.
pub fn identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    // SAFETY: all zeroes is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and fstat writes the struct that it is given.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
        return None;
    }
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    Some(Identity { device: stat.st_dev, inode: stat.st_ino, regular })
}

/// Appends to `to` what can be read now, at most `max` bytes, and says how many.
///
/// # Errors
/// Those of read(2).
pub fn read_onto(fd: BorrowedFd<'_>, to: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    to.reserve(max);
    let behind = to.spare_capacity_mut();
    // SAFETY: the descriptor is open, and there is room for so many bytes.
    let read = unsafe { libc::read(fd.as_raw_fd(), behind.as_mut_ptr().cast(), max) };
    let Ok(count) = usize::try_from(read) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the kernel has written so many bytes behind the end.
    unsafe { to.set_len(to.len() + count) };
    Ok(count)
}

/// Writes without the buffer that `std` puts before standard output.
///
/// # Errors
/// Those of write(2).
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: reads at most the length of the slice.
    let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// From now on reads and writes return at once, with an error if they would have to wait.
///
/// # Errors
/// Those of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open and the command has no argument.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: the descriptor is open and the argument an integer.
    let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if flags < 0 || set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
