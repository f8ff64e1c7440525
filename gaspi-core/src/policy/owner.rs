//! Which thread polls the sockets of a rank while no call does: the progress thread asleep in
//! epoll, the progress thread by a timer, or a caller that sleeps on them itself.
//!
//! A caller that waits polls the sockets itself. Were the progress thread armed meanwhile, each
//! message would wake it too, as likely as not on the same core. So while callers come back the
//! thread only looks, at a tick of 1 to 4 ms, whether they still do. Polling then passes between
//! callers and thread without a system call per message.

/// How often the thread looks whether callers still come back, in milliseconds: at first, and once
/// they have come back for a while with short waits. A look takes 20 to 60 us of a core, most of
/// them for its timer. It also makes the kernel part two ranks that wait for each other on one
/// core.
const TICK_MS: i32 = 1;
const TICK_MAX_MS: i32 = 4;
/// For how many looks a caller may sleep on the sockets before the thread sleeps too.
const PATIENCE: u32 = 10;
/// How often a caller that posts all the time polls the sockets, in nanoseconds: a look costs
/// writes of 8 bytes a seventh of their rate.
const POSTING_LOOK_NS: u64 = 200_000;
/// How often calls that may not wait poll the sockets, in nanoseconds: a look costs some hundred.
const TEST_LOOK_NS: u64 = 1000;

/// The thread that polls the sockets while no call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum PollOwner {
    /// The progress thread, which sleeps until something comes.
    Thread = 0,
    /// Callers, which come back all the time; the thread looks by a timer whether they still do.
    Timer = 1,
    /// A caller that sleeps on the sockets. It arms the thread when it stops waiting.
    Caller = 2,
}

impl PollOwner {
    /// The owner that a word holds.
    pub(crate) fn of_word(word: u32) -> PollOwner {
        match word {
            1 => PollOwner::Timer,
            2 => PollOwner::Caller,
            _ => PollOwner::Thread,
        }
    }
}

/// What the progress thread has seen in one turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// The thread was woken by its timer.
    pub(crate) ticked: bool,
    /// It sent requests that were held back.
    pub(crate) corked: bool,
    /// Acknowledgements are delayed.
    pub(crate) acks_delayed: bool,
    /// Callers have polled the sockets so often.
    pub(crate) polls: u64,
    /// A caller sleeps on the sockets now.
    pub(crate) sleeper: bool,
    /// A caller held the sockets when the thread wanted to look.
    pub(crate) held: bool,
    /// A caller has found what it waited for before it even yielded.
    pub(crate) brief: bool,
}

/// What may have changed while the thread settled what it does next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recheck {
    /// As in [`Turn`].
    pub(crate) polls: u64,
    /// As in [`Turn`].
    pub(crate) sleeper: bool,
    /// Requests are held back.
    pub(crate) corked: bool,
    /// A socket is polled directly, or acknowledgements are delayed: something needs the timer.
    pub(crate) needs_timer: bool,
}

/// The progress thread's view of its rank's callers.
#[derive(Debug)]
pub(crate) struct Schedule {
    polls: u64,
    /// For how many turns in a row no caller has polled.
    quiet: u32,
    tick_ms: i32,
}

impl Schedule {
    pub(crate) fn new() -> Schedule {
        Schedule { polls: 0, quiet: 0, tick_ms: TICK_MS }
    }

    /// How long the thread leaves the sockets to callers, in milliseconds.
    pub(crate) fn tick_ms(&self) -> i32 {
        self.tick_ms
    }

    /// Whether its ticks are so far apart that it has to be woken for what is held back.
    pub(crate) fn is_slow(&self) -> bool {
        self.tick_ms > TICK_MS
    }

    /// Decides which thread polls from now on.
    pub(crate) fn after(&mut self, turn: Turn) -> PollOwner {
        let lively = turn.corked || turn.acks_delayed || turn.polls != self.polls;
        self.polls = turn.polls;
        self.quiet = if lively { 0 } else { self.quiet.saturating_add(1) };
        self.tick_ms = if turn.ticked && lively && turn.brief && !turn.corked {
            (2 * self.tick_ms).min(TICK_MAX_MS)
        } else {
            TICK_MS
        };
        match self.quiet {
            0 => PollOwner::Timer,
            // The sleeper comes back all the time: handing over each time would cost more.
            1..PATIENCE if turn.sleeper => PollOwner::Timer,
            _ if turn.sleeper => PollOwner::Caller,
            // The thread would wake again and again for what it cannot take, and keep a caller that
            // has lost its core from running.
            _ if turn.held => PollOwner::Timer,
            _ => PollOwner::Thread,
        }
    }

    /// Whether the thread keeps its timer after all. Called once the decision can be seen: a caller
    /// that leaves looks at it, and one of the two sees the other.
    pub(crate) fn reconsider(&mut self, decided: PollOwner, now: Recheck) -> bool {
        let stays = match decided {
            PollOwner::Timer => false,
            PollOwner::Caller => !now.sleeper,
            PollOwner::Thread => now.polls != self.polls,
        };
        let keeps = stays || now.corked || (decided != PollOwner::Timer && now.needs_timer);
        if keeps {
            self.tick_ms = TICK_MS;
        }
        keeps
    }
}

