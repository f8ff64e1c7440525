//! What a rank that leaves waits for, until its timeout: that its requests have ended, and that
//! messages are out of its hands. Peers that are stopped have not died: what is on its way to one
//! over a device that does not run either is waited for, and named.

use super::Inner;
use crate::ids::Rank;
use crate::queue::Queue;

/// Where a rank that leaves looks first: at the one for which something was on its way at the last
/// look. So a wake costs one look, unless that has arrived.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    first: u32,
}

impl Delivery {
    /// Whether `is_drained` holds for all of `size` ranks.
    fn look(&mut self, size: u32, is_drained: impl Fn(Rank) -> bool) -> bool {
        for rank in (self.first..size).chain(0..self.first) {
            if !is_drained(Rank(rank as u16)) {
                self.first = rank;
                return false;
            }
        }
        true
    }
}

/// How many ranks are named.
const NAMED_MAX: usize = 3;

impl Inner {
    /// Whether all requests have ended, and everything posted arrives even if this rank leaves.
    pub(super) fn has_delivered(&self, delivery: &mut Delivery) -> bool {
        let requests: u32 = self.queues.iter().map(Queue::pending).sum();
        let is_drained = |rank| self.endpoint(rank).is_drained();
        requests == 0 && delivery.look(self.ranks.size, is_drained)
    }

    /// What keeps this rank from leaving, and who, in words; none if nothing does any more.
    #[cold]
    pub(super) fn undelivered(&self) -> Option<String> {
        let mut waiting = self.ranks.all().filter_map(|rank| self.undelivered_to(rank));
        let mut words: Vec<String> = waiting.by_ref().take(NAMED_MAX).collect();
        match waiting.count() {
            0 => {}
            1 => words.push("what is on its way to one more rank".to_owned()),
            more => words.push(format!("what is on its way to {more} more ranks")),
        }
        // Some may end between two looks.
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn undelivered_to(&self, rank: Rank) -> Option<String> {
        let requests: u32 = self.queues.iter().map(|queue| queue.pending_with(rank)).sum();
        let what = match requests {
            0 if self.endpoint(rank).is_drained() => return None,
            0 => "messages".to_owned(),
            1 => "1 request".to_owned(),
            _ => format!("{requests} requests"),
        };
        Some(format!("{what} to {rank} on {}", self.ranks.host_of(rank)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::HashSet;

    #[test]
    fn a_wake_looks_at_one_rank_unless_that_has_got_its_messages() {
        let size = 65_535;
        let waiting = RefCell::new(HashSet::from([5, 4000, 65_000].map(Rank)));
        let (mut delivery, looks) = (Delivery::default(), Cell::new(0));
        let mut wake = || {
            let is_drained = |rank| {
                looks.set(looks.get() + 1);
                !waiting.borrow().contains(&rank)
            };
            (delivery.look(size, is_drained), looks.take())
        };
        assert_eq!(wake(), (false, 6));
        for (arrived, next) in [(5, 4000), (4000, 65_000)] {
            for _ in 0..100 {
                assert_eq!(wake(), (false, 1));
            }
            waiting.borrow_mut().remove(&Rank(arrived));
            assert_eq!(wake(), (false, next - arrived as i32 + 1));
        }
        // Something more is said to one that was looked at before.
        waiting.borrow_mut().insert(Rank(7));
        waiting.borrow_mut().remove(&Rank(65_000));
        assert_eq!(wake(), (false, 535 + 8));
        waiting.borrow_mut().clear();
        assert_eq!(wake(), (true, 65_535));
    }
}
