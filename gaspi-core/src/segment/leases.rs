//! Which ranges of an arena messages may come to. Each range is lent under a number of its own to
//! those that send there. What names another number is late, and goes nowhere. A lease ends in two
//! steps: first for data, while its notifications still tell what others have done, then for all.
//! What is sent to a lease that ends is answered each time: its sender may have missed that before.
//! Only who is told of the end in another way gets no answer to notifications.
//!
//! Whoever writes what has come holds the lock of [`Segment::accept`](super::Segment::accept) from
//! the look at the lease to the write. A lease ends under the same lock, so that nothing is written
//! behind its end.

use crate::ids::Rank;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// The leases of a segment, by first byte.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<BTreeMap<u64, Lease>>);

#[derive(Debug)]
struct Lease {
    /// Behind the last byte.
    end: u64,
    number: u32,
    /// Once no more data comes: who is told of that in another way.
    told: Option<Box<[Rank]>>,
}

/// Whether something may come to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lent {
    /// It goes nowhere, and is answered.
    No,
    /// It may, and is answered.
    Ending,
    Yes,
}

impl Leases {
    /// Lends a range under a number.
    pub(crate) fn begin(&self, range: Range<u64>, number: u32) {
        let lease = Lease { end: range.end, number, told: None };
        self.0.lock().insert(range.start, lease);
    }

    /// No more data comes to the range that begins here. Notifications are answered, but for those
    /// of ranks that are told in another way.
    pub(super) fn end_data(&self, start: u64, told: Box<[Rank]>) {
        if let Some(lease) = self.0.lock().get_mut(&start) {
            lease.told = Some(told);
        }
    }

    /// Ends the lease of the range that begins here, if it is lent.
    pub(super) fn end(&self, start: u64) {
        self.0.lock().remove(&start);
    }

    /// Whether so many bytes, or a notification without any, may come to a range that is lent under
    /// this number.
    pub(crate) fn covers(&self, number: u32, offset: u64, size: u64) -> bool {
        self.look(number, offset, size, |_| ()).is_some()
    }

    /// The same for what `from` has sent, and whether it is answered.
    pub(crate) fn find(&self, from: Rank, number: u32, offset: u64, size: u64) -> Lent {
        let is_answered = |lease: &Lease| match &lease.told {
            Some(told) if !told.contains(&from) => Lent::Ending,
            _ => Lent::Yes,
        };
        self.look(number, offset, size, is_answered).unwrap_or(Lent::No)
    }

    /// Looks at the lease that something may come to.
    fn look<T>(
        &self,
        number: u32,
        offset: u64,
        size: u64,
        look: impl FnOnce(&Lease) -> T,
    ) -> Option<T> {
        let leases = self.0.lock();
        let (_, lease) = leases.range(..=offset).next_back()?;
        let takes = lease.told.is_none() || size == 0;
        let inside = offset < lease.end && offset.saturating_add(size) <= lease.end;
        (takes && lease.number == number && inside).then(|| look(lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_lent_under_its_number_until_it_ends() {
        let leases = Leases::default();
        leases.begin(4096..8192, 7);
        leases.begin(8192..12288, 8);
        assert!(leases.covers(7, 4096, 4096) && leases.covers(7, 8192 - 64, 64));
        assert!(!leases.covers(7, 8192 - 64, 65), "it would reach into the next range");
        assert!(!leases.covers(8, 4096, 1) && !leases.covers(7, 8192, 1));
        assert!(!leases.covers(7, 0, 1) && !leases.covers(8, 12288, 0));
        assert_eq!(leases.find(Rank(1), 7, 4096, 1), Lent::Yes);
        leases.end_data(4096, [Rank(2)].into());
        assert!(!leases.covers(7, 4096, 1) && leases.covers(7, 4096, 0), "notifications only");
        assert_eq!(leases.find(Rank(1), 7, 4096, 0), Lent::Ending, "and these are answered");
        assert_eq!(leases.find(Rank(2), 7, 4096, 0), Lent::Yes, "but for who is told");
        assert_eq!(leases.find(Rank(2), 7, 4096, 1), Lent::No);
        leases.end(4096);
        assert!(!leases.covers(7, 4096, 0));
        leases.begin(4096..8192, 9);
        assert!(!leases.covers(7, 4096, 64) && leases.covers(9, 4096, 64));
    }
}
