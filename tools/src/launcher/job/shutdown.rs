//! How far the end of a job has come that does not end by itself: the user's signals end it, or
//! gaspi_run does. What becomes due here is done in [`ends`](super::ends).

use super::alarm::Alarm;
use super::time_limit::TimeLimit;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// From SIGKILL to the end of the connection to a machine that does not tell the ends of its ranks.
const SEVER: Duration = Duration::from_secs(5);

/// Nothing of it is so while the job runs undisturbed.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    interrupts: u32,
    /// The job is being ended: what ranks leave behind is ended too.
    begun: bool,
    /// It is gaspi_run that ends it.
    ordered: bool,
    /// When SIGKILL follows.
    kill: Alarm,
    /// When machines that still have ranks after that are given up.
    sever: Alarm,
    pub(super) time_limit: TimeLimit,
}

impl Shutdown {
    pub(super) fn new(time_limit: TimeLimit) -> Shutdown {
        Shutdown { time_limit, ..Shutdown::default() }
    }

    /// A signal of the user goes to the ranks, which `ends` programs or does not. Returns whether
    /// it is the second interrupt.
    pub(super) fn note_signal(&mut self, signal: i32, ends: bool) -> bool {
        self.begun |= ends;
        self.interrupts += u32::from(signal == libc::SIGINT);
        let second = signal == libc::SIGINT && self.interrupts == 2;
        if second {
            self.sever.set(SEVER);
        }
        second
    }

    /// gaspi_run ends the job.
    pub(super) fn order(&mut self) {
        self.begun = true;
        self.ordered = true;
        self.kill.set(GRACE);
        self.sever.set(GRACE + SEVER);
    }

    /// Whether the job is being ended, by anybody.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether it is gaspi_run that ends the job.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Whether the user has lost patience: ranks are killed.
    pub(super) fn is_forced(&self) -> bool {
        self.interrupts >= 2
    }

    /// Whether it is time for SIGKILL. That is so once.
    pub(super) fn take_kill_due(&mut self) -> bool {
        self.kill.take_due()
    }

    /// Whether it is time to give up machines that do not answer. That is so once.
    pub(super) fn take_sever_due(&mut self) -> bool {
        self.sever.take_due()
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.kill.at().into_iter().chain(self.sever.at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_interrupt_forces_the_end() {
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.note_signal(libc::SIGWINCH, false) && !shutdown.has_begun());
        assert!(!shutdown.note_signal(libc::SIGINT, true) && shutdown.has_begun());
        assert!(!shutdown.is_forced() && shutdown.deadline().is_none());
        assert!(shutdown.note_signal(libc::SIGINT, true) && shutdown.is_forced());
        assert!(shutdown.deadline().is_some() && !shutdown.is_ordered());
        // It is said once; any signal kills from now on.
        assert!(!shutdown.note_signal(libc::SIGINT, true) && shutdown.is_forced());
    }

    #[test]
    fn an_ordered_end_kills_before_it_severs() {
        let mut shutdown = Shutdown::default();
        shutdown.order();
        assert!(shutdown.has_begun() && shutdown.is_ordered() && !shutdown.is_forced());
        assert_eq!(shutdown.deadline(), shutdown.kill.at());
        assert!(!shutdown.take_kill_due() && !shutdown.take_sever_due());
    }
}
