//! A value for each rank of a job, for what most ranks have nothing of: made, for some ranks at a
//! time, when one of them is asked for first. The others take a quarter of a byte.

use std::sync::OnceLock;

/// Ranks whose values are made together.
const BLOCK: usize = 64;

/// A value for each rank.
#[derive(Debug)]
pub(crate) struct ByRank<T> {
    blocks: Box<[OnceLock<Box<[T; BLOCK]>>]>,
}

impl<T: Default> ByRank<T> {
    /// For so many ranks.
    pub(crate) fn new(ranks: u32) -> ByRank<T> {
        let blocks = (ranks as usize).div_ceil(BLOCK);
        ByRank { blocks: (0..blocks).map(|_| OnceLock::new()).collect() }
    }

    /// The value of a rank, by its number, made if need be.
    #[inline]
    pub(crate) fn of(&self, rank: usize) -> &T {
        let block = self.blocks[rank / BLOCK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| T::default())));
        &block[rank % BLOCK]
    }

    /// The value of a rank, by its number; none is as it was made.
    #[inline]
    pub(crate) fn find(&self, rank: usize) -> Option<&T> {
        Some(&self.blocks[rank / BLOCK].get()?[rank % BLOCK])
    }

    /// All that have been made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzed::live_bytes;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn values_are_made_when_they_are_asked_for() {
        let before = live_bytes();
        let values: ByRank<AtomicU64> = ByRank::new(10_000);
        assert!(live_bytes() - before <= 10_000 / 4 + 16, "{} bytes", live_bytes() - before);
        assert!(values.find(9_999).is_none());
        values.of(9_999).store(7, Ordering::Relaxed);
        assert_eq!(values.find(9_999).map(|value| value.load(Ordering::Relaxed)), Some(7));
        assert!(values.find(0).is_none());
        let made: u64 = values.iter().map(|value| value.load(Ordering::Relaxed)).sum();
        assert_eq!((values.iter().count(), made), (64, 7));
    }

    #[test]
    fn threads_that_come_at_once_find_the_same_value() {
        let values: ByRank<AtomicU64> = ByRank::new(100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..100).for_each(|rank| {
                        values.of(rank).fetch_add(1, Ordering::Relaxed);
                    })
                });
            }
        });
        assert!((0..100).all(|rank| values.of(rank).load(Ordering::Relaxed) == 4));
    }
}
