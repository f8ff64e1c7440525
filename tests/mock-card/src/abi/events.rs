//! Events with a descriptor that poll and epoll see, as completion channels and contexts have it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use super::fabric::lock;

/// Events that wait for a program: kind, and the object or number that each is about.
#[derive(Debug)]
pub(super) struct Events {
    descriptor: OwnedFd,
    waiting: Mutex<VecDeque<(u32, usize)>>,
}

impl Events {
    pub(super) fn new() -> io::Result<Events> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh descriptor.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Events { descriptor, waiting: Mutex::default() })
    }

    pub(super) fn raw(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    pub(super) fn push(&self, kind: u32, about: usize) {
        lock(&self.waiting).push_back((kind, about));
        let one = 1_u64;
        // SAFETY: the kernel reads the 8 bytes of `one`.
        let written = unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
        debug_assert_eq!(written, 8, "the count of an eventfd does not overflow");
    }

    /// The next event. Waits for one unless the program made the descriptor nonblocking.
    pub(super) fn take(&self, noted: impl Fn(usize)) -> io::Result<(u32, usize)> {
        loop {
            let mut count = 0_u64;
            // SAFETY: kernel writes within.
            let read = unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
            if read != 8 {
                return Err(io::Error::last_os_error());
            }
            let mut waiting = lock(&self.waiting);
            // None: its object was destroyed, and the count stayed.
            if let Some(event) = waiting.pop_front() {
                noted(event.1);
                return Ok(event);
            }
        }
    }

    /// Drops the events about an object that ends.
    pub(super) fn forget(&self, about: usize) {
        lock(&self.waiting).retain(|(_, object)| *object != about);
    }
}
