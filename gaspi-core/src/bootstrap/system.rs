//! System calls that only the start of a job needs: waiting for a few descriptors until a deadline,
//! an epoll set that can be looked at without waiting, random bytes.

use crate::error::{Error, Result};
use crate::timeout::Deadline;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An epoll set that is itself waited for by its owner's loop.
#[derive(Debug)]
pub(crate) struct Set(OwnedFd);

impl Set {
    pub(crate) fn new() -> Result<Set> {
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os("epoll_create1"));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Set(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }

    fn control(&self, what: i32, fd: BorrowedFd<'_>, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open and the event lives on this stack.
        let failed = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), what, fd.as_raw_fd(), &raw mut event) != 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    pub(crate) fn watch_room(&self, fd: BorrowedFd<'_>, token: u64, room: bool) -> io::Result<()> {
        let events = if room { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        self.control(libc::EPOLL_CTL_MOD, fd, token, events)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // It was added by the same owner.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// The tokens of what is ready now; at most 64 at a time.
    pub(crate) fn ready(&self) -> Vec<u64> {
        const NONE: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
        let mut events = [NONE; 64];
        // SAFETY: the kernel writes at most as many events as the array holds.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, 0)
        };
        events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
    }
}

/// A descriptor that becomes readable every so often.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    interval: Option<Duration>,
}

impl Timer {
    pub(crate) fn new() -> Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(Error::last_os("timerfd_create"));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Timer { fd: unsafe { OwnedFd::from_raw_fd(fd) }, interval: None })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// Goes off every `interval` from now on, or never; nothing changes if that is so already.
    pub(crate) fn set(&mut self, interval: Option<Duration>) {
        if std::mem::replace(&mut self.interval, interval) == interval {
            return;
        }
        let interval = interval.unwrap_or_default();
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(interval.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: interval.subsec_nanos().into(),
        };
        let value = libc::itimerspec { it_interval: time, it_value: time };
        let none = std::ptr::null_mut();
        // SAFETY: the value lives on this stack, the old one is not asked for.
        unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const value, none) };
    }

    /// Takes note that it has gone off.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: writes at most 8 bytes; nothing to read is fine too.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

/// Sleeps until one of the descriptors is readable (or, with `true`, writable), or the deadline or
/// `limit` has passed. May return early.
pub(crate) fn wait(fds: &[(BorrowedFd<'_>, bool)], deadline: Deadline, limit: Option<Duration>) {
    let entry = |(fd, room): &(BorrowedFd<'_>, bool)| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: if *room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN },
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = fds.iter().map(entry).collect();
    let left = match (deadline.remaining(), limit) {
        (Some(left), Some(limit)) => Some(left.min(limit)),
        (left, limit) => left.or(limit),
    };
    let time = left.map(|left| libc::timespec {
        tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time live on this stack; an early return is allowed.
    unsafe {
        libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, time, std::ptr::null())
    };
}

/// Whether there is something to read, or an end to be seen.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry on this stack.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// Ends both directions of a socket, also if other processes hold copies of the descriptor.
pub(crate) fn shut_down(fd: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open; that the other side has gone already does not matter.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// A descriptor that becomes readable when the process ends, if the kernel gives one.
pub(crate) fn watch_process(pid: i32) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: writes at most the given length; the last byte stays zero.
    let failed = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) } != 0;
    let len = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
    if failed || len == 0 {
        return "localhost".to_owned();
    }
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Random bytes of the kernel.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        call: "getrandom".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}
