//! Lanes by the numbers of their queue pairs: each completion is looked up. The numbers of their
//! work requests, which tell lanes apart too.

use crate::ids::{QueueId, Rank};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::transport::numbers::NumberMap;

/// So many numbers of a lane are followed by those of another one: enough for 10 million requests
/// in a second, for ten days. Behind that both have to be in their send queues at once to be taken
/// for each other.
const NUMBER_BITS: u32 = u64::BITS - u16::BITS - QUEUE_BITS;
pub(super) const QUEUE_BITS: u32 = 5;

/// The number of the first work request of a lane.
pub(super) fn first_number(queue: QueueId, peer: Rank) -> u64 {
    (u64::from(queue.0) << u16::BITS | u64::from(peer.0)) << NUMBER_BITS
}

/// A queue and a peer.
type Of = (QueueId, Rank);

/// Whose a queue pair is, by its number.
#[derive(Debug, Default)]
pub(super) struct ByNumber {
    pairs: Mutex<NumberMap<u32, Of>>,
    /// How often they have changed.
    changes: AtomicU64,
}

/// What was found last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    number: u32,
    of: Of,
    as_of: u64,
}

impl ByNumber {
    pub(super) fn insert(&self, number: u32, of: Of) {
        self.pairs.lock().insert(number, of);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, number: u32) {
        self.pairs.lock().remove(&number);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn find(&self, number: u32) -> Option<Of> {
        self.pairs.lock().get(&number).copied()
    }

    /// The same by one who looks for the same number again and again.
    #[inline]
    pub(super) fn find_again(&self, number: u32, last: &mut Option<Found>) -> Option<Of> {
        // Acquire: what is found below is not older.
        let as_of = self.changes.load(Ordering::Acquire);
        if let Some(found) = last.filter(|found| (found.number, found.as_of) == (number, as_of)) {
            return Some(found.of);
        }
        let of = self.find(number)?;
        *last = Some(Found { number, of, as_of });
        Some(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_last_is_forgotten_when_a_number_goes_to_another() {
        let (pairs, mut last) = (ByNumber::default(), None);
        let of = |rank| (QueueId(0), Rank(rank));
        pairs.insert(7, of(1));
        assert_eq!(pairs.find_again(7, &mut last), Some(of(1)));
        assert_eq!(pairs.find_again(7, &mut last), Some(of(1)));
        assert_eq!(pairs.find_again(8, &mut last), None);
        pairs.remove(7);
        assert_eq!(pairs.find_again(7, &mut last), None);
        pairs.insert(7, of(2));
        assert_eq!(pairs.find_again(7, &mut last), Some(of(2)));
    }
}
