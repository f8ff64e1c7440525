//! Counts of messages as words in the memory of the other member.
//!
//! A word counts modulo 2^31, with its upper bit set, since a notification is never 0. A reader
//! that knows an earlier count gets the whole one: fewer than 2^31 messages can have come since.

/// A word that says that its writer has closed its end: nothing of it follows.
pub(super) const CLOSED: u32 = 1;
/// A word that says that something of its writer is lost: nothing of it follows that could be used.
pub(super) const LOST: u32 = 1;
/// Set in every word that counts.
const COUNTS: u32 = 1 << 31;

/// The word that says `count`.
#[inline]
pub(super) fn word(count: u64) -> u32 {
    COUNTS | count as u32
}

/// The count that a word says, where `known` is one of the counts before it.
#[inline]
pub(super) fn advance(known: u64, word: u32) -> u64 {
    if word & COUNTS == 0 {
        // Nothing has come yet, or nothing comes any more.
        return known;
    }
    known + u64::from(word.wrapping_sub(known as u32) & !COUNTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reader_that_lags_gets_the_whole_count(known in 0..u64::MAX / 2, lag in 0..1u64 << 31) {
            let count = known + lag;
            prop_assert_ne!(word(count), 0);
            prop_assert_ne!(word(count), CLOSED);
            prop_assert_eq!(advance(known, word(count)), count);
        }
    }

    #[test]
    fn words_that_do_not_count_change_nothing() {
        for known in [0, 7, 1 << 31, (1 << 40) + 3] {
            assert_eq!(advance(known, 0), known);
            assert_eq!(advance(known, CLOSED), known);
        }
    }
}
