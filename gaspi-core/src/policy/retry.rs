//! When something is tried again that was refused for a reason that may pass: ever more rarely.
//!
//! It is a pair over a link that was cut. An attempt during the cut takes GASPI_DEAD_AFTER, 5 s by
//! default, memory of the device and a few frames. So the first pause is short beside it, and the
//! longest one has a lane back a minute after the link.

/// The first pause, in nanoseconds. Each is twice as long as the one before.
const FIRST_NS: u64 = 1_000_000_000;
/// The longest.
const LAST_NS: u64 = 60_000_000_000;

/// Attempts at one thing.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// The last pause; 0 before the first.
    pause_ns: u64,
    /// When it began, and when the next attempt is due.
    began_ns: u64,
    due_ns: Option<u64>,
    /// It was due, and there was nothing to try it for.
    postponed: bool,
}

impl Retry {
    /// It was refused.
    pub(crate) fn refused(&mut self, now_ns: u64) {
        self.pause_ns = (2 * self.pause_ns).clamp(FIRST_NS, LAST_NS);
        self.wait(now_ns, self.pause_ns);
        self.postponed = false;
    }

    /// There is nothing to try it for now.
    pub(crate) fn postpone(&mut self, now_ns: u64) {
        self.wait(now_ns, FIRST_NS);
        self.postponed = true;
    }

    fn wait(&mut self, now_ns: u64, pause_ns: u64) {
        (self.began_ns, self.due_ns) = (now_ns, Some(now_ns + pause_ns));
    }

    /// An attempt has begun.
    pub(crate) fn begin(&mut self) {
        self.due_ns = None;
    }

    /// It has succeeded; whether it was refused before.
    pub(crate) fn succeed(&mut self) -> bool {
        std::mem::take(self).pause_ns > 0
    }

    /// Whether another attempt is or will be due.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due_ns.is_some()
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.due_ns.is_some_and(|due_ns| due_ns <= now_ns)
    }

    /// When somebody has to wake for it. Nobody does for what was postponed: a thread that is awake
    /// looks.
    pub(crate) fn wakes_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| !self.postponed)
    }

    /// Whether there is something to try it for, if that was used last so long ago: in the second
    /// half of the pause. In the first the end of the attempt was settled by the same way.
    pub(crate) fn is_wanted(&self, now_ns: u64, unused_ns: u64) -> bool {
        unused_ns <= now_ns.saturating_sub(self.began_ns) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn pauses_grow_up_to_a_minute_and_begin_anew_behind_a_success() {
        let (mut retry, mut now_ns) = (Retry::default(), 17);
        let pauses_s = [(); 9].map(|()| {
            retry.refused(now_ns);
            let due_ns = retry.wakes_ns().expect("it is tried again");
            assert!(!retry.is_due(due_ns - 1) && retry.is_due(due_ns));
            let pause_s = (due_ns - now_ns) / SECOND_NS;
            retry.begin();
            assert!(!retry.is_waiting() && !retry.is_due(u64::MAX), "an attempt is under way");
            now_ns = due_ns + 5 * SECOND_NS;
            pause_s
        });
        assert_eq!(pauses_s, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(retry.succeed());
        retry.refused(now_ns);
        assert_eq!(retry.wakes_ns(), Some(now_ns + SECOND_NS));
    }

    #[test]
    fn what_was_never_refused_is_not_due() {
        let mut retry = Retry::default();
        assert!(!retry.is_due(u64::MAX) && !retry.is_waiting() && !retry.succeed());
    }

    #[test]
    fn nobody_wakes_for_what_there_is_nothing_to_try_for() {
        let mut retry = Retry::default();
        retry.refused(0);
        assert!(!retry.is_wanted(SECOND_NS, SECOND_NS), "since its refusal");
        assert!(retry.is_wanted(SECOND_NS, SECOND_NS / 2));
        retry.postpone(SECOND_NS);
        assert_eq!(retry.wakes_ns(), None);
        assert!(!retry.is_due(2 * SECOND_NS - 1) && retry.is_due(2 * SECOND_NS));
        // The pause behind is twice as long as if it had been tried at once.
        retry.begin();
        retry.refused(7 * SECOND_NS);
        assert_eq!(retry.wakes_ns(), Some(9 * SECOND_NS));
    }
}
