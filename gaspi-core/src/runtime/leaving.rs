//! What a rank that leaves waits for, until its timeout: that its requests have ended, and that
//! messages are out of its hands. Peers that are stopped have not died: what is on its way to one
//! over a device that does not run either is waited for, and named.

use super::Inner;
use crate::ids::Rank;
use crate::queue::Queue;

/// How many ranks are named.
const NAMED_MAX: usize = 3;

impl Inner {
    /// Whether all requests have ended, and everything posted arrives even if this rank leaves.
    pub(super) fn has_delivered(&self) -> bool {
        let requests: u32 = self.queues.iter().map(Queue::pending).sum();
        requests == 0 && self.ranks.all().all(|rank| self.endpoint(rank).is_drained())
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
