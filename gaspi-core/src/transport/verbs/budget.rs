//! How many pairs a rank may have at once: its share of its device, or what GASPI_IB_PAIRS says.
//!
//! Each end of a pair takes one of them, and gives it back when it is destroyed. A lane that finds
//! none left shares that of another one ([`sharing`](super::sharing)), or goes by the stream. It is
//! tried again after one was given back, not for each request.
//! Pairs of messages get half of them at most: where devices are wanted for data alone, or many
//! peers share few pairs, it is data that needs them.
//!
//! Invariant: an end exists only while it is counted here, but for that of a rank with itself.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// What sets a budget. Reasons of a shortage name it, the peer's word of one too.
pub(super) const VARIABLE: &str = "GASPI_IB_PAIRS";

/// Whether this reason, of this rank or of a peer, is that of a shortage.
pub(super) fn lacks_pairs(reason: &str) -> bool {
    reason.contains(VARIABLE)
}

/// What a device has for all ranks that share it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceCounts {
    /// Queue pairs.
    pub(super) pairs: u32,
    /// Completion queues.
    pub(super) queues: u32,
}

/// The share of one of so many ranks. An eighth is left to others, as pairs of the kernel. Each
/// completion queue has entries for `pairs_each` pairs, and one queue is for what comes.
pub(super) fn share(counts: DeviceCounts, pairs_each: u32, sharers: u32) -> u32 {
    let of = |all: u32| (all - all / 8) / sharers.max(1);
    let queues = of(counts.queues).saturating_sub(1).max(1);
    of(counts.pairs).min(queues.saturating_mul(pairs_each)).max(1)
}

/// Why an end of a pair cannot be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotMade {
    pub(super) reason: String,
    /// Whether it can be made once another one was given back.
    pub(super) scarce: bool,
}

impl From<String> for NotMade {
    fn from(reason: String) -> NotMade {
        NotMade { reason, scarce: false }
    }
}

/// What a pair is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairKind {
    /// A queue, or atomic operations.
    Data,
    /// The bytes of connections.
    Messages,
    /// That of a rank with itself: without it what the rank has vouched for does not hold, so that
    /// it takes no other's place, nor loses its own.
    Own,
}

/// The pairs of a rank.
#[derive(Debug)]
pub(super) struct Budget {
    limit: AtomicU32,
    /// All that are in use, those of messages included.
    used: AtomicU32,
    of_messages: AtomicU32,
    /// Whether a lane found none left.
    was_short: AtomicBool,
    /// Whether one was given back since somebody looked.
    given_back: AtomicBool,
    told: AtomicBool,
    told_of_sharing: AtomicBool,
}

impl Default for Budget {
    fn default() -> Budget {
        let none = || AtomicBool::new(false);
        Budget {
            limit: AtomicU32::new(u32::MAX),
            used: AtomicU32::new(0),
            of_messages: AtomicU32::new(0),
            was_short: none(),
            given_back: none(),
            told: none(),
            told_of_sharing: none(),
        }
    }
}

