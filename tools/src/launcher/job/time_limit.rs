//! The time that a job may take (`--timeout`).

use super::alarm::Alarm;
use std::time::{Duration, Instant};

/// Runs from the start of gaspi_run, if the user has set a limit.
#[derive(Debug, Default)]
pub(super) struct TimeLimit {
    alarm: Alarm,
    exceeded: bool,
}

impl TimeLimit {
    pub(super) fn new(limit: Option<Duration>) -> TimeLimit {
        let mut alarm = Alarm::default();
        if let Some(limit) = limit {
            alarm.set(limit);
        }
        TimeLimit { alarm, exceeded: false }
    }

    /// When the time is over.
    pub(super) fn at(&self) -> Option<Instant> {
        self.alarm.at()
    }

    /// Whether the time has come. That is so once; what follows from it is for the caller to say.
    pub(super) fn take_due(&mut self) -> bool {
        self.alarm.take_due()
    }

    /// The job is one that took too long.
    pub(super) fn exceed(&mut self) {
        self.exceeded = true;
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    /// Gives a job that took too long some time for its last output.
    pub(super) fn grant(&mut self, grace: Duration) {
        if self.exceeded {
            self.alarm.set(grace);
        }
    }
}
