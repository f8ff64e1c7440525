//! A time at which something is due once.

use std::time::{Duration, Instant};

/// Set to a time, or not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Alarm(Option<Instant>);

impl Alarm {
    /// Due after this time, whatever it was set to before. A time beyond what the clock can say
    /// never comes.
    pub(super) fn set(&mut self, after: Duration) {
        self.0 = Instant::now().checked_add(after);
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    pub(super) fn at(self) -> Option<Instant> {
        self.0
    }

    /// Whether it is due. It is not set any more then.
    pub(super) fn take_due(&mut self) -> bool {
        let due = self.0.is_some_and(|at| Instant::now() >= at);
        if due {
            self.0 = None;
        }
        due
    }
}
