//! Sleeping without losing a wake-up: one eventcount per rank, in its shared control page.
//!
//! Sleeper: take a [`ticket`](EventCount::ticket), [`announce`](EventCount::announce) what kinds of
//! news it waits for, look at the condition once more, sleep on the sequence word while it has the
//! ticket's value. Waker: store what the sleeper waits for (release), then ask
//! [`someone_sleeps`](EventCount::someone_sleeps); if so, wake the word. Either the sleeper's look
//! sees the store, or the waker's load sees the announcement: the two fences, heavy here and light
//! there, see to it.
//!
//! A wake takes back all announcements, so that whoever stores many things for a sleeper that has
//! not come back yet makes one system call. Sleepers that were not meant announce themselves again.
//! The ticket is older than the announcement: if a wake takes an announcement back, the sequence
//! has left, or is about to leave, the ticket of whoever made it.

use super::{Ordering, Word32};

/// The two words of an eventcount, wherever they live.
#[derive(Debug)]
pub struct EventCount<'a, W> {
    /// Advanced by every wake; what the futex sleeps on.
    pub sequence: &'a W,
    /// Kinds of news, one bit each, that somebody sleeps for.
    pub awaited: &'a W,
}

impl<W: Word32> EventCount<'_, W> {
    /// The value to sleep on; taken before the announcement.
    #[inline]
    pub fn ticket(&self) -> u32 {
        // Acquire: a wake seen here makes the stores before it visible to the second look.
        self.sequence.load(Ordering::Acquire)
    }

    /// Announces a sleeper for `kinds` of news; `heavy` is the fence of the rare side.
    #[inline]
    pub fn announce(&self, kinds: u32, heavy: impl FnOnce()) {
        // Acquire: keeps the ticket before it; the heavy fence orders it before the second look.
        self.awaited.fetch_or(kinds, Ordering::AcqRel);
        heavy();
    }

    /// Whether somebody has to be woken for news of `kinds`; then all announcements are taken back
    /// and the sequence is advanced, and the caller wakes its word. `light` is the fence of the
    /// frequent side.
    #[inline]
    pub fn someone_sleeps(&self, kinds: u32, light: impl FnOnce()) -> bool {
        light();
        self.awaited.load(Ordering::Relaxed) & kinds != 0 && self.take_back()
    }

    /// Wakes whoever sleeps or is about to, announced or not: a waker may have died after it took
    /// the announcements back. The caller wakes the word.
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
