//! When pairs for messages with a peer have failed too often for another one.
//!
//! A pair may come up and fail whenever it has to carry messages, as where a network drops large
//! packets. Each failure holds messages up for as long as the device tries, about GASPI_DEAD_AFTER.
//! So a few of them in a row are enough. One that has carried messages for ten times as long before
//! ends the row: then failures take less than a tenth of the time, however many follow. A number of
//! messages would not say that: thousands of small ones go within one of these times.

/// So many failures in a row.
const TOO_MANY: u32 = 3;
/// How often the time that a failure takes has to go into that which a pair has carried messages.
const OUTWEIGHS: u64 = 10;

/// Failures of pairs in a row.
#[derive(Debug, Default)]
pub(crate) struct PairFailures {
    count: u32,
    /// When the last pair came up, and how many requests had been acknowledged then.
    up_ns: u64,
    acknowledged: u64,
}

impl PairFailures {
    /// A pair has come up, when so many requests had been acknowledged.
    pub(crate) fn came_up(&mut self, now_ns: u64, acknowledged: u64) {
        (self.up_ns, self.acknowledged) = (now_ns, acknowledged);
    }

    /// A pair has failed, which takes so long each time: those before are forgotten if it has
    /// carried something, and they do not matter.
    pub(crate) fn forgive(&mut self, now_ns: u64, failure_ns: u64, acknowledged: u64) {
        let has_carried = acknowledged > self.acknowledged;
        let up_ns = now_ns.saturating_sub(self.up_ns);
        if has_carried && up_ns >= failure_ns.saturating_mul(OUTWEIGHS) {
            self.count = 0;
        }
    }

    /// A pair has failed; whether it was the last one.
    pub(crate) fn note(&mut self) -> bool {
        self.count += 1;
        self.count == TOO_MANY
    }

    /// Whether there is to be no other one.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count >= TOO_MANY
    }

    /// Others are tried, however many have failed.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }

    /// As if the last pair had come up so much earlier.
    #[cfg(feature = "test-transports")]
    pub(crate) fn age(&mut self, by_ns: u64) {
        self.up_ns = self.up_ns.saturating_sub(by_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURE_NS: u64 = 5_000_000_000;

    /// Pairs fail so long after they have come up; which of them is the last one.
    fn last_of(lived_ns: impl IntoIterator<Item = u64>) -> Option<usize> {
        last_with(1, lived_ns)
    }

    /// The same where each has carried so many requests.
    fn last_with(carried: u64, lived_ns: impl IntoIterator<Item = u64>) -> Option<usize> {
        let (mut failures, mut now_ns, mut acknowledged) = (PairFailures::default(), 1 << 40, 0);
        lived_ns.into_iter().position(|lived_ns| {
            failures.came_up(now_ns, acknowledged);
            now_ns += lived_ns;
            acknowledged += carried;
            failures.forgive(now_ns, FAILURE_NS, acknowledged);
            // The proof of the next one.
            acknowledged += 1;
            let last = failures.note();
            assert_eq!(failures.are_too_many(), last);
            last
        })
    }

    #[test]
    fn the_third_one_in_a_row_is_the_last() {
        assert_eq!(last_of([FAILURE_NS; 10]), Some(2));
        assert_eq!(last_of([10 * FAILURE_NS - 1; 10]), Some(2));
        assert_eq!(last_of([FAILURE_NS; 2]), None);
    }

    #[test]
    fn one_that_has_carried_messages_for_long_begins_another_row() {
        assert_eq!(last_of([10 * FAILURE_NS; 1000]), None);
        let (short, long) = (FAILURE_NS, 11 * FAILURE_NS);
        assert_eq!(last_of([short, short, long, short, long, long, short, short, short]), Some(7));
    }

    #[test]
    fn one_that_has_carried_nothing_ends_no_row() {
        assert_eq!(last_with(0, [10 * FAILURE_NS; 10]), Some(2));
    }

    #[test]
    fn what_is_forgotten_counts_no_more() {
        let mut failures = PairFailures::default();
        assert_eq!([(); 3].map(|()| failures.note()), [false, false, true]);
        failures.forget();
        assert!(!failures.are_too_many() && !failures.note());
    }
}
