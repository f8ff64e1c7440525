//! When the progress thread goes on polling behind what has come, instead of sleeping at once.
//!
//! Each wake of the thread takes about as long as a short busy poll, and much of it is the sender's
//! time. So where traffic comes at short intervals, or a large payload has just ended, the thread
//! polls on for a moment.

use std::time::Duration;

/// After so long without traffic the thread sleeps; traffic at shorter intervals is lively. A wake
/// takes about as long.
const IDLE: Duration = Duration::from_micros(20);
/// How many such intervals in a row make traffic lively.
const LIVELY: u32 = 3;
/// After so long the thread does its other work in between.
const ROUND: Duration = Duration::from_millis(1);

/// How lively the traffic is that wakes the progress thread.
#[derive(Debug, Default)]
pub(crate) struct Liveliness {
    /// How many times in a row something has come soon.
    streak: u32,
}

impl Liveliness {
    /// The thread has slept for so long; `data` if something on a connection has ended that.
    pub(crate) fn on_wake(&mut self, slept: Duration, data: bool) {
        self.streak = if data && slept < IDLE { self.streak.saturating_add(1) } else { 0 };
    }

    /// Whether the thread polls on. `bulk`: the end of a large payload has come.
    pub(crate) fn should_poll_on(&self, bulk: bool) -> bool {
        bulk || self.streak >= LIVELY
    }
}

/// One round of polling.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// When something came last, since the begin.
    busy_at: Duration,
}

impl BusyPoll {
    /// Whether to look again after a look: `now` since the begin, `busy` if something has come.
    pub(crate) fn goes_on(&mut self, now: Duration, busy: bool) -> bool {
        if busy {
            self.busy_at = now;
        }
        now.saturating_sub(self.busy_at) < IDLE && now < ROUND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn some_short_sleeps_in_a_row_make_traffic_lively() {
        let mut traffic = Liveliness::default();
        let mut wake = |slept, data| {
            traffic.on_wake(slept, data);
            traffic.should_poll_on(false)
        };
        let short = IDLE - MICRO;
        assert_eq!([(); 4].map(|()| wake(short, true)), [false, false, true, true]);
        assert!(!wake(IDLE, true), "a longer one");
        assert_eq!([(); 3].map(|()| wake(short, true)), [false, false, true]);
        assert!(!wake(short, false), "something else");
    }

    #[test]
    fn more_is_expected_behind_a_large_payload() {
        assert!(Liveliness::default().should_poll_on(true));
    }

    #[test]
    fn a_round_ends_when_nothing_comes() {
        let mut poll = BusyPoll::default();
        assert!(poll.goes_on(IDLE - MICRO, false));
        assert!(poll.goes_on(IDLE, true));
        assert!(poll.goes_on(2 * IDLE - MICRO, false));
        assert!(!poll.goes_on(2 * IDLE, false));
    }

    #[test]
    fn a_round_ends_however_much_comes() {
        let mut poll = BusyPoll::default();
        let looks = (1..).take_while(|step| poll.goes_on(MICRO * *step, true)).count() as u32;
        assert_eq!(MICRO * (looks + 1), ROUND);
    }
}
