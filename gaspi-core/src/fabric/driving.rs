//! Callers that look after the sockets of their rank while they wait.

use super::drive::Drive;
use super::peers::{Peers, watch};
use super::progress::try_drive;
use crate::runtime::Inner;
use crate::sync::{Ordering, fence};
use crate::wait::Sockets;
use std::time::Duration;

impl Sockets for Inner {
    fn look(&self) -> bool {
        let Some(mut drive) = try_drive(&self.peers) else {
            self.peers.drive_wanted.store(true, Ordering::Relaxed);
            return false;
        };
        self.peers.note_drive();
        drive.look(self)
    }

    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool {
        let peers = &self.peers;
        let Some(mut drive) = try_drive(peers) else { return false };
        peers.note_drive();
        drive.pay(self);
        peers.sleeper.store(true, Ordering::Relaxed);
        let on_sockets = self.area.sleep_on_sockets();
        if !announce() {
            // Rounded up: whoever wakes early only sleeps again.
            let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX - 1) + 1;
            drive.turn(self, limit_ms);
        }
        drop(on_sockets);
        peers.sleeper.store(false, Ordering::Relaxed);
        drop(drive);
        true
    }

    fn leave(&self) {
        let peers = &self.peers;
        let owes =
            try_drive(peers).is_some_and(|drive: std::sync::MutexGuard<'_, Drive>| drive.owes());
        // Said before: that this thread neither sleeps on the sockets nor looks after them.
        fence(Ordering::SeqCst);
        match peers.watch.load(Ordering::Relaxed) {
            watch::TICKING => {}
            watch::ARMED if !owes => {}
            _ => peers.bell.ring(),
        }
    }
}

impl Peers {
    /// A caller looks after the sockets, or will soon. Should two do so at once, one may not be counted.
    pub(super) fn note_drive(&self) {
        let drives = self.drives.load(Ordering::Relaxed).wrapping_add(1);
        self.drives.store(drives, Ordering::Relaxed);
    }
}
