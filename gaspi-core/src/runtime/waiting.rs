//! How a call waits: it looks after what peers send, as long as it takes.

use super::Inner;
use crate::os::clock;
#[cfg(feature = "test-transports")]
use crate::sync::epoch;
use crate::timeout::{Deadline, Timeout};
use crate::wait::{Call, Sockets, Waiter, Waiting};

impl Inner {
    /// Waits until `attempt` gives something or the deadline has passed, and counts the time that
    /// this takes beyond a brief look.
    #[inline]
    pub(crate) fn until<T>(
        &self,
        deadline: Deadline,
        waiting: Waiting,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.until_by(self.waiter, deadline, waiting, attempt)
    }

    /// The same for a thread that waits otherwise than this rank's callers do.
    #[inline]
    pub(crate) fn until_by<T>(
        &self,
        waiter: Waiter,
        deadline: Deadline,
        waiting: Waiting,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let limit = (deadline != Deadline::Now, || deadline);
        self.until_limit(waiter, limit, waiting, attempt)
    }

    /// The same for a call that begins now: where that is not needed nobody looks at the clock.
    #[inline]
    pub(crate) fn until_within<T>(
        &self,
        timeout: Timeout,
        waiting: Waiting,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let limit = (timeout != Timeout::Test, || timeout.deadline());
        self.until_limit(self.waiter, limit, waiting, attempt)
    }

    /// Waits, if it may, until some time, which is asked for once.
    #[inline]
    fn until_limit<T>(
        &self,
        waiter: Waiter,
        (waits, deadline): (bool, impl FnOnce() -> Deadline),
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.endpoints.remote {
            return self.until_driving(waiter, (waits, deadline), waiting, attempt);
        }
        if !waits {
            return attempt();
        }
        if let Some(value) = waiter.poll_briefly(&mut attempt) {
            return Some(value);
        }
        let attempt = self.passing_on_ends(attempt);
        let (found, waited) = waiter.until(&self.ranks.area, None, deadline(), waiting, attempt);
        self.count_waiting(waiting.call, waited);
        found
    }

    /// Looks for what a message of another rank brings, for as long as a short one takes: where a
    /// device carries messages, or this rank has a core of its own. What else may end the wait is
    /// left to [`until`](Inner::until).
    pub(crate) fn look_for_message<T>(
        &self,
        call: Call,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        #[cfg(feature = "test-transports")]
        if self.endpoints.twin.is_some() {
            return None;
        }
        if !self.endpoints.remote {
            return None;
        }
        let by_device = self.endpoints.device.as_ref().is_some_and(|it| it.carries_messages());
        if !by_device && !self.waiter.spins() {
            return None;
        }
        // Beside system calls those of the clock do not show.
        let began = (!by_device).then(clock::now);
        self.endpoints.flush(self);
        let found = self.arrivals().poll_peers_briefly(self.waiter, &mut attempt);
        if let Some(began) = began {
            self.count_waiting(call, clock::since(began));
        }
        found
    }

    /// Repeats `attempt` with looks at what ranks of other nodes send in between, for about as long
    /// as a short message takes, and without a look at the clock. What the first attempt sends goes
    /// along with what has been held back.
    pub(crate) fn poll_peers_briefly<T>(
        &self,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        #[cfg(feature = "test-transports")]
        if let Some(port) = &self.endpoints.twin {
            port.look();
            return attempt();
        }
        if !self.endpoints.remote {
            return self.waiter.poll_briefly(attempt);
        }
        let found = attempt();
        self.endpoints.flush(self);
        found.or_else(|| self.arrivals().poll_peers_briefly(self.waiter, &mut attempt))
    }

    /// An attempt that, while it finds nothing, has the progress thread hear of ranks of this node
    /// that have ended.
    fn passing_on_ends<T>(
        &self,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> impl FnMut() -> Option<T> {
        let mut told = 0;
        move || {
            attempt().or_else(|| {
                told = self.ranks.pass_on_ends(told);
                None
            })
        }
    }

    /// The same where ranks of other nodes may bring what is waited for.
    #[cold]
    fn until_driving<T>(
        &self,
        waiter: Waiter,
        (waits, deadline): (bool, impl FnOnce() -> Deadline),
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        #[cfg(feature = "test-transports")]
        if let Some(port) = &self.endpoints.twin {
            return self.until_on_twin(port, deadline(), waiting, attempt);
        }
        self.endpoints.flush(self);
        if let Some(value) = attempt() {
            return Some(value);
        }
        if !waits {
            return if self.arrivals().look_once() { attempt() } else { None };
        }
        let looks = waiting.call.looks();
        if let Some(value) = self.arrivals().poll_briefly(waiter, looks, &mut attempt) {
            return Some(value);
        }
        let found = {
            let arrivals = self.arrivals();
            let sockets: &dyn Sockets = &arrivals;
            let attempt = self.passing_on_ends(attempt);
            let (found, waited) =
                waiter.until(&self.ranks.area, Some(sockets), deadline(), waiting, attempt);
            if waiter.was_brief(waited) {
                self.endpoints.stream.polling.note_brief();
            }
            self.count_waiting(waiting.call, waited);
            found
        };
        self.arrivals().leave();
        found
    }

    /// The same in virtual time.
    #[cfg(feature = "test-transports")]
    fn until_on_twin<T>(
        &self,
        port: &crate::transport::twin::Port,
        deadline: Deadline,
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        epoch::may_wait(waiting.call.name());
        let (began, mut acted) = (clock::now(), true);
        let found = loop {
            if let Some(value) = attempt() {
                break Some(value);
            }
            if deadline == Deadline::Now {
                port.look();
                break attempt();
            }
            if deadline.passed() {
                break None;
            }
            port.wait(deadline.remaining(), acted);
            acted = false;
        };
        self.count_waiting(waiting.call, clock::now() - began);
        found
    }

    /// Looks after what peers send for a call that may not wait.
    pub(crate) fn look_once(&self) {
        #[cfg(feature = "test-transports")]
        if let Some(port) = &self.endpoints.twin {
            return port.look();
        }
        if self.endpoints.remote {
            self.arrivals().look_once();
        }
    }
}
