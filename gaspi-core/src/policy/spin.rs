//! How a call waits before it sleeps: spin while that pays, then yield in between, then sleep.
//!
//! Where every rank has a core of its own most hand-overs are seen while spinning. Where ranks
//! share cores nobody spins: the rank that is waited for needs the core. A yield switch costs 0.76
//! us on the machine of docs/performance.md, a futex wake 4.7 us.

use std::time::Duration;

/// Looks that a call makes before it counts as waiting: most hand-overs are seen within them, and
/// reading the clock would cost them more than the hand-over itself.
pub(crate) const BRIEF_LOOKS: u32 = 64;
/// The same where each look is a system call, of 0.2 to 0.4 us.
pub(crate) const BRIEF_SOCKET_LOOKS: u32 = 64;
/// So many of these find something else than what is waited for, at most.
pub(crate) const BRIEF_BUSY_LOOKS: u32 = 4;
/// Yields that a call makes where ranks share cores before it counts as waiting. Measured for
/// barriers of four ranks on two cores, nearly all of which are over by then.
pub(crate) const BRIEF_YIELDS: u32 = 8;
/// How long to spin without yielding, where every rank has a core of its own.
const SPIN: Duration = Duration::from_micros(5);
/// The same where what is waited for comes from another node: a round trip by loopback takes 15 to
/// 30 us.
const SPIN_ON_SOCKETS: Duration = Duration::from_micros(50);
/// How long to spin with yields in between, before sleeping.
const SPIN_AND_YIELD: Duration = Duration::from_micros(200);
/// How long to yield before sleeping, where ranks share cores.
const YIELD: Duration = Duration::from_micros(100);
/// Looks between two readings of the clock while spinning; a reading costs 27 ns.
const LOOKS_PER_CLOCK: u32 = 32;
/// The same where each look is a system call.
const SOCKET_LOOKS_PER_CLOCK: u32 = 4;

/// What a waiting call does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Yield the core, then look again.
    Yield,
    /// Yield the core once more, announce itself, look, then sleep.
    Sleep,
}

/// The time before a call sleeps.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Whether every rank has a core.
    own_core: bool,
    /// Whether each look is at sockets too.
    on_sockets: bool,
    /// Whether it sleeps as soon as nothing comes.
    at_once: bool,
    /// When something came last, since the begin.
    busy_at: Duration,
}

impl Spin {
    pub(crate) fn new(own_core: bool, on_sockets: bool) -> Spin {
        Spin { own_core, on_sockets, at_once: false, busy_at: Duration::ZERO }
    }

    /// For a thread that nobody waits for, beside others that compute: it sleeps as soon as nothing
    /// comes.
    pub(crate) fn in_background(on_sockets: bool) -> Spin {
        Spin { at_once: true, ..Spin::new(false, on_sockets) }
    }

    /// How often to look before the clock is read again.
    pub(crate) fn looks(&self) -> u32 {
        match (self.own_core, self.on_sockets) {
            (false, _) => 1,
            (true, false) => LOOKS_PER_CLOCK,
            (true, true) => SOCKET_LOOKS_PER_CLOCK,
        }
    }

    /// Decides after some looks: `now` since the begin, `busy` if something came on the sockets.
    pub(crate) fn after_looks(&mut self, now: Duration, busy: bool) -> Next {
        if busy {
            // It may be what is waited for, and more may follow: look at that first.
            self.busy_at = now;
            return Next::Look;
        }
        if self.at_once {
            return Next::Sleep;
        }
        let waited = now.saturating_sub(self.busy_at);
        if waited >= if self.own_core { SPIN_AND_YIELD } else { YIELD } {
            return Next::Sleep;
        }
        // Ranks with a core each may share one for now: only the first spinning is without a yield
        // in between, which costs little on a core of one's own.
        let spin = if self.on_sockets { SPIN_ON_SOCKETS } else { SPIN };
        if self.own_core && waited < spin { Next::Look } else { Next::Yield }
    }
}

/// Whether a call that has waited on sockets for so long has not even yielded.
pub(crate) fn was_brief(own_core: bool, waited: Duration) -> bool {
    own_core && waited < SPIN_ON_SOCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// What happens at each microsecond where nothing comes.
    fn waits(own_core: bool, on_sockets: bool) -> Vec<Next> {
        let mut spin = Spin::new(own_core, on_sockets);
        (0..=300).map(|at| spin.after_looks(MICRO * at, false)).collect()
    }

    fn count(of: &[Next], what: Next) -> usize {
        of.iter().filter(|next| **next == what).count()
    }

    #[test]
    fn with_a_core_of_its_own_a_call_spins_then_yields_then_sleeps() {
        for (on_sockets, spins) in [(false, 5), (true, 50)] {
            let waits = waits(true, on_sockets);
            assert_eq!(
                (count(&waits, Next::Look), count(&waits, Next::Yield)),
                (spins, 200 - spins)
            );
            assert!(waits[200..].iter().all(|next| *next == Next::Sleep));
        }
    }

    #[test]
    fn with_a_shared_core_it_never_spins() {
        let waits = waits(false, true);
        assert_eq!((count(&waits, Next::Look), count(&waits, Next::Yield)), (0, 100));
        assert!(waits[100..].iter().all(|next| *next == Next::Sleep));
    }

    #[test]
    fn in_the_background_it_sleeps_unless_something_comes() {
        let mut spin = Spin::in_background(true);
        assert_eq!(spin.looks(), 1);
        assert_eq!(spin.after_looks(Duration::ZERO, true), Next::Look);
        assert_eq!(spin.after_looks(MICRO, false), Next::Sleep);
    }

    #[test]
    fn traffic_begins_the_time_anew() {
        let mut spin = Spin::new(false, true);
        assert_eq!(spin.after_looks(MICRO * 500, true), Next::Look);
        assert_eq!(spin.after_looks(MICRO * 599, false), Next::Yield);
        assert_eq!(spin.after_looks(MICRO * 600, false), Next::Sleep);
    }

    #[test]
    fn a_call_that_yields_has_not_waited_briefly() {
        assert!(was_brief(true, SPIN_ON_SOCKETS - MICRO) && !was_brief(true, SPIN_ON_SOCKETS));
        assert!(!was_brief(false, Duration::ZERO), "it yields at once");
    }

    #[test]
    fn clocks_are_read_seldom_where_a_look_is_cheap() {
        let looks = [(false, false), (true, true), (true, false)]
            .map(|(own_core, on_sockets)| Spin::new(own_core, on_sockets).looks());
        assert_eq!(looks, [1, SOCKET_LOOKS_PER_CLOCK, LOOKS_PER_CLOCK]);
    }
}
