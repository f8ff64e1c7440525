//! Callers that look after the sockets of their rank while they wait.

use crate::progress::thread::try_drive;
use crate::runtime::Inner;
use crate::sync::{Ordering, fence};
use crate::transport::tcp::endpoint_table::{DATA, Peers, lock, watch};
use crate::wait::{Sockets, monotonic_ns};
use std::os::fd::AsFd;
use std::time::Duration;

impl Sockets for Inner {
    fn look(&self) -> bool {
        // What the last attempt has left, for which others may wait.
        self.peers.release(self);
        let Some(mut drive) = try_drive(&self.peers) else {
            self.peers.drive_wanted.store(true, Ordering::Relaxed);
            return false;
        };
        self.peers.note_drive();
        drive.look(self)
    }

    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool {
        let peers = &self.peers;
        peers.release(self);
        let Some(mut drive) = try_drive(peers) else { return false };
        peers.note_drive();
        drive.pay(self);
        let all = drive.put_back(peers);
        peers.sleeper.store(true, Ordering::Relaxed);
        // Else the progress thread wakes for the same news, most likely on the same core.
        peers.settle_from(watch::ARMED, watch::RELIEVED);
        let on_sockets = self.area.sleep_on_sockets();
        if !announce() {
            // Rounded up: whoever wakes early only sleeps again.
            let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX - 1) + 1;
            let limit_ms = if all { limit_ms } else { 1 };
            // Once awake it needs no wakeup socket, least of all its own.
            drive.turn(self, limit_ms, || drop(on_sockets));
        }
        peers.sleeper.store(false, Ordering::Relaxed);
        drop(drive);
        true
    }

    fn leave(&self) {
        let peers = &self.peers;
        if let Some(mut drive) = try_drive(peers)
            && drive.owes()
        {
            drive.pay_or_leave(self);
        }
        // ResendBuffer before: that this thread neither sleeps on the sockets nor looks after them.
        fence(Ordering::SeqCst);
        if peers.watch.load(Ordering::Relaxed) == watch::RELIEVED
            && !peers.sleeper.load(Ordering::Relaxed)
        {
            // Without a wake: it would run at once, in the way of whoever has waited.
            peers.settle_from(watch::RELIEVED, watch::ARMED);
        }
    }
}

/// How often a caller that posts all the time looks after the sockets, in nanoseconds: it costs
/// writes of 8 bytes a seventh of their rate.
const POSTING_LOOK_NS: u64 = 200_000;

impl Inner {
    /// Behind a post, where nothing is held that serving others may need: a caller that posts all
    /// the time keeps its rank's progress thread from being called for what comes, and so serves it
    /// in between.
    #[inline]
    pub(crate) fn look_behind_posts(&self) {
        if self.peers.look_due.load(Ordering::Relaxed) {
            self.look_now();
        }
    }

    #[cold]
    fn look_now(&self) {
        let peers = &self.peers;
        peers.look_due.store(false, Ordering::Relaxed);
        peers.looked_ns.store(monotonic_ns(), Ordering::Relaxed);
        if let Some(mut drive) = try_drive(peers) {
            let busy = drive.turn(self, 0, || ());
            if busy { drive.pay_or_leave(self) } else { drive.pay(self) }
        }
    }
}

impl Peers {
    /// Something was posted soon after something else.
    pub(crate) fn note_posting(&self, now_ns: u64) {
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(looked_ns) > POSTING_LOOK_NS {
            self.look_due.store(true, Ordering::Relaxed);
        }
    }

    /// Settles who looks after the sockets while no caller does.
    pub(super) fn settle(&self, next: u32) {
        let _settling = lock(&self.settling);
        self.settle_locked(next);
    }

    /// The same unless somebody else has settled it meanwhile.
    fn settle_from(&self, before: u32, next: u32) {
        if self.watch.load(Ordering::Relaxed) != before {
            return;
        }
        let _settling = lock(&self.settling);
        if self.watch.load(Ordering::Relaxed) == before {
            self.settle_locked(next);
        }
    }

    fn settle_locked(&self, next: u32) {
        let before = self.watch.swap(next, Ordering::Relaxed);
        let (armed, arm) = (before == watch::ARMED, next == watch::ARMED);
        if armed != arm {
            // It was added, so it can be changed.
            let _ = self.poll.listen(self.data.as_fd(), DATA, arm);
        }
    }

    /// Puts a socket that is apart back, for whoever sleeps on the others next; false if that has
    /// to wait.
    pub(super) fn put_back(&self) -> bool {
        !self.is_apart() || try_drive(self).is_some_and(|mut drive| drive.put_back(self))
    }

    /// Whether somebody has to look at a socket by himself.
    pub(super) fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Relaxed)
    }

    /// A caller looks after the sockets, or will soon. Should two do so at once, one may not be
    /// counted.
    pub(crate) fn note_drive(&self) {
        let drives = self.drives.load(Ordering::Relaxed).wrapping_add(1);
        self.drives.store(drives, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
