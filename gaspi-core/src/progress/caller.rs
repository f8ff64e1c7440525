//! Callers that look after the sockets of their rank while they wait.

use crate::os::cancel;
use crate::os::clock::monotonic_ns;
use crate::policy::acknowledge::Flush;
use crate::policy::owner::PollOwner;
use crate::policy::spin::{BRIEF_BUSY_LOOKS, BRIEF_LOOKS, BRIEF_SOCKET_LOOKS};
use crate::progress::thread::try_receiver;
use crate::sync::{Ordering, fence};
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::verbs::Verbs;
use crate::wait::{Looks, Sockets, Waiter};
use std::time::Duration;

/// How long a caller sleeps at most that holds acknowledgements back for which nobody waits.
const ACKS_HELD_MAX: Duration = Duration::from_millis(1);

/// What brings something from ranks of other nodes: streams, and a device if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Arrivals<'a> {
    pub(crate) tcp: Tcp<'a>,
    pub(crate) verbs: Option<Verbs<'a>>,
}

impl Arrivals<'_> {
    /// Looks once for a call that may not wait; false if nothing can have come.
    pub(crate) fn look_once(self) -> bool {
        let arrived = self.verbs.is_some_and(Verbs::poll);
        self.tcp.look_once() || arrived
    }

    /// Repeats `attempt` for about as long as a device takes there and back, with looks at the
    /// completions in between: no system call, and no look at the clock.
    pub(crate) fn poll_briefly<T>(
        self,
        waiter: Waiter,
        looks: Looks,
        attempt: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let verbs = self.verbs?;
        let polling = &self.tcp.table.polling;
        // Else the progress thread would be told of what comes.
        polling.note_caller_poll();
        // Those for messages take half of the time.
        let count = match looks {
            _ if !waiter.spins() => 1,
            Looks::AtAll => BRIEF_LOOKS,
            Looks::ForMessages => 2 * BRIEF_LOOKS,
        };
        let found = (0..count).find_map(|_| {
            match looks {
                Looks::AtAll => {
                    verbs.poll();
                }
                Looks::ForMessages => verbs.look_for_message(),
            }
            attempt()
        })?;
        polling.note_brief();
        Some(found)
    }

    /// The same with looks at the sockets, where no device carries what is waited for.
    pub(crate) fn poll_peers_briefly<T>(
        self,
        waiter: Waiter,
        attempt: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.verbs.is_some_and(|verbs| verbs.table.carries_messages()) {
            return self.poll_briefly(waiter, Looks::ForMessages, attempt);
        }
        let _uncancelled = cancel::hold_off();
        let (mut found, mut busy) = (None, 0);
        for _ in 0..BRIEF_SOCKET_LOOKS {
            // What else comes may take long.
            busy += u32::from(self.look());
            found = attempt();
            if found.is_some() || busy == BRIEF_BUSY_LOOKS {
                break;
            }
        }
        if found.is_some() {
            self.tcp.table.polling.note_brief();
        }
        // Also where the wait goes on: that may end without a look, and what has come now be left
        // without an acknowledgement.
        self.leave();
        found
    }
}

impl Sockets for Arrivals<'_> {
    fn set_sleeping(&self, sleeping: bool) {
        if let Some(verbs) = self.verbs {
            verbs.table.set_sleeping(sleeping);
        }
    }

    fn look(&self) -> bool {
        let Some(verbs) = self.verbs else { return self.tcp.look() };
        let busy = verbs.poll();
        // A look at the completions costs no system call, one at the sockets does.
        let began_ns = monotonic_ns();
        if !verbs.table.sockets_are_due(began_ns) {
            return busy;
        }
        verbs.table.disarm_if_armed();
        let found = self.tcp.look();
        verbs.table.note_socket_look(began_ns, monotonic_ns(), found);
        found | busy
    }

    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool {
        let Some(verbs) = self.verbs else { return self.tcp.sleep(limit, announce) };
        if verbs.arm_for_sleep() {
            return true;
        }
        let slept = self.tcp.sleep(limit, announce);
        // Else somebody else sleeps there, or is about to, and is told.
        if slept {
            verbs.table.disarm();
            verbs.poll();
        }
        slept
    }

    fn leave(&self) {
        if let Some(verbs) = self.verbs {
            verbs.rest();
        }
        self.tcp.leave();
    }
}

