//! Sleeping without losing a wake-up: one eventcount per rank, in its shared control page.
//!
//! Sleeper: [`announce`](EventCount::announce), look at the condition once more, sleep on the
//! sequence word while it has the announced value, [`leave`](EventCount::leave). Waker: store what
//! the sleeper waits for (release), then [`someone_sleeps`](EventCount::someone_sleeps); if so,
//! [`advance`](EventCount::advance) and wake the word. Either the sleeper's look sees the store, or
//! the waker's load sees the sleeper: the two fences, heavy here and light there, see to it.

use super::{Ordering, Word32};

/// The two words of an eventcount, wherever they live.
#[derive(Debug)]
pub struct EventCount<'a, W> {
    /// Advanced by every wake; what the futex sleeps on.
    pub sequence: &'a W,
    /// How many threads are between announce and leave.
    pub sleepers: &'a W,
}

impl<W: Word32> EventCount<'_, W> {
    /// Announces a sleeper; `heavy` is the fence of the rare side. Returns the value to sleep on.
    #[inline]
    pub fn announce(&self, heavy: impl FnOnce()) -> u32 {
        // Relaxed: the heavy fence orders it before the sleeper's second look.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        heavy();
        // Acquire: a wake seen here makes the stores before it visible to the second look.
        self.sequence.load(Ordering::Acquire)
    }

    /// Ends an announcement.
    #[inline]
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody has to be woken; `light` is the fence of the frequent side.
    #[inline]
    pub fn someone_sleeps(&self, light: impl FnOnce()) -> bool {
        light();
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Makes every announced sleeper return; the caller then wakes the sequence word.
    #[inline]
    pub fn advance(&self) {
        // Release: publishes the waker's stores to a sleeper that finds the sequence changed.
        self.sequence.fetch_add(1, Ordering::Release);
    }
}
