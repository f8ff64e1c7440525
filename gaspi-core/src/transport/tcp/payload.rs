//! Memory that goes out to a socket straight from where it lies: of a segment, or lent.

use crate::segment::Segment;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of the program that a message takes its data from while it is on its way.
#[derive(Debug)]
pub(crate) struct Loan {
    start: *mut u8,
    /// Whether it may be read; held by whoever does.
    lent: Mutex<bool>,
}

// SAFETY: the memory may be read by any thread that finds it lent, by the promise of whoever lends
// it.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Loan {
    /// Lends what begins at `start`.
    ///
    /// # Safety
    /// What a payload takes from there is readable until it is [called back](Loan::call_back).
    pub(crate) unsafe fn new(start: *const u8) -> Loan {
        Loan { start: start.cast_mut(), lent: Mutex::new(true) }
    }

    fn accept(&self) -> MutexGuard<'_, bool> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody reads it any more, once this has returned. What the kernel has been handed by page it
    /// still sends as it is then.
    pub(crate) fn call_back(&self) {
        *self.accept() = false;
    }
}

#[derive(Debug, Clone)]
enum Memory {
    Segment(Arc<Segment>),
    Loan(Arc<Loan>),
}

/// Bytes that go out behind a frame.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    memory: Memory,
    /// Bytes.
    offset: u64,
}

impl Payload {
    /// What begins at `offset` of `segment`; the caller has checked the range.
    pub(crate) fn new(segment: Arc<Segment>, offset: u64) -> Payload {
        Payload { memory: Memory::Segment(segment), offset }
    }

    /// What begins at `offset` of memory that was lent.
    pub(crate) fn lent(loan: Arc<Loan>, offset: u64) -> Payload {
        Payload { memory: Memory::Loan(loan), offset }
    }

    /// What begins behind the first `skip` bytes.
    pub(super) fn behind(&self, skip: u64) -> Payload {
        Payload { memory: self.memory.clone(), offset: self.offset + skip }
    }

    pub(super) fn pointer(&self, skip: u64) -> *mut u8 {
        let start = match &self.memory {
            Memory::Segment(segment) => segment.pointer(),
            Memory::Loan(loan) => loan.start,
        };
        start.wrapping_add((self.offset + skip) as usize)
    }

    /// Keeps the memory as it is meanwhile; false where it may not be read any more.
    pub(crate) fn accept(&self) -> MutexGuard<'_, bool> {
        match &self.memory {
            Memory::Segment(segment) => segment.accept(),
            Memory::Loan(loan) => loan.accept(),
        }
    }

    /// Whether the stream ends where the memory may not be read any more: the peer could take what
    /// stands for a message's data for the data.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Loan(_))
    }

    /// Whether its pages may be handed to the kernel: memory of the program may serve another
    /// purpose once its segment was deleted, but not while it is lent.
    pub(super) fn may_be_piped(&self) -> bool {
        match &self.memory {
            Memory::Segment(segment) => segment.is_mapped(),
            Memory::Loan(_) => true,
        }
    }
}
