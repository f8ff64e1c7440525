//! The one place where a progress thread sleeps: an epoll set, and an eventfd to call it.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An epoll set whose entries are named by a number of the caller's.
#[derive(Debug)]
pub struct Epoll {
    epoll: OwnedFd,
}

/// Something happened to the descriptor named by `token`.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The name given when it was added.
    pub token: u64,
    /// There is something to read, or the other side is gone.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn new() -> Result<Epoll> {
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os("epoll_create1"));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Epoll { epoll: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, token: u64, events: i32) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open and the event lives on this stack.
        let failed = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event)
        };
        if failed != 0 {
            return Err(Error::last_os("epoll_ctl"));
        }
        Ok(())
    }

    /// Watches `fd` for something to read.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    /// Watches `fd` for room to write, or its failure.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add_writable(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLOUT)
    }

    /// Watches `fd`, which was added, for something to read and, if `writable`, for room to write.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn change(&self, fd: BorrowedFd<'_>, token: u64, writable: bool) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest(writable))
    }

    /// The same for one that was removed.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add_again(&self, fd: BorrowedFd<'_>, token: u64, writable: bool) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest(writable))
    }

    /// Watches `fd`, which was added, for something to read, or leaves it alone for now.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn listen(&self, fd: BorrowedFd<'_>, token: u64, readable: bool) -> Result<()> {
        let events = if readable { libc::EPOLLIN } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, fd, token, events)
    }

    /// No longer watches `fd`.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It may have been closed by its peer and removed by the kernel already.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Sleeps until something happens, at most `limit_ms` (-1: no limit), and appends it to
    /// `events`.
    pub fn wait(&self, events: &mut Vec<Event>, limit_ms: i32) {
        const NONE: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
        let mut ready = [NONE; 32];
        // SAFETY: the kernel writes at most as many events as the array holds.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                ready.as_mut_ptr(),
                ready.len() as i32,
                limit_ms,
            )
        };
        // Interrupted by a signal: nothing happened.
        for event in ready.iter().take(usize::try_from(count).unwrap_or(0)) {
            let writable = event.events & libc::EPOLLOUT as u32 != 0;
            let readable = event.events & !(libc::EPOLLOUT as u32) != 0;
            events.push(Event { token: event.u64, readable, writable });
        }
    }
}

fn interest(writable: bool) -> i32 {
    if writable { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN }
}

impl std::os::fd::AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An eventfd: calls the sleeper of an epoll set.
#[derive(Debug)]
pub struct Wakeup {
    fd: OwnedFd,
}

impl Wakeup {
    /// A wakeup that is not pending.
    ///
    /// # Errors
    /// Descriptors ran out.
    pub fn new() -> Result<Wakeup> {
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last_os("eventfd"));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(Wakeup { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Wakes the sleeper.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: writes 8 bytes from this stack; a full counter wakes already.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Takes the wakeup back.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads 8 bytes onto this stack.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl std::os::fd::AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
