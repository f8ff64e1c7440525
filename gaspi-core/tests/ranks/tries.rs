//! What ranks count where that depends on nobody being late: it is tried until nobody was.

use gaspi_core::Rank;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A guard: whoever counts too much for so long does so whenever it is tried.
const LONGEST: Duration = Duration::from_secs(60);

/// Tries of all ranks together.
#[derive(Debug)]
pub(crate) struct Tries {
    begun: Instant,
    /// What each rank has counted in this one.
    counts: Mutex<Vec<u64>>,
    is_last: AtomicBool,
    all: Barrier,
}

impl Tries {
    pub(crate) fn new(size: u32) -> Tries {
        Tries {
            begun: Instant::now(),
            counts: Mutex::new(vec![0; size as usize]),
            is_last: AtomicBool::new(false),
            all: Barrier::new(size as usize),
        }
    }

    /// Notes what a rank has counted, and waits for the others. Whether this was the last try: the
    /// counts are good, or there has been time enough for others.
    pub(crate) fn are_over(&self, rank: Rank, count: u64, good: impl Fn(&[u64]) -> bool) -> bool {
        let counts = || self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts()[rank.index()] = count;
        if self.all.wait().is_leader() {
            let is_last = good(&counts()) || self.begun.elapsed() >= LONGEST;
            self.is_last.store(is_last, Ordering::Relaxed);
        }
        // The barrier orders what the leader has stored.
        self.all.wait();
        self.is_last.load(Ordering::Relaxed)
    }

    /// What each rank has counted in the last one.
    pub(crate) fn counts(self) -> Vec<u64> {
        self.counts.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
