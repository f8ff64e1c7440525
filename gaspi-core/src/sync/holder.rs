//! Which thread has a right that one thread uses without a lock: the word of a
//! [`Bias`](super::bias).
//!
//! A thread's name is an even number, not 0. Its holder lets the right rest by setting the lowest
//! bit, and resumes it by clearing that; another thread takes it under a lock. Both sides exchange
//! the word where the other one may change it at the same time, so that a right that was taken
//! stays so.

use super::{Ordering, Word64};

/// Nobody has it.
const NOBODY: u64 = 0;
/// Beside the name of a holder whose right rests.
const RESTING: u64 = 1;

/// The name of a right's holder.
#[derive(Debug, Default)]
pub struct Holder<W>(W);

impl<W: Word64> Holder<W> {
    /// Whether the thread of this name has the right, and it does not rest. Only in a section.
    #[inline(always)]
    pub fn is(&self, own: u64) -> bool {
        // Relaxed: a thread that takes the right waits for the end of the section.
        self.0.load(Ordering::Relaxed) == own
    }

    /// Whether nobody has it, resting or not.
    #[inline]
    pub fn is_nobody(&self) -> bool {
        // Acquire: pairs with the Release in `give_back`.
        self.0.load(Ordering::Acquire) == NOBODY
    }

    /// Gives it to a thread; nobody has it. Under the lock.
    pub fn set(&self, own: u64) {
        // Relaxed: the lock orders it.
        self.0.store(own, Ordering::Relaxed);
    }

    /// The holder gives the right back, in the section that it uses it in.
    pub fn give_back(&self) {
        // Release: a thread that finds nobody sees what the holder did.
        self.0.store(NOBODY, Ordering::Release);
    }

    /// The holder lets the right rest, at the end of what it uses it for in a section. If another
    /// thread is taking it right now it is not given back to rest.
    #[inline]
    pub fn rest_in_section(&self, own: u64) {
        // Release: a thread that takes it now does not wait, and sees what the holder did. Where it
        // fails, the one that takes it waits for the end of the section.
        let _ = self.0.compare_exchange(own, own | RESTING, Ordering::Release);
    }

    /// The same outside of a section and under the lock, by a thread that may not have it; false if
    /// another one has.
    pub fn rest(&self, own: u64) -> bool {
        let holder = self.0.load(Ordering::Acquire);
        if holder & !RESTING == own {
            // Release: as in `rest_in_section`. Nobody takes it meanwhile.
            self.0.store(own | RESTING, Ordering::Release);
        }
        holder == NOBODY || holder & !RESTING == own
    }

    /// The same of a thread that had the right, if nobody has it now.
    pub fn set_resting(&self, own: u64) {
        if self.is_nobody() {
            // Release: as in `rest_in_section`.
            self.0.store(own | RESTING, Ordering::Release);
        }
    }

    /// Whether the right of the thread of this name rests. Under the lock, or in that thread.
    pub fn rests(&self, own: u64) -> bool {
        self.0.load(Ordering::Relaxed) == own | RESTING
    }

    /// Whether the thread of this name had a right that rested, which it has from here on. In a
    /// section.
    #[inline]
    pub fn resume(&self, own: u64) -> bool {
        // By an exchange, since another thread may take it right now. Acquire: sees what others did
        // under the lock that took it from nobody.
        self.0.load(Ordering::Relaxed) == own | RESTING
            && self.0.compare_exchange(own | RESTING, own, Ordering::Acquire).is_ok()
    }

    /// Whether nobody has the right: what rests is taken. Under the lock.
    pub fn take_resting(&self) -> bool {
        self.take_from_resting(self.0.load(Ordering::Acquire))
    }

    /// Takes a right of this holder that rests; false if it does not, or not any more.
    fn take_from_resting(&self, holder: u64) -> bool {
        let from = holder | RESTING;
        holder == NOBODY || self.0.compare_exchange(from, NOBODY, Ordering::AcqRel).is_ok()
    }

    /// Takes the right under the lock. If it did not rest its holder may be in a section, whose end
    /// `outlast` waits for: it gets the holder's name.
    #[inline]
    pub fn take(&self, outlast: impl FnOnce(u64)) {
        // Acquire: pairs with the Release in `give_back`.
        let holder = self.0.load(Ordering::Acquire);
        if holder != NOBODY {
            self.take_from(holder, outlast);
        }
    }

    #[cold]
    fn take_from(&self, holder: u64, outlast: impl FnOnce(u64)) {
        if self.take_from_resting(holder) {
            return;
        }
        self.0.store(NOBODY, Ordering::Relaxed);
        outlast(holder & !RESTING);
    }
}
