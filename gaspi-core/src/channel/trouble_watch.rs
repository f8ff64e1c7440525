//! Which failures of requests a channel has dealt with: those of before it was opened, and those
//! of ranks that are no members.
//!
//! Invariant: a failure that concerns a member is never taken for harmless.

use crate::sync::{AtomicU64, Ordering};

/// Two states of the count of a rank's failed requests.
#[derive(Debug)]
pub(super) struct TroubleWatch {
    at_opening: u64,
    /// Up to here no failure concerns a member.
    harmless: AtomicU64,
}

impl TroubleWatch {
    /// For a channel that is opened when there have been so many.
    pub(super) fn new(at_opening: u64) -> TroubleWatch {
        TroubleWatch { at_opening, harmless: AtomicU64::new(at_opening) }
    }

    /// How many there were when the channel was opened.
    pub(super) fn at_opening(&self) -> u64 {
        self.at_opening
    }

    /// How many are known not to concern a member.
    #[inline]
    pub(super) fn harmless(&self) -> u64 {
        // Relaxed: what is newer than the number counts again.
        self.harmless.load(Ordering::Relaxed)
    }

    /// None of the first `count` concerns a member.
    pub(super) fn note_harmless(&self, count: u64) {
        self.harmless.store(count, Ordering::Relaxed);
    }
}
