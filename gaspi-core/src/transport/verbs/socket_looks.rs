//! How often a waiting thread looks at the sockets, while it looks at completions all the time; and
//! which thread is in the middle of a look.

use crate::sync::epoch::thread_key;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Between two looks at least, and where news comes by sockets.
const LEAST_NS: u64 = 2_000;
/// Between two looks at most, however long the last one took.
const MOST_NS: u64 = 500_000;
/// A look at completions is no system call, one at sockets is: they get one part in so many of the
/// time of waiting.
const PARTS: u64 = 16;

/// Who looks, and at what.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// When the sockets are to be looked at, which is done by time.
    pub(super) sockets: SocketLooks,
    pub(super) handing_on: HandingOn,
}

/// Which thread hands on what the device has brought from others, with the lock of who looks.
#[derive(Debug, Default)]
pub(super) struct HandingOn(AtomicUsize);

impl HandingOn {
    /// The calling thread does, as long as this takes.
    #[inline]
    pub(super) fn during<T>(&self, handle: impl FnOnce() -> T) -> T {
        // Relaxed: it is of meaning to this thread alone.
        self.0.store(thread_key(), Ordering::Relaxed);
        let handled = handle();
        self.0.store(0, Ordering::Relaxed);
        handled
    }

    pub(super) fn is_by_this_thread(&self) -> bool {
        self.0.load(Ordering::Relaxed) == thread_key()
    }
}

/// When the sockets are to be looked at again.
#[derive(Debug, Default)]
pub(super) struct SocketLooks {
    due_ns: AtomicU64,
}

impl SocketLooks {
    pub(super) fn are_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns.load(Ordering::Relaxed)
    }

    /// They were looked at; `brings_news` if something was there, or if messages come by them.
    pub(super) fn note(&self, began_ns: u64, ended_ns: u64, brings_news: bool) {
        let pause = pause_ns(ended_ns.saturating_sub(began_ns), brings_news);
        self.due_ns.store(ended_ns + pause, Ordering::Relaxed);
    }
}

fn pause_ns(cost_ns: u64, brings_news: bool) -> u64 {
    if brings_news { LEAST_NS } else { (PARTS * cost_ns).clamp(LEAST_NS, MOST_NS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_find_nothing_take_a_small_share_of_the_time() {
        let looks = SocketLooks::default();
        assert!(looks.are_due(0));
        for cost in [500, 2_000, 20_000] {
            looks.note(1_000_000, 1_000_000 + cost, false);
            let due =
                (1_000_000..).step_by(100).find(|now| looks.are_due(*now)).expect("some time");
            let all = due - 1_000_000;
            assert!(cost * 100 / all <= 6, "{cost} of {all} ns");
        }
    }

    #[test]
    fn a_look_that_was_held_up_does_not_keep_the_next_one_away_for_long() {
        let looks = SocketLooks::default();
        looks.note(0, 50_000_000, false);
        assert!(looks.are_due(50_000_000 + MOST_NS));
    }

    #[test]
    fn where_news_comes_by_sockets_they_are_looked_at_soon() {
        let looks = SocketLooks::default();
        looks.note(0, 20_000, true);
        assert!(!looks.are_due(20_000) && looks.are_due(20_000 + LEAST_NS));
    }
}