/// Whether a caller that posts all the time polls the sockets behind its post. While it posts, its
/// thread is not armed for what comes.
pub(crate) fn polls_behind_post(now_ns: u64, polled_ns: u64) -> bool {
    now_ns.saturating_sub(polled_ns) > POSTING_LOOK_NS
}

/// Whether a call that may not wait polls the sockets.
pub(crate) fn polls_in_test(now_ns: u64, polled_ns: u64) -> bool {
    now_ns.wrapping_sub(polled_ns) >= TEST_LOOK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ticks_while_callers_come_back_and_sleeps_when_they_stay_away() {
        let mut schedule = Schedule::new();
        let turn = |polls| Turn { ticked: true, polls, ..Turn::default() };
        assert_eq!(schedule.after(turn(1)), PollOwner::Timer);
        assert_eq!(schedule.after(turn(2)), PollOwner::Timer);
        assert_eq!(schedule.after(turn(2)), PollOwner::Thread);
        for needed in [Turn { corked: true, ..turn(2) }, Turn { acks_delayed: true, ..turn(2) }] {
            assert_eq!(schedule.after(needed), PollOwner::Timer);
        }
    }

    #[test]
    fn a_caller_that_sleeps_on_takes_over_after_some_ticks() {
        let mut schedule = Schedule::new();
        let turn = Turn { ticked: true, sleeper: true, ..Turn::default() };
        let owners: Vec<_> = (0..PATIENCE).map(|_| schedule.after(turn)).collect();
        let (last, before) = owners.split_last().expect("some");
        assert!(before.iter().all(|owner| *owner == PollOwner::Timer));
        assert_eq!(*last, PollOwner::Caller);
    }

    #[test]
    fn the_thread_ticks_while_a_caller_holds_the_sockets_without_a_look() {
        let mut schedule = Schedule::new();
        let turn = Turn { held: true, ..Turn::default() };
        let owners: Vec<_> = (0..2 * PATIENCE).map(|_| schedule.after(turn)).collect();
        assert!(owners.iter().all(|owner| *owner == PollOwner::Timer), "{owners:?}");
        assert_eq!(schedule.after(Turn { held: false, ..turn }), PollOwner::Thread);
    }

    #[test]
    fn ticks_grow_while_waits_are_brief_and_fall_back_for_anything_else() {
        let mut schedule = Schedule::new();
        let mut polls = 0;
        let mut tick = |schedule: &mut Schedule, brief, corked| {
            polls += 1;
            schedule.after(Turn { ticked: true, polls, brief, corked, ..Turn::default() });
            schedule.tick_ms()
        };
        assert_eq!([(); 4].map(|()| tick(&mut schedule, true, false)), [2, 4, TICK_MAX_MS, 4]);
        assert!(schedule.is_slow());
        assert_eq!(tick(&mut schedule, true, true), TICK_MS);
        assert_eq!(tick(&mut schedule, true, false), 2);
        assert_eq!(tick(&mut schedule, false, false), TICK_MS);
    }

    #[test]
    fn what_changed_meanwhile_keeps_the_timer() {
        let mut schedule = Schedule::new();
        schedule.after(Turn { polls: 5, ..Turn::default() });
        let same = Recheck { polls: 5, ..Recheck::default() };
        assert!(!schedule.reconsider(PollOwner::Thread, same));
        assert!(schedule.reconsider(PollOwner::Thread, Recheck { polls: 6, ..same }));
        assert!(schedule.reconsider(PollOwner::Thread, Recheck { corked: true, ..same }));
        assert!(schedule.reconsider(PollOwner::Thread, Recheck { needs_timer: true, ..same }));
        assert!(schedule.reconsider(PollOwner::Caller, same), "the sleeper has left");
        assert!(!schedule.reconsider(PollOwner::Caller, Recheck { sleeper: true, ..same }));
        assert!(!schedule.reconsider(PollOwner::Timer, Recheck { needs_timer: true, ..same }));
        assert!(schedule.reconsider(PollOwner::Timer, Recheck { corked: true, ..same }));
    }

    #[test]
    fn callers_that_do_not_wait_poll_by_time() {
        assert!(
            !polls_behind_post(POSTING_LOOK_NS, 0) && polls_behind_post(POSTING_LOOK_NS + 1, 0)
        );
        assert!(!polls_behind_post(1, 5), "another thread has polled since");
        assert!(!polls_in_test(TEST_LOOK_NS - 1, 0) && polls_in_test(TEST_LOOK_NS, 0));
    }

    #[test]
    fn words_are_owners() {
        for owner in [PollOwner::Thread, PollOwner::Timer, PollOwner::Caller] {
            assert_eq!(PollOwner::of_word(owner as u32), owner);
        }
    }
}