impl Sockets for Tcp<'_> {
    /// The sockets tell by themselves.
    fn set_sleeping(&self, _sleeping: bool) {}

    fn look(&self) -> bool {
        // What the last attempt has left, for which others may wait.
        self.table.flush_corked(self.up);
        let Some(mut receiver) = try_receiver(self.table) else {
            self.table.polling.set_receiver_wanted(true);
            return false;
        };
        self.table.polling.note_caller_poll();
        receiver.look(*self)
    }

    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool {
        let endpoints = self.table;
        endpoints.flush_corked(self.up);
        let Some(mut receiver) = try_receiver(endpoints) else {
            // Who has them may only have looked behind a post, and neither sleeps there nor waits.
            self.arm_thread_unless_slept_on();
            return false;
        };
        endpoints.polling.note_caller_poll();
        receiver.flush_acks(*self, Flush::Awaited);
        // Those for which nobody waits go along with the next post, if there is one soon.
        receiver.flush_acks(*self, Flush::Undelayed { tick: true });
        // The thread need not tick for these: this one sends what is left.
        endpoints.polling.set_acks_delayed(false);
        let limit = if receiver.has_unsent_acks() { limit.min(ACKS_HELD_MAX) } else { limit };
        let all = receiver.rejoin_epoll(endpoints);
        endpoints.polling.set_sleeper(true);
        // Else the progress thread wakes for the same news, most likely on the same core.
        endpoints.polling.change_owner(&endpoints.sets, PollOwner::Thread, PollOwner::Caller);
        let on_sockets = self.up.ranks().area.sleep_on_sockets();
        if !announce() {
            // Rounded up: whoever wakes early only sleeps again.
            let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX - 1) + 1;
            let limit_ms = if all { limit_ms } else { 1 };
            // Once awake it needs no wakeup socket, least of all its own.
            receiver.turn(*self, limit_ms, || drop(on_sockets));
        }
        endpoints.polling.set_sleeper(false);
        drop(receiver);
        fence(Ordering::SeqCst);
        self.wake_who_leaves();
        true
    }

    fn leave(&self) {
        let endpoints = self.table;
        if let Some(mut receiver) = try_receiver(endpoints)
            && receiver.has_unsent_acks()
        {
            let _uncancelled = cancel::hold_off();
            receiver.send_or_delay_acks(*self);
        }
        // Said before: that this thread neither sleeps on the sockets nor looks after them.
        fence(Ordering::SeqCst);
        self.wake_who_leaves();
        self.arm_thread_unless_slept_on();
    }
}

impl Tcp<'_> {
    /// Behind a post, where nothing is held that serving others may need: a caller that posts all
    /// the time keeps its rank's progress thread from being called for what comes, and so serves it
    /// in between.
    #[inline]
    pub(crate) fn look_behind_posts(self) {
        if self.table.polling.is_look_due() {
            self.look_now();
        }
    }

    /// Looks after the sockets for a call that may not wait; false if somebody did so just now.
    pub(crate) fn look_once(self) -> bool {
        if !self.table.polling.note_test(monotonic_ns()) {
            return false;
        }
        let _uncancelled = cancel::hold_off();
        Sockets::look(&self);
        Sockets::leave(&self);
        true
    }

    /// Has the progress thread listen where a caller was to look after the sockets, and none sleeps
    /// on them.
    fn arm_thread_unless_slept_on(self) {
        let EndpointTable { polling, sets, .. } = self.table;
        if polling.owner() == PollOwner::Caller && !polling.has_sleeper() {
            // Without a wake: it would run at once, in the way of whoever has waited.
            polling.change_owner(sets, PollOwner::Caller, PollOwner::Thread);
        }
    }

    #[cold]
    fn look_now(self) {
        let _uncancelled = cancel::hold_off();
        let endpoints = self.table;
        endpoints.polling.note_due_look(monotonic_ns());
        if let Some(mut receiver) = try_receiver(endpoints) {
            let busy = receiver.turn(self, 0, || ());
            if busy {
                receiver.send_or_delay_acks(self)
            } else {
                receiver.flush_acks(self, Flush::All)
            }
            drop(receiver);
            fence(Ordering::SeqCst);
            self.wake_who_leaves();
        }
    }

    /// For who has given the sockets back, and a fence behind that: a thread in which this rank
    /// leaves may sleep until it can have them. The fence pairs with the barrier between its
    /// announcement that it sleeps and its last attempt.
    pub(crate) fn wake_who_leaves(self) {
        let ranks = self.up.ranks();
        if ranks.liveness(ranks.me) == liveness::LEFT {
            ranks.wake_own();
        }
    }
}

impl EndpointTable {
    /// Puts a socket that is apart back, for whoever sleeps on the others next; false if that has
    /// to wait.
    pub(super) fn rejoin_epoll(&self) -> bool {
        !self.polling.is_direct()
            || try_receiver(self).is_some_and(|mut receiver| receiver.rejoin_epoll(self))
    }
}

#[cfg(test)]
mod tests;
