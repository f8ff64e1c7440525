//! Which parts of a space are free; allocation is first fit.

use std::ops::Range;

/// The free parts of a space, ascending and not touching.
#[derive(Debug)]
pub(super) struct FreeList {
    free: Vec<Range<u64>>,
}

impl FreeList {
    /// All of `0..size` is free.
    pub(super) fn new(size: u64) -> FreeList {
        FreeList { free: std::iter::once(0..size).collect() }
    }

    /// Takes `size` from the first place where they fit.
    pub(super) fn take(&mut self, size: u64) -> Option<Range<u64>> {
        let index = self.free.iter().position(|part| part.end - part.start >= size)?;
        let start = self.free[index].start;
        self.free[index].start += size;
        if self.free[index].is_empty() {
            self.free.remove(index);
        }
        Some(start..start + size)
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, part: Range<u64>) {
        if part.is_empty() {
            return;
        }
        let index = self.free.partition_point(|other| other.start < part.start);
        self.free.insert(index, part);
        for left in [index, index.wrapping_sub(1)] {
            if let Some([one, two]) = self.free.get(left..).and_then(|rest| rest.get(..2))
                && one.end == two.start
            {
                self.free[left].end = two.end;
                self.free.remove(left + 1);
            }
        }
    }

    /// The longest free part.
    pub(super) fn longest(&self) -> u64 {
        self.free.iter().map(|part| part.end - part.start).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_in_use_never_overlaps_and_all_comes_back(
            calls in prop::collection::vec((any::<bool>(), 1..40u64), 0..200),
        ) {
            let mut free_list = FreeList::new(256);
            let mut used: Vec<Range<u64>> = vec![];
            for (take, number) in calls {
                if take {
                    let longest = free_list.longest();
                    match free_list.take(number) {
                        Some(new) => {
                            prop_assert!(new.end <= 256 && new.end - new.start == number);
                            let apart = |r: &Range<u64>| r.end <= new.start || new.end <= r.start;
                            prop_assert!(used.iter().all(apart), "{new:?} of {used:?}");
                            used.push(new);
                        }
                        None => prop_assert!(longest < number),
                    }
                } else if !used.is_empty() {
                    free_list.give(used.swap_remove(number as usize % used.len()));
                }
            }
            used.into_iter().for_each(|part| free_list.give(part));
            prop_assert_eq!(free_list.longest(), 256);
            prop_assert_eq!(free_list.free.len(), 1);
        }
    }
}
