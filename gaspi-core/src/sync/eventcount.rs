//! Sleeping without losing a wake-up: one eventcount per rank, in its shared control page.
//!
//! A sleeper takes a [`ticket`](EventCount::ticket), [announces](EventCount::announce) which kinds
//! of events it waits for, looks at its condition once more, and sleeps on the sequence word while
//! that has the ticket's value. A waker stores the event (release), then asks
//! [`someone_sleeps`](EventCount::someone_sleeps), and if so wakes the word. The two fences, heavy
//! here and light there, see to it that the sleeper sees the store or the waker the announcement.
//!
//! A wake takes all announcements back, so many events for a sleeper cost one system call; sleepers
//! that were not meant announce themselves again. The ticket is older than the announcement, so a
//! wake that takes back an announcement changes the sequence that this sleeper would sleep on.

use super::{Ordering, Word32};

/// The two words of an eventcount, wherever they live.
#[derive(Debug)]
pub struct EventCount<'a, W> {
    /// Advanced by every wake; what the futex sleeps on.
    pub sequence: &'a W,
    /// Kinds of events, one bit each, that a thread sleeps for.
    pub awaited: &'a W,
}

impl<W: Word32> EventCount<'_, W> {
    /// The value to sleep on; taken before the announcement.
    #[inline]
    pub fn ticket(&self) -> u32 {
        // Acquire: a wake seen here makes the stores before it visible to the second look.
        self.sequence.load(Ordering::Acquire)
    }

    /// Announces a sleeper for `kinds` of events; `heavy` is the fence of the rare side.
    #[inline]
    pub fn announce(&self, kinds: u32, heavy: impl FnOnce()) {
        // Acquire: keeps the ticket before it; the heavy fence orders it before the second look.
        self.awaited.fetch_or(kinds, Ordering::AcqRel);
        heavy();
    }

    /// Whether a thread has to be woken for events of `kinds`; if so, all announcements are taken
    /// back, the sequence is advanced, and the caller wakes its word. `light` is the fence of the
    /// frequent side.
    #[inline]
    pub fn someone_sleeps(&self, kinds: u32, light: impl FnOnce()) -> bool {
        light();
        self.awaited.load(Ordering::Relaxed) & kinds != 0 && self.take_back()
    }

    /// Wakes all sleepers, announced or not: a waker may have died after it took the announcements
    /// back. The caller wakes the word.
    pub fn wake_regardless(&self) {
        self.awaited.swap(0, Ordering::AcqRel);
        // Release: as in `take_back`.
        self.sequence.fetch_add(1, Ordering::Release);
    }

    #[cold]
    fn take_back(&self) -> bool {
        // Acquire: pairs with the Release in `announce`, so that the ticket is older.
        if self.awaited.swap(0, Ordering::AcqRel) == 0 {
            // Another waker was faster, and wakes all.
            return false;
        }
        // Release: publishes the waker's stores to a sleeper that finds the sequence changed.
        self.sequence.fetch_add(1, Ordering::Release);
        true
    }
}
