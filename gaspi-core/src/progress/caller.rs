//! Callers that look after the sockets of their rank while they wait.

use crate::os::clock::monotonic_ns;
use crate::policy::acknowledge::Flush;
use crate::policy::owner::{PollOwner, polls_behind_post, polls_in_test};
use crate::progress::thread::try_receiver;
use crate::sync::{Ordering, fence};
use crate::transport::tcp::Tcp;
use crate::transport::tcp::endpoint_table::{DATA, EndpointTable};
use crate::wait::Sockets;
use std::os::fd::AsFd;
use std::time::Duration;

impl Sockets for Tcp<'_> {
    fn look(&self) -> bool {
        // What the last attempt has left, for which others may wait.
        self.table.flush_corked(self.up);
        let Some(mut receiver) = try_receiver(self.table) else {
            self.table.receiver_wanted.store(true, Ordering::Relaxed);
            return false;
        };
        self.table.note_caller_poll();
        receiver.look(*self)
    }

    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool {
        let endpoints = self.table;
        endpoints.flush_corked(self.up);
        let Some(mut receiver) = try_receiver(endpoints) else { return false };
        endpoints.note_caller_poll();
        receiver.flush_acks(*self, Flush::All);
        let all = receiver.rejoin_epoll(endpoints);
        endpoints.sleeper.store(true, Ordering::Relaxed);
        // Else the progress thread wakes for the same news, most likely on the same core.
        endpoints.change_poll_owner(PollOwner::Thread, PollOwner::Caller);
        let on_sockets = self.up.ranks().area.sleep_on_sockets();
        if !announce() {
            // Rounded up: whoever wakes early only sleeps again.
            let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX - 1) + 1;
            let limit_ms = if all { limit_ms } else { 1 };
            // Once awake it needs no wakeup socket, least of all its own.
            receiver.turn(*self, limit_ms, || drop(on_sockets));
        }
        endpoints.sleeper.store(false, Ordering::Relaxed);
        drop(receiver);
        true
    }

    fn leave(&self) {
        let endpoints = self.table;
        if let Some(mut receiver) = try_receiver(endpoints)
            && receiver.has_unsent_acks()
        {
            receiver.send_or_delay_acks(*self);
        }
        // Said before: that this thread neither sleeps on the sockets nor looks after them.
        fence(Ordering::SeqCst);
        if endpoints.poll_owner() == PollOwner::Caller && !endpoints.sleeper.load(Ordering::Relaxed)
        {
            // Without a wake: it would run at once, in the way of whoever has waited.
            endpoints.change_poll_owner(PollOwner::Caller, PollOwner::Thread);
        }
    }
}

impl Tcp<'_> {
    /// Behind a post, where nothing is held that serving others may need: a caller that posts all
    /// the time keeps its rank's progress thread from being called for what comes, and so serves it
    /// in between.
    #[inline]
    pub(crate) fn look_behind_posts(self) {
        if self.table.look_due.load(Ordering::Relaxed) {
            self.look_now();
        }
    }

    /// Looks after the sockets for a call that may not wait; false if somebody did so just now.
    pub(crate) fn look_once(self) -> bool {
        let now_ns = monotonic_ns();
        if !polls_in_test(now_ns, self.table.looked_ns.load(Ordering::Relaxed)) {
            return false;
        }
        self.table.looked_ns.store(now_ns, Ordering::Relaxed);
        Sockets::look(&self);
        Sockets::leave(&self);
        true
    }

    #[cold]
    fn look_now(self) {
        let endpoints = self.table;
        endpoints.look_due.store(false, Ordering::Relaxed);
        endpoints.looked_ns.store(monotonic_ns(), Ordering::Relaxed);
        if let Some(mut receiver) = try_receiver(endpoints) {
            let busy = receiver.turn(self, 0, || ());
            if busy {
                receiver.send_or_delay_acks(self)
            } else {
                receiver.flush_acks(self, Flush::All)
            }
        }
    }
}

impl EndpointTable {
    /// Something was posted soon after something else.
    pub(crate) fn note_posting(&self, now_ns: u64) {
        if polls_behind_post(now_ns, self.looked_ns.load(Ordering::Relaxed)) {
            self.look_due.store(true, Ordering::Relaxed);
        }
    }

    /// Settles who looks after the sockets while no caller does.
    pub(super) fn set_poll_owner(&self, next: PollOwner) {
        let _owned = self.poll_owner_lock.lock();
        self.set_poll_owner_locked(next);
    }

    /// The same unless somebody else has settled it meanwhile.
    fn change_poll_owner(&self, before: PollOwner, next: PollOwner) {
        if self.poll_owner() != before {
            return;
        }
        let _owned = self.poll_owner_lock.lock();
        if self.poll_owner() == before {
            self.set_poll_owner_locked(next);
        }
    }

    fn set_poll_owner_locked(&self, next: PollOwner) {
        let before = self.swap_poll_owner(next);
        let (armed, arm) = (before == PollOwner::Thread, next == PollOwner::Thread);
        if armed != arm {
            // It was added, so it can be changed.
            let _ = self.poll.listen(self.data.as_fd(), DATA, arm);
        }
    }

    /// Puts a socket that is apart back, for whoever sleeps on the others next; false if that has
    /// to wait.
    pub(super) fn rejoin_epoll(&self) -> bool {
        !self.is_polled_directly()
            || try_receiver(self).is_some_and(|mut receiver| receiver.rejoin_epoll(self))
    }

    /// Whether somebody has to look at a socket by himself.
    pub(super) fn is_polled_directly(&self) -> bool {
        self.direct_poll.load(Ordering::Relaxed)
    }

    /// A caller looks after the sockets, or will soon. Should two do so at once, one may not be
    /// counted.
    pub(crate) fn note_caller_poll(&self) {
        let caller_polls = self.caller_polls.load(Ordering::Relaxed).wrapping_add(1);
        self.caller_polls.store(caller_polls, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
