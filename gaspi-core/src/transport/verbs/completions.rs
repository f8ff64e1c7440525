//! Takes completions from a device's queues, and tells whose they are.
//!
//! A thread that has taken some may handle them after their pair is gone, whose number the device
//! may have given to another lane. So work requests are numbered through all pairs of a lane, and
//! no two lanes have the same numbers.

use super::Verbs;
use super::device::Device;
use super::events::LOOKS_AT_ALL;
use super::lane::LaneState;
use super::work::{BATCH, Completion, Completions};
use crate::ids::Rank;
use crate::sync::Ordering;
use libibverbs_sys as sys;
use std::ptr::NonNull;

impl LaneState {
    /// Whether a completion tells of what is under way. One of a pair that has been taken down
    /// since it was taken off its queue does not, though its number may be that of the next one, or
    /// that of another lane.
    #[inline]
    pub(super) fn is_told_by(&self, completion: &Completion) -> bool {
        (self.direct.freed()..self.direct.next()).contains(&completion.id)
    }
}

impl Device {
    /// Takes completions of sent requests, as many as there is room for.
    pub(super) fn poll_sent(&self, completions: &mut Completions) {
        for sent in self.handles.sent.lock().iter() {
            if completions.count() == BATCH {
                break;
            }
            self.poll(sent.queue, completions);
        }
    }

    /// Takes messages that have come, as many as there is room for.
    pub(super) fn poll_received(&self, completions: &mut Completions) {
        self.poll(self.handles.received, completions);
    }

    /// Takes completions of one queue, as many as there is room for.
    pub(super) fn poll(&self, queue: NonNull<sys::ibv_cq>, completions: &mut Completions) {
        if completions.take_from(queue) < 0 {
            self.is_blind.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a completion queue has failed since this was asked.
    pub(super) fn take_blindness(&self) -> bool {
        self.is_blind.load(Ordering::Relaxed) && self.is_blind.swap(false, Ordering::Relaxed)
    }
}

impl Verbs<'_> {
    /// Handles what has completed of this rank's requests; whether there was anything.
    pub(super) fn look_at_sent(self) -> bool {
        let mut completions = Completions::none();
        self.table.device.poll_sent(&mut completions);
        completions.iter().for_each(|completion| self.sent(&completion));
        completions.count() > 0
    }

    /// Handles what this rank's own device has told by now of its requests, ahead of what `peer`
    /// tells. What another thread has taken off the queues is handled too when this returns.
    pub(super) fn look_ahead_of(self, peer: Rank) {
        if peer == self.up.ranks().me {
            // It hears itself, perhaps in the middle of a look: it has said what it knows.
            return;
        }
        let looks = || (0..LOOKS_AT_ALL).take_while(|_| self.look_at_sent()).count();
        if self.table.looks.handing_on.is_by_this_thread() {
            // The look that this is a part of wakes those that wait.
            looks();
            return;
        }
        let receives = self.table.receives.lock();
        let busy = looks() > 0;
        self.poll_with(receives);
        if busy {
            self.up.ranks().wake_own();
        }
    }
}
