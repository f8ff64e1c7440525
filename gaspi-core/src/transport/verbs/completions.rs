//! Takes completions from a device's queues.

use super::Verbs;
use super::device::Device;
use super::work::{BATCH, Completions};
use crate::sync::Ordering;
use libibverbs_sys as sys;
use std::ptr::NonNull;

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
}
