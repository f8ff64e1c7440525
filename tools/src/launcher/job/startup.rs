//! How far the start of a job has come. Ranks are started together, once all machines are ready;
//! until then the user is told from time to time which are not.

use super::alarm::Alarm;
use std::time::{Duration, Instant};

/// How often is said which machines are not ready.
const TELL: Duration = Duration::from_secs(5);

/// Before the ranks are started, and from then on.
#[derive(Debug, Default)]
pub(super) struct Startup {
    /// When the ranks were started.
    begun: Option<Instant>,
    /// When is said next which machines are not ready.
    report: Alarm,
}

impl Startup {
    /// Ranks are started from now on.
    pub(super) fn begin(&mut self) {
        self.begun = Some(Instant::now());
    }

    /// Whether ranks are being started or were.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// How long ago that was.
    pub(super) fn age(&self) -> Duration {
        self.begun.map(|at| at.elapsed()).unwrap_or_default()
    }

    /// Has the user told after a time.
    pub(super) fn schedule_report(&mut self) {
        self.report.set(TELL);
    }

    /// There is nothing to tell any more.
    pub(super) fn cancel_report(&mut self) {
        self.report.clear();
    }

    /// Whether it is time to tell the user. That is so once.
    pub(super) fn take_report_due(&mut self) -> bool {
        self.report.take_due()
    }

    pub(super) fn report_at(&self) -> Option<Instant> {
        self.report.at()
    }
}
