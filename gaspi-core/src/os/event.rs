//! The one place where a progress thread sleeps: an epoll set, and an eventfd to call it.

use super::cancel;
use crate::error::{Error, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

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
        let epoll = epoll::create(CreateFlags::CLOEXEC);
        Ok(Epoll { epoll: epoll.map_err(|error| Error::os("epoll_create1", &error.into()))? })
    }

    fn insert(&self, fd: BorrowedFd<'_>, token: u64, events: EventFlags) -> Result<()> {
        checked(epoll::add(&self.epoll, fd, EventData::new_u64(token), events))
    }

    fn modify(&self, fd: BorrowedFd<'_>, token: u64, events: EventFlags) -> Result<()> {
        checked(epoll::modify(&self.epoll, fd, EventData::new_u64(token), events))
    }

    /// Watches `fd` for something to read.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.insert(fd, token, EventFlags::IN)
    }

    /// Watches `fd` for room to write, or its failure.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add_writable(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        self.insert(fd, token, EventFlags::OUT)
    }

    /// Watches `fd`, which was added, for something to read and, if `writable`, for room to write.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn change(&self, fd: BorrowedFd<'_>, token: u64, writable: bool) -> Result<()> {
        self.modify(fd, token, interest(writable))
    }

    /// The same for one that was removed.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn add_again(&self, fd: BorrowedFd<'_>, token: u64, writable: bool) -> Result<()> {
        self.insert(fd, token, interest(writable))
    }

    /// Watches `fd`, which was added, for something to read, or leaves it alone for now.
    ///
    /// # Errors
    /// The kernel's, in words.
    pub fn listen(&self, fd: BorrowedFd<'_>, token: u64, readable: bool) -> Result<()> {
        let events = if readable { EventFlags::IN } else { EventFlags::empty() };
        self.modify(fd, token, events)
    }

    /// No longer watches `fd`.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It may have been closed by its peer and removed by the kernel already.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Sleeps until something happens, at most `limit_ms` (-1: no limit), and appends it to
    /// `events`.
    pub fn wait(&self, events: &mut Vec<Event>, limit_ms: i32) {
        let mut ready = [MaybeUninit::uninit(); 32];
        let limit = u32::try_from(limit_ms).ok().map(|limit_ms| Timespec {
            tv_sec: (limit_ms / 1000).into(),
            tv_nsec: (limit_ms % 1000 * 1_000_000).into(),
        });
        // Interrupted by a signal: nothing happened.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut ready, limit.as_ref()) else { return };
        for event in ready {
            let flags = { event.flags }.bits();
            let writable = flags & EventFlags::OUT.bits() != 0;
            let readable = flags & !EventFlags::OUT.bits() != 0;
            events.push(Event { token: { event.data }.u64(), readable, writable });
        }
    }
}

fn checked(outcome: rustix::io::Result<()>) -> Result<()> {
    outcome.map_err(|error| Error::os("epoll_ctl", &error.into()))
}

fn interest(writable: bool) -> EventFlags {
    if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
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
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Wakeup { fd: fd.map_err(|error| Error::os("eventfd", &error.into()))? })
    }

    /// Wakes the sleeper.
    pub fn wake(&self) {
        // Also from fast paths.
        let _uncancelled = cancel::hold_off();
        // A full counter wakes already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes the wakeup back.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl std::os::fd::AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads from a descriptor that has nothing to say return at once from now on.
///
/// # Errors
/// What the kernel says.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}
