//! Looks of a thread that waits for a message: at what has come, and nothing else.

use super::Verbs;
use super::work::Completions;
use crate::sync::epoch;

/// Of so many looks one is at everything: requests that have ended, pairs that have failed.
pub(super) const LOOKS: u32 = 8;

impl Verbs<'_> {
    /// Looks for the `nth` time since a thread waits for a message of another rank.
    pub(crate) fn look_for_message(self, nth: u32) {
        if nth % LOOKS == LOOKS - 1 {
            self.poll();
        } else {
            self.take_messages();
        }
    }

    /// Handles what has come from others, unless another thread looks.
    fn take_messages(self) {
        let Some(mut receives) = self.table.receives.try_lock() else { return };
        let mut completions = Completions::none();
        self.table.device.poll_received(&mut completions);
        if completions.count() == 0 {
            return;
        }
        let _handling = epoch::handling();
        for completion in completions.iter() {
            self.received(&mut receives, &completion);
        }
        self.end_of_bytes(&mut receives);
        self.refill(&mut receives);
        self.up.ranks().wake_own();
    }
}