impl Budget {
    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether there is one left.
    pub(super) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit.load(Ordering::Relaxed)
    }

    /// Takes one.
    ///
    /// # Errors
    /// There is none left.
    pub(super) fn take(&self, kind: PairKind) -> Result<(), NotMade> {
        if kind == PairKind::Own {
            return Ok(());
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if kind == PairKind::Messages {
            count_below(&self.of_messages, limit / 2).map_err(|_| {
                self.short(format!(
                    "messages have at most half of the {limit} pairs of a rank's budget; \
                     {VARIABLE} sets it"
                ))
            })?;
        }
        count_below(&self.used, limit).map_err(|used| {
            if kind == PairKind::Messages {
                self.of_messages.fetch_sub(1, Ordering::Relaxed);
            }
            self.short(format!(
                "all {used} pairs of a rank's budget are in use; {VARIABLE} sets it"
            ))
        })
    }

    /// Nothing came of one that was taken.
    pub(super) fn cancel(&self, kind: PairKind) {
        if kind == PairKind::Own {
            return;
        }
        if kind == PairKind::Messages {
            self.of_messages.fetch_sub(1, Ordering::Relaxed);
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// One that was used is free.
    pub(super) fn give_back(&self, kind: PairKind) {
        self.cancel(kind);
        self.given_back.store(true, Ordering::Release);
    }

    /// There are too few, of this budget or of the device.
    pub(super) fn short(&self, reason: String) -> NotMade {
        self.was_short.store(true, Ordering::Relaxed);
        NotMade { reason, scarce: true }
    }

    /// Whether lanes that found none left are to be tried again.
    pub(super) fn take_news(&self) -> bool {
        self.given_back.load(Ordering::Relaxed)
            && self.given_back.swap(false, Ordering::Acquire)
            && self.was_short.load(Ordering::Relaxed)
            && self.has_room()
    }

    /// Whether somebody is to be told of it now: the first time only.
    pub(super) fn tells(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// The same of queues that share pairs.
    pub(super) fn tells_of_sharing(&self) -> bool {
        !self.told_of_sharing.swap(true, Ordering::Relaxed)
    }
}

/// Counts one more, unless there are so many.
fn count_below(counter: &AtomicU32, limit: u32) -> Result<(), u32> {
    let more = |used| (used < limit).then_some(used + 1);
    // Relaxed: it counts, and guards no other memory.
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::PairKind::{Data, Messages};
    use super::*;

    fn share_of(pairs: u32, queues: u32, pairs_each: u32, sharers: u32) -> u32 {
        share(DeviceCounts { pairs, queues }, pairs_each, sharers)
    }

    #[test]
    fn a_share_is_what_the_device_has_less_some_for_others() {
        assert_eq!(share_of(131_072, 65_536, 32, 1), 114_688);
        assert_eq!(share_of(131_072, 65_536, 32, 128), 896);
        // One queue of its share is for what comes.
        assert_eq!(share_of(131_072, 64, 32, 1), 55 * 32);
        assert_eq!(share_of(131_072, 64, 32, 8), 6 * 32);
        // The smallest devices: at least one.
        assert_eq!(share_of(1, 1, 1, 64), 1);
        assert_eq!(share_of(2, 2, 1, 1), 1);
        assert_eq!(share_of(u32::MAX, u32::MAX, u32::MAX, 1), u32::MAX - u32::MAX / 8);
    }

    #[test]
    fn what_is_given_back_is_news_where_there_were_too_few() {
        let budget = Budget::default();
        budget.set_limit(2);
        assert_eq!((budget.take(Data), budget.take(Data)), (Ok(()), Ok(())));
        budget.give_back(Data);
        assert!(!budget.take_news(), "nobody found none left");
        assert_eq!(budget.take(Data), Ok(()));
        let refused = budget.take(Data).expect_err("two are in use");
        assert!(refused.scarce && refused.reason.contains("GASPI_IB_PAIRS"), "{refused:?}");
        assert!(!budget.take_news());
        budget.give_back(Data);
        assert!(budget.take_news());
        assert!(!budget.take_news(), "it has been looked at");
        assert_eq!(budget.take(Data), Ok(()));
        // Where the device did not make it nobody is called again.
        budget.cancel(Data);
        assert!(!budget.take_news());
    }
    #[test]
    fn messages_leave_half_of_the_pairs_to_data() {
        let budget = Budget::default();
        for (limit, most) in [(0, 0), (1, 0), (2, 1), (5, 2)] {
            budget.set_limit(limit);
            for _ in 0..most {
                assert_eq!(budget.take(Messages), Ok(()));
            }
            let refused = budget.take(Messages).expect_err("data needs the rest");
            assert!(refused.scarce && refused.reason.contains("GASPI_IB_PAIRS"), "{refused:?}");
            for _ in most..limit {
                assert_eq!(budget.take(Data), Ok(()));
            }
            assert!(budget.take(Data).is_err(), "those of messages count too");
            (0..most).for_each(|_| budget.give_back(Messages));
            (most..limit).for_each(|_| budget.give_back(Data));
        }
        // That of a rank with itself is outside of it.
        budget.set_limit(0);
        assert_eq!(budget.take(PairKind::Own), Ok(()));
        budget.give_back(PairKind::Own);
        // One that data has kept from messages is not counted as theirs.
        budget.set_limit(2);
        assert_eq!((budget.take(Data), budget.take(Data)), (Ok(()), Ok(())));
        assert!(budget.take(Messages).is_err());
        budget.give_back(Data);
        assert_eq!(budget.take(Messages), Ok(()));
    }
}
