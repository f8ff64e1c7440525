//! System calls that only the start of a job needs: waiting for a few descriptors until a deadline,
//! a timer, random bytes.

use crate::error::{Error, Result};
use crate::os::process;
use crate::timeout::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

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
    let mut entries = Vec::with_capacity(fds.len());
    for (fd, room) in fds {
        let events = if *room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        entries.push(PollFd::from_borrowed_fd(*fd, events));
    }
    let left = deadline.remaining().into_iter().chain(limit).min();
    // A time that the kernel cannot take is as good as none.
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    // Interrupted by a signal: that is early.
    let _ = poll(&mut entries, left.as_ref());
}

/// Whether there is something to read, or an end to be seen.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)) == Ok(1)
}

/// A descriptor that becomes readable when the process ends, if the kernel gives one.
pub(crate) fn watch_process(pid: i32) -> Option<OwnedFd> {
    process::open(pid, 0).ok().flatten()
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

/// A copy of a descriptor that this process was started with, and that has to be a socket.
///
/// # Errors
/// In words, about "it".
pub(super) fn inherited_socket(fd: u64) -> std::result::Result<File, String> {
    let Ok(fd) = i32::try_from(fd) else {
        return Err("cannot be used: that is no file descriptor".to_owned());
    };
    // SAFETY: takes numbers only, and makes a new descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("cannot be used: {error}"));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let file = unsafe { File::from_raw_fd(copy) };
    let kind = file.metadata().map_err(|error| format!("cannot be used: {error}"))?.file_type();
    if kind.is_socket() { Ok(file) } else { Err("cannot be used: it is no socket".to_owned()) }
}
