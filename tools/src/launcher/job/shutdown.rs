//! How far the end of a job has come that does not end by itself: the user's signals end it, or
//! gaspi_run does. What becomes due here is done in [`ends`](super::ends).

use super::alarm::Alarm;
use super::time_limit::TimeLimit;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL, and from the failure of a rank after a signal of the user to SIGTERM.
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
    /// The rank that has failed after a signal of the user, and when gaspi_run ends the job for
    /// that: until then the others may end by the signal.
    fatal: Option<usize>,
    rest: Alarm,
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
            self.rest.clear();
            self.sever.set(SEVER);
        }
        second
    }

    /// A rank has failed that the job cannot do without, but a signal of the user came before: the
    /// others get some time to end by it.
    pub(super) fn await_rest(&mut self, fatal: usize) {
        if self.fatal.is_none() {
            self.fatal = Some(fatal);
            self.rest.set(GRACE);
        }
    }

    /// gaspi_run ends the job.
    pub(super) fn order(&mut self) {
        self.begun = true;
        self.ordered = true;
        self.rest.clear();
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

    /// The rank that has failed, once it is time to end those that the user's signal has not ended.
    /// That is so once.
    pub(super) fn take_rest_due(&mut self) -> Option<usize> {
        self.fatal.filter(|_| self.rest.take_due())
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
        [self.rest, self.kill, self.sever].into_iter().filter_map(Alarm::at).min()
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
    fn those_that_outlive_a_signal_of_the_user_have_some_time() {
        let (mut shutdown, before) = (Shutdown::default(), Instant::now());
        assert!(!shutdown.note_signal(libc::SIGTERM, true));
        shutdown.await_rest(3);
        let due = shutdown.deadline().expect("due");
        assert!(due >= before + GRACE && shutdown.take_rest_due().is_none());
        // Further ranks that fail change nothing.
        shutdown.await_rest(1);
        assert_eq!((shutdown.deadline(), shutdown.fatal), (Some(due), Some(3)));
        shutdown.rest.set(Duration::ZERO);
        assert_eq!((shutdown.take_rest_due(), shutdown.take_rest_due()), (Some(3), None));
        // Ranks that are being killed need not be ended.
        let (mut ordered, mut forced) = (Shutdown::default(), Shutdown::default());
        ordered.await_rest(3);
        ordered.order();
        forced.note_signal(libc::SIGINT, true);
        forced.await_rest(3);
        forced.note_signal(libc::SIGINT, true);
        assert_eq!((ordered.rest.at(), forced.rest.at()), (None, None));
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
