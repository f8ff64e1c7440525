//! How many requests are under way, counted without a lock: by the threads that post them and by
//! the handlers of their completions.
//!
//! A word holds a generation and a count. A purge begins a new generation, so that the completion
//! of a purged request, which carries the generation that it was begun in, counts nothing off.
//! One bit says that failures are kept besides the count.

use super::{Ordering, Word64};

/// Where the generation begins.
const GENERATION_BIT: u32 = 32;
/// Failures are kept.
const FAILED: u64 = 1 << 31;
const COUNT: u64 = FAILED - 1;

/// A generation, a mark and a count, in a word of either kind.
#[derive(Debug, Default)]
pub struct InFlight<W>(W);

#[inline(always)]
const fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_BIT) as u32
}

#[inline(always)]
const fn first_of(generation: u32) -> u64 {
    (generation as u64) << GENERATION_BIT
}

impl<W: Word64> InFlight<W> {
    /// Counts from this word on.
    pub fn new(word: W) -> InFlight<W> {
        InFlight(word)
    }

    /// Changes the word, unless `next` gives nothing for it; returns the former one, or the one
    /// that was left as it is.
    #[inline]
    fn update(&self, order: Ordering, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let Some(new) = next(word) else { return Err(word) };
            match self.0.compare_exchange(word, new, order) {
                Ok(former) => return Ok(former),
                Err(found) => word = found,
            }
        }
    }

    /// Whether anything is under way or has failed.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        // Acquire: pairs with the Release in `complete`, behind the data that was read.
        self.0.load(Ordering::Acquire) as u32 != 0
    }

    /// How many requests are under way.
    pub fn count(&self) -> u32 {
        self.look().0
    }

    /// How many requests are under way, and whether failures are kept, at one time.
    #[inline]
    pub fn look(&self) -> (u32, bool) {
        let word = self.0.load(Ordering::Acquire);
        ((word & COUNT) as u32, word & FAILED != 0)
    }

    /// Whether one request of this generation is under way, and nothing else, nor has anything
    /// failed.
    #[inline]
    pub fn has_one_of(&self, generation: u32) -> bool {
        self.0.load(Ordering::Acquire) == first_of(generation) + 1
    }

    /// The present generation.
    #[inline]
    pub fn generation(&self) -> u32 {
        generation_of(self.0.load(Ordering::Acquire))
    }

    /// How many requests of this generation are under way.
    pub fn count_of(&self, generation: u32) -> u32 {
        let word = self.0.load(Ordering::Acquire);
        if generation_of(word) == generation { (word & COUNT) as u32 } else { 0 }
    }

    /// Counts a request; returns its generation.
    #[inline]
    pub fn begin(&self) -> u32 {
        // Relaxed: the request is published by the lock of the stream that it travels on.
        let former = self.update(Ordering::Relaxed, |word| Some(word + 1));
        generation_of(former.unwrap_or_default())
    }

    /// Counts a request of this generation; false if it was purged.
    #[inline]
    pub fn begin_more(&self, generation: u32) -> bool {
        let more = |word| (generation_of(word) == generation).then_some(word + 1);
        self.update(Ordering::Relaxed, more).is_ok()
    }

    /// Counts a request of a generation that this word may not have heard of, unless it knows of a
    /// newer one.
    #[inline]
    pub fn begin_in(&self, generation: u32) {
        let next = |word| match generation.wrapping_sub(generation_of(word)) as i32 {
            0 => Some(word + 1),
            1.. => Some(first_of(generation) + 1),
            _ => None,
        };
        // One that was purged meanwhile is not counted.
        let _ = self.update(Ordering::Relaxed, next);
    }

    /// Counts completed requests of this generation off; false if they were purged.
    #[inline]
    pub fn complete(&self, generation: u32, requests: u32) -> bool {
        let less = |word: u64| {
            let taken = u64::from(requests).min(word & COUNT);
            (generation_of(word) == generation).then_some(word - taken)
        };
        // Release: publishes what the requests have brought; pairs with the Acquire in `is_busy`.
        self.update(Ordering::AcqRel, less).is_ok()
    }

    /// Marks that failures are kept, or that none are any more. The caller holds the lock that they
    /// are kept under.
    pub fn mark_failed(&self, failed: bool) {
        let mark = |word| Some(if failed { word | FAILED } else { word & !FAILED });
        // Release: who sees the mark finds the failure behind the lock. Never refused.
        let _ = self.update(Ordering::AcqRel, mark);
    }

    /// Begins a new generation, in which nothing is under way and nothing has failed; which it is.
    pub fn purge(&self) -> u32 {
        let next = |word| generation_of(word).wrapping_add(1);
        // Never refused.
        let former = self.update(Ordering::AcqRel, |word| Some(first_of(next(word))));
        next(former.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    type Counted = InFlight<AtomicU64>;

    #[test]
    fn what_was_purged_counts_nothing_off() {
        let requests = Counted::default();
        let old = requests.begin();
        assert!(requests.begin_more(old) && requests.is_busy());
        requests.purge();
        assert!(!requests.is_busy());
        let new = requests.begin();
        assert!(requests.has_one_of(new) && !requests.has_one_of(old));
        assert!(!requests.begin_more(old) && !requests.complete(old, 2));
        assert_eq!((requests.count(), requests.count_of(new), requests.count_of(old)), (1, 1, 0));
        assert!(requests.complete(new, 1) && !requests.is_busy());
    }

    #[test]
    fn failures_keep_it_busy_and_are_no_requests() {
        let requests = Counted::default();
        let generation = requests.begin();
        requests.mark_failed(true);
        assert!(requests.complete(generation, 1));
        assert_eq!((requests.is_busy(), requests.count()), (true, 0));
        assert!(!requests.has_one_of(generation.wrapping_add(1)));
        requests.mark_failed(false);
        assert!(!requests.is_busy());
        requests.mark_failed(true);
        requests.purge();
        assert!(!requests.is_busy());
    }

    #[test]
    fn more_completions_than_requests_do_not_reach_the_generation() {
        let requests = Counted::new(AtomicU64::new(first_of(7)));
        assert!(requests.complete(7, 3));
        assert_eq!((requests.generation(), requests.count()), (7, 0));
    }

    #[test]
    fn a_lane_learns_of_new_generations_and_forgets_old_ones() {
        let lane = Counted::new(AtomicU64::new(first_of(u32::MAX) + 5));
        lane.begin_in(0);
        assert_eq!((lane.generation(), lane.count()), (0, 1), "the number has begun again");
        lane.begin_in(u32::MAX);
        assert_eq!((lane.generation(), lane.count()), (0, 1), "that one was purged");
    }

    #[test]
    fn threads_that_begin_and_complete_at_once_come_out_even() {
        let requests = Counted::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let generation = requests.begin();
                        assert!(requests.complete(generation, 1));
                    }
                });
            }
        });
        assert!(!requests.is_busy());
    }
}
