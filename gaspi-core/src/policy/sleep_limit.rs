//! How long the progress thread may sleep while nothing wakes it.

use std::time::Duration;

/// How soon to look again whether replaced targets can be freed, in milliseconds. They are used for
/// as long as a copy takes.
const FREE_MS: i32 = 5;
/// How often the limits of connections that are being made are looked at, in milliseconds.
const CONNECTING_MS: i32 = 50;
/// How often to look at what causes no event, such as ends of processes without a descriptor, in
/// milliseconds.
pub(crate) const POLL_MS: i32 = 200;

/// What needs the thread although nothing wakes it.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Timers {
    /// It ticks so often, in milliseconds, while it leaves the sockets to callers.
    pub(crate) tick_ms: Option<i32>,
    /// Replaced targets are still to be freed.
    pub(crate) retires: bool,
    /// Connections are being made.
    pub(crate) connects: bool,
    /// There is something that causes no event.
    pub(crate) polls: bool,
    /// The device is to be looked after so much later, in milliseconds.
    pub(crate) device_in_ms: Option<i32>,
}

impl Timers {
    /// How long the thread may sleep, in milliseconds; -1 without a limit.
    pub(crate) fn limit_ms(self) -> i32 {
        match self {
            Timers { tick_ms: Some(tick_ms), .. } => tick_ms,
            Timers { retires: true, .. } => FREE_MS,
            Timers { connects: true, .. } => CONNECTING_MS,
            // Each turn looks after the device: it may be a bit late.
            Timers { polls: true, .. } => POLL_MS,
            Timers { device_in_ms, .. } => device_in_ms.unwrap_or(-1),
        }
    }
}

/// Whether to look at what causes no event, so long after the last look.
pub(crate) fn is_poll_due(elapsed: Duration) -> bool {
    elapsed >= Duration::from_millis(POLL_MS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_wakes_for_the_first_of_its_timers() {
        let none = Timers::default();
        let device = Timers { device_in_ms: Some(700), ..none };
        let polls = Timers { polls: true, ..device };
        let connects = Timers { connects: true, ..polls };
        let retires = Timers { retires: true, ..connects };
        let ticks = Timers { tick_ms: Some(4), ..retires };
        let limits = [none, device, polls, connects, retires, ticks].map(Timers::limit_ms);
        assert_eq!(limits, [-1, 700, POLL_MS, CONNECTING_MS, FREE_MS, 4]);
    }

    #[test]
    fn what_causes_no_event_is_looked_at_by_time() {
        assert!(
            !is_poll_due(Duration::from_millis(199)) && is_poll_due(Duration::from_millis(200))
        );
    }
}
